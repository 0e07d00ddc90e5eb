"""What clients say that they run (KIP-511) is shown beside their members."""

from __future__ import annotations

from pathlib import Path

import pytest

from client import Admin, Consumer
from coordinator.embedded import Coordinator
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from tests.coordinator.kafka.test_groups import member
from tests.coordinator.kafka.wire import KafkaWire, connected


def running(data_dir: Path | None = None) -> Coordinator:
    directory = None if data_dir is None else str(data_dir)
    return Coordinator(directory, kafka_port=-1, flush="os", node_id=1, kafka_heartbeat_hold_ms=50)


async def shown(coordinator: Coordinator, group: str = "g") -> list[str]:
    """The software of the group's members."""
    async with Admin(coordinator.address) as admin:
        return [each.software for each in (await admin.describe_groups(group))[group].members]


async def says(wire: KafkaWire, name: str, version: str, api_version: int = 4) -> None:
    assert (await wire.ask(ApiVersionsRequest(name, version), api_version)).error_code == 0


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0", "confluent-kafka-python 2.16.1-rdkafka-2.16.0"),
        ("a", "1", "a 1"),
        ("x" * 60, "1", "x" * 60 + " 1"),
        ("x" * 61, "1", ""),
        ("a client", "1", ""),
        ("-a", "1", ""),
        ("a", "1.", ""),
        ("a\x1b[31m", "1", ""),
        ("ümlaut", "1", ""),
        ("", "", ""),
    ],
)
async def test_a_member_is_shown_with_what_its_client_runs(name: str, version: str, expected: str) -> None:
    """What Kafka would refuse is not shown, and harms nobody."""
    async with running() as coordinator, connected(coordinator.kafka_address) as wire:
        await says(wire, name, version)
        await member(wire, "g")
        assert await shown(coordinator) == [expected]


async def test_a_client_that_has_said_nothing_is_shown_without() -> None:
    async with running() as coordinator, connected(coordinator.kafka_address) as wire:
        await wire.ask(ApiVersionsRequest(), 2)
        await member(wire, "g")
        assert await shown(coordinator) == [""]


async def test_our_own_clients_are_shown_too() -> None:
    async with running() as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 1})
        async with Consumer("t", bootstrap_servers=coordinator.address, group_id="ours") as consumer:
            await consumer.getmany(timeout_ms=200)
            assert await shown(coordinator, "ours") == ["aiocohort"]


async def test_after_a_restart_it_is_known_when_the_member_is_heard_of(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator, connected(coordinator.kafka_address) as wire:
        await says(wire, "it", "1.0")
        joined = await member(wire, "g")
    async with running(tmp_path) as coordinator, connected(coordinator.kafka_address) as wire:
        assert await shown(coordinator) == [""]
        await says(wire, "it", "1.1")
        beat = HeartbeatRequest("g", joined.generation_id, joined.member_id)
        assert (await wire.ask(beat, 4)).error_code == 0
        assert await shown(coordinator) == ["it 1.1"]
