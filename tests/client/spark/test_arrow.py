"""Arrow columns become the record batches that the Python client would have made, and come back as Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.errors import InvalidRecordError
from client.spark.tasks.arrow import ArrowBatches, Column, Rows, headers_column
from client.types.columns import RecordColumns
from protocol.record_batch import EncodedBatch, decode_columns, encode_batch, read_header
from protocol.subscription import TopicPartition

FULL = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", tz="UTC")),
        ("timestampType", pyarrow.int32()),
        ("headers", pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))),
    ]
)
HEADER = st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.one_of(st.none(), st.binary(max_size=3))})
rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=9)),
        st.one_of(st.none(), st.binary(max_size=20)),
        st.one_of(st.none(), st.lists(HEADER, max_size=2)),
    ),
    min_size=1,
    max_size=40,
)


def as_rows(given_rows: list[Any], before: int = 0) -> Rows:
    """Through Arrow arrays that begin in the middle of their buffers."""
    keys, values, headers = zip(*[(b"-", b"-", None)] * before, *given_rows, strict=True)
    return Rows(
        Column.of(pyarrow.array(values, pyarrow.binary())[before:]),
        Column.of(pyarrow.array(keys, pyarrow.binary())[before:]),
        headers_column(pyarrow.array(headers, FULL.field("headers").type)[before:]),
    )


def stored(batch: EncodedBatch) -> bytes:
    return b"".join(batch.pieces())


@given(rows, st.integers(0, 9))
@settings(deadline=None)
def test_a_batch_is_byte_for_byte_that_of_the_python_client(given_rows: list[Any], before: int) -> None:
    rows = as_rows(given_rows, before)
    (portion,) = rows.portions(2**20, rows.sizes())
    expected = encode_batch(
        [value for _, value, _ in given_rows],
        [key for key, _, _ in given_rows],
        timestamps_ms=[7] * len(given_rows),
        headers=[tuple((one["key"], one["value"]) for one in headers or ()) for _, _, headers in given_rows],
    )
    assert stored(portion.encode(7, None)) == expected


@given(rows, st.integers(1, 200))
@settings(deadline=None)
def test_rows_come_back_through_arrow_however_they_are_cut(given_rows: list[Any], batch_bytes: int) -> None:
    tp = TopicPartition("t", 3)
    parts = []
    rows = as_rows(given_rows)
    for portion in rows.portions(batch_bytes, rows.sizes()):
        content = stored(portion.encode(7, None))
        header = read_header(content)
        parts.append(RecordColumns(tp, header, decode_columns(content, 0, header)))
    table = ArrowBatches(FULL, "t", 3).batch(parts)
    assert table.schema.equals(FULL)
    assert table.column("key").to_pylist() == [key for key, _, _ in given_rows]
    assert table.column("value").to_pylist() == [value for _, value, _ in given_rows]
    assert table.column("headers").to_pylist() == [headers or None for _, _, headers in given_rows]
    assert set(table.column("partition").to_pylist()) == {3}
    assert {time.timestamp() for time in table.column("timestamp").to_pylist()} == {0.007}


def test_strings_and_nulls_with_bytes_behind_them_are_cleaned() -> None:
    assert Column.of(pyarrow.array(["é", None])).data.tobytes() == "é".encode()
    offsets, data = pyarrow.array([0, 2, 4], pyarrow.int32()).buffers()[1], pyarrow.py_buffer(b"abcd")
    hidden = pyarrow.Array.from_buffers(pyarrow.binary(), 2, [pyarrow.py_buffer(b"\x01"), offsets, data])
    column = Column.of(hidden)
    assert column.data[column.offsets[0] : column.offsets[-1]].tobytes() == b"ab"


def test_only_the_columns_asked_for_are_made() -> None:
    content = stored(as_rows([(b"k", b"v", None)]).encode(7, "gzip"))
    header = read_header(content)
    part = RecordColumns(TopicPartition("t", 0), header, decode_columns(content, 0, header))
    asked = pyarrow.schema([("offset", pyarrow.int64()), ("value", pyarrow.binary())])
    assert ArrowBatches(asked, "t", 0).batch([part, part]).to_pylist() == [{"offset": 0, "value": b"v"}] * 2


def test_a_header_needs_a_key() -> None:
    headers = pyarrow.array([[{"key": None, "value": b""}]], FULL.field("headers").type)
    with pytest.raises(InvalidRecordError, match="a header without a key"):
        headers_column(headers)


def test_a_time_that_spark_cannot_have_is_null_and_the_others_stay() -> None:
    given_ms = [7, 1_700_000_000_000_000_000, 2**63 - 1, (2**63 - 1) // 1000]
    content = encode_batch([b"v"] * 4, timestamps_ms=given_ms)
    header = read_header(content)
    part = RecordColumns(TopicPartition("t", 0), header, decode_columns(content, 0, header))
    asked = pyarrow.schema([("timestamp", pyarrow.timestamp("us", tz="UTC"))])
    column = ArrowBatches(asked, "t", 0).batch([part]).column("timestamp")
    assert column.cast(pyarrow.int64()).to_pylist() == [7_000, None, None, given_ms[3] * 1000]
