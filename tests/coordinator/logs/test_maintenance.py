"""Maintenance of all logs of a node: what is due is done, a clock that leaps has to wait, a fault stays with its log."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import structlog

import coordinator.log.group_commit
from coordinator.config import settings_from
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogDamagedError, PartitionLog
from coordinator.logs.log_manager import LogManager
from coordinator.logs.maintenance import LogMaintenance
from coordinator.metadata.catalog import Catalog, Topic
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.topic_config import Value
from protocol.record_batch import encode_batch, read_header
from tests.coordinator.log.logs import end_of_process, outcome, records_in

DAY = 86_400_000
INTERVAL = 60_000


class Node:
    """Topics with logs on a real disk, and a wall clock that a test sets."""

    def __init__(self, catalog: Catalog, disk: Disk) -> None:
        self.catalog = catalog
        self.wall_ms = 10 * DAY
        self.logs = LogManager(disk, catalog, lambda topic: catalog.config(topic).log_config("ack"), end_of_process)
        self.maintenance = LogMaintenance(
            self.logs,
            lambda: self.wall_ms,
            compaction_interval_ms=15_000,
            checkpoint_interval_ms=60_000,
            retention_check_interval_ms=INTERVAL,
            producer_id_expiration_ms=DAY,
        )
        self.maintenance.start()

    async def topic(self, name: str, **config: Value) -> PartitionLog:
        topic = self.catalog.draft(name, 1, {key.replace("_", "."): value for key, value in config.items()})
        await self.logs.create(topic, range(1))
        await self.catalog.commit(topic)
        opened = self.logs.get(name, 0)
        assert opened is not None
        return opened

    async def alter(self, name: str, **changes: Value | None) -> Topic:
        altered = self.catalog.draft_config(
            self.catalog.topic(name), {key.replace("_", "."): value for key, value in changes.items()}
        )
        await self.catalog.commit(altered)
        return altered

    async def fill(self, log: PartitionLog, records: int, producer_id: int = -1) -> None:
        for number in range(records):
            numbers = (producer_id, 0, number) if producer_id >= 0 else (-1, -1, -1)
            batch = encode_batch(
                [b"v" * 100], [b"k"], timestamps_ms=[self.wall_ms],
                producer_id=numbers[0], producer_epoch=numbers[1], base_sequence=numbers[2],
            )  # fmt: skip
            log.append(batch, read_header(batch), self.wall_ms)
        assert await outcome(log) is None


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    disk, ids = Disk(FileStorage(str(tmp_path)), threads=2), count()
    store = await LocalMetadataStore.open(disk, lambda: "cluster", end_of_process)
    defaults = settings_from({"segment_bytes": 1024, "retention_ms": DAY}).topic_defaults
    catalog = Catalog(
        store, 0, lambda: f"t{next(ids)}", max_partitions=100, max_partitions_per_topic=10, config_defaults=defaults
    )
    made = Node(catalog, disk)
    yield made
    await made.logs.close()
    disk.close()


async def test_what_has_expired_is_deleted_and_what_has_not_stays(node: Node) -> None:
    short, long = await node.topic("short", retention_ms=INTERVAL), await node.topic("long", retention_ms=-1)
    for log in (short, long):
        await node.fill(log, 20)
    node.wall_ms += INTERVAL
    await node.maintenance.retain()
    assert (short.start_offset, long.start_offset) == (20, 0)


async def test_a_clock_that_leaps_ahead_is_believed_with_the_second_look_only(node: Node) -> None:
    log = await node.topic("t")
    await node.fill(log, 20, producer_id=4)
    node.wall_ms += 300 * DAY
    with structlog.testing.capture_logs() as lines:
        await node.maintenance.retain()
    assert log.start_offset == 0
    assert log.producers.get(4) is not None
    assert "may be wrong" in lines[0]["reason"]
    node.wall_ms -= 300 * DAY  # an administrator set it right
    await node.maintenance.retain()
    assert log.start_offset == 0
    node.wall_ms += 300 * DAY
    await node.maintenance.retain()
    await node.maintenance.retain()
    assert log.start_offset == 20
    assert log.producers.get(4) is None


async def test_a_clock_that_leaps_back_deletes_nothing(node: Node) -> None:
    log = await node.topic("t")
    await node.fill(log, 20)
    node.wall_ms -= 9 * DAY
    await node.maintenance.retain()
    assert log.start_offset == 0


async def test_size_does_not_wait_for_the_clock(node: Node) -> None:
    log = await node.topic("t", retention_bytes=0)
    await node.fill(log, 20)
    node.wall_ms += 300 * DAY
    with structlog.testing.capture_logs():
        await node.maintenance.retain()
    assert 0 < log.start_offset < 20


async def test_tombstones_outlive_a_clock_that_leaps_ahead(node: Node) -> None:
    log = await node.topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, delete_retention_ms=DAY)
    for _ in range(2):
        batch = encode_batch([None], [b"gone"], timestamps_ms=[0])
        log.append(batch, read_header(batch), node.wall_ms)
        await node.fill(log, 20)
        await node.maintenance.compact()
        node.wall_ms += 300 * DAY
    await node.fill(log, 20)
    await node.maintenance.compact()
    assert b"gone" in {key for key, _, _ in (await records_in(log)).values()}


async def test_settings_of_a_topic_reach_its_open_logs_and_go_back(node: Node) -> None:
    log = await node.topic("t", retention_ms=-1)
    other = await node.topic("other", retention_ms=-1)
    await node.alter("t", cleanup_policy="compact,delete", retention_bytes=7, retention_ms=5)
    assert (log.config.compact, log.config.delete) == (True, True)
    assert (log.config.retention_bytes, log.config.retention_ms) == (7, 5)
    assert (other.config.compact, other.config.retention_ms) == (False, -1)
    await node.alter("t", cleanup_policy=None, retention_bytes=None, retention_ms=None)
    assert (log.config.compact, log.config.retention_bytes, log.config.retention_ms) == (False, -1, DAY)
    assert node.catalog.topic("t").config == {}


async def test_the_filthiest_log_is_compacted_first(node: Node) -> None:
    clean = await node.topic("clean", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    await node.fill(clean, 40)
    await node.maintenance.compact()
    await node.fill(clean, 10)
    filthy = await node.topic("filthy", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    await node.fill(filthy, 40)
    await node.fill(await node.topic("plain"), 40)
    with structlog.testing.capture_logs() as lines:
        await node.maintenance.compact()
    assert [line["directory"] for line in lines if line["event"] == "compacted"] == ["filthy-0", "clean-0"]


async def test_a_log_that_fails_is_named_and_the_others_go_on(node: Node, tmp_path: Path) -> None:
    logs = [await node.topic(name, cleanup_policy="compact,delete", retention_ms=INTERVAL) for name in "abc"]
    for log in logs:
        await node.fill(log, 40)
    path = tmp_path / "b-0" / f"{0:020}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with structlog.testing.capture_logs() as lines:
        await node.maintenance.compact()
    assert [line["topic"] for line in lines if line["log_level"] == "error"] == ["b"]
    assert [bool(log.fault) for log in logs] == [False, True, False]
    await node.fill(logs[1], 1)  # it serves on
    node.wall_ms += INTERVAL
    await node.maintenance.retain()  # and what was damaged expires like the rest
    assert [log.start_offset for log in logs] == [40, 41, 40]
    assert logs[1].fault == ""


async def test_a_fault_of_ours_in_one_log_keeps_no_other_from_maintenance(node: Node) -> None:
    logs = [await node.topic(name, cleanup_policy="compact,delete", retention_ms=INTERVAL) for name in "abc"]
    for log in logs:
        await node.fill(log, 40)
    broken = logs[0].config
    logs[0].configure(replace(broken, min_compaction_lag_ms="a day", retention_ms="a minute"))  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as lines:
        await node.maintenance.compact()
    assert [(line["topic"], line["log_level"]) for line in lines if "topic" in line] == [("a", "error")]
    assert [bool(log.fault) for log in logs] == [True, False, False]
    node.wall_ms += INTERVAL
    with structlog.testing.capture_logs() as lines:
        await node.maintenance.retain()
    assert [(line["topic"], line["log_level"]) for line in lines if line["log_level"] == "error"] == [("a", "error")]
    assert [log.start_offset for log in logs] == [0, 40, 40]
    logs[0].configure(broken)
    await node.maintenance.retain()
    assert logs[0].start_offset == 40


async def test_a_log_that_cannot_be_compacted_is_tried_less_and_less_often(node: Node, tmp_path: Path) -> None:
    """Each pass reads all of it and may write as much to a disk that is full: others should not suffer every 15 s."""
    log = await node.topic("t", cleanup_policy="compact")
    await node.fill(log, 40)
    blocked = tmp_path / "t-0" / f"{0:020}.cleaned"
    blocked.mkdir()
    loop, tries, passed_s = asyncio.get_running_loop(), list[float](), 0.0
    began = loop.time()
    with patch.object(loop, "time", lambda: began + passed_s):
        for look in range(400):
            passed_s = look * 15.0
            with structlog.testing.capture_logs() as lines:
                await node.maintenance.compact()
            if lines:
                tries.append(passed_s)
        assert tries[:4] == [0, 30, 90, 210]
        assert {later - earlier for earlier, later in pairwise(tries[5:])} == {600}
        assert log.fault.startswith("compaction failed: ")
        blocked.rmdir()
        passed_s += 600
        await node.maintenance.compact()
        assert log.fault == ""
        await node.fill(log, 40)
        await node.maintenance.compact()  # and from now on at once
        assert log.dirty_ratio == 0.0


async def test_a_retention_that_fails_is_named_until_it_works(node: Node, tmp_path: Path) -> None:
    first, second = await node.topic("first", retention_ms=0), await node.topic("second", retention_ms=0)
    for log in (first, second):
        await node.fill(log, 20)
    checkpoint = tmp_path / "first-0" / "checkpoint.tmp"
    checkpoint.mkdir()  # what is written first cannot be
    with structlog.testing.capture_logs() as lines:
        await node.maintenance.retain()
    assert [line["topic"] for line in lines if line["log_level"] == "error" and "topic" in line] == ["first"]
    assert first.fault.startswith("retention failed: ")
    assert (first.start_offset, second.start_offset) == (0, 20)
    checkpoint.rmdir()
    await node.maintenance.retain()
    assert (first.fault, first.start_offset) == ("", 20)


async def test_a_topic_deleted_meanwhile_is_passed_over(node: Node) -> None:
    await node.fill(await node.topic("gone", cleanup_policy="compact"), 40)
    left = await node.topic("left", retention_ms=0)
    await node.fill(left, 5)
    looking = asyncio.gather(node.maintenance.retain(), node.maintenance.compact())
    await node.logs.delete("gone", [0])
    await looking
    assert left.start_offset == 5


async def test_a_log_that_lost_its_end_after_a_look_is_refused(node: Node, tmp_path: Path) -> None:
    log = await node.topic("t", segment_bytes=10**6)
    await node.fill(log, 3)
    path = tmp_path / "t-0" / f"{0:020}.log"
    size = path.stat().st_size
    await node.maintenance.note_ends()
    await node.fill(log, 2)

    async def reopened(length: int) -> int:
        """The end of the log that a daemon finds which comes after SIGKILL."""
        copy = tmp_path / f"cut to {length}"
        shutil.copytree(tmp_path / "t-0", copy / "t-0")
        os.truncate(copy / "t-0" / f"{0:020}.log", length)
        disk = Disk(FileStorage(copy))
        try:
            found = await PartitionLog.open(disk, "t-0", log.config, leader_epoch=0, on_fatal=end_of_process)
            await found.close()
            return found.end_offset
        finally:
            disk.close()

    assert await reopened(size) == 3, "what came after the look is lost without a word"
    with pytest.raises(LogDamagedError, match="was on disk up to offset 3, but is readable only up to 2"):
        await reopened(size - 1)


async def test_only_logs_that_have_grown_are_written_down(node: Node, tmp_path: Path) -> None:
    logs = [await node.topic(name) for name in ("a", "b")]
    paths = [tmp_path / f"{name}-0" / "checkpoint" for name in ("a", "b")]
    await node.fill(logs[0], 1)
    await node.maintenance.note_ends()
    assert [path.exists() for path in paths] == [True, False]
    before = paths[0].stat().st_ino
    await node.maintenance.note_ends()
    assert paths[0].stat().st_ino == before
    await node.fill(logs[0], 1)
    await node.maintenance.note_ends()
    assert paths[0].stat().st_ino != before


async def test_many_bytes_are_written_down_without_a_look(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.log.group_commit, "CHECKPOINT_BYTES", 500)
    log = await node.topic("t", segment_bytes=10**6)
    await node.fill(log, 4)
    async with asyncio.timeout(60):
        while log._start.noted.end_offset < 3:
            await asyncio.sleep(0.01)
    assert (tmp_path / "t-0" / "checkpoint").exists()
