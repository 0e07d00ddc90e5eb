"""What is asked of the batch of a Kafka client before it is taken."""

from __future__ import annotations

import random
import sys
import zlib

import cramjam
import pytest
from hypothesis import given, settings

from coordinator.kafka.batches import RECORDS_PER_STEP
from coordinator.log.config import LogConfig
from coordinator.metadata.catalog import TopicError
from coordinator.server.handlers.produced_batches import (
    ALLOWED_IN_TRANSACTIONS,
    MAX_INFLATED_BYTES,
    MAX_ON_LOOP_BYTES,
    MAX_REQUEST_INFLATED_BYTES,
    Inflation,
)
from protocol.errors import ErrorCode
from protocol.kafka.batch import HEADER_BYTES, crc32c, only_batch
from protocol.kafka.conversion import for_kafka
from protocol.record_batch import Attributes, read_header
from tests.coordinator.kafka.admission import CONFIG, Run
from tests.protocol.kafka.written import CODECS, RECORDS, Record, every_codec, written

MIB = 2**20


def refusal(records: bytes, config: LogConfig = CONFIG, inflation: Inflation | None = None) -> tuple[ErrorCode, str]:
    with pytest.raises(TopicError) as refused:
        Run()(records, config, inflation)
    assert "topic 't'" in str(refused.value)
    return refused.value.code, str(refused.value)


@every_codec
@given(RECORDS)
@settings(max_examples=30)
def test_what_a_client_wrote_is_taken_as_it_came(codec: str, records: list[Record]) -> None:
    batch = written(records, codec=codec, producer=(2**40, 3, 70))
    taken, header = Run()(batch)
    assert read_header(taken) == header
    assert header.length == len(taken)
    assert header.attributes == Attributes.KAFKA_BODY
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, 70)
    assert (header.record_count, header.last_offset_delta) == (len(records), len(records) - 1)
    times = [record.timestamp for record in records]
    assert (header.base_timestamp, header.max_timestamp) == (min(times), max(times))
    assert for_kafka(taken)[16:] == batch[16:]


THREE = [Record(b"k", b"v", 50), Record(None, b"w", 40), Record(b"l", None, 60)]
BATCH = written(THREE)
INNER = only_batch(BATCH)


def with_header(**changes: int) -> bytes:
    """The batch with changes to its header, and a checksum that is right."""
    return INNER._replace(**changes).with_records(BATCH[HEADER_BYTES:])


def with_records(records: bytes, codec: str = "none", count: int = 3) -> bytes:
    """A batch of these bytes as records, compressed already."""
    header = INNER._replace(attributes=CODECS.index(codec), record_count=count, last_offset_delta=count - 1)
    return header.with_records(records)


