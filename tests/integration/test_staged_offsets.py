"""StageOffsets from the wire: it is on disk when it is answered, large batches are staged at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from client import Admin
from client.group.member import Member
from client.transport.cluster import Cluster
from coordinator import Coordinator
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    StagedPartition,
    StagedTopic,
    StageOffsetsRequest,
    StageOffsetsResponse,
)

PARTITIONS = 2_000


@asynccontextmanager
async def member_of(address: str) -> AsyncIterator[tuple[Member, Cluster]]:
    """The one member of the group "g", and connections."""
    cluster = Cluster(address, client_id="test", request_timeout_ms=20_000)
    member = Member(
        "g",
        bootstrap_servers=address,
        client_id="test",
        protocol_type="test",
        protocols=lambda: [("p", b"")],
        assign=lambda members: dict(members),
    )
    async with asyncio.timeout(30):
        await cluster.start()
        await member.start()
        try:
            await anext(member)
            yield member, cluster
        finally:
            await member.stop()
            await cluster.close()


async def stage(cluster: Cluster, member: Member, partitions: int, generation: int | None = None) -> int:
    """Stages the records 0 to 9 of so many partitions of "t"; gives the code."""
    topic = StagedTopic("t", "", tuple(StagedPartition(number, 0, 10) for number in range(partitions)))
    said = member.generation if generation is None else generation
    request = StageOffsetsRequest("g", said, member.member_id, None, (topic,))
    answer = await cluster.call_coordinator("g", request, StageOffsetsResponse)
    assert bool(answer.error_message) == (answer.error_code != ErrorCode.NONE)
    return answer.error_code


async def test_a_member_stages_what_a_large_batch_reads(tmp_path: Path) -> None:
    async with Coordinator(data_dir=str(tmp_path), max_partitions_per_topic=PARTITIONS) as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        async with member_of(coordinator.address) as (member, cluster):
            assert await stage(cluster, member, PARTITIONS) == ErrorCode.NONE
            assert await stage(cluster, member, PARTITIONS + 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await stage(cluster, member, 1, generation=99) == ErrorCode.ILLEGAL_GENERATION
    async with (
        Coordinator(data_dir=str(tmp_path), max_partitions_per_topic=PARTITIONS) as coordinator,
        Admin(coordinator.address) as admin,
    ):  # its log is read again
        assert (await admin.describe_groups("g"))["g"].state == "Empty"
