"""Who is told what happens to keys, and what changed when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, ParamSpec

from coordinator.metadata.authority import Delta
from coordinator.metadata.store import OnDelta, Stop

P = ParamSpec("P")


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


class Listeners(Generic[P]):
    """Who is told of something, in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: dict[int, Callable[P, None]] = {}
        self._next = 0

    def add(self, listener: Callable[P, None]) -> Stop:
        """Tells ``listener`` from now on; returns what ends this."""
        number, self._next = self._next, self._next + 1
        self._listeners[number] = listener

        def stop() -> None:
            self._listeners.pop(number, None)

        return stop

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tells each; none that has ended meanwhile."""
        for number, listener in tuple(self._listeners.items()):
            if number in self._listeners:
                listener(*args, **kwargs)


class Changes:
    """Which topics changed at which revision, the latest ``limit`` times; pure."""

    def __init__(self, revision: int, limit: int = 4096) -> None:
        self._limit = limit
        self._since = revision  # all that changed later is known
        self._noted: deque[tuple[int, str]] = deque()

    def note(self, revision: int, names: Iterable[str]) -> None:
        """These topics changed, came or went with this revision, the highest so far."""
        self._noted.extend((revision, name) for name in names)
        while len(self._noted) > self._limit:
            self._since = self._noted.popleft()[0]

    def after(self, revision: int) -> dict[str, None] | None:
        """What changed after ``revision``, the latest first; None when that is not known any more."""
        if revision < self._since:
            return None
        found: dict[str, None] = {}
        for at, name in reversed(self._noted):
            if at <= revision:
                break
            found[name] = None
        return found
