"""Records as columns: the same records as one by one, buffers as Arrow lays them out, slices without a copy."""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import ConsumerRecord, RecordColumns, TopicPartition
from client.consumer.decoding import BatchDecoder
from protocol.errors import ProtocolError
from protocol.record_batch import Attributes, decode_columns, encode_batch, iter_batches

T0 = TopicPartition("t", 0)
Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...], int]

items = st.none() | st.binary(max_size=6) | st.just(b"equal")
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
rows: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(items, items, st.integers(0, 2**40), headers, st.integers(1, 3)), min_size=1, max_size=90
)


def columns_of(
    content: list[Row], *, gaps: bool, compression: Any = None
) -> tuple[RecordColumns, list[ConsumerRecord]]:
    keys, values, times, names, steps = zip(*content, strict=True)
    offsets = [sum(steps[:index]) for index in range(len(steps))] if gaps else None
    stored = encode_batch(
        list(values), list(keys), timestamps_ms=times, headers=list(names), offsets=offsets, compression=compression
    )
    ((position, header),) = iter_batches(stored)
    batch = BatchDecoder(None, None).records(T0, stored, position, header, 0)
    assert batch is not None
    return RecordColumns(T0, header, decode_columns(stored, position, header)), batch.take(batch.end)


def by_hand(columns: RecordColumns) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """What a reader of Arrow's layout finds in the buffers."""

    def items(column: Any) -> list[bytes | None]:
        if column is None:
            return [None] * len(columns)
        assert column.offsets.format == "i"
        assert len(column) == len(columns)
        found: list[bytes | None] = []
        for index in range(len(column)):
            here = column.validity is None or column.validity[index // 8] >> index % 8 & 1
            found.append(bytes(column.data[column.offsets[index] : column.offsets[index + 1]]) if here else None)
        return found

    assert columns.timestamps_ms.format == "q"
    return list(zip(columns.offsets, columns.timestamps_ms, items(columns.key), items(columns.value), strict=True))


@given(rows, st.booleans(), st.sampled_from([None, "gzip", "zstd"]), st.integers(0, 95), st.integers(0, 95))
def test_they_are_the_records_of_the_batch_and_slices_of_them(
    content: list[Row], gaps: bool, compression: Any, start: int, stop: int
) -> None:
    whole, records = columns_of(content, gaps=gaps, compression=compression)
    for columns, expected in (
        (whole, records),
        (whole[start:stop], records[start:stop]),
        (whole[start:][: stop - start] if start <= stop else whole[:0], records[start:stop]),
        (whole.since(start), [record for record in records if record.offset >= start]),
    ):
        assert len(columns) == len(expected)
        assert columns.records() == expected
        assert by_hand(columns) == [(each.offset, each.timestamp_ms, each.key, each.value) for each in expected]
        assert columns.keys() == [each.key for each in expected]
        assert columns.values() == [each.value for each in expected]
        assert columns.headers() == [each.headers for each in expected]


def test_nothing_is_copied_and_the_columns_are_aligned_as_arrow_wants_them() -> None:
    stored = encode_batch([b"abc"] * 100, timestamps_ms=[7] * 100)
    ((position, header),) = iter_batches(stored)
    columns = RecordColumns(T0, header, decode_columns(stored, position, header))[10:20]
    for buffer in (columns.value.data, columns.value.offsets, columns.timestamps_ms):
        assert buffer.obj is stored
    body = memoryview(stored)[80:]
    value = columns.value
    assert value.offsets.tobytes() == body[40:84].tobytes()
    assert columns.timestamps_ms.tobytes() == body[408 + 80 : 408 + 160].tobytes()
    assert value.data.tobytes()[:300] == b"abc" * 100


def test_when_the_daemon_sets_the_times_its_own_stands_for_all() -> None:
    stored = encode_batch([b"a", b"b"], timestamps_ms=[1, 2])
    ((position, header),) = iter_batches(stored)
    header = replace(header, attributes=header.attributes | Attributes.LOG_APPEND_TIME, max_timestamp=99)
    columns = RecordColumns(T0, header, decode_columns(stored, position, header))
    assert list(columns.timestamps_ms) == [99, 99]
    assert list(columns[1:].timestamps_ms) == [99]


def test_headers_that_do_not_parse_disturb_only_those_who_ask_for_them() -> None:
    good = encode_batch([b"a"], timestamps_ms=[1], headers=[(("n", b"v"),)])
    bad = good.replace(b"\x91\x92\xa1n", b"\xc1\x92\xa1n")
    ((_, header),) = iter_batches(good)
    body = bad[80:]
    header = replace(header, body_crc=zlib.crc32(body))
    columns = RecordColumns(T0, header, decode_columns(header.pack() + body, 0, header))
    assert columns.values() == [b"a"]
    with pytest.raises(ProtocolError, match="record headers do not parse"):
        columns.headers()


def test_what_it_is_shows_and_single_items_are_asked_for_otherwise() -> None:
    columns, _ = columns_of([(None, b"x", 0, (), 1)] * 3, gaps=False)
    assert repr(columns) == "<RecordColumns t-0: 3 records, offsets 0 to 2>"
    assert repr(columns[2:1]) == "<RecordColumns t-0: 0 records, none>"
    assert columns.key is None
    with pytest.raises(TypeError, match=r"values\(\)\[i\]"):
        columns[0]  # type: ignore[index]
    with pytest.raises(ValueError, match="the step of a slice of columns is 2"):
        columns[::2]


def test_arrow_gets_the_same_buffers_or_its_absence_is_told() -> None:
    columns, records = columns_of([(b"k", b"v", 5, (("h", b"1"),), 1), (None, None, 6, (), 1)], gaps=False)
    if importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(ModuleNotFoundError, match=r"pip install pyarrow.*value, timestamps_ms and offsets"):
            columns.to_arrow()
        return
    batch = columns.to_arrow()
    assert batch.column("offset").to_pylist() == [0, 1]
    assert batch.column("key").to_pylist() == [record.key for record in records]
    assert batch.column("value").to_pylist() == [record.value for record in records]
    assert batch.column("headers").to_pylist() == [[{"name": "h", "value": b"1"}], []]
