"""Metadata of a cluster: every live node, who leads, and polls that wake for what routing needs and never go back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from coordinator.metadata.authority import Delete, DeletePrefix
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.keys import partition_key, partitions_prefix, topic_key
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.store import TIMEOUT_MS, MetadataUnavailableError
from coordinator.replication.partition import Incarnation
from coordinator.server.call import NO_ERRORS
from coordinator.server.dispatch import Tasks, WireCall
from coordinator.server.handlers.metadata import AdvertisedAddress, MetadataHandler
from coordinator.server.handlers.topic_change import turn
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import RequestFrame, unpack
from protocol.messages.cluster import BrokerMetadata, MetadataRequest, MetadataResponse
from tests.coordinator.metadata.cluster_metadata import ClusterMetadata, follow, put, replicas
from tests.coordinator.server.test_sharing import Owner, connected


class Member:
    """A registration that a test ends."""

    def __init__(self) -> None:
        self.me, self.lease_id, self.is_valid = Incarnation(1, 1), 1, True
        self.listeners: list[Callable[[], None]] = []

    def valid(self) -> bool:
        return self.is_valid

    def on_invalid(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: None

    def lose(self) -> None:
        """The store is out of reach for too long."""
        self.is_valid = False
        for listener in self.listeners:
            listener()


class LateStore(MemoryStore):
    """A mirror that hears of what others do only when it catches up, unless it cannot reach the authority."""

    is_cut = False

    async def catch_up(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """See ``MetadataStore.catch_up``."""
        if self.is_cut:
            raise MetadataUnavailableError("no connection", "none")
        return await super().catch_up(timeout_ms=timeout_ms)


class Asked(WireCall):
    """A call whose answer a test looks at."""

    __slots__ = ("answered",)

    def __init__(self, request: MetadataRequest) -> None:
        super().__init__(connected(Owner())[0], RequestFrame(3, 0, 0, "c", ()), request, 0)
        self.answered: asyncio.Future[MetadataResponse | ErrorCode] = asyncio.get_running_loop().create_future()

    def answer_packed(self, head: bytes, body: bytes, errors: Mapping[int, int] = NO_ERRORS) -> None:
        self.open = False
        self.answered.set_result(decode_message(MetadataResponse, unpack(head + body)))

    def refuse(self, code: ErrorCode, message: str) -> None:
        self.open = False
        self.answered.set_result(code)


class Node:
    """A node of a cluster of three that answers Metadata."""

    def __init__(self, cluster: ClusterMetadata) -> None:
        self.store = LateStore(cluster.authority, "cluster-1", lambda: cluster.seconds)
        self.catalog: Catalog = cluster.catalog(1, self.store)
        self.member = Member()
        self._handler = MetadataHandler(
            self.catalog, Tasks(), self.member, advertised=AdvertisedAddress("reached", 1), max_wait_ms=600_000
        )

    def ask(self, *topics: str, **fields: Any) -> asyncio.Future[MetadataResponse | ErrorCode]:
        """A request for some topics."""
        call = Asked(MetadataRequest(topics, **fields))
        deque(self._handler.handle(call) or (), 0)
        return call.answered

    async def told(self, *topics: str, **fields: Any) -> MetadataResponse:
        """The answer, which must come."""
        async with asyncio.timeout(30):
            answer = await self.ask(*topics, **fields)
        assert isinstance(answer, MetadataResponse)
        return answer

    def poll(self, *topics: str) -> asyncio.Future[MetadataResponse | ErrorCode]:
        """A long poll of a client that knows all."""
        return self.ask(*topics, known_revision=self.catalog.revision, max_wait_ms=600_000, accepts_changes=True)


@pytest.fixture
async def cluster() -> ClusterMetadata:
    made = ClusterMetadata()
    await made.join(1, 2, 3, racks=lambda node: f"r{node}" if node < 3 else "")
    partitions = [(partition_key("x", index), replicas(1 + index, 3)) for index in range(2)]
    await put(made.store(), *partitions, (topic_key("a"), {"id": "x", "config": {}}))
    return made


async def moments() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_every_live_node_is_told_with_its_address_and_rack(cluster: ClusterMetadata) -> None:
    node = Node(cluster)
    told = await node.told("a")
    assert told.brokers == (
        BrokerMetadata(1, "host1", 9092, "r1"), BrokerMetadata(2, "host2", 9092, "r2"), BrokerMetadata(3, "host3", 9092),
    )  # fmt: skip
    assert (told.controller_id, told.cluster_id, told.revision) == (1, "cluster-1", node.catalog.revision)
    assert [(each.leader_id, each.error_code) for each in told.topics[0].partitions] == [(1, 0), (2, 0)]


async def test_a_partition_without_a_leader_says_so(cluster: ClusterMetadata) -> None:
    node = Node(cluster)
    await put(node.store, (partition_key("x", 1), {**replicas(2, 3, epoch=1), "leader": -1}))
    partition = (await node.told("a")).topics[0].partitions[1]
    assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)


async def test_a_poll_wakes_for_a_leader_and_not_for_who_is_in_sync(cluster: ClusterMetadata) -> None:
    node = Node(cluster)
    poll = node.poll("a")
    await put(node.store, (partition_key("x", 0), replicas(1, 3, isr=[1])))
    await moments()
    assert not poll.done()
    await put(node.store, (partition_key("x", 0), replicas(3, 1, isr=[3], epoch=1)))
    answer = await asyncio.wait_for(poll, 30)
    assert isinstance(answer, MetadataResponse)
    assert (answer.topics[0].partitions[0].leader_id, answer.topics[0].partitions[0].isr_nodes) == (3, (3,))


@pytest.mark.parametrize("gone", [1, 3])
async def test_a_poll_wakes_for_a_node_that_goes_and_brings_no_topic(cluster: ClusterMetadata, gone: int) -> None:
    node = Node(cluster)
    poll = node.poll("a", "nope")
    await moments()
    await cluster.leave(gone)
    await follow(node.store)
    answer = await asyncio.wait_for(poll, 30)
    assert isinstance(answer, MetadataResponse)
    assert [broker.node_id for broker in answer.brokers] == [each for each in (1, 2, 3) if each != gone]
    assert (answer.topics, answer.controller_id) == ((), 1 if gone == 3 else -1)
    again = node.ask("a", known_revision=answer.revision, max_wait_ms=600_000)
    await moments()
    assert not again.done()


async def test_a_node_that_may_be_out_of_date_refuses_also_those_who_wait(cluster: ClusterMetadata) -> None:
    node = Node(cluster)
    poll = node.poll("a")
    await moments()
    node.member.lose()
    assert await asyncio.wait_for(poll, 30) == ErrorCode.NETWORK_EXCEPTION
    assert await asyncio.wait_for(node.ask("a"), 30) == ErrorCode.NETWORK_EXCEPTION


async def test_a_client_that_knows_more_is_not_told_what_was_before(cluster: ClusterMetadata) -> None:
    node = Node(cluster)
    await put(cluster.store(), (partition_key("x", 0), replicas(3, 1, epoch=1)))
    newer = cluster.authority.revision
    assert node.catalog.revision < newer
    told = await node.told("a", known_revision=newer)
    assert (told.revision, told.topics[0].partitions[0].leader_id) == (newer, 3)
    await put(cluster.store(), (partition_key("x", 1), replicas(3, 2, epoch=1)))
    poll = node.ask("a", known_revision=cluster.authority.revision, max_wait_ms=600_000)
    await moments()
    assert (poll.done(), node.catalog.revision) == (False, cluster.authority.revision)
    await cluster.leave(2)
    await follow(node.store)
    assert isinstance(await asyncio.wait_for(poll, 30), MetadataResponse)


async def test_a_node_that_cannot_catch_up_sends_the_client_elsewhere(cluster: ClusterMetadata) -> None:
    node = Node(cluster)
    node.store.is_cut = True
    asked = node.ask("a", known_revision=node.catalog.revision + 1)
    assert await asyncio.wait_for(asked, 30) == ErrorCode.NETWORK_EXCEPTION
    assert (await node.told("a")).revision == node.catalog.revision


async def test_a_client_of_another_cluster_with_higher_revisions_is_told_all(cluster: ClusterMetadata) -> None:
    node = Node(cluster)
    told = await node.told("a", known_revision=10_000, accepts_changes=True)
    assert (told.revision, told.since_revision, len(told.topics)) == (node.catalog.revision, -1, 1)


async def test_a_change_of_topics_begins_with_what_other_nodes_have_changed(cluster: ClusterMetadata) -> None:
    node, other = Node(cluster), cluster.store()
    await other.transaction([], [Delete(topic_key("a")), DeletePrefix(partitions_prefix("x"))])
    assert "a" in node.catalog.topics
    deadline = asyncio.get_running_loop().time() + 30
    async with turn(node.catalog, "a", deadline):
        assert "a" not in node.catalog.topics
    node.store.is_cut = True
    with pytest.raises(MetadataUnavailableError):
        async with turn(node.catalog, "a", deadline):
            raise AssertionError("it is not known what is true")
    assert not node.catalog.lock.locked()
