"""Topics of a cluster, changed through any node, also while one is down: what clients see, and what is on the disks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from client import Admin, Consumer, Producer, TopicPartition
from client.errors import InvalidReplicationFactorError, TopicAlreadyExistsError
from coordinator.cluster import Cluster
from coordinator.metadata.catalog import OFFSETS_TOPIC
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.cluster import MetadataRequest
from protocol.messages.configs import DescribeConfigsRequest
from protocol.messages.topics import DeleteTopicsRequest
from tests.integration.test_bad_input import RawClient, raw
from tests.integration.test_bounds import ask, create

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=3) as running:
        yield running


async def until(check: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.05)
    assert check(), what


def directories(cluster: Cluster, node: int, topic: str) -> list[str]:
    """What a node has on disk under the name of a topic."""
    return sorted(name for name in os.listdir(cluster._nodes[node]._directory) if name.startswith(topic))


def minimums(cluster: Cluster, topic: str) -> set[int]:
    """How many replicas have to be in sync, as the partitions of a topic have it in the metadata."""
    store = next(node._store for node in cluster._nodes if node._store is not None)
    known = store.get(f"topics/{topic}")
    assert known is not None
    return {each.value.get("min_isr", 1) for each in store.range(f"partitions/{known.value['id']}/")}


async def write(cluster: Cluster, topic: str, partitions: int, *values: str) -> None:
    async with Producer(cluster.address) as producer:
        for number, value in enumerate(values):
            await producer.send_and_wait(topic, value.encode(), partition=number % partitions)


async def read(address: str, topic: str, count: int) -> list[str]:
    values: list[str] = []
    async with Consumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(30):
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    values += [(record.value or b"").decode() for record in records]
    return sorted(values)


async def all_in_sync(admin: Admin) -> bool:
    topic = (await admin.describe_topics("orders"))["orders"]
    return all(len(partition.in_sync_replicas) == 3 for partition in topic.partitions)


async def test_each_node_changes_topics_and_the_others_know(cluster: Cluster) -> None:
    one, two, three = [Admin(address) for address in cluster.addresses]
    async with one, two, three:
        await one.create_topics({"orders": 3, "many": 300})
        with pytest.raises(TopicAlreadyExistsError):
            await two.create_topics({"orders": 1})
        with pytest.raises(InvalidReplicationFactorError, match="0, 1, 2"):
            await two.create_topics({"other": 1}, replication_factor=4)
        await two.create_partitions({"orders": 5})
        await three.alter_topic_config("orders", {"min.insync.replicas": 3})
        described = (await one.describe_topics("orders"))["orders"]
        assert (len(described.partitions), described.config["min.insync.replicas"]) == (5, "3")
        assert all(sorted(partition.replicas) == [0, 1, 2] for partition in described.partitions)
        await until(lambda: minimums(cluster, "orders") == {3}, "the controller follows")
        await one.alter_topic_config("orders", {"min.insync.replicas": None})
        await until(lambda: minimums(cluster, "orders") == {2}, "a majority again")
        assert (await two.describe_topics("orders"))["orders"].config["min.insync.replicas"] == "2"
        await write(cluster, "orders", 5, *"abcdefghij")
        assert await read(cluster.addresses[2], "orders", 10) == list("abcdefghij")
        await two.delete_topics("many", "orders")
        assert await three.list_topics() == []
        await until(lambda: not any(directories(cluster, node, "many-") for node in range(3)), "their logs go")
        await until(lambda: not any(directories(cluster, node, "orders-") for node in range(3)), "their logs go")


async def test_topics_that_are_deleted_together_have_their_answers_each(cluster: Cluster) -> None:
    names = [f"t{number:03}" for number in range(70)]
    wanted = [*names[:40], OFFSETS_TOPIC, "unknown", *names[35:]]  # five of them twice
    expected = [ErrorCode.NONE] * 40 + [ErrorCode.INVALID_TOPIC_EXCEPTION]
    expected += [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 6 + [ErrorCode.NONE] * 30
    async with Admin(cluster.addresses[1]) as admin, raw(cluster.addresses[1]) as client:
        await admin.create_topics(dict.fromkeys(names, 2))
        (told,) = await ask(client, DeleteTopicsRequest(tuple(wanted), 30_000))
        assert [(entry[0], entry[1]) for entry in told] == list(zip(wanted, expected, strict=True))  # type: ignore[attr-defined]
        assert await admin.list_topics() == []
        await until(lambda: not any(directories(cluster, node, "t0") for node in range(3)), "their logs go")


async def test_a_topic_that_is_made_again_while_a_node_is_down_is_another_one(cluster: Cluster) -> None:
    """The dead node comes back with logs of the first one, and is to have those of the namesake."""
    async with Admin(cluster.addresses[0]) as admin:
        await admin.create_topics({"orders": 3})
        await write(cluster, "orders", 3, "old1", "old2", "old3")
        await cluster.kill(2)
        await admin.delete_topics("orders")
        await admin.create_topics({"orders": 3}, replication_factor=2)
        await write(cluster, "orders", 3, "new1", "new2", "new3")
        assert directories(cluster, 2, "orders-") == ["orders-0", "orders-1", "orders-2"]
        await cluster.start(2)
        async with asyncio.timeout(60):
            while 2 not in {node.node_id for node in (await admin.describe_cluster()).nodes}:
                await asyncio.sleep(0.1)
            await admin.reassign_partitions({TopicPartition("orders", index): [0, 1, 2] for index in range(3)})
            while not await all_in_sync(admin):
                await asyncio.sleep(0.1)
        await cluster.stop(0)
        await cluster.kill(1)
        assert directories(cluster, 2, "orders-") == ["orders-0", "orders-1", "orders-2"]
    await cluster.start(0)
    assert await read(cluster.addresses[2], "orders", 3) == ["new1", "new2", "new3"]


async def test_a_read_that_names_no_revision_knows_what_was_changed_through_another_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cluster._nodes[1]._store
    assert store is not None
    monkeypatch.setattr(store, "follow", lambda: None)  # its watch lags
    async with raw(cluster.addresses[0]) as changing, raw(cluster.addresses[1]) as reading:

        async def asked(client: RawClient, request: Request) -> Any:
            return decode_message(request.response, await ask(client, request))

        await create(changing, "fresh", 3)
        described = await asked(reading, DescribeConfigsRequest(("fresh",)))
        assert described.results[0].error_code == ErrorCode.NONE, described
        await create(changing, "newer", 3)
        told = await asked(reading, MetadataRequest(("newer",)))
        assert [(topic.error_code, len(topic.partitions)) for topic in told.topics] == [(ErrorCode.NONE, 3)]
        await asked(changing, DeleteTopicsRequest(("newer",)))
        told = await asked(reading, MetadataRequest(("newer",)))
        assert [topic.error_code for topic in told.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
