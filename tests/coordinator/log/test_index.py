"""The sparse index: whatever it leaves out, it never leads behind what is sought."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.log.checkpoints import ChecksumError, decode_integers, encode_integers
from coordinator.log.index import SparseIndex, decode_index
from coordinator.log.segment import base_offset_of, file_name, swap_name, swap_range_of

BATCHES = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 300), st.integers(-1, 50)), max_size=60
)  # offsets covered, bytes, largest timestamp


def build(
    batches: list[tuple[int, int, int]], interval: int
) -> tuple[SparseIndex, list[tuple[int, int, int]], int, int]:
    """The index, each batch's (base offset, position, timestamp), the next offset and the size."""
    index, placed, offset, position = SparseIndex(interval), [], 1000, 0
    for span, length, timestamp in batches:
        index.add(offset, position, timestamp)
        placed.append((offset, position, timestamp))
        offset, position = offset + span, position + length
    return index, placed, offset, position


@given(BATCHES, st.integers(1, 500))
def test_a_look_up_by_offset_leads_to_a_batch_at_or_before_it_less_than_an_interval_and_a_batch_away(
    batches: list[tuple[int, int, int]], interval: int
) -> None:
    index, placed, next_offset, _ = build(batches, interval)
    positions = [position for _, position, _ in placed]
    for offset in range(1000, next_offset):
        found = index.position_for_offset(offset)
        right = placed[bisect_right([base for base, _, _ in placed], offset) - 1][1]
        assert found in positions
        assert right - interval - 300 < found <= right


@given(BATCHES, st.integers(1, 500), st.integers(-1, 51))
def test_a_look_up_by_time_never_passes_the_first_batch_that_has_it(
    batches: list[tuple[int, int, int]], interval: int, timestamp_ms: int
) -> None:
    index, placed, _, _ = build(batches, interval)
    having = [position for _, position, timestamp in placed if timestamp >= timestamp_ms]
    if having:
        assert index.position_for_timestamp(timestamp_ms) <= having[0]
    assert index.max_timestamp == max((timestamp for _, _, timestamp in placed), default=-1)


@given(BATCHES, st.integers(1, 500))
def test_an_index_is_read_back_as_it_was_written(batches: list[tuple[int, int, int]], interval: int) -> None:
    index, _, next_offset, size = build(batches, interval)
    end, again = decode_index(index.encode(1000, next_offset, size), interval)
    assert (end.base_offset, end.next_offset, end.end_position) == (1000, next_offset, size)
    assert end.max_timestamp == again.max_timestamp == index.max_timestamp
    assert (len(again), again.last_entry()) == (len(index), index.last_entry())
    assert [again.position_for_offset(offset) for offset in range(1000, next_offset)] == [
        index.position_for_offset(offset) for offset in range(1000, next_offset)
    ]


def test_no_cut_and_no_flipped_bit_of_an_index_goes_unnoticed() -> None:
    data = build([(1, 100, 5)] * 5, 100)[0].encode(1000, 1005, 500)
    for length in range(len(data)):
        with pytest.raises(ChecksumError):
            decode_index(data[:length], 100)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            decode_index(bytes(damaged), 100)


@given(st.binary(max_size=64))
def test_no_other_bytes_are_taken_for_a_checksummed_file(data: bytes) -> None:
    with pytest.raises(ChecksumError):
        decode_integers(b"TEST", data)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_a_checksummed_file_holds_any_integers_of_64_bits(values: list[int]) -> None:
    assert list(decode_integers(b"TEST", encode_integers(b"TEST", values))) == values


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_the_names_of_segments_sort_as_their_offsets_do(one: int, other: int) -> None:
    assert (file_name(one, ".log") < file_name(other, ".log")) == (one < other)
    assert base_offset_of(file_name(one, ".log"), ".log") == one
    assert swap_range_of(swap_name(one, other)) == (one, other)


@pytest.mark.parametrize("name", ["1.log", "0" * 20, f"{'0' * 20}.index", f"{'0' * 20}.log.tmp", "checkpoint"])
def test_other_names_are_no_segments(name: str) -> None:
    assert base_offset_of(name, ".log") is None
    assert swap_range_of(name) is None
