"""Transactions of unmodified Kafka clients against a daemon: they consume, transform and produce, and fence one another."""

from __future__ import annotations

import asyncio
import sys

import pytest

from client import Admin
from coordinator.cluster import Cluster
from coordinator.embedded import Coordinator
from coordinator.metadata.catalog import TRANSACTIONS_TOPIC
from protocol.hashing import partition_for_transactional_id


async def started(client: str, servers: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.integration.kafka_transactions", client, servers),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def ended(program: asyncio.subprocess.Process) -> None:
    if program.returncode is None:
        program.kill()
        await program.wait()


@pytest.mark.parametrize("client", ["aiokafka", "confluent-kafka", "kafka-python"])
async def test_a_client_consumes_transforms_and_produces_in_transactions(client: str) -> None:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as coordinator:
        program = await started(client, coordinator.kafka_address)
        try:
            async with asyncio.timeout(90):
                said, _ = await program.communicate()
        finally:
            await ended(program)
        assert program.returncode == 0, said.decode()


async def test_each_transaction_is_whole_when_the_node_that_coordinates_them_dies() -> None:
    async with Cluster(nodes=3, kafka_port=-1, flush="os", log_level="error") as cluster:
        program = await started("survivor", cluster.kafka_address)
        said = b""
        try:
            async with asyncio.timeout(150):
                assert program.stdout is not None
                assert program.stdin is not None
                while b"ten" not in said:
                    line = await program.stdout.readline()
                    assert line, said.decode()
                    said += line
                async with Admin(cluster.address) as admin:
                    state = (await admin.describe_topics(TRANSACTIONS_TOPIC))[TRANSACTIONS_TOPIC]
                await cluster.kill(state.partitions[partition_for_transactional_id("survivor")].leader)
                program.stdin.write(b"\n")
                said += (await program.communicate())[0]
        finally:
            await ended(program)
        assert program.returncode == 0, said.decode()
