"""A follower's log: it takes a leader's batches as they are, epochs before them, and judges nothing but that they follow."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, LogDamagedError, LogWriteError, PartitionLog
from coordinator.log.compaction import tail_of
from coordinator.log.following import replicated_batches
from coordinator.log.leader_epochs import NotAContinuationError
from coordinator.log.recovery import open_directory
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, encode_batch, read_header, restamped
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.following import Writer, fetched, fingerprints, follow, known_producers
from tests.coordinator.log.logs import (
    DIRECTORY,
    Record,
    append_value,
    batches_in,
    opened,
    outcome,
    records_in,
    records_of,
)
from tests.coordinator.log.test_write_failures import Failing

LEADER = LogConfig(segment_bytes=1500, index_interval_bytes=150)
FOLLOWER = LogConfig(segment_bytes=900, index_interval_bytes=100)


async def copies(tmp_path: Path, seed: int) -> None:
    writer = Writer(seed)
    random = writer.random
    async with (
        opened(FileStorage(tmp_path / "leader"), LEADER, leader_epoch=1) as leader,
        opened(FileStorage(tmp_path / "copy"), FOLLOWER, leader_epoch=None) as copy,
    ):
        epoch = 1
        for _ in range(12):
            for _ in range(random.randint(1, 8)):
                writer.write(leader)
            assert await outcome(leader) is None
            if random.random() < 0.4:
                epoch += random.randint(1, 3)
                await leader.begin_epoch(epoch)
            await follow(leader, copy, random.choice((200, 700, 1 << 20)), random.randint(1, 4))
        await follow(leader, copy)
        await same(leader, copy)
    async with (
        opened(FileStorage(tmp_path / "leader"), LEADER, leader_epoch=None) as leader,
        opened(FileStorage(tmp_path / "copy"), FOLLOWER, leader_epoch=None) as copy,
    ):
        await same(leader, copy)


async def same(leader: PartitionLog, copy: PartitionLog) -> None:
    assert copy.end_offset == leader.end_offset
    assert await fingerprints(copy) == await fingerprints(leader)
    assert known_producers(copy) == known_producers(leader)
    last = leader.end_offset - 1
    assert copy.epochs.within(0, last) == leader.epochs.within(0, last)
    assert copy.last_stable_offset == leader.last_stable_offset
    assert copy.open_transactions() == [
        known._replace(started_ms=copied.started_ms)
        for known, copied in zip(leader.open_transactions(), copy.open_transactions(), strict=True)
    ]
    for log in (leader, copy):
        for header, _ in await batches_in(log):
            assert header.leader_epoch == log.epochs.at(header.base_offset)
    for offset in range(leader.last_stable_offset):
        assert await read_committed(copy, offset) == await read_committed(leader, offset)


async def read_committed(log: PartitionLog, offset: int) -> dict[int, Record]:
    """What the next read of a reader of committed records has from ``offset`` on, in the batch that covers it."""
    data = await log.read(offset, 1, committed=True)
    header = read_header(data)
    return records_of([(header, data[: header.length])]) if header.record_count else {}


@pytest.mark.parametrize("seed", range(8))
def test_logs_of_leader_and_follower_agree_but_for_the_bytes_of_their_nodes(tmp_path: Path, seed: int) -> None:
    asyncio.run(copies(tmp_path, seed))


@pytest.mark.parametrize("case", ["a gap", "an overlap", "an older epoch", "no epochs", "a batch above its epoch"])
async def test_what_does_not_continue_the_log_is_refused_and_leaves_it_as_it_was(tmp_path: Path, case: str) -> None:
    async with opened(FileStorage(tmp_path), leader_epoch=None) as log:
        log.append_as_follower(replicated_batches(stored(b"a", 0, 2)), [(2, 0)])
        assert await outcome(log) is None
        offset, epoch, epochs = {
            "a gap": (2, 2, [(2, 1)]),
            "an overlap": (0, 2, [(2, 1)]),
            "an older epoch": (1, 1, [(1, 1)]),
            "no epochs": (1, 2, []),
            "a batch above its epoch": (1, 3, [(2, 1)]),
        }[case]
        with pytest.raises(NotAContinuationError):
            log.append_as_follower(replicated_batches(stored(b"b", offset, epoch)), epochs)
        assert (log.end_offset, log.epochs.entries) == (1, [(2, 0)])
        log.append_as_follower(replicated_batches(stored(b"b", 1, 2)), [(2, 1)])
        assert await outcome(log) is None
        assert len(await records_in(log)) == 2


def test_what_is_not_whole_is_refused() -> None:
    batch = stored(b"value", 0, 1)
    for at in range(8, len(batch)):
        with pytest.raises(ProtocolError):
            replicated_batches(batch[:at])
        with pytest.raises(ProtocolError):
            replicated_batches(batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :])


def stored(value: bytes, offset: int, epoch: int, gap: int = 0) -> bytes:
    """A batch as it is in a leader's log."""
    batch = encode_batch([value], timestamps_ms=[offset])
    return restamped(batch, offset, epoch, gap) + batch[HEADER_BYTES:]


