"""What becomes of the requests of a connection that closes, at a real listener over a real socket."""

from __future__ import annotations

import asyncio

from coordinator.server.dispatch import Call, Tasks
from coordinator.server.listener import ConnectionLimits, Listener
from protocol.codec import encode_message
from protocol.framing import encode_request
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, JoinGroupProtocol, JoinGroupRequest
from protocol.messages.topics import DeleteTopicsRequest

JOIN = JoinGroupRequest("g", 6_000, 6_000, "m", None, "consumer", (JoinGroupProtocol("range", b""),))
BEAT = HeartbeatRequest("g", 1, "m", None, 3_000)
LIMITS = ConnectionLimits(
    max_connections=10, max_frame_bytes=10_000, max_in_flight=10, max_request_memory_bytes=10_000,
    frame_timeout_ms=10_000, max_idle_ms=10_000,
)  # fmt: skip


async def test_a_request_that_is_answered_because_another_one_is_abandoned_gives_its_bytes_back_once() -> None:
    """A parked heartbeat beside a parked JoinGroup is answered when the JoinGroup's connection, and so its own, closes."""
    calls: list[Call] = []
    parked = asyncio.Event()

    def park(call: Call) -> None:
        calls.append(call)
        if len(calls) == 2:
            calls[0].on_abandon = lambda: calls[1].answer(CARRY_ON)
            parked.set()

    listener = Listener(park, LIMITS)
    host, port = await listener.start("127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection(host, port)
        for number, request in enumerate((JOIN, BEAT)):
            version = request.versions[1]
            writer.write(encode_request(request.api_key, version, number, "c", encode_message(request)))
        async with asyncio.timeout(20):
            await parked.wait()
            writer.transport.abort()
            while listener._connections:
                await asyncio.sleep(0)
        assert listener.budget.used == 0
        assert not any(call.open for call in calls)
    finally:
        await listener.close(1.0)


async def test_a_change_that_outlives_its_connection_holds_its_bytes_to_its_end() -> None:
    """Or clients that ask and hang up, while one change takes long, would pile up requests that nothing counts."""
    tasks, begun, goes_on = Tasks(), asyncio.Event(), asyncio.Event()

    async def change() -> None:
        begun.set()
        await goes_on.wait()

    listener = Listener(lambda call: tasks.start_change(call, change()), LIMITS)
    host, port = await listener.start("127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection(host, port)
        request = DeleteTopicsRequest(("t",))
        writer.write(encode_request(request.api_key, request.versions[1], 1, "c", encode_message(request)))
        async with asyncio.timeout(20):
            await begun.wait()
            held = listener.budget.used
            writer.transport.abort()
            while listener._connections:
                await asyncio.sleep(0)
            assert listener.budget.used == held > 0
            goes_on.set()
            while listener.budget.used:
                await asyncio.sleep(0)
    finally:
        goes_on.set()
        await tasks.close(1.0)
        await listener.close(1.0)
