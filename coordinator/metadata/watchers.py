"""Who is told what happens to keys."""

from __future__ import annotations

from coordinator.metadata.authority import Delta
from coordinator.metadata.store import OnDelta, Stop


class Watchers:
    """Each is told the changes below its prefix."""

    def __init__(self) -> None:
        self._watchers: list[tuple[str, OnDelta]] = []

    def add(self, prefix: str, on_delta: OnDelta) -> Stop:
        """Calls ``on_delta`` with what is told later; returns what ends this."""
        watcher = (prefix, on_delta)
        self._watchers.append(watcher)

        def stop() -> None:
            self._watchers = [known for known in self._watchers if known is not watcher]

        return stop

    def tell(self, delta: Delta) -> None:
        """Tells each watcher what is below its prefix, if anything is."""
        for watcher in tuple(self._watchers):
            prefix, on_delta = watcher
            changes = tuple(change for change in delta.changes if change.key.startswith(prefix))
            if changes and any(known is watcher for known in self._watchers):  # none has ended it meanwhile
                on_delta(Delta(delta.revision, changes))
