"""The data directory of a single node becomes that of a cluster's first node: its metadata is copied to the cluster's store.

Topics keep their ids, settings and partitions, the cluster keeps its id, and producer ids go on where they were. Partitions
have no leader until the controller elects this node. The directory gets an inventory of the logs that it should have: one
that is missing is lost. Each step can be done again; at its end ``metadata.json`` has another name, so that the directory is
not served locally by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import Storage
from coordinator.log_output import get_logger
from coordinator.logs.topic_ids import check_topic_id
from coordinator.metadata.authority import MAX_OPERATIONS, Compare, KeyValue, Operation, Put
from coordinator.metadata.catalog import INTERNAL_TOPICS
from coordinator.metadata.encoding import LOG, SNAPSHOT, MetadataDamagedError
from coordinator.metadata.keys import IMPORTED, NODES, deleting_key, partition_key, partitions_prefix, topic_key
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.partitions import NO_LEADER
from coordinator.metadata.producer_ids import KEY as PRODUCER_IDS
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError
from coordinator.nodes.inventory import Inventory, Log

log = get_logger()

SUFFIX: Final = ".imported"
_ATTEMPTS: Final = 10


class SingleNodeMetadata:
    """What a single node's directory has of metadata. Make one with ``await SingleNodeMetadata.find(...)``."""

    def __init__(self, cluster_id: str, keys: Sequence[KeyValue]) -> None:
        self.cluster_id = cluster_id
        self._keys = {known.key: known for known in keys}

    @classmethod
    async def find(cls, disk: Disk, on_fatal: Callable[[str], None]) -> SingleNodeMetadata | None:
        """None for a directory that has none: it is new, or a cluster's. Raises ``MetadataDamagedError``, ``OSError``."""
        if not await disk.run(disk.storage.exists, SNAPSHOT):
            return None
        store = await LocalMetadataStore.open(disk, str, on_fatal)
        try:
            return cls(store.cluster_id, store.range(""))
        finally:
            await store.close()

    def refusal(self, metadata: str) -> MetadataDamagedError:
        """Why a node of the cluster whose metadata is there does not take this directory, and what can be done."""
        return MetadataDamagedError(
            f"this is the data directory of a single node (cluster {self.cluster_id}), and the metadata is to be at "
            f"{metadata}: start it without --metadata to serve it as before, or once with --import-metadata yes to make "
            "it the first node of the cluster there"
        )

    async def import_into(self, store: MetadataStore, disk: Disk, node_id: int, metadata: str) -> None:
        """Copies all that the cluster does not have yet, and gives the files another name.

        Raises as ``check``, and ``MetadataUnavailableError`` and ``OSError``: do it again then.
        """
        self.check(store, node_id, metadata)
        if store.get(IMPORTED) is None:
            await disk.tend(self._note_topic_ids, disk.storage)
            topics = sorted(key for key in self._keys if key.startswith(topic_key("")))
            for key in topics:
                await self._copy_topic(store, self._keys[key], node_id)
            await self._copy_rest(store, node_id)
            log.info("metadata_imported", topics=len(topics), cluster_id=self.cluster_id)
        inventory = await Inventory.read(disk)
        await inventory.add(self._logs())
        await disk.run(_put_aside, disk.storage)

    def check(self, store: MetadataStore, node_id: int, metadata: str) -> None:
        """Raises ``MetadataDamagedError`` when the cluster is another one, or has nodes already."""
        if store.cluster_id != self.cluster_id:
            raise MetadataDamagedError(
                f"this is the data directory of cluster {self.cluster_id}, and at {metadata} is cluster "
                f"{store.cluster_id}: a directory is imported into a cluster that does not exist yet. Name another one "
                "at the end of the URL"
            )
        others = [known.key.removeprefix(NODES) for known in store.range(NODES)]
        if store.get(IMPORTED) is None and any(other != str(node_id) for other in others):
            raise MetadataDamagedError(
                f"the cluster at {metadata} has the nodes {', '.join(others)} already: a directory is imported before any "
                "other node is started"
            )

    def _note_topic_ids(self, storage: Storage) -> None:
        """Directories that earlier versions made say by their name only which topic they belong to."""
        for key, known in self._keys.items():
            if key.startswith(topic_key("")):
                name, topic_id = key.removeprefix(topic_key("")), known.value["id"]
                for index, _ in enumerate(self._partitions(topic_id)):
                    check_topic_id(storage, f"{name}-{index}", topic_id)

    def _logs(self) -> Iterator[Log]:
        """The logs that have to be there. Directories alone do not tell: one that is missing would be made anew, empty."""
        names = {
            known.value["id"]: key.removeprefix(topic_key(""))
            for key, known in self._keys.items()
            if key.startswith(topic_key(""))
        }
        for key in self._keys:
            kind, _, place = key.partition("/")
            topic_id, _, index = place.partition("/")
            if topic_id in names and kind == ("created" if names[topic_id] in INTERNAL_TOPICS else "partitions"):
                yield topic_id, int(index)

    def _partitions(self, topic_id: str) -> list[KeyValue]:
        prefix = partitions_prefix(topic_id)
        return [self._keys[key] for key in sorted(self._keys) if key.startswith(prefix)]

    async def _copy_topic(self, store: MetadataStore, topic: KeyValue, node_id: int) -> None:
        """Its partitions first: without the topic they are not seen."""
        topic_id = topic.value["id"]
        puts = [
            Put(
                partition_key(topic_id, index),
                {
                    "leader": NO_LEADER,
                    "leader_epoch": known.value["leader_epoch"],
                    "replicas": [node_id],
                    "isr": [node_id],
                },
            )
            for index, known in enumerate(self._partitions(topic_id))
        ]
        named = Put(topic.key, topic.value)
        for some in _chunks([*puts, named]):
            await _written(store, Compare(topic.key, "create", 0), some)

    async def _copy_rest(self, store: MetadataStore, node_id: int) -> None:
        rest: list[Put] = []
        for key, known in self._keys.items():
            if key == PRODUCER_IDS:
                rest.append(Put(key, known.value))
            elif key.startswith(deleting_key("")):
                rest.append(Put(key, {**known.value, "nodes": [node_id]}))
        for some in _chunks([*rest, Put(IMPORTED, {"node": node_id})]):
            await _written(store, Compare(IMPORTED, "create", 0), some)


async def _written(store: MetadataStore, absent: Compare, puts: Sequence[Operation]) -> None:
    """Writes while a key is not there; one that is there was written by an earlier attempt."""
    for _ in range(_ATTEMPTS):
        try:
            await store.transaction([absent], puts)
        except MetadataUnavailableError as error:
            if error.outcome == "none":
                raise
            log.warning("metadata_transaction_in_doubt", error=str(error))
            await store.catch_up()
        else:
            return
    raise MetadataUnavailableError("the metadata store lost its answer again and again", "unknown")


def _put_aside(storage: Storage) -> None:
    """The snapshot first, which has everything: a log without it says nothing."""
    for name in (SNAPSHOT, LOG):
        if storage.exists(name):
            storage.rename(name, name + SUFFIX)
        storage.sync_directory("")


def _chunks(puts: Sequence[Put]) -> Iterator[Sequence[Put]]:
    return (puts[start : start + MAX_OPERATIONS] for start in range(0, len(puts), MAX_OPERATIONS))
