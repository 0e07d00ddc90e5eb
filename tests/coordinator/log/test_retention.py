"""Retention and deletion: old segments go, whole and from the start; what is left stays where it was, also after a crash."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogClosedError, LogConfig, LogWriteError, OffsetNotInLogError, PartitionLog
from coordinator.log.checkpoints import decode_integers, encode_integers
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.progress import Progress
from coordinator.log.retention import is_due_to_close, newest_ms, start_after_retention
from coordinator.log.segment import Segment
from protocol.record_batch import HEADER_BYTES, Attributes, encode_batch, read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import (
    DIRECTORY,
    append,
    append_value,
    batch_of,
    made,
    opened,
    outcome,
    records_in,
)

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150)
DAY = 86_400_000


def segment(base: int, end: int, size: int = 100, newest: int = 0, last_ms: int = NO_TIMESTAMP) -> Segment:
    made_up = Segment(f"{base}.log", base)
    made_up.next_offset, made_up.size, made_up.max_timestamp, made_up.last_ms = end, size, newest, last_ms
    return made_up


@pytest.mark.parametrize(
    ("newest", "last_ms", "believed"),
    [
        (50, 70, 50),  # the newest record decides
        (80, 70, 80),  # the daemon's clock was behind when it was written
        (100, 70, 100),
        (101, 70, 70),  # but not one from the future
        (900, 70, 70),
        (900, 500, 500),  # the daemon's clock has been there: it was put back since
        (900, 990, 900),
        (900, NO_TIMESTAMP, 100),  # when it was written is not known: now is the most it can be
        (NO_TIMESTAMP, 70, 70),  # no record has a time
        (-5, 70, 70),
        (NO_TIMESTAMP, NO_TIMESTAMP, 100),
    ],
)
def test_how_old_a_segment_is(newest: int, last_ms: int, believed: int) -> None:
    assert newest_ms(segment(0, 1, newest=newest, last_ms=last_ms), 100) == believed


SEGMENTS = [
    segment(0, 10, newest=10, last_ms=1000),
    segment(10, 20, newest=20, last_ms=1000),
    segment(20, 30, newest=15, last_ms=1000),
    segment(30, 40, newest=40, last_ms=1000),
]


@pytest.mark.parametrize(
    ("settings", "now_ms", "high_watermark", "start", "expected"),
    [
        ({}, 10**15, 40, 0, 0),  # without a bound all is kept
        ({"retention_ms": 100}, 109, 40, 0, 0),
        ({"retention_ms": 100}, 110, 40, 0, 10),
        ({"retention_ms": 100}, 115, 40, 0, 10),  # the third is old, but the second is in front of it
        ({"retention_ms": 100}, 120, 40, 0, 30),
        ({"retention_ms": 100}, 10**15, 40, 0, 30),  # never the active one
        ({"retention_ms": 100}, 10**15, 25, 0, 20),  # never what is not acknowledged
        ({"retention_ms": 100}, None, 40, 0, 0),  # the clock is not believed
        ({"retention_ms": 0}, 110, 40, 0, 30),
        ({"retention_bytes": 400}, None, 40, 0, 0),
        ({"retention_bytes": 301}, None, 40, 0, 0),
        ({"retention_bytes": 300}, None, 40, 0, 10),
        ({"retention_bytes": 299}, None, 40, 0, 10),
        ({"retention_bytes": 0}, None, 40, 0, 30),
        ({"retention_bytes": 200}, None, 40, 10, 20),  # what is deleted already does not count
        ({"retention_bytes": 200}, None, 40, 15, 20),
        ({"retention_bytes": 0, "retention_ms": 0, "delete": False}, 10**15, 40, 0, 0),
        ({"retention_ms": 100}, 110, 40, 35, 35),
    ],
)
def test_what_goes(
    settings: dict[str, int], now_ms: int | None, high_watermark: int, start: int, expected: int
) -> None:
    config = LogConfig(**settings)  # type: ignore[arg-type]
    assert start_after_retention(SEGMENTS, config, start, high_watermark, now_ms) == expected


@pytest.mark.parametrize(
    ("settings", "size", "first_ms", "start", "now_ms", "due"),
    [
        ({}, 100, 0, 0, 10**15, False),
        ({"segment_ms": 50}, 100, 10, 0, 59, False),
        ({"segment_ms": 50}, 100, 10, 0, 60, True),
        ({"segment_ms": 50}, 0, 10, 0, 60, False),  # an empty one is as good as the next
        ({"segment_ms": 50}, 100, NO_TIMESTAMP, 0, 10**15, False),  # not known: counts from the first look
        ({"segment_ms": 50}, 100, 10, 0, None, False),
        ({"retention_ms": 60}, 100, 10, 0, 99, False),
        ({"retention_ms": 60}, 100, 10, 0, 100, True),  # the newest record is of 40
        ({"retention_ms": 60, "delete": False}, 100, 10, 0, 100, False),
        ({"compact": True, "max_compaction_lag_ms": 100}, 100, 10, 0, 59, False),
        ({"compact": True, "max_compaction_lag_ms": 100}, 100, 10, 0, 60, True),
        ({"compact": False, "max_compaction_lag_ms": 100}, 100, 10, 0, 10**9, False),
        ({}, 100, 10, 39, None, False),
        ({}, 100, 10, 40, None, True),  # everything in it has been deleted
    ],
)
def test_when_the_active_segment_is_closed(
    settings: dict[str, int], size: int, first_ms: int, start: int, now_ms: int | None, due: bool
) -> None:
    active = segment(30, 40, size=size, newest=40, last_ms=1000)
    active.first_ms = first_ms
    assert is_due_to_close(active, LogConfig(**settings), start, now_ms) is due  # type: ignore[arg-type]


async def fill(log: PartitionLog, count: int, at_ms: int = 0, timestamp_ms: int | None = None) -> None:
    """One batch a record, all of the same time, appended at ``at_ms``."""
    for _ in range(count):
        batch = batch_of((b"key", b"v%d" % log.end_offset, at_ms if timestamp_ms is None else timestamp_ms))
        log.append(batch, read_header(batch), at_ms)
    assert await outcome(log) is None


def segment_files(root: Path) -> list[int]:
    return sorted(int(name[:20]) for name in FileStorage(root).list(DIRECTORY) if name.endswith(".log"))


async def test_time_deletes_whole_segments_and_readers_are_told(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 20, at_ms=1000)
        await fill(log, 20, at_ms=5000)
        assert await log.retain(DAY) == 0
        assert await log.retain(DAY + 1000) > 0
        start = log.start_offset
        assert 0 < start <= 20
        assert segment_files(tmp_path)[0] == start
        with pytest.raises(OffsetNotInLogError) as refused:
            await log.read(start - 1, 100)
        assert (refused.value.start, refused.value.end) == (start, 40)
        assert list(await records_in(log)) == list(range(start, 40))
        assert await log.offset_for_timestamp(0) == (start, 1000 if start < 20 else 5000)
    async with opened(FileStorage(tmp_path), config) as log:
        assert (log.start_offset, log.end_offset) == (start, 40)
        assert list(await records_in(log)) == list(range(start, 40))


async def test_an_idle_log_gives_back_everything_and_goes_on_at_the_same_offset(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 20, at_ms=1000)
        assert await log.retain(DAY + 1000) == 20
        assert (log.start_offset, log.end_offset, log.high_watermark) == (20, 20, 20)
        assert segment_files(tmp_path) == [20]
        assert (log.size, log.segment_count) == (0, 1)
        assert await log.read(20, 100) == b""
        assert await log.retain(2 * DAY) == 0
        assert segment_files(tmp_path) == [20]
    for close in (True, False):  # also when the last life ended without a word
        async with opened(FileStorage(tmp_path), config, close=close) as log:
            assert (log.start_offset, log.end_offset) == (20, 20)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 1, at_ms=2 * DAY)
        assert list(await records_in(log)) == [20]


async def test_size_deletes_the_oldest_segments_also_when_the_clock_is_not_believed(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), replace(CONFIG, retention_bytes=1000, retention_ms=1)) as log:
        await fill(log, 40, at_ms=10**12)
        before = log.size
        await log.retain(None)
        assert 1000 <= log.size < 1000 + 600 < before
        assert log.start_offset == segment_files(tmp_path)[0] > 0


async def test_a_record_of_the_future_does_not_keep_its_segment_and_one_of_the_past_does_not_give_it_away(
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, retention_ms=DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 1, at_ms=1000, timestamp_ms=10**15)
        await fill(log, 19, at_ms=1000, timestamp_ms=500)
        assert await log.retain(DAY + 999) == 0
        first_end = segment_files(tmp_path)[1]
    async with opened(FileStorage(tmp_path), config) as log:  # when it was closed is known after a restart
        assert await log.retain(DAY + 999) >= 0
        assert await log.retain(DAY + 1000) >= 0
        assert log.start_offset >= first_end


@pytest.mark.parametrize("slow_ms", [900 * DAY, DAY])
async def test_records_written_while_the_clock_was_behind_are_as_old_as_their_timestamps_say(
    tmp_path: Path, slow_ms: int
) -> None:
    now_ms, config = 1000 * DAY, replace(CONFIG, retention_ms=DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 20, at_ms=now_ms - slow_ms, timestamp_ms=now_ms)
        assert await log.retain(now_ms + 1) == 0  # somebody has set the clock
        assert await log.retain(now_ms + DAY) == 20


async def test_a_segment_begun_while_the_clock_was_ahead_is_closed_in_time(tmp_path: Path) -> None:
    """Or compaction and retention would not get to an idle log before the clock is there again."""
    async with opened(FileStorage(tmp_path), replace(CONFIG, segment_ms=DAY, segment_bytes=10**6)) as log:
        await fill(log, 5, at_ms=900 * DAY)
        await log.retain(DAY)
        assert log.segment_count == 1
        await log.retain(2 * DAY)
        assert log.segment_count == 2


async def test_a_clock_that_is_put_back_makes_nothing_older(tmp_path: Path) -> None:
    """Neither while it is behind, nor when part of the way has been made good: appends go on into the same segment."""
    now_ms, config = 1000 * DAY, replace(CONFIG, retention_ms=DAY, segment_bytes=10**6)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 5, at_ms=now_ms)
        await fill(log, 5, at_ms=now_ms - 90 * DAY)
        assert await log.retain(now_ms - 89 * DAY) == 0
        assert await log.retain(now_ms - 40 * DAY) == 0
        assert await log.retain(now_ms + DAY) == 10


async def test_the_active_segment_counts_from_its_last_append_after_a_clean_restart(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=2 * DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 2, at_ms=1000, timestamp_ms=10**15)
    for _ in range(2):  # also when nothing has been appended since
        async with opened(FileStorage(tmp_path), config) as log:
            assert await log.retain(2 * DAY + 999) == 0
    async with opened(FileStorage(tmp_path), config) as log:
        assert await log.retain(2 * DAY + 1000) == 2


async def test_the_active_segment_counts_from_the_first_look_after_a_crash(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=DAY, segment_ms=DAY)
    async with opened(FileStorage(tmp_path), config, close=False) as log:
        await fill(log, 2, at_ms=1000, timestamp_ms=10**15)
    async with opened(FileStorage(tmp_path), config) as log:
        assert await log.retain(3 * DAY) == 0
        assert await log.retain(4 * DAY - 1) == 0
        assert await log.retain(4 * DAY) == 2


async def test_an_index_of_the_former_format_is_read(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 20, at_ms=1000)
    for path in (tmp_path / DIRECTORY).glob("*.index"):
        values = decode_integers(b"CHX3", path.read_bytes())
        path.write_bytes(encode_integers(b"CHX1", array("q", [*values[:4], *values[6:]])))
    async with opened(FileStorage(tmp_path), config) as log:
        assert list(await records_in(log)) == list(range(20))
        assert await log.retain(DAY + 1000) == 20


async def test_a_deletion_within_a_segment_hides_what_is_below_for_ever(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        append(log, *[(b"k", b"v%d" % number, number) for number in range(10)])
        append_value(log, b"last", 10)
        assert await outcome(log) is None
        assert await log.delete_before(4) == 4
        assert await log.delete_before(2) == 4  # never back
        with pytest.raises(OffsetNotInLogError):
            await log.read(3, 100)
        assert read_header(await log.read(4, 10_000)).base_offset == 0  # batches are whole; readers skip
        assert await log.offset_for_timestamp(0) == (4, 4)
        for beyond in (12, 10**6):
            with pytest.raises(OffsetNotInLogError):
                await log.delete_before(beyond)
    for close in (False, True):
        async with opened(FileStorage(tmp_path), CONFIG, close=close) as log:
            assert (log.start_offset, log.end_offset) == (4, 11)
            assert await log.offset_for_timestamp(0) == (4, 4)


async def test_look_ups_by_the_brokers_time_begin_where_the_log_does(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        batch = batch_of(*[(b"k", b"v", number) for number in range(6)])
        header = read_header(batch)
        header = replace(header, attributes=header.attributes | Attributes.LOG_APPEND_TIME, max_timestamp=99)
        log.append(header.pack() + batch[HEADER_BYTES:], header)
        assert await outcome(log) is None
        await log.delete_before(3)
        assert await log.offset_for_timestamp(50) == (3, 99)


async def test_segments_below_a_deletion_go_at_once_and_the_rest_with_the_next_look(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        await fill(log, 30)
        bases = segment_files(tmp_path)
        await log.delete_before(bases[2] + 1)
        assert segment_files(tmp_path) == bases[2:]
        await log.delete_before(30)
        assert segment_files(tmp_path) == bases[-1:]
        await log.retain(0)  # the active segment holds nothing that can be read
        assert segment_files(tmp_path) == [30]
        await fill(log, 1)
        assert list(await records_in(log)) == [30]


async def test_a_read_under_way_finishes_although_its_segment_is_removed(tmp_path: Path) -> None:
    reading, removed = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(f"{0:020}.log") and reading.is_set():
            reading.clear()  # that one read only
            assert removed.wait(10)

    async with opened(HookedStorage(tmp_path, hold), replace(CONFIG, retention_bytes=0)) as log:
        await fill(log, 20)
        reading.set()
        task = asyncio.create_task(log.read(0, 200))
        async with asyncio.timeout(10):
            while reading.is_set():  # until it has begun
                await asyncio.sleep(0.001)
        await log.retain(None)
        assert log.start_offset > 0
        assert not (tmp_path / DIRECTORY / f"{0:020}.log").exists()
        removed.set()
        assert read_header(await task).base_offset == 0
        assert min(await records_in(log)) == log.start_offset


async def test_producers_are_remembered_when_everything_they_wrote_is_deleted(tmp_path: Path) -> None:
    def idempotent(sequence: int) -> bytes:
        return encode_batch(
            [b"v" * 50], [b"k"], timestamps_ms=[0], producer_id=7, producer_epoch=0, base_sequence=sequence
        )

    config = replace(CONFIG, retention_ms=DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        for sequence in range(20):
            log.append(idempotent(sequence), read_header(idempotent(sequence)), 1000)
            assert await outcome(log) is None
        assert await log.retain(10 * DAY) == 20
        again = log.producers.find(read_header(idempotent(19)))
        assert again is not None
        assert again.base_offset == 19
    for close in (False, True):
        async with opened(FileStorage(tmp_path), config, close=close) as log:
            for sequence in range(15, 20):
                again = log.producers.find(read_header(idempotent(sequence)))
                assert again is not None
                assert again.base_offset == sequence
            assert log.producers.find(read_header(idempotent(20))) is None


async def test_settings_change_while_the_log_is_open(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), replace(CONFIG, segment_bytes=10**6)) as log:
        await fill(log, 10)
        assert log.segment_count == 1
        log.configure(replace(CONFIG, retention_bytes=0))
        await fill(log, 10)
        assert log.segment_count > 1
        assert await log.retain(None) > 0
        log.configure(replace(CONFIG, retention_bytes=0, delete=False))
        await fill(log, 10)
        assert await log.retain(10**15) == 0


async def test_a_disk_that_refuses_to_note_the_start_leaves_it_where_it_was(tmp_path: Path) -> None:
    full = False

    def refuse(operation: str, path: str) -> None:
        if full and operation == "write_file":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(HookedStorage(tmp_path, refuse), replace(CONFIG, retention_bytes=0)) as log:
        await fill(log, 20)
        full = True
        with pytest.raises(LogWriteError, match="could not be moved"):
            await log.retain(None)
        assert log.start_offset == 0
        assert len(await records_in(log)) == 20
        full = False
        assert await log.retain(None) > 0


async def test_a_full_disk_is_relieved(tmp_path: Path) -> None:
    """There is no room for the checkpoint that has to come first, until an index that can be made anew has gone."""
    full, removed = False, list[str]()

    def refuse(operation: str, path: str) -> None:
        if operation == "remove":
            removed.append(path)
        if full and operation == "write_file" and not removed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(HookedStorage(tmp_path, refuse), replace(CONFIG, retention_bytes=0)) as log:
        await fill(log, 20)
        full, removed[:] = True, []
        assert await log.retain(None) > 0
        assert removed[0].endswith(".index")
        assert segment_files(tmp_path)[0] == log.start_offset
        assert min(await records_in(log)) == log.start_offset
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert min(await records_in(log)) == log.start_offset > 0


async def test_a_search_by_time_that_is_overtaken_begins_anew(tmp_path: Path) -> None:
    searching, removed = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(f"{0:020}.log") and searching.is_set():
            searching.clear()
            assert removed.wait(10)

    async with opened(HookedStorage(tmp_path, hold), CONFIG) as log:
        batch = encode_batch([b"v"], timestamps_ms=[10])
        for newest in (1000, 10):  # the first segment's header claims a time that no record of it has
            header = replace(read_header(batch), max_timestamp=newest)
            for _ in range(10):
                log.append(header.pack() + batch[HEADER_BYTES:], header)
        assert await outcome(log) is None
        searching.set()
        task = asyncio.create_task(log.offset_for_timestamp(500))
        await asyncio.sleep(0.05)
        await log.delete_before(log.high_watermark)
        removed.set()
        assert await task is None


async def test_segments_that_cannot_be_removed_are_tried_again(tmp_path: Path) -> None:
    stuck = True

    def refuse(operation: str, path: str) -> None:
        if stuck and operation == "remove" and path.endswith(".log"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    async with opened(HookedStorage(tmp_path, refuse), replace(CONFIG, retention_bytes=0)) as log:
        await fill(log, 20)
        assert await log.retain(None) > 0
        assert segment_files(tmp_path)[0] == 0  # still there, and nobody reads it
        assert min(await records_in(log)) == log.start_offset
        stuck = False
        await log.retain(None)
        assert segment_files(tmp_path)[0] == log.start_offset


async def test_a_failed_sync_of_the_start_ends_the_process(tmp_path: Path) -> None:
    broken, reasons = False, list[str]()

    def fail(operation: str, path: str) -> None:
        if broken and operation == "write_file":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage = HookedStorage(tmp_path, fail)
    disk = Disk(storage, threads=1)
    made(storage)
    config = replace(CONFIG, retention_bytes=0)
    log = await PartitionLog.open(disk, DIRECTORY, config, leader_epoch=0, on_fatal=reasons.append)
    await fill(log, 20)
    broken = True
    with pytest.raises(LogWriteError):
        await log.delete_before(5)
    assert len(reasons) == 1
    await log.close()
    disk.close()


async def test_a_closed_log_deletes_nothing(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), replace(CONFIG, retention_bytes=0)) as log:
        await fill(log, 20)
        deleting = asyncio.create_task(log.retain(10**15))
        await asyncio.sleep(0)
        await log.close()
        await asyncio.gather(deleting, return_exceptions=True)
        for call in (log.retain(None), log.delete_before(3)):
            with pytest.raises(LogClosedError):
                await call
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert list(await records_in(log)) == list(range(log.start_offset, 20))


async def test_retention_of_a_log_that_is_always_busy_ends(tmp_path: Path) -> None:
    """There is never a moment without an append queued: what retention closes is waited for, and nothing after it."""
    batch = batch_of((None, b"v", 0))
    header, busy = read_header(batch), True
    async with opened(FileStorage(tmp_path), LogConfig(segment_ms=1000)) as log:

        def append_another(error: Exception | None) -> None:
            if busy and error is None:
                log.append(batch, header, 0)
                log.when_durable(log.end_offset, append_another)

        append_another(None)
        try:
            for look in range(3):
                while log.high_watermark < 10 * (look + 1):
                    await asyncio.sleep(0.01)
                async with asyncio.timeout(60):
                    await log.retain((look + 1) * 10_000)
                assert log.segment_count == look + 2
                assert log.end_offset > log.high_watermark, "the log is as busy as before"
        finally:
            busy = False
            await log.flush()


async def test_retention_goes_on_when_the_disk_refuses_a_new_segment(tmp_path: Path) -> None:
    full = False

    def fail(operation: str, path: str) -> None:
        if full and operation == "write_file":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(HookedStorage(tmp_path, fail), LogConfig(segment_ms=1000)) as log:
        append_value(log, b"a")
        assert await outcome(log) is None
        log._segments.stamp(0)
        full = True
        async with asyncio.timeout(60):
            await log.retain(10_000)
        assert log.segment_count == 1
        full = False
        assert append_value(log, b"b") == 1
        assert await outcome(log) is None
        assert list(await records_in(log)) == [0, 1]


async def test_a_follower_closes_segments_in_time_and_begins_where_it_is_told(tmp_path: Path) -> None:
    config = replace(CONFIG, retention_ms=DAY)
    async with opened(FileStorage(tmp_path), config) as log:
        await fill(log, 20, at_ms=1000)
        before = log.segment_count
        assert await log.retain(DAY + 1000, leads=False) == 0
        assert (log.start_offset, log.segment_count) == (0, before + 1)
        log.commit_by(Progress(3))
        looks = list[int]()
        log.on_advance(lambda: looks.append(log.start_offset))
        await log.begin_at(20)  # its leader has deleted what this one does not know to be committed
        assert (log.start_offset, log.high_watermark, log.size) == (20, 20, 0)
        assert looks
        assert segment_files(tmp_path) == [20]
    async with opened(FileStorage(tmp_path), config) as log:
        assert (log.start_offset, log.end_offset) == (20, 20)
