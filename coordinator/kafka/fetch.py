"""Fetch for Kafka's readers: batches leave as Kafka's, whoever wrote them.

There are no fetch sessions (KIP-227): every answer has session id 0, upon which clients send full requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.server.call import Steps
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchError
from protocol.kafka.conversion import Pieces, kafka_batches, largest_columns
from protocol.kafka.messages.fetch_request import FetchRequest
from protocol.kafka.messages.fetch_response import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from protocol.messages import records as native

_FULL: Final = (0, -1)
"""Epochs of a session with which a request names all partitions: to begin one, and to be in none (KIP-227). The id of a
session that is given with one is of a session to give up, and so of none here: kafka-go always gives -1."""
_LEADERS_SINCE: Final = 12
"""The version of Fetch whose answer names leaders, and where logs part (KIP-595)."""
_SESSIONS_SINCE: Final = 7
_ZSTD_SINCE: Final = 10
_BYTES_PER_STEP: Final = 64 * 1024
_CONVERTED_ON_LOOP_BYTES: Final = 512 * 1024
"""Columns that become Kafka's records in one step: two to three ms."""


class _Fetch:
    """Records of partitions; as a long poll, once there are enough."""

    def __init__(self, node: KafkaNode) -> None:
        self._tasks = node.node.tasks
        self._handle = node.handlers[native.FetchRequest]

    def handle(self, call: KafkaCall) -> None:
        """Answers when there are enough records, or the time is over."""
        request: FetchRequest = call.message
        if call.version >= _SESSIONS_SINCE and request.session_epoch not in _FULL:
            call.reply(FetchResponse(error_code=KafkaCode.FETCH_SESSION_ID_NOT_FOUND))
            return
        asked = native.FetchRequest(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            tuple(
                native.FetchTopic(
                    topic.topic,
                    tuple(
                        native.FetchPartition(
                            each.partition,
                            each.fetch_offset,
                            each.partition_max_bytes,
                            each.current_leader_epoch,
                            each.last_fetched_epoch,
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
            request.isolation_level,
            kafka_batches=True,
        )

        def told(response: native.FetchResponse) -> None:
            work = self._answer(call, response)
            for waits_for in work:
                self._tasks.start(call, self._go_on(call, work, waits_for))
                return

        call.ask(self._handle, asked, told)

    async def _go_on(self, call: KafkaCall, work: Steps, waits_for: asyncio.Future[None] | None) -> None:
        while True:
            if waits_for is None:
                await self._tasks.next_step(call)
            else:
                await asyncio.wait([waits_for])
            try:
                waits_for = next(work)
            except StopIteration:
                return

    def _answer(self, call: KafkaCall, response: native.FetchResponse) -> Steps:
        """Makes Kafka's batches of all that was read, in steps, and answers."""
        request: FetchRequest = call.message
        room, topics = _Room(request.max_bytes, call.version), []
        for topic in response.responses:
            partitions = []
            for read in topic.partitions:
                records = b""
                if read.records:
                    made = yield from room.made(read.records)
                    if isinstance(made, KafkaBatchError):
                        read = replace(read, error_code=made.code)
                    else:
                        records = made
                partitions.append(_fetched(read, records, call.version))
            topics.append(FetchableTopicResponse(topic.topic, partitions=partitions))
        call.reply(FetchResponse(error_code=response.error_code, responses=topics))


class _Room:
    """What one answer may still hold: of batches that were compressed less may fit than was read."""

    def __init__(self, max_bytes: int, version: int) -> None:
        self._left = max_bytes
        self._is_empty = True
        self._reads_zstd = version >= _ZSTD_SINCE
        self._done = 0

    def made(self, records: bytes) -> Generator[asyncio.Future[None] | None, None, bytes | KafkaBatchError]:
        """Kafka's batches of the first of ``records``, as many as there is room for, the first of the answer in any case.

        What does not fit is fetched again, as is what comes before a batch that cannot be read. Where a batch is large that
        has to be converted, a thread does it.
        """
        pieces: Pieces = []
        batches = kafka_batches(records, zstd=self._reads_zstd)
        in_thread = largest_columns(records) > _CONVERTED_ON_LOOP_BYTES
        converted: list[Pieces | None] = []

        def convert() -> None:
            converted.append(next(batches, None))

        while True:
            try:
                if in_thread:
                    converting = asyncio.get_running_loop().run_in_executor(None, convert)
                    yield converting
                    converting.result()
                else:
                    convert()
            except KafkaBatchError as error:
                if not pieces:
                    return error
                break
            batch = converted.pop()
            if batch is None:
                break
            size = sum(map(len, batch))
            if size > self._left and not self._is_empty:
                self._left = 0
                break
            pieces += batch
            self._is_empty = False
            self._left -= size
            self._done += size
            if self._done >= _BYTES_PER_STEP:
                self._done = 0
                yield None
        return b"".join(pieces)


def fetch(node: KafkaNode) -> Translator:
    """See ``_Fetch``."""
    return Translator(FetchRequest, _Fetch(node).handle, _fetched_not)


def _fetched(read: native.FetchedPartition, records: bytes, version: int) -> PartitionData:
    data = PartitionData(
        read.partition_index,
        read.error_code,
        read.high_watermark,
        read.last_stable_offset,
        read.log_start_offset,
        records=records,
    )
    if version >= _LEADERS_SINCE:
        if read.diverging_epoch >= 0:
            data.diverging_epoch = EpochEndOffset(read.diverging_epoch, read.diverging_end)
        if read.current_leader_id >= 0:
            data.current_leader = LeaderIdAndEpoch(read.current_leader_id, read.current_leader_epoch)
    return data


def _fetched_not(request: FetchRequest, version: int, code: ErrorCode, text: str) -> FetchResponse:
    return FetchResponse(
        error_code=code if version >= _SESSIONS_SINCE else 0,
        responses=[
            FetchableTopicResponse(
                topic.topic,
                partitions=[PartitionData(each.partition, code, -1, records=b"") for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )
