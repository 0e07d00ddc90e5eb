"""DescribeConfigs (32), IncrementalAlterConfigs (44), DescribeLogDirs (35), DeleteRecords (21)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, cast

from coordinator.log.errors import LogError, OffsetNotInLogError
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog, Topic, TopicError, check_setting_name, parse_topic_config
from coordinator.metadata.topic_config import TOPIC_SETTINGS, Value
from coordinator.server.call import Call
from coordinator.server.dispatch import STEP, ErrorTexts, Handler, Tasks
from coordinator.server.handlers.topics import answer_each, check_named_once, turn
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.configs import (
    DELETE,
    SET,
    AlterableTopicConfigs,
    AlteredTopicConfigs,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedLog,
    DescribedTopicConfigs,
    DescribedTopicLogs,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.records import (
    DeletedRecords,
    DeletedRecordsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)

log = get_logger()

_ALL_RECORDS: Final = -1


class TopicConfigHandlers:
    """Shows and changes what topics are told, and what their logs hold."""

    def __init__(self, catalog: Catalog, partitions: LogManager, tasks: Tasks) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._tasks = tasks

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {
            DescribeConfigsRequest: self.describe_configs,
            DescribeLogDirsRequest: self.describe_logs,
            IncrementalAlterConfigsRequest: self.alter_configs,
            DeleteRecordsRequest: self.delete_records,
        }

    def describe_configs(self, call: Call) -> Iterator[None]:
        """Answers with what holds for topics."""
        request = cast("DescribeConfigsRequest", call.request)
        results, texts = list[DescribedTopicConfigs](), ErrorTexts()
        for name in dict.fromkeys(request.topic_names):  # a name given twice is answered once
            if len(results) % STEP == STEP - 1:
                yield
            try:
                results.append(self._described(self._catalog.topic(name)))
            except TopicError as error:
                results.append(DescribedTopicConfigs(name, error.code, texts(str(error))))
        call.answer(DescribeConfigsResponse(tuple(results)))

    def describe_logs(self, call: Call) -> Iterator[None]:
        """Answers with what the logs of topics hold."""
        request = cast("DescribeLogDirsRequest", call.request)
        results, texts = list[DescribedTopicLogs](), ErrorTexts()
        done = 0
        for name in dict.fromkeys(request.topic_names):
            logs = list[DescribedLog]()
            code, text = ErrorCode.NONE, ""
            try:
                topic = self._catalog.topic(name)
            except TopicError as error:
                code, text, partitions = error.code, texts(str(error)), 0
            else:
                partitions = len(topic.partitions)
            for index in range(max(1, partitions)):
                done += 1
                if done % STEP == 0:
                    yield
                if partitions:
                    logs.append(self._described_log(topic, index))
            results.append(DescribedTopicLogs(name, code, text, tuple(logs)))
        call.answer(DescribeLogDirsResponse(tuple(results)))

    def alter_configs(self, call: Call) -> None:
        """Changes settings; open logs have them when the answer leaves."""
        self._tasks.start_change(call, self._alter_all(call))

    def delete_records(self, call: Call) -> None:
        """Moves the start of logs; durably when the answer leaves."""
        self._tasks.start_change(call, self._delete_all(call))

    def _described(self, topic: Topic) -> DescribedTopicConfigs:
        config = self._catalog.config(topic)
        values = tuple(
            DescribedConfig(name, str(getattr(config, name.replace(".", "_"))), name not in topic.config)
            for name in TOPIC_SETTINGS
        )
        return DescribedTopicConfigs(topic.name, ErrorCode.NONE, "", values)

    def _described_log(self, topic: Topic, index: int) -> DescribedLog:
        if not self._partitions.is_created(topic.name, index):
            return DescribedLog(index, ErrorCode.NONE, "", 0, 0, 0, 0, 0)
        try:
            opened = self._partitions.find(topic, index)
        except TopicError as error:
            return DescribedLog(index, error.code, str(error))
        return DescribedLog(
            index,
            ErrorCode.NONE,
            "",
            opened.start_offset,
            opened.high_watermark,
            opened.size,
            opened.segment_count,
            round(100 * opened.dirty_ratio),
            opened.fault,
        )

    async def _alter_all(self, call: Call) -> None:
        request = cast("IncrementalAlterConfigsRequest", call.request)
        names = Counter(resource.name for resource in request.resources)

        async def alter(wanted: AlterableTopicConfigs, deadline: float) -> AlteredTopicConfigs:
            check_named_once(names, wanted.name)
            changes = _parsed(wanted)
            async with turn(self._catalog.lock, wanted.name, deadline):
                topic = self._catalog.topic(wanted.name)
                if topic.internal:
                    raise TopicError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION,
                        f"topic {wanted.name!r} is internal: its settings are the daemon's (offsets_segment_bytes)",
                    )
                altered = self._catalog.draft_config(topic, changes)
                if not request.validate_only and altered != topic:
                    await self._catalog.commit(altered)
                    log.info("topic settings changed", topic=wanted.name, settings=dict(altered.config))
            return AlteredTopicConfigs(wanted.name, ErrorCode.NONE)

        await answer_each(
            self._tasks, call, request.resources, request.timeout_ms, alter,
            lambda wanted, code, message: AlteredTopicConfigs(wanted.name, code, message), IncrementalAlterConfigsResponse,
        )  # fmt: skip

    async def _delete_all(self, call: Call) -> None:
        request = cast("DeleteRecordsRequest", call.request)
        asked = [(topic.name, ask) for topic in request.topics for ask in topic.partitions]

        async def delete(wanted: tuple[str, DeleteRecordsPartition], deadline: float) -> DeletedRecords:
            return await self._delete(*wanted, deadline)

        def refusal(wanted: tuple[str, DeleteRecordsPartition], code: ErrorCode, text: str) -> DeletedRecords:
            return DeletedRecords(wanted[1].partition_index, -1, code, text)

        def response(results: tuple[DeletedRecords, ...]) -> DeleteRecordsResponse:
            left = iter(results)
            return DeleteRecordsResponse(
                tuple(
                    DeletedRecordsTopic(topic.name, tuple(islice(left, len(topic.partitions))))
                    for topic in request.topics
                )
            )

        await answer_each(self._tasks, call, asked, request.timeout_ms, delete, refusal, response)

    async def _delete(self, name: str, ask: DeleteRecordsPartition, deadline: float) -> DeletedRecords:
        index = ask.partition_index
        try:
            topic = self._catalog.topic(name)
            if topic.internal:
                raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and keeps its records")
            if not self._catalog.config(topic).delete:
                raise TopicError(
                    ErrorCode.POLICY_VIOLATION,
                    f"topic {name!r} is compacted only (cleanup.policy): its records go when their keys are written again. "
                    "Write tombstones, or set cleanup.policy=compact,delete",
                )
            opened = self._partitions.find(topic, index)
            offset = opened.high_watermark if ask.offset == _ALL_RECORDS else ask.offset
            if offset < 0:
                raise TopicError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is neither one nor -1 (all)")
            if asyncio.get_running_loop().time() >= deadline:
                raise TopicError(ErrorCode.REQUEST_TIMED_OUT, "other partitions took all the time; nothing was deleted")
            start = await opened.delete_before(offset)
        except TopicError as error:
            raise TopicError(error.code, f"{name[:60]}-{index}: {error}") from error
        except OffsetNotInLogError as error:
            message = f"{name}-{index} ends at offset {error.end}, so nothing was deleted below {error.offset}"
            raise TopicError(ErrorCode.OFFSET_OUT_OF_RANGE, message) from error
        except (LogError, OSError) as error:
            raise TopicError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{index}: {error}") from error
        log.info("records deleted", topic=name, partition=index, log_start_offset=start)
        return DeletedRecords(index, start, ErrorCode.NONE)


def _parsed(wanted: AlterableTopicConfigs) -> dict[str, Value | None]:
    """The changes by setting, None for one that goes back to the daemon's. Raises ``TopicError``."""
    changes: dict[str, Value | None] = {}
    for entry in wanted.configs:
        if entry.name in changes:
            raise TopicError(ErrorCode.INVALID_CONFIG, f"{entry.name[:60]} is named twice")
        if entry.config_operation not in (SET, DELETE):
            raise TopicError(
                ErrorCode.INVALID_CONFIG,
                f"operation {entry.config_operation} on {entry.name[:60]} is unknown: use 0 (set) or 1 (delete)",
            )
        if entry.config_operation == SET:
            changes |= parse_topic_config({entry.name: entry.value or ""})
        else:
            check_setting_name(entry.name)
            changes[entry.name] = None
    return changes
