"""Compressed records of Kafka's batches are inflated, and not beyond a bound."""

from __future__ import annotations

import sys
import tracemalloc
import zlib

import cramjam
import pytest

from protocol.errors import ErrorCode
from protocol.kafka.batch import HEADER_BYTES, KafkaBatchError, KafkaLibraryError
from protocol.kafka.compression import inflated
from tests.protocol.kafka.written import CODECS, Record, every_codec_written, written

RECORDS = [Record(None, bytes([size]) * size) for size in range(100)]
MIB = 2**20


def packed(content: bytes, codec: str) -> bytes:
    if codec == "gzip":
        return zlib.compress(content, wbits=31)
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(content))
    return bytes(getattr(cramjam, codec).compress(content))


compressing = pytest.mark.parametrize("codec", CODECS[1:])


@every_codec_written
def test_records_come_out_as_they_were_before_compression(writer: str, codec: str) -> None:
    plain = written(RECORDS, writer)[HEADER_BYTES:]
    stream = written(RECORDS, writer, codec)[HEADER_BYTES:]
    assert inflated(codec, stream, len(plain)) == plain


@compressing
@pytest.mark.parametrize("size", [1, 1000, 64 * 1024, 64 * 1024 + 1, 3 * MIB])
def test_the_bound_is_exact(codec: str, size: int) -> None:
    stream = packed(bytes(size), codec)
    assert inflated(codec, stream, size) == bytes(size)
    with pytest.raises(KafkaBatchError, match=f"more than the {size - 1} bytes allowed") as refused:
        inflated(codec, stream, size - 1)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@compressing
def test_a_bomb_takes_no_more_memory_than_it_may(codec: str) -> None:
    stream = packed(bytes(64 * MIB), codec)
    tracemalloc.start()
    try:
        with pytest.raises(KafkaBatchError, match="hold more"):
            inflated(codec, stream, MIB)
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
    finally:
        tracemalloc.stop()


@compressing
def test_what_is_no_stream_or_is_cut_off_is_corrupt(codec: str) -> None:
    stream = packed(bytes(range(256)) * 200, codec)
    for damaged in (b"", b"\xff" * 40, stream[:-1], stream[: len(stream) // 2], stream + b"\xff", b"\x17" + stream):
        with pytest.raises(KafkaBatchError) as refused:
            inflated(codec, damaged, MIB)
        assert refused.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def test_snappy_is_read_in_blocks_as_java_writes_them() -> None:
    blocks = [b"a" * 1000, b"b" * 10, bytes(range(200))]
    stream = b"\x82SNAPPY\x00" + b"\0\0\0\1" * 2
    for block in blocks:
        raw = packed(block, "snappy")
        stream += len(raw).to_bytes(4, "big") + raw
    assert inflated("snappy", stream, 1210) == b"".join(blocks)
    with pytest.raises(KafkaBatchError, match="hold more than the 199 bytes"):  # what earlier blocks have left
        inflated("snappy", stream, 1209)
    for cut in (1, 60, len(stream) - 20):
        with pytest.raises(KafkaBatchError, match="leaves the"):
            inflated("snappy", stream[: len(stream) - cut], 5000)


def test_without_its_library_a_compression_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)  # as if it were not installed
    assert inflated("gzip", packed(b"still", "gzip"), 5) == b"still"
    with pytest.raises(KafkaLibraryError, match=r"lz4, which needs cramjam: pip install 'aiocohort\[kafka\]'"):
        inflated("lz4", b"", 5)
