"""What becomes of the requests of a connection that closes, at a real listener over a real socket."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from coordinator.server.connection import Port
from coordinator.server.dispatch import Tasks, WireCall
from coordinator.server.listener import ConnectionLimits, Listener, native_port
from protocol.codec import encode_message
from protocol.framing import encode_request
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, JoinGroupProtocol, JoinGroupRequest
from protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse

JOIN = JoinGroupRequest("g", 6_000, 6_000, "m", None, "consumer", (JoinGroupProtocol("range", b""),))
BEAT = HeartbeatRequest("g", 1, "m", None, 3_000)
LIMITS = ConnectionLimits(
    max_connections=10, max_frame_bytes=10_000, max_in_flight=10, max_request_memory_bytes=10_000,
    frame_timeout_ms=10_000, max_idle_ms=10_000,
)  # fmt: skip


async def test_a_request_that_is_answered_because_another_one_is_abandoned_gives_its_bytes_back_once() -> None:
    """A parked heartbeat beside a parked JoinGroup is answered when the JoinGroup's connection, and so its own, closes."""
    calls: list[WireCall] = []
    parked = asyncio.Event()

    def park(call: WireCall) -> None:
        calls.append(call)
        if len(calls) == 2:
            calls[0].on_abandon = lambda: calls[1].answer(CARRY_ON)
            parked.set()

    listener = Listener(LIMITS)
    host, port = await listener.start(native_port(park, LIMITS.max_frame_bytes), "127.0.0.1", 0)
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

    listener = Listener(LIMITS)
    handle = native_port(lambda call: tasks.start_change(call, change()), LIMITS.max_frame_bytes)
    host, port = await listener.start(handle, "127.0.0.1", 0)
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


async def test_two_ports_have_handlers_of_their_own_and_share_their_bounds() -> None:
    said: list[str] = []

    def answering(port: str) -> Port[WireCall]:
        def handle(call: WireCall) -> None:
            said.append(port)
            call.answer(DeleteTopicsResponse(()))

        return native_port(handle, LIMITS.max_frame_bytes)

    listener = Listener(dataclasses.replace(LIMITS, max_connections=2))
    addresses = [await listener.start(answering(port), "127.0.0.1", 0) for port in ("first", "second")]
    request = DeleteTopicsRequest(("t",))
    writers = []
    try:
        async with asyncio.timeout(20):
            for address in addresses:
                reader, writer = await asyncio.open_connection(*address)
                writers.append(writer)
                writer.write(encode_request(request.api_key, request.versions[1], 1, "c", encode_message(request)))
                await reader.readexactly(1)
            assert said == ["first", "second"]
            for address in addresses:
                reader, writer = await asyncio.open_connection(*address)
                writers.append(writer)
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
    finally:
        for writer in writers:
            writer.close()
        await listener.close(1.0)
