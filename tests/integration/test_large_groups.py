"""Groups of thousands of members and members of a MiB: they work end to end, or are refused in time with the right error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.admin import Admin
from client.bench.crowd import Crowd
from client.errors import InvalidRequestError
from client.transport.cluster import Cluster
from client.transport.connection import Connection
from coordinator import Coordinator
from protocol.errors import ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
)
from protocol.subscription import decode_assignment
from tests.daemon_process import DaemonProcess

MEMBERS = 3_000
MIB = 1024 * 1024


async def described(address: str, group: str) -> DescribedGroup:
    async with asyncio.timeout(20):
        cluster = Cluster(address, client_id="test", request_timeout_ms=20_000)
        await cluster.start()
        try:
            request = DescribeGroupsRequest((group,))
            return (await cluster.call_coordinator(group, request, DescribeGroupsResponse)).groups[0]
        finally:
            await cluster.close()


async def test_thousands_of_members_share_out_their_work_and_are_there_after_sigkill(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        crowd = await Crowd.connect(daemon.address, MEMBERS, 60_000)
        group = await crowd.add_group("large")

        def all_join() -> None:
            for _ in range(MEMBERS):
                crowd.add_member(group).join()

        await crowd.settle(all_join)
        await crowd.settle(lambda: group.members[0].leave())  # the leader: another takes over
        await crowd.settle(lambda: crowd.add_member(group).join())
        assert crowd.missed_sessions == 0
        before = await described(daemon.address, "large")
        assert (before.group_state, len(before.members)) == ("Stable", MEMBERS)
        assert {member.member_id for member in before.members} == {member.member_id for member in group.members}
        shares = [tp for member in before.members for tp in decode_assignment(member.member_assignment)]
        assert len(shares) == len(set(shares)) == MEMBERS, "each member has one partition, nobody the same"

        crowd.close()
        daemon.kill()
        daemon.start()
        after = await described(daemon.address, "large")
        assert (after.group_state, after.generation_id) == ("Stable", before.generation_id)
        assert after.members == before.members
        connection = await Connection.open("127.0.0.1", daemon.port, client_id="test", timeout_s=10)
        for member in (before.members[0], before.members[-1]):
            beat = HeartbeatRequest("large", before.generation_id, member.member_id)
            answer = await connection.request(beat, HeartbeatResponse, timeout_s=10)
            assert answer.error_code == ErrorCode.NONE, "the members go on without a rebalance"
        connection.close()


async def join(
    connection: Connection, group: str, metadata: bytes, member_id: str = "", instance: str | None = None
) -> JoinGroupResponse:
    request = JoinGroupRequest(group, 60_000, 60_000, member_id, instance, "work", (JoinGroupProtocol("p", metadata),))
    return await connection.request(request, JoinGroupResponse, timeout_s=20)


async def opened(server: Coordinator, group: str) -> Connection:
    host, port = server.address.rsplit(":", 1)
    connection = await Connection.open(host, int(port), client_id="test", timeout_s=10)
    found = await connection.request(FindCoordinatorRequest(group), FindCoordinatorResponse, timeout_s=10)
    assert found.error_code == ErrorCode.NONE
    return connection


async def test_a_mebibyte_of_metadata_is_the_most_that_a_member_may_bring() -> None:
    async with Coordinator() as server:
        connection = await opened(server, "heavy")
        refused = await join(connection, "heavy", b"x" * MIB)  # with the name of the protocol one byte too many
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert f"take {MIB + 1} bytes; at most {MIB} are allowed" in refused.error_message
        allowed = await join(connection, "heavy", b"x" * (MIB - 1))
        assert allowed.error_code == ErrorCode.MEMBER_ID_REQUIRED
        connection.close()


async def test_what_would_be_too_large_for_the_leaders_frame_is_refused_at_the_join() -> None:
    async with Coordinator() as server:
        connection = await opened(server, "heavy")
        metadata = b"x" * (MIB - 1)
        first = asyncio.create_task(join(connection, "heavy", metadata, instance="0"))
        leader = await first
        assert leader.error_code == ErrorCode.NONE
        others = [
            asyncio.create_task(join(connection, "heavy", metadata, instance=str(number))) for number in range(1, 33)
        ]
        done, waiting = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        (refused,) = [task.result() for task in done]
        assert len(waiting) == 31
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert "offer less metadata" in refused.error_message
        complete = await join(connection, "heavy", metadata, leader.member_id, instance="0")
        assert complete.error_code == ErrorCode.NONE
        assert len(complete.members) == 32
        assert all(len(member.metadata) == len(metadata) for member in complete.members)
        connection.close()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_name_that_no_frame_can_hold_is_an_error_at_once_and_the_client_works_on() -> None:
    async with Coordinator() as server, Admin(bootstrap_servers=server.address) as admin:
        async with asyncio.timeout(20):
            with pytest.raises(InvalidRequestError, match=r"the name of a topic cannot be sent: .* takes 40000"):
                await admin.create_topics({"t" * 40_000: 1})
        assert await admin.list_groups() == []
