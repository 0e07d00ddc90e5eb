"""StageOffsets: a member says what the next batch of its group reads, and a transaction commits just that.

For programs whose batches are planned in one place and committed in another, such as a query of Spark: the source stages
what it reads under the batch's number, and whoever commits the outputs sends TxnOffsetCommit with ``staged``. The offsets
move from the staged start to the staged end, or the commit is refused: then somebody else has moved them, or the member is
gone, and the outputs are of other records than those that the group goes on after.
"""

from __future__ import annotations

from coordinator.groups.config import GroupStep, Topics
from coordinator.groups.group import Group, Groups, clipped
from coordinator.groups.offsets import of_another_topic, partition_fault
from coordinator.groups.records import OVERTAKEN, OffsetCommitRecord, StagedOffset, StagedOffsetsRecord
from coordinator.groups.refusals import Refusal, member_fault, unknown_group, unknown_member
from protocol.errors import ErrorCode
from protocol.messages.transactions import StageOffsetsRequest, StageOffsetsResponse, TxnOffsetCommitRequest


def stage(groups: Groups, request: StageOffsetsRequest, step: GroupStep) -> None:
    """Decides a StageOffsets, of a member in its generation only. All of it is stored, or nothing with the first fault."""
    group = groups.get(request.group_id)
    staged: dict[tuple[str, int], StagedOffset] = {}
    fault = member_fault(group, request, step) or _collect(request, groups.topics, staged, step)
    if fault is not None:
        step.reply(StageOffsetsResponse(fault.code, fault.message))
        return
    step.effects.records.append(
        StagedOffsetsRecord(
            request.group_id, request.generation_id, request.member_id, step.now.wall_ms, tuple(staged.values())
        )
    )
    step.reply(StageOffsetsResponse(ErrorCode.NONE))


def offsets_of_stage(
    group: Group | None, request: TxnOffsetCommitRequest, known: Topics, step: GroupStep
) -> list[OffsetCommitRecord] | Refusal:
    """The offsets that a TxnOffsetCommit with ``staged`` commits, or why it must not.

    A partition without a committed offset begins where the batch does. There is nothing to commit, also when the member
    is gone, for a batch that reads nothing and begins where the group is: Spark repeats such a batch without asking its
    source.
    """
    if group is None:
        return unknown_group(request.group_id)
    staged = group.staged
    if staged is None:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"the commit of what is staged for group {group.clipped_id} finds nothing staged; stage what the batch reads",
        )
    fault = _other_batch(group, staged, request)
    if fault is not None:
        return fault
    if all(_reads_nothing(group, one, known) for one in staged.offsets):
        return []
    if staged.member_id not in group.members:
        return unknown_member(group, staged.member_id)
    elsewhere = {
        (pending.topic, pending.partition): producer_id
        for producer_id, record in group.pending_offsets.items()
        if producer_id != request.producer_id
        for pending in record.offsets
        if pending.serial != OVERTAKEN
    }
    records = []
    for topic, partition, start, end, metadata, topic_id in staged.offsets:
        if (topic, partition) in elsewhere:
            return Refusal(
                ErrorCode.UNSTABLE_OFFSET_COMMIT,
                f"partition {partition} of topic {clipped(topic)} has a pending offset of producer "
                f"{elsewhere[topic, partition]} in group {group.clipped_id}; try again when its transaction has ended",
            )
        fault = _partition_fault(topic, topic_id, partition, metadata, known, step)
        fault = fault or _moved(group, topic, partition, start, known)
        if fault is not None:
            return fault
        records.append(
            OffsetCommitRecord(group.group_id, topic, partition, end, -1, metadata, step.now.wall_ms, topic_id)
        )
    return records


def _other_batch(group: Group, staged: StagedOffsetsRecord, request: TxnOffsetCommitRequest) -> Refusal | None:
    """What is staged ends elsewhere than the request expects: another program has planned another batch meanwhile."""
    expected = {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in request.topics
        for partition in topic.partitions
    }
    for topic, partition, _, end, _, _ in staged.offsets:
        if expected.get((topic, partition), end) != end:
            return Refusal(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"the batch that is staged for group {group.clipped_id} ends at offset {end} of partition {partition} of "
                f"topic {clipped(topic)}, and the one to be committed at {expected[topic, partition]}: another program has "
                f"staged a batch of its own",
            )
    return None


def _reads_nothing(group: Group, staged: StagedOffset, known: Topics) -> bool:
    """Whether a batch begins and ends with what is committed of a partition."""
    committed = group.offsets.get(staged.topic, {}).get(staged.partition)
    if committed is None or known.is_gone(staged.topic, committed[4]):
        return False
    return committed[0] == staged.start_offset == staged.end_offset


def _moved(group: Group, topic: str, partition: int, start: int, known: Topics) -> Refusal | None:
    """Another offset is committed than the one that the batch begins with."""
    committed = group.offsets.get(topic, {}).get(partition)
    if committed is None or committed[0] == start or known.is_gone(topic, committed[4]):
        return None
    return Refusal(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"the batch that is staged for group {group.clipped_id} begins at offset {start} of partition {partition} of topic "
        f"{clipped(topic)}, but {committed[0]} is committed: another program moved it, or this batch is committed already",
    )


def _collect(
    request: StageOffsetsRequest, known: Topics, staged: dict[tuple[str, int], StagedOffset], step: GroupStep
) -> Refusal | None:
    chars = 0
    for topic in request.topics:
        for partition in topic.partitions:
            index, metadata = partition.partition_index, partition.committed_metadata or ""
            fault = _partition_fault(topic.name, topic.topic_id, index, metadata, known, step)
            if fault is not None:
                return fault
            if partition.start_offset > partition.end_offset:
                return Refusal(
                    ErrorCode.INVALID_REQUEST,
                    f"the batch reads partition {index} of topic {clipped(topic.name)} from offset "
                    f"{partition.start_offset} to {partition.end_offset}; it must not end before it begins",
                )
            chars += len(metadata)
            staged[topic.name, index] = StagedOffset(
                topic.name,
                index,
                partition.start_offset,
                partition.end_offset,
                metadata,
                known.topic_id(topic.name),
            )
    config = step.config
    if len(staged) <= config.max_pending_offsets and chars <= config.max_pending_metadata_chars:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"{len(staged)} partitions of group {clipped(request.group_id)} with {chars} characters of metadata are to be "
        f"staged; at most {config.max_pending_offsets} and {config.max_pending_metadata_chars} are allowed",
    )


def _partition_fault(
    topic: str, topic_id: str, partition: int, metadata: str, known: Topics, step: GroupStep
) -> Refusal | None:
    fault = partition_fault(topic, partition, metadata, known, step.config)
    if fault is None and topic_id not in ("", known.topic_id(topic)):
        fault = of_another_topic(topic, partition)
    return fault
