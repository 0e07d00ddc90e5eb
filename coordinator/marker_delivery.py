"""Carries out what the transaction core orders: end markers in every partition that a transaction touched.

The core learns what became of each. A marker that is refused is tried again with growing pauses, until its partition takes
it or its topic is deleted, and meanwhile the core knows the reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from coordinator.log_output import get_logger
from coordinator.remote_markers import RemoteMarkers
from coordinator.runtime.effects import Effects
from coordinator.runtime.markers import EndMarkers
from coordinator.runtime.shard import CoordinatorShard, ShardState
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.core import TransactionCore
from coordinator.transactions.orders import MarkerOutcome, MarkerPartition, TransactionName, WriteMarkers

TransactionShard = CoordinatorShard[TransactionCore]

_Transaction = tuple[int, TransactionName]
"""The partition of a shard, and a transaction of it."""

RETRY_S: Final = 0.1
MAX_RETRY_S: Final = 5.0

HANDED_PER_TURN: Final = 256
"""Markers that are handed over in one turn of the loop, some 5 µs each; ten thousand partitions take forty turns."""

_ENDS_OF_ONE: Final = 16
"""So many ends that go into a partition take as long to make as it takes to hand a marker over."""

_HANDED_AT_ONCE: Final = 64
"""Markers of one order that are handed over before another order has its turn."""

_TOLD_PER_TURN: Final = 128
"""Markers that the cores are told of in one turn of the loop, some 10 µs each."""

log = get_logger()


class _Delivery:
    """One end marker of an order on its way; a ``MarkerReport``."""

    __slots__ = ("markers", "order", "partition", "shard", "transaction")

    def __init__(
        self, markers: MarkerDelivery, shard: TransactionShard, order: WriteMarkers, partition: MarkerPartition
    ) -> None:
        self.markers = markers
        self.shard = shard
        self.order = order
        self.partition = partition
        self.transaction = shard.partition, order.transaction
        """What a repetition has as well: a core that was loaded anew gives its orders again."""

    def taken(self) -> None:
        """See ``MarkerReport``."""
        self.markers.tell(self, MarkerOutcome.TAKEN)

    def written(self) -> None:
        """See ``MarkerReport``."""
        self.markers.succeeded(self, MarkerOutcome.DONE)

    def gone(self) -> None:
        """See ``MarkerReport``."""
        self.markers.succeeded(self, MarkerOutcome.GONE)

    def refused(self, reason: str) -> None:
        """See ``MarkerReport``."""
        self.markers.failed(self, reason)


class _Pause:
    """A partition has refused markers, and gets the next ones when the pause is over."""

    __slots__ = ("deliveries", "handle", "pause_s", "reason")

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.reason = ""
        self.deliveries: dict[_Transaction, _Delivery] = {}
        self.handle: asyncio.TimerHandle | None = None


class MarkerDelivery:
    """See the module text. ``carry_out`` gets the orders of the cores."""

    def __init__(self, end_markers: EndMarkers, remote: RemoteMarkers | None = None) -> None:
        """``remote`` is the way to other nodes of a cluster."""
        self._end_markers = end_markers
        self._remote = remote
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[MarkerPartition, _Pause] = {}
        self._outcomes: dict[tuple[_Transaction, MarkerPartition], tuple[_Delivery, MarkerOutcome, str]] = {}
        """What the cores are not told yet."""
        self._waiting: deque[Iterator[_Delivery]] = deque()
        """What is to be handed over; the orders take turns."""
        self._left = 0
        """Of these so many may be handed over in this turn of the loop."""
        self._turning = False
        self._closed = False

    def carry_out(self, shard: TransactionShard, order: WriteMarkers) -> None:
        """Has the markers of an order written, those of a large one in several turns of the loop.

        The core is told of nothing before this returns.
        """
        self._hand_over(_Delivery(self, shard, order, partition) for partition in order.partitions)

    def resigned(self, shard: TransactionShard) -> None:
        """Tries nothing of this shard again: the node that leads its partition now does."""
        for partition, pause in tuple(self._pauses.items()):
            pause.deliveries = {key: each for key, each in pause.deliveries.items() if each.shard is not shard}
            if not pause.deliveries and pause.handle is not None:
                pause.handle.cancel()
                del self._pauses[partition]

    def moved(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Partitions, by topic id and number, may have another leader: what they have refused is tried again at once."""
        partitions = frozenset(partitions) if self._pauses else ()
        for partition, pause in tuple(self._pauses.items()):
            if pause.handle is not None and (partition.topic_id, partition.partition) in partitions:
                pause.handle.cancel()
                pause.pause_s = RETRY_S
                self._try_again(partition, pause)

    def close(self) -> None:
        """Tries nothing again: the cores give the orders again when they are loaded."""
        self._closed = True
        for pause in self._pauses.values():
            if pause.handle is not None:
                pause.handle.cancel()
        self._pauses.clear()
        self._waiting.clear()

    def tell(self, delivery: _Delivery, outcome: MarkerOutcome, reason: str = "") -> None:
        """Tells the core in a later turn of the loop what has become of a marker by then."""
        if not self._outcomes:
            self._loop.call_soon(self._tell_some)
        self._outcomes[delivery.transaction, delivery.partition] = delivery, outcome, reason

    def succeeded(self, delivery: _Delivery, outcome: MarkerOutcome) -> None:
        """A marker is where it belongs, or its partition is gone."""
        pause = self._pauses.get(delivery.partition)
        if pause is not None and pause.handle is None:
            del self._pauses[delivery.partition]
        self.tell(delivery, outcome)

    def failed(self, delivery: _Delivery, reason: str) -> None:
        """A marker was refused: it is tried again after a pause, with all others of its partition that come meanwhile."""
        if self._closed or delivery.shard.state is ShardState.RESIGNED:
            return
        pause = self._pauses.get(delivery.partition)
        if pause is None:
            pause = self._pauses[delivery.partition] = _Pause(RETRY_S)
            topic, _, partition = delivery.partition
            log.warning("end_markers_refused", topic=topic, partition=partition, reason=reason)
        if pause.handle is None:
            pause.handle = self._loop.call_later(pause.pause_s, self._try_again, delivery.partition, pause)
        pause.reason = reason
        pause.deliveries[delivery.transaction] = delivery
        self.tell(delivery, MarkerOutcome.REFUSED, reason)

    def _hand_over(self, deliveries: Iterator[_Delivery]) -> None:
        """Hands these over behind those that wait: now, as far as this turn of the loop has time."""
        self._waiting.append(deliveries)
        if not self._turning:
            self._turning, self._left = True, HANDED_PER_TURN
            self._loop.call_soon(self._turn)
        self._hand_over_some()

    def _turn(self) -> None:
        self._left = HANDED_PER_TURN
        self._turning = bool(self._waiting)
        if self._turning:
            self._loop.call_soon(self._turn)
            self._hand_over_some()

    def _hand_over_some(self) -> None:
        while self._waiting and self._left > 0:
            deliveries = self._waiting.popleft()
            handed = 0
            for delivery in islice(deliveries, _HANDED_AT_ONCE):
                handed += 1
                self._deliver(delivery)
                self._left -= 1 + delivery.order.weight(delivery.partition) // _ENDS_OF_ONE
                if self._left <= 0:
                    break
            if handed == _HANDED_AT_ONCE or self._left <= 0:
                self._waiting.append(deliveries)  # perhaps at its end, which the next look finds

    def _deliver(self, delivery: _Delivery) -> None:
        if delivery.shard.state is ShardState.RESIGNED:
            return
        pause = self._pauses.get(delivery.partition)
        if pause is not None and pause.handle is not None:
            pause.deliveries[delivery.transaction] = delivery
            self.tell(delivery, MarkerOutcome.REFUSED, pause.reason)
        else:
            self._write(delivery)

    def _write(self, delivery: _Delivery) -> None:
        partition, shard = delivery.partition, delivery.shard
        ends = delivery.order.ends(partition)
        if self._remote is None or self._remote.is_led_here(partition):
            self._end_markers.write(partition, ends, shard.leader_epoch, delivery)
        else:
            self._remote.write(partition, ends, (shard.partition, shard.leader_epoch), delivery)

    def _try_again(self, partition: MarkerPartition, pause: _Pause) -> None:
        deliveries, pause.deliveries = pause.deliveries, {}
        pause.handle, pause.pause_s = None, min(2 * pause.pause_s, MAX_RETRY_S)
        self._hand_over(iter(deliveries.values()))

    def _tell_some(self) -> None:
        for key in tuple(islice(self._outcomes, _TOLD_PER_TURN)):
            delivery, outcome, reason = self._outcomes.pop(key)
            order, (_, topic_id, partition) = delivery.order, delivery.partition
            event = partial(_marked, order.transaction, topic_id, partition, outcome, reason)
            delivery.shard.decide(order.transactional_id, event)
        if self._outcomes:
            self._loop.call_soon(self._tell_some)


def _marked(
    transaction: TransactionName,
    topic_id: str,
    partition: int,
    outcome: MarkerOutcome,
    reason: str,
    core: TransactionCore,
    step: TransactionStep,
) -> Effects:
    return core.marked(transaction, topic_id, partition, outcome, reason, step)
