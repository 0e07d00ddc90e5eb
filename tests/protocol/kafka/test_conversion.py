"""Batches of a log as Kafka's clients and older clients of ours get them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.compression import Compression
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaAttributes, KafkaBatchError, only_batch, read_batch_header
from protocol.kafka.conversion import for_kafka, has_kafka_batches, in_columns, kafka_batches
from protocol.record_batch import (
    HEADER_BYTES,
    Attributes,
    BatchHeader,
    batch_around,
    decode_columns,
    empty_batch,
    encode_batch,
    iter_batches,
    read_header,
)
from tests.protocol.kafka.written import CODECS, RECORDS, Record, every_codec, written

THREE = [Record(b"k", b"v", 50), Record(None, b"w" * 80, 40), Record(b"l", None, 60, (("name", b"value"), ("n", None)))]


def stored(batch: bytes, base_offset: int, leader_epoch: int = 7, **changes: int) -> bytes:
    """A batch with its place in a log, and with ``changes`` to its header."""
    header = replace(read_header(batch), base_offset=base_offset, leader_epoch=leader_epoch, **changes)
    return header.pack() + batch[HEADER_BYTES:]


def from_kafka(batch: bytes, base_offset: int = 0, leader_epoch: int = 7, **changes: int) -> bytes:
    """The same of a batch that a Kafka client wrote, with the times of its header."""
    inner = only_batch(batch)
    around, _ = batch_around(batch, inner, (inner.base_timestamp, inner.max_timestamp))
    return stored(around, base_offset, leader_epoch, **changes)


def ours(
    records: Sequence[Record], compression: Compression | None = None, offsets: Sequence[int] | None = None
) -> bytes:
    keys, values, timestamps, headers = zip(*records, strict=True)
    return encode_batch(
        values, keys, timestamps_ms=timestamps, headers=headers, offsets=offsets, compression=compression
    )


def split(data: bytes) -> list[bytes]:
    """The batches in what a Kafka client gets, each with the checksum right."""
    batches: list[bytes] = []
    while data:
        size = read_batch_header(data).size
        batches.append(data[:size])
        only_batch(batches[-1])
        data = data[size:]
    return batches


def read(batch: bytes) -> list[tuple[int, Record]]:
    """Offset and record of each in a batch, as aiokafka reads it."""
    theirs: Any = DefaultRecordBatch(bytearray(batch))
    assert theirs.validate_crc()
    return [
        (record.offset, Record(record.key, record.value, record.timestamp, tuple(record.headers))) for record in theirs
    ]


def read_ours(data: bytes) -> list[tuple[int, Record]]:
    """The same of batches of ours."""
    found: list[tuple[int, Record]] = []
    for position, header in iter_batches(data):
        columns = decode_columns(data, position, header)
        times = columns.timestamps_ms().tolist()
        if header.attributes & Attributes.LOG_APPEND_TIME:
            times = [header.max_timestamp] * columns.count
        rows = zip(columns.keys(), columns.values(), times, columns.headers(), strict=True)
        offsets = [header.base_offset + delta for delta in columns.offset_deltas()]
        found += [(offset, Record(*row)) for offset, row in zip(offsets, rows, strict=True)]
    return found


def numbered(records: Sequence[Record], base_offset: int) -> list[tuple[int, Record]]:
    return list(enumerate(records, base_offset))


@every_codec
@given(RECORDS)
@settings(max_examples=30)
def test_what_a_kafka_client_wrote_is_told_to_both_kinds_of_readers(codec: str, records: list[Record]) -> None:
    batch = written(records, codec=codec)
    data = from_kafka(batch, 1_000)
    told = for_kafka(data)
    assert told[16:] == batch[16:]
    assert read(told) == numbered(records, 1_000)
    assert only_batch(told).leader_epoch == 7
    assert read_ours(data) == read_ours(in_columns(data)) == numbered(records, 1_000)
    assert has_kafka_batches(data)
    assert not has_kafka_batches(in_columns(data))


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
@given(RECORDS, st.booleans())
@settings(max_examples=30)
def test_what_our_producers_wrote_is_told_to_kafka_clients(
    compression: Compression | None, records: list[Record], thinned: bool
) -> None:
    offsets = [5 + 3 * index for index in range(len(records))] if thinned else range(5, 5 + len(records))
    data = stored(ours(records, compression, offsets if thinned else None), 5)
    (batch,) = split(for_kafka(data))
    header = only_batch(batch)
    assert header.attributes == 0
    assert (header.base_offset, header.leader_epoch, header.record_count) == (5, 7, len(records))
    assert header.base_offset + header.last_offset_delta == offsets[-1]
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert read(batch) == list(zip(offsets, records, strict=True))
    assert in_columns(data) == data


def test_a_producers_numbers_and_transaction_go_along() -> None:
    data = stored(
        ours(THREE), 5, producer_id=9, producer_epoch=2, base_sequence=70, attributes=_attributes(ours(THREE))
    )
    header = only_batch(for_kafka(data))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 70)
    assert header.attributes == KafkaAttributes.TRANSACTIONAL


def _attributes(batch: bytes) -> int:
    return read_header(batch).attributes | Attributes.TRANSACTIONAL


def test_the_bits_that_go_along_are_the_same_in_both_forms() -> None:
    assert int(KafkaAttributes.LOG_APPEND_TIME) == Attributes.LOG_APPEND_TIME
    assert int(KafkaAttributes.TRANSACTIONAL) == Attributes.TRANSACTIONAL


@every_codec
@pytest.mark.parametrize("kafkas", [True, False], ids=["kafka", "ours"])
def test_the_time_of_the_append_is_told(codec: str, kafkas: bool) -> None:
    batch = from_kafka(written(THREE, codec=codec), 20) if kafkas else stored(ours(THREE), 20)
    data = read_header(batch).stamped(123_456).pack() + batch[HEADER_BYTES:]
    told = for_kafka(data)
    header = only_batch(told)
    assert header.attributes & KafkaAttributes.LOG_APPEND_TIME
    assert header.max_timestamp == 123_456
    expected = [record._replace(timestamp=123_456) for record in THREE]
    assert read(told) == read_ours(data) == read_ours(in_columns(data)) == numbered(expected, 20)


def test_what_compaction_did_to_the_header_is_told_under_a_new_checksum() -> None:
    batch = written(THREE, codec="lz4", producer=(5, 1, 30))
    data = from_kafka(batch, 20, last_offset_delta=99, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    header = only_batch(for_kafka(data))
    assert (header.last_offset_delta, header.record_count) == (99, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.codec == "lz4"
    assert read(for_kafka(data)) == numbered(THREE, 20)
    horizon = from_kafka(batch, 20, attributes=Attributes.KAFKA_BODY | Attributes.DELETE_HORIZON, base_timestamp=10**12)
    assert read(for_kafka(horizon)) == numbered(THREE, 20)


def test_times_that_a_client_put_wrongly_into_its_header_are_put_right() -> None:
    inner = only_batch(written(THREE))
    batch = inner._replace(max_timestamp=10**15).with_records(written(THREE)[61:])
    around, _ = batch_around(batch, only_batch(batch), (40, 60))
    assert only_batch(for_kafka(stored(around, 3))).max_timestamp == 60


def test_offsets_of_which_nothing_is_left_are_covered() -> None:
    header, body = empty_batch(30, 40)
    told = for_kafka(header.pack() + body)
    read_back = only_batch(told)
    assert (read_back.base_offset, read_back.last_offset_delta, read_back.producer_id) == (30, 40, -1)
    theirs: Any = DefaultRecordBatch(bytearray(told))
    assert theirs.is_control_batch
    assert read_back.record_count == 1  # an answer with none librdkafka takes for one that was too small
    assert theirs.next_offset == 71
    (record,) = theirs
    assert record.offset == 70  # librdkafka's position is behind the last record, and is what it commits
    assert in_columns(header.pack() + body) == header.pack() + body


def test_end_markers_are_control_batches_of_one_each() -> None:
    ends = [TransactionEnd(4, 70, 1, True, 3), TransactionEnd(5, 71, 0, False, 8)]
    control = b"".join(encode_control_batch(ends, 99_000).pieces())
    data = stored(control, 40, last_offset_delta=9)
    batches = [only_batch(batch) for batch in split(for_kafka(data))]
    assert [(header.producer_id, header.producer_epoch) for header in batches] == [(70, 1), (71, 0)]
    assert [(header.base_offset, header.last_offset_delta) for header in batches] == [(40, 0), (41, 8)]
    for raw, end in zip(split(for_kafka(data)), ends, strict=True):
        theirs: Any = DefaultRecordBatch(bytearray(raw))
        assert theirs.is_control_batch
        assert theirs.is_transactional
        (record,) = theirs
        assert record.key == b"\0\0\0" + bytes([end.committed])
        assert record.value == b"\0\0" + end.coordinator_epoch.to_bytes(4, "big")
        assert record.timestamp == 99_000


def test_a_client_that_reads_no_zstd_gets_it_plain() -> None:
    data = from_kafka(written(THREE, codec="zstd"), 20)
    assert only_batch(for_kafka(data)).codec == "zstd"
    assert only_batch(for_kafka(data, zstd=False)).codec == "none"
    assert read(for_kafka(data, zstd=False)) == numbered(THREE, 20)


LOG = [
    from_kafka(written(THREE), 0),
    stored(ours(THREE), 3),
    from_kafka(written(THREE, codec="zstd"), 6),
    stored(ours(THREE, "gzip"), 9),
]


def test_a_log_of_both_kinds_is_told_in_order() -> None:
    expected = [entry for base in (0, 3, 6, 9) for entry in numbered(THREE, base)]
    data = b"".join(LOG)
    assert [entry for batch in split(for_kafka(data)) for entry in read(batch)] == expected
    assert read_ours(in_columns(data)) == read_ours(data) == expected
    assert [b"".join(pieces) for pieces in kafka_batches(data)] == split(for_kafka(data))


@pytest.mark.parametrize("convert", [for_kafka, in_columns])
def test_an_answer_ends_before_it_is_too_large_but_has_one_batch(convert: Any) -> None:
    data = b"".join(LOG)
    whole = convert(data)
    sizes = [len(convert(batch)) for batch in LOG]
    for most in range(0, len(whole) + 2, 7):
        fit = [end for end in range(1, 5) if sum(sizes[:end]) <= most] or [1]
        assert convert(data, max_bytes=most) == whole[: sum(sizes[: fit[-1]])]


def damaged(data: bytes) -> bytes:
    return data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]


@pytest.mark.parametrize("convert", [for_kafka, in_columns])
def test_a_damaged_batch_is_told_and_what_lies_before_it_is_given(convert: Any) -> None:
    for bad in (damaged(LOG[1]), damaged(LOG[3]), damaged(LOG[2])):
        if convert is in_columns and not has_kafka_batches(bad):
            continue  # handed on as it is: whoever decodes it sees the damage
        if convert is for_kafka and has_kafka_batches(bad):
            continue  # the same: the checksum is the client's to check
        assert convert(LOG[0] + bad) == convert(LOG[0])
        with pytest.raises(KafkaBatchError, match="does not match") as refused:
            convert(bad)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_damage_is_not_hidden_by_a_new_checksum() -> None:
    bad = damaged(from_kafka(written(THREE), 20, last_offset_delta=9))
    with pytest.raises(KafkaBatchError, match="checksum of the batch") as refused:
        for_kafka(bad)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    no_header = stored(from_kafka(written(THREE)), 0)[:HEADER_BYTES] + bytes(len(LOG[0]) - HEADER_BYTES)
    with pytest.raises(KafkaBatchError) as refused:
        for_kafka(no_header)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)  # as if it were not installed
    data = from_kafka(written(THREE, codec="gzip"), 20)
    assert read_ours(in_columns(data)) == numbered(THREE, 20)
    with pytest.raises(KafkaBatchError, match=r"offset 6 cannot be read: .* zstd, which needs cramjam: pip") as refused:
        in_columns(LOG[2])
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_body_that_is_not_what_the_header_says_does_not_decode() -> None:
    data = from_kafka(written(THREE), 0, record_count=2)
    with pytest.raises(KafkaBatchError, match="a batch of 3 records, its header says 2"):
        in_columns(data)


def header_of(data: bytes) -> BatchHeader:
    return read_header(data)


@pytest.mark.parametrize("size", range(1, 20))
def test_a_body_of_any_length_is_padded(size: int) -> None:
    batch = written([Record(None, b"v" * size)])
    header = header_of(from_kafka(batch))
    assert header.length % 8 == 0
    assert header.body_length == len(batch)
    assert read_ours(from_kafka(batch)) == numbered([Record(None, b"v" * size)], 0)


def test_all_compressions_are_told_apart() -> None:
    assert [only_batch(for_kafka(from_kafka(written(THREE, codec=codec)))).codec for codec in CODECS] == list(CODECS)
