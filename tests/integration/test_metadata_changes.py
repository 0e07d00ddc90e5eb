"""Long polls on metadata, over sockets: who wakes, what they are told, and what a client makes of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client import Admin, Producer
from client.transport.cluster import Cluster
from coordinator import Coordinator
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.messages.cluster import MetadataRequest, MetadataResponse
from protocol.messages.producers import InitProducerIdRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.integration.consuming import until
from tests.integration.test_bad_input import RawClient, raw
from tests.integration.test_bounds import ask, frame


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator() as running:
        yield running


async def create(client: RawClient, name: str) -> None:
    await ask(client, CreateTopicsRequest((CreatableTopic(name, 1),)))


async def answered(client: RawClient) -> MetadataResponse:
    answer = await client.answer()
    assert answer is not None
    return decode_message(MetadataResponse, answer.body)


def listed(response: MetadataResponse) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in response.topics}


async def test_a_poll_wakes_for_its_topics_only_and_is_told_what_changed(coordinator: Coordinator) -> None:
    async with raw(coordinator.address) as admin, raw(coordinator.address) as one, raw(coordinator.address) as every:
        for name in ("a", "b"):
            await create(admin, name)
        revision: Any = (await ask(admin, MetadataRequest(None)))[0]
        await one.send(frame(MetadataRequest(("a", "c"), revision, 30_000, accepts_changes=True), 1))
        await every.send(frame(MetadataRequest(None, revision, 30_000, accepts_changes=True), 1))
        await ask(admin, InitProducerIdRequest())  # a transaction that no topic is part of
        await create(admin, "d")
        news = await answered(every)
        assert (listed(news), news.since_revision) == ({"d": ErrorCode.NONE}, revision)
        waiting = asyncio.ensure_future(one.answer())
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
        await create(admin, "c")
        answer = await waiting
        assert answer is not None
        assert listed(decode_message(MetadataResponse, answer.body)) == {"c": ErrorCode.NONE}


async def test_a_client_that_says_nothing_of_changes_gets_all(coordinator: Coordinator) -> None:
    async with raw(coordinator.address) as admin, raw(coordinator.address) as older:
        await create(admin, "a")
        revision: Any = (await ask(admin, MetadataRequest(None)))[0]
        await older.send(frame(MetadataRequest(None, revision, 30_000), 1))
        await create(admin, "b")
        everything = await answered(older)
        assert everything.since_revision == -1
        assert set(listed(everything)) >= {"a", "b", "__consumer_offsets"}


async def test_a_watching_client_follows_topics_that_come_and_go(coordinator: Coordinator) -> None:
    cluster = Cluster(coordinator.address, client_id="watcher")
    await cluster.start()
    cluster.track(None)
    async with Admin(coordinator.address) as admin:
        for number in range(5):
            await admin.create_topics({f"t{number}": 2})
        await admin.delete_topics("t1", "t3")
        await admin.create_partitions({"t0": 4})
        await admin.create_topics({"t1": 7})
        wanted = {"t0": 4, "t1": 7, "t2": 2, "t4": 2}
        async with asyncio.timeout(20):
            while True:
                seen = {
                    name: len(topic.partitions) for name, topic in cluster.topology.topics.items() if name[0] == "t"
                }
                if seen == wanted:
                    break
                await asyncio.sleep(0.02)
        assert "t3" in cluster.topology.asked
    await cluster.close()


async def test_topics_that_are_deleted_and_created_again_take_records_at_once(coordinator: Coordinator) -> None:
    """Whatever answers are under way meanwhile, a send to a topic whose creation was acknowledged finds it."""
    async with Producer(coordinator.address) as producer, Admin(coordinator.address) as admin:

        async def churn(number: int) -> None:
            for turn in range(8):
                name = f"x{number}-{turn % 2}"
                await admin.create_topics({name: 2})
                await producer.send_and_wait(name, b"z")
                await admin.delete_topics(name)

        await asyncio.gather(*map(churn, range(6)))


async def test_a_daemon_that_was_restored_from_a_backup_is_believed(tmp_path: Path) -> None:
    """Its revision is below the one that the client knows, and the cluster the same."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with Coordinator(str(data)) as c:
        port = int(c.address.rpartition(":")[2])
        async with Admin(c.address) as admin:
            await admin.create_topics({"old": 1})
    shutil.copytree(data, backup)
    cluster = Cluster(f"127.0.0.1:{port}", client_id="c")
    try:
        async with Coordinator(str(data), port=port) as c:
            async with Admin(c.address) as admin:
                await admin.create_topics({"new": 1})
            cluster.track(None)
            await cluster.start()
            assert {"old", "new"} <= cluster.topology.topics.keys()
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        async with Coordinator(str(data), port=port):
            await until(lambda: "new" not in cluster.topology.topics, 30)
            assert "old" in cluster.topology.topics
    finally:
        await cluster.close()
