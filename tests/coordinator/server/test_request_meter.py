"""What is counted of requests, at a real listener over a real socket, by a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import Dispatcher
from coordinator.server.listener import ConnectionLimits, Listener, native_port
from coordinator.server.request_meter import RequestMeter
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import encode_request
from protocol.messages import Request
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, HeartbeatResponse
from protocol.messages.offsets import CommittedPartition, CommittedTopic, OffsetCommitRequest, OffsetCommitResponse
from protocol.messages.topics import DeleteTopicsRequest

LIMITS = ConnectionLimits(
    max_connections=10, max_frame_bytes=10_000, max_in_flight=10, max_request_memory_bytes=10_000,
    frame_timeout_ms=10_000, max_idle_ms=10_000,
)  # fmt: skip
BEAT = HeartbeatRequest("g", 1, "m", None, 0)
STRANGER = HeartbeatRequest("g", 1, "who", None, 0)
COMMIT = OffsetCommitRequest("g", 1, "m", None, ())


class Clock:
    """Seconds that pass when they are told to; counts who asks."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now_s


async def asked(meter: RequestMeter, clock: Clock, requests: tuple[Request, ...]) -> None:
    """Asks them one after the other; a commit takes two seconds, and a stranger is refused."""

    def heartbeat(call: Call) -> None:
        call.answer(CARRY_ON if call.request == BEAT else HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID, "who?"))

    def commit(call: Call) -> Iterator[None]:
        yield
        clock.now_s += 2.0
        unknown = CommittedPartition(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        known = CommittedPartition(0, ErrorCode.NONE)
        call.answer(OffsetCommitResponse((CommittedTopic("t", (unknown, known)), CommittedTopic("u", (unknown,)))))

    def delete(call: Call) -> None:
        call.refuse(ErrorCode.INVALID_REQUEST, "not today")

    handlers: dict[type[Request], Handler] = {
        HeartbeatRequest: heartbeat,
        OffsetCommitRequest: commit,
        DeleteTopicsRequest: delete,
    }
    dispatcher = Dispatcher(meter.timing(handlers), {kind.api_key: kind for kind in handlers})
    listener = Listener(LIMITS)
    host, port = await listener.start(
        native_port(dispatcher.handle, LIMITS.max_frame_bytes, meter=meter), "127.0.0.1", 0
    )
    try:
        reader, writer = await asyncio.open_connection(host, port)
        async with asyncio.timeout(20):
            for number, request in enumerate(requests):
                version = request.versions[1]
                writer.write(encode_request(request.api_key, version, number, "c", encode_message(request)))
                await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        writer.close()
    finally:
        await listener.close(1.0)


async def test_every_request_is_counted_once_by_its_api_key_with_its_error() -> None:
    clock = Clock()
    meter = RequestMeter("native", clock)
    await asked(meter, clock, (BEAT, BEAT, STRANGER, BEAT, COMMIT, DeleteTopicsRequest(("t",))))
    for _ in range(2):  # to ask changes nothing
        counts = meter.by_api()
        assert {api: each.requests for api, each in counts.items()} == {
            "Heartbeat": 4,
            "OffsetCommit": 1,
            "DeleteTopics": 1,
        }
        assert counts["Heartbeat"].errors == {ErrorCode.UNKNOWN_MEMBER_ID: 1}
        assert counts["DeleteTopics"].errors == {ErrorCode.INVALID_REQUEST: 1}
        assert counts["OffsetCommit"].errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2}
    await asked(meter, clock, (BEAT,))
    assert meter.by_api()["Heartbeat"].requests == 5


async def test_a_request_is_timed_from_its_handler_to_its_answer() -> None:
    clock = Clock()
    meter = RequestMeter("native", clock)
    await asked(meter, clock, (COMMIT,))
    seconds = meter.by_api()["OffsetCommit"].seconds
    assert seconds is not None
    assert (seconds.count, seconds.total) == (1, 2.0)


async def test_no_clock_is_read_for_a_heartbeat() -> None:
    clock = Clock()
    meter = RequestMeter("native", clock)
    await asked(meter, clock, (BEAT, STRANGER))
    assert (clock.asked, meter.by_api()["Heartbeat"].seconds) == (0, None)
