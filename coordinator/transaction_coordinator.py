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
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.held_commits import HeldCommits
from coordinator.runtime.markers import EndMarkers
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.runtime.timers import CoordinatorTimers
from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import FindOpen, WriteMarkers
from coordinator.transactions.refusals import Refusal, error_response, id_fault, no_such_id
from protocol.errors import ErrorCode
from protocol.hashing import partition_for_transactional_id
from protocol.messages import Request, Response
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

_NO_SHARD: Final = (
    "no client has asked for this transactional id's coordinator since the daemon started: send FindCoordinator first"
)
_NOT_OPEN: Final = "the log of this transactional id's coordinator could not be opened; the daemon's log has the reason"


def _log_of(catalog: Catalog, logs: LogManager, topic: str, partition: int) -> PartitionLog | None:
    """The log of a partition, if it is led here and enough replicas of it are in sync."""
    known, log = catalog.topics.get(topic), logs.logs.get((topic, partition))
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


class TransactionCoordinator:
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
    ) -> None:
        self._config = config
        self.admission = Admission(self, asyncio.get_running_loop().call_later)
        """What transactional writes pass on this node."""
        self.held_commits = HeldCommits(partial(_log_of, catalog, logs), asyncio.get_running_loop().call_later)
        """Commits that wait for their writes on this node."""
        self.end_markers = EndMarkers(catalog, logs, groups, self.admission, wall_ms)
        """The way of end markers into the participants of this node."""
        self._delivery = MarkerDelivery(self.end_markers, catalog)
        self._lookup = OpenLookup(catalog, logs, groups, self.admission)
        self._runtime = CoordinatorRuntime(
            TRANSACTIONS_TOPIC,
            TransactionCore,
            lambda partition: TransactionCore(config, next_producer_id),
            catalog,
            logs,
            timers,
            fair_queue,
            wall_ms=wall_ms,
            on_active=self._on_active,
            carry_out=self._carry_out,
        )
        self.replies: PendingReplies = self._runtime.replies
        """The requests about transactional ids that have no answer yet."""

    async def start(self) -> None:
        """Begins to load the transactions that are on disk, see ``CoordinatorRuntime.start``; logs and groups come first.

        The end markers of what is decided leave again.
        """
        await self._runtime.start()

    async def wait_loaded(self) -> None:
        """Returns once the transactions that were on disk at the start have been read."""
        await self._runtime.wait_loaded()

    async def close(self) -> None:
        """Answers all pending requests and brings every shard to rest. End markers that are not written leave again at the
        next start."""
        self._delivery.close()
        self._lookup.close()
        await self._runtime.close()

    def shards(self) -> list[TransactionShard]:
        """Every shard that is open, in order."""
        return self._runtime.shards()

    def damage(self) -> str | None:
        """What keeps some shard from being served, if anything does."""
        return self._runtime.damage()

    def transactional_id_fault(self, transactional_id: str) -> Refusal | None:
        """What is wrong with a transactional id, before anything is kept under it."""
        return id_fault(transactional_id, self._config)

    async def open(self, transactional_id: str) -> int:
        """Makes sure that the shard of an id is there and loaded; returns its partition. Raises as the runtime does."""
        partition = partition_for_transactional_id(transactional_id)
        await self._runtime.open(partition)
        return partition

    def shard(self, transactional_id: str) -> TransactionShard | None:
        """The shard of an id, or None when no client has asked for its coordinator since the daemon started.

        None as well for an id that ``transactional_id_fault`` refuses: it must not even reach the cache of hashes.
        """
        if not 0 < len(transactional_id) <= self._config.max_transactional_id_bytes:
            return None
        return self._runtime.opened.get(partition_for_transactional_id(transactional_id))

    def without_shard(self, request: Request, transactional_id: str) -> Response:
        """The answer to a request about an id whose shard is not there."""
        fault = self.transactional_id_fault(transactional_id)
        if fault is not None:
            return error_response(request, fault.code, fault.message)
        return error_response(request, ErrorCode.NOT_COORDINATOR, _NO_SHARD)

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        """See ``coordinator.runtime.admission.Transactions``."""
        shard = self.shard(request.transactional_id)
        if shard is not None:
            token = self.replies.open(_Add(request, done))
            shard.submit(request, RequestContext(token, "", ""))
            return
        fault = self.transactional_id_fault(request.transactional_id)
        if fault is not None:
            done(AddPartitionsToTxnResponse(fault.code, fault.message))
        elif self._runtime.is_created(partition_for_transactional_id(request.transactional_id)):
            done(AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_OPEN))
        else:
            fault = no_such_id(request.transactional_id)
            done(AddPartitionsToTxnResponse(fault.code, fault.message))

    def _carry_out(self, shard: TransactionShard, order: WriteMarkers | FindOpen) -> None:
        if isinstance(order, FindOpen):
            self._lookup.carry_out(shard, order)
        else:
            self._delivery.carry_out(shard, order)

    def _on_active(self, shard: TransactionShard) -> None:
        interval_ms = self._config.transactional_id_expiration_check_interval_ms
        delay_ms = interval_ms + interval_ms * shard.partition // self._config.transaction_partitions
        shard.decide("", lambda core, step: core.start_expiry(step, delay_ms))
