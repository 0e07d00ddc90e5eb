"""An administrator has a partition led by a replica that is not in sync, where the one that was will not come back."""

from __future__ import annotations

import asyncio
from typing import Any

from client import Admin, Producer
from coordinator.cluster import Cluster
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.messages.reassignment import UNCLEAN_ELECTION, ElectLeadersRequest, ElectTopic
from tests.integration.fetched import values
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import ask


async def described(address: str) -> Any:
    async with Admin(address) as admin:
        return (await admin.describe_topics("t"))["t"].partitions[0]


async def elected(address: str) -> int:
    """The code of an unclean election of partition 0."""
    async with raw(address) as client:
        request = ElectLeadersRequest((ElectTopic("t", (0,)),), UNCLEAN_ELECTION)
        answer: Any = decode_message(request.response, await ask(client, request))
        assert answer.error_code == ErrorCode.NONE, answer
        return int(answer.replica_election_results[0].partition_result[0].error_code)


async def test_the_replica_that_goes_furthest_leads_when_none_is_in_sync() -> None:
    async with Cluster(nodes=3, log_level="error") as cluster, asyncio.timeout(90):
        async with Admin(cluster.address) as admin:
            await admin.create_topics({"t": 1}, config={"min.insync.replicas": "1"})
        leader = (await described(cluster.address)).leader
        behind, further = (node for node in range(3) if node != leader)
        async with Producer(cluster.addresses[leader], acks="all") as producer:
            await producer.send_and_wait("t", b"all have it")
            await cluster.kill(behind)
            await producer.send_and_wait("t", b"two have it")
            await cluster.kill(further)
            await producer.send_and_wait("t", b"one has it")
        assert await elected(cluster.addresses[leader]) == ErrorCode.ELECTION_NOT_NEEDED
        await cluster.kill(leader)
        await asyncio.gather(cluster.start(behind), cluster.start(further))
        alive = cluster.addresses[further]
        while (await described(alive)).leader == leader:
            await asyncio.sleep(0.1)
        assert (await described(alive)).leader == -1
        assert await elected(cluster.addresses[behind]) == ErrorCode.NONE
        while (await described(alive)).leader != further:
            await asyncio.sleep(0.1)
        assert (await values(alive, "t"))[0] == [b"all have it", b"two have it"]
        await cluster.start(leader)
        while len((await described(alive)).in_sync_replicas) < 3:
            await asyncio.sleep(0.1)
        assert (await values(alive, "t"))[0] == [b"all have it", b"two have it"], "the rest is given up there, too"
