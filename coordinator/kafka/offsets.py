"""Offsets of Kafka's clients: OffsetCommit, OffsetFetch, OffsetDelete, ListOffsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.groups import group_handler
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.server.call import StepsLeft
from protocol.errors import ErrorCode
from protocol.kafka.messages.list_offsets_request import ListOffsetsRequest
from protocol.kafka.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from protocol.kafka.messages.offset_commit_request import OffsetCommitRequest
from protocol.kafka.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from protocol.kafka.messages.offset_delete_request import OffsetDeleteRequest
from protocol.kafka.messages.offset_delete_response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from protocol.kafka.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.kafka.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from protocol.messages import offsets as native
from protocol.messages import records as native_records

_GROUPS_SINCE: Final = 8
"""The version of OffsetFetch with several groups (KIP-709)."""
_ERROR_SINCE: Final = 2
"""The version of OffsetFetch whose answer has an error of the whole."""


def offset_commit(node: KafkaNode) -> Translator:
    """Stores offsets of a group."""
    handler = group_handler(node, native.OffsetCommitRequest)

    def handle(call: KafkaCall) -> None:
        request: OffsetCommitRequest = call.message
        asked = native.OffsetCommitRequest(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            tuple(
                native.OffsetCommitTopic(
                    topic.name,
                    tuple(
                        native.OffsetCommitPartition(
                            each.partition_index,
                            each.committed_offset,
                            each.committed_leader_epoch,
                            each.committed_metadata,
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )
        call.ask(handler, asked, lambda response: call.reply(_committed(response)))

    return Translator(OffsetCommitRequest, handle, _committed_not)


def _committed(response: native.OffsetCommitResponse) -> OffsetCommitResponse:
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                OffsetCommitResponsePartition(each.partition_index, each.error_code) for each in topic.partitions
            ],
        )
        for topic in response.topics
    ]
    return OffsetCommitResponse(topics=topics)


def _committed_not(request: OffsetCommitRequest, version: int, code: ErrorCode, text: str) -> OffsetCommitResponse:
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            partitions=[OffsetCommitResponsePartition(each.partition_index, code) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)


class _OffsetFetch:
    """Committed offsets of groups."""

    def __init__(self, node: KafkaNode) -> None:
        self._handle = group_handler(node, native.OffsetFetchRequest)

    def handle(self, call: KafkaCall) -> StepsLeft:
        """Answers when those of every group are there."""
        request: OffsetFetchRequest = call.message
        if call.version < _GROUPS_SINCE:
            self._ask(call, request.group_id, request.topics, lambda response: call.reply(_of_one(call, response)))
            return None
        groups = {group.group_id: group for group in request.groups}  # a group given twice is answered once
        found: dict[str, OffsetFetchResponseGroup] = {}
        if not groups:
            call.reply(OffsetFetchResponse())

        def told(group_id: str, response: native.OffsetFetchResponse) -> None:
            found[group_id] = _of_group(group_id, response)
            if len(found) == len(groups):
                call.reply(OffsetFetchResponse(groups=[found[each] for each in groups]))

        def ask(group: OffsetFetchRequestGroup) -> None:
            self._ask(call, group.group_id, group.topics, partial(told, group.group_id))

        return call.ask_for_each(groups.values(), ask)

    def _ask(
        self,
        call: KafkaCall,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
        told: Callable[[native.OffsetFetchResponse], None],
    ) -> None:
        request: OffsetFetchRequest = call.message
        asked = native.OffsetFetchRequest(
            group_id,
            None
            if topics is None
            else tuple(native.OffsetFetchTopic(topic.name, tuple(topic.partition_indexes)) for topic in topics),
            request.require_stable,
        )
        call.ask(self._handle, asked, told)


def offset_fetch(node: KafkaNode) -> Translator:
    """See ``_OffsetFetch``."""
    return Translator(OffsetFetchRequest, _OffsetFetch(node).handle, _fetched_not)


def _of_one(call: KafkaCall, response: native.OffsetFetchResponse) -> OffsetFetchResponse:
    if response.error_code:
        return _fetched_not(call.message, call.version, ErrorCode(response.error_code), response.error_message)
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in response.topics
    ]
    return OffsetFetchResponse(topics=topics)


def _of_group(group_id: str, response: native.OffsetFetchResponse) -> OffsetFetchResponseGroup:
    topics = [
        OffsetFetchResponseTopics(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartitions(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in response.topics
    ]
    return OffsetFetchResponseGroup(group_id, topics, response.error_code)


def _fetched_not(request: OffsetFetchRequest, version: int, code: ErrorCode, text: str) -> OffsetFetchResponse:
    if version >= _GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group.group_id, error_code=code) for group in request.groups]
        )
    # From version 2 on Kafka tells the error of the whole, and no partitions. aiokafka does not look there, takes them for
    # partitions without an offset, and begins anew.
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [OffsetFetchResponsePartition(index, -1, -1, "", code) for index in topic.partition_indexes],
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(topics=topics, error_code=code if version >= _ERROR_SINCE else 0)


def offset_delete(node: KafkaNode) -> Translator:
    """Committed offsets go, of topics that no member subscribes to (KIP-496)."""
    handler = group_handler(node, native.OffsetDeleteRequest)

    def handle(call: KafkaCall) -> None:
        request: OffsetDeleteRequest = call.message
        topics = tuple(
            native.OffsetDeleteTopic(topic.name, tuple(each.partition_index for each in topic.partitions))
            for topic in request.topics
        )
        asked = native.OffsetDeleteRequest(request.group_id, topics)
        call.ask(handler, asked, lambda response: call.reply(_offsets_deleted(response)))

    def refusal(request: OffsetDeleteRequest, version: int, code: ErrorCode, text: str) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(code)

    return Translator(OffsetDeleteRequest, handle, refusal)


def _offsets_deleted(response: native.OffsetDeleteResponse) -> OffsetDeleteResponse:
    topics = [
        OffsetDeleteResponseTopic(
            topic.name,
            [OffsetDeleteResponsePartition(each.partition_index, each.error_code) for each in topic.partitions],
        )
        for topic in response.topics
    ]
    return OffsetDeleteResponse(response.error_code, topics=topics)


_LEADER_EPOCH_SINCE: Final = 4
"""The version of ListOffsets whose answer has leader epochs (KIP-320)."""
_NOT_AVAILABLE_SINCE: Final = 5
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5


def list_offsets(node: KafkaNode) -> Translator:
    """Offsets by time, and the ends of logs.

    All of a log is on this disk: its earliest local offset is its earliest one (KIP-405), and there is no latest one
    elsewhere (KIP-1005), which is answered as a time that no record has.
    """
    handler = node.handlers[native_records.ListOffsetsRequest]

    def handle(call: KafkaCall) -> None:
        request: ListOffsetsRequest = call.message
        asked = native_records.ListOffsetsRequest(
            tuple(
                native_records.ListOffsetsTopic(
                    topic.name,
                    tuple(
                        native_records.ListOffsetsPartition(
                            each.partition_index, _TIMES.get(each.timestamp, each.timestamp), each.current_leader_epoch
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
            request.isolation_level,
        )
        call.ask(handler, asked, lambda response: call.reply(_listed(response, call.version)))

    return Translator(ListOffsetsRequest, handle, _listed_not)


_TIMES: Final = {_EARLIEST_LOCAL: native_records.EARLIEST_TIMESTAMP, _LATEST_TIERED: 2**63 - 1}


def _listed(response: native_records.ListOffsetsResponse, version: int) -> ListOffsetsResponse:
    topics = [
        ListOffsetsTopicResponse(
            topic.name,
            [
                ListOffsetsPartitionResponse(
                    each.partition_index,
                    _code(each.error_code, version),
                    each.timestamp,
                    each.offset,
                    each.leader_epoch if version >= _LEADER_EPOCH_SINCE else -1,
                )
                for each in topic.partitions
            ],
        )
        for topic in response.topics
    ]
    return ListOffsetsResponse(topics=topics)


def _code(code: int, version: int) -> int:
    """A new leader that does not know the end of its log yet has a code of its own in later versions (KIP-207)."""
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < _NOT_AVAILABLE_SINCE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code


def _listed_not(request: ListOffsetsRequest, version: int, code: ErrorCode, text: str) -> ListOffsetsResponse:
    topics = [
        ListOffsetsTopicResponse(
            topic.name, [ListOffsetsPartitionResponse(each.partition_index, code) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)
