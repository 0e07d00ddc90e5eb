"""Headers of Kafka's batches: read, checked, placed."""

from __future__ import annotations

import sys

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from protocol.errors import ErrorCode
from protocol.kafka.batch import (
    HEADER_BYTES,
    KafkaAttributes,
    KafkaBatchError,
    KafkaLibraryError,
    check_crc,
    crc32c,
    only_batch,
    placed,
    read_batch_header,
)
from tests.protocol.kafka.written import CODECS, Record, every_codec_written, written

RECORDS = [Record(b"k", b"v" * size, 1_700_000_000_000 + 5 * size - 20) for size in range(30)]


@every_codec_written
def test_a_header_says_what_its_writer_meant(writer: str, codec: str) -> None:
    batch = written(RECORDS, writer, codec, (2**40, 3, 2**31 - 1), transactional=True)
    header = only_batch(batch)
    assert header.codec == codec
    assert header.size == len(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, 2**31 - 1)
    assert (header.record_count, header.last_offset_delta) == (30, 29)
    assert (header.base_timestamp, header.max_timestamp) == (RECORDS[0].timestamp, RECORDS[-1].timestamp)
    assert header.attributes == KafkaAttributes.TRANSACTIONAL | CODECS.index(codec)
    assert header.pack() == batch[:HEADER_BYTES]
    assert header.with_records(batch[HEADER_BYTES:]) == batch


def test_a_place_in_a_log_takes_twelve_bytes_and_no_checksum() -> None:
    batch = written(RECORDS)
    moved = b"".join(placed(batch, 2**50 + 7, 12))
    assert moved[:16] != batch[:16]
    assert moved[8:12] == batch[8:12]
    assert moved[16:] == batch[16:]
    header = only_batch(moved)
    assert (header.base_offset, header.leader_epoch) == (2**50 + 7, 12)
    theirs = DefaultRecordBatch(moved)
    assert theirs.validate_crc()
    assert [record.offset for record in theirs] == list(range(2**50 + 7, 2**50 + 37))


def test_a_header_in_the_middle_of_others_is_read() -> None:
    batch = written(RECORDS)
    assert read_batch_header(b"x" * 9 + batch + batch, 9) == only_batch(batch)
    assert read_batch_header(memoryview(b"x" * 9 + batch), 9) == only_batch(batch)


def _with(batch: bytes, at: int, field: bytes) -> bytes:
    return batch[:at] + field + batch[at + len(field) :]


BATCH = written(RECORDS)
LENGTH = len(BATCH) - 12


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE, "0 are left"),
        (BATCH[:16], ErrorCode.CORRUPT_MESSAGE, "16 are left"),
        (BATCH[:60], ErrorCode.CORRUPT_MESSAGE, "60 are left"),
        (BATCH[:-1], ErrorCode.CORRUPT_MESSAGE, f"{len(BATCH)} bytes cannot be in {len(BATCH) - 1}"),
        (BATCH + b"\0", ErrorCode.INVALID_RECORD, "1 bytes follow"),
        (BATCH + BATCH, ErrorCode.INVALID_RECORD, f"{len(BATCH)} bytes follow"),
        (_with(BATCH, 16, b"\0"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "format 0"),
        (_with(BATCH, 16, b"\1"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "format 1"),
        (_with(BATCH, 16, b"\1")[:26], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "format 1"),
        (_with(BATCH, 16, b"\3"), ErrorCode.CORRUPT_MESSAGE, "format 3"),
        (_with(BATCH, 8, b"\xff\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE, "says it has 11 bytes"),
        (_with(BATCH, 8, (48).to_bytes(4, "big")), ErrorCode.CORRUPT_MESSAGE, "says it has 60 bytes"),
        (_with(BATCH, 8, b"\x7f\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE, "cannot be in"),
        (_with(BATCH, 17, b"\0\0\0\0"), ErrorCode.CORRUPT_MESSAGE, "its header says 0x00000000"),
        (_with(BATCH, len(BATCH) - 3, b"\1"), ErrorCode.CORRUPT_MESSAGE, "checksum of the batch"),
        (_with(BATCH, 57, b"\xff\xff\xff\xff"), ErrorCode.INVALID_RECORD, "-1 records"),
        (_with(BATCH, 57, (31).to_bytes(4, "big")), ErrorCode.INVALID_RECORD, "31 records cannot span 30"),
        (_with(BATCH, 23, b"\xff\xff\xff\xff"), ErrorCode.INVALID_RECORD, "cannot span 0 offsets"),
    ],
)
def test_what_is_no_batch_is_refused_with_the_code_that_clients_know(data: bytes, code: ErrorCode, says: str) -> None:
    with pytest.raises(KafkaBatchError, match=says) as refused:
        only_batch(data)
    assert refused.value.code == code


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_compression_that_kafka_does_not_have_is_named(number: int) -> None:
    header = only_batch(BATCH)._replace(attributes=number)
    with pytest.raises(KafkaBatchError, match=f"compression {number} is unknown; known are 0 none, 1 gzip") as refused:
        _ = header.codec
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4, has it of other bytes; this one is the field's


def test_without_its_library_a_checksum_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)  # as if it were not installed
    header = read_batch_header(BATCH)  # needs none
    with pytest.raises(KafkaLibraryError, match=r"google-crc32c: pip install 'aiocohort\[kafka\]'"):
        check_crc(BATCH, header)
