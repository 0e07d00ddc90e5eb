"""What a log remembers of its producers, after the process ended at any instant, and when what it put down is lost."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.errors import LogDamagedError
from coordinator.log.producers import REMEMBERED_BATCHES, WrittenBatch
from protocol.record_batch import HEADER_BYTES, read_header, restamped
from tests.coordinator.log.faulty_storage import HookedStorage, KillAt
from tests.coordinator.log.logs import DIRECTORY, append, batch_of, end_of_process, made, opened, outcome
from tests.coordinator.log.transactional import transactional

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, retention_bytes=1500, retention_ms=-1)

Written = list[tuple[int, WrittenBatch]]
"""Producer ids with the batches they wrote, in order."""


def send(log: PartitionLog, producer_id: int, first: int, count: int) -> tuple[int, WrittenBatch]:
    """Appends the next ``count`` records of a producer."""
    batch = batch_of(
        *[(b"k", b"v%d" % number, 1) for number in range(count)], producer_id=producer_id, base_sequence=first
    )
    header = read_header(batch)
    result = log.append(batch, header, 1_000)
    assert not result.duplicate
    return producer_id, WrittenBatch(first, first + count - 1, result.base_offset, result.last_offset + 1)


def remembered(written: Written, end: int) -> dict[int, tuple[WrittenBatch, ...]]:
    """What has to be known of what lies below ``end``."""
    known: dict[int, tuple[WrittenBatch, ...]] = {}
    for producer_id, batch in written:
        if batch.next_offset <= end:
            known[producer_id] = (*known.get(producer_id, ()), batch)[-REMEMBERED_BATCHES:]
    return known


def states(log: PartitionLog) -> dict[int, tuple[WrittenBatch, ...]]:
    return {producer_id: state.batches for producer_id, state in log.producers}


async def live(log: PartitionLog, written: Written) -> int:
    """Three producers write in turn, old segments go; returns what was acknowledged."""
    sequences = [0, 0, 0]
    acknowledged = 0
    for turn in range(8):
        for producer_id in (0, 1, 2, 0) if turn % 2 else (0, 1):
            count = 1 + (turn + producer_id) % 3
            written.append(send(log, producer_id, sequences[producer_id], count))
            sequences[producer_id] += count
        if await outcome(log) is None:
            acknowledged = log.high_watermark
        if turn % 3 == 2:
            await log.retain(2_000)
    return acknowledged


def test_whenever_the_process_is_killed_the_last_batches_of_every_producer_are_known(tmp_path: Path) -> None:
    number, killed = 0, True
    while killed:
        root = tmp_path / str(number)
        made(FileStorage(root))
        kill = KillAt(number)
        written: Written = []
        acknowledged = 0

        async def life(root: Path = root, kill: KillAt = kill, written: Written = written) -> int:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            disk = Disk(HookedStorage(root, kill), threads=1)
            try:
                log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
                acknowledged = await live(log, written)
                await log.close()
                return acknowledged
            except BaseException:
                if not kill.killed:
                    raise
                return 0
            finally:
                disk.close()

        async def check(root: Path = root, written: Written = written) -> None:
            for _ in range(2):
                async with opened(FileStorage(root), CONFIG) as log:
                    assert states(log) == remembered(written, log.end_offset)

        with structlog.testing.capture_logs():
            acknowledged = asyncio.run(life())
            asyncio.run(check())
        killed = kill.killed
        number += 1
    assert number > 40
    assert acknowledged == written[-1][1].next_offset


Step = tuple[int, int, bool | None]
"""Producer id, epoch and what is written: None for a batch, or an end marker that commits or aborts."""

TRANSACTIONS: list[Step] = [
    (7, 0, None), (8, 0, None), (7, 0, True), (7, 1, None), (9, 5, None), (8, 0, False), (7, 1, False), (8, 1, None),
    (7, 2, None), (7, 2, None), (9, 5, None), (7, 2, True), (8, 1, True), (7, 3, None), (7, 3, True), (8, 2, None),
]  # fmt: skip
"""Each step takes one offset."""


def open_after(steps: list[Step]) -> list[tuple[int, int, int]]:
    """Producer id, epoch and first offset of what is open, in order of first offsets."""
    known: dict[int, tuple[int, int, int]] = {}
    for offset, (producer_id, epoch, ends) in enumerate(steps):
        if ends is None:
            known.setdefault(producer_id, (producer_id, epoch, offset))
        else:
            del known[producer_id]
    return sorted(known.values(), key=lambda opened: opened[2])


async def live_with_transactions(log: PartitionLog, told: list[tuple[int, int]]) -> None:
    """Notes each high watermark and last stable offset that is told."""
    sequences: dict[tuple[int, int], int] = {}
    for number, (producer_id, epoch, ends) in enumerate(TRANSACTIONS):
        if ends is None:
            sequence = sequences.get((producer_id, epoch), 0)
            batch = transactional([b"k"], [b"v"], [number], producer_id, sequence, epoch)
            sequences[producer_id, epoch] = sequence + 1
            assert log.append(batch, read_header(batch), 1_000).base_offset == number
        else:
            assert log.end_transactions([(producer_id, epoch, ends)], 0, 1_000) == number + 1
        if number % 3 == 2 and await outcome(log) is None:
            told.append((log.high_watermark, log.last_stable_offset))
        if number == 10:
            await log.retain(2_000)


def test_whenever_the_process_is_killed_the_open_transactions_are_known(tmp_path: Path) -> None:
    number, killed = 0, True
    while killed:
        root = tmp_path / str(number)
        made(FileStorage(root))
        kill = KillAt(number)
        told = [(0, 0)]

        async def life(root: Path = root, kill: KillAt = kill, told: list[tuple[int, int]] = told) -> None:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            disk = Disk(HookedStorage(root, kill), threads=1)
            try:
                log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
                await live_with_transactions(log, told)
                await log.close()
            except BaseException:
                if not kill.killed:
                    raise
            finally:
                disk.close()

        async def check(root: Path = root, told: list[tuple[int, int]] = told) -> None:
            for _ in range(2):
                async with opened(FileStorage(root), CONFIG) as log:
                    assert log.high_watermark >= told[-1][0]
                    assert log.last_stable_offset >= told[-1][1]
                    known = [transaction[:3] for transaction in log.open_transactions()]
                    assert known == open_after(TRANSACTIONS[: log.end_offset])
                    assert log.last_stable_offset == min([log.end_offset, *(first for _, _, first in known)])

        with structlog.testing.capture_logs():
            asyncio.run(life())
            asyncio.run(check())
        killed = kill.killed
        number += 1
    assert number > 30
    assert told == sorted(told)
    assert told[-1] == (15, 4)


@pytest.mark.parametrize("damage", ["lost", "cut", "changed", "another's"])
async def test_a_snapshot_that_is_of_no_use_is_made_anew_from_the_log(tmp_path: Path, damage: str) -> None:
    written: Written = []
    config = LogConfig(segment_bytes=600)
    async with opened(FileStorage(tmp_path), config, close=False) as log:
        await live(log, written)
    (snapshot,) = (tmp_path / DIRECTORY).glob("*.producers")
    data = snapshot.read_bytes()
    if damage == "lost":
        snapshot.unlink()
    else:
        snapshot.write_bytes(
            {"cut": data[:-5], "changed": data[:20] + b"\x55" + data[21:], "another's": b"CHK1" + data[4:]}[damage]
        )
    for _ in range(2):
        with structlog.testing.capture_logs() as logs:
            async with opened(FileStorage(tmp_path), config, close=False) as log:
                assert states(log) == remembered(written, log.end_offset)
        assert [entry["event"] for entry in logs] == (["producer_snapshot_rebuilt"] if _ == 0 else [])


async def test_batches_that_are_not_in_order_are_damage_when_a_snapshot_is_made_anew(tmp_path: Path) -> None:
    """Their checksums are right: two transactions begin at one offset and end with one control batch."""
    async with opened(FileStorage(tmp_path), LogConfig(segment_bytes=500), close=False) as log:
        for producer_id in (1, 2):
            batch = transactional([b"k"], [b"v"], [1], producer_id, 0)
            log.append(batch, read_header(batch), 1_000)
        log.end_transactions([(1, 0, True), (2, 0, True)], 0, 1_000)
        while log.segment_count == 1:
            append(log, (b"k", b"v", 1))
            assert await outcome(log) is None
    directory = tmp_path / DIRECTORY
    first, second = sorted(directory.glob("*.log"))
    content = bytearray(first.read_bytes())
    position = read_header(bytes(content)).length
    content[position : position + HEADER_BYTES] = restamped(memoryview(content)[position:], 0, 0)
    first.write_bytes(content)
    async with opened(FileStorage(tmp_path), close=False) as log:
        assert log.producers.get(1) is None, "closed segments are not read as long as there is a snapshot"
    second.with_suffix(".producers").unlink()
    with (
        structlog.testing.capture_logs(),
        pytest.raises(LogDamagedError, match="a batch of offset 0 is where 1 belongs"),
    ):
        async with opened(FileStorage(tmp_path)):
            pass


async def test_compaction_changes_nothing_of_what_is_known_even_when_the_snapshot_is_lost(tmp_path: Path) -> None:
    """All records have one key: nearly all of them go."""
    written: Written = []
    config = LogConfig(segment_bytes=600, min_cleanable_dirty_ratio=0.0)
    async with opened(FileStorage(tmp_path), config) as log:
        await live(log, written)
        before = log.size
        assert await log.compact(10_000) is not None
        assert log.size < before
    async with opened(FileStorage(tmp_path), config) as log:
        assert states(log) == remembered(written, log.end_offset)
    for snapshot in (tmp_path / DIRECTORY).glob("*.producers"):
        snapshot.unlink()
    with structlog.testing.capture_logs():
        async with opened(FileStorage(tmp_path), config) as log:
            expected = remembered(written, log.end_offset)
            for producer_id, batches in states(log).items():
                assert batches[-1] == expected[producer_id][-1], "what comes next is known"
                assert set(batches) <= set(expected[producer_id])
            assert len(states(log)) == len(expected)


async def test_a_write_that_is_refused_takes_nothing_away_of_what_was_known(tmp_path: Path) -> None:
    """Also when it was the one to close a segment: the snapshot of the next attempt is of what is there then."""
    written: Written = []
    full = False

    def hook(operation: str, path: str) -> None:
        if full and operation == "append":
            raise OSError(28, "No space left on device")

    config = LogConfig(segment_bytes=300)
    async with opened(HookedStorage(tmp_path, hook), config) as log:
        next_sequence = 0
        for turn in range(12):
            full = turn % 3 == 1
            attempted = [
                send(log, 0, next_sequence, 2),
                send(log, 9, 0, 1) if turn == 4 else send(log, 0, next_sequence + 2, 1),
            ]
            if await outcome(log) is None:
                written += attempted
                next_sequence += 3
            assert states(log) == remembered(written, log.end_offset)
            assert log.producers.get(9) is None
    async with opened(FileStorage(tmp_path), config) as log:
        assert states(log) == remembered(written, log.end_offset)
    assert all(after.base_offset == before.next_offset for (_, before), (_, after) in pairwise(written))
