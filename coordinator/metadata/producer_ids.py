"""Producer ids: numbers that are given out once, ever, also across restarts and nodes.

Also across stores: a producer that outlives the data directory of its daemon goes on with its id, and if the next daemon
gave that one to somebody else, the first batch of the one would pass for a repetition of the other's, be acknowledged and
never stored. So a new store begins with a number made of the time of day. Kafka begins with 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.log_output import get_logger
from coordinator.metadata.authority import Compare, Put
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError

log = get_logger()

KEY: Final = "producer-ids"
BLOCK: Final = 1000
"""Ids reserved by one write to the store. Those of a block that a restart cuts short are never used."""

_IDS_PER_MS: Final = 2**20
"""A store would have to give out more than these in each millisecond to reach the ids of a later one."""
_LATEST_MS: Final = 2**42
"""The year 2109. Ids of later stores begin below again; above they would not fit in 63 bits for ever."""


class ProducerIds:
    """Gives out producer ids from blocks that are reserved in the metadata store, as in Kafka."""

    def __init__(self, store: MetadataStore, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._wall_ms = wall_ms
        self._next = self._end = 0
        self._spare: tuple[int, int] | None = None
        """A block that is reserved in advance, for those who cannot wait."""
        self._lock = asyncio.Lock()
        self._reserving: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """An id that no producer has had. Raises ``OSError`` when the disk refuses to reserve the next block, and
        ``MetadataUnavailableError``."""
        while not self._has_next():
            await self.ready()
        self._next += 1
        return self._next - 1

    async def ready(self) -> None:
        """Returns once ``take_at_hand`` has an id. Raises as ``take`` does."""
        if not self._has_next():
            async with self._lock:
                if not self._has_next():
                    self._spare = await self._reserve()

    def take_at_hand(self) -> int | None:
        """As ``take``, at once; None while there is none, as the next block is still being reserved.

        A spare block is reserved as soon as the one before is begun, so that this is rare.
        """
        found = self._has_next()
        if found:
            self._next += 1
        if self._spare is None and self._reserving is None:
            self._reserving = asyncio.create_task(self._reserve_spare(), name="cohort-producer-ids")
        return self._next - 1 if found else None

    async def close(self) -> None:
        """Reserves no more in advance."""
        if self._reserving is not None:
            self._reserving.cancel()
            await asyncio.gather(self._reserving, return_exceptions=True)

    async def catch_up(self) -> None:
        """Returns once ``given_out`` knows what other nodes have given out until now. Raises
        ``MetadataUnavailableError``."""
        await self._store.catch_up()

    def given_out(self, producer_id: int) -> bool:
        """Whether an id may have been given out, by this node or another, as far as is known here."""
        known = self._store.get(KEY)
        return known is not None and int(known.value.get("first", 0)) <= producer_id < int(known.value["next"])

    def _has_next(self) -> bool:
        if self._next == self._end and self._spare is not None:
            (self._next, self._end), self._spare = self._spare, None
        return self._next < self._end

    async def _reserve_spare(self) -> None:
        try:
            async with self._lock:
                if self._spare is None:
                    self._spare = await self._reserve()
        except (OSError, MetadataUnavailableError) as error:
            log.warning("producer_ids_not_reserved", error=str(error))
        finally:
            self._reserving = None

    async def _reserve(self) -> tuple[int, int]:
        while True:
            found = self._store.get(KEY)
            if found is not None:
                first, start = int(found.value.get("first", 0)), int(found.value["next"])
                revision = found.mod_revision
            else:
                first = start = self._wall_ms() % _LATEST_MS * _IDS_PER_MS
                revision = 0
            put = Put(KEY, {"first": first, "next": start + BLOCK})
            # None says that another node was faster: look again.
            if await self._store.transaction([Compare(KEY, "mod", revision)], [put]) is not None:
                return start, start + BLOCK
