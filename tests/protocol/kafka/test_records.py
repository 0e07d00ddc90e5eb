"""Records of Kafka's batches: checked, to columns, and back; against the encoders of two other projects."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence

import numpy
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from protocol.columns import Columns, encode_columns
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.batch import HEADER_BYTES, KafkaBatchError, only_batch
from protocol.kafka.records import (
    Checked,
    Records,
    check_each,
    check_even,
    check_heads,
    check_records,
    check_together,
    columns_of,
    read_each,
    read_records,
    read_together,
    records_of,
    walk,
)
from protocol.kafka.varints import INT64, VARLONG_BYTES, packed_varint, varint
from tests.protocol.kafka.written import BUILDERS, RECORDS, Record, written

WRITERS = st.sampled_from(list(BUILDERS))


def as_columns(records: bytes, count: int, base_timestamp: int) -> Columns:
    flags, body = columns_of(records, count, base_timestamp)
    columns = Columns(memoryview(body), count, flags)
    columns.check()
    return columns


def in_columns(records: Sequence[Record]) -> Columns:
    flags, body = encode_columns(
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp for record in records],
        [record.headers for record in records],
    )
    return Columns(memoryview(body), len(records), flags)


def rows(columns: Columns) -> list[Record]:
    fields = columns.keys(), columns.values(), columns.timestamps_ms(), columns.headers()
    return [Record(*row) for row in zip(*fields, strict=True)]


@given(RECORDS, WRITERS)
def test_what_others_write_comes_out_as_columns(records: list[Record], writer: str) -> None:
    batch = written(records, writer)
    header = only_batch(batch)
    columns = as_columns(batch[HEADER_BYTES:], header.record_count, header.base_timestamp)
    assert rows(columns) == records
    assert not columns.flags.offset_deltas


@given(RECORDS)
def test_columns_become_the_bytes_that_others_write(records: list[Record]) -> None:
    packed = records_of(in_columns(records), records[0].timestamp)
    assert packed == written(records)[HEADER_BYTES:] == written(records, "kafka-python")[HEADER_BYTES:]


@given(RECORDS, st.data())
def test_offsets_keep_their_gaps(records: list[Record], data: st.DataObject) -> None:
    steps = st.lists(st.integers(1, 70_000), min_size=len(records), max_size=len(records))
    deltas = list(array("i", data.draw(steps)))
    deltas = [sum(deltas[:index]) for index in range(len(deltas))]
    keys, values = [record.key for record in records], [record.value for record in records]
    flags, body = encode_columns(values, keys, [record.timestamp for record in records], None, deltas)
    packed = records_of(Columns(memoryview(body), len(records), flags), 0)
    columns = as_columns(packed, len(records), 0)
    assert list(columns.offset_deltas()) == deltas
    assert (columns.keys(), columns.values()) == (keys, values)
    head = only_batch(written(records))._replace(base_timestamp=0, last_offset_delta=deltas[-1], base_offset=5)
    theirs = DefaultRecordBatch(bytearray(head.with_records(packed)))
    assert [record.offset for record in theirs] == [5 + delta for delta in deltas]


@given(RECORDS)
def test_both_ways_of_reading_read_the_same(records: list[Record]) -> None:
    body = written(records)[HEADER_BYTES:]
    checked = check_each(body, 0, 0, len(records), False)
    assert checked == check_together(numpy, body, 0, 0, len(records), False)
    deltas = [record.timestamp - records[0].timestamp for record in records]
    assert checked == Checked(len(body), min(deltas), max(deltas))
    heads = check_heads(body, 0, 0, len(records))
    assert heads == (checked if min(deltas) >= 0 and max(deltas) < 64 else None)
    assert outcome(read_each, body, len(records)) == outcome(read_together, body, len(records))


def test_a_batch_may_be_checked_in_parts() -> None:
    body = written([Record(None, b"v" * (index % 300), 9 + index) for index in range(20_000)])[HEADER_BYTES:]
    position = 0
    for first in range(0, 20_000, 7_000):
        count = min(7_000, 20_000 - first)
        part = check_records(body, position, first, count)
        assert part == check_each(body, position, first, count, False)
        assert (part.least_delta, part.largest_delta) == (first, first + count - 1)
        position = part.end
    assert position == len(body)
    with pytest.raises(KafkaBatchError, match="record 1 of the batch has the offset delta 0"):
        check_records(body, 0, 1, 7_000)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 3_000])
@pytest.mark.parametrize("first", [0, 1, 63, 64, 5_000])
def test_the_quick_way_finds_what_the_others_find(count: int, first: int) -> None:
    body = b"".join(record(b"\0", index % 64, first + index, -1, 1, b"v", 0) for index in range(count))
    expected = check_each(body, 0, first, count, False)
    assert check_heads(body, 0, first, count) == expected
    assert check_records(body, 0, first, count, span_ms=63) == expected
    for wrong in {0, count // 2, count - 1}:
        deltas = [first + index + (index == wrong) for index in range(count)]
        body = b"".join(record(b"\0", 0, delta, -1, 1, b"v", 0) for delta in deltas)
        assert check_heads(body, 0, first, count) is None
        with pytest.raises(KafkaBatchError, match=f"record {first + wrong} of the batch has the offset delta"):
            check_records(body, 0, first, count, span_ms=0)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 3_000])
@pytest.mark.parametrize("first", [0, 1, 63, 64, 5_000])
@pytest.mark.parametrize("value_bytes", [0, 1, 56, 57, 100, 8_000])
def test_records_of_one_size_are_a_table(count: int, first: int, value_bytes: int) -> None:
    def packed(index: int, size: int) -> bytes:
        return record(b"\0", index % 64, first + index, -1, size, b"v" * size, 0)

    rows = [packed(index, value_bytes) for index in range(count)]
    body = b"".join(rows)
    expected = check_each(body, 0, first, count, False)
    assert check_even(b"before" + body, 6, first, count) == expected._replace(end=6 + len(body))
    assert check_even(body + b"behind", 0, first, count) == expected
    assert check_even(body[:-1], 0, first, count) is None
    for place in {0, count // 2, count - 1} if count > 1 else ():
        for wrong in (
            packed(place, value_bytes + 1),
            packed(place + 1, value_bytes),
            record(b"\0", 64, first + place, -1, value_bytes, b"v" * value_bytes, 0),
        ):
            other = b"".join([*rows[:place], wrong, *rows[place + 1 :]])
            found = check_even(other, 0, first, count)
            assert found is None or found == check_each(other, 0, first, count, False)


@pytest.mark.parametrize("count", [1, 2, 30, 300])
@pytest.mark.parametrize("missing", [0, -1])
def test_a_record_without_a_key_is_found_where_keys_are_needed(count: int, missing: int) -> None:
    records = [Record(b"k", b"v")] * count
    check_records(written(records)[HEADER_BYTES:], 0, 0, count, keyed=True)
    missing %= count
    records[missing] = Record(None, b"v")
    body = written(records)[HEADER_BYTES:]
    for check in (check_each, check_with_numpy):
        check(body, 0, 0, count, False)
        with pytest.raises(KafkaBatchError, match=f"record {missing} of the batch has no key"):
            check(body, 0, 0, count, True)


@pytest.mark.parametrize("count", [30, 300])
def test_records_without_a_key_are_named_together_but_not_all_of_many(count: int) -> None:
    body = written([Record(b"k" if index % 3 else None, b"v") for index in range(count)])[HEADER_BYTES:]
    missing = tuple(range(0, count, 3))
    for check in (check_each, check_with_numpy):
        with pytest.raises(KafkaBatchError, match=f"has no key, and {len(missing) - 1} more$") as refused:
            check(body, 0, 0, count, True)
        assert refused.value.records == missing[:100]
    both = written([Record(None, b"v")] * count)[HEADER_BYTES:] + b"\x01"
    for check in (check_each, check_with_numpy):
        with pytest.raises(KafkaBatchError, match="leaves") as refused:
            check(both, 0, 0, count + 1, True)
        assert refused.value.records == ()


def check_with_numpy(body: bytes, position: int, first: int, count: int, keyed: bool) -> Checked:
    return check_together(numpy, body, position, first, count, keyed)


def record(*fields: bytes | int) -> bytes:
    """A record of these fields behind its length; numbers as varints."""
    content = b"".join(packed_varint(field) if isinstance(field, int) else field for field in fields)
    return packed_varint(len(content)) + content


FIRST = record(b"\0", 0, 0, -1, 1, b"v", 0)
LEAVES = "leave|do not fit"


@pytest.mark.parametrize("others", [0, 40, 400], ids=str)
@pytest.mark.parametrize(
    ("last", "says"),
    [
        (b"", "do not fit"),
        (b"\x80", "do not fit"),
        (packed_varint(-3) + b"\0" * 9, LEAVES),
        (packed_varint(0), LEAVES),
        (packed_varint(2**31 - 1), LEAVES),
        (b"\xff" * 5, "too large"),
        (record(b"\0"), LEAVES),
        (record(b"\0", 0), LEAVES),
        (record(b"\0", 0, None or 0), LEAVES + "|offset delta"),
        (record(b"\0", b"\xff" * 10, 0, -1, -1, 0), "too large|leave"),
        (record(b"\0", b"\x80" * 9 + b"\x02", 0, -1, -1, 0), "too large"),
    ],
)
def test_records_that_are_not_there_are_refused(others: int, last: bytes, says: str) -> None:
    body = b"".join(record(b"\0", 0, index, -1, 1, b"v", 0) for index in range(others)) + last
    for check in (check_each, check_with_numpy):
        with pytest.raises(KafkaBatchError, match=says) as refused:
            check(body, 0, 0, others + 1, False)
        assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("at", [0, 1, 63, 64, 299, 8191, 8192, 8999])
@pytest.mark.parametrize("wrong", [-1, 1, 10_000])
def test_an_offset_that_does_not_follow_is_found(at: int, wrong: int) -> None:
    deltas = [index + wrong if index == at else index for index in range(at + 3)]
    body = b"".join(record(b"\0", 0, delta, -1, 1, b"v", 0) for delta in deltas)
    for check in (check_each, check_with_numpy):
        with pytest.raises(KafkaBatchError, match=f"record {at} of the batch has the offset delta {at + wrong}"):
            check(body, 0, 0, len(deltas), False)


@pytest.mark.parametrize("others", [0, 40], ids=str)
@pytest.mark.parametrize(
    "fields",
    [
        (-1, 1, b"v"),  # no headers
        (-1, 2, b"v", 0),
        (5, b"kkk", -1, 0),
        (-2, -1, 0),
        (-1, -2, 0),
        (-1, -1, 1),
        (-1, -1, -1),
        (-1, -1, 2**31 - 1),
        (-1, -1, 1, -1, 0),
        (-1, -1, 1, 1, b"n", 5, b"v"),
        (-1, -1, 1, 9, b"n", 1, b"v"),
        (-1, -1, 0, b"behind"),
        (-1, -1, 1, 1, b"n", 1, b"v", b"behind"),
    ],
    ids=str,
)
def test_fields_that_leave_their_record_are_refused(others: int, fields: Sequence[bytes | int]) -> None:
    count = others + 1
    body = b"".join(record(b"\0", 0, index, -1, 1, b"v", 0) for index in range(others))
    body += record(b"\0", 0, others, *fields)
    for read in (read_each, read_together):
        assert outcome(read, body, count) is None
    with pytest.raises(KafkaBatchError) as refused:
        read_records(body, count)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def outcome(read: Callable[..., Records], body: bytes, count: int) -> object:
    """What one way of reading gives; None for a refusal."""
    try:
        starts, ends = walk(body, 0, count)
        first = (numpy,) if read is read_together else ()
        fields = read(*first, body, starts, ends)
    except KafkaBatchError:
        return None
    return [None if field is None else list(field) for field in fields]


def test_the_name_of_a_header_that_is_no_text_is_read_as_java_does() -> None:
    body = record(b"\0", 0, 0, -1, -1, 1, 3, b"a\xffb", -1)
    assert read_records(body, 1).headers == [(("a\ufffdb", None),)]


def test_a_record_that_leaves_its_batch_is_named() -> None:
    body = record(b"\0", 0, 0, -1, 1, b"v", 0)
    for behind in (b"", body):
        with pytest.raises(KafkaBatchError, match=f"record 1, at byte {len(body)}, leaves the"):
            walk(body + b"\x7e\0" + behind, 0, 3)
        with pytest.raises(KafkaBatchError, match=f"record 1, at byte {len(body)}, leaves the"):
            walk(body + b"\x7e\0" + behind, 0, 2)


def test_times_that_are_none_are_refused() -> None:
    body = record(b"\0", 2**62, 0, -1, -1, 0)
    with pytest.raises(KafkaBatchError, match="is none"):
        columns_of(body, 1, 2**62)
    flags, columns = encode_columns([b"v"], None, [-(2**63)])
    with pytest.raises(ProtocolError, match="too far apart"):
        records_of(Columns(memoryview(columns), 1, flags), 1)


def test_offsets_that_do_not_rise_are_no_columns() -> None:
    body = record(b"\0", 0, 1, -1, -1, 0) + record(b"\0", 0, 1, -1, -1, 0)
    with pytest.raises(KafkaBatchError, match="do not rise"):
        columns_of(body, 2, 0)


def test_headers_of_ours_that_kafka_cannot_have_are_refused() -> None:
    flags, columns = encode_columns([b"v"], None, [0], [(("n", 5),)])  # type: ignore[list-item]
    with pytest.raises(ProtocolError, match="header 'n' is a int, not bytes"):
        records_of(Columns(memoryview(columns), 1, flags), 0)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_is_the_same_number_again(number: int) -> None:
    packed = packed_varint(number)
    assert varint(packed + b"\x05", 0, VARLONG_BYTES) == (number, len(packed))
    assert varint(b"\x05" + packed, 1, VARLONG_BYTES) == (number, len(packed) + 1)


@pytest.mark.parametrize("number", [INT64[0] - 1, INT64[-1] + 1])
def test_what_is_no_int64_has_no_varint(number: int) -> None:
    with pytest.raises(ValueError, match="is no int64"):
        packed_varint(number)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_records_are_read_or_refused_in_both_ways_alike(seed: int) -> None:
    chance = random.Random(seed)
    refused = 0
    for _ in range(1_000):
        body, count = damaged(chance)
        checks = [checked(check, body, count) for check in (check_each, check_with_numpy)]
        assert checks[0] == checks[1]
        assert checked(check_quickly, body, count) == checks[0]
        read = outcome(read_each, body, count)
        assert read == outcome(read_together, body, count)
        refused += read is None
        try:
            columns_of(body, count, 0)
        except KafkaBatchError:
            refused += 1
    assert refused > 500


def check_quickly(body: bytes, position: int, first: int, count: int, keyed: bool) -> Checked:
    return check_records(body, position, first, count, keyed, span_ms=0)


def checked(check: Callable[[bytes, int, int, int, bool], Checked], body: bytes, count: int) -> Checked | None:
    try:
        return check(body, 0, 0, count, False)
    except KafkaBatchError:
        return None


def damaged(chance: random.Random) -> tuple[bytes, int]:
    """Records with some bytes changed, added or cut off, and how many they are said to be."""
    count = chance.choice((1, 3, 30, 70))
    drawn = [
        Record(
            chance.choice((None, b"", b"key")),
            chance.choice((None, b"", b"value" * chance.randrange(20))),
            chance.randrange(300),
            chance.choice(((), (("name", b"value"), ("n", None)))),
        )
        for _ in range(count)
    ]
    body = bytearray(written(drawn)[HEADER_BYTES:])
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(body))
        how = chance.randrange(4)
        if how == 0:
            body[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif how == 1:
            body[at:at] = chance.randbytes(chance.randrange(1, 12))
        elif how == 2:
            del body[at : at + chance.randrange(1, 12)]
        else:
            body[at] ^= 1 << chance.randrange(8)
        body = body or bytearray(1)
    return bytes(body), max(0, count + chance.choice((0, 0, 0, -1, 1))) or 1


def test_numpy_is_used_where_it_is_loaded_and_not_loaded_for_this() -> None:
    body = written([Record(b"k", b"v")] * 300)[HEADER_BYTES:]
    program = (
        "import sys; from protocol.kafka.records import check_records, columns_of; body = sys.stdin.buffer.read();"
        "print(check_records(body, 0, 0, 300), columns_of(body, 300, 0)[1].hex()[:200], 'numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], input=body, capture_output=True, check=True, timeout=60)
    assert "numpy" in sys.modules
    here = check_records(body, 0, 0, 300), columns_of(body, 300, 0)[1].hex()[:200]
    assert run.stdout.decode().strip() == f"{here[0]} {here[1]} False"
