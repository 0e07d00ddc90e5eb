"""Joins many members to one group over one connection, with bare requests: nothing runs beside the load afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from client.bench.requests import TIMEOUT_S, check, connect, find_coordinator
from client.transport.connection import Connection
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

SESSION_TIMEOUT_MS: Final = 600_000
"""Longer than any benchmark, so that members without heartbeats stay."""
_REBALANCE_TIMEOUT_MS: Final = 30_000
_LOOK_EVERY_MS: Final = 100
_PROTOCOL: Final = "bench"
_AGAIN: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,  # of a node that was told a moment ago that it leads
    }
)


@dataclass(frozen=True, slots=True)
class RawMember:
    """A member by what its requests must carry."""

    group_id: str
    generation: int
    member_id: str


class Formation:
    """Learns which generation has all members, from the one member that is told who they are: the leader."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.generation: int | None = None


async def form_group(address: str, group_id: str, size: int) -> list[RawMember]:
    """``size`` members of one group, all in the same stable generation."""
    connection = await connect(address)
    formation = Formation(size)
    try:
        await find_coordinator(connection, group_id)
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.gather(*(_join(connection, group_id, formation) for _ in range(size)))
    finally:
        connection.close()


async def _join(connection: Connection, group_id: str, formation: Formation) -> RawMember:
    member_id = ""
    while True:
        joined = await connection.request(
            JoinGroupRequest(
                group_id, SESSION_TIMEOUT_MS, _REBALANCE_TIMEOUT_MS, member_id, None, _PROTOCOL,
                (JoinGroupProtocol(_PROTOCOL, b""),),
            ),
            JoinGroupResponse,
            timeout_s=TIMEOUT_S,
        )  # fmt: skip
        member_id = joined.member_id
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED or joined.error_code in _AGAIN:
            continue
        check(joined.error_code, joined.error_message)
        member = RawMember(group_id, joined.generation_id, member_id)
        leads = joined.leader == member_id
        assignments = tuple(SyncGroupAssignment(each.member_id, b"") for each in joined.members) if leads else ()
        synced = await connection.request(
            SyncGroupRequest(group_id, joined.generation_id, member_id, None, _PROTOCOL, _PROTOCOL, assignments),
            SyncGroupResponse,
            timeout_s=TIMEOUT_S,
        )
        if synced.error_code in _AGAIN:
            continue
        check(synced.error_code, synced.error_message)
        if leads and len(joined.members) == formation.size:
            formation.generation = joined.generation_id
        if await _is_final(connection, member, formation):
            return member


async def _is_final(connection: Connection, member: RawMember, formation: Formation) -> bool:
    """Waits until this generation proves to be the one with all members, or the group calls for another."""
    while formation.generation != member.generation:
        beat = await connection.request(
            HeartbeatRequest(member.group_id, member.generation, member.member_id, None, _LOOK_EVERY_MS),
            HeartbeatResponse,
            timeout_s=TIMEOUT_S,
        )
        if beat.error_code in _AGAIN:
            return False
        check(beat.error_code, beat.message)
    return True
