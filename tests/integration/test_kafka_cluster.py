"""Kafka's clients and a cluster: they are told of each node by its port for them, and live through the loss of one."""

from __future__ import annotations

import asyncio
import sys

from coordinator.cluster import Cluster
from protocol.errors import ErrorCode
from protocol.kafka.messages.describe_cluster_request import DescribeClusterRequest
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.coordinator.kafka.wire import connected
from tests.protocol.kafka.written import Record, written


async def program(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.integration.kafka_programs", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_every_node_that_lives_is_told_by_its_port_for_kafkas_clients() -> None:
    async with Cluster(nodes=3, kafka_port=-1, flush="os") as cluster:
        addresses = cluster.kafka_address.split(",")
        ports = {number: int(address.rpartition(":")[2]) for number, address in enumerate(addresses)}
        for address in addresses:
            async with connected(address) as wire, asyncio.timeout(30):
                while True:  # a topic is told with the leaders that are elected so far
                    told = await wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 9)
                    if len(told.brokers) == 3 and all(each.leader_id >= 0 for each in told.topics[0].partitions):
                        break
                    await asyncio.sleep(0.05)
                assert {each.node_id: each.port for each in told.brokers} == ports
                assert told.controller_id in ports
                (partition,) = told.topics[0].partitions
                assert sorted(partition.replica_nodes) == [0, 1, 2]
                described = await wire.ask(DescribeClusterRequest(), 1)
                assert {each.broker_id: each.port for each in described.brokers} == ports
                while True:
                    found = await wire.ask(FindCoordinatorRequest("g"), 2)
                    if found.error_code == ErrorCode.NONE:
                        break
                    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                    await asyncio.sleep(0.05)
                assert found.port == ports[found.node_id]
        await cluster.kill(1)
        async with connected(addresses[0]) as wire, asyncio.timeout(30):
            while len((told := await wire.ask(MetadataRequest(None), 9)).brokers) > 2:
                await asyncio.sleep(0.1)
            assert [each.node_id for each in told.brokers] == [0, 2]


async def test_a_node_that_does_not_lead_says_who_does_and_where() -> None:
    """KIP-951: clients go there without asking for metadata."""
    async with Cluster(nodes=3, kafka_port=-1, flush="os") as cluster, asyncio.timeout(60):
        addresses = cluster.kafka_address.split(",")
        async with connected(addresses[0]) as wire:
            while True:
                (topic,) = (await wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 12)).topics
                if topic.partitions and topic.partitions[0].leader_id >= 0:
                    break
                await asyncio.sleep(0.05)
        leader = topic.partitions[0].leader_id
        async with connected(addresses[(leader + 1) % 3]) as wire:
            wanted = [FetchTopic("t", topic.topic_id, [FetchPartition(0, partition_max_bytes=1_000)])]
            fetched = await wire.ask(FetchRequest(max_wait_ms=0, topics=wanted), 16)
            batch = [PartitionProduceData(0, written([Record(None, b"v")]))]
            request = ProduceRequest(None, -1, 9_000, [TopicProduceData("t", topic.topic_id, batch)])
            produced = await wire.ask(request, 13)
        (read,), (write,) = fetched.responses[0].partitions, produced.responses[0].partition_responses
        for result, told in ((read, fetched), (write, produced)):
            assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert result.current_leader.leader_id == leader
            (node,) = told.node_endpoints
            assert (node.node_id, f"{node.host}:{node.port}") == (leader, addresses[leader])


async def test_a_client_writes_and_reads_while_a_node_is_killed() -> None:
    async with Cluster(nodes=3, kafka_port=-1, flush="os") as cluster:
        client = await program("survivor", cluster.kafka_address, "lz4")
        said = b""
        try:
            async with asyncio.timeout(110):
                assert client.stdout is not None
                while b"half" not in said:
                    line = await client.stdout.readline()
                    assert line, said.decode()
                    said += line
                await cluster.kill(1)
                said += await client.stdout.read()
                await client.wait()
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
        assert client.returncode == 0, said.decode()
