"""Offsets of a group within a transaction: TxnOffsetCommit, sent until it has a definite answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from client.errors import (
    CohortError,
    CommitFailedError,
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    ProtocolResponseError,
    RequestTimedOutError,
    StorageError,
    TransactionAbortableError,
    error_for,
)
from client.transactions.ending import Identity
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.group_offsets import offset_commit_topics
from client.types.records import GroupMetadata, OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from protocol.subscription import TopicPartition

_AGAIN = (ConcurrentTransactionsError, StorageError, RequestTimedOutError)
_OF_THE_TRANSACTION = (
    ProducerFencedError,
    TransactionAbortableError,
    InvalidProducerIdMappingError,
    InvalidProducerEpochError,
)


def checked_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets as they are sent. Raises ``TypeError`` or ``ValueError`` naming the first one that is none."""
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for taken, offset in offsets.items():
        topic, partition = _checked_partition(taken)
        found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        if not isinstance(found.offset, int) or isinstance(found.offset, bool):
            raise TypeError(f"the offset of {topic}-{partition} must be a whole number, not {found.offset!r}")
        if found.offset < 0:
            raise ValueError(f"the offset of {topic}-{partition} is {found.offset}; it must be 0 or more")
        checked[TopicPartition(topic, partition)] = found
    return checked


def _checked_partition(partition: object) -> TopicPartition:
    """A partition as it is sent: what cannot be sent fails before it counts as a failure of the transaction."""
    if not isinstance(partition, tuple) or [type(part) for part in partition] != [str, int]:
        raise TypeError(f'offsets are those of partitions such as TopicPartition("orders", 0), not of {partition!r}')
    return TopicPartition(*partition)


def checked_group(group: object) -> GroupMetadata:
    """A group as it is sent: by name, or as a consumer knows itself. Raises ``TypeError`` or ``ValueError``."""
    if isinstance(group, str):
        group = GroupMetadata(group)
    if not isinstance(group, GroupMetadata):
        raise TypeError(
            f"group_metadata is {group!r}; pass consumer.group_metadata(), or the name of a group without members"
        )
    if not isinstance(group.topic_ids, tuple):
        raise TypeError(f"topic_ids of the group_metadata are {group.topic_ids!r}; pass consumer.group_metadata()")
    if not group.group_id:
        raise ValueError("the name of the group is empty; offsets are committed for a consumer that has a group_id")
    return group


async def commit_offsets(
    cluster: Cluster,
    transactional_id: str,
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: GroupMetadata,
    deadline: Deadline,
    before_attempt: Callable[[], None],
) -> None:
    """Makes offsets part of the transaction ``identity``.

    Raises ``CommitFailedError`` with the result of each partition, or the error that ends the transaction itself.
    """
    topic_ids = dict(group.topic_ids)
    request = TxnOffsetCommitRequest(
        group.group_id, transactional_id, *identity, group.generation, group.member_id, group.group_instance_id,
        offset_commit_topics(offsets, lambda topic: topic_ids.get(topic, "")),
    )  # fmt: skip
    attempt = 0
    while True:
        answer = await cluster.call_coordinator(
            group.group_id, request, TxnOffsetCommitResponse, deadline=deadline, before_attempt=before_attempt
        )
        refused = _refused(answer)
        if not refused:
            return
        again = all(isinstance(error, _AGAIN) for error in refused.values())
        delay_s = cluster.backoff.delay_s(attempt)
        if not again or deadline.remaining_s() <= delay_s:
            raise _failed(group.group_id, offsets, refused)
        attempt += 1
        await asyncio.sleep(delay_s)


def _refused(answer: TxnOffsetCommitResponse) -> dict[TopicPartition, ProtocolResponseError]:
    refused = {
        TopicPartition(topic.name, result.partition_index): error_for(
            result.error_code or answer.error_code,
            f"{topic.name}-{result.partition_index}: {result.error_message or answer.error_message}",
        )
        for topic in answer.topics
        for result in topic.partitions
        if result.error_code or answer.error_code
    }
    if not refused and answer.error_code != ErrorCode.NONE:
        refused[TopicPartition("", -1)] = error_for(answer.error_code, answer.error_message)
    return refused


def _failed(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    refused: Mapping[TopicPartition, ProtocolResponseError],
) -> CohortError:
    first = next((error for error in refused.values() if not isinstance(error, _AGAIN)), next(iter(refused.values())))
    if isinstance(first, _OF_THE_TRANSACTION):
        return first
    failure = CommitFailedError(
        f"offsets of group {group_id!r} were not taken into the transaction: {first}",
        {tp: refused.get(tp) for tp in offsets},
    )
    failure.__cause__ = first
    return failure
