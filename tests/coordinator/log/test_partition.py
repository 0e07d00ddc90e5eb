"""Appending, acknowledging and reading one partition."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogClosedError, LogConfig, LogDamagedError, OffsetNotInLogError, PartitionLog
from coordinator.log.directories import make_logs
from coordinator.log.recovery import open_directory
from coordinator.log.segment_list import MAX_FILES
from protocol.record_batch import Attributes, read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import (
    DIRECTORY,
    append,
    append_value,
    batch_of,
    batches_in,
    end_of_process,
    opened,
    outcome,
    records_in,
)

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


class Operations:
    """Counts what is done to files that end in ``suffix``."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, operation: str, path: str) -> None:
        self.seen.append((operation, path))

    def count(self, operation: str, suffix: str = ".log") -> int:
        return sum(1 for name, path in self.seen if name == operation and path.endswith(suffix))


async def test_a_thousand_appends_of_one_turn_of_the_loop_are_one_write_and_one_sync(tmp_path: Path) -> None:
    operations = Operations()
    async with opened(HookedStorage(tmp_path, operations)) as log:
        before = operations.count("append"), operations.count("sync")
        for number in range(1000):
            assert append_value(log, b"%d" % number) == number
        await log.flush()
        assert (operations.count("append") - before[0], operations.count("sync") - before[1]) == (1, 1)
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"%d" % number for number in range(1000)]


