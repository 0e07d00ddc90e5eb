"""A large group whose coordinator is killed: how soon all of its members' heartbeats are answered, without a rebalance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.crowd import Crowd
from client.bench.replication import in_sync
from client.bench.requests import TIMEOUT_S, connect
from client.cli.cluster_processes import ClusterProcess
from client.cli.failure import CommandError
from client.errors import CohortError
from client.transport.connection import Connection
from protocol.errors import RETRIABLE, ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse

_GROUPS: Final = "__consumer_offsets"
_SESSION_TIMEOUT_MS: Final = 45_000
_AGAIN_S: Final = 0.02
_AT_ONCE: Final = 50
_REBALANCES: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)


async def seconds_without_heartbeats(cluster: ClusterProcess, size: int) -> float:
    """Forms a group of ``size`` members and kills its coordinator; seconds until each has had an answer that is no error.

    Raises ``CommandError`` when a member is called to a rebalance, or not all are answered within ``TIMEOUT_S``.
    """
    await _preferred_lead(cluster)
    group_id, node = await _group_elsewhere(cluster)
    crowd = await Crowd.connect(cluster[node].address, size, _SESSION_TIMEOUT_MS)
    try:
        group = await crowd.add_group(group_id)
        members = [crowd.add_member(group) for _ in range(size)]

        def all_join() -> None:
            for member in members:
                member.join()

        await crowd.settle(all_join)
        asked = [HeartbeatRequest(group_id, group.generation, member.member_id) for member in members]
    finally:
        crowd.close()
    killed = perf_counter()
    await cluster.kill(node)
    survivor = cluster[cluster.running[0]].address
    unanswered = dict.fromkeys(asked)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while unanswered:
                await _beat(survivor, group_id, unanswered)
                if unanswered:
                    await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        raise CommandError(f"{len(unanswered)} of {size} members had no answer within {TIMEOUT_S:.0f} s") from None
    return perf_counter() - killed


async def _group_elsewhere(cluster: ClusterProcess) -> tuple[str, int]:
    """A group whose coordinator serves it, stays where it is, and can be killed: the metadata is not on that node."""
    ports = {cluster[node].address.rpartition(":")[2]: node for node in cluster.running}
    async with asyncio.timeout(TIMEOUT_S):
        for number in count():
            group_id = f"large-{number}"
            found = await _coordinator(cluster[cluster.running[0]].address, group_id)
            if found is not None:
                node = ports[found.rpartition(":")[2]]
                if node != cluster.serving and await _serves(found, group_id):
                    return group_id, node
            await asyncio.sleep(_AGAIN_S)
    raise AssertionError("count has no end")


async def _preferred_lead(cluster: ClusterProcess) -> None:
    """Gives the partitions of groups their preferred leaders once all replicas are in sync: none of them is moved then.

    By itself the controller does so minutes after a node has come back.
    """
    async with asyncio.timeout(TIMEOUT_S), Admin(bootstrap_servers=cluster.address) as admin:
        await in_sync(admin, [_GROUPS])
        await admin.elect_leaders()
        while True:
            partitions = (await admin.describe_topics(_GROUPS))[_GROUPS].partitions
            if all(each.leader == each.replicas[0] for each in partitions):
                return
            await asyncio.sleep(_AGAIN_S)


async def _serves(address: str, group_id: str) -> bool:
    """Whether the coordinator has loaded the group: it knows then that it has no such member."""
    connection = await connect(address)
    try:
        answer = await connection.request(HeartbeatRequest(group_id, 0, "none"), HeartbeatResponse, timeout_s=TIMEOUT_S)
    finally:
        connection.close()
    return answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def _coordinator(address: str, group_id: str) -> str | None:
    """Its address, as a node knows it now; None while none is known."""
    connection = await connect(address)
    try:
        found = await connection.request(FindCoordinatorRequest(group_id), FindCoordinatorResponse, timeout_s=TIMEOUT_S)
    finally:
        connection.close()
    return f"{found.host}:{found.port}" if found.error_code == ErrorCode.NONE else None


async def _beat(survivor: str, group_id: str, unanswered: dict[HeartbeatRequest, None]) -> None:
    """One heartbeat of each that has none; those that are answered are taken out."""
    try:
        address = await _coordinator(survivor, group_id)
        if address is None:
            return
        connection = await connect(address)
    except CohortError:
        return  # the coordinator is the one that was killed, as far as the survivor knows yet
    try:
        waiting = iter(tuple(unanswered))
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(_beat_all(connection, waiting, unanswered))
    finally:
        connection.close()


async def _beat_all(
    connection: Connection, waiting: Iterator[HeartbeatRequest], unanswered: dict[HeartbeatRequest, None]
) -> None:
    for request in waiting:
        try:
            answer = await connection.request(request, HeartbeatResponse, timeout_s=TIMEOUT_S)
        except CohortError:
            return
        if answer.error_code == ErrorCode.NONE:
            del unanswered[request]
        elif answer.error_code in _REBALANCES or answer.error_code not in RETRIABLE:
            raise CommandError(f"a member was refused with code {answer.error_code}: {answer.message}")
