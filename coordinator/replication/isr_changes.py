"""Changes of in-sync replicas on their way to the metadata store.

Those of one turn of the loop travel together; a transaction that is refused is split, as one partition that has changed
refuses all. An outcome is never taken for settled here, whatever the store says of it: only a delta settles it
(``Leader.proposal_ended``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol

from coordinator.log_output import get_logger
from coordinator.metadata.authority import MAX_OPERATIONS, Compare, Operation
from coordinator.metadata.keys import encode_partition, live_key, partition_key
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError
from coordinator.replication.leader import Proposal
from coordinator.replication.proposals import conditions, write

log = get_logger()

MAX_PARTITIONS: Final = 60
"""In one transaction."""
MAX_TRANSACTIONS: Final = 4
"""Of a node, at the same time."""
LOOKS_A_TURN: Final = 4 * MAX_PARTITIONS
"""So many leaders are asked in one turn of the loop."""
_PAUSE_S: Final = 0.2
"""Between a proposal that was refused, or whose outcome is unknown, and the next of this partition."""


class Proposing(Protocol):
    """The leader of a partition, as far as it proposes."""

    topic_id: str
    index: int

    def propose(self) -> Proposal | None:
        """See ``Leader.propose``."""

    def proposal_ended(self) -> None:
        """See ``Leader.proposal_ended``."""


class IsrChanges:
    """Writes what leaders propose."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._due: dict[Proposing, None] = {}
        self._scheduled = False
        self._closed = False
        self._transactions: set[asyncio.Task[None]] = set()

    def look_at(self, leader: Proposing) -> None:
        """Has a leader propose in the next turn of the loop, if it has reason to."""
        self._due[leader] = None
        self._schedule()

    async def close(self) -> None:
        """Gives up what is on its way; it may take effect or not."""
        self._closed = True
        tasks = tuple(self._transactions)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed and len(self._transactions) < MAX_TRANSACTIONS:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        due = list(islice(self._due, LOOKS_A_TURN))
        for leader in due:
            del self._due[leader]
        proposed = [(leader, proposal) for leader in due if (proposal := leader.propose()) is not None]
        if self._due:
            self._schedule()
        for start in range(0, len(proposed), MAX_PARTITIONS):
            some = proposed[start : start + MAX_PARTITIONS]
            if self._closed or len(self._transactions) >= MAX_TRANSACTIONS:
                for leader, _ in some:  # made anew when one of the transactions is done
                    leader.proposal_ended()
                    self._due[leader] = None
                continue
            task = self._loop.create_task(self._write(some), name="cohort-isr-changes")
            self._transactions.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._transactions.discard(task)
        if self._due:
            self._schedule()

    async def _write(self, some: Sequence[tuple[Proposing, Proposal]]) -> None:
        settled = False
        try:
            settled = await self._written(some)
        finally:
            for leader, _ in some:
                leader.proposal_ended()
                if settled:
                    self.look_at(leader)
                elif not self._closed:
                    self._loop.call_later(_PAUSE_S, self.look_at, leader)

    async def _written(self, some: Sequence[tuple[Proposing, Proposal]]) -> bool:
        """Whether all of it has taken effect, and is known here."""
        compare: dict[Compare, None] = {}
        operations: list[Operation] = []
        for leader, proposal in some:
            key = partition_key(leader.topic_id, leader.index)
            compare |= dict.fromkeys(conditions(proposal, key, live_key))
            operations.append(write(proposal, key, encode_partition))
        if len(compare) <= MAX_OPERATIONS:
            try:
                if await self._store.transaction(tuple(compare), operations) is not None:
                    return True
            except (MetadataUnavailableError, OSError) as error:
                outcome = error.outcome if isinstance(error, MetadataUnavailableError) else "none"
                log.warning("isr_change_not_written", partitions=len(some), outcome=outcome, error=str(error))
                return False
        if len(some) == 1:
            log.info("isr_change_refused", topic_id=some[0][0].topic_id, partition=some[0][0].index)
            return False
        half = len(some) // 2
        first = await self._written(some[:half])
        return await self._written(some[half:]) and first
