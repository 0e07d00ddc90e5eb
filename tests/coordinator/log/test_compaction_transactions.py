"""Compaction of logs with transactions: committed records count as any others, aborted ones as if they had never been."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog, cleaner, compaction, compaction_process
from coordinator.log.aborted import AbortedBatches, AbortedTransactions
from coordinator.log.compaction import CompactionResult, OffsetMap, cleanable
from coordinator.log.compaction_process import ProcessWork
from coordinator.log.recovery import open_directory
from coordinator.log.segment import Segment
from protocol.record_batch import Attributes, BatchHeader, iter_batches
from tests.coordinator.log.logs import DIRECTORY, batches_in, opened
from tests.coordinator.log.test_reading_committed import STEPS, committed_from
from tests.coordinator.log.transactional import End, Made, Step, Write, follow, key_of, put

CONFIG = LogConfig(index_interval_bytes=200, segment_bytes=1500, min_cleanable_dirty_ratio=0.0, compact=True)
OF_TRANSACTIONS = Attributes.TRANSACTIONAL | Attributes.CONTROL


def cleaned_until(made: Made) -> int:
    """The end of the closed segments in which everything is decided."""
    return max(base for base, _ in made.segments if base <= made.stable)


def left_after(made: Made, until: int) -> dict[int, bytes]:
    """What compaction up to an offset leaves of the committed records: the last of each key, and all behind it."""
    committed = made.committed(0)
    last = {key_of(offset): offset for offset in sorted(committed) if offset < until}
    return {offset: value for offset, value in committed.items() if offset >= until or last[key_of(offset)] == offset}


async def check(log: PartitionLog, made: Made, until: int) -> None:
    assert log.last_stable_offset == made.stable
    left = left_after(made, until)
    for offset in sorted({0, until, made.end_offset // 2, made.end_offset}):
        for max_bytes in (1, 500, 1 << 20):
            expected = {at: value for at, value in left.items() if at >= offset}
            assert await committed_from(log, offset, max_bytes) == expected
    for header, _ in await batches_in(log):
        if header.next_offset <= until:
            assert not header.attributes & OF_TRANSACTIONS, "committed batches lose their flag, the others go"
            assert header.producer_id == -1


async def compact_in_turns(turns: list[list[Step]], directory: str) -> None:
    """Writes, compacts, writes on, compacts again; after each pass all is as it should be, also after a restart."""
    storage, made, written = FileStorage(directory), Made(), 0
    for turn in turns:
        made = follow([*turn, "roll"], made)
        put(storage, made, written)
        written = len(made.segments) - 1  # the last one is empty
        until = cleaned_until(made)
        async with opened(storage, CONFIG) as log:
            while await log.compact(0) is not None:
                pass
            await check(log, made, until)
        async with opened(storage, CONFIG) as log:
            await check(log, made, until)
        for path in Path(directory, DIRECTORY).glob("*.index"):
            path.unlink()
        async with opened(storage, CONFIG) as log:
            await check(log, made, until)


def run(turns: list[list[Step]]) -> None:
    with tempfile.TemporaryDirectory() as directory, structlog.testing.capture_logs():
        asyncio.run(compact_in_turns(turns, directory))


SUPERSEDED_BY_AN_ABORT: list[list[Step]] = [[Write(-1, 5), Write(5, 5), "roll", Write(-1, 1), "roll", End((5,), False)]]
DECIDED_LATER: list[list[Step]] = [[Write(-1, 3), Write(5, 5), "roll", Write(-1, 1), "roll"], [End((5,), False)]]


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=3))
@example(SUPERSEDED_BY_AN_ABORT)
@example(DECIDED_LATER)
@example([[Write(5, 3), "roll", Write(6, 3), "roll", End((5, 6), True), "roll"], [Write(-1, 5)]])
def test_what_is_left_is_the_last_committed_record_of_each_key(turns: list[list[Step]]) -> None:
    run(turns)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=2), st.integers(200, 900))
def test_a_pass_that_ends_within_a_transaction_leaves_the_rest_to_the_next(
    turns: list[list[Step]], limit_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction_process, "OffsetMap", lambda start: OffsetMap(start, limit_bytes))
        run(turns)


def test_without_knowing_aborts_an_aborted_record_would_supersede_a_committed_one() -> None:
    def no_aborts(header: BatchHeader, aborted: AbortedBatches) -> bool:
        return bool(header.attributes & Attributes.CONTROL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "goes", no_aborts)
        with pytest.raises(AssertionError):
            run(SUPERSEDED_BY_AN_ABORT)


def test_above_the_last_stable_offset_a_pass_would_make_undecided_records_committed() -> None:
    def whatever_is_stable(closed: list[Segment], config: LogConfig, stable: int, now_ms: int) -> list[Segment]:
        return cleanable(closed, config, 2**62, now_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner, "cleanable", whatever_is_stable)
        with pytest.raises(AssertionError):
            run(DECIDED_LATER)


async def test_segments_with_something_undecided_stay_as_they_are(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    made = follow([*[Write(-1, 1)] * 10, "roll", Write(5, 1), Write(-1, 4), "roll", Write(-1, 5), "roll", Write(-1, 1)])
    put(storage, made)
    async with opened(storage, CONFIG) as log:
        before = [batch for header, batch in await batches_in(log) if header.base_offset >= 10]
        result = await log.compact(0)
        assert result is not None
        assert (result.clean_until, result.records_before, result.records_after) == (10, 10, 5)
        assert [batch for header, batch in await batches_in(log) if header.base_offset >= 10] == before
        log.end_transactions([(5, 0, True)], 0, 0)
        await log.flush()
        result = await log.compact(0)
        assert result is not None
        assert result.clean_until == 20


async def test_a_process_of_its_own_knows_aborts_too(tmp_path: Path) -> None:
    steps: list[Step] = [Write(-1, 5), Write(5, 5), Write(6, 5), "roll", End((5,), False), End((6,), True), "roll"]
    found = []
    for name, begin in (("here", compaction_process.local_work), ("there", lambda start, size: ProcessWork(start))):
        storage = FileStorage(tmp_path / name)
        (tmp_path / name).mkdir()
        put(storage, follow(steps))
        async with opened(storage, CONFIG) as log:
            log._cleaner._begin = begin
            assert await log.compact(0) is not None
            assert sorted(await committed_from(log, 0, 1000)) == list(range(10, 15))
        found.append({path.name: path.read_bytes() for path in (tmp_path / name / DIRECTORY).glob("*.log")})
    assert found[0] == found[1]


async def test_a_read_under_way_keeps_the_records_hidden_that_compaction_takes_out(tmp_path: Path) -> None:
    """Data and markers lie in different segments, and both are exchanged between two looks of the read."""
    storage = FileStorage(tmp_path)
    put(storage, follow([Write(5, 3), "roll", End((5,), False), Write(-1, 3), "roll", Write(-1, 1)]))
    async with opened(storage, CONFIG) as log:
        segments = log._segments
        original = segments.aborted_in
        passes: list[CompactionResult | None] = []

        async def aborted_in(start_offset: int, end_offset: int) -> list[AbortedTransactions]:
            if not passes and not log._cleaner.is_running():
                passes.append(await log.compact(0))
            return await original(start_offset, end_offset)

        segments.aborted_in = aborted_in  # type: ignore[method-assign]
        data = await log.read(0, 10_000, committed=True)
        assert passes[0] is not None
        assert not [header for _, header in iter_batches(data) if header.attributes & Attributes.TRANSACTIONAL]
        assert sorted(await committed_from(log, 0, 10_000)) == [4, 5, 6, 7]


async def test_recovery_of_a_compacted_log_finds_no_transaction_in_it(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    put(storage, follow([Write(5, 3), Write(6, 2), "roll", End((5,), False), End((6,), True), "roll", Write(7, 1)]))
    async with opened(storage, CONFIG) as log:
        assert await log.compact(0) is not None
    for path in (tmp_path / DIRECTORY).glob("*.producers"):
        path.unlink()
    (tmp_path / DIRECTORY / "clean-end").unlink()
    recovered = open_directory(storage, DIRECTORY, CONFIG)
    assert [transaction.producer_id for transaction in recovered.producers.transactions.open()] == [7]
    assert [producer_id for producer_id, _ in recovered.producers] == [7]
    recovered.segments[-1].retire()
