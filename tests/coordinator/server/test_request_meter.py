"""What is counted of requests, at a real listener over a real socket, by a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from coordinator.metrics.definitions import METRICS
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import Dispatcher
from coordinator.server.listener import ConnectionLimits, Listener, native_port
from coordinator.server.request_meter import SAMPLED, RequestMeter
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
    """Asks them one after the other; a heartbeat takes a millisecond, a commit two seconds, and a stranger is refused."""

    def heartbeat(call: Call) -> None:
        clock.now_s += 0.001
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
    assert (seconds.count, seconds.total) == (1, 2.0)


async def test_a_clock_is_read_for_few_heartbeats() -> None:
    clock = Clock()
    meter = RequestMeter("native", clock)
    await asked(meter, clock, (BEAT,) * (2 * SAMPLED + 1))
    heartbeats = meter.by_api()["Heartbeat"]
    assert (heartbeats.requests, clock.asked) == (2 * SAMPLED + 1, 2 * 3)
    assert (heartbeats.seconds.count, round(heartbeats.seconds.total, 6)) == (3, 0.003)
    assert f"of native Heartbeats one in {SAMPLED}" in METRICS["cohort_request_duration_seconds"].text


async def test_a_heartbeat_that_is_refused_is_timed_as_one_that_is_not() -> None:
    clock = Clock()
    meter = RequestMeter("native", clock)
    await asked(meter, clock, (STRANGER, BEAT))
    assert meter.by_api()["Heartbeat"].seconds.count == 1
    assert meter.sampled is None


async def test_a_heartbeat_whose_client_has_gone_keeps_no_other_from_being_timed() -> None:
    clock = Clock()
    meter = RequestMeter("native", clock)
    calls: list[Call] = []
    handle = meter.timing({HeartbeatRequest: calls.append})[HeartbeatRequest]

    class Held:
        open = True
        request = BEAT

    def hold() -> Held:
        handle(held := Held())  # type: ignore[arg-type]
        return held

    first = hold()
    for _ in range(SAMPLED):
        hold()
    assert meter.sampled is first, "one at a time"
    first.open = False
    for _ in range(SAMPLED - 1):
        hold()
    last = hold()
    assert meter.sampled is last
    assert len(calls) == 2 * SAMPLED + 1


async def test_codes_of_a_packed_answer_count_too() -> None:
    clock = Clock()
    meter = RequestMeter("native", clock)

    class Done:
        request = COMMIT
        begun_s = 0.0

    meter.ended(Done(), {ErrorCode.LEADER_NOT_AVAILABLE: 3, ErrorCode.INVALID_REQUEST: 1})
    assert meter.by_api()["OffsetCommit"].errors == {ErrorCode.LEADER_NOT_AVAILABLE: 3, ErrorCode.INVALID_REQUEST: 1}
