"""Fetch over the Kafka port, as readers ask that know of fetch sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from coordinator.kafka.codes import KafkaCode
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from tests.coordinator.kafka.wire import KafkaWire, connected

NO_SESSION = 0
BEGINS, IN_NONE = 0, -1


@pytest.fixture
async def wire() -> AsyncIterator[KafkaWire]:
    async with (
        Coordinator(kafka_port=-1, flush="os", node_id=1) as running,
        connected(running.kafka_address) as connection,
    ):
        await connection.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 10_000), 7)
        yield connection


def fetching(session_id: int, session_epoch: int, topics: list[FetchTopic]) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0, max_bytes=1_000_000, session_id=session_id, session_epoch=session_epoch, topics=topics
    )


@pytest.mark.parametrize("version", range(7, 13))
async def test_a_request_that_names_all_partitions_needs_no_session(wire: KafkaWire, version: int) -> None:
    """KIP-227: the epochs 0 and -1 are of full requests; a session's id beside them is of one that is given up."""
    topics = [FetchTopic("t", partitions=[FetchPartition(0, partition_max_bytes=1_000_000)])]
    for session_id in (NO_SESSION, -1, 77):
        for epoch in (BEGINS, IN_NONE):
            told = await wire.ask(fetching(session_id, epoch, topics), version)
            assert (told.error_code, told.session_id) == (0, NO_SESSION)
            assert [(topic.topic, topic.partitions[0].error_code) for topic in told.responses] == [("t", 0)]


@pytest.mark.parametrize("version", range(7, 13))
async def test_a_session_that_is_not_there_cannot_go_on(wire: KafkaWire, version: int) -> None:
    for session_id in (NO_SESSION, 77):
        told = await wire.ask(fetching(session_id, 1, []), version)
        assert (told.error_code, told.responses) == (KafkaCode.FETCH_SESSION_ID_NOT_FOUND, [])
