"""Compressed batches of hostile producers: checksums and all are right, what is inside is not what the header says."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache
from typing import Final

from protocol.columns import encode_columns
from protocol.compression import Compression, compressed
from protocol.errors import ErrorCode
from protocol.record_batch import HEADER_BYTES, encode_batch, read_header

MIB: Final = 1024 * 1024


def batch_of(stored: bytes, compression: Compression, **header: int) -> bytes:
    """A batch of two records with this body, and with whatever else its header is to say."""
    stored = stored.ljust(-(-len(stored) // 8) * 8, b"\0")
    honest = read_header(good(compression))
    length = HEADER_BYTES + len(stored)
    return replace(honest, length=length, body_crc=zlib.crc32(stored), **header).pack() + stored


def good(compression: Compression) -> bytes:
    """A batch of two records as a producer makes it."""
    return encode_batch([bytes(range(256)), b"w" * 99], [b"k", b"l"], timestamps_ms=[1, 2], compression=compression)


def bomb(compression: Compression, inflated_bytes: int, body_length: int) -> bytes:
    """Zeros that are small while they are packed."""
    return batch_of(compressed(bytes(inflated_bytes), compression), compression, body_length=body_length)


@cache
def hostile(compression: Compression) -> dict[str, tuple[bytes, ErrorCode, str]]:
    """By what is wrong with it: a batch, the error it deserves, and what the message says."""
    batch = good(compression)
    header, stored = read_header(batch), batch[HEADER_BYTES:]
    length = header.body_length
    _, falling = encode_columns([b"v" * 9, b"w"], [b"k", b"l"], [5, 5])
    falling = falling[:4] + b"\x7f\0\0\0" + falling[8:]
    corrupt = ErrorCode.CORRUPT_MESSAGE

    def with_body(body: bytes, **says: int) -> bytes:
        return batch_of(body, compression, **says)

    return {
        "a bomb that says its size": (
            bomb(compression, 17 * MIB, 17 * MIB), ErrorCode.MESSAGE_TOO_LARGE,
            f"holds {17 * MIB} bytes, at most {16 * MIB} are taken",
        ),
        "a bomb that lies": (bomb(compression, 64 * MIB, 1000), corrupt, "more than the 1000 bytes its header says"),
        "more records than there are": (
            with_body(stored, record_count=900, last_offset_delta=899), corrupt, "900 records need"
        ),
        "fewer records than there are": (with_body(stored, record_count=1, last_offset_delta=0), corrupt, "column"),
        "a length too long": (with_body(stored, body_length=length + 8), corrupt, f"its header says {length + 8}"),
        "a length too short": (with_body(stored, body_length=length - 8), corrupt, f"more than the {length - 8} bytes"),
        "a length of nothing": (with_body(stored, body_length=0), corrupt, "more than the 0 bytes"),
        "a stream cut off": (with_body(stored[:-16]), corrupt, ""),
        "a stream without its last word": (with_body(stored[:-8]), corrupt, ""),
        "a stream with something behind it": (with_body(stored + b"\1" * 8), corrupt, "no part of it"),
        "two streams": (with_body(stored + stored), corrupt, "no part of it"),
        "no stream at all": (with_body(b"not compressed " * 9), corrupt, "does not decompress"),
        "an empty body": (with_body(b""), corrupt, "cut off"),
        "columns that fall": (
            with_body(compressed(falling, compression), body_length=len(falling)), corrupt, "begin at 0 and never fall"
        ),
        "a checksum that is wrong": (with_body(stored)[:-8] + b"rubbish!", corrupt, "checksum"),
    }  # fmt: skip
