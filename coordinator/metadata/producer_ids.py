"""Producer ids: numbers that are given out once, ever, also across restarts and nodes."""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.metadata.store import Compare, MetadataStore, Put

KEY: Final = "producer-ids"
BLOCK: Final = 1000
"""Ids reserved by one write to the store. Those of a block that a restart cuts short are never used."""


class ProducerIds:
    """Gives out producer ids from blocks that are reserved in the metadata store, as in Kafka."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """An id that nobody has had. Raises ``OSError`` when the disk refuses to reserve the next block."""
        async with self._lock:
            while self._next == self._end:
                await self._reserve()
            self._next += 1
            return self._next - 1

    def given_out(self, producer_id: int) -> bool:
        """Whether an id may have been given out, by this node or another."""
        known = next((entry.value["next"] for entry in self._store.range(KEY) if entry.key == KEY), 0)
        return 0 <= producer_id < int(known)

    async def _reserve(self) -> None:
        found = [entry for entry in self._store.range(KEY) if entry.key == KEY]
        start, revision = (int(found[0].value["next"]), found[0].mod_revision) if found else (0, 0)
        # None says that another node was faster: look again.
        if await self._store.transaction([Compare(KEY, revision)], [Put(KEY, {"next": start + BLOCK})]) is not None:
            self._next, self._end = start, start + BLOCK