async def torn(tmp_path: Path) -> tuple[Path, str, int]:
    """A follower's log whose last write had two batches, which the leader had synced one by one; where it began."""
    storage = FileStorage(tmp_path / "copy")
    async with opened(storage, leader_epoch=None, close=False) as log:
        log.append_as_follower(replicated_batches(stored(b"first", 0, 1)), [(1, 0)])
        assert await outcome(log) is None
        before = log.size
        log.append_as_follower(replicated_batches(stored(b"x" * 40, 1, 1) + stored(b"y" * 40, 2, 2)), [(1, 1), (2, 2)])
        assert await outcome(log) is None
    return tmp_path / "copy", f"{DIRECTORY}/00000000000000000000.log", before


def test_a_followers_torn_tail_is_cut_wherever_it_is_torn_and_never_damage(tmp_path: Path) -> None:
    root, name, before = asyncio.run(torn(tmp_path))
    whole = (root / name).read_bytes()
    second = before + read_header(whole, before).length
    for at in range(before, len(whole)):
        for content in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            shutil.rmtree(tmp_path / "torn", ignore_errors=True)
            shutil.copytree(root, tmp_path / "torn")
            (tmp_path / "torn" / name).write_bytes(content)
            with structlog.testing.capture_logs():
                recovered = open_directory(FileStorage(tmp_path / "torn"), DIRECTORY, LogConfig())
            end = 1 if at < second else 2
            assert recovered.segments[-1].next_offset == end
            assert recovered.bytes_cut == len(content) - (before if end == 1 else second)
            # The epoch that begins at the end has no record; what would begin behind it is gone.
            assert recovered.leader_epochs.entries == ([(1, 0)] if end == 1 else [(1, 0), (2, 2)])
            recovered.segments[-1].retire()


def test_with_the_leaders_gap_a_followers_torn_tail_would_be_taken_for_damage(tmp_path: Path) -> None:
    """So each node writes its own."""
    root, name, before = asyncio.run(torn(tmp_path))
    whole = (root / name).read_bytes()
    second = before + read_header(whole, before).length
    tail = (
        restamped(whole[second:], 2, 2, 0) + whole[second + HEADER_BYTES :]
    )  # as the leader has it: offset 1 was on disk
    (root / name).write_bytes(whole[:before] + bytes(second - before) + tail)
    with pytest.raises(LogDamagedError):
        open_directory(FileStorage(root), DIRECTORY, LogConfig())


