"""The metadata store: keys with revisions, conditional transactions, watches and leases, as ``authority`` decides them.

``metadata.local`` keeps them on this node's disk, ``metadata.memory`` in memory. A store that several nodes share is
another implementation of the same interface; ``tests/coordinator/metadata/contract.py`` says what each has to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from coordinator.metadata.authority import Compare, Delta, KeyValue, Operation

TIMEOUT_MS: Final = 5_000
"""How long a call waits for a store that does not answer, unless the caller says otherwise."""

OnDelta = Callable[[Delta], None]
Stop = Callable[[], None]


class MetadataUnavailableError(Exception):
    """The store did not answer in time. ``outcome`` says what became of the transaction: nothing ("none"), or it may have
    been carried out or still be ("unknown"). Then ``catch_up``, look, and decide anew; never send it again blindly."""

    def __init__(self, message: str, outcome: Literal["none", "unknown"]) -> None:
        super().__init__(message)
        self.outcome = outcome


class GrantsLeases(Protocol):
    """What knows of a lease by its number."""

    async def renew(self, lease: int) -> bool:
        """See ``Lease.renew``."""

    async def revoke(self, lease: int) -> None:
        """See ``Lease.revoke``."""


class Lease:
    """Keys that were put with it go when it ends, which in a store on this disk is no later than the process."""

    __slots__ = ("_store", "id")

    def __init__(self, store: GrantsLeases, lease: int) -> None:
        self.id = lease
        """Its number, for ``Put``."""
        self._store = store

    async def renew(self) -> bool:
        """Begins its time anew; False when it is over. Raises ``MetadataUnavailableError``."""
        return await self._store.renew(self.id)

    async def revoke(self) -> None:
        """Ends it now, and nothing happens when it is over. Raises ``MetadataUnavailableError``; where the store is a disk
        ``OSError``, as a transaction does: then it goes on."""
        await self._store.revoke(self.id)


class MetadataStore(Protocol):
    """Where metadata lives. Reading is from memory: what the store had at ``revision``."""

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster, given once."""

    @property
    def revision(self) -> int:
        """The revision of the newest change that is known here."""

    def get(self, key: str) -> KeyValue | None:
        """What a key holds, None when it does not exist."""

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that begins with ``prefix``, sorted by key."""

    async def transaction(
        self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = TIMEOUT_MS
    ) -> int | None:
        """Carries out all operations at one revision, durably, and returns it once ``get`` shows it; None if a condition
        does not hold. Raises ``TransactionError``, ``MetadataUnavailableError`` and, where the store is a disk, ``OSError``.
        """

    def watch(self, prefix: str, on_delta: OnDelta) -> Stop:
        """Calls ``on_delta`` for each later delta with its changes below ``prefix``, in order; returns what ends it."""

    async def catch_up(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """Returns once everything is known here that was written before; its revision. Raises
        ``MetadataUnavailableError``."""

    async def grant(self, ttl_ms: int, *, timeout_ms: int = TIMEOUT_MS) -> Lease:
        """A lease; it may end when it was not renewed for ``ttl_ms``. Raises ``MetadataUnavailableError``."""

    async def close(self) -> None:
        """Gives back what the store holds. Nothing else is called then."""
