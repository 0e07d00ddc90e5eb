"""Finds out for the transaction core, after a load, whether transactions with carried partitions are open in one of them.

What is open in a partition is known to its log, or to its shard of groups. One that cannot be asked, because its log is not
open, its shard is being loaded or its leader does not answer, is asked again after a pause, until it answers or the core
does not want to know any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from coordinator.group_coordinator import GroupCoordinator
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.metadata.partitions import NO_LEADER
from coordinator.remote_markers import PURPOSE
from coordinator.runtime.admission import Admission
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.leadership_proof import LeadershipProof
from coordinator.runtime.shard import CoordinatorShard, ShardState
from coordinator.server.peers.client import PeerLostError
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import FindOpen, MarkerPartition
from protocol.limits import cut
from protocol.messages import ApiKey
from protocol.messages.transactions import (
    MarkerTopic,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
    SoughtTransaction,
)

FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 5.0

ANSWER_S: Final = 5.0
"""How long another node may take."""

_LOOKS_PER_TURN: Final = 256
"""Transactions that are looked for in one turn of the loop: about 2 ms. In a cluster so many are asked for together, in as
few requests to each leader as take them."""

_Shard = CoordinatorShard[TransactionCore]

log = get_logger()


class OpenTransactions:
    """Which transactions are open in the partitions of this node. ``proof`` is that of a node in a cluster."""

    def __init__(
        self,
        catalog: Catalog,
        logs: LogManager,
        groups: GroupCoordinator,
        admission: Admission,
        proof: LeadershipProof | None,
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._groups = groups
        self._admission = admission
        self._proof = proof

    def look(self, producer_id: int, producer_epoch: int, places: Iterable[MarkerPartition]) -> bool | None:
        """Whether a transaction is open in one of these partitions, or may be in a moment; None while that is not known."""
        found = [self._is_open(producer_id, producer_epoch, place) for place in places]
        return True if True in found else None if None in found else False

    async def look_for_all(self, sought: Sequence[FindOpen]) -> list[bool | None]:
        """The same for many, in a cluster: what is open nowhere is proven not to be."""
        found, looks = [], 0
        for order in sought:
            found.append(self.look(order.producer_id, order.producer_epoch, order.partitions))
            looks += len(order.partitions)
            if looks >= _LOOKS_PER_TURN:
                looks = 0
                await asyncio.sleep(0)
        empty = [order.partitions for order, state in zip(sought, found, strict=True) if state is False]
        doubtful = await self._doubtful({place for places in empty for place in places})
        return [
            None if state is False and doubtful.intersection(order.partitions) else state
            for order, state in zip(sought, found, strict=True)
        ]

    async def _doubtful(self, places: set[MarkerPartition]) -> set[MarkerPartition]:
        """Those of these partitions of which it is not certain that this node leads them, or that they are gone."""
        assert self._proof is not None, "a node that is alone leads everything"
        doubtful: set[MarkerPartition] = set()
        left = len(places)
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(place: MarkerPartition, doubt: str) -> None:
            nonlocal left
            left -= 1
            if doubt:
                doubtful.add(place)
            if not left and not told.done():
                told.set_result(None)

        def tell_of_gone(place: MarkerPartition, failure: str) -> None:
            tell(place, failure or ("" if self._catalog.with_id(place.topic_id) is None else "not known here before"))

        for place in sorted(places):
            if self._catalog.with_id(place.topic_id) is None:
                self._proof.catch_up(partial(tell_of_gone, place))
            else:
                self._proof.confirm(place.topic, place.partition, partial(tell, place))
        if places:
            await told
        return doubtful

    def _is_open(self, producer_id: int, producer_epoch: int, place: MarkerPartition) -> bool | None:
        topic, topic_id, partition = place
        if self._catalog.is_gone(topic, topic_id) or not 0 <= partition < len(self._catalog.topics[topic].partitions):
            return False
        if self._admission.awaits(place, producer_id, producer_epoch):
            return None
        if topic == OFFSETS_TOPIC:
            return self._groups.has_open(partition, producer_id, producer_epoch)
        opened = self._logs.get(topic, partition)
        return None if opened is None else opened.open_epoch(producer_id) == producer_epoch


class OpenLookup:
    """See the module text. ``carry_out`` gets the orders of the cores."""

    def __init__(self, here: OpenTransactions, catalog: Catalog, cluster: Cluster | None = None) -> None:
        self._here = here
        self._catalog = catalog
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._wanted: deque[tuple[_Shard, FindOpen, float]] = deque()
        """What is to be looked for in this turn or the next ones, and the pause before the next look."""
        self._pauses: dict[tuple[int, FindOpen], asyncio.TimerHandle] = {}
        self._looking: asyncio.Task[None] | None = None

    def carry_out(self, shard: _Shard, order: FindOpen) -> None:
        """Looks in a later turn of the loop."""
        self._look_for(shard, order, FIRST_PAUSE_S)

    def close(self) -> None:
        """Looks for nothing any more."""
        for handle in self._pauses.values():
            handle.cancel()
        self._pauses.clear()
        self._wanted.clear()
        if self._looking is not None:
            self._looking.cancel()

    def _look_for(self, shard: _Shard, order: FindOpen, pause_s: float) -> None:
        self._pauses.pop((shard.partition, order), None)
        if self._cluster is not None:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_everywhere(self._cluster), name="cohort-open-lookup")
        elif not self._wanted:
            self._loop.call_soon(self._look_for_some)
        self._wanted.append((shard, order, pause_s))

    def _look_for_some(self) -> None:
        for _ in range(min(_LOOKS_PER_TURN, len(self._wanted))):
            shard, order, pause_s = self._wanted.popleft()
            if _is_wanted(shard, order):
                is_open = self._here.look(order.producer_id, order.producer_epoch, order.partitions)
                self._conclude(shard, order, pause_s, is_open)
        if self._wanted:
            self._loop.call_soon(self._look_for_some)

    async def _look_everywhere(self, cluster: Cluster) -> None:
        """Asks the leaders of all partitions, for some transactions at a time."""
        while self._wanted:
            some = [self._wanted.popleft() for _ in range(min(_LOOKS_PER_TURN, len(self._wanted)))]
            some = [(shard, order, pause_s) for shard, order, pause_s in some if _is_wanted(shard, order)]
            try:
                found = await self._found(cluster, [order for _, order, _ in some])
            except Exception:  # of ours; what is looked for is not found at least
                log.exception("open_lookup_failed")
                found = [None] * len(some)
            for (shard, order, pause_s), is_open in zip(some, found, strict=True):
                if _is_wanted(shard, order):
                    self._conclude(shard, order, pause_s, is_open)
        self._looking = None

    async def _found(self, cluster: Cluster, orders: Sequence[FindOpen]) -> list[bool | None]:
        """For each whether it is open; a partition without a leader is one that cannot be asked."""
        by_leader: dict[int, dict[int, list[MarkerPartition]]] = {}
        states: list[set[bool | None]] = [set() for _ in orders]
        for number, order in enumerate(orders):
            for place in order.partitions:
                leader = self._leader(place, cluster.membership.me.node)
                if leader == NO_LEADER:
                    states[number].add(None)
                else:
                    by_leader.setdefault(leader, {}).setdefault(number, []).append(place)
        asked = [
            {number: orders[number]._replace(partitions=tuple(places)) for number, places in there.items()}
            for there in by_leader.values()
        ]
        answers = await asyncio.gather(
            *(self._asked(cluster, node, tuple(there.values())) for node, there in zip(by_leader, asked, strict=True))
        )
        for there, answer in zip(asked, answers, strict=True):
            for number, state in zip(there, answer, strict=True):
                states[number].add(state)
        return [True if True in found else None if None in found else False for found in states]

    async def _asked(self, cluster: Cluster, node: int, orders: Sequence[FindOpen]) -> list[bool | None]:
        if node == cluster.membership.me.node:
            return await self._here.look_for_all(orders)
        found: list[bool | None] = []
        try:
            connection = await cluster.peers.connect(node, PURPOSE)
            for some in cut(ApiKey.OPEN_TRANSACTIONS, map(_sought, orders), _elements):
                request = OpenTransactionsRequest(tuple(some))
                response = await connection.request(request, OpenTransactionsResponse, timeout_s=ANSWER_S)
                states = response.states if len(response.states) == len(some) else (-1,) * len(some)
                found += [None if state < 0 else bool(state) for state in states]
        except PeerLostError as error:
            log.info("open_lookup_not_answered", node=node, error=str(error))
        return found + [None] * (len(orders) - len(found))

    def _leader(self, place: MarkerPartition, me: int) -> int:
        """This node sees to topics that are gone."""
        if self._catalog.is_gone(place.topic, place.topic_id):
            return me
        partitions = self._catalog.topics[place.topic].partitions
        return partitions[place.partition].leader if 0 <= place.partition < len(partitions) else me

    def _conclude(self, shard: _Shard, order: FindOpen, pause_s: float, is_open: bool | None) -> None:
        if is_open:
            return
        if is_open is not None:
            shard.decide(order.transactional_id, lambda core, step: core.not_open(order.transaction, step))
            return
        key = shard.partition, order
        if key not in self._pauses:
            later_s = min(2 * pause_s, MAX_PAUSE_S)
            self._pauses[key] = self._loop.call_later(pause_s, self._look_for, shard, order, later_s)


def _is_wanted(shard: _Shard, order: FindOpen) -> bool:
    """Else it asks again when it is loaded again."""
    return shard.state is ShardState.ACTIVE and shard.core.is_unsure(order.transaction)


def _elements(sought: SoughtTransaction) -> int:
    return 4 + sum(3 + len(topic.partitions) for topic in sought.topics)


def _sought(order: FindOpen) -> SoughtTransaction:
    topics: dict[str, list[int]] = {}
    for place in order.partitions:
        topics.setdefault(place.topic_id, []).append(place.partition)
    return SoughtTransaction(
        order.producer_id,
        order.producer_epoch,
        tuple(MarkerTopic(topic_id, tuple(partitions)) for topic_id, partitions in topics.items()),
    )
