"""Metadata of all topics: an answer is used again while what it says is so, and for who is told the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from coordinator.kafka import cluster
from protocol.kafka.messages.create_partitions_request import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest
from protocol.kafka.messages.metadata_request import MetadataRequest
from protocol.kafka.messages.metadata_response import MetadataResponse
from tests.coordinator.kafka.wire import KafkaWire, connected

MANY = cluster._FEWEST_KEPT


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, kafka_host="0.0.0.0", flush="os", node_id=1) as running:
        yield running


@pytest.fixture
async def wire(coordinator: Coordinator) -> AsyncIterator[KafkaWire]:
    async with connected(f"127.0.0.1:{port(coordinator)}") as connection:
        await made(connection, *(f"t{number}" for number in range(MANY)))
        yield connection


def port(coordinator: Coordinator) -> int:
    return int(coordinator.kafka_address.rpartition(":")[2])


async def made(wire: KafkaWire, *names: str) -> None:
    await wire.ask(CreateTopicsRequest([CreatableTopic(name, 1, 1) for name in names], 10_000), 4)


async def everything(wire: KafkaWire, version: int = 12) -> MetadataResponse:
    told: MetadataResponse = await wire.ask(MetadataRequest([] if version == 0 else None), version)
    return told


def sizes(told: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: len(topic.partitions) for topic in told.topics if not topic.is_internal}


async def test_the_same_is_answered_in_every_version_again_and_again(wire: KafkaWire) -> None:
    first = [await everything(wire, version) for version in range(14)]
    for version in (*range(14), *reversed(range(14)), 3, 3):
        again = await everything(wire, version)
        assert again == first[version]
        assert len(sizes(again)) >= MANY


async def test_a_change_is_told_at_once(wire: KafkaWire) -> None:
    before = sizes(await everything(wire))
    assert sizes(await everything(wire)) == before
    await made(wire, "new")
    assert sizes(await everything(wire)) == {**before, "new": 1}
    await wire.ask(CreatePartitionsRequest([CreatePartitionsTopic("new", 3)], 10_000), 3)
    assert sizes(await everything(wire)) == {**before, "new": 3}
    await wire.ask(DeleteTopicsRequest(topic_names=["new"], timeout_ms=10_000), 5)
    assert sizes(await everything(wire)) == before


async def test_each_client_is_told_the_address_that_it_connected_to(coordinator: Coordinator, wire: KafkaWire) -> None:
    async with connected(f"127.0.0.2:{port(coordinator)}") as other:
        for _ in range(2):
            assert [broker.host for broker in (await everything(wire)).brokers] == ["127.0.0.1"]
            assert [broker.host for broker in (await everything(other)).brokers] == ["127.0.0.2"]


async def test_few_answers_are_kept(wire: KafkaWire, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[cluster._WholeAnswers] = []
    keep = cluster._WholeAnswers.keep

    def noted(self: cluster._WholeAnswers, *about: object) -> None:
        keep(self, *about)  # type: ignore[arg-type]
        kept.append(self)

    monkeypatch.setattr(cluster._WholeAnswers, "keep", noted)
    for version in range(14):
        await everything(wire, version)
    assert len(kept) == 14
    assert len(kept[0]._kept) == cluster._MOST_KEPT
    await everything(wire, 13)
    assert len(kept) == 14, "this one was kept"
    monkeypatch.setattr(cluster, "_MOST_KEPT_BYTES", 100)
    await made(wire, "new")
    assert "new" in sizes(await everything(wire, 13))
    assert len(kept) == 14, "this one is too large"
