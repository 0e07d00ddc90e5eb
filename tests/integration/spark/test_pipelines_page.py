"""The programs of docs/spark-pipelines.md as they stand, stopped in the middle and started again, against plain counts.

They run in this process and share its session: each would start a JVM of its own otherwise.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from client import Producer, TopicPartition
from client.spark import QuerySnapshot, monitor_queries
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT
from tests.integration.spark.calls import IN_THE_SESSION, administer, prepare, read, run
from tests.integration.spark.points import wait
from tests.integration.spark.test_exactly_once import committed, decided

PAGE = (ROOT / "docs" / "spark-pipelines.md").read_text(encoding="utf-8")
START = datetime(2026, 1, 1, tzinfo=UTC)
AVRO_JAR = os.environ.get("SPARK_AVRO_JAR", "")

Start = Callable[..., tuple[dict[str, Any], list[Any]]]

pytestmark = IN_THE_SESSION


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with DaemonProcess(tmp_path / "data") as daemon:
        (topics,) = re.findall(r"^for topic in (.*); do$", PAGE, re.MULTILINE)
        prepare(daemon.address, dict.fromkeys(topics.split(), 2))
        yield daemon.address


@pytest.fixture
def program(address: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Runs the program whose session has this name."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)

    def start(
        name: str, meanwhile: Callable[[Any], object] | None = None, replaced: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], list[Any]]:
        """Its variables, and the progress of the batches that read something. ``meanwhile`` gets the query after one."""
        places = {"127.0.0.1:7337": address, '"checkpoints/': f'"{tmp_path}/checkpoints/'}
        source = source_of(name, places | dict(replaced or {}))
        space: dict[str, Any] = {"__name__": "__main__"}
        ended = threading.Event()
        with ThreadPoolExecutor(1) as watcher:
            acting = watcher.submit(after_a_batch, spark, meanwhile, ended)
            try:
                exec(compile(source, f"{name}.py", "exec"), space)
            finally:
                ended.set()
        acting.result()
        assert space["query"].exception() is None
        return space, [batch for batch in space["query"].recentProgress if batch["numInputRows"]]

    return start


def after_a_batch(spark: Any, act: Callable[[Any], object] | None, ended: threading.Event) -> None:
    while act is not None and not ended.wait(0.02):
        for query in spark.streams.active:
            if query.lastProgress is not None and query.lastProgress["numInputRows"]:
                act(query)
                return


def source_of(name: str, replaced: Mapping[str, str]) -> str:
    """The program whose session has this name."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (source,) = (block for block in blocks if f'spark_session("{name}"' in block)
    for old, new in replaced.items():
        assert old in source
        source = source.replace(old, new)
    return str(source)


