"""Exactly once with a JVM: which query and batch a task belongs to, several topics, foreachBatch, batches without rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client.spark import failure_reason
from client.spark.options import sink_options
from client.spark.plan import tell_plan
from client.spark.positions import Positions
from client.spark.transaction import TransactionName, planned_for
from protocol.subscription import TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import IN_THE_SESSION, administer, numbers, prepare, read
from tests.integration.spark.test_exactly_once import committed, decided, open_transactions, stored

pytestmark = IN_THE_SESSION


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"in": 2, "out": 2, "more": 2}, {"in": 1000})
        yield daemon.address


def source(spark: Any, address: str, **options: str) -> Any:
    given = {"bootstrap.servers": address, "subscribe": "in", "startingOffsets": "earliest", "group.id": "g", **options}
    return spark.readStream.format("cohort").options(**given).load()


def run(table: Any, address: str, checkpoint: Path, **options: str) -> Any:
    """A query over all that is there, exactly once; returns it when it has ended."""
    given = {"bootstrap.servers": address, "delivery": "exactly-once", "group.id": "g", **options}
    query = (
        table.writeStream.format("cohort")
        .options(**given, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    return query


def described(address: str, transactional_id: str) -> Any:
    decided(address)
    return administer(address, lambda admin: admin.describe_transactions(transactional_id))[transactional_id]


def failing(flag: Path, batches: Iterator[Any]) -> Iterator[Any]:
    """A step of a query that fails when its rows are handed on, as long as there is a file."""
    yield from batches
    if flag.exists():
        raise RuntimeError("a task fails after its rows were written")


def test_every_batch_is_a_version_of_its_query_and_several_topics_are_one_transaction(
    address: str, spark: Any, tmp_path: Path
) -> None:
    table = source(spark, address, maxOffsetsPerTrigger="400").selectExpr(
        "key", "value", "IF(cast(string(value) AS int) % 2 = 0, 'out', 'more') AS topic"
    )
    query = run(table, address, tmp_path / "c")
    assert query.exception() is None
    known = described(address, f"spark-{query.id}")
    batches = [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(batches) > 1
    assert (known.scope, known.committed_version) == (str(query.id), batches[-1])
    assert stored(address) == list(range(0, 1000, 2))
    assert stored(address, "more") == list(range(1, 1000, 2))
    assert committed(address) == 1000
    assert open_transactions(address) == []


def test_a_task_that_fails_after_writing_fails_the_batch_and_a_restart_repeats_it(
    address: str, spark: Any, tmp_path: Path
) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    table = source(spark, address).select("key", "value")
    table = table.mapInArrow(partial(failing, flag), table.schema)
    with pytest.raises(Exception, match="a task fails after its rows were written") as raised:
        run(table, address, tmp_path / "c", topic="out")
    assert "a task fails" in failure_reason(raised.value)
    assert (stored(address), committed(address), open_transactions(address)) == ([], 0, [])
    flag.unlink()
    run(table, address, tmp_path / "c", topic="out")
    assert (stored(address), committed(address)) == (list(range(1000)), 1000)


def test_a_first_batch_that_failed_does_not_begin_at_the_first_record_when_it_is_repeated(
    address: str, spark: Any, tmp_path: Path
) -> None:
    """Spark asks for the initial offset again, and with latest that is behind the end of the batch by then."""
    given = {"bootstrap.servers": address, "subscribe": "in", "startingOffsets": "latest"}
    seen: list[int] = []

    def keep(rows: Any, batch_id: int) -> None:
        if not seen:
            seen.append(-1)
            raise RuntimeError("the first batch fails")
        seen.extend(int(row.value) for row in rows.collect())

    def start() -> Any:
        writer = spark.readStream.format("cohort").options(**given).load().writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    with pytest.raises(Exception, match="the first batch fails"):
        start().awaitTermination(300)
    prepare(address, {}, {"in": 10})
    for _ in range(2):
        start().awaitTermination(300)
    assert sorted(seen) == list(range(-1, 10))


def test_batches_that_read_nothing_are_committed_for_the_state_that_they_give_up(
    address: str, spark: Any, tmp_path: Path
) -> None:
    counts = (
        source(spark, address, maxOffsetsPerTrigger="600")
        .selectExpr("cast(string(value) AS int) AS n", "timestamp_seconds(1000 + cast(string(value) AS int)) AS at")
        .withWatermark("at", "1 second")
        .groupBy("at")
        .count()
        .selectExpr("string(unix_timestamp(at) - 1000) AS value")
    )
    query = run(counts, address, tmp_path / "c", topic="out")
    assert query.exception() is None
    read_by_batch = [progress["numInputRows"] for progress in query.recentProgress]
    assert 0 in read_by_batch, f"no batch without new rows: {read_by_batch}"
    seen = stored(address)
    assert seen == list(range(len(seen)))
    assert len(seen) >= 990, "all but what the watermark keeps"
    assert committed(address) == 1000
    prepare(address, {}, {"in": 5})
    assert run(counts, address, tmp_path / "c", topic="out").exception() is None
    assert committed(address) == 1005


def test_by_default_a_checkpoint_that_lost_its_last_batch_is_refused_and_loses_nothing(
    address: str, spark: Any, tmp_path: Path
) -> None:
    given = {"bootstrap.servers": address, "subscribe": "in", "startingOffsets": "earliest"}

    def copy() -> Any:
        table = spark.readStream.format("cohort").options(**given).load().select("key", "value")
        sink = {"bootstrap.servers": address, "topic": "out", "checkpointLocation": str(tmp_path / "c")}
        query = table.writeStream.format("cohort").options(**sink).trigger(availableNow=True).start()
        query.awaitTermination(300)
        return query

    query = copy()
    batch = query.lastProgress["batchId"]
    options = sink_options({"bootstrap.servers": address}, streaming=True)
    planned = planned_for(options, TransactionName(f"spark-{query.id}", str(query.id), batch))
    assert planned.startswith('{"in": {"0": '), planned
    assert copy().exception() is None
    for log in ("offsets", "commits"):
        for file in (f"{batch}", f".{batch}.crc"):
            (tmp_path / "c" / log / file).unlink(missing_ok=True)
    prepare(address, {}, {"in": 5})
    with pytest.raises(Exception, match="is committed as it was planned up to") as raised:
        copy()
    assert "the checkpoint has lost what it had planned" in failure_reason(raised.value)
    assert stored(address) == list(range(1000))
    assert open_transactions(address) == []


def telling_less(batches: Iterator[Any]) -> Iterator[Any]:
    """A step of a query in whose driver the source of group g seems to have planned less than it has."""
    yield from batches
    tell_plan("g", Positions({TopicPartition("in", 0): 1, TopicPartition("in", 1): 1}))


def test_sources_tell_the_sink_of_their_driver_what_is_planned_where_it_cannot_read_the_checkpoint(
    address: str, spark: Any, tmp_path: Path
) -> None:
    table = source(spark, address).select("key", "value")
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        for step in (telling_less, None):
            rows = table if step is None else table.mapInArrow(step, table.schema)
            given = {"bootstrap.servers": address, "topic": "out", "group.id": "g"}
            writer = rows.writeStream.format("cohort").options(**given).queryName("c").trigger(availableNow=True)
            told = pytest.raises(Exception, match="another program has staged a batch of its own")
            with contextlib.nullcontext() if step is None else told:
                writer.start().awaitTermination(300)
            assert (len(stored(address)), committed(address)) == ((1000, 1000) if step is None else (0, 0))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_foreach_batch_writes_each_version_once(address: str, spark: Any, tmp_path: Path) -> None:
    def keep(rows: Any, batch_id: int) -> None:
        for _ in range(2):  # as after a crash
            rows.select("key", "value").write.format("cohort").mode("append").options(
                **{
                    "bootstrap.servers": address,
                    "topic": "out",
                    "delivery": "exactly-once",
                    "transactional.id": "kept",
                    "transaction.version": str(batch_id),
                }
            ).save()

    query = (
        source(spark, address, maxOffsetsPerTrigger="400")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    assert query.exception() is None
    assert stored(address) == list(range(1000))
    known = described(address, "kept")
    assert (known.scope, known.committed_version) == (str(query.id), query.lastProgress["batchId"])


def test_a_batch_job_is_one_transaction(address: str, spark: Any) -> None:
    table = spark.read.format("cohort").option("bootstrap.servers", address).option("subscribe", "in").load()
    table.repartition(3).select("key", "value").write.format("cohort").mode("append").options(
        **{"bootstrap.servers": address, "topic": "out", "delivery": "exactly-once"}
    ).save()
    decided(address)
    assert numbers(read(address, subscribe="out")) == list(range(1000))
    assert open_transactions(address) == []
