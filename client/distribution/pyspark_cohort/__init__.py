"""Where Spark looks for ``format("cohort")``: it takes ``DefaultSource`` of every top-level module named ``pyspark_...``."""

from aiocohort.own_packages import require_own_packages

require_own_packages(("protocol", "client"))

from client.spark.source import CohortDataSource as DefaultSource  # noqa: E402 - after the check

__all__ = ["DefaultSource"]
