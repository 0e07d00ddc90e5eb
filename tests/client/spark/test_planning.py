"""How much a micro-batch reads, and in how many tasks."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from client.spark.planning import Range, limited, limited_by_bytes, split
from protocol.subscription import TopicPartition

spans = st.dictionaries(
    st.builds(TopicPartition, st.just("t"), st.integers(0, 20)),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda span: (span[0], span[0] + span[1])),
    min_size=1,
)


@settings(deadline=None)
@given(spans, st.integers(1, 5000))
def test_a_limit_takes_about_as_much_and_starves_no_partition(
    given_spans: dict[TopicPartition, tuple[int, int]], most: int
) -> None:
    ends = limited(given_spans, most)
    taken = {partition: ends[partition] - start for partition, (start, _) in given_spans.items()}
    assert all(0 <= taken[partition] <= end - start for partition, (start, end) in given_spans.items())
    assert all(taken[partition] >= 1 for partition, (start, end) in given_spans.items() if end > start)
    assert sum(taken.values()) <= most + len(given_spans)
    if sum(end - start for start, end in given_spans.values()) <= most:
        assert ends == {partition: end for partition, (_, end) in given_spans.items()}


def test_partitions_give_in_proportion_to_what_they_have() -> None:
    known = {TopicPartition("t", 0): (0, 900), TopicPartition("t", 1): (50, 150), TopicPartition("t", 2): (7, 7)}
    assert limited(known, 100) == {TopicPartition("t", 0): 90, TopicPartition("t", 1): 60, TopicPartition("t", 2): 7}


def test_bytes_are_limited_by_what_a_record_takes() -> None:
    known = {TopicPartition("t", 0): (0, 1000), TopicPartition("t", 1): (0, 1000)}
    sizes = {TopicPartition("t", 0): 100.0, TopicPartition("t", 1): 300.0}
    ends = limited_by_bytes(known, sizes, 40_000)
    assert sum(end * sizes[partition] for partition, end in ends.items()) == 40_000
    assert limited_by_bytes(known, sizes, 10**9) == dict.fromkeys(known, 1000)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 300)), max_size=10), st.integers(1, 60))
def test_ranges_are_cut_into_as_many_as_wanted_and_lose_nothing(sizes: list[tuple[int, int]], least: int) -> None:
    ranges = [Range("t", number, start, start + size) for number, (start, size) in enumerate(sizes)]
    parts = split(ranges, least)
    covered = sorted((part.partition, offset) for part in parts for offset in range(part.start, part.end))
    assert covered == sorted((one.partition, offset) for one in ranges for offset in range(one.start, one.end))
    assume(sum(one.size for one in ranges) >= least)
    assert len(parts) >= least
    assert all(part.size > 0 for part in parts)


def test_a_large_partition_is_cut_into_more_parts_than_a_small_one() -> None:
    parts = split([Range("t", 0, 0, 900), Range("t", 1, 0, 100)], 10)
    assert [part.size for part in parts if part.partition == 0] == [100] * 9
    assert [part.size for part in parts if part.partition == 1] == [100]


def test_without_a_wish_a_partition_is_a_task_and_an_empty_one_none() -> None:
    ranges = [Range("t", 0, 0, 900), Range("t", 1, 5, 5)]
    assert split(ranges, None) == ranges[:1]


def test_parts_of_a_range_begin_in_the_epoch_in_which_all_of_it_was_there() -> None:
    """Only the first one goes on from a position that was read before."""
    parts = split([Range("t", 0, 0, 900, "id", 2, 5)], 3)
    assert [(part.start, part.start_epoch, part.end_epoch) for part in parts] == [(0, 2, 5), (300, 5, 5), (600, 5, 5)]
