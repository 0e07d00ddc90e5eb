"""With a JVM: Spark finds the format by itself, and calls it the way that the other tests do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import pytest

from client import TopicPartition
from client.spark import failure_reason
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import IN_THE_SESSION, administer, numbers, prepare, produce, read, run

pytestmark = IN_THE_SESSION

FOR_EVER = {"session.timeout.ms": "1200000"}
"""Only a LeaveGroup frees such a group."""
WAIT_S = 240


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        prepare(daemon.address, {"t": 3, "out": 2, "live": 2, "live-out": 2}, {"t": 3000})
        yield daemon.address


def state(address: str, group: str) -> str:
    described: str = administer(address, lambda admin: admin.describe_groups(group))[group].state
    return described


def wait(condition: Any) -> None:
    began = perf_counter()
    while not condition():
        assert perf_counter() - began < WAIT_S, "it did not come true in time"
        sleep(0.1)


def committed(address: str, group: str) -> int:
    found = administer(address, lambda admin: admin.list_offsets(group))
    return sum(offset.offset for offset in found.values())


def test_a_batch_is_read_filtered_and_written(spark: Any, address: str) -> None:
    table = spark.read.format("cohort").option("bootstrap.servers", address).option("subscribe", "t").load()
    assert table.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert table.count() == 3000
    narrow = spark.read.format("cohort").options(**{"bootstrap.servers": address, "subscribe": "t", "pushdown": "true"})
    chosen = narrow.schema("value binary, partition int, offset long").load().where("partition = 1 AND offset < 10")
    assert chosen.count() == 10
    assert chosen.columns == ["value", "partition", "offset"]
    table.where("partition < 2").selectExpr("string(value) AS key", "value").write.format("cohort").mode(
        "append"
    ).options(**{"bootstrap.servers": address, "topic": "out"}).save()
    kept = table.where("partition < 2").count()
    assert read(address, subscribe="out").num_rows == kept


def test_workers_load_pyspark_with_its_bytecode(spark: Any) -> None:
    import pyspark

    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow
        import pyspark

        for _ in batches:
            yield pyarrow.record_batch({"file": [pyspark.__file__]})

    (row,) = spark.range(1).mapInArrow(where, "file string").take(1)
    assert row[0] == pyspark.__file__


def test_a_wrong_option_reaches_the_program(spark: Any, address: str) -> None:
    wrong = spark.read.format("cohort").options(**{"bootstrap.servers": address, "minPartitions": "x"})
    with pytest.raises(Exception, match=r"(?s)exactly one of subscribe.*minPartitions is 'x'"):
        wrong.load().count()


def test_a_query_commits_as_its_batches_complete_and_frees_its_group_when_it_stops(
    spark: Any, address: str, tmp_path: Path
) -> None:
    options = {"bootstrap.servers": address, "subscribe": "live", "startingOffsets": "earliest", "group.id": "live"}
    options |= FOR_EVER
    lines = spark.readStream.format("cohort").options(**options).load().select("key", "value")
    query = (
        lines.writeStream.format("cohort")
        .options(**{"bootstrap.servers": address, "topic": "live-out", "checkpointLocation": str(tmp_path / "c")})
        .start()
    )
    run(produce(address, "live", range(500)))
    wait(lambda: committed(address, "live") == 500)  # no further batch is needed for the last one to be seen
    shown = subprocess.run(
        [sys.executable, "-m", "client", "-b", address, "groups", "describe", "live"], capture_output=True, text=True
    ).stdout
    assert "spark-query" in shown
    assert "total lag 0" in shown
    assert state(address, "live") == "Stable"
    query.stop()
    assert query.exception() is None
    wait(lambda: state(address, "live") == "Empty")
    assert numbers(read(address, subscribe="live-out")) == list(range(500))


def test_with_a_long_trigger_the_offsets_do_not_wait_for_the_next_batch(
    spark: Any, address: str, tmp_path: Path
) -> None:
    prepare(address, {"rare": 2}, {"rare": 300})
    options = {"bootstrap.servers": address, "subscribe": "rare", "startingOffsets": "earliest", "group.id": "rare"}
    options |= FOR_EVER
    query = (
        (spark.readStream.format("cohort").options(**options).load().writeStream.format("noop"))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processingTime="1 day")
        .start()
    )
    wait(lambda: committed(address, "rare") == 300)
    query.stop()  # Spark kills the process of the source, which waits for the next day, without a word
    wait(lambda: state(address, "rare") == "Empty")


def test_available_now_ends_with_everything_committed_and_the_group_free(
    spark: Any, address: str, tmp_path: Path
) -> None:
    options = {"bootstrap.servers": address, "subscribe": "t", "startingOffsets": "earliest", "group.id": "now"}
    table = spark.readStream.format("cohort").options(**options, maxOffsetsPerTrigger="1200").load()
    for expected in (3000, 0):
        query = (
            table.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
        ).start()
        assert query.awaitTermination(WAIT_S)
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == expected
        wait(lambda: committed(address, "now") == 3000)
        wait(lambda: state(address, "now") == "Empty")


def test_a_second_query_ends_the_first_with_the_reason(spark: Any, address: str, tmp_path: Path) -> None:
    options = {"bootstrap.servers": address, "subscribe": "live", "group.id": "contended"}

    def start(name: str) -> Any:
        table = spark.readStream.format("cohort").options(**options).load()
        return table.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name)).start()

    first = start("first")
    wait(lambda: state(address, "contended") == "Stable")
    second = start("second")
    with pytest.raises(Exception, match="has taken over group 'contended'"):
        first.awaitTermination(WAIT_S)
    assert second.isActive
    second.stop()


def test_two_sources_of_a_query_with_one_group_end_it_with_what_to_do(spark: Any, address: str, tmp_path: Path) -> None:
    def table(topic: str) -> Any:
        options = {"bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest", "group.id": "both"}
        return spark.readStream.format("cohort").options(**options, maxOffsetsPerTrigger="1000").load()

    query = table("t").union(table("live")).writeStream.format("noop")
    running = query.option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="has taken over group 'both'") as caught:
        running.awaitTermination(WAIT_S)
    reason = failure_reason(caught.value)
    assert "Sources of one query need a group.id each, or groupIdPrefix" in reason
    assert "\n" not in reason


def test_lost_records_end_the_query_with_the_reason(spark: Any, address: str, tmp_path: Path) -> None:
    prepare(address, {"lossy": 1}, {"lossy": 100})
    options = {"bootstrap.servers": address, "subscribe": "lossy", "startingOffsets": '{"lossy": {"0": 5}}'}
    administer(address, lambda admin: admin.delete_records({TopicPartition("lossy", 0): 50}))
    query = (
        (spark.readStream.format("cohort").options(**options).load().writeStream.format("noop"))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="begins at offset 50"):
        query.awaitTermination(WAIT_S)
