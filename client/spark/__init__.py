"""Cohort on Spark: the source and the sink behind ``format("cohort")``, in pure Python.

``pip install 'aiocohort[spark]'`` is all: Spark finds the format by itself, because the distribution has a top-level module
``pyspark_cohort``. It must be installed wherever Python workers of Spark run. This package imports neither pyspark nor
pyarrow before they are needed.

==================  ==================================================================================
``source``          what Spark plans with: schema, offsets, limits, ranges of offsets for its tasks
``driver``          the connection to the cluster of the planner: metadata, ends of logs, the group
``ownership``       the group that a query owns, and the offsets it commits there
``listener``        the same commits as soon as a batch is complete, by the program that started the query
``monitor``         rows, durations and lag of the queries of a session, for operators and metrics
``sink``            what Spark writes with
``tasks``           what runs in tasks: connections that block, a reader, a writer, Arrow
==================  ==================================================================================
"""

from client.spark.errors import CheckpointError, DataLossError, OptionsError, QueryFencedError, failure_reason
from client.spark.java import JavaMissingError, prepare_java
from client.spark.monitor import QueryMonitor, QuerySnapshot, SourceSnapshot
from client.spark.session import commit_as_batches_complete, monitor_queries, require_spark, spark_session

__all__ = [
    "CheckpointError",
    "DataLossError",
    "JavaMissingError",
    "OptionsError",
    "QueryFencedError",
    "QueryMonitor",
    "QuerySnapshot",
    "SourceSnapshot",
    "commit_as_batches_complete",
    "failure_reason",
    "monitor_queries",
    "prepare_java",
    "require_spark",
    "spark_session",
]
