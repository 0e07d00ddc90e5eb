"""A daemon that was stopped: what arrived in time counts in time, although it could not be read."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from client.transport.connection import Connection
from protocol.errors import ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
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
from tests.daemon_process import DaemonProcess

SESSION_MS = 5_000
GROUPS = 5


async def join(connection: Connection, group: str) -> HeartbeatRequest:
    """Makes the connection the only member of a group; gives its heartbeat."""
    await connection.request(FindCoordinatorRequest(group, 0), FindCoordinatorResponse, timeout_s=30)
    protocols = (JoinGroupProtocol("any", b""),)
    joined = JoinGroupResponse(0)
    for _ in range(2):
        request = JoinGroupRequest(group, SESSION_MS, 60_000, joined.member_id, None, "test", protocols)
        joined = await connection.request(request, JoinGroupResponse, timeout_s=30)
    member, generation = joined.member_id, joined.generation_id
    sync = SyncGroupRequest(group, generation, member, None, "test", "any", (SyncGroupAssignment(member, b"all"),))
    synced = await connection.request(sync, SyncGroupResponse, timeout_s=30)
    assert synced.error_code == ErrorCode.NONE
    return HeartbeatRequest(group, generation, member)


async def test_members_whose_heartbeats_arrived_while_the_daemon_was_stopped_stay_members(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        connections = [
            await Connection.open("127.0.0.1", daemon.port, client_id=f"c{number}", timeout_s=30)
            for number in range(GROUPS)
        ]
        beats = await asyncio.gather(*(join(connection, f"g{place}") for place, connection in enumerate(connections)))

        def beat_all() -> list[asyncio.Task[HeartbeatResponse]]:
            return [
                asyncio.create_task(connection.request(beat, HeartbeatResponse, timeout_s=60))
                for connection, beat in zip(connections, beats, strict=True)
            ]

        first = await asyncio.gather(*beat_all())
        assert {answer.error_code for answer in first} == {ErrorCode.NONE}
        os.kill(daemon.pid, signal.SIGSTOP)
        answers = []
        for _ in range(7):  # longer than a session
            answers += beat_all()
            await asyncio.sleep(1.0)
        os.kill(daemon.pid, signal.SIGCONT)
        codes = [answer.error_code for answer in await asyncio.gather(*answers)]
        assert set(codes) == {ErrorCode.NONE}, "no member was ever silent for as long as its session"
        for connection in connections:
            connection.close()
