"""Offsets expire, groups and offsets are deleted, topics take their offsets along: over real sockets, and past SIGKILL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from client.transport.cluster import Cluster
from protocol.codec import MAX_STRING_BYTES
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from protocol.subscription import Subscription, encode_subscription
from tests.daemon_process import DaemonProcess

PARTITIONS = 4


class Client:
    """Speaks about groups by hand, so that a test sees every answer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def create(self, *topics: str) -> None:
        request = CreateTopicsRequest(tuple(CreatableTopic(topic, PARTITIONS) for topic in topics))
        answer = await self.cluster.call(request, CreateTopicsResponse)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}

    async def commit(
        self, group: str, topic: str, *offsets: int, member: str = "", generation: int = -1
    ) -> OffsetCommitResponse:
        partitions = tuple(OffsetCommitPartition(index, offset) for index, offset in enumerate(offsets))
        request = OffsetCommitRequest(group, generation, member, None, (OffsetCommitTopic(topic, partitions),))
        return await self.cluster.call_coordinator(group, request, OffsetCommitResponse)

    async def fetch(self, group: str) -> dict[tuple[str, int], int]:
        answer = await self.cluster.call_coordinator(group, OffsetFetchRequest(group, None), OffsetFetchResponse)
        return {
            (t.name, entry.partition_index): entry.committed_offset for t in answer.topics for entry in t.partitions
        }

    async def erase(self, group: str, topic: str, *partitions: int) -> OffsetDeleteResponse:
        request = OffsetDeleteRequest(group, (OffsetDeleteTopic(topic, partitions),))
        return await self.cluster.call_coordinator(group, request, OffsetDeleteResponse)

    async def delete(self, *groups: str) -> list[tuple[str, int]]:
        for group in groups:
            await self.cluster.coordinator_address(group)
        answer = await self.cluster.call(DeleteGroupsRequest(groups), DeleteGroupsResponse)
        return [(result.group_id, result.error_code) for result in answer.results]

    async def state(self, group: str) -> str:
        answer = await self.cluster.call_coordinator(group, DescribeGroupsRequest((group,)), DescribeGroupsResponse)
        return answer.groups[0].group_state

    async def listed(self, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[str]:
        answer = await self.cluster.call(ListGroupsRequest(states, types), ListGroupsResponse)
        return [group.group_id for group in answer.groups]

    async def consume(self, group: str, topic: str) -> str:
        """One member joins and gets everything; gives its id."""
        protocols = (JoinGroupProtocol("range", encode_subscription(Subscription((topic,)))),)
        member = ""
        while True:
            join = JoinGroupRequest(group, 60_000, 60_000, member, None, "consumer", protocols)
            joined = await self.cluster.call_coordinator(group, join, JoinGroupResponse)
            member = joined.member_id
            if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
        sync = SyncGroupRequest(group, joined.generation_id, member, None, None, None)
        await self.cluster.call_coordinator(group, sync, SyncGroupResponse)
        return member

    async def leave(self, group: str, member: str) -> None:
        await self.cluster.call_coordinator(
            group, LeaveGroupRequest(group, (LeavingMember(member),)), LeaveGroupResponse
        )


async def connected(daemon: DaemonProcess) -> Client:
    cluster = Cluster(daemon.address, client_id="test", request_timeout_ms=20_000)
    await cluster.start()
    return Client(cluster)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_what_was_erased_stays_erased_after_sigkill(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    client = await connected(daemon)
    await client.create("orders", "returns")
    for group in ("one", "two", "three"):
        await client.commit(group, "orders", 1, 2, 3, 4)
        await client.commit(group, "returns", 5)
    member = await client.consume("busy", "orders")
    await client.commit("busy", "orders", 9, member=member, generation=1)
    await client.commit("busy", "returns", 8, member=member, generation=1)

    assert await client.delete("one", "busy", "ghost") == [("one", 0), ("busy", 68), ("ghost", 69)]
    assert [entry.error_code for entry in (await client.erase("two", "orders", 0, 3, 99)).topics[0].partitions] == [
        0,
        0,
        3,
    ]
    refused = await client.erase("busy", "orders", 0)
    assert refused.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert (await client.erase("busy", "returns", 0)).topics[0].partitions[0].error_code == ErrorCode.NONE
    gone = await client.cluster.call(DeleteTopicsRequest(("returns",)), DeleteTopicsResponse)
    assert [topic.error_code for topic in gone.responses] == [ErrorCode.NONE]

    wanted: dict[str, dict[tuple[str, int], int]] = {
        "one": {},
        "two": {("orders", 1): 2, ("orders", 2): 3},
        "three": {("orders", 0): 1, ("orders", 1): 2, ("orders", 2): 3, ("orders", 3): 4},
        "busy": {("orders", 0): 9},
    }
    assert {group: await client.fetch(group) for group in wanted} == wanted
    daemon.kill()
    daemon.start()
    assert {group: await client.fetch(group) for group in wanted} == wanted
    assert await client.state("one") == "Dead"
    assert await client.state("busy") == "Stable"
    assert await client.listed() == ["busy", "three", "two"]
    assert await client.listed(states=(" EMPTY ",)) == ["three", "two"]
    assert await client.listed(types=("consumer",)) == ["busy"]
    await client.create("returns")
    assert {group: await client.fetch(group) for group in wanted} == wanted, "a namesake inherits nothing"
    await client.cluster.close()
    assert daemon.terminate() == 0


async def test_offsets_expire_and_stay_expired_after_sigkill(tmp_path: Path) -> None:
    options = ("--offsets-retention-ms", "1500", "--offsets-retention-check-interval-ms", "50")
    daemon = DaemonProcess(tmp_path / "data", *options).start()
    client = await connected(daemon)
    await client.create("orders", "returns")
    reader = await client.consume("reading", "orders")
    await client.commit("reading", "orders", 7, member=reader, generation=1)
    await client.commit("reading", "returns", 8, member=reader, generation=1)
    await client.commit("simple", "orders", 1, 2)
    await client.leave("left", await client.consume("left", "orders"))
    await client.commit("left", "orders", 3)

    async def all_expired() -> bool:
        return await client.listed() == ["reading"] and ("returns", 0) not in await client.fetch("reading")

    assert await client.fetch("left") == {("orders", 0): 3}
    daemon.kill()
    daemon.start()
    await until(all_expired)
    assert await client.fetch("reading") == {("orders", 0): 7}, "in use, however old"
    daemon.kill()
    daemon.start()
    assert await all_expired()
    old = await client.commit("left", "orders", 4, member="of an earlier life", generation=1)
    assert old.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION
    assert await client.state("left") == "Dead"
    await client.cluster.close()
    assert daemon.terminate() == 0


async def test_many_groups_in_one_request_are_answered_in_order_and_each_once(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    client = await connected(daemon)
    await client.create("orders")
    groups = [f"group-{number}" for number in range(200)]
    for group in groups:
        await client.commit(group, "orders", 1)
    asked = [*reversed(groups), "ghost", *groups]
    assert await client.delete(*asked) == [(group, 0) for group in reversed(groups)] + [("ghost", 69)]
    assert await client.listed() == []
    await client.cluster.close()
    assert daemon.terminate() == 0


@pytest.mark.parametrize("metadata", ["é" * 3_000, "x" * MAX_STRING_BYTES])
async def test_metadata_that_is_too_long_is_refused_by_its_bytes(tmp_path: Path, metadata: str) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    client = await connected(daemon)
    await client.create("orders")
    partitions = (OffsetCommitPartition(0, 1, -1, metadata), OffsetCommitPartition(1, 2, 3, "é" * 2_048))
    request = OffsetCommitRequest("g", -1, "", None, (OffsetCommitTopic("orders", partitions),))
    answer = await client.cluster.call_coordinator("g", request, OffsetCommitResponse)
    refused, stored = answer.topics[0].partitions
    assert (refused.error_code, stored.error_code) == (ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE)
    assert f"takes {len(metadata.encode())} bytes of at most 4096" in refused.error_message
    assert await client.fetch("g") == {("orders", 1): 2}
    await client.cluster.close()
    assert daemon.terminate() == 0
