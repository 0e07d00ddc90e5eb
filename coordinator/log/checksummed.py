"""Small files of integers that prove they are whole: the index, the checkpoint, the leader epochs, the cleaner's point.

Four bytes of name, the crc32 of what follows, then int64 values, all little-endian. The writer replaces such a file
atomically, so a checksum that does not match means that the disk lost something.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable
from typing import Final

_HEAD_BYTES: Final = 8


class ChecksumError(Exception):
    """The content is not what was written."""


def encode_integers(magic: bytes, values: Iterable[int]) -> bytes:
    """The bytes of a file named by four bytes of ``magic`` that holds ``values``."""
    column = array("q", values)
    if sys.byteorder == "big":
        column.byteswap()
    body = column.tobytes()
    return magic + zlib.crc32(body, zlib.crc32(magic)).to_bytes(4, "little") + body


def decode_integers(magic: bytes, data: bytes) -> array[int]:
    """The integers in ``data``. Raises ``ChecksumError`` when it is another file, cut off or damaged."""
    if data[:4] != magic:
        raise ChecksumError(f"it begins with {data[:4]!r} instead of {magic!r}")
    body = data[_HEAD_BYTES:]
    if len(body) % 8 or int.from_bytes(data[4:_HEAD_BYTES], "little") != zlib.crc32(body, zlib.crc32(magic)):
        raise ChecksumError("its checksum does not match")
    column = array("q")
    column.frombytes(body)
    if sys.byteorder == "big":
        column.byteswap()
    return column