async def test_what_arrives_during_a_round_is_the_next_round(tmp_path: Path) -> None:
    held, syncs, syncing = threading.Event(), Operations(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold_first_sync(operation: str, path: str) -> None:
        syncs(operation, path)
        if (operation, syncs.count("sync")) == ("sync", 1):
            loop.call_soon_threadsafe(syncing.set)
            held.wait(10)

    async with opened(HookedStorage(tmp_path, hold_first_sync)) as log:
        acknowledged: list[int] = []
        append_value(log, b"first")
        log.when_durable(1, lambda error: acknowledged.append(1))
        await syncing.wait()
        for offset in range(1, 100):
            append_value(log, b"later")
            log.when_durable(offset + 1, lambda error, offset=offset: acknowledged.append(offset + 1))  # type: ignore[misc]
        assert (acknowledged, log.high_watermark, log.end_offset) == ([], 0, 100)
        assert await log.read(0, 1000) == b""
        held.set()
        await log.flush()
        assert acknowledged == list(range(1, 101))
        assert syncs.count("sync") == 2


async def test_what_arrives_while_a_log_waits_for_its_turn_is_the_same_round(tmp_path: Path) -> None:
    held, operations, syncing = threading.Event(), Operations(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold_first_sync(operation: str, path: str) -> None:
        operations(operation, path)
        if (operation, operations.count("sync")) == ("sync", 1):
            loop.call_soon_threadsafe(syncing.set)
            held.wait(10)

    storage = FileStorage(tmp_path)
    names = [f"t-{number}" for number in range(8)]
    make_logs(storage, names)
    disk = Disk(HookedStorage(tmp_path, hold_first_sync), threads=1)
    logs = [await PartitionLog.open(disk, name, LogConfig(), leader_epoch=0, on_fatal=end_of_process) for name in names]
    append_value(logs[0], b"held")
    await syncing.wait()
    for log in logs[1:]:
        append_value(log, b"first")
    await asyncio.sleep(0)  # their rounds begin
    for log in logs[1:]:
        append_value(log, b"second")
    held.set()
    for log in logs:
        await log.flush()
    rounds = [operations.count("sync", f"{name}/{'0' * 20}.log") for name in names]
    assert rounds == [1, 2, 2, 1, 1, 1, 1, 1], "two were in the hands of the thread"
    for log in logs:
        await log.close()
    disk.close()


async def test_callbacks_come_in_order_of_offsets_whatever_the_order_of_asking(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        called: list[str] = []

        def note(name: str) -> None:
            log.when_durable(log.end_offset, lambda error: called.append(name))

        log.when_durable(0, lambda error: called.append("at once"))
        assert called == ["at once"]
        append_value(log, b"a")
        append_value(log, b"b")
        log.when_durable(2, lambda error: called.append("two"))
        log.when_durable(1, lambda error: called.append("one"))
        log.when_durable(1, lambda error: log.when_durable(1, lambda error: called.append("asked while calling")))
        note("two again")
        await log.flush()
        assert called == ["at once", "one", "asked while calling", "two", "two again"]


async def test_a_callback_that_raises_keeps_no_other_from_being_called(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        called: list[Exception | None] = []
        append_value(log, b"a")
        log.when_durable(1, lambda error: 1 / 0)  # type: ignore[arg-type]
        log.when_durable(1, called.append)
        await log.flush()
        assert called == [None]


async def test_listeners_hear_each_move_and_may_remove_themselves_and_each_other(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        heard: list[str] = []

        def once() -> None:
            heard.append("once")
            remove_once()
            remove_other()

        remove_once = log.on_advance(once)
        remove_other = log.on_advance(lambda: heard.append("removed before its turn"))
        remove_always = log.on_advance(lambda: heard.append(f"always {log.high_watermark}"))
        for _ in range(2):
            append_value(log, b"a")
            await log.flush()
        remove_always()
        remove_always()
        append_value(log, b"a")
        await log.flush()
        assert heard == ["once", "always 1", "always 2"]


async def test_a_stored_batch_is_the_one_that_was_sent_but_for_its_place(tmp_path: Path) -> None:
    batch = batch_of((b"k", b"v", 7), (b"k", None, 9))
    header = read_header(batch)
    async with opened(FileStorage(tmp_path), leader_epoch=5) as log:
        assert [log.append(batch, header), log.append(batch, header)] == [(0, 1, False, -1), (2, 3, False, -1)]
        await log.flush()
        log.append(batch, header)
        await log.flush()
        stored = await batches_in(log)
    assert [found.durable_gap for found, _ in stored] == [0, 2, 0]
    for found, data in stored:
        expected = replace(header, base_offset=found.base_offset, leader_epoch=5, durable_gap=found.durable_gap)
        assert data == expected.pack() + batch[80:]


async def test_a_batch_that_is_not_its_header_is_refused(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        batch = batch_of((b"k", b"v", 7))
        with pytest.raises(ValueError, match="its header says"):
            log.append(batch + bytes(8), read_header(batch))


@pytest.mark.parametrize("max_bytes", [1, 150, 400, 10_000])
async def test_every_offset_reads_the_batches_from_its_own_on_across_segments(tmp_path: Path, max_bytes: int) -> None:
    async with opened(FileStorage(tmp_path), SMALL) as log:
        for number in range(60):
            append(log, *((b"k", b"%d" % number, number) for _ in range(1 + number % 3)))
            if number % 7 == 0:
                await log.flush()
        await log.flush()
        assert len(list((tmp_path / DIRECTORY).glob("*.log"))) > 5
        everything = await batches_in(log)
        assert await batches_in(log, max_bytes) == everything
        for offset in range(log.end_offset):
            data = await log.read(offset, max_bytes)
            first = read_header(data)
            assert first.base_offset <= offset <= first.last_offset
            assert len(data) <= max(max_bytes, first.length)
        assert await log.read(log.end_offset, max_bytes) == b""


async def test_a_batch_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), SMALL) as log:
        for value in (b"a", b"b" * 5000, b"c"):
            append_value(log, value)
        await log.flush()
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"a", b"b" * 5000, b"c"]
        assert len(list((tmp_path / DIRECTORY).glob("*.log"))) == 3


@pytest.mark.parametrize("offset", [-1, 4, 2**40])
async def test_offsets_outside_the_log_are_an_error_that_says_what_is_there(tmp_path: Path, offset: int) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        for _ in range(3):
            append_value(log, b"a")
        await log.flush()
        with pytest.raises(OffsetNotInLogError, match=f"offset {offset} is not in the log, which holds 0 to 3"):
            await log.read(offset, 100)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=40), st.integers(1, 3))
def test_a_time_is_found_where_a_plain_search_finds_it(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], round_of: int
) -> None:
    async def check() -> None:
        storage = FileStorage(tmp_path_factory.mktemp("times"))
        async with opened(storage, SMALL) as log:
            for number, timestamps in enumerate(batches):
                append(log, *((b"k", b"x" * 20, timestamp) for timestamp in timestamps))
                if number % round_of == 0:
                    await log.flush()
            await log.flush()
            records = await records_in(log)
            for wanted in (0, 1, 13, 39, 40, 41):
                expected = next(((at, time) for at, (_, _, time) in records.items() if time >= wanted), None)
                assert await log.offset_for_timestamp(wanted) == expected
        async with opened(storage, SMALL) as log:
            assert await log.offset_for_timestamp(0) == ((0, records[0][2]) if records else None)

    asyncio.run(check())


async def test_a_log_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    for session in range(4):
        async with opened(storage, SMALL, leader_epoch=session) as log:
            assert log.end_offset == log.high_watermark == 20 * session
            for number in range(20):
                append_value(log, b"%d" % number)
    async with opened(storage, SMALL, leader_epoch=3) as log:
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"%d" % n for n in range(20)] * 4
    assert open_directory(storage, DIRECTORY, SMALL).leader_epochs.entries == [(0, 0), (1, 20), (2, 40), (3, 60)]