@pytest.mark.parametrize(
    ("records", "code", "says"),
    [
        (b"", ErrorCode.INVALID_RECORD, "holds no batch"),
        (BATCH[:-1], ErrorCode.CORRUPT_MESSAGE, "cannot be in"),
        (BATCH + BATCH, ErrorCode.INVALID_RECORD, "one batch for a partition"),
        (BATCH[:-1] + b"\x09", ErrorCode.CORRUPT_MESSAGE, "checksum"),
        (BATCH[:16] + b"\1" + BATCH[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "format 1"),
        (with_header(record_count=0), ErrorCode.INVALID_RECORD, "0 records cannot span 3"),
        (with_header(last_offset_delta=3), ErrorCode.INVALID_RECORD, "3 records cannot span 4"),
        (with_header(attributes=1 << 3), ErrorCode.INVALID_TIMESTAMP, "LogAppendTime"),
        (with_header(attributes=1 << 4), ErrorCode.INVALID_RECORD, "needs the request's transactional id"),
        (with_header(attributes=1 << 5), ErrorCode.INVALID_RECORD, "attributes 0x20"),
        (with_header(attributes=1 << 6), ErrorCode.INVALID_RECORD, "attributes 0x40"),
        (with_header(attributes=-(2**15)), ErrorCode.INVALID_RECORD, "attributes 0x8000"),
        (with_header(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "compression 5"),
        (with_header(producer_id=3), ErrorCode.INVALID_RECORD, "do not go together"),
        (with_header(record_count=2, last_offset_delta=1), ErrorCode.INVALID_RECORD, "2 records end at byte"),
        (with_header(record_count=4, last_offset_delta=3), ErrorCode.INVALID_RECORD, "4 records do not fit"),
        (with_header(base_timestamp=2**63 - 5), ErrorCode.INVALID_RECORD, "are none"),
        (with_records(BATCH[HEADER_BYTES:] + b"\0"), ErrorCode.INVALID_RECORD, "3 records end at byte"),
        (with_records(b""), ErrorCode.INVALID_RECORD, "do not fit"),
        (with_records(b"\0", "gzip"), ErrorCode.CORRUPT_MESSAGE, "gzip"),
        (with_records(zlib.compress(b"\x09" * 9, wbits=31), "gzip"), ErrorCode.INVALID_RECORD, "record 0"),
        (with_records(b"junk", "lz4"), ErrorCode.CORRUPT_MESSAGE, "lz4"),
        (with_records(b"junk", "snappy"), ErrorCode.CORRUPT_MESSAGE, "snappy"),
        (with_records(b"junk", "zstd"), ErrorCode.CORRUPT_MESSAGE, "zstd"),
    ],
)
def test_what_is_refused_is_told_why(records: bytes, code: ErrorCode, says: str) -> None:
    found, text = refusal(records)
    assert found == code
    assert says in text


def test_without_a_producer_id_epoch_and_sequence_say_nothing() -> None:
    """As in Kafka: aiokafka's sequence is 0."""
    taken, header = Run()(with_header(base_sequence=0, producer_epoch=3))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert for_kafka(taken)[16:] == with_header(base_sequence=0, producer_epoch=3)[16:]


def test_a_compacted_topic_takes_records_with_keys_only() -> None:
    config = LogConfig(compact=True)
    assert refusal(BATCH, config) == (ErrorCode.INVALID_RECORD, "topic 't': record 1 of the batch has no key")
    Run()(written([Record(b"k", None), Record(b"", b"v")]), config)


def test_without_a_producer_epoch_and_sequence_do_not_count() -> None:
    batch = with_header(base_sequence=0)  # as aiokafka sends it
    taken, header = Run()(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert for_kafka(taken)[16:] == batch[16:]


def test_a_transactional_batch_is_taken_in_a_transaction() -> None:
    batch = written(THREE, producer=(7, 0, 0), transactional=True)
    taken, header = Run()(batch, allowed=ALLOWED_IN_TRANSACTIONS)
    assert header.attributes == Attributes.KAFKA_BODY | Attributes.TRANSACTIONAL
    assert for_kafka(taken)[16:] == batch[16:]


def test_the_times_of_records_count_and_not_what_the_header_says_of_them() -> None:
    taken, header = Run()(with_header(max_timestamp=10**15))
    assert (header.base_timestamp, header.max_timestamp) == (40, 60)
    assert only_batch(for_kafka(taken)).max_timestamp == 60


def test_with_times_of_the_append_those_of_records_are_not_looked_at() -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime")
    Run()(with_header(base_timestamp=2**63 - 5), config)


def test_a_batch_above_the_bound_of_its_topic_is_refused() -> None:
    config = LogConfig(max_message_bytes=len(BATCH))
    Run()(BATCH, config)
    smaller = LogConfig(max_message_bytes=len(BATCH) - 1)
    assert refusal(BATCH, smaller)[0] == ErrorCode.MESSAGE_TOO_LARGE
    dense = with_header(record_count=1000, last_offset_delta=999)
    code, text = refusal(dense, LogConfig(max_message_bytes=999))
    assert code == ErrorCode.MESSAGE_TOO_LARGE
    assert "1000 records" in text


def bomb(size: int, codec: str = "zstd") -> bytes:
    stream = zlib.compress(bytes(size), wbits=31) if codec == "gzip" else bytes(cramjam.zstd.compress(bytes(size)))
    return with_records(stream, codec)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_bomb_is_refused_at_its_bound(codec: str) -> None:
    code, text = refusal(bomb(MAX_INFLATED_BYTES + 1, codec))
    assert code == ErrorCode.MESSAGE_TOO_LARGE
    assert f"more than the {MAX_INFLATED_BYTES} bytes allowed" in text
    assert refusal(bomb(MAX_INFLATED_BYTES, codec))[0] == ErrorCode.INVALID_RECORD  # inflated: zeros are no records


def test_a_request_may_be_inflated_to_so_much_and_no_more() -> None:
    inflation = Inflation()
    for _ in range(MAX_REQUEST_INFLATED_BYTES // MAX_INFLATED_BYTES):
        code, text = refusal(bomb(MAX_INFLATED_BYTES + 1), inflation=inflation)
        assert f"more than the {MAX_INFLATED_BYTES} bytes" in text
    code, text = refusal(bomb(1000), inflation=inflation)
    assert (code, "more than the 0 bytes" in text) == (ErrorCode.MESSAGE_TOO_LARGE, True)
    Run()(BATCH, inflation=inflation)  # plain: costs none of it


def test_what_was_inflated_counts_for_the_request() -> None:
    inflation = Inflation()
    batch = written([Record(None, b"v" * 1000)] * 100, codec="lz4")
    before = inflation.bound(LogConfig(max_message_bytes=64 * MIB))
    Run()(batch, inflation=inflation)
    plain = len(written([Record(None, b"v" * 1000)] * 100)) - HEADER_BYTES
    assert inflation.bound(LogConfig(max_message_bytes=64 * MIB)) == before - plain


@every_codec
def test_large_batches_are_checked_in_threads_and_in_turns(codec: str) -> None:
    small, large = Run(), Run()
    small(written([Record(None, b"v" * 100)] * 100, codec=codec))
    assert (small.in_threads, small.turns) == (0, 0)
    chance = random.Random(1)
    records = [Record(None, chance.randbytes(100)) for _ in range(3 * RECORDS_PER_STEP)]
    batch = written(records, codec=codec)
    assert len(batch) > MAX_ON_LOOP_BYTES
    large(batch, LogConfig(max_message_bytes=4 * MIB))
    assert large.turns == 2
    assert large.in_threads >= 2
    dense = Run()
    dense(written([Record(None, b"")] * (2 * RECORDS_PER_STEP), codec=codec))
    assert dense.turns == 1


@pytest.mark.parametrize(("library", "codec"), [("google_crc32c", "none"), ("cramjam", "snappy")])
def test_a_daemon_without_the_libraries_says_what_to_install(
    library: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = written(THREE, codec=codec)
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    code, text = refusal(batch)
    assert code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert "pip install 'aiocohort[kafka]'" in text


@pytest.mark.parametrize("seed", range(4))
def test_damaged_batches_are_refused_and_nothing_else(seed: int) -> None:
    assert damaged_batches(seed, 200) > 80


def damaged_batches(seed: int, count: int) -> int:
    """Admits ``count`` damaged batches, most of them with the checksum right; returns how many were refused."""
    chance = random.Random(seed)
    refused = 0
    for _ in range(count):
        codec = chance.choice(CODECS)
        records = [
            Record(
                chance.choice((None, b"key")),
                chance.choice((None, b"value" * chance.randrange(30))),
                chance.randrange(500),
                chance.choice(((), (("name", b"value"),))),
            )
            for _ in range(chance.choice((1, 5, 300)))
        ]
        batch = bytearray(written(records, codec=codec))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(batch)) if chance.random() < 0.7 else chance.randrange(HEADER_BYTES)
            how = chance.randrange(3)
            if how == 0:
                batch[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            elif how == 1:
                batch[at:at] = chance.randbytes(chance.randrange(1, 9))
            else:
                del batch[at : at + chance.randrange(1, 9)]
        data = bytes(batch)
        if chance.random() < 0.9 and len(data) > HEADER_BYTES:
            data = _with_right_sums(data)
        try:
            taken, _ = Run()(data)
        except TopicError:
            refused += 1
        else:
            for_kafka(taken)
    return refused


def _with_right_sums(data: bytes) -> bytes:
    """The batch with its length and its checksum made right, so that what is behind them is looked at."""
    length, checksum = len(data) - 12, crc32c(data[21:])
    return data[:8] + length.to_bytes(4, "big") + data[12:17] + checksum.to_bytes(4, "big") + data[21:]


if __name__ == "__main__":  # python -m tests.coordinator.kafka.test_batches 200000
    print(damaged_batches(0, int(sys.argv[1])), "refused")
