"""Finds out for the transaction core, after a load, whether transactions with carried partitions are open in one of them.

What is open in a partition is known to its log, or to its shard of groups. One that cannot be asked, because its log is not
open or its shard is being loaded, is asked again after a pause, until it answers or the core does not want to know any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from coordinator.group_coordinator import GroupCoordinator
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.runtime.admission import Admission
from coordinator.runtime.shard import CoordinatorShard, ShardState
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import FindOpen, MarkerPartition

FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 5.0

_LOOKS_PER_TURN: Final = 256
"""Transactions that are looked for in one turn of the loop: about 2 ms."""

_Shard = CoordinatorShard[TransactionCore]


class OpenLookup:
    """See the module text. ``carry_out`` gets the orders of the cores."""

    def __init__(self, catalog: Catalog, logs: LogManager, groups: GroupCoordinator, admission: Admission) -> None:
        self._catalog = catalog
        self._logs = logs
        self._groups = groups
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._wanted: deque[tuple[_Shard, FindOpen, float]] = deque()
        """What is to be looked for in this turn or the next ones, and the pause before the next look."""
        self._pauses: dict[tuple[int, FindOpen], asyncio.TimerHandle] = {}

    def carry_out(self, shard: _Shard, order: FindOpen) -> None:
        """Looks in a later turn of the loop."""
        self._look_for(shard, order, FIRST_PAUSE_S)

    def close(self) -> None:
        """Looks for nothing any more."""
        for handle in self._pauses.values():
            handle.cancel()
        self._pauses.clear()
        self._wanted.clear()

    def _look_for(self, shard: _Shard, order: FindOpen, pause_s: float) -> None:
        self._pauses.pop((shard.partition, order), None)
        if not self._wanted:
            self._loop.call_soon(self._look_for_some)
        self._wanted.append((shard, order, pause_s))

    def _look_for_some(self) -> None:
        for _ in range(min(_LOOKS_PER_TURN, len(self._wanted))):
            self._look(*self._wanted.popleft())
        if self._wanted:
            self._loop.call_soon(self._look_for_some)

    def _look(self, shard: _Shard, order: FindOpen, pause_s: float) -> None:
        if shard.state is not ShardState.ACTIVE or not shard.core.is_unsure(order.transaction):
            return  # when it is loaded again it asks again
        found = [self._is_open(order, partition) for partition in order.partitions]
        if True in found:
            return
        if None not in found:
            shard.decide(order.transactional_id, lambda core, step: core.not_open(order.transaction, step))
            return
        key = shard.partition, order
        if key not in self._pauses:
            later_s = min(2 * pause_s, MAX_PAUSE_S)
            self._pauses[key] = self._loop.call_later(pause_s, self._look_for, shard, order, later_s)

    def _is_open(self, order: FindOpen, place: MarkerPartition) -> bool | None:
        """Whether the transaction is open in a partition, or may be in a moment; None while that is not known."""
        topic, topic_id, partition = place
        if self._catalog.is_gone(topic, topic_id) or not 0 <= partition < len(self._catalog.topics[topic].partitions):
            return False
        if self._admission.awaits(place, order.producer_id, order.producer_epoch):
            return None
        if topic == OFFSETS_TOPIC:
            return self._groups.has_open(partition, order.producer_id, order.producer_epoch)
        opened = self._logs.get(topic, partition)
        return None if opened is None else opened.open_epoch(order.producer_id) == order.producer_epoch
