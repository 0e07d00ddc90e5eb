"""All benchmarks by name, in the order they run.

Each is a module of its name, which is imported when it is to run: to import all of them takes longer than what most commands
of ``cohort`` do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from client.bench.figures import Benchmark

SUMMARIES: Final[dict[str, str]] = {
    "heartbeats": "Heartbeat requests a second, over 50 connections",
    "workers": "Heartbeat requests a second of a daemon with one worker and with two",
    "commits": "offset commits a second of 64 members, each on disk before its answer",
    "join": "time until the members of a group own all partitions",
    "rebalance_latency": "milliseconds from a join or a leave until a consumer is asked for its partitions",
    "large_group": "a group of 10,000 members settles: how soon, and what heartbeats of other groups feel of it",
    "many_groups": "2,000 groups of 5 members rebalance at once: time and missed sessions",
    "hostile_requests": (
        "what a ping and a heartbeat take beside a client that sends the largest requests allowed, kind by kind"
    ),
    "produce": "records a second and MB/s, one by one and in bulk",
    "send_latency": "milliseconds from a send to its acknowledgement, one after the other",
    "consume": "records a second and MB/s out of getmany and getmany_columns",
    "transactions_read": "reading what is committed, next to reading everything",
    "transactions": (
        "what transactions cost: a record and a commit, many producers, many records, exactly once, and a restart"
    ),
    "replication": "three replicas: an acknowledgement of all, records in bulk, and a replica that catches up",
    "failover": "seconds without an acknowledgement after the SIGKILL of the node that leads most",
    "metadata": "10,000 partitions of three replicas: made, led again after a node has died, found at a start, idle",
    "flat_memory": "the daemon's memory while ten gigabytes pass through it",
    "memory": "bytes that a daemon keeps for each connection, member, group, offset, partition and producer id",
    "metrics_cost": "what --http adds to the daemon's time for a heartbeat, a commit and a record; needs the extra web",
    "tracing_cost": "what spans add to a client's time for a send, a handler's call and a commit; needs the extra otel",
    "load": "restart with 1,000,000 committed offsets in the log: time and memory",
    "spark": "rows a second into and through Spark, and what a micro-batch takes; needs the extra spark",
    "spark_kafka": (
        "Spark's own Kafka connector beside Cohort's: rows a second, a micro-batch, and what a killed driver "
        "leaves behind"
    ),
    "kafka": "Kafka's clients beside Cohort's own: the daemon's time a record, a heartbeat, a commit",
    "against_kafka": "a Kafka that runs on this machine beside Cohort, alternately, row by row",
    "kafka_memory": "what a Kafka that runs here keeps in memory for each of what memory counts, beside a daemon",
    "kafka_codec": "messages a second of Kafka's wire protocol, decoded or encoded, beside Cohort's own",
    "assign": "time and memory of the assignors, and what a leader's heartbeats feel of it",
}
"""What each of them measures, in a few words."""


def benchmark(name: str) -> Benchmark:
    """The benchmark of a name in ``SUMMARIES``: ``run`` of its module, and ``as_table`` where it has that."""
    module = import_module(f"client.bench.{name}")
    return Benchmark(SUMMARIES[name], module.run, getattr(module, "as_table", None))