async def test_an_epoch_is_on_disk_before_its_first_record_and_replaces_one_without(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    async with opened(storage, leader_epoch=1) as log:
        append_value(log, b"a")
        await log.begin_epoch(3)
        await log.begin_epoch(4)
        assert log.epochs.entries == [(1, 0), (4, 1)]
        append_value(log, b"b")
        assert await outcome(log) is None
    assert open_directory(storage, DIRECTORY, LogConfig()).leader_epochs.entries == [(1, 0), (4, 1)]
    with pytest.raises(LogDamagedError, match="epoch 4"):
        async with opened(storage, leader_epoch=3):
            pass
    async with opened(storage, leader_epoch=None) as log:
        with pytest.raises(ValueError, match="behind records of epoch 4"):
            await log.begin_epoch(3)


async def test_a_refused_write_takes_back_the_epochs_of_a_follower_and_keeps_that_of_a_leader(tmp_path: Path) -> None:
    failing = Failing()
    async with opened(HookedStorage(tmp_path, failing), leader_epoch=1) as log:
        append_value(log, b"a")
        assert await outcome(log) is None
        await log.begin_epoch(2)
        failing.operations = {"append": ".log"}
        append_value(log, b"refused")
        assert isinstance(await outcome(log), LogWriteError)
        failing.operations = {}
        assert log.epochs.entries == [(1, 0), (2, 1)]
        append_value(log, b"b")
        assert await outcome(log) is None
        failing.operations = {"append": ".log"}
        log.append_as_follower(replicated_batches(stored(b"x", 2, 3) + stored(b"y", 3, 4)), [(3, 2), (4, 3)])
        assert isinstance(await outcome(log), LogWriteError)
        failing.operations = {}
        assert (log.end_offset, log.epochs.entries) == (2, [(1, 0), (2, 1)])
        log.append_as_follower(replicated_batches(stored(b"z", 2, 5)), [(5, 2)])
        assert await outcome(log) is None
    assert open_directory(FileStorage(tmp_path), DIRECTORY, LogConfig()).leader_epochs.entries == [
        (1, 0),
        (2, 1),
        (5, 2),
    ]


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_batch_that_compaction_joined_is_cut_for_a_follower_that_ends_within_it(
    tmp_path: Path, compression: str | None
) -> None:
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, compact=True, min_cleanable_dirty_ratio=0.0)
    async with opened(FileStorage(tmp_path / "leader"), config, leader_epoch=1) as leader:
        for number in range(30):
            batch = encode_batch(
                [b"%d" % number], [b"k%d" % (number % 11)], timestamps_ms=[number], headers=[(("n", b"%d" % number),)],
                compression="gzip" if compression else None,
            )  # fmt: skip
            leader.append(batch, read_header(batch), number)
        assert await outcome(leader) is None
        assert await leader.compact(100) is not None
        records = await records_in(leader)
        assert any(header.last_offset_delta for header, _ in await batches_in(leader))
        for start in range(1, leader.end_offset):
            root = tmp_path / f"copy {start}"
            async with opened(FileStorage(root), leader_epoch=None) as copy:
                fill = b"".join(stored(b"old", offset, 0) for offset in range(start))
                copy.append_as_follower(replicated_batches(fill), [(0, 0)])
                await follow(leader, copy)
                found = await records_in(copy)
            assert {offset: record for offset, record in found.items() if offset >= start} == {
                offset: record for offset, record in records.items() if offset >= start
            }


def test_a_tail_keeps_what_its_batch_says() -> None:
    offsets = [10, 13, 14, 19]
    batch = encode_batch(
        [b"a", None, b"c", b"d"], [b"1", b"2", b"3", b"4"], timestamps_ms=[5, 6, 7, 8], offsets=offsets
    )
    batch = restamped(batch, 10, 4) + batch[HEADER_BYTES:]
    for offset in range(11, 20):
        (found,) = replicated_batches(tail_of(batch, offset))
        assert (found.header.base_offset, found.header.next_offset, found.header.leader_epoch) == (offset, 20, 4)
        assert found.header.record_count == sum(one >= offset for one in offsets)
    for offset in (9, 10, 20):
        with pytest.raises(ValueError, match="not within"):
            tail_of(batch, offset)


def test_a_tail_of_a_control_batch_has_the_markers_that_are_left() -> None:
    """Records may be deleted up to any offset, also between the end markers of one batch."""
    ends = [TransactionEnd(3, producer, 0, producer % 2 == 0, 5) for producer in range(4)]
    whole = b"".join(encode_control_batch(ends, 7).pieces())
    batch = restamped(whole, 10, 4) + whole[HEADER_BYTES:]
    for offset in (11, 12, 13):
        (found,) = replicated_batches(tail_of(batch, offset))
        assert (found.header.base_offset, found.header.next_offset) == (offset, 14)
        assert list(found.ends) == ends[offset - 10 :]


async def test_what_is_fetched_begins_where_the_follower_ends(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), leader_epoch=1) as leader:
        append_value(leader, b"a")
        append_value(leader, b"b")
        assert await outcome(leader) is None
        data, epochs = await fetched(leader, 1, 1 << 20)
        assert read_header(data).base_offset == 1
        assert epochs == ((1, 1),)
