"""Fetch for Kafka's readers: batches leave as Kafka's, whoever wrote them; see ``fetch_sessions`` for what is remembered.

Since version 13 topics are named by their ids (KIP-516). An id that no topic has is UNKNOWN_TOPIC_ID; INCONSISTENT_TOPIC_ID
says that the topic was made anew under its name while the request waited.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.fetch_sessions import FetchContext, FetchSessions, Key
from coordinator.kafka.kafka_node import NO_TOPIC_ID, KafkaNode
from coordinator.server.call import Steps, StepsLeft
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchError
from protocol.kafka.conversion import Pieces, kafka_batches, largest_columns
from protocol.kafka.encoding import in_pieces
from protocol.kafka.messages.fetch_request import FetchRequest
from protocol.kafka.messages.fetch_response import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from protocol.messages import records as native

_BY_ID_SINCE: Final = 13
"""The version of Fetch that names topics by id (KIP-516)."""
_LEADERS_SINCE: Final = 12
"""The version of Fetch whose answer names leaders, and where logs part (KIP-595)."""
_ENDPOINTS_SINCE: Final = 16
"""The version of Fetch whose answer says where leaders are (KIP-951)."""
_SESSIONS_SINCE: Final = 7
_ZSTD_SINCE: Final = 10
_BYTES_PER_STEP: Final = 64 * 1024
"""Of what is made for an answer, at some 5 µs a KiB."""
_BYTES_PER_BATCH: Final = 1024
"""What a batch costs that is passed on, as bytes that are made."""
_PARTITIONS_PER_STEP: Final = 1024
"""Partitions that are looked up, or whose answers without records are made, in one step: two to three ms."""
_CONVERTED_ON_LOOP_BYTES: Final = 512 * 1024
"""Columns that become Kafka's records in one step: two to three ms."""