async def test_with_flush_os_only_rolling_flushing_and_closing_sync_and_only_that_is_claimed(tmp_path: Path) -> None:
    operations = Operations()
    config = LogConfig(segment_bytes=10_000, flush="os")
    async with opened(HookedStorage(tmp_path, operations), config) as log:
        for number in range(10):
            append_value(log, b"%d" % number)
            assert await outcome(log) is None
        assert operations.count("sync") == 0
        await log.flush()
        assert operations.count("sync") == 1
        append_value(log, b"y")
        await log.flush()
        assert [header.durable_gap for header, _ in await batches_in(log)] == [*range(10), 0]
        for _ in range(100):
            append_value(log, b"z" * 100)
        syncs = operations.count("sync")
        append_value(log, b"w")
    assert operations.count("sync") > syncs


async def test_a_closed_log_takes_no_calls(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        errors: list[Exception | None] = []
        append_value(log, b"queued when it closes")
        log.when_durable(1, errors.append)
        await log.close()
        assert errors == [None]
        log.when_durable(2, errors.append)
        assert isinstance(errors[1], LogClosedError)
        with pytest.raises(LogClosedError):
            append_value(log, b"a")
        with pytest.raises(LogClosedError):
            await log.read(0, 100)
        with pytest.raises(LogClosedError):
            await log.offset_for_timestamp(0)
        with pytest.raises(LogClosedError):
            await log.compact(0)
        await log.close()


def open_files() -> list[str]:
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one that listed them
            continue
    return links


async def test_discarding_fails_what_is_queued_and_leaves_no_file_open(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), SMALL, close=False) as log:
        errors: list[Exception | None] = []
        for _ in range(50):
            append_value(log, b"a")
        await log.flush()
        append_value(log, b"queued")
        log.when_durable(51, errors.append)
        await log.discard()
        assert [type(error) for error in errors] == [LogClosedError]
        assert not [path for path in open_files() if str(tmp_path) in path]


async def test_a_read_that_is_cancelled_leaves_the_log_usable(tmp_path: Path) -> None:
    reading, held = threading.Event(), threading.Event()

    def hold_reads(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".log") and reading.is_set():
            held.wait(10)

    async with opened(HookedStorage(tmp_path, hold_reads)) as log:
        append_value(log, b"a")
        await log.flush()
        reading.set()
        task = asyncio.create_task(log.read(0, 100))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        held.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(await records_in(log)) == 1


async def test_a_damaged_header_is_an_error_for_who_reads_it(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        for _ in range(3):
            append_value(log, b"a")
        await log.flush()
        path = next((tmp_path / DIRECTORY).glob("*.log"))
        data = bytearray(path.read_bytes())
        data[len(data) // 3 + 20] ^= 1
        path.write_bytes(data)
        assert len(await log.read(0, 1000)) == len(data) // 3
        with pytest.raises(
            LogDamagedError, match=r"orders-0 is damaged at orders-0/0+\.log, offset 1: .* go on at offset 2"
        ):
            await log.read(1, 1000)


async def test_many_closed_segments_are_read_with_few_open_files(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), LogConfig(segment_bytes=200)) as log:
        for number in range(2 * MAX_FILES):
            append_value(log, b"%d" % number)
        await log.flush()
        assert len(await records_in(log)) == 2 * MAX_FILES
        assert sum(segment.file is not None for segment in log._segments.closed) <= MAX_FILES


async def test_two_readers_of_a_closed_segment_open_it_once(tmp_path: Path) -> None:
    operations = Operations()
    storage = HookedStorage(tmp_path, operations)
    async with opened(storage, SMALL) as log:
        for _ in range(20):
            append_value(log, b"a")
    async with opened(storage, SMALL) as log:
        before = operations.count("open")
        first, second = await asyncio.gather(log.read(0, 100), log.read(1, 100))
        assert (read_header(first).base_offset, read_header(second).base_offset) == (0, 1)
        assert operations.count("open") - before == 1


async def test_records_with_the_brokers_time_are_found_by_it(tmp_path: Path) -> None:
    batch = batch_of((b"k", b"v", 1), (b"k", b"v", 2))
    header = read_header(batch)
    header = replace(header, attributes=header.attributes | Attributes.LOG_APPEND_TIME, max_timestamp=100)
    async with opened(FileStorage(tmp_path)) as log:
        log.append(header.pack() + batch[80:], header)
        await log.flush()
        assert await log.offset_for_timestamp(50) == (0, 100)


async def test_a_log_whose_directory_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).write_text("a file")
    disk = Disk(FileStorage(tmp_path))
    with pytest.raises(NotADirectoryError):
        await PartitionLog.open(disk, DIRECTORY, LogConfig(), leader_epoch=0, on_fatal=end_of_process)
    disk.close()
