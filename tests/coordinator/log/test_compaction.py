"""Compaction: the last record of each key stays where it was, and readers notice nothing but fewer records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog, compaction_process
from coordinator.log.compaction import OffsetMap
from protocol.record_batch import Attributes, encode_batch, iter_batches, read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import (
    DIRECTORY,
    Record,
    append,
    batch_of,
    batches_in,
    opened,
    outcome,
    records_in,
    records_of,
    replay,
)

RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=600, index_interval_bytes=150, min_cleanable_dirty_ratio=0.0, delete_retention_ms=RETENTION_MS
)


def base_of_active(log: PartitionLog) -> int:
    return log._segments.active.base_offset


async def fill(log: PartitionLog, batches: list[list[tuple[int, int | None]]], compression: str | None = None) -> None:
    """One batch for each list of key number and value number; ``None`` is a tombstone."""
    for batch in batches:
        records = [(b"k%d" % key, None if value is None else b"v%d" % value, log.end_offset) for key, value in batch]
        append(log, *records)
    assert await outcome(log) is None


def assert_compacted(before: dict[int, Record], after: dict[int, Record], active: int) -> None:
    """What is left is what was there; of the closed part the last of each key, of the active part everything."""
    assert all(before[offset] == record for offset, record in after.items())
    assert {offset: record for offset, record in before.items() if offset >= active} == {
        offset: record for offset, record in after.items() if offset >= active
    }
    closed = {offset: record for offset, record in before.items() if offset < active}
    last = {key: offset for offset, (key, _, _) in closed.items()}
    left = [offset for offset in after if offset < active]
    assert {offset for offset in last.values() if before[offset][1] is not None} <= set(left) <= set(last.values())


KEYS = st.integers(0, 5)
BATCHES = st.lists(
    st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=4), max_size=40
)


@settings(max_examples=40, deadline=None)
@given(st.lists(BATCHES, min_size=1, max_size=3), st.sampled_from([0, RETENTION_MS // 2, RETENTION_MS + 1]))
def test_compaction_keeps_the_last_value_of_each_key_at_its_offset(
    tmp_path_factory: pytest.TempPathFactory, phases: list[list[list[tuple[int, int | None]]]], step_ms: int
) -> None:
    async def run() -> None:
        storage = FileStorage(tmp_path_factory.mktemp("compaction"))
        now_ms, written = 0, dict[int, Record]()
        for phase in phases:
            async with opened(storage, CONFIG) as log:
                start = log.end_offset
                await fill(log, phase)
                written |= {offset: record for offset, record in (await records_in(log)).items() if offset >= start}
                end = log.end_offset
                await log.compact(now_ms)
                after = await records_in(log)
                assert_compacted(written, after, base_of_active(log))
                assert (log.start_offset, log.end_offset, log.high_watermark) == (0, end, end)
                for offset in range(end):
                    first = read_header(await log.read(offset, 1))
                    assert first.base_offset <= offset <= first.last_offset
            async with opened(storage, CONFIG) as log:
                assert await records_in(log) == after
                assert replay(after) == replay(written)
                assert log.end_offset == end
            now_ms += step_ms

    asyncio.run(run())


async def test_a_tombstone_stays_for_its_retention_after_its_first_cleaning_and_is_then_gone(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        await fill(log, [[(1, 1)], [(1, None)], [(2, 2)]])
        for now_ms, expected in ((5000, [1]), (5000 + RETENTION_MS - 1, [1]), (5000 + RETENTION_MS, [])):
            await fill(log, [[(9, 9)]] * 8)
            result = await log.compact(now_ms)
            assert result is not None
            records = await records_in(log)
            assert [offset for offset, (key, _, _) in records.items() if key == b"k1"] == expected
        assert records[2][1] == b"v2"


async def test_tombstones_may_stay_for_ever(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), replace(CONFIG, delete_retention_ms=2**63 - 1)) as log:
        for _ in range(3):
            append(log, (b"gone", None, 0))
            await fill(log, [[(1, number)] for number in range(30)])
            assert await log.compact(10**15) is not None
        assert b"gone" in {key for key, _, _ in (await records_in(log)).values()}


async def test_a_log_that_compaction_empties_keeps_its_offsets(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        await fill(log, [[(key, None)] for key in range(20)])
        end, active = log.end_offset, base_of_active(log)
        await log.compact(0)
        await fill(log, [[(50, 1)]] * 8)
        await log.compact(RETENTION_MS)
        left = [offset for offset in await records_in(log) if offset < active]
        assert left == []
        assert log.start_offset == 0
        assert (await log.offset_for_timestamp(0)) is not None
        assert log.end_offset == end + 8
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert (log.start_offset, log.end_offset) == (0, end + 8)


async def test_small_segments_and_batches_become_large_ones(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), LogConfig(segment_bytes=5000, min_cleanable_dirty_ratio=0)) as log:
        await fill(log, [[(number, number)] for number in range(300)])
        before = await batches_in(log)
        result = await log.compact(0)
        assert result is not None
        after = await batches_in(log)
        assert records_of(after) == records_of(before)
        assert result.bytes_after < result.bytes_before / 2
        assert len(after) < len(before) / 5
        await fill(log, [[(number, number)] for number in range(300, 400)])
        before = await batches_in(log)
        result = await log.compact(0)
        assert result is not None
        assert records_of(await batches_in(log)) == records_of(before)
        assert result.segments_after < result.segments_before / 2
        assert len(list((tmp_path / DIRECTORY).glob("*.log"))) == result.segments_after + 1


async def test_compaction_waits_until_enough_is_dirty_and_remembers_what_is_clean(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=600, min_cleanable_dirty_ratio=0.5)
    storage = FileStorage(tmp_path)
    async with opened(storage, config) as log:
        assert (log.dirty_ratio, await log.compact(0)) == (0.0, None)
        await fill(log, [[(number, number)] for number in range(40)])
        assert log.dirty_ratio == 1.0
        assert await log.compact(0) is not None
        assert (log.dirty_ratio, await log.compact(0)) == (0.0, None)
    async with opened(storage, config) as log:
        assert (log.dirty_ratio, await log.compact(0)) == (0.0, None)
        await fill(log, [[(number, number)] for number in range(8)])
        assert 0 < log.dirty_ratio <= 0.5
        assert await log.compact(0) is None
        await fill(log, [[(number, number)] for number in range(60)])
        assert await log.compact(0) is not None


async def test_records_without_a_key_are_dropped(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for _ in range(10):
            append(log, (None, b"nobody's", 0), (b"k1", b"v", 0))
        assert await outcome(log) is None
        active = base_of_active(log)
        result = await log.compact(0)
        assert result is not None
        assert result.keyless_dropped == active // 2
        assert [offset for offset in await records_in(log) if offset < active] == [active - 1]


async def test_batches_of_an_idempotent_producer_keep_their_offsets_and_sequences(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for number in range(12):
            batch = batch_of(
                (b"same", b"v%d" % number, number), (b"own%d" % (number % 9), b"v", number),
                producer_id=7 + number % 2, base_sequence=number // 2 * 2,
            )  # fmt: skip
            log.append(batch, read_header(batch))
        await fill(log, [[(1, 1)], [(1, 2)]] * 4)
        before = {header.base_offset: header for header, _ in await batches_in(log)}
        written = await records_in(log)
        await log.compact(0)
        after = await batches_in(log)
        assert_compacted(written, records_of(after), base_of_active(log))
        kept = [header for header, _ in after if header.producer_id >= 0]
        assert {header.producer_id for header in kept} == {7, 8}
        for header in kept:
            old = before[header.base_offset]
            assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset) == (
                old.producer_id, old.producer_epoch, old.base_sequence, old.last_offset,
            )  # fmt: skip


async def test_the_batches_that_a_producer_is_known_by_stay_even_when_they_are_empty(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for number in range(8):
            batch = batch_of((b"k1", b"v", 0), producer_id=7, base_sequence=number)
            log.append(batch, read_header(batch))
        await fill(log, [[(1, 1)]] * 10)
        for _ in range(2):
            await log.compact(0)
            kept = [header for header, _ in await batches_in(log) if header.producer_id >= 0]
            assert [header.base_offset for header in kept] == [3, 4, 5, 6, 7]
            assert [(header.base_sequence, header.record_count) for header in kept] == [(n, 0) for n in range(3, 8)]
            await fill(log, [[(1, 1)]] * 30)
        before = list(log.producers)
    for path in (tmp_path / DIRECTORY).glob("*.producers"):
        path.unlink()
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert [(name, state.batches) for name, state in log.producers] == [
            (name, state.batches) for name, state in before
        ]


async def test_a_large_record_is_not_joined_with_those_before_it(tmp_path: Path) -> None:
    """Or one as large as a batch may be would make a batch that is larger."""
    async with opened(FileStorage(tmp_path), replace(CONFIG, segment_bytes=300_000)) as log:
        for number in range(3):
            append(log, (b"small%d" % number, b"v" * 20_000, 0))
            append(log, (b"large%d" % number, b"v" * 60_000, 0), (b"same", b"v", 0))
        await fill(log, [[(1, 1)] * 20_000])
        assert await log.compact(0) is not None
        sizes = [header.body_length for header, _ in await batches_in(log)]
        assert [size for size in sizes if size < 70_000] == sizes[:-1]


async def test_batches_of_producers_that_are_forgotten_are_like_any_others(tmp_path: Path) -> None:
    """Or each process that ever wrote to a compacted topic would leave a batch in it for good, empty or not."""
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for number in range(200):
            batch = batch_of((b"k%d" % (number % 50), b"v", 0), producer_id=number, base_sequence=0)
            log.append(batch, read_header(batch), 1000)
        await fill(log, [[(1, 1)]] * 10)
        await log.compact(0)
        assert len([header for header, _ in await batches_in(log) if header.producer_id >= 0]) == 200
        log.producers.expire(10**6, 1)
        await fill(log, [[(1, 1)]] * 30)
        before, active = await records_in(log), base_of_active(log)
        await log.compact(0)
        after = await batches_in(log)
        assert_compacted(before, records_of(after), active)
        assert not [header for header, _ in after if header.producer_id >= 0]
        assert sum(header.last_offset < active for header, _ in after) < 20


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_joined_batches_are_compressed_as_their_parts_were_and_headers_stay(
    tmp_path: Path, compression: str | None
) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for number in range(30):
            batch = encode_batch(
                [b"value" * 10], [b"k%d" % number], timestamps_ms=[number], headers=[(("name", b"%d" % number),)],
                compression=compression,  # type: ignore[arg-type]
            )  # fmt: skip
            log.append(batch, read_header(batch))
        assert await outcome(log) is None
        before = await records_in(log)
        await log.compact(0)
        after = await batches_in(log)
        assert records_of(after) == before
        assert {header.compression for header, _ in after if header.record_count > 1} == {compression}
        assert all(header.attributes & Attributes.HEADERS for header, _ in after if header.record_count)
        assert await log.offset_for_timestamp(17) == (17, 17)


def until_full(limit_bytes: int, batches: Iterator[bytes]) -> OffsetMap:
    offsets = OffsetMap(0, limit_bytes)
    for number, batch in enumerate(batches):
        offsets.add(replace(read_header(batch), base_offset=number * 1000), memoryview(batch))
        if offsets.complete:
            break
    return offsets


def test_keys_count_in_the_map_with_all_their_bytes() -> None:
    """Also one large new key among many small ones that are known."""
    known = [b"known"] * 99
    large = (
        encode_batch([b"v"] * 100, [*known, b"%05d" % number * 2000], timestamps_ms=[0] * 100) for number in count()
    )
    offsets = until_full(10**6, large)
    assert 0 < sum(len(key or b"") for key in offsets._last_offsets) < 2 * 10**6


def test_a_full_map_ends_the_pass_and_the_next_goes_on_there() -> None:
    offsets = OffsetMap(0, limit_bytes=1000)
    for number in range(100):
        batch = batch_of((b"k%d" % number, b"v", 0))
        header = read_header(batch)
        offsets.add(replace(header, base_offset=number), memoryview(batch))
    assert offsets.complete
    assert 0 < offsets.end_offset < 10
    assert not offsets.superseded(b"k50", 0)


@settings(max_examples=8, deadline=None)
@given(BATCHES, st.integers(400, 1000))
def test_passes_with_a_small_map_end_where_one_with_a_large_map_does(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int | None]]], limit_bytes: int
) -> None:
    async def run(limit: int | None) -> tuple[dict[int, Record], dict[int, Record], int]:
        with pytest.MonkeyPatch.context() as patch:
            if limit is not None:
                patch.setattr(compaction_process, "OffsetMap", lambda start: OffsetMap(start, limit))
            async with opened(FileStorage(tmp_path_factory.mktemp("map")), CONFIG) as log:
                await fill(log, batches)
                written = await records_in(log)
                while await log.compact(0) is not None:
                    assert_part_compacted(written, await records_in(log))
                return written, await records_in(log), base_of_active(log)

    def assert_part_compacted(written: dict[int, Record], left: dict[int, Record]) -> None:
        assert replay(left) == replay(written)
        assert all(written[offset] == record for offset, record in left.items())

    written, left, active = asyncio.run(run(limit_bytes))
    assert_compacted(written, left, active)
    assert left == asyncio.run(run(None))[1]


async def test_a_read_that_began_before_the_exchange_finishes_on_the_old_files(tmp_path: Path) -> None:
    held, reading, armed = threading.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold_one_read(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".log") and armed.is_set():
            armed.clear()
            loop.call_soon_threadsafe(reading.set)
            held.wait(10)

    async with opened(HookedStorage(tmp_path, hold_one_read), CONFIG) as log:
        await fill(log, [[(1, number)] for number in range(30)])
        old = await log.read(0, 10_000)
        armed.set()
        read = asyncio.create_task(log.read(0, 10_000))
        await reading.wait()
        assert await log.compact(0) is not None
        held.set()
        assert await read == old
        new = await log.read(0, 10_000)
        assert len(new) < len(old)
        first = next(iter_batches(new))[1]
        assert first.base_offset == 0


async def test_readers_and_writers_go_on_while_compaction_runs(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        written: dict[int, Record] = {}
        stop = asyncio.Event()

        async def write() -> None:
            for number in range(400):
                record = (b"k%d" % (number % 7), b"v%d" % number, number)
                written[append(log, record)] = record
                if number % 5 == 0:
                    assert await outcome(log) is None
            stop.set()

        async def read() -> int:
            rounds = 0
            while not stop.is_set():
                records = await records_in(log, 700)
                assert all(written[offset] == record for offset, record in records.items())
                rounds += 1
                await asyncio.sleep(0)  # a read at the end of the log does not wait for anything
            return rounds

        async def compact() -> int:
            passes = 0
            while not stop.is_set():
                passes += await log.compact(0) is not None
                await asyncio.sleep(0)
            return passes

        _, *counts = await asyncio.gather(write(), read(), read(), compact())
        assert all(counts)
        await log.flush()
        assert replay(await records_in(log)) == replay(written)
