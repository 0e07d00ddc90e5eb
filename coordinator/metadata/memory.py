"""A metadata store in this process's memory: an authority, and the store's own mirror of it.

What other stores keep from their callers shows here already: answers come when the mirror has them, and a lease may end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.metadata.authority import Authority, Change, Compare, Delta, KeyValue, Operation
from coordinator.metadata.mirror import Mirror

OnDelta = Callable[[Delta], None]
Now = Callable[[], float]
"""Seconds of a clock that does not jump: the loop's."""


class Lease:
    """Keys that were put with it go when it ends."""

    def __init__(self, store: MemoryStore, lease: int) -> None:
        self.id = lease
        self._store = store

    async def renew(self) -> bool:
        """Begins its time anew; False when it is over."""
        return self._store.renew(self.id)

    async def revoke(self) -> None:
        """Ends it now."""
        self._store.revoke(self.id)


class MemoryStore:
    """One node's view of an authority; several stores may share one, as nodes of a cluster do."""

    def __init__(self, authority: Authority, cluster_id: str, now: Now) -> None:
        self.cluster_id = cluster_id
        self._authority = authority
        self._now = now
        self._mirror = Mirror()
        self._watchers: list[tuple[str, OnDelta]] = []
        self._follow()

    @property
    def revision(self) -> int:
        """The revision of the mirror."""
        return self._mirror.revision

    def get(self, key: str) -> KeyValue | None:
        """What a key holds, from the mirror."""
        return self._mirror.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that begins with ``prefix``, sorted, from the mirror."""
        return self._mirror.range(prefix)

    async def transaction(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> int | None:
        """Carries out all operations at one revision and returns it, once the mirror shows it; None if a condition fails."""
        self._expire()
        delta = self._authority.transaction(compare, operations)
        self._follow()
        return None if delta is None else delta.revision

    def watch(self, prefix: str, on_delta: OnDelta) -> Callable[[], None]:
        """Calls ``on_delta`` for each later delta with its changes below ``prefix``, in order; returns what ends it."""
        watcher = (prefix, on_delta)
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop

    async def catch_up(self) -> int:
        """Returns once the mirror has everything that was written before; its revision."""
        self._expire()
        self._follow()
        return self.revision

    async def grant(self, ttl_ms: int) -> Lease:
        """A lease; it ends when it was not renewed for ``ttl_ms``."""
        self._expire()
        return Lease(self, self._authority.grant(ttl_ms, self._now_ms()))

    def renew(self, lease: int) -> bool:
        """See ``Lease.renew``."""
        self._expire()
        return self._authority.renew(lease, self._now_ms())

    def revoke(self, lease: int) -> None:
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
                self._tell(delta)
        for delta in list(self._authority.since(self.revision)):
            if self._mirror.apply(delta):
                self._tell(delta)

    def _tell(self, delta: Delta) -> None:
        for prefix, on_delta in list(self._watchers):
            changes: tuple[Change, ...] = tuple(change for change in delta.changes if change.key.startswith(prefix))
            if changes:
                on_delta(Delta(delta.revision, changes))
