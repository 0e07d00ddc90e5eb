"""OffsetCommit and OffsetFetch: the group as a store of offsets.

It keeps what it is told and is no judge: offsets may fall, leader epochs are not compared, and also a negative offset is
stored, although readers take -1 for "none" and begin where they are told to for lack of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from coordinator.groups.config import GroupConfig, GroupStep, Topics
from coordinator.groups.group import Group, Groups, clipped, counted
from coordinator.groups.rebalance import renew_session
from coordinator.groups.records import (
    OVERTAKEN,
    CommittedOffset,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    PendingOffset,
    PendingOffsetsRecord,
)
from coordinator.groups.refusals import Refusal, error_response, group_id_fault, member_fault
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import Effects
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    CommittedPartition,
    CommittedTopic,
    FetchedOffset,
    FetchedOffsetTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.transactions import TxnOffsetCommitRequest

Gone = Callable[[str, str], bool]
"""Whether the topic of a name and an id has been deleted, also when another has its name now; the id is "" if unknown."""

_MAX_UTF8_BYTES_PER_CHAR: Final = 4
_SLICE_WORK: Final = 5_000
"""Offsets that are looked at and stay in one slice of ``forget_topics``: about a ms."""
_WORK_PER_TOMBSTONE: Final = 5

_MAX_MESSAGES: Final = 100
"""So many partitions of one answer say what was wrong with them: an answer must not become many times its request."""


def commit(groups: Groups, request: OffsetCommitRequest, step: GroupStep) -> None:
    """Decides an OffsetCommit. A fault of the member refuses all partitions, a fault of a partition only that one.

    Accepted in Stable, and in PreparingRebalance for the generation that ends; this renews the session like a heartbeat.
    Without a generation it is accepted while the group has no members (simple consumers, administrators).
    """
    group = groups.get(request.group_id)
    fault = _commit_fault(group, request, step)
    if fault is not None:
        step.reply(error_response(request, fault.code, fault.message))
        return
    if group is not None:
        member = group.members.get(request.member_id)
        if member is not None:
            renew_session(member, step)
    records, topics, message = judged(request, groups.topics, step)
    step.effects.records.extend(records)
    if group is not None and group.pending_offsets:
        overtake(group, {record[1:3] for record in records}, step)
    step.reply(OffsetCommitResponse(topics, message))


def judged(
    request: OffsetCommitRequest | TxnOffsetCommitRequest, known: Topics, step: GroupStep
) -> tuple[list[OffsetCommitRecord], tuple[CommittedTopic, ...], str]:
    """The offsets of a request that may be stored, the result of each partition, and what the first fault is."""
    records: list[OffsetCommitRecord] = []
    faults = 0
    first_message = ""
    topics = []
    for topic in request.topics:
        results = []
        id_of_topic: str | None = None
        for partition in topic.partitions:
            metadata = partition.committed_metadata or ""
            fault = partition_fault(topic.name, partition.partition_index, metadata, known, step.config)
            if fault is None and id_of_topic is None:
                id_of_topic = known.topic_id(topic.name)
            if fault is None and topic.topic_id not in ("", id_of_topic):
                fault = of_another_topic(topic.name, partition.partition_index)
            if fault is None:
                results.append(_stored(partition.partition_index))
                records.append(
                    OffsetCommitRecord(
                        request.group_id,
                        topic.name,
                        partition.partition_index,
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        step.now.wall_ms,
                        id_of_topic or "",
                    )
                )
            else:
                faults += 1
                first_message = first_message or fault.message
                message = fault.message if faults <= _MAX_MESSAGES else ""
                results.append(CommittedPartition(partition.partition_index, fault.code, message))
        topics.append(CommittedTopic(topic.name, tuple(results)))
    return records, tuple(topics), first_message


@lru_cache(1024)
def _stored(partition: int) -> CommittedPartition:
    """The result of a partition whose offset is stored; the same whichever topic it is of, so it is seldom made anew."""
    return CommittedPartition(partition, ErrorCode.NONE)


def fetch_offsets(groups: Groups, request: OffsetFetchRequest, step: GroupStep) -> None:
    """Decides an OffsetFetch: what is not there is -1 and no error, neither for a partition nor for the whole group.

    What was committed for a topic that has been deleted is not there, though it may not be erased yet. A partition whose
    offset an open transaction is to commit has the last one that was decided; with ``require_stable`` it has
    UNSTABLE_OFFSET_COMMIT, so that the reader waits for the decision (KIP-447).
    """
    fault = group_id_fault(request.group_id, step.config)
    if fault is not None:
        step.reply(OffsetFetchResponse(fault.code, error_message=fault.message))
        return
    group, gone = groups.get(request.group_id), groups.topics.is_gone
    offsets = {} if group is None else group.offsets
    unstable = pending_places(group, gone) if group is not None and request.require_stable else frozenset()
    wanted: Iterable[tuple[str, Sequence[int]]]
    if request.topics is not None:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    else:
        names = offsets.keys() | {topic for topic, _ in unstable} if unstable else offsets
        present = ((name, _present(name, offsets.get(name, {}), unstable, gone)) for name in sorted(names))
        wanted = [(name, partitions) for name, partitions in present if partitions]
    topics = tuple(
        FetchedOffsetTopic(
            name,
            tuple(
                _fetched(offsets, name, partition, gone)
                if not unstable or (name, partition) not in unstable
                else FetchedOffset(partition, -1, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
                for partition in partitions
            ),
        )
        for name, partitions in wanted
    )
    step.reply(OffsetFetchResponse(ErrorCode.NONE, topics))


def _present(
    topic: str, partitions: dict[int, CommittedOffset], unstable: Collection[tuple[str, int]], gone: Gone
) -> list[int]:
    present = {partition for partition, committed in partitions.items() if not gone(topic, committed[4])}
    present.update(partition for name, partition in unstable if name == topic)
    return sorted(present)


def _fetched(offsets: dict[str, dict[int, CommittedOffset]], topic: str, partition: int, gone: Gone) -> FetchedOffset:
    committed = offsets.get(topic, {}).get(partition)
    if committed is None or gone(topic, committed[4]):
        return FetchedOffset(partition, -1)
    offset, leader_epoch, metadata, _, _ = committed
    return FetchedOffset(partition, offset, leader_epoch, metadata)


def pending_places(group: Group, gone: Gone) -> frozenset[tuple[str, int]]:
    """Topic and partition of each offset that an open transaction is to commit, but of topics that are gone."""
    if not group.pending_offsets:
        return frozenset()
    return frozenset(
        (pending.topic, pending.partition)
        for record in group.pending_offsets.values()
        for pending in record.offsets
        if pending.serial != OVERTAKEN and not gone(pending.topic, pending.topic_id)
    )


def overtake(group: Group, places: Collection[tuple[str, int]], step: GroupStep) -> None:
    """What open transactions are to commit for these topics and partitions will not take effect: something else counts.

    That is written, as the record which counts may be erased again before the transaction is decided.
    """
    for record in group.pending_offsets.values():
        write_overtaken(record, lambda pending: (pending.topic, pending.partition) in places, step.effects)


def write_overtaken(
    record: PendingOffsetsRecord, is_overtaken: Callable[[PendingOffset], bool], effects: Effects
) -> None:
    """Some of what a transaction is to commit will not take effect; nothing is written if that is known of all of it."""
    offsets = tuple(
        pending._replace(serial=OVERTAKEN) if pending.serial != OVERTAKEN and is_overtaken(pending) else pending
        for pending in record.offsets
    )
    if offsets != record.offsets:
        effects.records.append(replace(record, offsets=offsets))


def forget_topics(groups: Groups, gone: Gone, topics: Collection[str] | None) -> Iterator[Effects]:
    """See ``GroupCore.forget_topics``."""
    effects, work = Effects(), 0
    for group_id in tuple(groups):
        group = groups.get(group_id)
        if group is None:
            continue  # gone since the last slice
        work += 1 + _forget_pending(group, gone, topics, effects)
        for topic in tuple(group.offsets) if topics is None else [name for name in topics if name in group.offsets]:
            seen: dict[str, bool] = {}
            for partition in tuple(group.offsets.get(topic, ())):
                committed = group.offsets.get(topic, {}).get(partition)
                if committed is None:
                    continue
                topic_id = committed[4]
                is_gone = seen.get(topic_id)
                if is_gone is None:
                    is_gone = seen[topic_id] = gone(topic, topic_id)
                work += 1
                if is_gone:
                    work += _WORK_PER_TOMBSTONE
                    effects.records.append(OffsetCommitTombstone(group_id, topic, partition))
                if work >= _SLICE_WORK:
                    yield effects
                    effects, work = Effects(), 0
                    seen.clear()
        if work >= _SLICE_WORK:
            yield effects
            effects, work = Effects(), 0
    yield effects


def _forget_pending(group: Group, gone: Gone, topics: Collection[str] | None, effects: Effects) -> int:
    """Pending offsets of topics that are gone will not take effect; returns how many it has looked at."""
    looked = 0
    for record in group.pending_offsets.values():
        looked += len(record.offsets)
        write_overtaken(
            record,
            lambda one: (topics is None or one.topic in topics) and gone(one.topic, one.topic_id),
            effects,
        )
    return looked


def _commit_fault(group: Group | None, request: OffsetCommitRequest, step: GroupStep) -> Refusal | None:
    """What refuses the whole request; a wrong member or generation is named before the state is.

    A commit without a generation is that of a simple consumer or an administrator, whatever member id it names: it is for
    groups without members.
    """
    if group is None:
        return unknown_group_fault(request, step)
    without_generation = request.generation_id < 0
    if without_generation and group.state is GroupState.EMPTY:
        return None
    if without_generation and not request.member_id and request.group_instance_id is None:
        return Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"group {group.clipped_id} has {counted(len(group.members), 'member')}, so only they commit its offsets; "
            f"stop them or use another group id",
        )
    fault = member_fault(group, request, step)
    if fault is not None:
        return fault
    if group.state is GroupState.COMPLETING_REBALANCE:
        return Refusal(
            ErrorCode.REBALANCE_IN_PROGRESS,
            f"generation {group.generation} of group {group.clipped_id} has no assignment yet "
            f"({group.rebalance_reason}); sync, then commit again",
        )
    return None


def unknown_group_fault(request: OffsetCommitRequest | TxnOffsetCommitRequest, step: GroupStep) -> Refusal | None:
    """What is wrong with a commit to a group that does not exist.

    One with a generation is refused like an old one (as Kafka does up to version 8; later it answers GROUP_ID_NOT_FOUND),
    because its sender is a member that has to join again.
    """
    fault = group_id_fault(request.group_id, step.config)
    if fault is not None or request.generation_id < 0:
        return fault
    return Refusal(
        ErrorCode.ILLEGAL_GENERATION,
        f"group {clipped(request.group_id)} is not known here, so it has no generation {request.generation_id}; join it "
        f"again, or commit without a generation",
    )


def partition_fault(topic: str, partition: int, metadata: str, known: Topics, config: GroupConfig) -> Refusal | None:
    """What keeps an offset of one partition from being stored."""
    if not known.has(topic, partition):
        return Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {partition} of topic {clipped(topic)}; its offset is not stored",
        )
    max_bytes = config.offset_metadata_max_bytes
    if len(metadata) * _MAX_UTF8_BYTES_PER_CHAR > max_bytes and len(metadata.encode()) > max_bytes:
        return Refusal(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"the metadata for partition {partition} of topic {clipped(topic)} takes "
            f"{len(metadata.encode())} bytes of at most {max_bytes}; its offset is not stored, send less",
        )
    return None


def of_another_topic(topic: str, partition: int) -> Refusal:
    """The topic id is not the one that the topic of this name has."""
    return Refusal(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {clipped(topic)} was deleted and created again: an offset of the earlier one means nothing in partition "
        f"{partition} of the new one; it is not stored",
    )
