"""Catalogs of several nodes over one store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from coordinator.config import Settings
from coordinator.metadata.authority import Authority, Put
from coordinator.metadata.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Catalog
from coordinator.metadata.keys import CONTROLLER, live_key
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.store import Lease, MetadataStore


class ClusterMetadata:
    """The metadata that nodes share. Time stands still unless ``seconds`` moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.authority = Authority()
        self._ids = count(1)
        self.leases: dict[int, Lease] = {}

    def store(self) -> MemoryStore:
        """Another node's view."""
        return MemoryStore(self.authority, "cluster-1", lambda: self.seconds)

    def catalog(self, node: int, store: MetadataStore | None = None, **options: Any) -> Catalog:
        """That of a node."""
        return Catalog(
            self.store() if store is None else store,
            node,
            lambda: f"id{next(self._ids):05}",
            max_partitions=20_000,
            max_partitions_per_topic=10_000,
            config_defaults=Settings().topic_defaults,
            internal_segment_bytes={OFFSETS_TOPIC: 5000, TRANSACTIONS_TOPIC: 5000},
            cluster=True,
            **options,
        )

    async def join(
        self, *nodes: int, racks: Callable[[int], str] = lambda node: "", room: Callable[[int], int] = lambda node: -1
    ) -> None:
        """Registers nodes, the first of which is the controller if there is none; ``room``: how many logs each may have."""
        store = self.store()
        for node in nodes:
            self.leases[node] = lease = await store.grant(6_000)
            value = live(
                host=f"host{node}", peer_host=f"host{node}", rack=racks(node), directory=f"dir{node}", room=room(node)
            )
            await store.transaction([], [Put(live_key(node), value, lease.id)])
            if store.get(CONTROLLER) is None:
                known = store.get(live_key(node))
                assert known is not None
                controller = {"node": node, "broker_epoch": known.create_revision}
                await store.transaction([], [Put(CONTROLLER, controller, lease.id)])

    async def leave(self, node: int) -> None:
        """A node's lease ends."""
        await self.leases.pop(node).revoke()


def live(**fields: Any) -> dict[str, Any]:
    """The value of a live key."""
    value = {"directory": "d", "start": "s", "host": "h", "port": 9092, "peer_host": "p", "peer_port": 9192}
    return {**value, "rack": "", "defaults": "", "clean_since": 0, **fields}


async def put(store: MetadataStore, *puts: tuple[str, Any]) -> None:
    """Sets keys in one transaction."""
    assert await store.transaction([], [Put(key, value) for key, value in puts]) is not None


async def follow(*stores: MetadataStore) -> None:
    """Every mirror has all that there is."""
    for store in stores:
        await store.catch_up()


def replicas(*nodes: int, isr: Sequence[int] | None = None, epoch: int = 0) -> dict[str, Any]:
    """The value of a partition's key; the first replica leads."""
    return {
        "leader": nodes[0],
        "leader_epoch": epoch,
        "replicas": list(nodes),
        "isr": list(nodes if isr is None else isr),
    }
