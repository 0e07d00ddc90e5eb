"""How the body of a batch is compressed and, within bounds, decompressed."""

from __future__ import annotations

import zlib
from typing import IO, Final, Literal, cast

from protocol.errors import ProtocolError

Compression = Literal["gzip", "zstd"]
"""How a body is compressed; ``None`` elsewhere means not at all."""

_PADDED_TO: Final = 8
"""A batch is a multiple of so many bytes long, so its body is padded by fewer."""
_ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""What a decompressor may have to keep of the stream behind it: as much as RFC 8878 asks all to accept."""


def compressed(body: bytes, compression: Compression | None) -> bytes:
    """A body as it is stored: compressed if need be, padded to a multiple of eight.

    Raises ``ModuleNotFoundError`` when zstd is asked for and not installed, ``ValueError`` for a name that is none.
    """
    if compression is None:
        stored = body
    elif compression == "gzip":
        stored = zlib.compress(body, level=6, wbits=31)
    elif compression == "zstd":
        import zstandard  # an extra: only those who ask for it need it

        stored = bytes(zstandard.ZstdCompressor().compress(body))
    else:
        raise ValueError(f"compression {compression!r} is unknown: use None, 'gzip' or 'zstd'")
    return stored.ljust(-(-len(stored) // _PADDED_TO) * _PADDED_TO, b"\0")


def decompressed(body: memoryview, compression: Compression, length: int) -> bytes:
    """Decompresses a body of at most ``length`` bytes; a bomb stops there. A batch has a record, so no body is empty.

    Raises ``ProtocolError`` when it is no such stream, holds more, is cut off, or is followed by more than the padding;
    ``ModuleNotFoundError`` for zstd where it is not installed. Whether ``length`` bytes came out is the caller's to see.
    """
    return _gunzip(body, length) if compression == "gzip" else _unzstd(body, length)


def _gunzip(body: memoryview, length: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(body, length + 1)  # one more than allowed: 0 would mean no limit
    except zlib.error as error:
        raise ProtocolError(f"the gzip body does not decompress: {error}") from error
    if len(content) > length:
        raise ProtocolError(f"the gzip body holds more than the {length} bytes its header says")
    if not stream.eof:
        raise ProtocolError(f"the gzip body is cut off: {len(content)} of {length} bytes, and no end")
    if len(stream.unused_data) >= _PADDED_TO:
        raise ProtocolError(f"the gzip body is followed by {len(stream.unused_data)} bytes that are no part of it")
    return content


def _unzstd(body: memoryview, length: int) -> bytes:
    import zstandard

    source = _TwoPieces(body)
    window = max(length, _ZSTD_WINDOW_BYTES)
    try:
        with zstandard.ZstdDecompressor(max_window_size=window).stream_reader(
            cast("IO[bytes]", source), max(len(body), 1)
        ) as stream:
            content = bytes(stream.read(length + 1))
    except zstandard.ZstdError as error:
        raise ProtocolError(f"the zstd body does not decompress into {length} bytes: {error}") from error
    if len(content) > length:
        raise ProtocolError(f"the zstd body holds more than the {length} bytes its header says")
    if source.reads > 2 or len(body) <= _PADDED_TO:
        raise ProtocolError(f"the zstd body is cut off: {len(content)} of {length} bytes, and no end")
    if source.reads < 2:
        raise ProtocolError("the zstd body is followed by bytes that are no part of it")
    return content


class _TwoPieces:
    """A body in two pieces, the second as long as a padding that would be too long.

    The decompressor asks for a piece only while its stream is not complete, and does not tell where in a piece it ended: a
    stream that is complete before the second has something else behind it, one that asks for a third is cut off.
    """

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self.reads = 0

    def read(self, size: int) -> bytes:
        """The next piece, empty behind the second; ``size`` is never smaller than the body."""
        self.reads += 1
        if self.reads > 2:
            return b""
        return bytes(self._body[:-_PADDED_TO] if self.reads == 1 else self._body[-_PADDED_TO:])
