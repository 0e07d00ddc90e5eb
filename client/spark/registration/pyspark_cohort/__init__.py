"""Where Spark looks for ``format("cohort")``: it takes ``DefaultSource`` of every top-level module named ``pyspark_...``."""

from client.spark.source import CohortDataSource as DefaultSource

__all__ = ["DefaultSource"]
