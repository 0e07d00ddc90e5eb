"""Batches that come behind one that was refused for now: they are refused for now as well.

An idempotent producer has up to five requests under way. When the first is refused because the partition has no leader here
yet, or too few replicas, and the next one arrives when it has, the sequence of that one does not come next. Kafka tells it
OUT_OF_ORDER_SEQUENCE_NUMBER, or UNKNOWN_PRODUCER_ID at the beginning. librdkafka then begins a new epoch for all of its
partitions, and sends what has no answer yet again under that: records that the log has under the old epoch are in it twice,
with ``enable.idempotence``. A batch behind the refused one is told here what that was told. Every client sends both
again in their order.

Only batches of the same connection are behind it: they were under way together. Each of them is told so once for each time
that the first is refused, so that a gap of another cause is told at the second attempt at the latest. The first is over when
it is taken, or one behind it is. One behind it that is refused by itself for the second time is the first from then on: a
producer sends the first again before, so another node has taken that meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final, NamedTuple

from coordinator.kafka.transactions import NOT_NOW
from coordinator.server.call import Call
from coordinator.server.handlers.produce import Slot
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchError, KafkaBatchHeader, read_batch_header
from protocol.messages.records import PartitionProduceResponse, TopicProduceData
from protocol.names import is_topic_name

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

_MOST_BEHIND: Final = 64
"""Batches that are told so between two refusals of the first: many times what clients have under way (5 at most)."""
_HALF: Final = 1 << 30
"""Sequences from one to another that come behind it: half of those there are, as they begin anew after the last."""

_Place = tuple[int, int, int, str, int]
"""Number of the connection, producer id and epoch, name of the topic or its id in hex, and partition."""


class _Refused(NamedTuple):
    """The first batch of those under way that was refused for now, what it was told, and the batches that were told so."""

    sequence: int
    code: ErrorCode
    behind: set[int]

    def is_before(self, sequence: int) -> bool:
        """Whether a batch with this sequence comes behind it."""
        return 0 < (sequence - self.sequence) % (2 * _HALF) < _HALF

    def explains(self, sequence: int) -> bool:
        """Whether a batch with this sequence is refused for its sake, and was not told so since."""
        return self.is_before(sequence) and sequence not in self.behind and len(self.behind) < _MOST_BEHIND


class RefusedBatches:
    """Remembers what was refused for now, and looks at results before they are told."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._first: OrderedDict[_Place, _Refused] = OrderedDict()
        self._places: dict[int, set[_Place]] = {}
        """Of connections, by number."""

    def __len__(self) -> int:
        return len(self._first)

    def forget(self, connection: int) -> None:
        """A connection has ended: nothing is under way on it."""
        for place in self._places.pop(connection, ()):
            del self._first[place]

    def told(
        self, place: tuple[int, str, int], header: KafkaBatchHeader, result: PartitionProduceResponse
    ) -> PartitionProduceResponse:
        """What a batch is told whose result is ``result``.

        ``place`` has the connection's number, the topic by name or id, as its requests do, and the partition.
        """
        connection, topic, index = place
        key = connection, header.producer_id, header.producer_epoch, topic, index
        first, code, sequence = self._first.get(key), ErrorCode(result.error_code), header.base_sequence
        if code in _GAP and first is not None and first.explains(sequence):
            first.behind.add(sequence)
            text = f"a batch before this one was refused ({first.code.name}): send that again, then this"
            if not result.error_message:  # the answer has no room for texts
                text = ""
            return replace(result, error_code=first.code, error_message=text)
        if code in FOR_NOW:
            if first is not None and first.explains(sequence):
                first.behind.add(sequence)
            elif is_topic_name(topic):
                self._remember(key, _Refused(sequence, code, set()))
        elif not code and first is not None and (sequence == first.sequence or first.is_before(sequence)):
            self._drop(key)
        return result

    def in_order(self, call: Call, asked: TopicProduceData, records: bytes, slot: Slot) -> Slot:
        """The place for the result of the batch ``records``, which is told what ``told`` says."""
        topic = asked.topic_id or asked.name

        def looked_at(result: PartitionProduceResponse) -> None:
            if call.open:  # or the client is gone, and what is remembered of it
                result = self.looked_at(call.connection.number, topic, records, result)
            slot(result)

        return looked_at

    def looked_at(
        self, connection: int, topic: str, records: bytes, result: PartitionProduceResponse
    ) -> PartitionProduceResponse:
        """As ``told``, for the batch ``records``. What is no batch of a producer is told its result."""
        if not result.error_code and connection not in self._places:
            return result
        try:
            header = read_batch_header(records)
        except KafkaBatchError:
            return result
        if header.producer_id < 0:
            return result
        return self.told((connection, topic, result.index), header, result)

    def _remember(self, place: _Place, refused: _Refused) -> None:
        self._first[place] = refused
        self._first.move_to_end(place)
        self._places.setdefault(place[0], set()).add(place)
        if len(self._first) > self._most:
            self._drop(next(iter(self._first)))

    def _drop(self, place: _Place) -> None:
        del self._first[place]
        places = self._places[place[0]]
        places.remove(place)
        if not places:
            del self._places[place[0]]
