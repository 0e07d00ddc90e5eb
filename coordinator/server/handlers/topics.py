"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog, Topic, TopicError, parse_topic_config
from coordinator.partitions import Partitions
from coordinator.server.connection import Call
from coordinator.server.dispatch import Handler, Tasks
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.topics import (
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicPartitionCount,
    TopicResult,
)

log = get_logger()


class TopicHandlers:
    """Changes topics, one request at a time. A change once begun goes on when its client hangs up."""

    def __init__(self, catalog: Catalog, partitions: Partitions, tasks: Tasks, default_partitions: int) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._tasks = tasks
        self._default_partitions = default_partitions

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {
            CreateTopicsRequest: lambda call: self._start(call, self._create_all(call)),
            DeleteTopicsRequest: lambda call: self._start(call, self._delete_all(call)),
            CreatePartitionsRequest: lambda call: self._start(call, self._grow_all(call)),
        }

    def _start(self, call: Call, work: object) -> None:
        self._tasks.start(call, work)  # type: ignore[arg-type]
        call.on_abandon = None

    async def _create_all(self, call: Call) -> None:
        request = cast("CreateTopicsRequest", call.request)
        names = Counter(topic.name for topic in request.topics)
        results = []
        for topic in request.topics:
            if names[topic.name] > 1:
                message = f"topic {topic.name[:60]!r} is named {names[topic.name]} times in one request"
                results.append(CreatedTopic(topic.name, ErrorCode.INVALID_REQUEST, message))
            else:
                results.append(await self._create(topic, request.validate_only))
        call.answer(CreateTopicsResponse(tuple(results)))

    async def _create(self, wanted: CreatableTopic, validate_only: bool) -> CreatedTopic:
        partitions = self._default_partitions if wanted.num_partitions == -1 else wanted.num_partitions
        async with self._catalog.lock:
            try:
                self._catalog.check_new(wanted.name, partitions, wanted.replication_factor)
                config = parse_topic_config({entry.name: entry.value for entry in wanted.configs})
                if validate_only:
                    return CreatedTopic(wanted.name, ErrorCode.NONE, num_partitions=partitions)
                topic = self._catalog.draft(wanted.name, partitions, config)
                await self._make(topic, range(partitions))
            except TopicError as error:
                return CreatedTopic(wanted.name, error.code, str(error))
            except OSError as error:
                return CreatedTopic(wanted.name, ErrorCode.KAFKA_STORAGE_ERROR, f"topic {wanted.name!r}: {error}")
        log.info("topic created", topic=wanted.name, partitions=partitions)
        return CreatedTopic(wanted.name, ErrorCode.NONE, "", topic.topic_id, partitions)

    async def _make(self, topic: Topic, fresh: range) -> None:
        """Logs first, so that a partition that clients can see has one; without the metadata the logs go again."""
        try:
            await self._partitions.open(topic, fresh)
            await self._catalog.commit(topic)
        except BaseException:
            await self._partitions.delete(topic, fresh)
            raise

    async def _delete_all(self, call: Call) -> None:
        request = cast("DeleteTopicsRequest", call.request)
        call.answer(DeleteTopicsResponse(tuple([await self._delete(name) for name in request.topic_names])))

    async def _delete(self, name: str) -> TopicResult:
        async with self._catalog.lock:
            try:
                topic = self._catalog.topic(name)
                if topic.internal:
                    raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and stays")
                await self._catalog.begin_deletion(topic)
                await self._partitions.delete(topic, range(len(topic.partitions)))
                await self._catalog.end_deletion(topic.topic_id)
            except TopicError as error:
                return TopicResult(name, error.code, str(error))
            except OSError as error:
                return TopicResult(name, ErrorCode.KAFKA_STORAGE_ERROR, f"topic {name!r}: {error}")
        log.info("topic deleted", topic=name)
        return TopicResult(name, ErrorCode.NONE)

    async def _grow_all(self, call: Call) -> None:
        request = cast("CreatePartitionsRequest", call.request)
        results = [await self._grow(wanted, request.validate_only) for wanted in request.topics]
        call.answer(CreatePartitionsResponse(tuple(results)))

    async def _grow(self, wanted: TopicPartitionCount, validate_only: bool) -> TopicResult:
        async with self._catalog.lock:
            try:
                topic = self._catalog.check_growth(wanted.name, wanted.count)
                if validate_only:
                    return TopicResult(wanted.name, ErrorCode.NONE)
                grown = self._catalog.draft_growth(topic, wanted.count)
                await self._make(grown, range(len(topic.partitions), wanted.count))
            except TopicError as error:
                return TopicResult(wanted.name, error.code, str(error))
            except OSError as error:
                return TopicResult(wanted.name, ErrorCode.KAFKA_STORAGE_ERROR, f"topic {wanted.name!r}: {error}")
        log.info("partitions added", topic=wanted.name, partitions=wanted.count)
        return TopicResult(wanted.name, ErrorCode.NONE)
