"""Reads from a segment that is damaged in places: everything else is read, and who asks for those is told where to go on."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage
from coordinator.log.reader import read_batches
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, encode_batch, iter_batches, restamped

RECORDS = 3
BATCHES = 6


def segment(batches: int, damaged: dict[int, int]) -> tuple[bytes, list[int]]:
    """Batches of ``RECORDS`` each, some with one byte of their headers turned around, and their positions."""
    data, positions = b"", []
    for number in range(batches):
        stored = encode_batch([b"%d" % number * 40] * RECORDS, timestamps_ms=[number] * RECORDS)
        batch = bytearray(restamped(stored, number * RECORDS, 0) + stored[HEADER_BYTES:])
        if number in damaged:
            batch[damaged[number]] ^= 0xFF
        positions.append(len(data))
        data += batch
    return data, positions


@given(
    st.dictionaries(st.integers(0, BATCHES - 1), st.integers(0, HEADER_BYTES - 1), max_size=3),
    st.integers(0, BATCHES - 1),
    st.sampled_from([0, 300, 700, 100_000]),
)
def test_what_is_whole_is_read_and_what_is_not_is_told_with_a_way_past_it(
    damaged: dict[int, int], entry: int, max_bytes: int
) -> None:
    data, positions = segment(BATCHES, damaged)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "log").write_bytes(data)
        file = FileStorage(directory).open("log")
        try:
            for offset in range(entry * RECORDS, BATCHES * RECORDS):
                batch = offset // RECORDS
                whole = [number for number in range(batch, BATCHES) if number not in damaged]
                arguments = (file, positions[entry], len(data), offset, max_bytes, BATCHES * RECORDS)
                if batch in damaged:
                    with pytest.raises(ProtocolError) as told:
                        read_batches(*arguments)
                    go_on = re.findall(r"whole batches go on at offset (\d+)", str(told.value))
                    assert go_on == ([str(whole[0] * RECORDS)] if whole else [])
                    continue
                found = read_batches(*arguments)
                read = [header.base_offset // RECORDS for _, header in iter_batches(found.data)]
                assert read == list(range(batch, batch + len(read)))
                assert len(read) >= 1
                assert found.next_offset == (batch + len(read)) * RECORDS
                assert len(found.data) <= max_bytes or len(read) == 1
                if max_bytes == 100_000:
                    assert read[-1] + 1 in {*damaged, BATCHES}, "as far as it is whole"
        finally:
            file.close()


def test_a_file_that_is_cut_while_it_is_read_ends_the_look_for_what_is_whole() -> None:
    data, _ = segment(2, {1: 20})
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "log").write_bytes(data)
        file = FileStorage(directory).open("log")
        try:
            for offset in (RECORDS, 2 * RECORDS):
                with pytest.raises(ProtocolError, match="no whole batch follows in this segment"):
                    read_batches(file, 0, 2 * len(data), offset, 100_000, 10 * RECORDS)
        finally:
            file.close()


def test_a_record_that_looks_like_a_batch_is_none() -> None:
    """What comes behind a damaged header is taken for a batch only if its offset may come there."""
    inner = bytes(segment(1, {})[0])
    outer = encode_batch([b"x" * 64, inner * 3], timestamps_ms=[0, 0])
    data = bytearray(restamped(outer, 500, 0) + outer[HEADER_BYTES:])
    data[20] ^= 0xFF
    before = encode_batch([b"y"] * 500, timestamps_ms=[0] * 500)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "log").write_bytes(before + bytes(data))
        file = FileStorage(directory).open("log")
        try:
            with pytest.raises(ProtocolError, match="no whole batch follows in this segment"):
                read_batches(file, 0, len(before) + len(data), 500, 100_000, 502)
        finally:
            file.close()
