"""Batches that come behind one that was refused for now: they are refused for now as well.

An idempotent producer has up to five requests under way. When the first is refused because the partition has no leader here
yet, or too few replicas, and the next one arrives when it has, the sequence of that one does not come next. Kafka tells it
OUT_OF_ORDER_SEQUENCE_NUMBER, or UNKNOWN_PRODUCER_ID at the beginning. librdkafka then begins a new epoch for all of its
partitions, and sends what has no answer yet again under that: records that the log has under the old epoch are in it twice,
with ``enable.idempotence``. A batch whose gap is the refused one is told here what that was told. Every client sends both
again in their order.

The gap is explained by refused batches of the same connection that end where the batch begins. One that is sent again does
not follow them any more, so that a gap for which there is no such reason is told at the second attempt at the latest.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from coordinator.kafka.transactions import NOT_NOW
from coordinator.server.call import Call
from coordinator.server.handlers.produce import Slot
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchError, KafkaBatchHeader, read_batch_header
from protocol.messages.records import PartitionProduceResponse, TopicProduceData
from protocol.record_batch import sequence_after

MAX_REMEMBERED: Final = 10_000
"""Partitions of producers and connections; above it the one is forgotten that was refused longest ago."""

FOR_NOW: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        *NOT_NOW,
    )
)
"""Refusals after which a producer sends the same batch again."""
_GAP: Final = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))

_Place = tuple[int, int, int, str, int]
"""Number of the connection, producer id and epoch, name of the topic or its id in hex, and partition."""


class RefusedBatches:
    """Remembers what was refused for now, and looks at results before they are told."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._after: OrderedDict[_Place, tuple[int, ErrorCode]] = OrderedDict()
        """The sequence after the last refused batch, and what that was told."""

    def __len__(self) -> int:
        return len(self._after)

    def told(
        self, place: tuple[int, str, int], header: KafkaBatchHeader, result: PartitionProduceResponse
    ) -> PartitionProduceResponse:
        """What a batch is told whose result is ``result``.

        ``place`` has the connection's number, the topic by name or id, as its requests do, and the partition.
        """
        connection, topic, index = place
        key = connection, header.producer_id, header.producer_epoch, topic, index
        code = ErrorCode(result.error_code)
        if code in _GAP:
            sequence, earlier = self._after.pop(key, (-1, code))
            if sequence != header.base_sequence:
                return result
            code = earlier
            text = f"{topic}-{index}: the batch before this one was refused ({code.name}); send that again, then this"
            if not result.error_message:  # the answer has no room for texts
                text = ""
            result = replace(result, error_code=code, error_message=text)
        if code in FOR_NOW:
            self._after[key] = sequence_after(header.base_sequence, header.last_offset_delta + 1), code
            self._after.move_to_end(key)
            if len(self._after) > self._most:
                self._after.popitem(last=False)
        return result

    def in_order(self, call: Call, asked: TopicProduceData, records: bytes, slot: Slot) -> Slot:
        """The place for the result of the batch ``records``, which is told what ``told`` says."""
        topic = asked.topic_id or asked.name
        return lambda result: slot(self.looked_at(call.connection.number, topic, records, result))

    def looked_at(
        self, connection: int, topic: str, records: bytes, result: PartitionProduceResponse
    ) -> PartitionProduceResponse:
        """As ``told``, for the batch ``records``. What is no batch of a producer is told its result."""
        if not result.error_code:
            return result
        try:
            header = read_batch_header(records)
        except KafkaBatchError:
            return result
        if header.producer_id < 0:
            return result
        return self.told((connection, topic, result.index), header, result)
