"""A copy of a log that begins where the leader's does knows the producers that wrote below, as far as they count."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.producer_snapshots import decode_snapshot, encode_first
from coordinator.log.producers import ProducerState, WrittenBatch
from tests.coordinator.log.following import Writer, fingerprints, follow
from tests.coordinator.log.logs import opened, outcome

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150)
ROOM = 1 << 20


def remembered(log: PartitionLog) -> dict[int, tuple[int, WrittenBatch, bool]]:
    """Of each producer its epoch, its last batch by sequence and end, and whether it has a transaction open."""
    return {
        producer_id: (
            state.epoch,
            state.batches[-1]._replace(first_sequence=0, base_offset=0),  # a batch may be cut where the copy begins
            state.transaction is not None,
        )
        for producer_id, state in log.producers
    }


async def copied(leader: PartitionLog, copy: PartitionLog) -> None:
    """What replication does with a follower that ends before the leader begins."""
    told = encode_first(leader.producers.below(leader.start_offset), ROOM)
    await copy.reset_to(leader.start_offset, decode_snapshot(told))
    await follow(leader, copy)


@pytest.mark.parametrize("seed", range(20))
async def test_a_copy_remembers_the_producers_that_the_leader_remembers(seed: int, tmp_path: Path) -> None:
    """Wherever the leader's log begins now, also in the middle of a batch or of a transaction, and after a restart."""
    writer = Writer(seed)
    async with opened(FileStorage(tmp_path / "a"), CONFIG, leader_epoch=1) as leader:
        async with opened(FileStorage(tmp_path / "b"), CONFIG, leader_epoch=None) as copy:
            for _ in range(40):
                writer.write(leader)
                assert await outcome(leader) is None
            await leader.delete_before(writer.random.randint(1, max(1, leader.last_stable_offset)))
            await copied(leader, copy)
            assert remembered(copy) == remembered(leader)
            for _ in range(10):  # numbers go on
                writer.write(leader)
                assert await outcome(leader) is None
            await follow(leader, copy)
            assert remembered(copy) == remembered(leader)
            copies = await fingerprints(copy)
        async with opened(FileStorage(tmp_path / "b"), CONFIG, leader_epoch=None) as again:
            assert remembered(again) == remembered(leader)
            assert await fingerprints(again) == copies


async def test_every_batch_that_may_be_repeated_is_known_to_the_copy(tmp_path: Path) -> None:
    """A producer may have five under way: the answer to a repetition is the offset of its first append."""
    writer = Writer(1)
    async with (
        opened(FileStorage(tmp_path / "a"), CONFIG, leader_epoch=1) as leader,
        opened(FileStorage(tmp_path / "b"), CONFIG, leader_epoch=None) as copy,
    ):
        for _ in range(8):
            writer._append(leader, 9, False)
        assert await outcome(leader) is None
        await leader.delete_before(leader.end_offset)
        await copied(leader, copy)
        there, here = leader.producers.get(9), copy.producers.get(9)
        assert there is not None
        assert here is not None
        assert here.batches == there.batches
        assert len(here.batches) == 5


def test_what_does_not_fit_is_left_out_from_the_last_on() -> None:
    states = [(number, ProducerState(0, (WrittenBatch(0, 0, number, number + 1),))) for number in range(100)]
    whole = encode_first(states, ROOM)
    assert sorted(producer for producer, _ in decode_snapshot(whole)) == list(range(100))
    half = encode_first(states, len(whole) // 2)
    assert len(half) <= len(whole) // 2
    assert sorted(producer for producer, _ in decode_snapshot(half)) == list(range(49))
    assert decode_snapshot(encode_first(states, 0)) == []
