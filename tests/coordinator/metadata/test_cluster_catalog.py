"""The catalog of a cluster: nodes, leaders and replicas from deltas, and who is told what."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.metadata.authority import Delete, DeletePrefix, Operation, Put
from coordinator.metadata.catalog import NO_CONTROLLER, Catalog
from coordinator.metadata.keys import CONTROLLER, partition_key, partitions_prefix, reassignment_key, topic_key
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.partitions import PartitionState
from coordinator.replication.partition import LiveNode
from tests.coordinator.metadata.cluster_metadata import ClusterMetadata, follow, put, replicas


def value(topic_id: str, **config: Any) -> dict[str, Any]:
    return {"id": topic_id, "config": config}


def places(catalog: Catalog, node: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """What a node has, and what it leads."""
    has = sorted((topic.name, index) for topic, index in catalog.partitions_of(node))
    leads = sorted((topic.name, index) for topic, index in catalog.led_by(node))
    return has, leads


class Told:
    """What a catalog tells its listeners, in order."""

    def __init__(self, catalog: Catalog) -> None:
        self.all: list[tuple[str, Sequence[Any]]] = []
        catalog.on_partitions(lambda partitions: self.all.append(("partitions", partitions)))
        catalog.on_routing(lambda names: self.all.append(("routing", names)))
        catalog.on_change(lambda names: self.all.append(("topics", names)))
        catalog.on_nodes(lambda: self.all.append(("nodes", sorted(catalog.nodes))))

    def take(self) -> list[tuple[str, Sequence[Any]]]:
        """What was told since it was asked last."""
        told, self.all = self.all, []
        return told


async def test_nodes_come_stop_and_go() -> None:
    cluster = ClusterMetadata()
    store = cluster.store()
    catalog = cluster.catalog(1, store)
    told = Told(catalog)
    assert (catalog.nodes, catalog.live, catalog.controller) == ({}, {}, NO_CONTROLLER)
    await cluster.join(1, 2)
    await follow(store)
    assert (sorted(catalog.nodes), catalog.controller, catalog.nodes[2].host) == ([1, 2], 1, "host2")
    epoch = catalog.nodes[2].broker_epoch
    assert catalog.live[2] == LiveNode(epoch, epoch, accepting=True)
    assert told.take() == [("nodes", [1]), ("nodes", [1]), ("nodes", [1, 2])]
    known = store.get("live/2")
    assert known is not None
    await store.transaction([], [Put("live/2", known.value, known.lease)])
    assert (catalog.live[2].accepting, catalog.live[2].broker_epoch) == (False, epoch)
    before = catalog.revision
    await cluster.leave(1)
    await follow(store)
    assert (sorted(catalog.nodes), catalog.controller) == ([2], NO_CONTROLLER)
    assert catalog.nodes_revision == catalog.revision > before


async def test_the_same_controller_again_is_no_news() -> None:
    cluster = ClusterMetadata()
    await cluster.join(1)
    store = cluster.store()
    catalog = cluster.catalog(1, store)
    told, revision = Told(catalog), catalog.nodes_revision
    await put(store, (CONTROLLER, {"node": 1, "broker_epoch": 99}))
    assert (told.take(), catalog.nodes_revision) == ([], revision)


async def test_a_topic_is_there_when_its_key_is_not_before() -> None:
    cluster = ClusterMetadata()
    store = cluster.store()
    catalog = cluster.catalog(1, store)
    told = Told(catalog)
    await put(store, (partition_key("x", 0), replicas(1, 2)), (partition_key("x", 1), replicas(2, 1)))
    assert (catalog.topics, told.take(), catalog.half_made()) == ({}, [], ["x"])
    assert places(catalog, 1) == ([], [])
    await put(store, (partition_key("x", 2), replicas(2, 3)), (topic_key("a"), value("x")))
    assert [state.leader for state in catalog.topic("a").partitions] == [1, 2, 2]
    assert (catalog.half_made(), places(catalog, 2)) == ([], ([("a", 0), ("a", 1), ("a", 2)], [("a", 1), ("a", 2)]))
    assert told.take() == [
        ("topics", ("a",)), ("routing", ("a",)), ("partitions", (("x", 0), ("x", 1), ("x", 2))),
    ]  # fmt: skip
    assert [state.partition_epoch for state in catalog.topic("a").partitions] == [2, 2, 3]


async def test_only_who_is_in_sync_changes_and_clients_need_not_know() -> None:
    cluster = ClusterMetadata()
    store = cluster.store()
    catalog = cluster.catalog(1, store)
    await put(store, (partition_key("x", 0), replicas(1, 2)), (topic_key("a"), value("x")))
    told, known = Told(catalog), catalog.revision
    await put(store, (partition_key("x", 0), replicas(1, 2, isr=[1])))
    assert told.take() == [("topics", ("a",)), ("partitions", (("x", 0),))]
    assert (catalog.changed_after(known), catalog.routed_after(known)) == ({"a": None}, {})
    await put(store, (partition_key("x", 0), replicas(2, 1, isr=[2], epoch=1)))
    assert told.take() == [("topics", ("a",)), ("routing", ("a",)), ("partitions", (("x", 0),))]
    assert catalog.routed_after(known) == {"a": None}
    assert catalog.routed_after(catalog.revision + 1) is None


async def test_a_reassignment_is_told_of_its_partition() -> None:
    cluster = ClusterMetadata()
    store = cluster.store()
    catalog = cluster.catalog(1, store)
    told = Told(catalog)
    await put(store, (reassignment_key("x", 3), {"target": [4, 5]}))
    assert (catalog.reassignment("x", 3), catalog.reassignment("x", 2)) == ((4, 5), None)
    await store.transaction([], [Delete(reassignment_key("x", 3))])
    assert catalog.reassignment("x", 3) is None
    assert told.take() == [("partitions", (("x", 3),))] * 2


async def test_a_namesake_in_the_same_delta_is_another_topic() -> None:
    cluster = ClusterMetadata()
    store = cluster.store()
    catalog = cluster.catalog(1, store)
    await put(
        store, (partition_key("x", 0), replicas(1)), (partition_key("x", 1), replicas(1)), (topic_key("a"), value("x"))
    )
    told = Told(catalog)
    operations: list[Operation] = [DeletePrefix(partitions_prefix("x"))]
    operations += [Put(topic_key("a"), value("y")), Put(partition_key("y", 0), replicas(2))]
    await store.transaction([], operations)
    assert (catalog.topic("a").topic_id, len(catalog.topic("a").partitions), catalog.with_id("x")) == ("y", 1, None)
    assert (places(catalog, 1), places(catalog, 2)) == (([], []), ([("a", 0)], [("a", 0)]))
    assert sorted(told.take()[-1][1]) == [("x", 0), ("x", 1), ("y", 0)]


def picture(catalog: Catalog) -> dict[str, Any]:
    """All that a catalog says."""
    return {
        "topics": {
            name: (topic.topic_id, topic.partitions, dict(topic.config)) for name, topic in catalog.topics.items()
        },
        "nodes": dict(catalog.nodes),
        "controller": catalog.controller,
        "places": {node: places(catalog, node) for node in range(1, 5)},
        "reassignments": dict(catalog.reassignments()),
        "half made": sorted(catalog.half_made()),
        "deletions": sorted(catalog.deletions()),
        "names": [catalog.with_id(topic.topic_id) is topic for topic in catalog.topics.values()],
    }


@pytest.mark.parametrize("seed", range(12))
async def test_deltas_lead_to_the_picture_that_a_start_reads(seed: int) -> None:
    """Also where deltas were missed, and the difference came as one."""
    chance = random.Random(seed)
    cluster = ClusterMetadata()
    writer, store, late = cluster.store(), cluster.store(), cluster.store()
    catalog, behind = cluster.catalog(1, store), cluster.catalog(2, late)
    for _ in range(150):
        await _change(chance, cluster, writer)
        await follow(store)
        assert picture(catalog) == picture(cluster.catalog(1))
        if chance.random() < 0.1:
            cluster.authority.compact(cluster.authority.revision)
            await follow(writer, store, late)
            assert picture(behind) == picture(catalog)


async def _change(chance: random.Random, cluster: ClusterMetadata, store: MemoryStore) -> None:
    name, index = chance.choice("abc"), chance.randrange(4)
    topic_id = f"{chance.choice('wxyz')}{len(store.range('deleted/'))}"  # no id comes again
    nodes = chance.sample(range(1, 5), chance.randint(1, 3))
    known = store.get(topic_key(name))
    match chance.randrange(7):
        case 0 | 1:
            fields = {**replicas(*nodes, isr=nodes[:1], epoch=chance.randrange(3)), "adding": chance.sample([5, 6], 1)}
            await put(store, *((partition_key(topic_id, each), fields) for each in range(index + 1)))
        case 2 if known is None and not any(each.value["id"] == topic_id for each in store.range("topics/")):
            await put(store, (topic_key(name), value(topic_id, **{"segment.bytes": 1024 + index})))
        case 3 if known is not None:
            gone = known.value["id"]
            notes = [Put(f"{kind}/{gone}", {"name": name, "partitions": 3}) for kind in ("deleting", "deleted")]
            await store.transaction([], [Delete(topic_key(name)), DeletePrefix(partitions_prefix(gone)), *notes])
        case 4:
            if index in cluster.leases:
                await cluster.leave(index)
            elif index:
                await cluster.join(index)
        case 5:
            await put(store, (reassignment_key(topic_id, index), {"target": nodes}))
        case _:
            await store.transaction([], [Delete(reassignment_key(topic_id, index)), Delete(f"deleting/{topic_id}")])


async def test_one_changed_partition_of_ten_thousand_costs_little() -> None:
    cluster = ClusterMetadata()
    catalog = cluster.catalog(1, store := cluster.store())
    for start in range(0, 10_000, 100):
        fields = {**replicas(1, 2, 3), "joined": [7, 8, 9], "broker_epoch": 7, "min_isr": 2}
        await put(store, *((partition_key("x", index), fields) for index in range(start, start + 100)))
    await put(store, (topic_key("a"), value("x")))
    took = []
    for index in range(0, 10_000, 500):
        began = time.process_time()
        await put(store, (partition_key("x", index), replicas(2, 1, 3, epoch=1)))
        took.append(time.process_time() - began)
    assert catalog.topic("a").partitions[500] == PartitionState(
        2, 1, (2, 1, 3), (2, 1, 3), partition_epoch=catalog.topic("a").partitions[500].partition_epoch
    )
    assert sorted(took)[10] < 0.002, took
