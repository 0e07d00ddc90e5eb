"""Transactions of unmodified Kafka clients against a daemon: they consume, transform and produce, and fence one another."""

from __future__ import annotations

import asyncio
import sys

import pytest

from coordinator.embedded import Coordinator


@pytest.mark.parametrize("client", ["aiokafka", "confluent-kafka", "kafka-python"])
async def test_a_client_consumes_transforms_and_produces_in_transactions(client: str) -> None:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as coordinator:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.integration.kafka_transactions", client, coordinator.kafka_address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(90):
                said, _ = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        assert program.returncode == 0, said.decode()
