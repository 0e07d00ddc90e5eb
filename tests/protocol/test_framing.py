"""Frames: however the bytes are cut, the same frames come out, or a protocol error before anything is buffered."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import framing
from protocol.codec import pack
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import (
    FrameBuffer,
    FrameReader,
    RequestFrame,
    ResponseFrame,
    decode_request,
    decode_response,
    encode_frame,
    encode_refusal,
    encode_request,
    encode_response,
    encode_response_in_pieces,
)

payloads = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


def framed(parts: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


@given(payloads)
def test_frames_that_come_byte_by_byte_come_out_whole(parts: list[bytes]) -> None:
    reader = FrameReader()
    found: list[bytes | bytearray] = []
    for byte in framed(parts):
        found += reader.feed(bytes([byte]))
    assert found == parts
    assert reader.buffered_bytes == 0


@given(payloads, st.data())
def test_frames_come_out_whole_however_they_are_cut(parts: list[bytes], data: st.DataObject) -> None:
    stream = framed(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = FrameReader()
    found: list[bytes | bytearray] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == parts


def test_every_way_to_cut_three_frames_in_two() -> None:
    parts = [b"a", b"bc" * 20, b"d" * 300]
    stream = framed(parts)
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])] == parts


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_random_bytes_are_frames_or_a_protocol_error_and_never_buffered_beyond_the_bound(pieces: list[bytes]) -> None:
    reader = FrameReader(max_frame_bytes=64)
    given_bytes = taken = 0
    for piece in pieces:
        given_bytes += len(piece)
        try:
            for payload in reader.feed(piece):
                assert 0 < len(payload) <= 64
                taken += 4 + len(payload)
        except ProtocolError:
            return
        assert reader.buffered_bytes == given_bytes - taken <= 64 + 4


@pytest.mark.parametrize("length", [0, 65, 2**31, 2**32 - 1])
def test_a_length_outside_the_bounds_is_refused_before_a_byte_of_the_frame_is_there(length: int) -> None:
    reader = FrameReader(max_frame_bytes=64)
    assert list(reader.feed(struct.pack(">I", length)[:3])) == []
    with pytest.raises(ProtocolError, match=f"a frame of {length} bytes is outside the bounds of 1 to 64"):
        list(reader.feed(struct.pack(">I", length)[3:]))


def test_frames_before_a_bad_length_are_given_out() -> None:
    frames = FrameReader(max_frame_bytes=64).feed(framed([b"good", b"also good"]) + struct.pack(">I", 0))
    assert [next(frames), next(frames)] == [b"good", b"also good"]
    with pytest.raises(ProtocolError):
        next(frames)


def test_the_largest_frame_passes() -> None:
    assert list(FrameReader(max_frame_bytes=64).feed(framed([b"x" * 64]))) == [b"x" * 64]


def received(buffer: FrameBuffer, data: bytes) -> list[bytes]:
    """What comes of ``data`` when a loop receives it, as much at a time as there is space for."""
    found: list[bytes] = []
    while data:
        space = buffer.space()
        portion, data = data[: len(space)], data[len(space) :]
        space[: len(portion)] = portion
        found += map(bytes, buffer.received(len(portion)))
    return found


lengths = st.lists(st.sampled_from((1, 300, 65_531, 65_532, 65_533, 70_000, 200_000)), max_size=8)


@given(lengths, st.data())
def test_frames_of_any_length_are_received_whole_however_they_are_cut(sizes: list[int], data: st.DataObject) -> None:
    parts = [bytes([65 + place]) * size for place, size in enumerate(sizes)]
    stream = framed(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    buffer = FrameBuffer()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += received(buffer, stream[start:end])
    assert found == parts


def test_the_memory_of_a_long_frame_serves_the_next_one_and_is_given_back_when_a_short_one_comes() -> None:
    buffer = FrameBuffer()
    head = struct.pack(">I", 2_000_000)
    assert received(buffer, head) == []
    first = buffer.space()
    assert len(first) == 2_000_000
    assert received(buffer, bytes(2_000_000) + head) == [bytes(2_000_000)]
    assert buffer.space().obj is first.obj
    assert received(buffer, bytes(2_000_000) + framed([b"short"]) + head) == [bytes(2_000_000), b"short"]
    assert buffer.space().obj is not first.obj


def test_memory_for_a_very_long_frame_grows_with_what_has_come_of_it() -> None:
    buffer, payload = FrameBuffer(), bytes(range(256)) * 100_000
    assert received(buffer, struct.pack(">I", len(payload))) == []
    assert len(buffer.space()) == 8 * 1024 * 1024
    assert received(buffer, payload[:-1]) == []
    assert received(buffer, payload[-1:]) == [payload]


@pytest.mark.parametrize("length", [0, 100_001, 2**32 - 1])
def test_no_memory_is_taken_for_a_frame_beyond_the_bound(length: int) -> None:
    buffer = FrameBuffer(max_frame_bytes=100_000)
    assert received(buffer, framed([b"x" * 100_000])) == [b"x" * 100_000]
    with pytest.raises(ProtocolError, match=f"a frame of {length} bytes is outside the bounds of 1 to 100000"):
        received(buffer, struct.pack(">I", length))


names = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.integers(0, 2**15), st.integers(0, 10), st.integers(0, 2**63 - 1), names, st.lists(st.integers(0, 9)))
def test_a_request_survives(key: int, version: int, correlation_id: int, client: str, body: list[int]) -> None:
    (payload,) = FrameReader().feed(encode_request(key, version, correlation_id, client, body))
    assert decode_request(payload) == RequestFrame(key, version, correlation_id, client, tuple(body))


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 9)))
def test_a_response_survives(correlation_id: int, body: list[int]) -> None:
    (payload,) = FrameReader().feed(encode_response(correlation_id, body))
    assert decode_response(payload) == ResponseFrame(correlation_id, tuple(body))


def test_a_refusal_survives_and_its_text_is_bounded() -> None:
    (payload,) = FrameReader().feed(encode_refusal(7, ErrorCode.UNSUPPORTED_VERSION, "why " * 1000))
    refused = decode_response(payload)
    assert (refused.correlation_id, refused.body, refused.error_code) == (7, None, ErrorCode.UNSUPPORTED_VERSION)
    assert refused.error_message.startswith("why why")
    assert len(refused.error_message) == 1000


def test_a_refusal_with_a_code_from_the_future_is_a_server_error() -> None:
    assert decode_response(pack([1, None, 9999, "new"])).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    "frame",
    [
        None, 5, "text", {}, [], [0, 0, 0, "c"], ["0", 0, 0, "c", []], [0, "0", 0, "c", []], [0, 0, "0", "c", []],
        [0, 0, -1, "c", []], [0, 0, 2**63, "c", []], [0, 0, 0, None, []], [0, 0, 0, b"c", []],
        [0, 0, 0, "c" * 1025, []], [True, 0, 0, "c", []],
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(frame: object) -> None:
    with pytest.raises(ProtocolError):
        decode_request(pack(frame))


@pytest.mark.parametrize("frame", [None, 5, "text", {}, [], [1], ["1", []], [None, []], [1.0, []]])
def test_what_is_no_response_is_refused(frame: object) -> None:
    with pytest.raises(ProtocolError):
        decode_response(pack(frame))


@given(st.binary(max_size=60))
def test_random_payloads_are_envelopes_or_a_protocol_error(payload: bytes) -> None:
    for decode in (decode_request, decode_response):
        try:
            decode(payload)
        except ProtocolError:
            continue


def test_later_parts_of_an_envelope_are_ignored() -> None:
    assert decode_request(pack([1, 0, 2, "c", [3], "new"])) == RequestFrame(1, 0, 2, "c", (3,))
    assert decode_response(pack([2, [3], "new"])) == ResponseFrame(2, (3,))


def test_the_length_is_four_bytes_big_endian() -> None:
    assert encode_frame([1, 2]) == b"\x00\x00\x00\x03\x92\x01\x02"


LONG = bytes(range(256)) * 300
BODIES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9) | st.binary(max_size=9) | st.just(LONG),
    lambda inner: st.lists(inner, max_size=5) | st.lists(inner, max_size=5).map(tuple),
    max_leaves=12,
)


@given(st.integers(0, 2**31 - 1), st.lists(BODIES, max_size=5))
def test_a_response_in_pieces_is_the_same_and_copies_nothing_long(correlation_id: int, body: list[Any]) -> None:
    pieces = encode_response_in_pieces(correlation_id, body)
    assert b"".join(pieces) == encode_response(correlation_id, body)
    assert all(piece is LONG or len(piece) < len(LONG) for piece in pieces)


def test_what_an_answer_was_packed_with_leaves_no_trace_in_the_next() -> None:
    """The packer is kept: of one that fails half way nothing may stay, and of a large one not its memory."""
    kept = framing._answers.pack
    with pytest.raises(TypeError):
        encode_response(1, ["half of this is packed", object()])
    assert encode_response(1, [2]) == encode_frame((1, [2]))
    assert framing._answers.pack is kept
    assert encode_response(1, [LONG]) == encode_frame((1, [LONG]))
    assert framing._answers.pack is not kept
    assert encode_response(1, [2]) == encode_frame((1, [2]))
