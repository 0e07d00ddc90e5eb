"""A log that is cut back is the log that was never written so far, whatever ends the process meanwhile."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogClosedError, LogConfig, LogError, LogWriteError, OffsetNotInLogError, PartitionLog
from coordinator.log.errors import LogTruncatedError
from coordinator.log.following import replicated_batches
from coordinator.log.progress import Progress
from protocol.record_batch import iter_batches, read_header
from tests.coordinator.log.faulty_storage import HookedStorage, KillAt
from tests.coordinator.log.following import Writer, fetched, fingerprints, follow, known_producers
from tests.coordinator.log.logs import (
    DIRECTORY,
    append_value,
    batch_of,
    batches_in,
    end_of_process,
    opened,
    outcome,
    records_in,
)
from tests.coordinator.log.test_following import FOLLOWER, stored
from tests.coordinator.log.test_killed import quiet
from tests.coordinator.log.test_write_failures import Failing

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150)


async def written(root: Path, seed: int, steps: int = 30) -> None:
    """A leader's log of several segments and epochs."""
    writer = Writer(seed)
    async with opened(FileStorage(root), CONFIG, leader_epoch=1, close=seed % 2 == 0) as log:
        for number in range(steps):
            if number % 9 == 8:
                await log.begin_epoch(number)
            writer.write(log)
            assert await outcome(log) is None


async def facts(log: PartitionLog) -> dict[str, object]:
    """All that can be known of a log, but for times."""
    return {
        "offsets": (log.start_offset, log.last_stable_offset, log.high_watermark, log.end_offset),
        "batches": await fingerprints(log),
        "producers": known_producers(log),
        "open": [known[:3] for known in log.open_transactions()],
        "epochs": log.epochs.entries,
        "committed": [await read_committed(log, offset) for offset in range(log.start_offset, log.last_stable_offset)],
    }


async def read_committed(log: PartitionLog, offset: int) -> list[tuple[int, int]]:
    """The next batch of a reader of committed records: its offsets and how many records are left of it."""
    data = await log.read(offset, 1, committed=True)
    return [(header.next_offset, header.record_count) for _, header in iter_batches(data)][:1]


async def boundaries(root: Path) -> list[int]:
    async with opened(FileStorage(root), CONFIG, leader_epoch=None, close=False) as log:
        return [header.base_offset for header, _ in await batches_in(log)] + [log.end_offset]


async def as_never_written(leader: Path, root: Path, end: int) -> dict[str, object]:
    """What a follower knows that has copied a leader up to ``end``."""
    async with (
        opened(FileStorage(leader), CONFIG, leader_epoch=None, close=False) as source,
        opened(FileStorage(root), CONFIG, leader_epoch=None) as copy,
    ):
        while copy.end_offset < end:
            data, epochs = await fetched(source, copy.end_offset, 1)
            copy.append_as_follower(replicated_batches(data), epochs)
            assert await outcome(copy) is None
        return await facts(copy)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_is_cut_is_the_log_that_was_never_written_so_far(tmp_path: Path, seed: int) -> None:
    async def check() -> None:
        await written(tmp_path / "leader", seed)
        offsets = await boundaries(tmp_path / "leader")
        shutil.copytree(tmp_path / "leader", tmp_path / "source")
        async with opened(FileStorage(tmp_path / "source"), CONFIG, leader_epoch=None) as source:
            whole = await facts(source)
            for offset in offsets[:: -3 if seed else -1]:
                shutil.rmtree(tmp_path / "cut", ignore_errors=True)
                shutil.copytree(tmp_path / "leader", tmp_path / "cut")
                expected = await as_never_written(tmp_path / "leader", tmp_path / f"copy {offset}", offset)
                async with opened(FileStorage(tmp_path / "cut"), CONFIG, leader_epoch=None, close=False) as log:
                    await log.truncate_to(offset)
                    assert await facts(log) == expected
                async with opened(FileStorage(tmp_path / "cut"), CONFIG, leader_epoch=None) as log:
                    assert await facts(log) == expected
                    await follow(source, log, 300)
                    assert await facts(log) == whole
                async with opened(FileStorage(tmp_path / "cut"), CONFIG, leader_epoch=None) as log:
                    assert await facts(log) == whole

    with structlog.testing.capture_logs():
        asyncio.run(check())


