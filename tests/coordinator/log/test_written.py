"""Between write and sync followers may have what is written, so that they sync at the same time; nothing else counts yet."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, LogWriteError, PartitionLog
from coordinator.log.following import replicated_batches
from protocol.record_batch import read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.following import fingerprints
from tests.coordinator.log.logs import DIRECTORY, append_value, made, opened, outcome, records_in
from tests.coordinator.log.test_write_failures import Failing
from tests.coordinator.log.transactional import transactional


class HeldSyncs:
    """Each sync of a segment waits until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def __call__(self, operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            assert self.let_go.wait(60)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


async def test_a_follower_has_a_batch_on_disk_while_the_leader_still_syncs_it(tmp_path: Path) -> None:
    held, told = HeldSyncs(), list[int]()
    async with (
        opened(HookedStorage(tmp_path / "leader", held), leader_epoch=1) as leader,
        opened(FileStorage(tmp_path / "copy"), leader_epoch=None) as copy,
    ):
        leader.when_written(lambda: told.append(leader.written_offset))
        append_value(leader, b"a")
        await until(lambda: leader.written_offset == 1)
        assert (leader.flushed.offset, leader.high_watermark, told) == (0, 0, [1])
        assert await leader.read(0, 1 << 20) == b""  # for consumers there is nothing yet
        data = await leader.read(0, 1 << 20, end_offset=leader.written_offset)
        copy.append_as_follower(replicated_batches(data), leader.epochs.within(0, 1))
        assert await outcome(copy) is None
        assert leader.flushed.offset == 0
        append_value(leader, b"b")  # goes with the next round
        await asyncio.sleep(0.01)
        assert leader.written_offset == 1
        held.let_go.set()
        assert await outcome(leader) is None
        assert (leader.written_offset, leader.flushed.offset, told) == (2, 2, [1, 2])
        assert (await fingerprints(leader))[:1] == await fingerprints(copy)
        leader.when_written(None)
        append_value(leader, b"c")
        assert await outcome(leader) is None
        assert (leader.written_offset, told) == (3, [1, 2])


async def test_a_write_that_is_refused_is_never_told(tmp_path: Path) -> None:
    failing, told = Failing(), list[int]()
    async with opened(HookedStorage(tmp_path, failing)) as log:
        log.when_written(lambda: told.append(log.written_offset))
        failing.operations = {"append": ".log"}
        append_value(log, b"refused")
        assert isinstance(await outcome(log), LogWriteError)
        assert (log.end_offset, log.written_offset, told) == (0, 0, [])
        failing.operations = {}
        append_value(log, b"a")
        assert await outcome(log) is None
        assert told == [1]


async def test_what_is_written_and_cannot_be_synced_ends_the_process_unacknowledged(tmp_path: Path) -> None:
    failing, reasons = Failing(), list[str]()
    failing.number = errno.EIO
    disk = Disk(HookedStorage(tmp_path, failing))
    made(disk.storage)
    log = await PartitionLog.open(disk, DIRECTORY, LogConfig(), leader_epoch=0, on_fatal=reasons.append)
    told = list[int]()
    log.when_written(lambda: told.append(log.written_offset))
    failing.operations = {"sync": ".log"}
    append_value(log, b"a")
    assert isinstance(await outcome(log), LogWriteError)
    assert (told, log.flushed.offset, log.end_offset, len(reasons)) == ([1], 0, 0, 1)
    await log.close()
    disk.close()


@pytest.mark.parametrize("committed", [True, False])
async def test_a_marker_counts_for_readers_once_it_is_on_disk(tmp_path: Path, committed: bool) -> None:
    held = HeldSyncs()
    held.let_go.set()
    async with opened(HookedStorage(tmp_path, held)) as log:
        batch = transactional([b"k"], [b"v"], [0], 7, 0)
        log.append(batch, read_header(batch))
        assert await outcome(log) is None
        log.when_written(lambda: None)
        held.let_go.clear()
        log.end_transactions([(7, 0, committed)], 0, 0)
        await until(lambda: log.written_offset == 2)
        assert (log.last_stable_offset, log.open_transactions()) == (0, [])
        assert log.producers.get(7) is None
        held.let_go.set()
        assert await outcome(log) is None
        assert log.last_stable_offset == 2


async def test_rolls_come_between_write_and_sync_as_well(tmp_path: Path) -> None:
    config, written = LogConfig(segment_bytes=300, index_interval_bytes=100), list[int]()
    async with opened(FileStorage(tmp_path), config) as log:
        log.when_written(lambda: written.append(log.written_offset))
        for number in range(30):
            append_value(log, b"%d" % number * 20)
            if number % 4 == 0:
                assert await outcome(log) is None
        assert await outcome(log) is None
        assert log.segment_count > 5
        assert written == sorted(set(written))
        assert written[-1] == 30
        found = await records_in(log)
    async with opened(FileStorage(tmp_path), config) as log:
        assert await records_in(log) == found
        assert len(found) == 30


async def test_what_is_being_synced_is_at_hand_as_it_is_in_the_file(tmp_path: Path) -> None:
    held = HeldSyncs()
    async with opened(HookedStorage(tmp_path, held), leader_epoch=3) as log:
        held.let_go.set()
        append_value(log, b"before")
        assert await outcome(log) is None
        held.let_go.clear()
        log.when_written(lambda: None)
        append_value(log, b"a")
        append_value(log, b"b")
        assert log.just_written(1, 1 << 20) == b""
        await until(lambda: log.written_offset == 3)
        found = log.just_written(1, 1 << 20)
        assert found == await log.read(1, 1 << 20, end_offset=3)
        assert len(replicated_batches(found)) == 2
        assert [log.just_written(0, 1 << 20), log.just_written(2, 1 << 20), log.just_written(1, 10)] == [b""] * 3
        held.let_go.set()
        assert await outcome(log) is None
        assert log.just_written(1, 1 << 20) == b""
