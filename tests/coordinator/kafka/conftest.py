"""A daemon with a port for Kafka's clients, and a connection to it, for tests that need no other settings."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from tests.coordinator.kafka.wire import KafkaWire, connected


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as running:
        yield running


@pytest.fixture
async def wire(coordinator: Coordinator) -> AsyncIterator[KafkaWire]:
    async with connected(coordinator.kafka_address) as connection:
        yield connection
