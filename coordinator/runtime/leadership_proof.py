"""Whether this node still leads a partition, as the metadata store itself says.

What changes something is proven by its commit: the followers of another leader do not take it. An answer that changes
nothing has no such proof. A leader that does not know yet that it is not one says "no such transaction is open here" about a
partition to which the next leader has written, and the transaction would stay open for ever. So before such an answer is
given, the metadata is read up to now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.runtime.cluster import Cluster

log = get_logger()


class LeadershipProof:
    """Answers all that ask at the same time with one look at the store."""

    def __init__(self, cluster: Cluster, catalog: Catalog) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._waiting: list[Callable[[str], None]] = []
        self._asking: asyncio.Task[None] | None = None

    def confirm(self, topic: str, partition: int, tell: Callable[[str], None]) -> None:
        """Calls ``tell`` later, once: with "" if this node has led the partition without a break until some time after now,
        or else with the reason why that is not certain. After ``close`` it is not called."""
        epoch = self._epoch(topic, partition)

        def caught_up(failure: str) -> None:
            if failure or epoch is None or self._epoch(topic, partition) != epoch:
                node = self._cluster.membership.me.node
                tell(failure or f"node {node} does not lead {topic}-{partition} any more")
            else:
                tell("")

        self.catch_up(caught_up)

    def catch_up(self, tell: Callable[[str], None]) -> None:
        """Calls ``tell`` later, once: with "" when the catalog shows all that was written to the metadata before now, or
        with the reason why it may not."""
        self._waiting.append(tell)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="cohort-leadership-proof")

    def close(self) -> None:
        """Answers nobody any more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            failure = ""
            try:
                await self._cluster.catch_up()
            except MetadataUnavailableError as error:
                failure = f"the metadata cannot be asked: {error}"
            except Exception as error:
                log.exception("leadership_proof_failed")
                failure = f"the metadata could not be asked ({error!r}): the daemon's log has the cause"
            for tell in waiting:
                try:
                    tell(failure)
                except Exception:  # of ours; it must not keep the others from their answers
                    log.exception("leadership_proof_failed")
        self._asking = None

    def _epoch(self, name: str, partition: int) -> int | None:
        """The epoch in which this node leads a partition, as far as is known here."""
        topic = self._catalog.topics.get(name)
        if topic is None or partition >= len(topic.partitions):
            return None
        known = topic.partitions[partition]
        return known.leader_epoch if known.registration.leads(self._cluster.membership.me) else None
