"""What is remembered of producers has a bound, in a partition and in a node: the partitions that have most forget some."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from coordinator.log.config import LogConfig
from coordinator.log.group_commit import AppendQueue
from coordinator.log.producers import MAX_PRODUCERS, Producers, ProducerState, WrittenBatch
from coordinator.logs.producer_limit import forget_above
from protocol.record_batch import BatchHeader, encode_batch, read_header


def remembered(count: int, first_id: int = 0) -> Producers:
    return Producers((first_id + number, ProducerState(0, (WrittenBatch(0, 0, 0, 1),))) for number in range(count))


def encoded(producer_id: int) -> tuple[BatchHeader, bytes]:
    data = encode_batch([b"v"], timestamps_ms=[0], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    return read_header(data), data


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(1, 300))
def test_above_the_limit_the_largest_are_cut_to_one_size_and_the_smaller_keep_all(
    counts: list[int], limit: int
) -> None:
    partitions = [remembered(count) for count in counts]
    forget_above(limit, partitions)
    left = [len(producers) for producers in partitions]
    if sum(counts) <= limit:
        assert left == counts
        return
    assert limit * 0.95 - len(counts) - 1 <= sum(left) <= limit
    level = max(left)
    assert left == [min(count, level) for count in counts]
    assert [producers.take_forgotten() for producers in partitions] == [
        count - kept for count, kept in zip(counts, left, strict=True)
    ]
    for count, producers in zip(counts, partitions, strict=True):
        assert [producer_id for producer_id, _ in producers] == list(range(count))[count - len(producers) :]


def test_a_partition_forgets_those_it_heard_of_longest_ago() -> None:
    with patch("coordinator.log.producers.MAX_PRODUCERS", 300):
        producers = Producers()
        for number in range(1000):
            producers.note(encoded(number)[0], number)
            if number % 50 == 0:
                producers.note(encoded(0)[0], number)
            assert len(producers) <= 300
        kept = [producer_id for producer_id, _ in producers]
        assert kept[-1] == 999
        assert 0 in kept, "it goes on writing"
        assert producers.take_forgotten() == 1000 - len(kept)
        assert producers.take_forgotten() == 0


def test_a_flood_costs_no_more_time_than_it_has_producers() -> None:
    """Each of them would otherwise look through all those that went before it."""
    producers = remembered(MAX_PRODUCERS, 10**9)
    header, _ = encoded(0)
    for number in range(2000):
        producers.note(replace(header, producer_id=number), number)
    assert MAX_PRODUCERS * 0.98 <= len(producers) <= MAX_PRODUCERS


def test_a_segment_holds_more_than_the_snapshot_before_it() -> None:
    """Else small segments and many producers would have the disk write thousands of bytes for each that is produced."""
    queue = AppendQueue(LogConfig(segment_bytes=1024))
    header, data = encoded(7)
    few, many = remembered(3), remembered(1000)

    def batches_a_segment(producers: Producers) -> float:
        rolled = 0
        for _ in range(2000):
            queue.add(data, header, 0, producers)
            chunk = queue.chunks[-1]
            rolled += chunk.roll is not None and len(chunk.batches) == 1
        return 2000 / rolled

    assert batches_a_segment(few) * len(data) <= 1024
    assert 64_000 - 2 * len(data) <= batches_a_segment(many) * len(data) <= 80_000
