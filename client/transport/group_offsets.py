"""OffsetFetch and OffsetCommit as consumers and admins send them: the committed offsets of a group by partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from client.errors import CohortError, error_for
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.types.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from protocol.subscription import TopicPartition, group_by_topic


async def fetch_committed(
    cluster: Cluster,
    group_id: str,
    tps: Iterable[TopicPartition] | None,
    deadline: Deadline,
    undecided: dict[TopicPartition, CohortError] | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The group's offsets of ``tps``, all that it has committed when that is None; partitions without one are left out.

    With ``undecided`` (KIP-447) offsets that an open transaction may change are left out too, and put in there.
    """
    topics = (
        None
        if tps is None
        else tuple(OffsetFetchTopic(topic, tuple(numbers)) for topic, numbers in group_by_topic(tps).items())
    )
    response = await cluster.call_coordinator(
        group_id,
        OffsetFetchRequest(group_id, topics, require_stable=undecided is not None),
        OffsetFetchResponse,
        deadline=deadline,
    )
    if response.error_code != ErrorCode.NONE:
        raise error_for(response.error_code, f"committed offsets of group {group_id!r}: {response.error_message}")
    committed: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in response.topics:
        for found in topic.partitions:
            tp = TopicPartition(topic.name, found.partition_index)
            if found.error_code != ErrorCode.NONE:
                error = error_for(found.error_code, f"committed offset of {tp[0]}-{tp[1]} in group {group_id!r}")
                if undecided is None or found.error_code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise error
                undecided[tp] = error
            elif found.committed_offset >= 0:
                committed[tp] = OffsetAndMetadata(found.committed_offset, found.metadata, found.committed_leader_epoch)
    return committed


def offset_commit_topics(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], topic_id: Callable[[str], str] = lambda topic: ""
) -> tuple[OffsetCommitTopic, ...]:
    """Offsets as OffsetCommit has them, sorted. ``topic_id`` gives the id of the topic that they belong to, "" for any."""
    by_topic: dict[str, list[OffsetCommitPartition]] = {}
    for (topic, partition), committed in sorted(offsets.items()):
        entry = OffsetCommitPartition(partition, committed.offset, committed.leader_epoch, committed.metadata)
        by_topic.setdefault(topic, []).append(entry)
    return tuple(OffsetCommitTopic(topic, tuple(partitions), topic_id(topic)) for topic, partitions in by_topic.items())
