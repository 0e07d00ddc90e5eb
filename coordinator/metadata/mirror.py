"""A node's picture of the metadata: all keys in memory, kept by deltas; pure."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.metadata.authority import Change, Delta, KeyValue
from coordinator.metadata.store import OnDelta, Stop
from coordinator.metadata.watchers import Watchers


class Mirror:
    """The keys as they were at ``revision``, which only rises."""

    def __init__(self) -> None:
        self.revision = 0
        self._keys: dict[str, KeyValue] = {}

    def get(self, key: str) -> KeyValue | None:
        """What a key holds."""
        return self._keys.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that begins with ``prefix``, sorted."""
        return sorted(known for key, known in self._keys.items() if key.startswith(prefix))

    def apply(self, delta: Delta) -> bool:
        """Takes what happened at the next revision; False for what is known already, as after a watch that began again."""
        if delta.revision <= self.revision:
            return False
        self.revision = delta.revision
        for key, _, after in delta.changes:
            if after is None:
                self._keys.pop(key, None)
            else:
                self._keys[key] = after
        return True

    def replace(self, keys: Iterable[KeyValue], revision: int) -> Delta | None:
        """Takes a list of all keys, where deltas were missed. Returns the difference as one delta; None if it is no news."""
        if revision <= self.revision:
            return None
        listed = {known.key: known for known in keys}
        changes = [
            Change(key, self._keys.get(key), listed.get(key))
            for key in sorted(self._keys.keys() | listed.keys())
            if self._keys.get(key) != listed.get(key)
        ]
        self._keys, self.revision = listed, revision
        return Delta(revision, tuple(changes))


class Mirrored:
    """What a store is that keeps a mirror, as far as it is read: its base."""

    def __init__(self) -> None:
        self._mirror = Mirror()
        self._watchers = Watchers()

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

    def watch(self, prefix: str, on_delta: OnDelta) -> Stop:
        """See ``MetadataStore.watch``."""
        return self._watchers.add(prefix, on_delta)
