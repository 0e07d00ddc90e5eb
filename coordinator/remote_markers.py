"""End markers on their way to partitions that other nodes lead.

What transactions end on one node during one turn of the loop travels in one request. A node that does not answer, or does
not lead a partition, has written nothing as far as is known here: ``marker_delivery`` tries again, where the leader is then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.partitions import NO_LEADER
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.markers import End, MarkerReport
from coordinator.server.peers.client import PeerLostError
from coordinator.transactions.orders import MarkerPartition
from protocol.errors import ErrorCode
from protocol.limits import cut
from protocol.messages import ApiKey
from protocol.messages.transactions import (
    MarkerTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)

log = get_logger()

PURPOSE: Final = "transactions"
"""Of the connection to a node that carries what transactions need of it."""

ANSWER_S: Final = 10.0
"""How long a node may take: its disk and its followers."""

MAX_UNDER_WAY: Final = 16
"""Requests to one node without an answer. What comes meanwhile travels in the next."""

MAX_ENDS: Final = 1_024
"""Ends that travel together, some 50 bytes and 11 elements each. Where one transaction has more members in a partition they
take several requests."""

_MOVED: Final = "the partition has another leader now"

Coordinator = tuple[int, int]
"""Who has decided: a partition of ``__transaction_state``, and the leader epoch of it."""


class _Item(NamedTuple):
    partition: MarkerPartition
    coordinator: Coordinator
    ends: Sequence[End]
    report: MarkerReport


class _Node:
    """What is to be sent to one node."""

    __slots__ = ("items", "under_way")

    def __init__(self) -> None:
        self.items: deque[_Item] = deque()
        self.under_way = 0


class RemoteMarkers:
    """See the module text."""

    def __init__(self, cluster: Cluster, catalog: Catalog) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._nodes: defaultdict[int, _Node] = defaultdict(_Node)
        self._sending: dict[asyncio.Task[None], tuple[int, list[_Item]]] = {}
        """Requests under way: to which node, and what is in them."""
        self._loop = asyncio.get_running_loop()
        self._turning = False

    def is_led_here(self, partition: MarkerPartition) -> bool:
        """Whether this node is the one to write the markers of a partition, or to see that it is gone."""
        leader = self._leader(partition)
        return leader is None or leader == self._cluster.membership.me.node

    def write(
        self, partition: MarkerPartition, ends: Sequence[End], coordinator: Coordinator, report: MarkerReport
    ) -> None:
        """Has the leader end transactions in a partition that is not led here, from the next turn of the loop on; ``report``
        is told what became of it, ``written`` or ``refused``."""
        leader = self._leader(partition)
        if leader is None or leader == NO_LEADER:
            report.refused(f"{partition} has no leader at the moment")
        else:
            self._nodes[leader].items.append(_Item(partition, coordinator, ends, report))
            self._turn_later()

    def moved(self) -> None:
        """Partitions may have another leader: their markers are not waited for where it was before."""
        for node in tuple(self._nodes):
            items = self._nodes[node].items
            gone = [item for item in items if self._leader(item.partition) != node]
            if gone:
                self._nodes[node].items = deque(item for item in items if self._leader(item.partition) == node)
            for item in gone:
                item.report.refused(_MOVED)
        for task, (node, sent) in self._sending.items():
            if any(self._leader(item.partition) != node for item in sent):
                task.cancel()

    def close(self) -> None:
        """Sends nothing any more, and reports nothing."""
        self._nodes.clear()
        sending, self._sending = self._sending, {}
        for task in sending:
            task.cancel()

    def _leader(self, partition: MarkerPartition) -> int | None:
        """None for a partition that is no more."""
        topic = self._catalog.with_id(partition.topic_id)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition].leader

    def _turn_later(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        for node, queue in self._nodes.items():
            while queue.items and queue.under_way < MAX_UNDER_WAY:
                queue.under_way += 1
                items = _some(queue.items)
                task = self._loop.create_task(self._send(node, items), name=f"cohort-markers-{node}")
                self._sending[task] = node, items
                task.add_done_callback(partial(self._ended, queue))

    async def _send(self, node: int, items: list[_Item]) -> None:
        try:
            connection = await self._cluster.peers.connect(node, PURPOSE)
            written: list[WrittenMarker] = []
            for request in _requests(items):
                response = await connection.request(request, WriteTxnMarkersResponse, timeout_s=ANSWER_S)
                written += response.markers
        except PeerLostError as error:
            for item in items:
                item.report.refused(str(error))
        else:
            _report(items, written)

    def _ended(self, queue: _Node, task: asyncio.Task[None]) -> None:
        known = self._sending.pop(task, None)
        if known is None:
            return  # closed
        queue.under_way -= 1
        if queue.items:
            self._turn_later()
        if task.cancelled():
            for item in known[1]:
                item.report.refused(_MOVED)
        elif (error := task.exception()) is not None:  # of ours
            log.error("markers_not_sent", node=known[0], exc_info=error)
            for item in known[1]:
                item.report.refused(f"the daemon failed unexpectedly ({error!r}); its log has the cause")


def _some(items: deque[_Item]) -> list[_Item]:
    some = [items.popleft()]
    left = MAX_ENDS - len(some[0].ends)
    while items and (left := left - len(items[0].ends)) >= 0:
        some.append(items.popleft())
    return some


def _requests(items: Iterable[_Item]) -> Iterator[WriteTxnMarkersRequest]:
    where: dict[tuple[End, Coordinator], dict[str, dict[int, None]]] = {}
    for item in items:
        for end in item.ends:
            topics = where.setdefault((end, item.coordinator), {})
            topics.setdefault(item.partition.topic_id, {})[item.partition.partition] = None
    markers = (
        TransactionMarker(
            producer_id,
            producer_epoch,
            committed,
            leader_epoch,
            tuple(MarkerTopic(topic_id, tuple(partitions)) for topic_id, partitions in topics.items()),
            partition,
        )
        for ((producer_id, producer_epoch, committed), (partition, leader_epoch)), topics in where.items()
    )
    for some in cut(ApiKey.WRITE_TXN_MARKERS, markers, _elements):
        yield WriteTxnMarkersRequest(tuple(some))


def _elements(marker: TransactionMarker) -> int:
    return 7 + sum(3 + len(topic.partitions) for topic in marker.topics)


def _report(items: Iterable[_Item], written: Iterable[WrittenMarker]) -> None:
    """A marker is known by its producer: an epoch of one is decided once, and a later one after this is complete."""
    refused: dict[tuple[int, str, int], str] = {}
    there: set[tuple[int, str, int]] = set()
    for marker in written:
        for topic in marker.topics:
            for result in topic.partitions:
                place = marker.producer_id, topic.topic_id, result.partition_index
                there.add(place)
                if result.error_code != ErrorCode.NONE:
                    refused[place] = result.error_message or f"error {result.error_code}"
    for item in items:
        places = [(end[0], item.partition.topic_id, item.partition.partition) for end in item.ends]
        if why := next((refused[place] for place in places if place in refused), ""):
            item.report.refused(why)
        elif all(place in there for place in places):
            item.report.written()
        else:
            item.report.refused("the node that leads it has not said what became of the marker")