def run_until_killed(source: str, directory: Path, when: Callable[[], bool]) -> None:
    """The program in a process of its own, which SIGKILL ends with all its processes."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", source], cwd=directory, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait(lambda: when() or process.poll() is not None, "the moment of the kill")
        assert process.poll() is None, (directory / "log").read_text()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def send(address: str, topic: str, values: Sequence[Any], partition: int | None = None) -> None:
    """Values in this order, with their numbers as keys; what is neither bytes nor None is sent as JSON."""
    encoded = [one if one is None or isinstance(one, bytes) else json.dumps(one).encode() for one in values]
    keys = [b"%d" % number for number in range(len(values))]

    async def work() -> None:
        async with Producer(address) as producer:
            await producer.send_many(topic, encoded, keys, partition=partition)

    run(work())


def rows(address: str, topic: str) -> list[dict[str, Any]]:
    """All that a reader with read_committed sees of a topic."""
    decided(address)
    columns = ("key", "value", "partition", "offset", "headers")
    found: list[dict[str, Any]] = read(address, *columns, subscribe=topic, includeHeaders="true").to_pylist()
    return found


def contents(address: str, topic: str) -> list[dict[str, Any]]:
    """The JSON values of a topic."""
    return [json.loads(row["value"]) for row in rows(address, topic)]


def at(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def in_batches_of(most: int) -> dict[str, str]:
    return {'"maxOffsetsPerTrigger", 10_000': f'"maxOffsetsPerTrigger", {most}'}


def stop(query: Any) -> None:
    query.stop()


BAD: list[Any] = [
    *(b"no JSON", b"", None, b"\xff\xfe{", b'{"id": "cut", "item": ', b"null", b"17", b"[]"),
    {"id": "q", "item": "tea", "quantity": "many", "at": at(1)},
    {"item": "tea", "quantity": 1, "at": at(1)},
    {"id": "t", "item": "tea", "quantity": 1, "at": "some day"},
    {"id": "z", "item": "tea", "quantity": 0, "at": at(1)},
]


def test_each_record_is_parsed_or_a_dead_letter_once(program: Start, address: str) -> None:
    given: list[Any] = []
    for part in range(2):
        shuffled = [{"id": f"{part}-{n}", "item": "tea", "quantity": n + 1, "at": at(n)} for n in range(150)] + BAD
        Random(part).shuffle(shuffled)
        given += shuffled
        send(address, "orders", shuffled)
        most = 4 if part == 0 else 100
        begin = '"startingOffsets", "earliest")'
        _, batches = program(
            "parsing", stop if part == 0 else None, {begin: f'{begin}.option("maxOffsetsPerTrigger", {most})'}
        )
        if part == 0:
            assert 0 < sum(batch["numInputRows"] for batch in batches) < len(given), "stopped in the middle"
    good = [one for one in given if one not in BAD]
    assert sorted(one["id"] for one in contents(address, "orders.parsed")) == sorted(one["id"] for one in good)
    assert {one["id"]: one for one in contents(address, "orders.parsed")} == {one["id"]: one for one in good}
    letters = rows(address, "orders.dlq")
    assert len(letters) == 2 * len(BAD)
    source = {(row["partition"], row["offset"]): row for row in rows(address, "orders")}
    for letter in letters:
        told = {
            header["key"].removeprefix("__cohort.errors."): header["value"].decode() for header in letter["headers"]
        }
        record = source.pop((int(told["partition"]), int(told["offset"])))
        assert (letter["key"], letter["value"]) == (record["key"], record["value"])
        assert told["topic"] == "orders"
        assert told["exception.message"]
    assert len(source) == len(good)
    assert committed(address, "parsing-orders") == len(given)


def test_a_join_of_two_streams_has_each_order_once(program: Start, address: str, tmp_path: Path) -> None:
    orders = [{"id": str(n), "item": "tea", "at": at(n / 2)} for n in range(200)]
    delays = {n: 90 if n % 7 == 0 else 5 for n in range(200) if n % 3}
    payments = [{"order": str(n), "cents": n, "paid": at(n / 2 + delay)} for n, delay in delays.items()]
    payments.sort(key=lambda payment: str(payment["paid"]))
    end = {"id": "end", "item": "tea", "at": at(600)}, {"order": "end", "cents": 0, "paid": at(600)}
    send(address, "orders.parsed", orders[:100])
    send(address, "payments", payments[:20])
    source = source_of("join", {"127.0.0.1:7337": address} | in_batches_of(3))
    run_until_killed(source, tmp_path, lambda: committed(address, "joining-orders.parsed") > 5)
    assert committed(address, "joining-orders.parsed") < 100, "killed in the middle"
    send(address, "payments", payments[20:50])
    program("join", stop, in_batches_of(20))
    send(address, "orders.parsed", orders[100:])
    send(address, "payments", payments[50:])
    program("join", None, in_batches_of(30))
    send(address, "orders.parsed", [end[0]])
    send(address, "payments", [end[1]])
    program("join", None, in_batches_of(30))
    found = contents(address, "orders.paid")
    expected = {str(n): n if delays.get(n) == 5 else None for n in range(200)}
    assert sorted(one["id"] for one in found if one["id"] != "end") == sorted(expected)
    assert {one["id"]: one.get("cents") for one in found if one["id"] != "end"} == expected
    assert committed(address, "joining-orders.parsed") == len(orders) + 1
    assert committed(address, "joining-payments") == len(payments) + 1


def test_windows_go_on_counting_after_a_restart_and_are_written_once(program: Start, address: str) -> None:
    def orders(first: int, last: int) -> list[dict[str, Any]]:
        return [{"item": "tea" if n % 3 else "milk", "quantity": n % 5, "at": at(n / 4)} for n in range(first, last)]

    late = [{"item": "late", "quantity": 1, "at": at(-1000)}] * 20
    end = [{"item": "end", "quantity": 1, "at": at(2000)}]
    send(address, "orders.parsed", orders(0, 150))
    _, batches = program("windows", stop, in_batches_of(4))
    assert 0 < sum(batch["numInputRows"] for batch in batches) < 150, "stopped in the middle"
    program("windows", None, in_batches_of(40))
    send(address, "orders.parsed", [*late, *orders(150, 300)])
    space, _ = program("windows", None, in_batches_of(40))
    states = [state for batch in space["query"].recentProgress for state in batch["stateOperators"]]
    assert sum(state.numRowsDroppedByWatermark for state in states) > 0, "late rows are counted"
    send(address, "orders.parsed", end)
    space, _ = program("windows", None, in_batches_of(40))
    assert space["query"].recentProgress[-1]["stateOperators"][0].numRowsTotal == 1, "the last window is open"
    expected: Counter[tuple[str, str]] = Counter()
    quantities: Counter[tuple[str, str]] = Counter()
    for n, order in enumerate(orders(0, 300)):
        window = at(n // 20 * 5), str(order["item"])
        expected[window] += 1
        quantities[window] += int(order["quantity"])
    found = [
        ((one["start"], one["item"]), one["orders"], one["quantity"]) for one in contents(address, "orders.counts")
    ]
    assert len(found) == len(expected), "each window once"
    assert {window: count for window, count, _ in found} == dict(expected)
    assert {window: quantity for window, _, quantity in found} == dict(quantities)
    assert committed(address, "counting-orders") == 321


def test_a_backlog_is_taken_in_bounded_batches_and_what_comes_meanwhile_is_left(
    program: Start, address: str, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    everything: list[QuerySnapshot] = []
    monitor = monitor_queries(spark, everything.append)
    for partition, size in enumerate((900, 100)):
        send(address, "orders", [{"n": n} for n in range(size)], partition)
    space, batches = program("backlog", lambda query: send(address, "orders", [{"late": 1}] * 50), in_batches_of(200))
    assert [batch["numInputRows"] for batch in batches] == [200] * 5
    assert [partitions_read(batch) for batch in batches] == [{0: 180, 1: 20}] * 5
    assert len(rows(address, "orders.copy")) == 1000
    told = told_until_the_end(everything, space["query"])
    assert [(one.committed_batch, one.active, one.failure) for one in (told[0], told[-1])] == [
        (-1, True, None),
        (4, False, None),
    ]
    after = [one for one in told if one.active and one.rows_in]  # a slow machine may tell that nothing is left, too
    assert [one.committed_batch for one in after] == [0, 1, 2, 3, 4]
    assert [one.total_lag for one in after] == [800, 600, 400, 200, 0]
    assert after[1].lag == {TopicPartition("orders", 0): 540, TopicPartition("orders", 1): 60}
    assert {(one.name, one.rows_in, one.rows_out) for one in after} == {("copy", 200, 200)}
    assert all(one.duration_ms >= one.durations_ms["addBatch"] > 0 for one in after)
    assert {source.group_id for source in after[0].sources} == {"copying-orders"}
    known = administer(address, lambda admin: admin.describe_transactions(f"spark-{space['query'].id}"))
    assert known[f"spark-{space['query'].id}"].committed_version == told[-1].committed_batch
    again, batches = program("backlog", None, in_batches_of(200))
    assert sum(batch["numInputRows"] for batch in batches) == 50
    told_until_the_end(everything, again["query"])
    last = monitor.snapshots()[str(again["query"].id)]
    assert (last.query_id, last.batches, last.total_rows_in, last.total_rows_out) == (told[0].query_id, 1, 50, 50)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("copy ")]
    assert shown[0] == "copy runs at batch -1 with 0 rows, behind: {}"
    assert shown[2].startswith(
        "copy runs at batch 1 with 400 rows, behind: {TopicPartition(topic='orders', partition=0): 540"
    )


def test_a_query_that_fails_is_told_with_its_reason(address: str, spark: Any, tmp_path: Path) -> None:
    everything: list[QuerySnapshot] = []
    monitor_queries(spark, everything.append)
    send(address, "orders", [{"n": 1}])
    options = {"bootstrap.servers": address, "subscribe": "orders", "startingOffsets": "earliest"}
    table = spark.readStream.format("cohort").options(**options).load()
    query = (
        table.selectExpr("raise_error('the price is missing') AS value")
        .writeStream.format("noop")
        .queryName("failing")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="the price is missing"):
        query.awaitTermination(300)
    last = told_until_the_end(everything, query)[-1]
    assert last.name == "failing"
    assert "the price is missing" in (last.failure or "")
    assert "\n" not in (last.failure or "")


@pytest.mark.skipif(not AVRO_JAR, reason="the JAR of spark-avro is in no index of pip: SPARK_AVRO_JAR says where it is")
def test_avro_values_are_decoded_and_those_that_are_none_are_dead_letters(address: str, tmp_path: Path) -> None:
    """In a process of its own: a session takes JARs when its JVM starts."""
    source = source_of(
        "avro", {"127.0.0.1:7337": address, '"spark.jars.packages": PACKAGE': f'"spark.jars": "{AVRO_JAR}"'}
    )
    good = [bytes([2 * len(str(n))]) + str(n).encode() + bytes([2 * n]) for n in range(60)]
    bad = [b"", b"\x02", b"\xff\xff\xff", None]
    for part in (good[:30] + bad, good[30:] + bad):
        send(address, "payments.avro", part)
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"payments {len(part)} read" in done.stdout
    found = sorted(contents(address, "payments"), key=lambda one: int(one["cents"]))
    assert found == [{"id": str(n), "cents": n} for n in range(60)]
    assert Counter(row["value"] for row in rows(address, "payments.dlq")) == Counter(bad * 2)
    assert committed(address, "decoding-payments") == 68


def told_until_the_end(everything: list[QuerySnapshot], query: Any) -> list[QuerySnapshot]:
    """What was told of this run of a query, which has ended: Spark tells it some time later, and of other queries too."""

    def of_this() -> list[QuerySnapshot]:
        return [one for one in list(everything) if one.run_id == str(query.runId)]

    wait(lambda: any(not one.active for one in of_this()), "the end of a query, as it is told")
    return of_this()


def partitions_read(batch: Any) -> dict[int, int]:
    source = batch["sources"][0]
    begin = json.loads(source["startOffset"])["orders"] if source["startOffset"] not in (None, "null") else {}
    end = json.loads(source["endOffset"])["orders"]
    return {int(number): offset - begin.get(number, 0) for number, offset in end.items()}
