"""Reads of what is committed: any log of transactions, read from any offset, is the list of its committed records."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from protocol.record_batch import Attributes, decode_columns, iter_batches
from tests.coordinator.log.logs import DIRECTORY, opened
from tests.coordinator.log.transactional import End, Made, Step, Write, follow, put

PRODUCERS = (5, 6, 7)
CONFIG = LogConfig(index_interval_bytes=200)
WRITES = st.builds(Write, st.sampled_from([-1, *PRODUCERS]), st.integers(1, 3), st.sampled_from([0, 0, 100]))
ENDS = st.builds(
    End, st.lists(st.sampled_from(PRODUCERS), min_size=1, max_size=3, unique=True).map(tuple), st.booleans()
)
STEPS = st.lists(st.one_of(WRITES, WRITES, ENDS, st.just("roll")), max_size=25)
SIZES = (1, 250, 700, 1 << 20)


async def committed_from(log: PartitionLog, offset: int, max_bytes: int) -> dict[int, bytes]:
    """What a reader gets that follows the batches, as consumers do."""
    found: dict[int, bytes] = {}
    position = offset
    while data := await log.read(position, max_bytes, committed=True):
        batches = [(header, data[at : at + header.length]) for at, header in iter_batches(data)]
        assert sum(header.length for header, _ in batches) == len(data)
        assert len(data) <= max_bytes or len(batches) == 1
        assert batches[0][0].base_offset <= position
        expected = batches[0][0].base_offset
        for header, batch in batches:
            assert header.base_offset == expected, "no offset is left out, and none comes twice"
            expected = header.next_offset
            columns = decode_columns(batch, 0, header)
            if header.attributes & Attributes.CONTROL:
                continue
            for delta, value in zip(columns.offset_deltas(), columns.values(), strict=True):
                if header.base_offset + delta >= position:
                    assert value is not None
                    found[header.base_offset + delta] = value
        assert expected > position
        position = expected
    assert position in (offset, log.last_stable_offset)
    return found


async def check_reads(log: PartitionLog, made: Made) -> None:
    for offset in range(log.start_offset, made.end_offset + 1):
        for max_bytes in SIZES:
            assert await committed_from(log, offset, max_bytes) == made.committed(offset)
    for time in range(made.end_offset + 1):  # each record's time is its offset
        there = [offset for offset in made.committed(log.start_offset) if offset >= time]
        expected = (there[0], there[0]) if there else None
        assert await log.offset_for_timestamp(time, committed=True) == expected


@settings(max_examples=60, deadline=None)
@given(STEPS)
@example([Write(5, 1), "roll", Write(6, 1), "roll", Write(-1, 1), "roll", End((6, 5), False), "roll", Write(-1, 1)])
def test_any_log_read_from_any_offset_is_the_list_of_committed_records(steps: list[Step]) -> None:
    made = follow([*steps, End(PRODUCERS, True)])

    async def run(directory: str) -> None:
        storage = FileStorage(directory)
        put(storage, made)
        for _ in range(2):  # made anew from the segments, then as the index files and the clean end have it
            async with opened(storage, CONFIG) as log:
                await check_reads(log, made)
        for path in Path(directory, DIRECTORY).glob("*.index"):
            path.unlink()
        async with opened(storage, CONFIG, close=False) as log:
            await check_reads(log, made)

    with tempfile.TemporaryDirectory() as directory, structlog.testing.capture_logs():
        asyncio.run(run(directory))


@pytest.fixture
def storage(tmp_path: Path) -> FileStorage:
    return FileStorage(tmp_path)


async def test_a_read_goes_on_a_little_where_everything_is_aborted(storage: FileStorage) -> None:
    made = follow([*[Write(5, 1, 300)] * 30, "roll", End((5,), False), Write(-1, 1)])
    put(storage, made)
    async with opened(storage, CONFIG) as log:
        data = await log.read(0, 900, committed=True)
        headers = [header for _, header in iter_batches(data)]
        assert [(header.base_offset, header.next_offset, header.record_count) for header in headers] == [(0, 5, 0)]
        assert len(data) < 100
        assert len(await log.read(0, 5, committed=True)) == len(data), "an answer even if there is no room for it"
        data = await log.read(0, 100_000, committed=True)
        assert [(header.base_offset, header.next_offset) for _, header in iter_batches(data)] == [
            (0, 30),  # one empty batch for all of them
            (30, 31),  # the marker, in the next segment
            (31, 32),
        ]


async def test_what_can_be_read_is_counted_to_the_byte_once_it_has_been_read(storage: FileStorage) -> None:
    made = follow([*[Write(5, 1, 300)] * 8, End((5,), False), *[Write(-1, 1)] * 8])
    put(storage, made)
    async with opened(storage, CONFIG) as log:
        whole = len(made.segments[0][1])
        assert log.bytes_from(0, committed=True) == (whole, False)
        assert log._reader.bytes_from(0, 4)[0] >= len(await log._reader.read(0, whole, 4))
        assert log._reader.bytes_from(0, 4) == (len(await log._reader.read(0, whole, 4)), False)
        assert log.bytes_from(made.end_offset, committed=True) == (0, False)


async def test_a_look_up_by_time_passes_long_stretches_of_aborted_records(storage: FileStorage) -> None:
    steps: list[Step] = []
    for producer_id in (5, 6):
        steps += [*[Write(producer_id, 1_000)] * 6, End((producer_id,), False), Write(-1, 1)]
    put(storage, follow(steps))
    async with opened(storage, CONFIG) as log:
        assert await log.offset_for_timestamp(0) == (0, 0)
        assert await log.offset_for_timestamp(0, committed=True) == (6_001, 6_001)
        assert await log.offset_for_timestamp(6_001, committed=True) == (6_001, 6_001)
        assert await log.offset_for_timestamp(6_002, committed=True) == (12_003, 12_003)
        assert await log.offset_for_timestamp(12_004, committed=True) is None
