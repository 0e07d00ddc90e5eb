"""ListOffsets to the leader of each partition, in one request a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from client.errors import CohortError, LeaderNotAvailableError, UnknownTopicOrPartitionError, error_for
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.metadata import Address, Topology
from client.transport.request_limits import pieces_of
from client.transport.retry import retrying
from protocol.errors import ErrorCode
from protocol.messages.records import (
    READ_UNCOMMITTED,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.subscription import TopicPartition


async def list_offsets(
    cluster: Cluster,
    timestamps_ms: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    isolation_level: int = READ_UNCOMMITTED,
    on_found: Callable[[Mapping[TopicPartition, ListedOffset]], None] = lambda found: None,
    patient: bool = True,
) -> dict[TopicPartition, ListedOffset]:
    """The first offset at or after a timestamp in each partition; ``LATEST_TIMESTAMP`` and ``EARLIEST_TIMESTAMP`` ask for
    the ends. Offset -1 when there is none.

    Partitions whose leader is busy or has moved are asked again until the deadline, unless not ``patient``. Raises the
    first error, with all partitions that failed in its text. ``on_found`` is called with what each round has found.
    """
    cluster.track({partition.topic for partition in timestamps_ms})
    found: dict[TopicPartition, ListedOffset] = {}
    missing = dict(timestamps_ms)

    async def ask_one(asked: Mapping[TopicPartition, int]) -> list[CohortError]:
        """One leader, whose answer is taken over when it comes: another that is gone does not hold it up."""
        try:
            result = await _ask(cluster, asked, deadline, isolation_level, patient=patient)
        except CohortError as error:
            return [error]
        errors = []
        for partition, listed in result.items():
            if listed.error_code == ErrorCode.NONE:
                found[partition] = listed
                del missing[partition]
            else:
                errors.append(_failure(partition, listed))
        if len(errors) < len(result):
            on_found(found)
        return errors

    async def once() -> None:
        by_leader, failures = _by_leader(cluster, missing)
        for result in await asyncio.gather(*map(ask_one, by_leader.values()), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            failures += result
        if failures:
            await cluster.refresh(deadline)
            raise _worst(failures)

    if patient:
        await retrying(once, deadline=deadline, backoff=cluster.backoff, what="ListOffsetsRequest")
    else:
        await once()
    return found


def _failure(partition: TopicPartition, listed: ListedOffset) -> CohortError:
    name = f"{partition.topic}-{partition.partition}"
    said = listed.error_message  # which names the partition more often than not
    failure = error_for(listed.error_code, said if said.startswith(name) else f"{name}: {said}")
    failure.retriable &= listed.error_code != ErrorCode.CORRUPT_MESSAGE  # a log that is damaged stays so
    return failure


def _by_leader(
    cluster: Cluster, timestamps_ms: Mapping[TopicPartition, int]
) -> tuple[dict[Address, dict[TopicPartition, int]], list[CohortError]]:
    by_leader: dict[Address, dict[TopicPartition, int]] = {}
    failures: list[CohortError] = []
    for partition, timestamp_ms in sorted(timestamps_ms.items()):
        leader = cluster.topology.leader(partition)
        if partition.topic in cluster.topology.asked and not _exists(cluster.topology, partition):
            unknown = UnknownTopicOrPartitionError(f"{partition.topic}-{partition.partition} does not exist")
            unknown.retriable = False  # the daemon was asked: waiting does not help
            failures.append(unknown)
        elif leader is None:
            failures.append(LeaderNotAvailableError(f"{partition.topic}-{partition.partition} has no leader known"))
        else:
            by_leader.setdefault(leader, {})[partition] = timestamp_ms
    return by_leader, failures


def _exists(topology: Topology, partition: TopicPartition) -> bool:
    return partition.topic in topology.topics and 0 <= partition.partition < topology.partitions(partition.topic)


async def _ask(
    cluster: Cluster,
    timestamps_ms: Mapping[TopicPartition, int],
    deadline: Deadline,
    isolation_level: int,
    *,
    patient: bool,
) -> dict[TopicPartition, ListedOffset]:
    """Asks the one node that leads all these partitions."""
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for partition, timestamp_ms in timestamps_ms.items():
        by_topic.setdefault(partition.topic, []).append(ListOffsetsPartition(partition.partition, timestamp_ms))
    topics = tuple(ListOffsetsTopic(topic, tuple(partitions)) for topic, partitions in by_topic.items())
    connection = await cluster.connection_to_leader(next(iter(timestamps_ms)))
    answers = [
        await connection.request(piece, ListOffsetsResponse, timeout_s=cluster.attempt_s(deadline, patient=patient))
        for piece in pieces_of(ListOffsetsRequest(topics, isolation_level))
    ]
    return {
        TopicPartition(topic.name, listed.partition_index): listed
        for response in answers
        for topic in response.topics
        for listed in topic.partitions
    }


def _worst(failures: Sequence[CohortError]) -> CohortError:
    """The failure to raise: one that retrying cannot help if there is any, naming all in its text."""
    first = next((failure for failure in failures if not failure.retriable), failures[0])
    worst = type(first)("; ".join(str(failure) for failure in failures))
    worst.retriable = first.retriable
    return worst
