"""Record batches: what goes in comes out, every damaged byte is noticed, and no bytes make a reader crash or over-read."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.columns import ColumnFlags, Columns, Headers, Layout
from protocol.compression import Compression
from protocol.errors import ProtocolError
from protocol.record_batch import (
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    UNKNOWN_GAP,
    Attributes,
    BatchHeader,
    check_body,
    decode_columns,
    encode_batch,
    fingerprint,
    iter_batches,
    read_header,
    restamped,
)

Row = tuple[bytes | None, bytes | None, int, Headers]

names = st.text(st.characters(codec="utf-8"), max_size=6)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=6)), max_size=3).map(tuple)
blobs = st.none() | st.binary(max_size=12)
rows = st.lists(st.tuples(blobs, blobs, st.integers(-(2**63), 2**63 - 1), headers), min_size=1, max_size=20)
every_compression = pytest.mark.parametrize("compression", [None, "gzip", "zstd"])


def encoded(content: list[Row], **more: Any) -> bytes:
    return encode_batch(
        [value for _, value, _, _ in content],
        [key for key, _, _, _ in content],
        timestamps_ms=[timestamp for _, _, timestamp, _ in content],
        headers=[own for _, _, _, own in content],
        **more,
    )


def rows_in(columns: Columns) -> list[Row]:
    return list(zip(columns.keys(), columns.values(), columns.timestamps_ms(), columns.headers(), strict=True))


@every_compression
@given(content=rows)
def test_what_goes_in_comes_out(content: list[Row], compression: Compression | None) -> None:
    batch = encoded(content, compression=compression)
    header = read_header(batch)
    assert rows_in(decode_columns(batch, 0, header)) == content
    assert (header.length, len(batch) % 8) == (len(batch), 0)
    assert (header.record_count, header.last_offset_delta) == (len(content), len(content) - 1)
    times = [timestamp for _, _, timestamp, _ in content]
    assert (header.base_timestamp, header.max_timestamp) == (min(times), max(times))
    assert header.compression == compression


@given(st.integers(1, 200), st.integers(0, 5), st.data())
def test_values_of_one_length_come_out_as_any_others_do(count: int, length: int, data: st.DataObject) -> None:
    values = [(b"%03d--" % number)[:length] for number in range(count)]
    if data.draw(st.booleans()) and length:  # one byte moves: the sum stays what it was
        longer, shorter = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
        values[longer] += values[shorter][:1]
        values[shorter] = values[shorter][1:]
    batch = encode_batch(values, values, timestamps_ms=[0] * count)
    columns = decode_columns(batch, 0, read_header(batch))
    assert columns.values() == columns.keys() == values


@given(rows, st.integers(0, 2**40), st.data())
def test_a_batch_that_compaction_thinned_out_keeps_its_offsets(
    content: list[Row], base: int, data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(1, 9), min_size=len(content), max_size=len(content)))
    offsets = [base + sum(gaps[:count]) for count in range(len(gaps))]
    batch = encoded(content, offsets=offsets)
    header = read_header(batch)
    columns = decode_columns(batch, 0, header)
    assert [header.base_offset + delta for delta in columns.offset_deltas()] == offsets
    assert (header.last_offset, header.next_offset) == (offsets[-1], offsets[-1] + 1)
    assert rows_in(columns) == content


@given(rows, st.integers(0, 2**50), st.integers(0, 2**20), st.integers(0, 2**40))
def test_a_leader_gives_offsets_without_touching_the_body(content: list[Row], base: int, epoch: int, gap: int) -> None:
    batch = encoded(content, producer_id=7, producer_epoch=2, base_sequence=40)
    moved = restamped(batch, base, epoch, gap) + batch[HEADER_BYTES:]
    header = read_header(moved)
    assert (header.base_offset, header.leader_epoch, header.durable_gap) == (base, epoch, min(gap, UNKNOWN_GAP))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert rows_in(decode_columns(moved, 0, header)) == content
    assert (
        moved == replace(read_header(batch), base_offset=base, leader_epoch=epoch, durable_gap=gap).pack() + batch[80:]
    )


@given(rows, st.integers(0, 2**50), st.integers(0, 2**20), st.integers(0, 2**40), st.integers(0, 2**40), st.data())
def test_copies_of_a_batch_differ_in_what_belongs_to_their_node_only(
    content: list[Row], base: int, epoch: int, gap: int, other_gap: int, data: st.DataObject
) -> None:
    batch = encoded(content, producer_id=7, producer_epoch=2, base_sequence=40)
    body = batch[HEADER_BYTES:]
    one, other = (restamped(batch, base, epoch, own) + body for own in (gap, other_gap))
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint(restamped(batch, base + 1, epoch, gap) + body)
    assert fingerprint(one) != fingerprint(restamped(batch, base, epoch + 1, gap) + body)
    at = data.draw(st.integers(0, len(batch) - 1))
    changed = other[:at] + bytes([other[at] ^ 1 << data.draw(st.integers(0, 7))]) + other[at + 1 :]
    assert (fingerprint(one) == fingerprint(changed)) == (at < 8 or 76 <= at < 80)


@given(st.lists(rows, min_size=1, max_size=4), st.data())
def test_batches_in_a_row_are_found_and_a_cut_off_one_is_passed_over(
    batches: list[list[Row]], data: st.DataObject
) -> None:
    parts = [encoded(content) for content in batches]
    stream = b"".join(parts)
    cut = data.draw(st.integers(0, len(stream)))
    ends = [sum(map(len, parts[: count + 1])) for count in range(len(parts))]
    found = list(iter_batches(stream[:cut]))
    assert [position + header.length for position, header in found] == [end for end in ends if end <= cut]
    for (position, header), content in zip(found, batches, strict=False):
        assert rows_in(decode_columns(memoryview(stream), position, header)) == content


SAMPLE: list[Row] = [
    (b"key", b"value", 5, ()),
    (None, b"", 6, (("header", b"x"),)),
    (b"", None, 7, (("a", None), ("b", b""))),
]


@every_compression
def test_every_flipped_byte_is_noticed(compression: Compression | None) -> None:
    batch = encoded(SAMPLE, compression=compression)
    for place in range(len(batch)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(batch)
            damaged[place] ^= flip
            with pytest.raises(ProtocolError):
                decode_columns(bytes(damaged), 0, read_header(bytes(damaged)))


@every_compression
def test_every_cut_is_noticed(compression: Compression | None) -> None:
    batch = encoded(SAMPLE, compression=compression)
    for length in range(len(batch)):
        with pytest.raises(ProtocolError, match=r"left|cut off"):
            check_body(batch[:length], 0, read_header(batch[:length]))


def forged(body: bytes, count: int, attributes: int = 0, body_length: int | None = None) -> bytes:
    """A batch with right checksums around a body that its writer chose with care."""
    body = body.ljust((len(body) + 7) & ~7, b"\0")
    header = BatchHeader(
        length=HEADER_BYTES + len(body),
        body_crc=zlib.crc32(body),
        base_offset=0,
        leader_epoch=0,
        attributes=attributes,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        base_timestamp=0,
        max_timestamp=0,
        record_count=count,
        last_offset_delta=max(0, count - 1),
        body_length=len(body) if body_length is None else body_length,
        durable_gap=0,
    )
    return header.pack() + body


def read_everything(batch: bytes) -> None:
    """Reads a batch as a consumer would. Anything but success or ``ProtocolError`` is a fault of the reader."""
    header = read_header(batch)
    columns = decode_columns(batch, 0, header)
    for column in (columns.keys(), columns.values(), columns.headers()):
        assert len(column) == header.record_count
        assert all(item is None or len(item) <= len(batch) for item in column)
    assert len(columns.timestamps_ms()) == len(columns.offset_deltas()) == header.record_count
    columns.check()


COLUMN_BITS = (
    Attributes.KEYS, Attributes.NULL_KEYS, Attributes.NULL_VALUES, Attributes.HEADERS, Attributes.OFFSET_DELTAS,
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.binary(max_size=200) | rows.map(lambda content: encoded(content)[HEADER_BYTES:]),
    st.integers(0, 30) | st.integers(0, 2**31 - 1),
    st.lists(st.sampled_from(COLUMN_BITS), unique=True),
    st.none() | st.integers(0, MAX_BATCH_BYTES),
    st.integers(0, 1),
)
def test_no_forged_batch_makes_a_reader_crash(
    body: bytes, count: int, bits: list[Attributes], body_length: int | None, compression: int
) -> None:
    try:
        read_everything(forged(body, count, sum(map(int, bits)) | compression, body_length))
    except ProtocolError:
        return


@settings(max_examples=200)
@given(rows, st.data())
def test_no_forged_offset_makes_a_reader_crash(content: list[Row], data: st.DataObject) -> None:
    """One number in the columns of a real batch is replaced, and the checksum made right again."""
    batch = bytearray(encoded(content))
    header = read_header(bytes(batch))
    layout = Layout.of(header.record_count, header.flags)
    place = HEADER_BYTES + 4 * data.draw(st.integers(0, layout.data // 4 - 1))
    struct.pack_into("<i", batch, place, data.draw(st.integers(-(2**31), 2**31 - 1)))
    fixed = replace(header, body_crc=zlib.crc32(batch[HEADER_BYTES:])).pack() + bytes(batch[HEADER_BYTES:])
    try:
        read_everything(fixed)
    except ProtocolError:
        return


def test_offsets_that_fall_or_do_not_begin_at_zero_are_refused_by_check() -> None:
    for offsets in ([0, 5, 3], [1, 2, 3], [-1, 0, 3], [0, -1, 3]):
        body = struct.pack("<3i4x2q", *offsets, 0, 0) + b"abc"
        columns = Columns(memoryview(body.ljust(40, b"\0")), 2, ColumnFlags())
        with pytest.raises(ProtocolError, match="begin at 0 and never fall"):
            columns.check()


def test_a_column_that_leaves_the_body_is_refused() -> None:
    body = struct.pack("<2iq", 0, 1_000_000, 0)
    with pytest.raises(ProtocolError, match="leaves the body"):
        Columns(memoryview(body), 1, ColumnFlags())
    with pytest.raises(ProtocolError, match="5 records need 64 bytes of columns, the body has 16"):
        Columns(memoryview(body), 5, ColumnFlags())


@pytest.mark.parametrize("body_length", [0, 1, 1000])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_decompression_bomb_stops_at_the_length_in_the_header(compression: Compression, body_length: int) -> None:
    import tracemalloc

    if compression == "gzip":
        number, bomb = 1, zlib.compress(bytes(30_000_000), level=9, wbits=31)
    else:
        import zstandard

        number, bomb = 2, zstandard.ZstdCompressor().compress(bytes(30_000_000))
    batch = forged(bomb, 1, number, body_length)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=r"more than|the body has|columns"):
            decode_columns(batch, 0, read_header(batch))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [1, 2])
def test_a_compressed_body_that_is_none_is_refused(number: int) -> None:
    batch = forged(b"this is not compressed at all", 1, number, 100)
    with pytest.raises(ProtocolError, match="does not decompress"):
        decode_columns(batch, 0, read_header(batch))


def test_a_compression_nobody_knows_is_refused() -> None:
    batch = forged(b"x", 1, 3)
    with pytest.raises(ProtocolError, match="compression 3 is unknown"):
        decode_columns(batch, 0, read_header(batch))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("length", HEADER_BYTES - 8), ("length", HEADER_BYTES + 4), ("length", MAX_BATCH_BYTES + 8),
        ("body_length", MAX_BATCH_BYTES + 1), ("record_count", -1), ("last_offset_delta", -1),
        ("last_offset_delta", 1), ("base_offset", -1),
    ],
)  # fmt: skip
def test_an_absurd_header_is_refused_though_its_checksum_is_right(field: str, value: int) -> None:
    header = replace(read_header(encoded(SAMPLE)), **{field: value})
    with pytest.raises(ProtocolError, match=r"outside the bounds|cannot span"):
        read_header(header.pack())


def test_a_foreign_magic_is_refused() -> None:
    with pytest.raises(ProtocolError, match="begins with b'CHB1', found b'CHB2'"):
        read_header(b"CHB2" + encoded(SAMPLE)[4:])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"values": []}, "at least one record"),
        ({"values": [b"a", b"b"]}, "2 values but 1 timestamps"),
        ({"values": [b"a"], "keys": [b"k", b"l"]}, "1 values but 2 keys"),
        ({"values": [b"a"], "headers": []}, "1 values but 0 headers"),
        ({"values": [b"a", b"b"], "timestamps_ms": [1, 1], "offsets": [3, 3]}, "offsets within a batch must rise"),
        ({"values": [b"a"], "compression": "lz4"}, "compression 'lz4' is unknown"),
        ({"values": [bytes(MAX_BATCH_BYTES)]}, "is above the bound"),
    ],
)
def test_a_batch_that_cannot_be_is_not_made(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        encode_batch(**{"timestamps_ms": [1], **arguments})


def test_the_bytes_of_a_small_batch_are_those_of_the_document() -> None:
    batch = encode_batch([b"v"], [b"k"], timestamps_ms=[258])
    assert batch[:4] == b"CHB1"
    assert struct.unpack_from("<I", batch, 4)[0] == zlib.crc32(batch[8:80])
    assert struct.unpack_from("<II", batch, 8) == (len(batch), zlib.crc32(batch[80:]))
    assert struct.unpack_from("<qiHHqhHiqqiiII", batch, 16) == (
        0, -1, 1 << 8, 0, -1, -1, 0, -1, 258, 258, 1, 0, 40, 2**32 - 1,
    )  # fmt: skip
    assert batch[80:] == struct.pack("<2i2iq", 0, 1, 0, 1, 258) + b"k".ljust(8, b"\0") + b"v".ljust(8, b"\0")
