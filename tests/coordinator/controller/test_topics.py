"""Topics of a cluster: made, grown, altered and deleted by nodes that do not ask one another, also when answers are lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coordinator.controller.administration import Administration
from coordinator.controller.internal_topics import InternalTopics
from coordinator.controller.topics import MAX_DELETED, ClusterTopics
from coordinator.metadata.authority import Compare, Operation, Put
from coordinator.metadata.catalog import INTERNAL_TOPICS, OFFSETS_TOPIC, Catalog, TopicError
from coordinator.metadata.keys import (
    CREATING,
    deleting_key,
    live_key,
    node_key,
    partitions_prefix,
    reassignment_key,
    topic_key,
)
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.store import TIMEOUT_MS, MetadataUnavailableError
from protocol.errors import ErrorCode
from tests.coordinator.metadata.cluster_metadata import ClusterMetadata, follow, put


class LossyStore(MemoryStore):
    """Loses answers of transactions as ``fate`` says: "lost" before they are carried out, "late" after it."""

    fate: Callable[[], str] = staticmethod(lambda: "fine")
    before: Callable[[], None] = staticmethod(lambda: None)
    sent = 0

    async def transaction(
        self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = TIMEOUT_MS
    ) -> int | None:
        """See ``MetadataStore.transaction``."""
        self.sent += 1
        self.before()
        fate = self.fate()
        if fate == "lost":
            raise MetadataUnavailableError("no answer", "unknown")
        if fate == "unreachable":
            raise MetadataUnavailableError("no connection", "none")
        revision = await super().transaction(compare, operations, timeout_ms=timeout_ms)
        if fate == "late":
            raise MetadataUnavailableError("no answer", "unknown")
        return revision


class Node:
    """What one node has to change topics."""

    def __init__(self, cluster: ClusterMetadata, node: int, **options: Any) -> None:
        self.store = LossyStore(cluster.authority, "cluster-1", lambda: cluster.seconds)
        self.catalog: Catalog = cluster.catalog(node, self.store, **options)
        self.topics = ClusterTopics(self.store, self.catalog, lambda: cluster.leases[node].id)

    async def create(self, name: str, partitions: int, replicas: int, **config: Any) -> None:
        """A topic with settings."""
        await self.topics.create([self.topics.draft(name, partitions, replicas, config)])


async def three(**options: Any) -> tuple[ClusterMetadata, Node, Node]:
    """A cluster of three nodes, two of which are asked to change topics."""
    cluster = ClusterMetadata()
    await cluster.join(1, 2, 3)
    return cluster, Node(cluster, 1, **options), Node(cluster, 2, **options)


async def test_a_new_topic_has_live_replicas_that_joined_and_a_majority_as_minimum() -> None:
    _, node, other = await three()
    await node.create("a", 6, 3)
    topic = node.catalog.topic("a")
    assert {state.leader for state in topic.partitions} == {1, 2, 3}
    for state in topic.partitions:
        epochs = [node.catalog.nodes[each].broker_epoch for each in state.replicas]
        assert (state.leader, state.leader_broker_epoch) == (state.replicas[0], epochs[0])
        assert (sorted(state.isr), list(state.joined), state.min_isr) == ([1, 2, 3], epochs, 2)
        assert state.registration.isr == dict(zip(state.replicas, epochs, strict=True))
    await follow(other.store)
    assert other.catalog.topic("a") == topic
    assert node.store.sent == 1  # partitions and topic together


@pytest.mark.parametrize(
    ("replicas", "min_insync", "min_isr"), [(1, -1, 1), (2, -1, 1), (3, -1, 2), (3, 1, 1), (3, 3, 3), (2, 3, 2)]
)
async def test_the_minimum_follows_the_topics_settings(replicas: int, min_insync: int, min_isr: int) -> None:
    _, node, _ = await three()
    await node.create("a", 1, replicas, **{"min.insync.replicas": min_insync})
    assert node.catalog.topic("a").partitions[0].min_isr == min_isr


async def test_the_default_replication_factor_is_the_settings() -> None:
    _, node, _ = await three(default_replication_factor=2)
    await node.create("a", 1, -1)
    assert len(node.catalog.topic("a").partitions[0].replicas) == 2


@pytest.mark.parametrize("replicas", [0, 4, 8, -2])
async def test_too_many_replicas_are_refused_naming_who_lives(replicas: int) -> None:
    _, node, _ = await three()
    with pytest.raises(TopicError, match=r"\(1, 2, 3\)|from 1 to 7 are allowed") as refused:
        node.topics.draft("a", 1, replicas, {})
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_replicas_go_to_other_racks_and_to_nodes_that_have_few_and_do_not_stop() -> None:
    cluster = ClusterMetadata()
    await cluster.join(1, 2, 3, 4, racks=lambda node: "ab"[node % 2])
    node = Node(cluster, 1)
    await node.create("a", 8, 2)
    assert all(sum(state.replicas) % 2 for state in node.catalog.topic("a").partitions)  # one odd, one even
    assert {len(list(node.catalog.led_by(each))) for each in range(1, 5)} == {2}
    stopping = node.store.get(live_key(4))
    assert stopping is not None
    await node.store.transaction([], [Put(live_key(4), stopping.value, stopping.lease)])
    await node.create("b", 4, 3)
    assert not any(state.has(4) for state in node.catalog.topic("b").partitions)


async def test_nodes_are_given_no_more_logs_than_they_may_open() -> None:
    cluster = ClusterMetadata()
    await cluster.join(1, 2, 3, room=lambda node: {1: 10, 2: 3}.get(node, -1))
    node = Node(cluster, 1)
    admin = Administration(node.store, node.catalog)
    await node.topics.create_internal_topics(3)
    assert admin.room_left() == {1: 10, 2: 3}, "the coordinators' topics are apart"
    await node.create("a", 2, 3)
    with pytest.raises(
        TopicError, match=r"topic 'b': 3 replicas were asked for, and node 2 may open no more logs"
    ) as full:
        node.topics.draft("b", 2, 3, {})
    assert full.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    await node.create("b", 3, 2)
    assert admin.room_left()[2] <= 1
    with pytest.raises(TopicError, match="may open no more logs"):
        node.topics.draft_growth(node.catalog.topic("a"), 4)
    await node.create("c", 4, 1)
    free = [("c", index) for index, state in enumerate(node.catalog.topic("c").partitions) if not state.has(2)]
    left = admin.room_left()[2]
    refused = await admin.reassign([(partition, (2,)) for partition in free])
    assert {outcome.code for outcome in refused} == {ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert f"node 2 may open {left} more logs (max_partitions), and {len(free)} are asked for" in refused[0].message
    taken = await admin.reassign([(partition, (2,)) for partition in free[:left]])
    assert {outcome.code for outcome in taken} <= {ErrorCode.NONE}
    assert admin.room_left()[2] == 0, "what is to be moved there has its room"
    again = await admin.reassign([(free[-1], (2,))])
    assert again[0].code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_a_topic_of_many_partitions_is_seen_whole_or_not_at_all() -> None:
    cluster, node, other = await three()
    seen: list[int] = []
    other.catalog.on_change(lambda names: seen.append(len(other.catalog.topic(names[0]).partitions)))
    noted: list[int] = []

    def look() -> None:
        noted.append(len(cluster.authority.range(CREATING)))

    node.store.before = look
    await node.create("a", 400, 3)
    await follow(other.store)
    assert (seen, noted[1:]) == ([400], [1] * (len(noted) - 1))
    assert (node.store.range(CREATING), node.catalog.half_made()) == ([], [])


async def test_what_a_node_leaves_half_made_is_not_seen_and_its_note_goes_with_its_lease() -> None:
    cluster, node, other = await three()

    def die() -> None:
        if node.store.sent == 3:
            raise asyncio.CancelledError

    node.store.before = die
    node.topics._tidied = lambda topic, noted: asyncio.sleep(0)  # type: ignore[method-assign]  # it is gone
    with pytest.raises(asyncio.CancelledError):
        await node.create("a", 400, 3)
    await follow(other.store)
    (half_made,) = other.catalog.half_made()
    assert ("a" in other.catalog.topics, len(other.store.range(CREATING))) == (False, 1)
    await cluster.leave(1)
    await follow(other.store)
    assert (other.store.range(CREATING), other.catalog.half_made()) == ([], [half_made])


async def test_a_creation_that_fails_takes_back_what_it_has_made() -> None:
    cluster, node, _ = await three()

    def namesake() -> None:
        if node.store.sent == 4:
            cluster.authority.transaction([], [Put(topic_key("a"), {"id": "x", "config": {}})])

    node.store.before = namesake
    draft = node.topics.draft("a", 400, 3, {})
    with pytest.raises(TopicError) as refused:
        await node.topics.create([draft])
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert (node.store.range(partitions_prefix(draft.topic_id)), node.store.range(CREATING)) == ([], [])


async def test_nodes_that_changed_meanwhile_are_not_given_replicas() -> None:
    cluster, node, _ = await three()
    draft = node.topics.draft("a", 2, 2, {})
    gone = draft.partitions[0].replicas[0]
    await cluster.leave(gone)
    await node.topics.create([draft])
    assert not any(state.has(gone) for state in node.catalog.topic("a").partitions)
    assert node.catalog.topic("a").topic_id == draft.topic_id


async def test_two_nodes_that_make_the_same_topic_make_one() -> None:
    _, node, other = await three()
    drafts = [each.topics.draft("a", 3, 3, {}) for each in (node, other)]
    made = await asyncio.gather(node.topics.create(drafts[:1]), other.topics.create(drafts[1:]), return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["NoneType", "TopicError"]
    await follow(node.store, other.store)
    assert node.catalog.topics == other.catalog.topics
    assert node.catalog.half_made() == []


async def test_topics_of_one_request_share_transactions() -> None:
    _, node, _ = await three()
    drafts = [node.topics.draft(f"t{number}", 3, 3, {}) for number in range(40)]
    await node.topics.create(drafts)
    assert (len(node.catalog.topics), node.store.sent) == (40, 2)


async def test_growth_is_in_order_and_conditional() -> None:
    _, node, other = await three()
    await node.create("a", 2, 2)
    await follow(other.store)
    before = node.catalog.topic("a")
    stale = other.catalog.topic("a")
    await node.topics.grow(before, node.topics.draft_growth(before, 300))
    grown = node.catalog.topic("a")
    assert (grown.topic_id, grown.partitions[:2], len(grown.partitions)) == (before.topic_id, before.partitions, 300)
    assert {len(state.replicas) for state in grown.partitions} == {2}
    with pytest.raises(TopicError, match="changed by another request"):
        await other.topics.grow(stale, other.catalog.draft_growth(stale, 5, [(3,)] * 3))
    await follow(other.store)
    assert other.catalog.topic("a") == grown


async def test_a_deleted_topic_is_noted_until_each_node_has_removed_its_logs() -> None:
    _, node, other = await three()
    await node.create("a", 3, 2)
    topic = node.catalog.topic("a")
    await put(node.store, (reassignment_key(topic.topic_id, 0), {"target": [1, 9]}))
    assert await node.topics.delete([topic]) == {}
    assert (node.catalog.topics, node.store.range("partitions/"), node.store.range("reassignments/")) == ({}, [], [])
    assert node.catalog.is_deleted(topic.topic_id)
    await node.create("a", 1, 1)  # the name is free at once
    await follow(other.store)
    nodes = [each for each in (1, 2, 3, 9) if other.catalog.deletions_of(each) == [(topic.topic_id, "a", 3)]]
    assert 9 in nodes
    await asyncio.gather(*(each.topics.deletion_done([topic.topic_id], each.catalog.node_id) for each in (node, other)))
    for left in (3, 9):
        assert node.store.get(deleting_key(topic.topic_id)) is not None
        await follow(other.store)
        await other.topics.deletion_done([topic.topic_id], left)
    await follow(node.store)
    assert (node.store.get(deleting_key(topic.topic_id)), node.catalog.is_deleted(topic.topic_id)) == (None, False)


@pytest.mark.parametrize("fate", ["lost", "late", "unreachable"])
async def test_a_node_that_is_removed_leaves_the_notes_of_deleted_topics_at_the_second_attempt_too(fate: str) -> None:
    cluster, node, other = await three()
    await node.create("a", 3, 3)
    topic_id = node.catalog.topic("a").topic_id
    await put(node.store, (node_key(3), {"directory": "dir3", "rack": ""}))
    await cluster.leave(3)
    assert await node.topics.delete([node.catalog.topic("a")]) == {}
    await follow(other.store)
    for left in (1, 2):
        await other.topics.deletion_done([topic_id], left)
    await follow(node.store)
    fates = iter(["fine", fate])
    node.store.fate = lambda: next(fates, "fine")
    with pytest.raises(MetadataUnavailableError):
        await Administration(node.store, node.catalog).remove_node(3, node.topics)
    await follow(other.store)
    assert other.store.get(node_key(3)) is None
    assert (other.store.get(deleting_key(topic_id)) is None) == (fate == "late")
    again = Administration(other.store, other.catalog).remove_node(3, other.topics)
    if fate == "late":  # all is done
        with pytest.raises(TopicError, match="there is no node 3"):
            await again
    else:
        await again
    assert (other.store.range("deleting/"), other.catalog.deletions()) == ([], [])
    with pytest.raises(TopicError, match="there is no node 3"):
        await Administration(other.store, other.catalog).remove_node(3, other.topics)


async def test_many_topics_are_deleted_by_few_transactions_and_noted_by_few() -> None:
    _, node, other = await three()
    topics = [node.topics.draft(f"t{number}", 2, 2, {}) for number in range(3 * MAX_DELETED)]
    await node.topics.create(topics)
    await follow(other.store)
    node.store.sent = other.store.sent = 0
    for start in range(0, len(topics), MAX_DELETED):
        named = [node.catalog.topic(topic.name) for topic in topics[start : start + MAX_DELETED]]
        assert await node.topics.delete(named) == {}
    assert (node.catalog.topics, node.store.sent) == ({}, 3)
    await follow(other.store)
    ids = [topic.topic_id for topic in topics]
    await asyncio.gather(node.topics.deletion_done(ids, 1), other.topics.deletion_done(ids, 2))
    await follow(node.store)
    await node.topics.deletion_done(ids, 3)
    assert node.store.range("deleting/") == []
    assert node.store.sent + other.store.sent <= 3 + 4


async def test_of_topics_that_are_deleted_together_one_that_was_changed_keeps_none_from_going() -> None:
    _, node, other = await three()
    for name in "abcd":
        await node.create(name, 1, 1)
    await follow(other.store)
    stale = [other.catalog.topic(name) for name in "abcd"]
    assert await node.topics.delete([node.catalog.topic("b"), node.catalog.topic("c")]) == {}
    await node.create("c", 1, 1)
    assert await other.topics.delete(stale) == {}
    assert list(other.catalog.topics) == ["c"], "the namesake stays"


async def test_topics_whose_deletion_lost_its_answer_are_deleted_once() -> None:
    _, node, _ = await three()
    for name in "abc":
        await node.create(name, 1, 1)
    fates = iter(["late", "lost", "fine"])
    node.store.fate = lambda: next(fates, "fine")
    assert await node.topics.delete([node.catalog.topic(name) for name in "ab"]) == {}
    assert await node.topics.delete([node.catalog.topic("c")]) == {}
    assert (node.catalog.topics, len(node.store.range("deleting/"))) == ({}, 3)


async def test_deleting_a_namesake_is_refused_to_who_has_not_heard_of_it() -> None:
    _, node, other = await three()
    await node.create("a", 1, 1)
    await follow(other.store)
    stale = other.catalog.topic("a")
    assert await node.topics.delete([node.catalog.topic("a")]) == {}
    await node.create("a", 1, 1)
    assert await other.topics.delete([stale]) == {}  # it is gone already: nothing to do
    assert other.catalog.topic("a").topic_id == node.catalog.topic("a").topic_id != stale.topic_id


async def test_settings_that_two_nodes_change_are_both_there() -> None:
    _, node, other = await three()
    await node.create("a", 1, 3)
    await follow(other.store)
    changes: list[dict[str, Any]] = [{"segment.bytes": 4096}, {"retention.ms": 5}]
    for each, change in zip((node, other), changes, strict=True):
        await each.topics.alter("a", lambda topic, c=change, e=each: e.catalog.draft_config(topic, c))  # type: ignore[misc]
    assert other.catalog.topic("a").config == {"segment.bytes": 4096, "retention.ms": 5}


@pytest.mark.parametrize("seed", range(8))
async def test_lost_answers_change_nothing_about_what_is_done_once(seed: int) -> None:
    chance = random.Random(seed)
    _, node, other = await three()
    node.store.fate = lambda: chance.choice(("fine", "lost", "late"))
    in_doubt = 0
    for number in range(12):
        partitions = chance.choice((1, 5, 200))
        try:
            await node.create(f"t{number}", partitions, 2)
            topic = node.catalog.topic(f"t{number}")
            grown = len(topic.partitions) + chance.choice((1, 150))
            await node.topics.grow(topic, node.topics.draft_growth(topic, grown))
            assert len(node.catalog.topic(topic.name).partitions) == grown
            await node.topics.alter(topic.name, lambda known: node.catalog.draft_config(known, {"segment.bytes": 2048}))
            assert node.catalog.topic(topic.name).config == {"segment.bytes": 2048}
            if chance.random() < 0.5:
                assert await node.topics.delete([node.catalog.topic(topic.name)]) == {}
                assert topic.name not in node.catalog.topics
        except MetadataUnavailableError:
            in_doubt += 1
    assert in_doubt < 6  # five lost answers in a row
    await follow(other.store)
    assert other.catalog.topics == node.catalog.topics
    topic_ids = {topic.topic_id for topic in node.catalog.topics.values()} | set(node.catalog.half_made())
    assert {known.key.split("/")[1] for known in node.store.range("partitions/")} == topic_ids


async def test_a_store_that_is_not_reached_is_told_and_nothing_is_done() -> None:
    _, node, _ = await three()
    node.store.fate = lambda: "unreachable"
    with pytest.raises(MetadataUnavailableError) as failed:
        await node.create("a", 1, 1)
    assert (failed.value.outcome, node.catalog.topics) == ("none", {})


async def test_the_coordinators_topics_are_made_when_enough_nodes_live() -> None:
    cluster = ClusterMetadata()
    await cluster.join(1, 2)
    nodes = [Node(cluster, number, offsets_replication_factor=3) for number in (1, 2)]
    making = [InternalTopics(node.topics, node.catalog) for node in nodes]
    for each in making:
        each.start()
    await asyncio.sleep(0.01)
    told = nodes[1].catalog.internal_topics_missing()
    assert "once 3 nodes live (offsets_replication_factor), and 2 of them live now (1, 2)" in told
    assert nodes[0].catalog.topics == {}
    await cluster.join(3)
    await follow(*(node.store for node in nodes))
    for _ in range(100):
        await asyncio.sleep(0.001)
        await follow(*(node.store for node in nodes))
    catalog = nodes[1].catalog
    assert {name: len(topic.partitions) for name, topic in catalog.topics.items()} == INTERNAL_TOPICS
    offsets = catalog.topic(OFFSETS_TOPIC)
    assert {(len(state.isr), state.min_isr) for state in offsets.partitions} == {(3, 2)}
    assert catalog.internal_topics_missing() == ""
    assert [node.store.sent for node in nodes] == [1, 0]
    for each in making:
        await each.close()