async def test_within_a_batch_the_whole_batch_goes(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for number in range(3):
            batch = batch_of(*[(b"k", b"%d" % number, 0)] * 4)
            log.append(batch, read_header(batch))
        assert await outcome(log) is None
        await log.truncate_to(6)
        assert log.end_offset == 4
        await log.delete_before(2)
        await log.truncate_to(3)  # nothing is left of the log but what begins before it
        assert (log.start_offset, log.end_offset) == (2, 2)
        for beyond in (1, 3):
            with pytest.raises(OffsetNotInLogError):
                await log.truncate_to(beyond)


async def test_what_a_cut_log_has_counts_for_retention_from_the_next_append_on(tmp_path: Path) -> None:
    """The clock was ahead when it was first appended to, and has been put back. Nothing goes sooner: what comes is later."""
    ahead_ms, back_ms, age_ms = 1_000_000_000, 50_000_000, 1_000
    config = LogConfig(retention_ms=age_ms)
    async with opened(FileStorage(tmp_path), config) as log:
        for now_ms in (ahead_ms, ahead_ms):
            batch = batch_of((b"k", b"v", now_ms + 10))
            log.append(batch, read_header(batch), now_ms)
            assert await outcome(log) is None
        await log.truncate_to(1)
        batch = batch_of((b"k", b"v", back_ms))
        log.append(batch, read_header(batch), back_ms)
        assert await outcome(log) is None
        assert await log.retain(back_ms + age_ms - 1) == 0
        assert await log.retain(back_ms + age_ms) == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_producer_is_known_behind_a_cut_whatever_was_deleted_before_it(tmp_path: Path, restarted: bool) -> None:
    """Its committed records are deleted, and segments begun with what is cut off: its next batch follows."""

    async def append(log: PartitionLog, number: int) -> None:
        batch = batch_of((b"k", bytes(300), 0), producer_id=7, base_sequence=number)
        assert log.append(batch, read_header(batch)).base_offset == number
        assert await outcome(log) is None

    async def cut(log: PartitionLog) -> None:
        log.commit_by(Progress(5))
        await log.truncate_to(5)
        assert (log.start_offset, log.end_offset) == (5, 5)
        await append(log, 5)

    async with opened(FileStorage(tmp_path), CONFIG) as log:
        log.commit_by(Progress(0))
        for number in range(12):
            await append(log, number)
            log.commit_to(min(number + 1, 5))
        await log.delete_before(5)
        if not restarted:
            await cut(log)
    if restarted:
        async with opened(FileStorage(tmp_path), CONFIG) as log:
            await cut(log)


async def test_waiters_readers_and_appends_learn_of_a_truncation(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        append_value(log, b"a")
        append_value(log, b"b")
        assert await outcome(log) is None
        told: list[Exception | None] = []
        looks: list[int] = []
        log.when_durable(3, told.append)
        log.on_advance(lambda: looks.append(log.high_watermark))
        cutting = asyncio.create_task(log.truncate_to(1))
        await asyncio.sleep(0)
        with pytest.raises(LogTruncatedError):
            await log.read(0, 100)
        with pytest.raises(LogTruncatedError):
            append_value(log, b"x")
        await cutting
        assert [type(error) for error in told] == [LogTruncatedError]
        assert set(looks) == {1}
        await log.begin_epoch(1)
        assert append_value(log, b"c") == 1
        assert await outcome(log) is None
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"a", b"c"]


async def test_what_clean_end_says_does_not_outlive_the_bytes_it_is_about(tmp_path: Path) -> None:
    """The file has its old size again, and the checkpoint its old end, but other producers have written."""
    storage = FileStorage(tmp_path)

    def append(log: PartitionLog, producer_id: int) -> None:
        batch = batch_of((b"k", b"%d" % producer_id, 0), producer_id=producer_id, base_sequence=0)
        log.append(batch, read_header(batch))

    async with opened(storage, CONFIG) as log:
        for producer_id in (1, 2):
            append(log, producer_id)
        assert await outcome(log) is None
    assert storage.exists(f"{DIRECTORY}/clean-end")
    async with opened(storage, CONFIG, close=False) as log:
        await log.truncate_to(1)
        await log.begin_epoch(1)
        append(log, 3)
        assert await outcome(log) is None
        await log.note_end()
    async with opened(storage, CONFIG, leader_epoch=1) as log:
        assert {producer_id for producer_id, _ in log.producers} == {1, 3}


Change = Callable[[PartitionLog], Any]


def truncation(offset: int) -> Change:
    return lambda log: log.truncate_to(offset)


def beginning(offset: int) -> Change:
    return lambda log: log.reset_to(offset)


def changed(root: Path, number: int, change: Change) -> bool:
    """Whether a change of the log in ``root`` was killed at its ``number``-th operation."""
    kill = KillAt(1 << 30)

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(quiet)
        disk = Disk(HookedStorage(root, kill), threads=1)
        try:
            log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=None, on_fatal=end_of_process)
            kill.left = number
            await change(log)
        except BaseException:
            if not kill.killed:
                raise
        finally:
            disk.close()

    asyncio.run(run())
    return kill.killed


