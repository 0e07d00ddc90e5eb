"""A program in which Spark runs for a benchmark, and which may be killed: ``python -m client.bench.spark_program JSON``.

``JSON`` has ``peers``, ``rows``, Spark's ``settings`` and ``work``: ``measure`` fills the topics and runs every job in
rounds, the peers in turns; ``copy`` copies the rows of the one peer by a query with the ``checkpoint``; ``count`` counts
what was copied, and deletes the topics. Events are lines of JSON on standard output, the last one
``done`` or ``failed``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.bench.spark_peers import PARTITIONS, TOPICS, Peer, delivered, fill, timed
from client.spark import failure_reason, spark_session

KAFKA: Final = "kafka"
_COPIES: Final = 20
_ADMIN_S: Final = 30


def _tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def _measure(spark: Any, peers: Sequence[Peer], task: Mapping[str, Any]) -> None:
    """The first round warms up and does not count."""
    for peer in peers:
        if peer.format == KAFKA:
            _create(spark, peer)
        fill(spark, peer, task["rows"])
    for number in range(task["rounds"] + 1):
        for peer in peers:
            for metric, value in timed(spark, peer, task["rows"], task["micro_batches"]):
                if number:
                    _tell(peer=peer.name, metric=metric, value=value)


def _copy(spark: Any, peers: Sequence[Peer], task: Mapping[str, Any]) -> None:
    """Tells of each batch that is complete, with what it took."""
    (peer,) = peers
    rows = peer.stream(spark, "rows", max(1, task["rows"] // _COPIES), "copy").select("key", "value")
    query = peer.written(rows, "copied", task["checkpoint"], "copy").trigger(availableNow=True).start()
    told = -1
    while True:
        ended = query.awaitTermination(0.02)
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told and progress["numInputRows"]:
            told = progress["batchId"]
            _tell(batch=told, ms=progress["durationMs"]["triggerExecution"])
        if ended:
            return


def _count(spark: Any, peers: Sequence[Peer], task: Mapping[str, Any]) -> None:
    for peer in peers:
        _tell(peer=peer.name, **delivered(spark, peer, task["rows"]))
        if peer.format == KAFKA:
            _with_admin(spark, peer, lambda admin, peer=peer: admin.deleteTopics(_names(spark, peer)).all())


_WORK: Final = {"measure": _measure, "copy": _copy, "count": _count}


def _create(spark: Any, peer: Peer) -> None:
    new = spark._jvm.org.apache.kafka.clients.admin.NewTopic
    topics = spark._jvm.java.util.ArrayList()
    for name in TOPICS:
        topics.add(new(peer.topic(name), PARTITIONS, 1))
    _with_admin(spark, peer, lambda admin: admin.createTopics(topics).all())


def _names(spark: Any, peer: Peer) -> Any:
    names = spark._jvm.java.util.ArrayList()
    for name in TOPICS:
        names.add(peer.topic(name))
    return names


def _with_admin(spark: Any, peer: Peer, work: Any) -> None:
    """Kafka's own client, which comes with the connector: topics are made by it and not by a first write."""
    properties = spark._jvm.java.util.Properties()
    properties.put("bootstrap.servers", peer.connection["kafka.bootstrap.servers"])
    admin = spark._jvm.org.apache.kafka.clients.admin.Admin.create(properties)
    try:
        work(admin).get(_ADMIN_S, spark._jvm.java.util.concurrent.TimeUnit.SECONDS)
    finally:
        admin.close()


def main(text: str) -> None:
    """Does one piece of work, and says when it is done."""
    task = json.loads(text)
    peers = [Peer(**each) for each in task["peers"]]
    spark = spark_session("cohort-bench", "local[2]", settings=task["settings"])
    spark.sparkContext.setLogLevel("ERROR")
    try:
        _WORK[task["work"]](spark, peers, task)
        _tell(done=True)
    except Exception as error:
        said = getattr(error, "java_exception", error)  # what Java raised, where PySpark has no error of its own for it
        _tell(failed=failure_reason(RuntimeError(str(said))))
        raise
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
