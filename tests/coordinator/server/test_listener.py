"""The listening socket, on the loop that tests and notebooks run."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest
import structlog

from coordinator.server.call import Call
from coordinator.server.listener import ConnectionLimits, Listener, native_port

LIMITS = ConnectionLimits(10, 1 << 20, 10, 1 << 20, 1_000, 1_000)


def not_asked(call: Call) -> None:
    raise AssertionError(f"nothing is asked here: {call.request}")


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_is_being_accepted_when_the_listener_stops_is_closed(turns: int) -> None:
    """asyncio leaves one open whose server closes between its accept and its transport, to be collected with a warning."""
    listener = Listener(LIMITS)
    host, port = await listener.start(native_port(not_asked, 1 << 20), "127.0.0.1", 0)
    with socket.create_connection((host, port)) as client, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.abort()
        await asyncio.sleep(0.05)
        gc.collect()
        client.settimeout(5)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass  # reset or ended, it does not wait
        assert [str(warning.message) for warning in told] == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
    await listener.close(1.0)


async def test_a_stop_whose_time_is_over_drops_nobody_who_has_read_all_answers() -> None:
    listener = Listener(LIMITS)
    host, port = await listener.start(native_port(not_asked, 1 << 20), "127.0.0.1", 0)
    clients = [await asyncio.open_connection(host, port) for _ in range(3)]
    async with asyncio.timeout(10):
        while listener.connections < len(clients):
            await asyncio.sleep(0.001)
    with structlog.testing.capture_logs() as told:
        await listener.close(0.0)
    assert listener.connections == 0
    assert told == []
    for reader, writer in clients:
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
