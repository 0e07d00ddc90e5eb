"""The metadata store: keys with revisions, conditional transactions, watches.

Today's implementation is local (``metadata.local``); a cluster store is another implementation of the same interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Value = Mapping[str, Any]
"""What a key holds: plain JSON."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it stands; ``mod_revision`` is the revision of the store that last changed it."""

    key: str
    value: Value
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the key was last changed at ``mod_revision``; 0 means that it does not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Sets a key."""

    key: str
    value: Value


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a key; no error when it is not there."""

    key: str


Operation = Put | Delete


OnChange = Callable[[int, Sequence[str]], None]
"""Is told the revision of a transaction and the keys that it changed, sorted."""


class MetadataStore(Protocol):
    """Where metadata lives."""

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster, given once."""

    @property
    def revision(self) -> int:
        """The revision of the newest change."""

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that begins with ``prefix``, sorted by key."""

    async def transaction(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> int | None:
        """Carries out all operations as one, durably, and returns the new revision; None if a condition does not hold."""

    def get(self, key: str) -> KeyValue | None:
        """What a key holds, or None when it does not exist."""

    def watch(self, prefix: str, on_change: OnChange) -> Callable[[], None]:
        """Calls ``on_change`` after each transaction that touched ``prefix``; returns what ends it."""
