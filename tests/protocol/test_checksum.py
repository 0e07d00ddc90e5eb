"""The checksum of batches is zlib's crc32, whichever library computes it."""

from __future__ import annotations

import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import crc32
from protocol.record_batch import decode_columns, encode_batch, read_header

WITHOUT_ISAL = """
import sys, zlib
sys.modules["isal"] = sys.modules["isal.isal_zlib"] = None
from protocol.checksum import crc32
from protocol.record_batch import decode_columns, encode_batch, read_header
assert crc32 is zlib.crc32
batch = bytes.fromhex(sys.stdin.read())
assert decode_columns(batch, 0, read_header(batch)).values() == [b"tea"] * 5000
print(encode_batch([b"milk"] * 5000, timestamps_ms=[7] * 5000).hex())
"""


def test_it_is_that_of_isa_l_where_that_is_installed() -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    assert crc32 is isal_zlib.crc32


@given(st.lists(st.binary(max_size=2000), max_size=5), st.integers(0, 63))
def test_it_is_that_of_zlib_in_one_go_and_piece_by_piece(pieces: list[bytes], skipped: int) -> None:
    value = 0
    for piece in pieces:
        value = crc32(piece, value)
    whole = bytearray(b"".join(pieces))
    assert value == crc32(whole) == zlib.crc32(whole)
    part = memoryview(whole)[skipped:]
    assert crc32(part) == zlib.crc32(part)
    assert crc32(part, 2**32 - 1) == zlib.crc32(part, 2**32 - 1)


def test_a_process_with_isa_l_and_one_without_read_each_others_batches() -> None:
    batch = encode_batch([b"tea"] * 5000, timestamps_ms=[7] * 5000)
    command = [sys.executable, "-c", WITHOUT_ISAL]
    done = subprocess.run(command, input=batch.hex(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    other = bytes.fromhex(done.stdout)
    assert decode_columns(other, 0, read_header(other)).values() == [b"milk"] * 5000
