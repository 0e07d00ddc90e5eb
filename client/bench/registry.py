"""All benchmarks by name, in the order they run."""

from __future__ import annotations

from typing import Final

from client.bench import (
    against_kafka,
    assign,
    commits,
    consume,
    failover,
    flat_memory,
    heartbeats,
    hostile,
    join,
    kafka,
    kafka_codec,
    large_group,
    load,
    many_groups,
    memory,
    metadata,
    metrics_cost,
    produce,
    rebalance_latency,
    replication,
    send_latency,
    spark,
    spark_kafka,
    transactions,
    transactions_read,
    workers,
)
from client.bench.figures import Benchmark

BENCHMARKS: Final[dict[str, Benchmark]] = {
    "heartbeats": Benchmark("Heartbeat requests a second, over 50 connections", heartbeats.run),
    "workers": Benchmark("Heartbeat requests a second of a daemon with one worker and with two", workers.run),
    "commits": Benchmark("offset commits a second of 64 members, each on disk before its answer", commits.run),
    "join": Benchmark("time until the members of a group own all partitions", join.run),
    "rebalance_latency": Benchmark(
        "milliseconds from a join or a leave until a consumer is asked for its partitions", rebalance_latency.run
    ),
    "large_group": Benchmark(
        "a group of 10,000 members settles: how soon, and what heartbeats of other groups feel of it", large_group.run
    ),
    "many_groups": Benchmark("2,000 groups of 5 members rebalance at once: time and missed sessions", many_groups.run),
    "hostile_requests": Benchmark(
        "what a ping and a heartbeat take beside a client that sends the largest requests allowed, kind by kind",
        hostile.run,
    ),
    "produce": Benchmark("records a second and MB/s, one by one and in bulk", produce.run),
    "send_latency": Benchmark("milliseconds from a send to its acknowledgement, one after the other", send_latency.run),
    "consume": Benchmark("records a second and MB/s out of getmany and getmany_columns", consume.run),
    "transactions_read": Benchmark("reading what is committed, next to reading everything", transactions_read.run),
    "transactions": Benchmark(
        "what transactions cost: a record and a commit, many producers, many records, exactly once, and a restart",
        transactions.run,
    ),
    "replication": Benchmark(
        "three replicas: an acknowledgement of all, records in bulk, and a replica that catches up", replication.run
    ),
    "failover": Benchmark(
        "seconds without an acknowledgement after the SIGKILL of the node that leads most", failover.run
    ),
    "metadata": Benchmark(
        "10,000 partitions of three replicas: made, led again after a node has died, found at a start, idle",
        metadata.run,
    ),
    "flat_memory": Benchmark("the daemon's memory while ten gigabytes pass through it", flat_memory.run),
    "memory": Benchmark(
        "bytes that a daemon keeps for each connection, member, group, offset, partition and producer id", memory.run
    ),
    "metrics_cost": Benchmark(
        "what --http adds to the daemon's time for a heartbeat, a commit and a record; needs the extra web",
        metrics_cost.run,
    ),
    "load": Benchmark("restart with 1,000,000 committed offsets in the log: time and memory", load.run),
    "spark": Benchmark(
        "rows a second into and through Spark, and what a micro-batch takes; needs the extra spark", spark.run
    ),
    spark_kafka.BENCH: Benchmark(
        "Spark's own Kafka connector beside Cohort's: rows a second, a micro-batch, and what a killed driver leaves behind",
        spark_kafka.run,
        spark_kafka.as_table,
    ),
    "kafka": Benchmark(
        "Kafka's clients beside Cohort's own: the daemon's time a record, a heartbeat, a commit",
        kafka.run,
    ),
    against_kafka.BENCH: Benchmark(
        "a Kafka that runs on this machine beside Cohort, alternately, row by row",
        against_kafka.run,
        against_kafka.as_table,
    ),
    "kafka_codec": Benchmark(
        "messages a second of Kafka's wire protocol, decoded or encoded, beside Cohort's own", kafka_codec.run
    ),
    "assign": Benchmark("time and memory of the assignors, and what a leader's heartbeats feel of it", assign.run),
}
