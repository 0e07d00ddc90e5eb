"""The transaction coordinator of this node: ``TransactionCore`` on the runtime, one for each partition of
``__transaction_state``.

What the cores order is delivered from here: end markers to the logs of partitions and to the shards of groups. And it is the
way in which leaders ask whether a write belongs to a transaction (``coordinator.runtime.admission``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from coordinator.group_coordinator import GroupCoordinator
from coordinator.log.partition import PartitionLog
from coordinator.logs.log_manager import LogManager
from coordinator.marker_delivery import MarkerDelivery, TransactionShard
from coordinator.metadata.catalog import TRANSACTIONS_TOPIC, Catalog
from coordinator.open_lookup import OpenLookup
from coordinator.runtime.admission import Admission
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.held_commits import HeldCommits
from coordinator.runtime.markers import EndMarkers
from coordinator.runtime.runtime import CoordinatorRuntime, Names
from coordinator.runtime.timers import CoordinatorTimers
from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import FindOpen, WriteMarkers
from coordinator.transactions.refusals import error_response, id_fault, no_such_id
from protocol.errors import ErrorCode
from protocol.hashing import partition_for_transactional_id
from protocol.messages import Request, Response
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

_NOT_OPEN: Final = "the log of this transactional id's coordinator could not be opened; the daemon's log has the reason"


def _log_of(catalog: Catalog, logs: LogManager, topic: str, partition: int) -> PartitionLog | None:
    """The log of a partition, if it is led here and enough replicas of it are in sync."""
    known, log = catalog.topics.get(topic), logs.led.get((topic, partition))
    if known is None or log is None or known.partitions[partition].lacks_replicas(log.config.min_insync_replicas):
        return None
    return log


class _Add:
    """A leader's question, which waits for its answer."""

    __slots__ = ("_done", "request")

    def __init__(self, request: Request, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        self.request = request
        self._done = done

    def answer(self, response: Response) -> None:
        """See ``Asker``."""
        assert isinstance(response, AddPartitionsToTxnResponse)
        self._done(response)


class TransactionCoordinator(CoordinatorRuntime[TransactionCore]):
    """Finds the shard of a transactional id, and connects all shards with the participants of transactions.

    ``next_producer_id`` gives an id that no producer has had, or None when there is none at hand.
    """

    def __init__(
        self,
        catalog: Catalog,
        logs: LogManager,
        groups: GroupCoordinator,
        config: TransactionConfig,
        timers: CoordinatorTimers,
        fair_queue: FairQueue,
        *,
        next_producer_id: Callable[[], int | None],
        wall_ms: Callable[[], int],
        cluster: Cluster | None = None,
    ) -> None:
        self._config = config
        self.admission = Admission(self, asyncio.get_running_loop().call_later)
        """What transactional writes pass on this node."""
        self.held_commits = HeldCommits(partial(_log_of, catalog, logs), asyncio.get_running_loop().call_later)
        """Commits that wait for their writes on this node."""
        self.end_markers = EndMarkers(catalog, logs, groups, self.admission, wall_ms)
        """The way of end markers into the participants of this node."""
        self._delivery = MarkerDelivery(self.end_markers)
        self._lookup = OpenLookup(catalog, logs, groups, self.admission)
        super().__init__(
            TRANSACTIONS_TOPIC,
            TransactionCore,
            Names(
                "transactional id",
                partition_for_transactional_id,
                config.max_transactional_id_bytes,
                lambda transactional_id: id_fault(transactional_id, config),
                error_response,
            ),
            lambda partition: TransactionCore(config, next_producer_id),
            catalog,
            logs,
            timers,
            fair_queue,
            wall_ms=wall_ms,
            on_active=self._began,
            on_resigned=self._delivery.resigned,
            carry_out=self._deliver,
            cluster=cluster,
        )

    async def close(self) -> None:
        """Answers all pending requests and brings every shard to rest. End markers that are not written leave again at the
        next start."""
        self._delivery.close()
        self._lookup.close()
        await super().close()

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        """See ``coordinator.runtime.admission.Transactions``."""
        shard = self.shard(request.transactional_id)
        if shard is not None:
            token = self.replies.open(_Add(request, done))
            shard.submit(request, RequestContext(token, "", ""))
            return
        fault = self.fault(request.transactional_id)
        if fault is not None:
            done(AddPartitionsToTxnResponse(*fault))
        elif self.is_created(partition_for_transactional_id(request.transactional_id)):
            done(AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_OPEN))
        else:
            done(AddPartitionsToTxnResponse(*no_such_id(request.transactional_id)))

    def _deliver(self, shard: TransactionShard, order: WriteMarkers | FindOpen) -> None:
        if isinstance(order, FindOpen):
            self._lookup.carry_out(shard, order)
        else:
            self._delivery.carry_out(shard, order)

    def _began(self, shard: TransactionShard) -> None:
        interval_ms = self._config.transactional_id_expiration_check_interval_ms
        delay_ms = interval_ms + interval_ms * shard.partition // self._config.transaction_partitions
        shard.decide("", lambda core, step: core.start_expiry(step, delay_ms))
