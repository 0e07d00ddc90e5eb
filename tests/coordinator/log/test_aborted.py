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
from protocol.record_batch import HEADER_BYTES, Attributes, encode_batch, read_header
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


@given(ENTRIES, st.sampled_from([1, 40]), st.integers(0, 100))
def test_what_is_taken_back_was_never_there(entries: list[tuple[int, int, int]], copies: int, offset: int) -> None:
    aborted, plain = noted(entries, copies)
    aborted.undo(offset)
    kept = [entry for entry in plain if entry.end_offset < offset]
    assert list(aborted) == kept
    assert aborted.lowest_first == min((entry.first_offset for entry in kept), default=NONE_ABORTED)
    end = (kept[-1].end_offset if kept else 0) + 1
    aborted.note(9, 0, end)
    assert aborted.overlapping(0, end) == [*kept, (9, 0, end)]


def test_only_transactional_batches_of_the_producer_before_its_marker_are_aborted() -> None:
    header = read_header(encode_batch([b"v"], timestamps_ms=[0], producer_id=7, producer_epoch=0, base_sequence=0))
    transactional = replace(header, attributes=header.attributes | Attributes.TRANSACTIONAL)
    batches = AbortedBatches(
        [AbortedTransaction(7, 10, 20), AbortedTransaction(7, 30, 35), AbortedTransaction(8, 0, 99)]
    )
    aborted = [offset for offset in range(50) if replace(transactional, base_offset=offset) in batches]
    assert aborted == [*range(10, 20), *range(30, 35)]
    assert replace(header, base_offset=12) not in batches
    assert replace(transactional, base_offset=12, producer_id=9) not in batches
    assert not AbortedBatches([])


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
    return read_header(batch).pack_at(offset, 0) + batch[HEADER_BYTES:]


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
