"""A connection without a socket: bytes in, calls out; answers in, bytes out."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb

from coordinator.server.budget import ByteBudget
from coordinator.server.native_codec import NativeCodec
from coordinator.server.server_connection import (
    MOST_HELD_BACK_BYTES,
    Codec,
    RequestRefusedError,
    ServerConnection,
)
from protocol.codec import encode_message
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import FrameReader, RequestFrame, decode_response, encode_frame, encode_request, encode_response
from protocol.messages import ApiKey, Request, Response
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, SyncGroupAssignment, SyncGroupRequest
from protocol.messages.offsets import CommittedPartition, CommittedTopic, OffsetCommitRequest, OffsetCommitResponse
from protocol.messages.records import FetchedPartition, FetchedTopic, FetchResponse

MAX_FRAME_BYTES = 1 << 20
BEAT = HeartbeatRequest("g", 1, "m")


@dataclass
class Asked:
    """A call as these tests need it."""

    frame: RequestFrame
    request: Request
    charge: int

    @property
    def correlation_id(self) -> int:
        return self.frame.correlation_id


def connection(max_in_flight: int = 100, budget: int = 1 << 30, **parts: Any) -> ServerConnection[Asked]:
    codec = parts.pop("codec", None) or NativeCodec(MAX_FRAME_BYTES)
    return ServerConnection(codec, Asked, ByteBudget(budget), max_in_flight, **parts)


def frame(request: Request, number: int) -> bytes:
    return encode_request(request.api_key, 0, number, "test", encode_message(request))


def take_each(wire: ServerConnection[Asked]) -> Iterator[Asked]:
    while wire.may_take():
        while wire.decode_step():
            pass
        if wire.may_take() and (call := wire.take()) is not None:
            yield call


def taken(wire: ServerConnection[Asked]) -> list[Asked]:
    """Everything that can be taken now."""
    return list(take_each(wire))


def sent(pieces: Iterable[bytes]) -> list[tuple[int, ErrorCode]]:
    """Which answers these bytes are."""
    answers = [decode_response(payload) for payload in FrameReader().feed(b"".join(pieces))]
    return [(answer.correlation_id, answer.error_code) for answer in answers]


def history(wire: ServerConnection[Asked], pieces: Iterable[bytes]) -> tuple[list[Any], list[bytes], str]:
    """What comes of these pieces: calls, what is sent beside answers, and what the connection ends with."""
    calls: list[Any] = []
    for piece in pieces:
        malformed = ""
        try:
            wire.receive(piece)
        except ProtocolError as error:
            malformed = str(error)  # what came before is taken first
        try:
            for call in take_each(wire):
                calls.append((call.frame, call.request))
        except ProtocolError as error:
            malformed = str(error)
        if malformed:
            return calls, wire.outgoing, malformed
    return calls, wire.outgoing, ""


shares = tuple(SyncGroupAssignment(f"member-{number}", b"share") for number in range(9_000))
LARGE = SyncGroupRequest("g", 1, "m", None, None, None, shares)
GOOD = [frame(BEAT, 1), frame(ApiVersionsRequest(), 2), frame(FindCoordinatorRequest("g", 0), 3), frame(LARGE, 4)]
REFUSED = [
    encode_request(ApiKey.HEARTBEAT, 99, 5, "test", []),
    encode_request(999, 0, 6, "test", []),
    encode_request(ApiKey.DELETE_TOPICS, 0, 7, "test", [["t"] * 9_000]),
    encode_request(ApiKey.METADATA, 0, 8, "test", [["t" * 100] * 9_000]),
]
FATAL = [
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    encode_frame([1, 2]),
    encode_request(ApiKey.HEARTBEAT, 0, 9, "test", ["g", "no number"]),
    encode_request(ApiKey.SYNC_GROUP, 0, 9, "test", ["g", 1, "m", None, None, None, [[1]] * 40_000]),
    frame(BEAT, 1) + frame(BEAT, 1),
]


# Frames and ends are drawn by their places: an example that fails is a line to read and not half a megabyte.
FRAMES = GOOD[1:] + REFUSED
ENDS = [b"", *FATAL]


@given(
    st.lists(st.integers(0, len(FRAMES) - 1), max_size=4, unique=True),
    st.integers(0, len(ENDS) - 1),
    st.lists(st.integers(0, 2**24), max_size=12),
)
def test_every_split_of_the_input_gives_the_same_calls(chosen: list[int], ending: int, places: list[int]) -> None:
    unique, end = [FRAMES[place] for place in chosen], ENDS[ending]
    content = b"".join(unique) + end
    cuts = sorted(place * len(content) >> 24 for place in places)
    pieces = [content[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    whole = history(connection(), [content])
    assert history(connection(), pieces) == whole
    assert len(whole[0]) == sum(entry in GOOD for entry in unique) + (end == FATAL[-1])
    assert len(whole[1]) == sum(entry in REFUSED for entry in unique) + (end in FATAL[3:5])
    assert bool(whole[2]) == bool(end)


@pytest.mark.parametrize("content", [*GOOD[:3], *REFUSED[:2], *FATAL])
def test_byte_by_byte_it_is_the_same_too(content: bytes) -> None:
    content = (GOOD[0] + content if content != GOOD[0] else content)[:20_000]
    whole = history(connection(), [content])
    assert history(connection(), [content[at : at + 1] for at in range(len(content))]) == whole


def test_what_is_half_there_is_counted_and_what_is_whole_is_pending_until_it_is_taken() -> None:
    wire = connection()
    content = frame(BEAT, 1)
    assert not wire.receive(content[:9])
    assert (wire.buffered_bytes, wire.pending_bytes) == (9, 0)
    assert wire.receive(content[9:] + content[:2])
    assert (wire.buffered_bytes, wire.pending_bytes) == (2, len(content) - 4)
    assert wire.take() is not None
    assert (wire.pending_bytes, len(wire.pending)) == (0, 0)


def test_calls_are_bounded_and_each_answer_makes_room() -> None:
    wire = connection(max_in_flight=2)
    wire.receive(b"".join(frame(BEAT, number) for number in range(5)))
    first, second = taken(wire)
    assert not wire.has_room()
    assert sent(wire.answer(second, CARRY_ON)) == [(1, ErrorCode.NONE)]
    (third,) = taken(wire)
    assert sent(wire.refuse(first, ErrorCode.UNKNOWN_SERVER_ERROR, "a fault")) == [(0, ErrorCode.UNKNOWN_SERVER_ERROR)]
    assert wire.finish(third) == []
    assert [call.correlation_id for call in taken(wire)] == [3, 4]


def test_nothing_is_taken_while_the_client_does_not_read_or_a_call_goes_on_in_steps_or_the_budget_is_used_up() -> None:
    wire = connection()
    wire.receive(frame(BEAT, 1))
    for name in ("congested", "busy"):
        setattr(wire, name, True)
        assert not wire.may_take()
        setattr(wire, name, False)
    wire.budget.take(wire.budget.limit)
    assert not wire.may_take()
    wire.budget.give(1)
    assert wire.may_take()
    wire.stop()
    assert not wire.may_take()
    assert wire.pending_bytes == 0


def test_the_budget_has_everything_back_when_calls_are_answered_or_abandoned() -> None:
    wire = connection()
    wire.receive(b"".join(frame(BEAT, number) for number in range(4)) + frame(LARGE, 9))
    calls = taken(wire)
    used = wire.budget.used
    assert used > 4 * len(frame(LARGE, 9)), "what decoding makes of it counts"
    kept, calls[0].charge = calls[0].charge, 0  # its handler gives them back later
    wire.answer(calls[0], CARRY_ON)
    wire.answer(calls[1], CARRY_ON)
    assert wire.budget.used == used - calls[2].charge
    for call in wire.abandon():
        wire.finish(call)
        wire.finish(call)
    assert (wire.budget.used, wire.calls) == (kept, {})


def test_a_correlation_id_in_use_ends_the_connection_and_is_free_again_after_its_answer() -> None:
    wire = connection()
    wire.receive(frame(BEAT, 1) + frame(BEAT, 1))
    call = wire.take()
    assert call is not None
    wire.answer(call, CARRY_ON)
    assert wire.take() is not None
    wire.receive(frame(BEAT, 1))
    with pytest.raises(ProtocolError, match="correlation id 1 is in use"):
        wire.take()


def test_an_envelope_can_be_looked_at_before_its_request_is_taken() -> None:
    wire = connection()
    wire.receive(REFUSED[2] + frame(BEAT, 7))
    assert wire.prepare() is None
    assert sent(wire.outgoing) == [(7, ErrorCode.INVALID_REQUEST)]
    envelope = wire.prepare()
    assert envelope is not None
    assert envelope.body[0] == "g"
    call = wire.take()
    assert call is not None
    assert call.request == BEAT


def test_an_answer_larger_than_a_client_takes_is_refused_instead() -> None:
    wire = connection()
    wire.receive(frame(BEAT, 1) + frame(BEAT, 2) + frame(BEAT, 3))
    first, second, third = taken(wire)
    records = bytes(33 << 20)
    entries = tuple(FetchedPartition(index, ErrorCode.NONE, 0, 0, 0, records) for index in range(2))
    answer = FetchResponse(ErrorCode.NONE, (FetchedTopic("t", entries),))
    assert sent(wire.answer(first, answer)) == [(1, ErrorCode.INVALID_REQUEST)]
    assert sent(wire.answer_packed(second, b"\x92\x00", bytes(65 << 20))) == [(2, ErrorCode.INVALID_REQUEST)]
    pieces = wire.answer(third, FetchResponse(ErrorCode.NONE, (FetchedTopic("t", entries[:1]),)))
    assert any(piece is records for piece in pieces), "it is not copied"


class LineCodec:
    """Requests and answers are lines, and answers leave in the order of requests: all that another wire needs."""

    answers_in_order = True
    light_bytes = 1000

    def __init__(self) -> None:
        self._buffer = b""

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def whole(self, data: bytes) -> None:
        return None

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return lines

    def weight(self, payload: bytes | bytearray) -> int:
        return 1

    def hidden_weight(self, payload: bytes | bytearray) -> int:
        return 0

    def is_large(self, payload: bytes | bytearray) -> bool:
        return False

    def envelope(self, payload: bytes | bytearray) -> RequestFrame:
        number, group = payload.decode().split(" ")
        return RequestFrame(ApiKey.HEARTBEAT, 0, int(number), "", group)

    def request(self, envelope: RequestFrame) -> Request:
        if not envelope.body:
            raise RequestRefusedError(envelope.correlation_id, ErrorCode.INVALID_GROUP_ID, "no group")
        return HeartbeatRequest(envelope.body, 1, "m")

    def group_id(self, envelope: RequestFrame) -> str | None:
        return str(envelope.body)

    def decode_in_steps(self, payload: bytes | bytearray) -> Generator[None, None, tuple[RequestFrame, Request]]:
        yield from ()
        envelope = self.envelope(payload)
        return envelope, self.request(envelope)

    def memory(self, envelope: RequestFrame, size: int) -> int:
        return size

    def encode(self, correlation_id: int, request: Request, response: Response) -> list[bytes]:
        return [b"%d ok\n" % correlation_id]

    def encode_packed(self, correlation_id: int, request: Request, head: bytes, body: bytes) -> list[bytes]:
        return [b"%d " % correlation_id + head, body]

    def encode_refusal(self, correlation_id: int, code: ErrorCode, text: str) -> bytes:
        return b"%d no: %s\n" % (correlation_id, text.encode())


@pytest.mark.parametrize(
    ("api_key", "body", "group_id"),
    [
        (ApiKey.HEARTBEAT, ("g", 1, "m"), "g"),
        (ApiKey.OFFSET_COMMIT, ("",), ""),
        (ApiKey.FIND_COORDINATOR, ("g", 0), None),
        (ApiKey.HEARTBEAT, (7,), None),
        (ApiKey.HEARTBEAT, (), None),
        (ApiKey.HEARTBEAT, None, None),
    ],
)
def test_the_group_of_a_request_is_known_before_its_body_is_checked(
    api_key: int, body: Any, group_id: str | None
) -> None:
    assert NativeCodec(MAX_FRAME_BYTES).group_id(RequestFrame(api_key, 0, 1, "test", body)) == group_id


@st.composite
def heartbeats(draw: st.DrawFn) -> bytes:
    """Frames of few members with all kinds of correlation ids, and what resembles them."""
    fields = [
        draw(st.sampled_from((ApiKey.HEARTBEAT,) * 5 + (ApiKey.LEAVE_GROUP, ApiKey.API_VERSIONS))),
        draw(st.sampled_from((0, 0, 0, 1, 127, 200))),
        draw(st.one_of(*(st.integers(0, 2**bits) for bits in (7, 8, 16, 32, 63)), st.integers(-3, -1), st.none())),
        draw(st.sampled_from(("test", "test", "other", 5))),
        draw(st.sampled_from((("g", 1, "m", None, 0), ("g", 2, "m", None, 0), ("g", 1, "n"), (), None, ("g",)))),
        *draw(st.sampled_from(((), (), ("more",)))),
    ]
    payload: bytes = packb(fields)
    return payload


@given(st.lists(heartbeats(), min_size=2, max_size=12))
def test_a_heartbeat_like_the_last_one_is_decoded_as_if_it_were_the_first(payloads: list[bytes]) -> None:
    def decoded(codec: NativeCodec, payload: bytes) -> tuple[RequestFrame, Request] | str:
        try:
            envelope = codec.envelope(payload)
            return envelope, codec.request(envelope)
        except (ProtocolError, RequestRefusedError) as error:
            return f"{type(error).__name__}: {error}"

    codec = NativeCodec(MAX_FRAME_BYTES)
    for payload in payloads:
        assert decoded(codec, payload) == decoded(NativeCodec(MAX_FRAME_BYTES), payload)


@given(st.lists(heartbeats(), min_size=1, max_size=6), heartbeats(), st.integers(0, 3), st.integers(0, 3))
def test_what_repeats_the_last_heartbeat_is_one_whole_frame_that_is_decoded_to_the_same_request(
    before: list[bytes], payload: bytes, missing: int, surplus: int
) -> None:
    codec = NativeCodec(MAX_FRAME_BYTES)
    last: Request | None = None
    for each in [*before, payload]:
        with suppress(ProtocolError, RequestRefusedError):
            decoded = codec.request(codec.envelope(each))
            last = decoded if isinstance(decoded, HeartbeatRequest) else last
    data = (len(payload).to_bytes(4, "big") + payload)[: len(payload) + 4 - missing] + bytes(surplus)
    correlation_id = codec.repeated(data)
    fresh = NativeCodec(MAX_FRAME_BYTES)
    if correlation_id >= 0:
        assert missing == surplus == 0
        envelope = fresh.envelope(payload)
        assert envelope.correlation_id == correlation_id
        assert fresh.request(envelope) == last == codec.last_heartbeat
        assert envelope.client_id == codec.last_client_id


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1)), max_size=12))
def test_a_commit_that_has_the_answer_of_the_last_is_answered_with_the_same_bytes_but_its_correlation_id(
    answers: list[tuple[int, int]],
) -> None:
    def answer(*partitions: int, name: str = "orders", message: str = "") -> OffsetCommitResponse:
        return OffsetCommitResponse(
            (CommittedTopic(name, tuple(CommittedPartition(number, 0) for number in partitions)),), message
        )

    choices = (answer(1), answer(1), answer(2), answer(1, message="no"), answer(1, 2), answer(1, name="o" * 300))
    request = OffsetCommitRequest("g", -1, "", None, ())
    codec = NativeCodec(MAX_FRAME_BYTES)
    for place, correlation_id in answers:
        (said,) = codec.encode(correlation_id, request, choices[place])
        assert said == encode_response(correlation_id, encode_message(choices[place]))


def test_a_heartbeat_is_repeated_with_any_correlation_id_but_the_longest() -> None:
    codec = NativeCodec(MAX_FRAME_BYTES)
    assert codec.repeated(frame(BEAT, 1)) == -1, "there is none before"
    codec.request(codec.envelope(frame(BEAT, 1)[4:]))
    for number in (0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1):
        assert codec.repeated(frame(BEAT, number)) == number
    assert codec.repeated(frame(BEAT, 2**32)) == -1
    assert codec.repeated(frame(BEAT, 1)[:-1]) == codec.repeated(frame(BEAT, 1) * 2) == codec.repeated(b"") == -1
    assert codec.repeated(frame(replace(BEAT, generation_id=77), 1)) == -1


def test_the_heartbeats_of_a_member_are_one_object() -> None:
    """They are most of all requests: nothing of the next one is decoded but its correlation id."""
    wire = connection()
    requests = []
    for number in (1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32):
        wire.receive(frame(BEAT, number))
        (call,) = taken(wire)
        assert call.correlation_id == number
        requests.append(call.request)
    assert requests == [BEAT] * len(requests)
    assert len({id(request) for request in requests}) == 2, "the last correlation id is too long"


def test_another_codec_speaks_another_wire_whose_answers_leave_in_the_order_of_the_requests() -> None:
    wire = connection(codec=LineCodec())
    wire.receive(b"1 g\n2 g\n3 \n4 g\n5 g\n6")
    calls = taken(wire)
    assert [call.correlation_id for call in calls] == [1, 2, 4, 5]
    assert wire.outgoing == [], "the refusal waits for the answers before it"
    one, two, four, five = calls
    assert wire.answer(four, CARRY_ON) == []
    assert wire.finish(two) == []
    assert wire.answer(one, CARRY_ON) == [b"1 ok\n", b"3 no: no group\n", b"4 ok\n"]
    assert wire.answer_packed(five, b"he", b"llo\n") == [b"5 he", b"llo\n"]
    wire.receive(b" \n")
    assert taken(wire) == []
    assert wire.outgoing == [b"6 no: no group\n"]


def test_answers_that_wait_for_an_earlier_one_count_as_requests_under_way() -> None:
    wire = connection(codec=LineCodec(), max_in_flight=3)
    wire.receive(b"1 g\n2 g\n3 g\n4 g\n")
    one, two, three = taken(wire)
    assert wire.is_next(1)
    assert not wire.is_next(3)
    assert wire.answer(two, CARRY_ON) == wire.answer(three, CARRY_ON) == []
    assert taken(wire) == [], "what was answered is still held"
    assert wire.held_back == len(b"2 ok\n3 ok\n")
    assert wire.answer(one, CARRY_ON) == [b"1 ok\n", b"2 ok\n", b"3 ok\n"]
    assert wire.held_back == 0
    (four,) = taken(wire)
    assert wire.is_next(4)
    assert wire.answer(four, CARRY_ON) == [b"4 ok\n"]


def test_a_connection_that_holds_much_back_takes_no_further_request() -> None:
    wire = connection(codec=LineCodec())
    wire.receive(b"1 g\n2 g\n")
    one, two = taken(wire)
    wire.receive(b"3 g\n")
    assert wire.answer_packed(two, b"", bytes(MOST_HELD_BACK_BYTES)) == []
    assert taken(wire) == []
    wire.answer(one, CARRY_ON)
    assert [call.correlation_id for call in taken(wire)] == [3]


class Greeting:
    """Asks for a password; its first byte chooses the codec."""

    def __init__(self) -> None:
        self._buffer = b""
        self.codec: Codec = NativeCodec(MAX_FRAME_BYTES)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def receive(self, data: bytes) -> tuple[list[bytes], bytes | None]:
        said = [] if self._buffer else [b"who?"]
        self._buffer += data
        if len(self._buffer) < 7:
            return said, None
        if self._buffer[1:7] != b"secret":
            raise ProtocolError("the password is wrong")
        if self._buffer[:1] == b"L":
            self.codec = cast("Codec", LineCodec())
        rest, self._buffer = self._buffer[7:], b""
        return [*said, b"welcome"], rest


@pytest.mark.parametrize(("choice", "request_bytes"), [(b"L", b"1 g\n"), (b"N", frame(BEAT, 1))])
def test_a_handshake_has_the_connection_until_it_names_the_codec(choice: bytes, request_bytes: bytes) -> None:
    content = choice + b"secret" + request_bytes
    for cut in range(1, len(content)):
        wire = connection(handshake=Greeting())
        wire.receive(content[:cut])
        assert wire.buffered_bytes == (cut if cut < 7 else wire.codec.buffered_bytes)
        wire.receive(content[cut:])
        assert wire.outgoing == [b"who?", b"welcome"]
        (call,) = taken(wire)
        assert call.request == BEAT
        assert wire.answer(call, CARRY_ON)[0].startswith(b"1 ok" if choice == b"L" else b"\0\0\0")


def test_a_handshake_that_fails_ends_the_connection_before_any_call() -> None:
    wire = connection(handshake=Greeting())
    with pytest.raises(ProtocolError, match="password"):
        wire.receive(b"Nsesame" + frame(BEAT, 1))
    assert not wire.may_take()


def test_api_versions_is_answered_whatever_its_version() -> None:
    wire = connection()
    wire.receive(encode_request(ApiKey.API_VERSIONS, 99, 1, "test", []))
    (call,) = taken(wire)
    assert isinstance(call.request, ApiVersionsRequest)
    assert sent(wire.answer(call, ApiVersionsResponse(ErrorCode.NONE, (), ""))) == [(1, ErrorCode.NONE)]
