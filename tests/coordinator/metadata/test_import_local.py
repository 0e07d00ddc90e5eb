"""A single node's metadata becomes a cluster's: all of it, once, whatever is done twice or gets lost on the way."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogDamagedError
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.authority import Authority, Compare, Operation, Put
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.metadata.import_local import SingleNodeMetadata
from coordinator.metadata.keys import node_key
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.producer_ids import ProducerIds
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError
from coordinator.nodes.inventory import Inventory
from coordinator.replication.replica_logs import ReplicaLogs
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import end_of_process


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    opened = Disk(FileStorage(str(tmp_path)), threads=1)
    yield opened
    opened.close()


def catalog_of(store: MetadataStore, *, cluster: bool = False) -> Catalog:
    ids = count(1)
    return Catalog(
        store,
        0,
        lambda: f"topic-{next(ids)}",
        max_partitions=1000,
        max_partitions_per_topic=1000,
        config_defaults=Settings().topic_defaults,
        cluster=cluster,
    )


async def single_node(disk: Disk, tmp_path: Path) -> int:
    """Makes the directory of one; returns a producer id that it gave out."""
    store = await LocalMetadataStore.open(disk, lambda: "c1", end_of_process)
    catalog = catalog_of(store)
    await catalog.ensure_internal_topics()
    await catalog.commit(catalog.draft("orders", 300, {"segment.bytes": 4096}))
    await catalog.commit(catalog.draft("gone", 2, {}))
    await catalog.begin_deletion(catalog.topic("gone"))
    producer_id = await ProducerIds(store, lambda: 5).take()
    await catalog.note_created(catalog.topic(OFFSETS_TOPIC), 12)
    await store.close()
    (tmp_path / "orders-0").mkdir()
    return producer_id


def store_of(authority: Authority, cluster_id: str = "c1") -> MemoryStore:
    return MemoryStore(authority, cluster_id, lambda: 0.0)


async def imported(disk: Disk, store: MetadataStore) -> SingleNodeMetadata | None:
    found = await SingleNodeMetadata.find(disk, end_of_process)
    if found is not None:
        await found.import_into(store, disk, 0, "etcd://e/orders")
    return found


def checked(store: MetadataStore, producer_id: int) -> None:
    catalog = catalog_of(store, cluster=True)
    assert {name: len(topic.partitions) for name, topic in catalog.topics.items()} == {
        "orders": 300,
        "__consumer_offsets": 50,
        "__transaction_state": 50,
    }
    orders = catalog.topic("orders")
    assert orders.config == {"segment.bytes": 4096}
    state = orders.partitions[299]
    assert (state.leader, state.replicas, state.isr, state.min_isr) == (-1, (0,), (0,), 1)
    assert [known[1] for known in catalog.deletions_of(0)] == ["gone"]
    assert ProducerIds(store, lambda: 5).given_out(producer_id)


async def test_all_of_it_is_copied_and_the_files_get_another_name(disk: Disk, tmp_path: Path) -> None:
    producer_id = await single_node(disk, tmp_path)
    authority = Authority()
    found = await SingleNodeMetadata.find(disk, end_of_process)
    assert found is not None
    assert found.cluster_id == "c1", "the cluster is made with it"
    store = store_of(authority)
    await found.import_into(store, disk, 0, "etcd://e/orders")
    checked(store, producer_id)
    assert not (tmp_path / "metadata.json").exists()
    assert (tmp_path / "metadata.json.imported").exists()
    topic_id = catalog_of(store, cluster=True).topic("orders").topic_id
    assert (tmp_path / "orders-0" / f"{topic_id}.topic-id").exists()
    assert await SingleNodeMetadata.find(disk, end_of_process) is None


async def test_a_log_that_is_missing_is_lost_and_not_made_anew(disk: Disk, tmp_path: Path) -> None:
    await single_node(disk, tmp_path)
    store = store_of(Authority())
    await imported(disk, store)
    catalog = catalog_of(store, cluster=True)
    orders, offsets = catalog.topic("orders"), catalog.topic(OFFSETS_TOPIC)
    inventory = await Inventory.read(disk)
    assert inventory.logs == {*((orders.topic_id, index) for index in range(300)), (offsets.topic_id, 12)}
    manager = LogManager(disk, catalog, lambda topic: LogConfig(), end_of_process, serves_all=False)

    async def not_clean() -> None:
        raise AssertionError("no log begins anew")

    logs = ReplicaLogs(disk, manager, inventory, not_clean)
    for topic, index in ((orders, 3), (offsets, 12)):
        with pytest.raises(LogDamagedError, match=f"{topic.name}-{index} .*is missing"):
            await logs.open(topic, index, may_begin_anew=False)
        assert not (tmp_path / f"{topic.name}-{index}").exists()
    assert set(logs.lost) == {"orders-3", f"{OFFSETS_TOPIC}-12"}
    await (await logs.open(offsets, 13, may_begin_anew=False)).close()  # which nobody had needed yet


@pytest.mark.parametrize(
    ("failing", "at"), [(("write_file", "inventory"), 2), (("rename", "metadata.json.imported"), 1)]
)
async def test_what_should_be_there_is_known_after_an_import_that_was_interrupted(
    tmp_path: Path, failing: tuple[str, str], at: int
) -> None:
    calls = 0

    def refuse(*operation: str) -> None:
        nonlocal calls
        calls += operation == failing
        if operation == failing and calls == at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    await single_node(disk, tmp_path)
    store = store_of(Authority())
    with pytest.raises(OSError, match="Input/output"):
        await imported(disk, store)
    assert await imported(disk, store) is not None
    assert len((await Inventory.read(disk)).logs) == 301
    disk.close()


async def test_doing_it_twice_changes_nothing(disk: Disk, tmp_path: Path) -> None:
    producer_id = await single_node(disk, tmp_path)
    store = store_of(Authority())
    await imported(disk, store)
    topic = catalog_of(store, cluster=True).topic("orders")
    await store.transaction([], [Put(f"topics/{topic.name}", {"id": topic.topic_id, "config": {}})])
    revision = store.revision
    for name in ("metadata.json", "metadata.changes"):
        (tmp_path / f"{name}.imported").rename(tmp_path / name)
    assert await imported(disk, store) is not None
    assert store.revision == revision
    assert not (tmp_path / "metadata.json").exists()
    assert ProducerIds(store, lambda: 5).given_out(producer_id)


async def test_what_is_interrupted_or_loses_answers_is_done_in_the_end(disk: Disk, tmp_path: Path) -> None:
    producer_id = await single_node(disk, tmp_path)
    authority = Authority()

    class Unreliable(MemoryStore):
        left = 0

        async def transaction(
            self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = 0
        ) -> int | None:
            self.left -= 1
            if self.left == 1:
                await super().transaction(compare, operations)
                raise MetadataUnavailableError("no answer", "unknown")
            if self.left == 0:
                raise MetadataUnavailableError("not reached", "none")
            return await super().transaction(compare, operations)

    store = Unreliable(authority, "c1", lambda: 0.0)
    for calls in range(2, 30):
        store.left = calls
        try:
            await imported(disk, store)
        except MetadataUnavailableError:
            continue
        break
    checked(store_of(authority), producer_id)
    assert not (tmp_path / "metadata.json").exists()


async def test_another_cluster_and_one_that_has_nodes_refuse(disk: Disk, tmp_path: Path) -> None:
    await single_node(disk, tmp_path)
    with pytest.raises(
        MetadataDamagedError, match=r"directory of cluster c1, and at etcd://e/orders is cluster c2: .* exist yet"
    ):
        await imported(disk, store_of(Authority(), "c2"))
    store = store_of(Authority())
    await store.transaction([], [Put(node_key(4), {"directory": "d", "start": "s", "rack": "", "first_seen_ms": 0})])
    with pytest.raises(MetadataDamagedError, match="has the nodes 4 already: a directory is imported before"):
        await imported(disk, store)
    assert (tmp_path / "metadata.json").exists()
    assert store.range("topics/") == []


async def test_without_being_asked_for_both_ways_are_named(disk: Disk, tmp_path: Path) -> None:
    await single_node(disk, tmp_path)
    found = await SingleNodeMetadata.find(disk, end_of_process)
    assert found is not None
    text = str(found.refusal("etcd://e/orders"))
    assert "without --metadata to serve it as before" in text
    assert "once with --import-metadata yes" in text


async def test_a_new_directory_has_nothing_to_import(disk: Disk, tmp_path: Path) -> None:
    assert await SingleNodeMetadata.find(disk, end_of_process) is None
    assert list(tmp_path.iterdir()) == []