class _Fetch:
    """Records of partitions; as a long poll, once there are enough."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._tasks = node.node.tasks
        self._handle = node.handlers[native.FetchRequest]
        self._max_bytes = node.node.settings.max_fetch_bytes
        self._sessions = FetchSessions(lambda: zlib.crc32(node.new_id().encode()) & 0x7FFFFFFF or 1)

    def handle(self, call: KafkaCall) -> StepsLeft:
        """Answers when there are enough records, or the time is over."""
        request: FetchRequest = call.message
        by_id = call.version >= _BY_ID_SINCE
        asked, forgotten = _asked(request, by_id), _forgotten(request, by_id)
        context = self._sessions.open(request.session_id, request.session_epoch, by_id, asked, forgotten, _now_ms())
        if isinstance(context, KafkaCode):
            call.reply(FetchResponse(error_code=context))
            return None
        steps = self._read(call, context)
        if len(context.partitions) > _PARTITIONS_PER_STEP:
            return steps
        for _ in steps:
            pass  # so few that there is no step between
        return None

    def _read(self, call: KafkaCall, context: FetchContext) -> Steps:
        request: FetchRequest = call.message
        reading = yield from self._found(context)
        asked = native.FetchRequest(
            0 if reading.unknown else request.max_wait_ms,  # an error is told at once, as of topics that are known
            request.min_bytes,
            request.max_bytes,
            reading.topics,
            request.isolation_level,
            kafka_batches=True,
        )

        def told(response: native.FetchResponse) -> asyncio.Task[None] | None:
            work = self._answer(call, reading, response)
            for waits_for in work:
                return self._tasks.start(call, self._go_on(call, work, waits_for))
            return None

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

    def _found(self, context: FetchContext) -> Generator[None, None, _Reading]:
        """What is asked of which topic, in the order of the context; ids that no topic has are answered already."""
        reading, asked, done = _Reading(context), list[native.FetchTopic](), 0
        for named, group in groupby(context.partitions, lambda key: key[0]):
            if done >= _PARTITIONS_PER_STEP:
                done = 0
                yield
            keys = list(group)
            done += len(keys)
            if isinstance(named, str):
                name, topic_id = named, ""
            else:
                topic = self._node.topic_of(named)
                if topic is None:
                    reading.unknown += [
                        (key, native.FetchedPartition(key[1], KafkaCode.UNKNOWN_TOPIC_ID)) for key in keys
                    ]
                    continue
                name, topic_id = topic.name, topic.topic_id
            reading.keys[name] = named
            asked.append(native.FetchTopic(name, tuple(context.partitions[key] for key in keys), topic_id))
        reading.topics = tuple(asked)
        return reading

    def _answer(self, call: KafkaCall, reading: _Reading, response: native.FetchResponse) -> Steps:
        """Makes Kafka's batches of all that was read, in steps, and answers.

        What was read and what is made of it count as unread by the client meanwhile: columns come out larger than they are
        read where they are compressed, and many conversions may be under way at once.
        """
        request: FetchRequest = call.message
        read_bytes = sum(len(each.records) for topic in response.responses for each in topic.partitions)
        room = _Room(
            min(request.max_bytes, self._max_bytes),
            call.version,
            lambda made_bytes: call.connection.prepare(read_bytes + made_bytes),
        )
        data: dict[Key, native.FetchedPartition] = dict(reading.unknown)
        for topic in response.responses:
            named = reading.keys[topic.topic]
            for read in topic.partitions:
                told = read
                if read.records:
                    made = yield from room.made(read.records)
                    if isinstance(made, KafkaBatchError):
                        told = replace(read, error_code=made.code, records=b"")
                    else:
                        told = replace(read, records=made)
                elif isinstance(named, bytes) and read.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    told = replace(read, error_code=self._code_of(named, topic.topic))
                data[named, read.partition_index] = told
                if len(data) % _PARTITIONS_PER_STEP == 0:
                    yield None
        answer = reading.context.answer(data, _now_ms())
        endpoints = list[NodeEndpoint]()
        if call.version >= _ENDPOINTS_SINCE and response.node_endpoints:
            endpoints = [NodeEndpoint(*broker) for broker in self._node.named(call, response.node_endpoints)]
        code = response.error_code or answer.error_code
        topics = _in_topics(answer.partitions, call.version)
        call.reply(FetchResponse(0, code, answer.session_id, topics, endpoints))

    def _code_of(self, topic_id: bytes, name: str) -> int:
        """Why a partition of a topic that had this id when the request came cannot be read."""
        if self._node.topic_of(topic_id) is not None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # it has no such partition
        made_anew = name in self._node.node.catalog.topics
        return KafkaCode.INCONSISTENT_TOPIC_ID if made_anew else KafkaCode.UNKNOWN_TOPIC_ID


@dataclass(slots=True)
class _Reading:
    """One request while its records are read."""

    context: FetchContext
    topics: tuple[native.FetchTopic, ...] = ()
    keys: dict[str, str | bytes] = field(default_factory=dict)
    """How the client names each topic, by its name."""
    unknown: list[tuple[Key, native.FetchedPartition]] = field(default_factory=list)
    """The answers for partitions of topics that are not there."""


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _asked(request: FetchRequest, by_id: bool) -> dict[Key, native.FetchPartition]:
    """Of a partition that is named twice the last counts."""
    return {
        (topic.topic_id if by_id else topic.topic, each.partition): native.FetchPartition(
            each.partition,
            each.fetch_offset,
            each.partition_max_bytes,
            each.current_leader_epoch,
            each.last_fetched_epoch,
        )
        for topic in request.topics
        for each in topic.partitions
    }


def _forgotten(request: FetchRequest, by_id: bool) -> list[Key]:
    return [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


def _in_topics(partitions: Mapping[Key, native.FetchedPartition], version: int) -> list[FetchableTopicResponse]:
    topics: dict[str | bytes, FetchableTopicResponse] = {}
    for (named, _), read in partitions.items():
        topic = topics.get(named)
        if topic is None:
            if isinstance(named, str):
                topic = FetchableTopicResponse(named, NO_TOPIC_ID)
            else:
                topic = FetchableTopicResponse("", named)
            topics[named] = topic
        topic.partitions.append(_fetched(read, version))
    return list(topics.values())


class _Room:
    """What one answer may still hold: of batches that were compressed less may fit than was read.

    ``hold`` is told how many bytes were made so far, those aside that are passed on as they were read.
    """

    def __init__(self, max_bytes: int, version: int, hold: Callable[[int], None]) -> None:
        self._left = max_bytes
        self._hold = hold
        self._made = 0
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
        while True:
            try:
                batch = (yield from _in_thread(batches)) if in_thread else next(batches, None)
            except KafkaBatchError as error:
                if not pieces:
                    return error
                break
            if batch is None:
                break
            size = made = 0
            for piece in batch:
                size += len(piece)
                if type(piece) is bytes:  # others are passed on as they were read
                    made += len(piece)
            if size > self._left and not self._is_empty:
                self._left = 0
                break
            pieces += batch
            self._is_empty = False
            self._left -= size
            self._made += made
            self._done += made + _BYTES_PER_BATCH
            if self._done >= _BYTES_PER_STEP:
                self._done = 0
                self._hold(self._made)
                yield None
        return in_pieces(pieces)


def _in_thread(batches: Iterator[Pieces]) -> Generator[asyncio.Future[None] | None, None, Pieces | None]:
    converted: list[Pieces | None] = []
    converting = asyncio.get_running_loop().run_in_executor(None, lambda: converted.append(next(batches, None)))
    yield converting
    converting.result()
    return converted.pop()


def fetch(node: KafkaNode) -> Translator:
    """See ``_Fetch``."""
    return Translator(FetchRequest, _Fetch(node).handle, _fetched_not)


def _fetched(read: native.FetchedPartition, version: int) -> PartitionData:
    data = PartitionData(
        read.partition_index,
        read.error_code,
        read.high_watermark,
        read.last_stable_offset,
        read.log_start_offset,
        records=read.records,
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
                topic.topic_id,
                [PartitionData(each.partition, code, -1, records=b"") for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )
