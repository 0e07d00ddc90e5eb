"""Logs with batches of Kafka's clients do what logs without them do: beside one that has the same records as columns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.compaction import tail_of
from coordinator.log.following import replicated_batches
from protocol.compression import Compression
from protocol.errors import ProtocolError
from protocol.kafka.batch import KafkaBatchError, read_batch_header
from protocol.kafka.conversion import for_kafka, in_columns
from protocol.record_batch import Attributes, decode_columns, encode_batch, iter_batches, read_header
from tests.coordinator.kafka.admission import Run
from tests.coordinator.log.logs import batches_in, opened, outcome
from tests.protocol.kafka.written import CODECS, Record, written

CONFIG = LogConfig(
    segment_bytes=2_000, index_interval_bytes=300, min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000
)
FIRST_MS = 1_700_000_000_000
Read = dict[int, Record]


def drawn(chance: random.Random, keyed: bool) -> list[list[Record]]:
    """Batches of records: few keys, some tombstones, times that rise on the whole, some headers."""
    return [
        [
            Record(
                b"key-%d" % chance.randrange(12) if keyed or chance.random() < 0.5 else None,
                None if chance.random() < 0.2 else b"%d " % number + b"v" * chance.randrange(120),
                FIRST_MS + 100 * number + chance.randrange(150),
                chance.choice(((), (), (("name", b"value"), ("none", None)))),
            )
            for _ in range(chance.choice((1, 2, 7, 40)))
        ]
        for number in range(40)
    ]


def append_ours(
    log: PartitionLog, records: Sequence[Record], producer: tuple[int, int, int], compression: Compression | None = None
) -> None:
    keys, values, timestamps, headers = zip(*records, strict=True)
    batch = encode_batch(
        values,
        keys,
        timestamps_ms=timestamps,
        headers=headers,
        compression=compression,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    log.append_all([(batch, read_header(batch))], FIRST_MS)


def append_kafka(log: PartitionLog, records: Sequence[Record], producer: tuple[int, int, int], codec: str) -> None:
    log.append_all([Run()(written(records, codec=codec, producer=producer), log.config)], FIRST_MS)


def read_ours(data: bytes) -> Read:
    found: Read = {}
    for position, header in iter_batches(data):
        columns = decode_columns(data, position, header)
        times = columns.timestamps_ms().tolist()
        if header.attributes & Attributes.LOG_APPEND_TIME:
            times = [header.max_timestamp] * columns.count
        rows = zip(columns.keys(), columns.values(), times, columns.headers(), strict=True)
        offsets = [header.base_offset + delta for delta in columns.offset_deltas()]
        found.update(zip(offsets, map(Record._make, rows), strict=True))
    return found


def read_by_kafka(data: bytes) -> Read:
    found: Read = {}
    told, expected = for_kafka(data), -1
    while told:
        header = read_batch_header(told)
        assert expected in (-1, header.base_offset), "what is told leaves no offset out"
        expected = header.base_offset + header.last_offset_delta + 1
        batch: Any = DefaultRecordBatch(bytearray(told[: header.size]))
        assert batch.validate_crc()
        for record in () if batch.is_control_batch else batch:  # clients pass over what only keeps the place of offsets
            found[record.offset] = Record(record.key, record.value, record.timestamp, tuple(record.headers))
        told = told[header.size :]
    return found


async def read_all(log: PartitionLog) -> Read:
    """All records, which each kind of reader is told alike."""
    data = b"".join(batch for _, batch in await batches_in(log))
    found = read_ours(data)
    assert read_by_kafka(data) == found
    assert read_ours(in_columns(data)) == found
    return found


async def assert_alike(mixed: PartitionLog, ours: PartitionLog, written: Read) -> Read:
    """What both logs hold is the same, and so is what they answer about times."""
    found = await read_all(mixed)
    assert found == await read_all(ours)
    assert all(written[offset] == record for offset, record in found.items())
    times = sorted({record.timestamp for record in found.values()} or {FIRST_MS})
    for timestamp in [0, *(time + nudge for time in times[::11] for nudge in (-1, 0, 1)), times[-1] + 1]:
        answer = await mixed.offset_for_timestamp(timestamp)
        assert answer == await ours.offset_for_timestamp(timestamp)
        expected = [(offset, record.timestamp) for offset, record in found.items() if record.timestamp >= timestamp]
        assert answer == (min(expected) if expected else None)
    assert mixed.end_offset == ours.end_offset
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kafka_only", [False, True], ids=["mixed", "kafka"])
async def test_a_log_with_batches_of_kafka_does_what_one_without_does(
    tmp_path: Path, seed: int, kafka_only: bool
) -> None:
    chance = random.Random(seed)
    both = FileStorage(str(tmp_path / "mixed")), FileStorage(str(tmp_path / "ours"))
    sequence, records = 0, Read()
    async with opened(both[0], CONFIG, close=False) as mixed, opened(both[1], CONFIG, close=False) as ours:
        for batch in drawn(chance, keyed=True):
            records.update(enumerate(batch, mixed.end_offset))
            producer = (4, 0, sequence) if chance.random() < 0.5 else (-1, -1, -1)
            sequence += len(batch) if producer[0] >= 0 else 0
            if kafka_only or chance.random() < 0.5:
                append_kafka(mixed, batch, producer, chance.choice(CODECS))
            else:
                append_ours(mixed, batch, producer, chance.choice((None, "gzip", "zstd")))
            append_ours(ours, batch, producer)
            if chance.random() < 0.2:
                assert await outcome(mixed) is None
                assert await outcome(ours) is None
        assert await outcome(mixed) is None
        assert await outcome(ours) is None
        assert await assert_alike(mixed, ours, records) == records
    async with opened(both[0], CONFIG) as mixed, opened(both[1], CONFIG) as ours:  # recovered
        assert await assert_alike(mixed, ours, records) == records
        assert dict(mixed.producers) == dict(ours.producers)
        end = mixed.end_offset
        for _ in range(2):  # the second is a duplicate
            append_kafka(mixed, [Record(b"key-1", b"new")], (4, 0, sequence), "none")
            append_ours(ours, [Record(b"key-1", b"new")], (4, 0, sequence))
        assert await outcome(mixed) is None
        assert await outcome(ours) is None
        assert mixed.end_offset == end + 1
        records[end] = Record(b"key-1", b"new")
        assert await assert_alike(mixed, ours, records) == records


def state_of(records: Read) -> dict[bytes | None, Record]:
    """The last record of each key, if it is no tombstone."""
    last = {record.key: record for _, record in sorted(records.items())}
    return {key: record for key, record in last.items() if record.value is not None}


@pytest.mark.parametrize("seed", range(3))
async def test_compaction_keeps_the_last_record_of_each_key_whoever_wrote_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    records = Read()
    sequence = 0
    async with opened(FileStorage(str(tmp_path)), CONFIG) as log:
        for turn in range(3):
            for batch in drawn(chance, keyed=True):
                records.update(enumerate(batch, log.end_offset))
                producer = (4, 0, sequence) if chance.random() < 0.2 else (-1, -1, -1)
                sequence += len(batch) if producer[0] >= 0 else 0
                if chance.random() < 0.7:
                    append_kafka(log, batch, producer, chance.choice(CODECS))
                else:
                    append_ours(log, batch, producer)
            assert await outcome(log) is None
            result = await log.compact(FIRST_MS + 2_000 * turn)
            assert result is not None
            assert result.unreadable_kept == 0
            assert result.records_after < result.records_before / 2
            found = await read_all(log)
            assert all(records[offset] == record for offset, record in found.items())
            assert state_of(found) == state_of(records)
    async with opened(FileStorage(str(tmp_path)), CONFIG) as log:
        assert await read_all(log) == found


async def kinds(log: PartitionLog) -> list[bool]:
    """Of each batch that has records whether its body is one of Kafka's."""
    batches = await batches_in(log)
    return [bool(header.attributes & Attributes.KAFKA_BODY) for header, _ in batches if header.record_count]


async def closed_with(log: PartitionLog, *batches: Sequence[Record], codec: str = "none") -> None:
    """Appends what a Kafka client wrote, and behind it enough to close the segment."""
    for batch in batches:
        append_kafka(log, batch, (-1, -1, -1), codec)
        assert await outcome(log) is None
    for number in range(2):
        append_ours(log, [Record(b"filling-%d" % number, b"f" * 3_000)], (-1, -1, -1))
        assert await outcome(log) is None


async def test_compaction_copies_what_loses_nothing_and_writes_columns_of_the_rest(tmp_path: Path) -> None:
    chance = random.Random(1)
    large = [Record(b"large-%d" % index, chance.randbytes(1_000), FIRST_MS) for index in range(40)]
    small = [Record(b"small", b"old", FIRST_MS), Record(b"other", b"v", FIRST_MS)]
    async with opened(FileStorage(str(tmp_path)), CONFIG) as log:
        await closed_with(log, large, small, [Record(b"small", b"new", FIRST_MS)], codec="lz4")
        before = await batches_in(log)
        assert (await kinds(log))[:3] == [True, True, True]
        await log.compact(FIRST_MS)
        assert (await kinds(log))[:2] == [True, False]
        after = await batches_in(log)
        assert after[0][1][80:] == before[0][1][80:], "the large one is copied as it came"
        (rewritten,) = [header for header, _ in after if header.record_count == 2]
        assert rewritten.compression == "gzip", "what was compressed stays so"
        found = await read_all(log)
        assert [record.value for offset, record in sorted(found.items()) if record.key == b"small"] == [b"new"]
        assert set(found) == set(range(log.end_offset)) - {40}


async def test_a_remembered_batch_of_a_producer_keeps_its_numbers_when_it_is_thinned(tmp_path: Path) -> None:
    batch = [
        Record(b"twice", b"old", FIRST_MS + 5),
        Record(b"once", b"v", FIRST_MS),
        Record(b"twice", b"new", FIRST_MS),
    ]
    async with opened(FileStorage(str(tmp_path)), CONFIG) as log:
        append_kafka(log, batch, (9, 0, 0), "zstd")
        await closed_with(log)
        await log.compact(FIRST_MS)
        header, thinned = (await batches_in(log))[0]
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 0, 0)
        assert not header.attributes & Attributes.KAFKA_BODY
        assert read_ours(thinned) == {1: batch[1], 2: batch[2]}
        assert read_by_kafka(thinned) == {1: batch[1], 2: batch[2]}
        end = log.end_offset
        append_kafka(log, batch, (9, 0, 0), "zstd")
        assert log.end_offset == end, "it is still known as a duplicate"


async def test_a_tombstone_of_a_kafka_client_goes_when_its_time_is_over(tmp_path: Path) -> None:
    chance = random.Random(1)
    large = [
        Record(b"gone", None, FIRST_MS),
        *(Record(b"%d" % at, chance.randbytes(999), FIRST_MS) for at in range(40)),
    ]
    async with opened(FileStorage(str(tmp_path)), CONFIG) as log:
        await closed_with(log, large)
        await log.compact(FIRST_MS)
        header, _ = (await batches_in(log))[0]
        assert header.attributes & Attributes.DELETE_HORIZON
        assert header.attributes & Attributes.KAFKA_BODY
        assert (await read_all(log))[0] == large[0]
        await closed_with(log)
        await log.compact(FIRST_MS + CONFIG.delete_retention_ms)
        found = await read_all(log)
        assert 0 not in found
        assert [found[offset] for offset in range(1, 41)] == large[1:]


async def test_the_time_of_the_append_holds_for_all_readers_and_after_compaction(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2_000, min_cleanable_dirty_ratio=0.0, message_timestamp_type="LogAppendTime")
    async with opened(FileStorage(str(tmp_path)), config) as log:
        results = log.append_all([Run()(written([Record(b"a", b"1", 5), Record(b"a", b"2", 7)]), config)], 123_456)
        assert results[0].append_time_ms == 123_456
        assert await outcome(log) is None
        told = await read_all(log)
        assert told == {0: Record(b"a", b"1", 123_456), 1: Record(b"a", b"2", 123_456)}
        assert await log.offset_for_timestamp(123_456) == (0, 123_456)
        await closed_with(log)
        await log.compact(FIRST_MS)
        assert (await read_all(log))[1] == told[1]


async def test_a_follower_has_the_same_bytes_and_may_end_within_what_was_joined(tmp_path: Path) -> None:
    chance = random.Random(3)
    leader, follower = FileStorage(str(tmp_path / "leader")), FileStorage(str(tmp_path / "follower"))
    async with opened(leader) as log, opened(follower, leader_epoch=None) as copy:
        for batch in drawn(chance, keyed=False)[:10]:
            append_kafka(log, batch, (-1, -1, -1), chance.choice(CODECS))
        assert await outcome(log) is None
        data = await log.read(0, 1 << 20)
        copy.append_as_follower(replicated_batches(data), [(0, 0)])
        await copy.flush()
        ours, theirs = await batches_in(log), replicated_batches(data)
        assert [batch[80:] for _, batch in ours] == [bytes(batch.batch[80:]) for batch in theirs]
        for header, whole in ours:
            records = read_ours(whole)
            for offset in range(header.base_offset + 1, header.next_offset):
                tail = tail_of(whole, offset)
                assert read_ours(tail) == read_by_kafka(tail) == {at: records[at] for at in records if at >= offset}
                assert read_header(tail).base_offset == offset
        await copy.truncate_to(ours[5][0].base_offset)
        assert copy.end_offset == ours[5][0].base_offset


async def test_a_changed_byte_in_the_body_is_noticed_by_each_kind_of_reader(tmp_path: Path) -> None:
    async with opened(FileStorage(str(tmp_path))) as log:
        append_kafka(log, [Record(b"k", b"v" * 100)] * 3, (-1, -1, -1), "none")
        assert await outcome(log) is None
        data = bytearray(await log.read(0, 1 << 20))
    data[200] ^= 1
    with pytest.raises(ProtocolError, match="does not match"):
        read_ours(bytes(data))
    with pytest.raises(KafkaBatchError, match="does not match"):
        in_columns(bytes(data))
    told: Any = DefaultRecordBatch(bytearray(for_kafka(bytes(data))))
    assert not told.validate_crc()
