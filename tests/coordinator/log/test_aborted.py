"""Aborted transactions of a segment: whatever is looked up, it is what a look through all of them finds."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage
from coordinator.log.aborted import (
    NONE_ABORTED,
    AbortedBatches,
    AbortedTransaction,
    AbortedTransactions,
    aborted_from,
)
from coordinator.log.checkpoints import ChecksumError, encode_integers
from coordinator.log.clean_end import CLEAN_END, read_clean_end, write_clean_end
from coordinator.log.index import SegmentEnd, SparseIndex, decode_index
from coordinator.log.scan import MisplacedBatchError, scan
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.record_batch import (
    HEADER_BYTES,
    Attributes,
    decode_columns,
    encode_batch,
    iter_batches,
    read_header,
    restamped,
)
from tests.coordinator.log.logs import DIRECTORY

ENTRIES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40), st.integers(1, 3)), max_size=30)
"""Producer id, how far before its marker a transaction begins, how far its marker is behind the last one."""


def noted(entries: list[tuple[int, int, int]], copies: int = 1) -> tuple[AbortedTransactions, list[AbortedTransaction]]:
    aborted, plain, end = AbortedTransactions(), list[AbortedTransaction](), 0
    for producer_id, length, step in entries * copies:
        end += step
        plain.append(AbortedTransaction(producer_id, max(0, end - length), end))
        aborted.note(*plain[-1])
    return aborted, plain


@given(ENTRIES, st.sampled_from([1, 1, 1, 40]), st.integers(0, 200), st.integers(0, 60))
def test_a_look_up_finds_what_a_look_through_all_finds(
    entries: list[tuple[int, int, int]], copies: int, start: int, span: int
) -> None:
    aborted, plain = noted(entries, copies)
    expected = [entry for entry in plain if entry.first_offset < start + span and entry.end_offset > start]
    assert aborted.overlapping(start, start + span) == expected
    assert aborted.lowest_first == min((entry.first_offset for entry in plain), default=NONE_ABORTED)
    again = aborted_from(aborted.integers())
    assert list(again) == list(aborted) == plain
    assert (again.overlapping(start, start + span), again.lowest_first) == (expected, aborted.lowest_first)
    assert (len(aborted), aborted.size) == (len(plain), 24 * len(plain))


def test_only_transactional_batches_of_the_producer_before_its_marker_are_aborted() -> None:
    aborted = AbortedTransactions()
    for entry in ((8, 0, 15), (7, 10, 20), (7, 30, 35), (9, 50, 60)):
        aborted.note(*entry)
    batches, transactional = AbortedBatches([aborted], 5, 50), int(Attributes.TRANSACTIONAL | Attributes.KEYS)
    assert [offset for offset in range(50) if batches.has(transactional, 7, offset)] == [*range(10, 20), *range(30, 35)]
    assert batches.has(transactional, 8, 12)
    assert not batches.has(int(Attributes.KEYS), 7, 12)
    assert not batches.has(transactional, 6, 12)
    assert batches
    assert not AbortedBatches([aborted], 40, 50)
    assert not AbortedBatches([], 0, 50)


@given(st.lists(st.tuples(st.sampled_from([-1, 0, 7, 8]), st.integers(1, 3)), min_size=1, max_size=12))
def test_an_empty_batch_covers_the_offsets_of_neighbouring_aborted_ones(batches: list[tuple[int, int]]) -> None:
    """Producer 7 is aborted, 8 is not; -1 has no producer, and 0 stands for end markers, which tell nothing either."""
    data, offset, kept, gaps, epochs = b"", 100, dict[int, bytes](), set[int](), dict[int, int]()
    for producer_id, count in batches:
        header = read_header(encoded := encode_batch([b"v"] * count, timestamps_ms=[1] * count))
        if not producer_id:
            header = replace(header, attributes=header.attributes | Attributes.CONTROL)
        elif producer_id > 0:
            attributes = header.attributes | Attributes.TRANSACTIONAL
            header = replace(header, producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=attributes)
        epoch = epochs[offset + count] = offset // 4
        batch = restamped(header.pack(), offset, epoch) + encoded[HEADER_BYTES:]
        if producer_id in (0, 7):
            gaps |= set(range(offset, offset + count))
        else:
            kept[offset] = batch
        data, offset = data + batch, offset + count
    aborted = AbortedTransactions()
    aborted.note(7, 100, offset)
    found, all_aborted_epoch = AbortedBatches([aborted], 100, offset).without(data, offset)
    assert all_aborted_epoch == (None if kept else epochs[offset])
    expected, covered, was_empty = 100, set[int](), False
    for position, header in iter_batches(found):
        assert header.base_offset == expected
        expected = header.next_offset
        assert header.leader_epoch == epochs[expected], (
            "who has read so far asks on with the epoch of the record before"
        )
        whole = found[position : position + header.length]
        decode_columns(found, position, header).check()
        if header.record_count:
            assert kept.pop(header.base_offset) == whole
        else:
            assert not was_empty, "neighbours are one"
            covered |= set(range(header.base_offset, expected))
        was_empty = not header.record_count
    assert (expected, kept, covered) == (offset, {}, gaps)


def test_aborted_transactions_lie_in_the_index_file_and_older_ones_have_none() -> None:
    index = SparseIndex(100)
    for number in range(5):
        index.add(1000 + number, 100 * number, 5)
    index.aborted.note(7, 990, 1001)
    index.aborted.note(8, 1000, 1004)
    end, again = decode_index(index.encode(1000, 1005, 500, 77), 100)
    assert (end.base_offset, end.next_offset, end.end_position, end.max_timestamp, end.last_ms) == (
        1000,
        1005,
        500,
        5,
        77,
    )
    assert list(again.aborted) == list(index.aborted) == [(7, 990, 1001), (8, 1000, 1004)]
    assert (len(again), again.last_entry(), again.size) == (len(index), index.last_entry(), index.size)
    for magic, head in ((b"CHX2", [1000, 1005, 500, 5, 77]), (b"CHX1", [1000, 1005, 500, 5])):
        older, entries = decode_index(encode_integers(magic, [*head, 1001, 100, 5]), 100)
        assert (older.next_offset, older.last_ms, list(entries.aborted)) == (1005, head[4] if len(head) > 4 else -1, [])
        assert entries.last_entry() == (1001, 100)
    for count in (-1, 2, 2**40):
        with pytest.raises(ChecksumError):
            decode_index(encode_integers(b"CHX3", array("q", [1000, 1005, 500, 5, 77, count, 1, 2, 3])), 100)


def placed(batch: bytes, offset: int) -> bytes:
    return restamped(batch, offset, 0) + batch[HEADER_BYTES:]


def test_a_scan_makes_the_entries_anew_from_the_markers(tmp_path: Path) -> None:
    ends = [TransactionEnd(0, 7, 0, False, 3), TransactionEnd(0, 8, 1, True, 4), TransactionEnd(0, 9, 2, False, 11)]
    control = b"".join(encode_control_batch(ends, 50).pieces())
    data = placed(encode_batch([b"v"] * 10, timestamps_ms=[1] * 10), 10) + placed(control, 20)
    (tmp_path / "log").write_bytes(data + placed(encode_batch([b"v"], timestamps_ms=[1]), 23))
    file = FileStorage(tmp_path).open("log")
    try:
        found = scan(file, 10, file.size(), 4096)
    finally:
        file.close()
    assert found.hole is None
    assert list(found.index.aborted) == [(7, 3, 20), (9, 11, 22)]


def test_a_control_batch_without_end_markers_is_damage_and_no_torn_tail(tmp_path: Path) -> None:
    batch = encode_batch([b"no end marker"], [b"?"], timestamps_ms=[1])
    header = read_header(batch)
    forged = replace(header, attributes=header.attributes | Attributes.CONTROL).pack() + batch[HEADER_BYTES:]
    (tmp_path / "log").write_bytes(forged)
    file = FileStorage(tmp_path).open("log")
    try:
        with pytest.raises(MisplacedBatchError, match="position 0: the control batch at offset 0"):
            scan(file, 0, file.size(), 4096)
    finally:
        file.close()


def test_a_clean_end_has_them_and_one_of_the_former_format_none(tmp_path: Path) -> None:
    storage, index = FileStorage(tmp_path), SparseIndex(100)
    storage.make_directory(DIRECTORY)
    index.add(1000, 0, 5)
    former = array("q", [1000, 1005, 500, 5, 77])
    index.aborted.note(7, 990, 1001)
    write_clean_end(storage, DIRECTORY, SegmentEnd(1000, 1005, 500, 5, 77), index, [])
    found = read_clean_end(storage, DIRECTORY, 100)
    assert found is not None
    assert list(found.index.aborted) == [(7, 990, 1001)]
    (tmp_path / DIRECTORY / CLEAN_END).write_bytes(encode_integers(b"CHN1", array("q", [len(former)]) + former))
    older = read_clean_end(storage, DIRECTORY, 100)
    assert older is not None
    assert (older.segment, list(older.index.aborted)) == (found.segment, [])
