"""The simulated network: order, portions, flow control, cuts, resets and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, cast

import pytest

from tests.simulation.loop import SimLoop
from tests.simulation.network import NetProcess, Network


class Peer(asyncio.Protocol):
    """Keeps what happens to it."""

    def __init__(self) -> None:
        self.received = b""
        self.portions = 0
        self.events: list[str] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.portions += 1

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("closed" if exc is None else type(exc).__name__)


class Rig:
    """Two hosts: a server that accepts one connection, and a client that has it."""

    def __init__(self, seed: int, split: float) -> None:
        self.loop = SimLoop(Random(seed))  # type: ignore[abstract]
        self.network = self.loop.net = Network(self.loop, Random(f"{seed}/network"), split=split)
        self.near = NetProcess("near", "near")
        self.far = NetProcess("far", "far")
        self.served = Peer()
        self.client = Peer()

    async def connect(self) -> None:
        async def listen() -> None:
            await asyncio.get_running_loop().create_server(lambda: self.served, "far", 1)

        async def dial() -> None:
            await asyncio.get_running_loop().create_connection(lambda: self.client, "far", 1)

        await self.loop.spawn(self.far, listen())
        await self.loop.spawn(self.near, dial())
        await asyncio.sleep(0.1)


def on_rig(test: Callable[[Rig], Coroutine[Any, Any, None]], *, seed: int = 0, split: float = 0.0) -> None:
    rig = Rig(seed, split)

    async def run() -> None:
        await rig.connect()
        await test(rig)

    rig.loop.run_until_complete(run())
    rig.loop.dispose([rig.near, rig.far])


@pytest.mark.parametrize("seed", range(10))
def test_bytes_arrive_in_order_in_portions_of_any_size(seed: int) -> None:
    async def test(rig: Rig) -> None:
        sent = b"".join(b"%05d" % number for number in range(200))
        for start in range(0, len(sent), 100):
            rig.client.transport.write(sent[start : start + 100])
            if start % 300 == 0:
                await asyncio.sleep(0.001)
        await asyncio.sleep(5)
        assert rig.served.received == sent
        assert rig.served.portions >= 3

    on_rig(test, seed=seed, split=0.9)


def test_a_writer_that_is_too_fast_is_paused() -> None:
    async def test(rig: Rig) -> None:
        rig.served.transport.pause_reading()
        rig.client.transport.write(bytes(100_000))
        await asyncio.sleep(1)
        assert rig.client.events == ["made", "pause"]
        assert rig.served.received == b""
        rig.served.transport.resume_reading()
        await asyncio.sleep(1)
        assert rig.client.events == ["made", "pause", "resume"]
        assert len(rig.served.received) == 100_000

    on_rig(test)


def test_a_cut_stalls_one_direction_until_it_is_healed() -> None:
    async def test(rig: Rig) -> None:
        rig.network.cut("near", "far")
        rig.client.transport.write(b"ping")
        rig.served.transport.write(b"pong")
        await asyncio.sleep(30)
        assert (rig.served.received, rig.client.received) == (b"", b"pong")
        rig.network.heal("near", "far")
        await asyncio.sleep(1)
        assert rig.served.received == b"ping"

    on_rig(test)


def test_a_reset_loses_what_is_under_way_and_tells_both() -> None:
    async def test(rig: Rig) -> None:
        rig.client.transport.write(b"lost")
        rig.network.reset("near", "far")
        await asyncio.sleep(1)
        assert rig.served.received == b""
        assert rig.client.events[-1] == rig.served.events[-1] == "ConnectionResetError"

    on_rig(test)


def test_closing_sends_what_is_queued_first() -> None:
    async def test(rig: Rig) -> None:
        rig.client.transport.write(b"last words")
        rig.client.transport.close()
        await asyncio.sleep(1)
        assert rig.served.received == b"last words"
        assert rig.client.events[-1] == rig.served.events[-1] == "closed"

    on_rig(test)


def test_a_killed_process_resets_its_connections() -> None:
    async def test(rig: Rig) -> None:
        rig.far.dead = True
        rig.network.process_ended(rig.far, silent=False)
        await asyncio.sleep(1)
        assert rig.client.events[-1] == "ConnectionResetError"
        assert rig.served.events == ["made"]  # nothing of it runs any more

    on_rig(test)


def test_a_host_without_power_is_silent_until_it_runs_again() -> None:
    async def test(rig: Rig) -> None:
        rig.far.dead = True
        rig.network.process_ended(rig.far, silent=True)
        rig.network.host_down("far")
        rig.client.transport.write(b"anybody there?")
        await asyncio.sleep(60)
        assert rig.client.events == ["made"]
        rig.network.host_up("far")
        await asyncio.sleep(1)
        assert rig.client.events[-1] == "ConnectionResetError"

    on_rig(test)


def test_nobody_listens() -> None:
    async def test(rig: Rig) -> None:
        async def dial() -> None:
            await asyncio.get_running_loop().create_connection(Peer, "far", 2)

        with pytest.raises(ConnectionRefusedError, match="far:2"):
            await rig.loop.spawn(rig.near, dial())

    on_rig(test)
