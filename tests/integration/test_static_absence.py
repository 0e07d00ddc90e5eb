"""A static member stays in its group when it misses a rebalance (KIP-345): what it held then may be others'."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import msgpack

from client import Admin, Consumer
from coordinator import Coordinator
from protocol.messages import ApiKey
from tests.integration.consuming import create, fill, take, until
from tests.integration.hostile_proxy import HostileProxy, Malice, frames, send
from tests.integration.owning import KeepingAssignor, Register

SETTINGS: dict[str, Any] = {
    "session_timeout_ms": 20_000,
    "heartbeat_interval_ms": 100,
    "rebalance_timeout_ms": 1_500,
    "revoke_grace_ms": 0,
    "auto_commit_interval_ms": 60_000,
    "auto_offset_reset": "earliest",
    "assignors": [KeepingAssignor],
}


class Darkness(HostileProxy):
    """Once ``begins`` is set, whatever client ``victim`` asks is lost, from its next JoinGroup on until ``ends`` is set."""

    def __init__(self, victim: str) -> None:
        super().__init__(Malice(), Random(0))
        self.begins, self.ends = asyncio.Event(), asyncio.Event()
        self._victim = victim
        self._dark = False

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, produces: set[int]) -> None:
        async for frame in frames(reader):
            api_key, _, _, client_id, _ = msgpack.unpackb(frame)
            if client_id == self._victim and self.begins.is_set() and not self.ends.is_set():
                self._dark |= api_key == ApiKey.JOIN_GROUP
                if self._dark:
                    await self.ends.wait()
                    return
            send(upstream, frame)


async def test_a_cooperative_member_that_missed_a_rebalance_does_not_go_on_with_what_others_were_given() -> None:
    """It is let in again under its old id, and that says nothing about the share it held on to meanwhile."""
    register = Register()
    listener = register.listener("static")
    async with (
        Darkness("static") as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as c,
        AsyncExitStack() as stack,
    ):
        proxy.upstream_port = int(c.address.rpartition(":")[2])
        await create(c.address, t=4)
        await fill(c.address, "t", range(40))

        async def start(name: str, **more: Any) -> Consumer:
            made = Consumer(bootstrap_servers=c.address, group_id="g", client_id=name, **SETTINGS, **more)
            made.subscribe(["t"], listener=listener if name == "static" else None)
            return await stack.enter_async_context(made)

        first = await start("first")
        await until(lambda: len(first.assignment()) == 4)
        static = await start("static", group_instance_id="s")
        await until(lambda: len(static.assignment()) == 2 and static.state == first.state == "stable")
        assert await static.getmany(timeout_ms=2_000, max_records=3)
        await static.getmany(max_records=1)  # what came before is done, and could be committed
        held = static.assignment()
        proxy.begins.set()
        third = await start("third")
        await until(lambda: bool(third.assignment() & held))
        (moved,) = third.assignment() & held
        assert len(await take(third, 10)) == 10
        await third.commit()
        proxy.ends.set()
        async with asyncio.timeout(30):
            while moved in static.assignment():
                assert moved not in await static.getmany(timeout_ms=1)
        assert listener.events[1] == ("lost", sorted(tp.partition for tp in held))
        await until(lambda: static.state == "stable")
        async with Admin(c.address) as admin:
            assert (await admin.list_offsets("g"))[moved].offset == 10