def test_whenever_a_truncation_is_killed_the_log_opens_and_is_cut_again(tmp_path: Path) -> None:
    async def prepare() -> tuple[int, dict[str, object], dict[str, object]]:
        await written(tmp_path / "leader", 3)
        offset = (await boundaries(tmp_path / "leader"))[6]
        async with opened(FileStorage(tmp_path / "leader"), CONFIG, leader_epoch=None) as leader:
            assert leader.segment_count > 4
            whole = await facts(leader)
        return offset, await as_never_written(tmp_path / "leader", tmp_path / "copy", offset), whole

    async def check(root: Path) -> None:
        async with (
            opened(FileStorage(tmp_path / "leader"), CONFIG, leader_epoch=None, close=False) as leader,
            opened(FileStorage(root), CONFIG, leader_epoch=None) as log,
        ):
            assert log.end_offset >= offset
            found = await fingerprints(log)
            assert found == (await fingerprints(leader))[: len(found)]
            await log.truncate_to(offset)
            assert await facts(log) == cut
            await follow(leader, log)
            assert await facts(log) == whole

    with structlog.testing.capture_logs():
        offset, cut, whole = asyncio.run(prepare())
        number = 0
        while True:
            root = tmp_path / str(number)
            shutil.copytree(tmp_path / "leader", root)
            killed = changed(root, number, truncation(offset))
            asyncio.run(check(root))
            if not killed:
                break
            number += 1
    assert number > 15


@pytest.mark.parametrize("where", ["below the start", "within", "at the end", "beyond"])
def test_whenever_a_new_beginning_is_killed_the_log_opens_and_begins_anew(tmp_path: Path, where: str) -> None:
    async def prepare() -> int:
        await written(tmp_path / "leader", 5)
        async with opened(FileStorage(tmp_path / "leader"), CONFIG, leader_epoch=None) as log:
            await log.delete_before(log.last_stable_offset // 2)
            await log.retain(None)
            start, end = log.start_offset, log.end_offset
        return {"below the start": 1, "within": (start + end) // 2, "at the end": end, "beyond": end + 100}[where]

    async def check(root: Path, killed: bool) -> None:
        async with opened(FileStorage(root), FOLLOWER, leader_epoch=None) as log:
            if not killed:
                assert (log.start_offset, log.end_offset) == (offset, offset)
            assert log.start_offset <= log.end_offset
            await records_in(log)
            await log.reset_to(offset)
            assert (log.start_offset, log.end_offset, log.high_watermark) == (offset, offset, offset)
            assert (log.epochs.entries, list(log.producers), log.open_transactions()) == ([], [], [])
            log.append_as_follower(replicated_batches(stored(b"new", offset, 2)), [(2, offset)])
            assert await outcome(log) is None
        async with opened(FileStorage(root), FOLLOWER, leader_epoch=2) as log:
            assert (log.start_offset, log.end_offset, log.epochs.entries) == (offset, offset + 1, [(2, offset)])
            assert list(await records_in(log)) == [offset]

    with structlog.testing.capture_logs():
        offset = asyncio.run(prepare())
        number = 0
        while True:
            root = tmp_path / str(number)
            shutil.copytree(tmp_path / "leader", root)
            killed = changed(root, number, beginning(offset))
            asyncio.run(check(root, killed))
            if not killed:
                break
            number += 1
    assert number > 15


async def test_a_truncation_that_the_disk_refuses_leaves_a_log_that_has_to_be_opened_again(tmp_path: Path) -> None:
    failing = Failing()
    storage = HookedStorage(tmp_path, failing)
    async with opened(storage, CONFIG) as log:
        for number in range(40):
            append_value(log, b"%d" % number * 10)
            assert await outcome(log) is None
        failing.operations, failing.number = {"truncate": ".log"}, errno.EROFS
        with pytest.raises(LogWriteError):
            await log.truncate_to(3)
        failing.operations = {}
        for refused in (log.read(0, 10), log.truncate_to(3), log.flush()):
            with pytest.raises(LogError):
                await refused
        with pytest.raises(LogError):
            append_value(log, b"x")
    async with opened(storage, CONFIG) as log:
        await log.truncate_to(3)
        assert log.end_offset == 3


async def test_closing_waits_for_a_truncation_and_ends_it(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        append_value(log, b"a")
        append_value(log, b"b")
        assert await outcome(log) is None
        cutting = asyncio.create_task(log.truncate_to(1))
        await asyncio.sleep(0)
        await log.close()
        await cutting
        with pytest.raises(LogClosedError):
            append_value(log, b"x")
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert log.end_offset == 1
