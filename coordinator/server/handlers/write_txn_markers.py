"""WriteTxnMarkers (27): the coordinator of transactions, or an administrator, ends them in partitions of this node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, cast

from coordinator.metadata.catalog import TRANSACTIONS_TOPIC
from coordinator.metadata.partitions import PartitionState
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import STEP, ErrorTexts
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
    WrittenMarkerPartition,
    WrittenMarkerTopic,
)

ANSWER_TIMEOUT_S: Final = 30.0
"""How long the disk may take. A marker that is not on disk by then may still get there: writing it again is harmless."""

_Place = tuple[int, str, int]
"""The number of a marker in its request, and a partition by topic id and index."""


def handler(node: Node) -> Handler:
    """Answers when every marker is on disk, or it is known why not."""

    def handle(call: Call) -> Iterator[None]:
        return _write(node, call)

    return handle


def _write(node: Node, call: Call) -> Iterator[None]:
    request = cast("WriteTxnMarkersRequest", call.request)
    results, done = _Results(call, request), 0
    for number, marker in enumerate(request.markers):
        ends = [(marker.producer_id, marker.producer_epoch, marker.committed)]
        for asked in marker.topics:
            topic = node.catalog.with_id(asked.topic_id)
            for partition in asked.partitions:
                report = _Report(results, (number, asked.topic_id, partition))
                if topic is None or not 0 <= partition < len(topic.partitions):
                    report.gone()
                elif (refusal := _refusal(node, marker, topic.partitions[partition])) is not None:
                    results.put((number, asked.topic_id, partition), *refusal)
                else:
                    key = topic.name, topic.topic_id, partition
                    node.transactions.end_markers.write(key, ends, marker.coordinator_epoch, report)
                done += 1
                if done % STEP == 0:
                    yield
    results.all_asked()


def _refusal(node: Node, marker: TransactionMarker, partition: PartitionState) -> tuple[ErrorCode, str] | None:
    """Why a marker is not for this node of a cluster to write: it does not lead the partition, or another node has followed
    as the coordinator, and sends the marker itself."""
    if not node.catalog.cluster:
        return None
    if not node.membership.valid() or not partition.registration.leads(node.membership.me):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {node.membership.me.node} does not lead the partition"
    coordinators = node.catalog.topics.get(TRANSACTIONS_TOPIC)
    if coordinators is not None and 0 <= marker.coordinator_partition < len(coordinators.partitions):
        epoch = coordinators.partitions[marker.coordinator_partition].leader_epoch
        if marker.coordinator_epoch < epoch:
            text = f"the coordinator of leader epoch {marker.coordinator_epoch} was followed by one of epoch {epoch}"
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED, text
    return None


class _Results:
    """What became of each marker of a request, which is answered when all is known."""

    def __init__(self, call: Call, request: WriteTxnMarkersRequest) -> None:
        self._call = call
        self._request = request
        self._texts = ErrorTexts()
        self._results: dict[_Place, WrittenMarkerPartition] = {}
        self._waiting: dict[_Place, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, place: _Place) -> None:
        """A marker is being written."""
        self._waiting[place] = None

    def put(self, place: _Place, code: ErrorCode, text: str = "") -> None:
        """What became of it."""
        if place in self._waiting:
            del self._waiting[place]
            self._results[place] = WrittenMarkerPartition(place[2], code, self._texts(text))
            self._answer_if_complete()

    def all_asked(self) -> None:
        """Nothing else will be expected."""
        self._timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, self._give_up)
        self._answer_if_complete()

    def _give_up(self) -> None:
        for place in tuple(self._waiting):
            self.put(place, ErrorCode.REQUEST_TIMED_OUT, f"the marker is not on disk after {ANSWER_TIMEOUT_S:.0f} s")

    def _answer_if_complete(self) -> None:
        if self._waiting or self._timer is None:
            return
        self._timer.cancel()
        markers = enumerate(self._request.markers)
        self._call.answer(WriteTxnMarkersResponse(tuple(self._of(*numbered) for numbered in markers)))

    def _of(self, number: int, marker: TransactionMarker) -> WrittenMarker:
        topics = (
            WrittenMarkerTopic(
                topic.topic_id,
                tuple(self._results[number, topic.topic_id, partition] for partition in topic.partitions),
            )
            for topic in marker.topics
        )
        return WrittenMarker(marker.producer_id, tuple(topics))


class _Report:
    """A ``MarkerReport`` of one marker in one partition."""

    __slots__ = ("_place", "_results")

    def __init__(self, results: _Results, place: _Place) -> None:
        self._results, self._place = results, place
        results.expect(place)

    def taken(self) -> None:
        """See ``MarkerReport``: on disk is what counts here."""

    def written(self) -> None:
        """See ``MarkerReport``."""
        self._results.put(self._place, ErrorCode.NONE)

    def gone(self) -> None:
        """See ``MarkerReport``."""
        self._results.put(
            self._place,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {self._place[2]} of a topic with id {self._place[1][:60]!r}",
        )

    def refused(self, reason: str) -> None:
        """See ``MarkerReport``."""
        self._results.put(self._place, ErrorCode.KAFKA_STORAGE_ERROR, reason)
