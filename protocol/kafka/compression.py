"""How the records of a Kafka batch are inflated, within bounds.

gzip is the standard library's; lz4 (frames), snappy (as Java frames it, and raw, as librdkafka writes it) and zstd are
``cramjam``'s, of the extra ``kafka``. Nothing is inflated beyond the bound, whatever the stream says it holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

from protocol.errors import ErrorCode
from protocol.kafka.batch import INSTALL, KafkaBatchError, KafkaLibraryError

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
"""The magic, and two versions of four bytes."""
_FIRST_GUESS: Final = 8
"""How many times its size a stream is expected to hold; the room is made larger as long as that is not enough."""
_LEAST_ROOM: Final = 64 * 1024
_GROWTH: Final = 8


def inflated(codec: str, stream: bytes, limit: int) -> bytes:
    """What ``stream`` holds, at most ``limit`` bytes; ``codec`` is a name of ``protocol.kafka.batch.CODECS``.

    Raises ``KafkaBatchError``: MESSAGE_TOO_LARGE when it holds more, CORRUPT_MESSAGE when it is no such stream or is cut
    off; ``KafkaLibraryError`` for all but gzip where cramjam is not installed.
    """
    if codec == "none":
        return stream
    if codec == "gzip":
        return _gunzipped(stream, limit)
    cramjam = _library(codec)
    if codec == "snappy":
        return _unsnapped(stream, limit, cramjam.snappy)
    return _decompressed(codec, getattr(cramjam, codec).decompress_into, stream, limit)


def _library(codec: str) -> Any:
    try:
        import cramjam
    except ModuleNotFoundError as error:
        raise KafkaLibraryError(
            f"a batch of a Kafka client is compressed with {codec}, which needs cramjam: {INSTALL}", name="cramjam"
        ) from error
    return cramjam


def _too_large(codec: str, limit: int) -> KafkaBatchError:
    return KafkaBatchError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the records, compressed with {codec}, hold more than the {limit} bytes allowed"
    )


def _broken(codec: str, why: object) -> KafkaBatchError:
    return KafkaBatchError(ErrorCode.CORRUPT_MESSAGE, f"the records do not decompress with {codec}: {why}")


def _gunzipped(stream: bytes, limit: int) -> bytes:
    inflating = zlib.decompressobj(wbits=31)
    try:
        content = inflating.decompress(stream, limit + 1)
    except zlib.error as error:
        raise _broken("gzip", error) from error
    if len(content) > limit:
        raise _too_large("gzip", limit)
    if not inflating.eof:
        raise _broken("gzip", f"the stream is cut off after {len(content)} bytes")
    if inflating.unused_data:
        raise _broken("gzip", f"{len(inflating.unused_data)} bytes follow the stream")
    return content


def _decompressed(codec: str, decompress_into: Callable[[bytes, bytearray], int], stream: bytes, limit: int) -> bytes:
    """The library writes into room that is given, and fails where that ends: so a bomb stops there."""
    room = min(max(len(stream) * _FIRST_GUESS, _LEAST_ROOM), limit)
    while True:
        output = bytearray(room + 1)  # one more than allowed tells what is too large from what just fits
        try:
            length = decompress_into(stream, output)
        except Exception as error:  # cramjam's own class of errors does not say which of them it is
            if "whole buffer" not in str(error):
                raise _broken(codec, error) from error
            if room >= limit:
                raise _too_large(codec, limit) from error
            room = min(room * _GROWTH, limit)
            continue
        if length > limit:
            raise _too_large(codec, limit)
        return bytes(memoryview(output)[:length])


def _unsnapped(stream: bytes, limit: int, snappy: Any) -> bytes:
    if not stream.startswith(_XERIAL):
        return _raw_block(stream, limit, snappy)
    position, blocks, left = _XERIAL_HEADER_BYTES, list[bytes](), limit
    while position < len(stream):
        end = position + 4 + int.from_bytes(stream[position : position + 4], "big")
        if position + 4 > len(stream) or end > len(stream):
            raise _broken("snappy", f"a block at {position} leaves the {len(stream)} bytes of the stream")
        block = _raw_block(stream[position + 4 : end], left, snappy)
        blocks.append(block)
        left -= len(block)
        position = end
    return b"".join(blocks)


def _raw_block(block: bytes, limit: int, snappy: Any) -> bytes:
    try:
        holds = snappy.decompress_raw_len(block)
        if holds <= limit:
            return bytes(snappy.decompress_raw(block))
    except Exception as error:  # as above
        raise _broken("snappy", error) from error
    raise _too_large("snappy", limit)
