"""A metadata store in this process's memory: an authority, and the store's own mirror of it.

What other stores keep from their callers shows here already: answers come when the mirror has them, and a lease may end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Self

from coordinator.metadata.authority import Authority, Compare, Operation
from coordinator.metadata.mirror import Mirrored
from coordinator.metadata.store import TIMEOUT_MS, Lease, MetadataUnavailableError

Now = Callable[[], float]
"""Seconds of a clock that does not jump: the loop's."""

_TICK_S: Final = 0.05


class MemoryStore(Mirrored):
    """One node's view of an authority; several stores may share one, as nodes of a cluster do."""

    def __init__(self, authority: Authority, cluster_id: str, now: Now) -> None:
        super().__init__()
        self.cluster_id = cluster_id
        self._authority = authority
        self._now = now
        self._follow()

    async def transaction(
        self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = TIMEOUT_MS
    ) -> int | None:
        """See ``MetadataStore.transaction``."""
        self._expire()
        delta = self._authority.transaction(compare, operations)
        self._follow()
        return None if delta is None else delta.revision

    async def catch_up(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """See ``MetadataStore.catch_up``."""
        self._expire()
        self._follow()
        return self.revision

    async def grant(self, ttl_ms: int, *, timeout_ms: int = TIMEOUT_MS) -> Lease:
        """See ``MetadataStore.grant``."""
        self._expire()
        return Lease(self, self._authority.grant(ttl_ms, self._now_ms()))

    async def close(self) -> None:
        """See ``MetadataStore.close``; there is nothing to give back."""

    async def renew(self, lease: int) -> bool:
        """See ``Lease.renew``."""
        self._expire()
        return self._authority.renew(lease, self._now_ms())

    async def revoke(self, lease: int) -> None:
        """See ``Lease.revoke``."""
        self._authority.revoke(lease)
        self._follow()

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def _expire(self) -> None:
        if self._authority.expire(self._now_ms()):
            self._follow()

    def _follow(self) -> None:
        """Takes what the authority has that the mirror has not; where deltas are compacted, the difference as one."""
        if self.revision < self._authority.compacted:
            delta = self._mirror.replace(self._authority.range(""), self._authority.revision)
            if delta is not None:
                self._watchers.tell(delta)
        for delta in list(self._authority.since(self.revision)):
            if self._mirror.apply(delta):
                self._watchers.tell(delta)


class SharedMemory:
    """The metadata of several nodes on one loop. Use it as an async context manager.

    What one changes, the others are told in the loop's next turn; leases end by the loop's time.
    """

    def __init__(self, cluster_id: str) -> None:
        self._authority = Authority()
        self._cluster_id = cluster_id
        self._stores: list[SharedMemoryStore] = []
        self._ticking: asyncio.Task[None] | None = None
        self._told = False

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick(), name="cohort-metadata-leases")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    def open(self) -> SharedMemoryStore:
        """A node's store."""
        store = SharedMemoryStore(self, self._authority, self._cluster_id)
        self._stores.append(store)
        return store

    def left(self, store: SharedMemoryStore) -> None:
        """This one is told nothing any more."""
        if store in self._stores:
            self._stores.remove(store)

    def changed(self) -> None:
        """Has all stores told what they do not know yet."""
        if not self._told:
            self._told = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._told = False
        for store in tuple(self._stores):
            store.follow()
        self._authority.compact(min((store.revision for store in self._stores), default=0))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_S)
            if self._authority.expire(int(loop.time() * 1000)):
                self._tell()


class SharedMemoryStore(MemoryStore):
    """One node's view of a ``SharedMemory``, until it is cut off or closed."""

    def __init__(self, shared: SharedMemory, authority: Authority, cluster_id: str) -> None:
        self._shared = shared
        self._cut_off = False
        super().__init__(authority, cluster_id, asyncio.get_running_loop().time)

    def cut_off(self) -> None:
        """From now on the node hears nothing, and nothing it asks is done."""
        self._cut_off = True
        self._shared.left(self)

    def follow(self) -> None:
        """Tells the node what it does not know yet."""
        if not self._cut_off:
            self._follow()

    async def transaction(
        self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = TIMEOUT_MS
    ) -> int | None:
        """See ``MetadataStore.transaction``."""
        self._check()
        revision = await super().transaction(compare, operations, timeout_ms=timeout_ms)
        self._shared.changed()
        return revision

    async def catch_up(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """See ``MetadataStore.catch_up``."""
        self._check()
        return await super().catch_up(timeout_ms=timeout_ms)

    async def grant(self, ttl_ms: int, *, timeout_ms: int = TIMEOUT_MS) -> Lease:
        """See ``MetadataStore.grant``."""
        self._check()
        return await super().grant(ttl_ms, timeout_ms=timeout_ms)

    async def renew(self, lease: int) -> bool:
        """See ``Lease.renew``."""
        self._check()
        return await super().renew(lease)

    async def revoke(self, lease: int) -> None:
        """See ``Lease.revoke``."""
        self._check()
        await super().revoke(lease)
        self._shared.changed()

    async def close(self) -> None:
        """See ``MetadataStore.close``."""
        self._shared.left(self)

    def _check(self) -> None:
        if self._cut_off:
            raise MetadataUnavailableError("the node was cut off from the metadata", "none")
