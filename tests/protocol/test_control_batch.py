"""Control batches: the ends that go in come out, and nothing else passes for one."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.control_batch import TransactionEnd, decode_control_batch, encode_control_batch
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, Attributes, encode_batch, read_header, restamped

int16, int32, int64 = st.integers(0, 2**15 - 1), st.integers(-1, 2**31 - 1), st.integers(0, 2**63 - 1)
ends = st.builds(TransactionEnd, int32, int64, int16, st.booleans(), int64)

COMMIT, ABORT = struct.pack("<hh", 0, 1), struct.pack("<hh", 0, 0)
VALUE = msgpack.packb([3, 7, 2, 40])


def stored(batch: list[bytes]) -> bytes:
    return b"".join(batch)


def forged(key: bytes | None, value: bytes | None) -> bytes:
    """A control batch with one record that its writer chose."""
    batch = encode_batch([value], [key], timestamps_ms=[0])
    header = read_header(batch)
    return replace(header, attributes=header.attributes | Attributes.CONTROL).pack() + batch[HEADER_BYTES:]


@given(st.lists(ends, min_size=1, max_size=20), st.integers(0, 2**60), st.integers(0, 2**40))
def test_ends_come_out_as_they_went_in(ended: list[TransactionEnd], now_ms: int, offset: int) -> None:
    encoded = encode_control_batch(ended, now_ms)
    before = stored(encoded.pieces())
    batch = restamped(before, offset, 5) + before[HEADER_BYTES:]  # as a leader writes it
    for buffer, position in ((batch, 0), (memoryview(b"12345678" + batch), 8)):
        header = read_header(buffer, position)
        assert decode_control_batch(buffer, position, header) == ended
    assert header.attributes & Attributes.CONTROL
    assert not header.attributes & Attributes.TRANSACTIONAL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.base_offset, header.record_count, header.last_offset_delta) == (offset, len(ended), len(ended) - 1)
    assert header.base_timestamp == header.max_timestamp == now_ms


def test_the_bytes_are_those_of_the_document() -> None:
    ended = [TransactionEnd(3, 7, 2, True, 40)]
    batch = stored(encode_control_batch(ended, 0).pieces())
    assert batch[HEADER_BYTES:] == forged(COMMIT, VALUE)[HEADER_BYTES:]
    assert decode_control_batch(batch, 0, read_header(batch)) == ended


def test_later_fields_and_versions_are_ignored() -> None:
    batch = forged(struct.pack("<hhh", 9, 0, 4), msgpack.packb([3, 7, 2, 40, "new", None]))
    assert decode_control_batch(batch, 0, read_header(batch)) == [TransactionEnd(3, 7, 2, False, 40)]


def test_a_control_batch_without_an_end_is_not_made() -> None:
    with pytest.raises(ValueError, match="at least one end"):
        encode_control_batch([], 0)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (None, VALUE, "without the key or the value"),
        (COMMIT, None, "without the key or the value"),
        (b"\0\0\1", VALUE, "without the key or the value"),
        (struct.pack("<hh", 0, 2), VALUE, "type 2"),
        (ABORT, b"", "does not parse"),
        (ABORT, b"\xc1", "does not parse"),
        (ABORT, VALUE + b"\0", "does not parse"),
        (ABORT, msgpack.packb([3, 7, 2]), "no array of at least four integers"),
        (ABORT, msgpack.packb([3, 7, True, 40]), "no array of at least four integers"),
        (ABORT, msgpack.packb([3, 7, None, 40]), "no array of at least four integers"),
        (ABORT, msgpack.packb([3, 7, 2, 2**63]), "no array of at least four integers"),
        (ABORT, msgpack.packb("text"), "no array of at least four integers"),
        (ABORT, msgpack.packb(7), "no array of at least four integers"),
    ],
)
def test_a_record_that_is_no_end_marker_is_refused(key: bytes | None, value: bytes | None, text: str) -> None:
    batch = forged(key, value)
    with pytest.raises(ProtocolError, match=text):
        decode_control_batch(batch, 0, read_header(batch))


def test_a_batch_without_the_attribute_is_refused() -> None:
    batch = encode_batch([VALUE], [COMMIT], timestamps_ms=[0])
    with pytest.raises(ProtocolError, match="no control batch"):
        decode_control_batch(batch, 0, read_header(batch))


def test_a_damaged_body_is_refused() -> None:
    batch = bytearray(stored(encode_control_batch([TransactionEnd(3, 7, 2, True, 40)], 0).pieces()))
    batch[-8] ^= 1
    with pytest.raises(ProtocolError, match="its body is damaged"):
        decode_control_batch(bytes(batch), 0, read_header(bytes(batch)))


def test_one_that_compaction_has_emptied_has_no_end() -> None:
    header = replace(read_header(forged(COMMIT, VALUE)), record_count=0, length=HEADER_BYTES, body_length=0)
    assert decode_control_batch(header.pack(), 0, header) == []


@settings(max_examples=200)
@given(st.none() | st.binary(max_size=8) | st.sampled_from([COMMIT, ABORT]), st.none() | st.binary(max_size=16))
def test_no_forged_record_makes_a_reader_crash(key: bytes | None, value: bytes | None) -> None:
    batch = forged(key, value)
    try:
        decode_control_batch(batch, 0, read_header(batch))
    except ProtocolError:
        return


@given(st.lists(ends, min_size=1, max_size=3), st.data())
def test_no_forged_column_makes_a_reader_crash(ended: list[TransactionEnd], data: st.DataObject) -> None:
    """One number of the body is replaced, and the checksum made right again."""
    batch = bytearray(stored(encode_control_batch(ended, 0).pieces()))
    place = HEADER_BYTES + 4 * data.draw(st.integers(0, (len(batch) - HEADER_BYTES) // 4 - 1))
    struct.pack_into("<i", batch, place, data.draw(st.integers(-(2**31), 2**31 - 1)))
    header = replace(read_header(bytes(batch)), body_crc=zlib.crc32(batch[HEADER_BYTES:]))
    try:
        decode_control_batch(header.pack() + bytes(batch[HEADER_BYTES:]), 0, header)
    except ProtocolError:
        return
