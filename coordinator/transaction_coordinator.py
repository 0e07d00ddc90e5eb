"""The transaction coordinator of this node: ``TransactionCore`` on the runtime, one for each partition of
``__transaction_state``.

What the cores order is delivered from here: end markers to the logs of partitions and to the shards of groups, on this node
and on the others of a cluster. And it is the way in which leaders ask whether a write belongs to a transaction
(``coordinator.runtime.admission``), whose coordinator may be on another node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from coordinator.group_coordinator import GroupCoordinator
from coordinator.log.partition import PartitionLog
from coordinator.logs.log_manager import LogManager
from coordinator.marker_delivery import MarkerDelivery, TransactionShard
from coordinator.metadata.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Catalog
from coordinator.metadata.partitions import PartitionState
from coordinator.open_lookup import OpenLookup, OpenTransactions
from coordinator.remote_coordinators import RemoteCoordinators
from coordinator.remote_markers import RemoteMarkers
from coordinator.runtime.admission import Admission
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.effects import ReplyToken, RequestContext
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.held_commits import HeldCommits
from coordinator.runtime.markers import EndMarkers
from coordinator.runtime.runtime import CoordinatorRuntime, Names
from coordinator.runtime.timers import CoordinatorTimers
from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import FindOpen, WriteMarkers
from coordinator.transactions.records import Ended
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


Done = Callable[[AddPartitionsToTxnResponse], None]


class _Add:
    """A leader's question, which waits for its answer."""

    __slots__ = ("_done", "request")

    def __init__(self, request: Request, done: Done) -> None:
        self.request = request
        self._done = done

    def answer(self, response: Response) -> None:
        """See ``Asker``."""
        assert isinstance(response, AddPartitionsToTxnResponse)
        self._done(response)


class _ProvenAdd(_Add):
    """One in a cluster. That the partitions belong to the transaction is told when the record of it is committed, or when it
    is proven that no other node has followed this one as the coordinator."""

    __slots__ = ("_prove", "is_written")

    def __init__(self, request: Request, done: Done, prove: Callable[[Callable[[str], None]], None]) -> None:
        super().__init__(request, done)
        self._prove = prove
        self.is_written = False
        """Whether the answer waits for something to be committed."""

    def answer(self, response: Response) -> None:
        """See ``Asker``."""
        if self.is_written or response.error_code:  # type: ignore[attr-defined]
            super().answer(response)
            return

        def told(doubt: str) -> None:
            lost = AddPartitionsToTxnResponse(ErrorCode.NOT_COORDINATOR, doubt)
            super(_ProvenAdd, self).answer(lost if doubt else response)

        self._prove(told)


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
        self.ended = ended = Counter[Ended](dict.fromkeys(Ended, 0))
        """Transactions that this node has decided since it started, by how they ended."""
        self.admission = Admission(self, asyncio.get_running_loop().call_later)
        """What transactional writes pass on this node."""
        self.held_commits = HeldCommits(partial(_log_of, catalog, logs), asyncio.get_running_loop().call_later)
        """Commits that wait for their writes on this node."""
        self._proof = groups.proof
        self.end_markers = EndMarkers(catalog, logs, groups, self.admission, wall_ms, self._proof)
        """The way of end markers into the participants of this node."""
        self.open_here = OpenTransactions(catalog, logs, groups, self.admission, self._proof)
        """Which transactions are open in these."""
        self._lookup = OpenLookup(self.open_here, catalog, cluster)
        self._remote_markers = self._elsewhere = None
        if cluster is not None:
            self._remote_markers = RemoteMarkers(cluster, catalog)
            self._elsewhere = RemoteCoordinators(
                cluster, lambda name: self.leader_of(partition_for_transactional_id(name)), self.add_here
            )
            self._stop_watching = catalog.on_partitions(self._moved)
        self._delivery = MarkerDelivery(self.end_markers, self._remote_markers)
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
            lambda partition: TransactionCore(config, next_producer_id, ended),
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
        if self._remote_markers is not None and self._elsewhere is not None:
            self._stop_watching()
            self._remote_markers.close()
            self._elsewhere.close()
        self._delivery.close()
        self._lookup.close()
        await super().close()

    def add(self, request: AddPartitionsToTxnRequest, done: Done) -> None:
        """See ``coordinator.runtime.admission.Transactions``."""
        shard = self.shard(request.transactional_id)
        if shard is not None and self._elsewhere is None:
            self._submit(shard, request, _Add(request, done))
            return
        fault = self.fault(request.transactional_id)
        if fault is not None:
            done(AddPartitionsToTxnResponse(*fault))
        elif self._elsewhere is not None:
            self._elsewhere.add(request, done)
        elif self.is_created(partition_for_transactional_id(request.transactional_id)):
            done(AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_OPEN))
        else:
            done(AddPartitionsToTxnResponse(*no_such_id(request.transactional_id)))

    def add_here(self, request: AddPartitionsToTxnRequest, done: Done) -> None:
        """In a cluster: asks the coordinator if it is on this node, for a leader here or on another one."""
        shard = self.shard(request.transactional_id)
        if shard is None:
            answer = self.without_shard(request, request.transactional_id)
            assert isinstance(answer, AddPartitionsToTxnResponse)
            done(answer)
        elif request.verify_only or self._proof is None:
            self._submit(shard, request, _Add(request, done))
        else:
            asked = _ProvenAdd(request, done, partial(self._proof.confirm, TRANSACTIONS_TOPIC, shard.partition))
            token = self._submit(shard, request, asked)
            may_wait = shard.has_unfinished or token in shard.core.transactions.requests  # and need no record then
            asked.is_written = not may_wait and not shard.at_rest

    def _submit(self, shard: TransactionShard, request: AddPartitionsToTxnRequest, asked: _Add) -> ReplyToken:
        token = self.replies.open(asked)
        shard.submit(request, RequestContext(token, "", ""))
        return token

    def _moved(self, partitions: Sequence[tuple[str, int]]) -> None:
        if self._remote_markers is not None and self._elsewhere is not None:
            self._elsewhere.moved()
            self._remote_markers.moved()
            self._delivery.moved(partitions)
        for key in self.admission.awaited():
            name, topic_id, index = key
            topic = self._catalog.with_id(topic_id)
            if topic is not None and not self._leads(topic.partitions[index]):
                code = ErrorCode.NOT_COORDINATOR if name == OFFSETS_TOPIC else ErrorCode.NOT_LEADER_OR_FOLLOWER
                self.admission.lost(key, code, f"{name}-{index} is not led by this node any more")

    def _leads(self, partition: PartitionState) -> bool:
        return self._membership is not None and partition.registration.leads(self._membership.me)

    def _deliver(self, shard: TransactionShard, order: WriteMarkers | FindOpen) -> None:
        if isinstance(order, FindOpen):
            self._lookup.carry_out(shard, order)
        else:
            self._delivery.carry_out(shard, order)

    def _began(self, shard: TransactionShard) -> None:
        interval_ms = self._config.transactional_id_expiration_check_interval_ms
        delay_ms = interval_ms + interval_ms * shard.partition // self._config.transaction_partitions
        shard.decide("", lambda core, step: core.start_expiry(step, delay_ms))
