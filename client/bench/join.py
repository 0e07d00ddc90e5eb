"""How long the members of a group take until together they own everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.requests import TIMEOUT_S, connect
from client.cli.failure import CommandError
from client.cli.processes import daemon
from client.consumer import Consumer
from client.consumer.rebalance_listener import RebalanceListener
from client.group.member import Member, MemberAssignment
from client.transport.connection import Connection
from client.types.records import TopicPartition
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

TOPIC: Final = "work"
_LEAVE_CONCURRENTLY: Final = 100


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Consumers that start together, one of them that leaves, and a crowd of members."""
    consumers, crowd, rounds = (4, 20, 1) if setting.quick else (50, 1000, 5)
    async with daemon(setting.directory / "data", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: 2 * consumers})
        floors: list[float] = []
        joins: list[float] = []
        leaves: list[float] = []
        for number in range(rounds):
            floors.append(await _connect_seconds(server.address, consumers))
            joined_s, left_s = await settle_seconds(server.address, f"join-{number}", consumers)
            joins.append(joined_s)
            leaves.append(left_s)
        params = {"members": consumers, "kind": "Consumer", "partitions": 2 * consumers, "rounds": rounds}
        floor_name = "as many connections and one round trip on each"
        yield Figure("join", "all_own_s", median(joins), "s", median(floors), floor_name, params)
        yield Figure("join", "rest_own_after_leave_s", median(leaves), "s", None, None, params)
        floor = await _connect_seconds(server.address, crowd)
        crowd_s = await _crowd(server.address, crowd)
        yield Figure(
            "join",
            "crowd_own_s",
            crowd_s,
            "s",
            floor,
            floor_name,
            {"members": crowd, "kind": "Member", "shares": crowd},
        )


class _Owners(RebalanceListener):
    """Counts the partitions that the members of one group own, and tells when they own them all."""

    def __init__(self, partitions: int) -> None:
        self.owned: dict[TopicPartition, int] = {}
        self.complete = asyncio.Event()
        self._partitions = partitions

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        for partition in tps:
            self.owned[partition] = self.owned.get(partition, 0) + 1
        self._look()

    def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        for partition in tps:
            self.owned[partition] -= 1
        self._look()

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self.on_partitions_revoked(tps, reason)

    def _look(self) -> None:
        if len(self.owned) == self._partitions and all(count == 1 for count in self.owned.values()):
            self.complete.set()
        else:
            self.complete.clear()


async def settle_seconds(address: str, group: str, size: int) -> tuple[float, float]:
    """Seconds until all own all partitions, and until the rest do after one has left."""
    owners = _Owners(2 * size)
    consumers = [
        Consumer(bootstrap_servers=address, group_id=group, client_id=f"member-{number}", auto_offset_reset="earliest")
        for number in range(size)
    ]
    for consumer in consumers:
        consumer.subscribe([TOPIC], listener=owners)
    polling: list[asyncio.Task[None]] = []

    def settled(members: Sequence[Consumer]) -> Callable[[], bool]:
        return lambda: (
            owners.complete.is_set()
            and all(consumer.state == "stable" and consumer.assignment() for consumer in members)
        )

    try:
        began = perf_counter()
        polling = [asyncio.create_task(_poll(consumer)) for consumer in consumers]
        await _until(settled(consumers), "all members own all partitions")
        joined_s = perf_counter() - began
        await asyncio.sleep(0.2)
        began = perf_counter()
        polling[0].cancel()
        await consumers[0].stop()
        await _until(settled(consumers[1:]), "the rest own all partitions")
        left_s = perf_counter() - began
    finally:
        for task in polling:
            task.cancel()
        await asyncio.gather(*polling, return_exceptions=True)
        await asyncio.gather(*(consumer.stop(timeout=10) for consumer in consumers))
    return joined_s, left_s


async def _poll(consumer: Consumer) -> None:
    await consumer.start()
    while True:
        await consumer.getmany(timeout_ms=1000)


async def _until(condition: Callable[[], bool], what: str) -> None:
    """Looks every two milliseconds, which is the resolution of these figures."""
    deadline = perf_counter() + TIMEOUT_S
    while not condition():
        if perf_counter() > deadline:
            raise CommandError(f"join: not within {TIMEOUT_S:.0f} s: {what}")
        await asyncio.sleep(0.002)


async def _crowd(address: str, size: int) -> float:
    """Seconds until as many members share out as many pieces of work, one each."""
    shares: dict[int, MemberAssignment] = {}

    def assign(members: list[tuple[str, bytes]]) -> dict[str, bytes]:
        return {member_id: b"%d/%d" % (number, len(members)) for number, (member_id, _) in enumerate(members)}

    async def follow(number: int, member: Member) -> None:
        async for assignment in member:
            shares[number] = assignment

    def complete() -> bool:
        return (
            len(shares) == size
            and len({share.assignment for share in shares.values()}) == size
            and all(share.assignment.endswith(b"/%d" % size) for share in shares.values())
        )

    members = [
        Member("crowd", bootstrap_servers=address, client_id=f"member-{number}", assign=assign)
        for number in range(size)
    ]
    following: list[asyncio.Task[None]] = []
    try:
        began = perf_counter()
        await asyncio.gather(*(member.start() for member in members))
        following = [asyncio.create_task(follow(*entry)) for entry in enumerate(members)]
        await _until(complete, f"{size} members have a share each")
        return perf_counter() - began
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        for start in range(0, size, _LEAVE_CONCURRENTLY):
            await asyncio.gather(*(member.stop(timeout=10) for member in members[start : start + _LEAVE_CONCURRENTLY]))


async def _connect_seconds(address: str, count: int) -> float:
    """Seconds for ``count`` connections at once and one small request on each."""

    async def one() -> Connection:
        connection = await connect(address)
        await connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=TIMEOUT_S)
        return connection

    began = perf_counter()
    connections = await asyncio.gather(*(one() for _ in range(count)))
    took_s = perf_counter() - began
    for connection in connections:
        connection.close()
    return took_s
