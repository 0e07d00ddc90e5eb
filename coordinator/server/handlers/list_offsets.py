"""ListOffsets (2): the first offset of partitions, the next one, or the first from a time on."""

from __future__ import annotations

from typing import cast

from coordinator.log.errors import LogDamagedError, LogError
from coordinator.log.partition import PartitionLog
from coordinator.metadata.catalog import TopicError
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import STEP, ErrorTexts, Tasks
from coordinator.server.handlers.led_partitions import LedPartitions
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.records import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    ListedOffset,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)


def handler(node: Node) -> Handler:
    """See ``ListOffsetsHandler``."""
    return ListOffsetsHandler(LedPartitions(node.catalog, node.logs, node.membership), node.tasks).handle


class ListOffsetsHandler:
    """Finds offsets. Their leader epoch is that of the record there, at the end of a log that of its leader.

    Whoever reads on from a record and commits says that epoch with the offset. One that is too late makes librdkafka take
    what it reads next for further back: it does not commit that.
    """

    def __init__(self, led: LedPartitions, tasks: Tasks) -> None:
        self._led = led
        self._tasks = tasks

    def handle(self, call: Call) -> None:
        """Answers when the offset of each partition is found."""
        self._tasks.start(call, self._list_offsets(call))

    async def _list_offsets(self, call: Call) -> None:
        request, texts = cast("ListOffsetsRequest", call.request), ErrorTexts()
        committed = request.isolation_level == READ_COMMITTED
        topics, asked = [], 0
        for topic in request.topics:
            listed = []
            for ask in topic.partitions:
                asked += 1
                if asked % STEP == 0:
                    await self._tasks.next_step(call)
                listed.append(await self._list_one(topic.name, ask, committed, texts))
            topics.append(ListedTopic(topic.name, tuple(listed)))
        call.answer(ListOffsetsResponse(tuple(topics)))

    async def _list_one(self, name: str, ask: ListOffsetsPartition, committed: bool, texts: ErrorTexts) -> ListedOffset:
        index = ask.partition_index
        try:
            opened, epoch = self._led.find(name, index, ask.current_leader_epoch)
            if ask.timestamp != EARLIEST_TIMESTAMP:
                _check_end_is_known(opened)
            if ask.timestamp == LATEST_TIMESTAMP:
                end = opened.readable_end(committed)
                if end < opened.high_watermark:  # Kafka tells its leader's epoch, which is no record's below the end
                    epoch = opened.epochs.at(end)
                return ListedOffset(index, ErrorCode.NONE, -1, end, epoch)
            if ask.timestamp == EARLIEST_TIMESTAMP:
                start = opened.start_offset
                return ListedOffset(index, ErrorCode.NONE, -1, start, opened.epochs.at(start))
            timestamp = opened.max_timestamp if ask.timestamp == MAX_TIMESTAMP else ask.timestamp
            if ask.timestamp < MAX_TIMESTAMP:
                raise TopicError(
                    ErrorCode.INVALID_TIMESTAMP, f"timestamp {ask.timestamp} is neither a time nor -1, -2 or -3"
                )
            found = None if timestamp < 0 else await opened.offset_for_timestamp(timestamp, committed)
        except TopicError as error:
            return ListedOffset(index, error.code, error_message=texts(f"{name[:60]}-{index}: {error}"))
        except LogDamagedError as error:
            return ListedOffset(index, ErrorCode.CORRUPT_MESSAGE, error_message=texts(str(error)))
        except (LogError, OSError) as error:
            message = texts(f"{name}-{index}: {error}")
            return ListedOffset(index, ErrorCode.KAFKA_STORAGE_ERROR, error_message=message)
        if found is None:
            return ListedOffset(index, ErrorCode.NONE)
        offset, timestamp = found
        return ListedOffset(index, ErrorCode.NONE, timestamp, offset, opened.epochs.at(offset))


def _check_end_is_known(opened: PartitionLog) -> None:
    """Raises ``TopicError`` while a new leader does not know yet that nothing above its high watermark was committed."""
    leadership = opened.leadership
    if leadership is not None and not leadership.knows_high_watermark:
        raise TopicError(
            ErrorCode.OFFSET_NOT_AVAILABLE, "the leader is new and does not know the high watermark yet; try again"
        )
