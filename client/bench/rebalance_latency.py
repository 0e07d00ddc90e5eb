"""How soon a consumer hears that it must give up partitions: from the trigger of a rebalance to its listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median, quantiles
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.assignors import Assignor, CooperativeStickyAssignor, RangeAssignor
from client.bench.figures import Figure, Setting
from client.bench.requests import TIMEOUT_S, check, connect, find_coordinator
from client.cli.failure import CommandError
from client.cli.processes import daemon
from client.consumer import Consumer
from client.consumer.rebalance_listener import RebalanceListener
from client.transport.connection import Connection
from client.types.records import TopicPartition
from protocol.errors import ErrorCode
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.groups import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.subscription import CONSUMER_PROTOCOL_TYPE, Subscription, encode_subscription

_TOPIC: Final = "work"
_PARTITIONS: Final = 4


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """One consumer hears of a member that joins and leaves over a connection of its own, again and again."""
    rounds = 5 if setting.quick else 300
    async with daemon(setting.directory / "data", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({_TOPIC: _PARTITIONS})
        floor = median(await _round_trips(server.address, 20 * rounds))
        for name, assignor in (("eager", RangeAssignor()), ("cooperative", CooperativeStickyAssignor())):
            heard = await _rounds(server.address, name, assignor, rounds)
            for trigger, seconds in heard.items():
                params = {"assignor": assignor.name, "partitions": _PARTITIONS, "rounds": len(seconds)}
                p50, p99 = 1000 * median(seconds), 1000 * quantiles(seconds, n=100, method="inclusive")[98]
                floor_name = "the round trip of a small request"
                yield Figure(
                    "rebalance_latency", f"{name}_{trigger}_p50_ms", p50, "ms", 1000 * floor, floor_name, params
                )
                yield Figure("rebalance_latency", f"{name}_{trigger}_p99_ms", p99, "ms", None, None, params)


class _Stopwatch(RebalanceListener):
    """Takes the time at which partitions were asked back."""

    def __init__(self) -> None:
        self.revoked: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        if not self.revoked.done():
            self.revoked.set_result(perf_counter())

    async def time(self, trigger: Callable[[], Awaitable[None]]) -> float:
        """Seconds from ``trigger`` until the partitions are asked back."""
        self.revoked = asyncio.get_running_loop().create_future()
        began = perf_counter()
        await trigger()
        async with asyncio.timeout(TIMEOUT_S):
            return await self.revoked - began


async def _rounds(address: str, group: str, assignor: Assignor, rounds: int) -> dict[str, list[float]]:
    """Seconds until the consumer heard, by what happened; leaving asks nothing back where all but what moves is kept."""
    listener = _Stopwatch()
    consumer = Consumer(bootstrap_servers=address, group_id=group, assignors=[assignor], auto_offset_reset="earliest")
    consumer.subscribe([_TOPIC], listener=listener)
    joins: list[float] = []
    leaves: list[float] = []
    connection = await connect(address)
    try:
        async with consumer:
            await find_coordinator(connection, group)
            for _ in range(rounds):
                await _until(lambda: consumer.state == "stable" and len(consumer.assignment()) == _PARTITIONS)
                guest = _Guest(connection, group, assignor.name)
                await guest.ask_for_id()
                joins.append(await listener.time(guest.begin_to_join))
                await guest.take_share()
                if group == "eager":
                    await _until(lambda: consumer.state == "stable")
                    leaves.append(await listener.time(guest.begin_to_leave))
                else:
                    await guest.begin_to_leave()
                await guest.leaving
    finally:
        connection.close()
    return {"join_to_revoke": joins, "leave_to_revoke": leaves} if leaves else {"join_to_revoke": joins}


class _Guest:
    """A member by its bare requests, whose own start costs nothing that is measured."""

    def __init__(self, connection: Connection, group: str, protocol: str) -> None:
        self._connection = connection
        self._group = group
        self._protocol = protocol
        self._member_id = ""
        self._joining: asyncio.Task[JoinGroupResponse]
        self.leaving: asyncio.Task[LeaveGroupResponse]

    async def ask_for_id(self) -> None:
        """The first step of a join, which disturbs no member (KIP-394)."""
        answer = await self._join()
        if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            check(answer.error_code, answer.error_message)
        self._member_id = answer.member_id

    async def begin_to_join(self) -> None:
        """Sends the join; its answer comes when the consumer has joined again."""
        self._joining = asyncio.create_task(self._join())

    async def take_share(self) -> None:
        """Becomes a member of the generation, or is called on to the next at once, which is as good here."""
        joined = await self._joining
        check(joined.error_code, joined.error_message)
        await self._connection.request(
            SyncGroupRequest(self._group, joined.generation_id, self._member_id, None, None, None),
            SyncGroupResponse,
            timeout_s=TIMEOUT_S,
        )

    async def begin_to_leave(self) -> None:
        """Sends LeaveGroup."""
        request = LeaveGroupRequest(self._group, (LeavingMember(self._member_id),))
        self.leaving = asyncio.create_task(self._connection.request(request, LeaveGroupResponse, timeout_s=TIMEOUT_S))

    async def _join(self) -> JoinGroupResponse:
        protocol = JoinGroupProtocol(self._protocol, encode_subscription(Subscription((_TOPIC,))))
        request = JoinGroupRequest(
            self._group, 600_000, 300_000, self._member_id, None, CONSUMER_PROTOCOL_TYPE, (protocol,)
        )
        return await self._connection.request(request, JoinGroupResponse, timeout_s=TIMEOUT_S)


async def _round_trips(address: str, count: int) -> list[float]:
    connection = await connect(address)
    took = []
    for _ in range(count):
        began = perf_counter()
        await connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=TIMEOUT_S)
        took.append(perf_counter() - began)
    connection.close()
    return took


async def _until(condition: Callable[[], bool]) -> None:
    deadline = perf_counter() + TIMEOUT_S
    while not condition():
        if perf_counter() > deadline:
            raise CommandError(f"rebalance_latency: the consumer did not settle within {TIMEOUT_S:.0f} s")
        await asyncio.sleep(0.001)
