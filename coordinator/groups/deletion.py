"""DeleteGroups and OffsetDelete: what an administrator erases for good, as tombstones in the log (KIP-229, KIP-496).

A group that is deleted and made again begins at generation 1. Members of the one before are still told apart: ids of members
are unique, so that whatever they send is answered UNKNOWN_MEMBER_ID (a commit, until the group is made again,
ILLEGAL_GENERATION), and they join anew.
"""

from __future__ import annotations

from coordinator.groups.config import GroupStep, Topics
from coordinator.groups.group import Group, Groups, clipped, counted
from coordinator.groups.offsets import overtake
from coordinator.groups.records import (
    GenerationTombstone,
    GroupMetadataTombstone,
    OffsetCommitTombstone,
    PendingOffsetsTombstone,
    StagedOffsetsTombstone,
)
from coordinator.groups.refusals import Refusal, group_id_fault
from coordinator.groups.state import GroupState
from coordinator.groups.subscriptions import Subscriptions, subscriptions
from protocol.errors import ErrorCode
from protocol.messages.groups import DeletedGroup, DeleteGroupsRequest, DeleteGroupsResponse
from protocol.messages.offsets import (
    DeletedOffset,
    DeletedOffsetTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from protocol.subscription import CONSUMER_PROTOCOL_TYPE


def delete_groups(groups: Groups, request: DeleteGroupsRequest, step: GroupStep) -> None:
    """Decides a DeleteGroups: one result a group, in order. A group goes whole or not at all."""
    gone: dict[str, None] = {}
    results = []
    for group_id in request.groups_names:
        group = groups.get(group_id) if group_id not in gone else None
        fault = group_id_fault(group_id, step.config) or _delete_fault(group, group_id)
        if fault is None:
            assert group is not None, "an unknown group is a fault"
            gone[group_id] = None
            _delete(group, step)
        results.append(DeletedGroup(group_id, *(fault or (ErrorCode.NONE, ""))))
    step.reply(DeleteGroupsResponse(tuple(results)))


def delete_offsets(groups: Groups, request: OffsetDeleteRequest, step: GroupStep) -> None:
    """Decides an OffsetDelete: one result a partition, in order.

    What an open transaction is to commit for the partition will not take effect. An offset that is not there is as good as
    erased, so that a request may be repeated; only of a partition that does not exist either, UNKNOWN_TOPIC_OR_PARTITION
    says that it must be a slip.
    """
    group = groups.get(request.group_id)
    fault = group_id_fault(request.group_id, step.config) or _offsets_fault(group, request.group_id)
    if fault is not None:
        step.reply(OffsetDeleteResponse(fault.code, error_message=fault.message))
        return
    assert group is not None, "an unknown group is a fault"
    subscribed = subscriptions(group)
    subscribed.read()
    tombstones: dict[tuple[str, int], OffsetCommitTombstone] = {}
    erased: set[tuple[str, int]] = set()
    first_message = ""
    topics = []
    for topic in request.topics:
        results = []
        for partition in topic.partition_indexes:
            fault = _offset_fault(group, subscribed, topic.name, partition, groups.topics)
            if fault is not None:
                first_message = first_message or fault.message
            else:
                erased.add((topic.name, partition))
                if partition in group.offsets.get(topic.name, ()):
                    tombstones[topic.name, partition] = OffsetCommitTombstone(group.group_id, topic.name, partition)
            results.append(DeletedOffset(partition, ErrorCode.NONE if fault is None else fault.code))
        topics.append(DeletedOffsetTopic(topic.name, tuple(results)))
    step.effects.records.extend(tombstones.values())
    overtake(group, erased, step)
    if tombstones:
        step.effects.note("offsets_deleted", group=group.clipped_id, offsets=len(tombstones))
    step.reply(OffsetDeleteResponse(ErrorCode.NONE, tuple(topics), first_message))


def erase(group: Group, step: GroupStep) -> None:
    """What the log says of a group beside its offsets, committed and pending, goes.

    Only for a group without members and members pending.
    """
    assert group.state is GroupState.EMPTY, f"group {group.group_id} is {group.state.value}, not Empty"
    assert not group.pending, f"group {group.group_id} is erased under {len(group.pending)} pending members"
    if group.durable is not None:
        step.effects.records.append(GroupMetadataTombstone(group.group_id))
    if group.handed_out:
        step.effects.records.append(GenerationTombstone(group.group_id))
    if group.staged is not None:
        step.effects.records.append(StagedOffsetsTombstone(group.group_id))


def _delete(group: Group, step: GroupStep) -> None:
    offsets = 0
    step.effects.records.extend(
        PendingOffsetsTombstone(group.group_id, producer_id) for producer_id in group.pending_offsets
    )
    for topic, partitions in group.offsets.items():
        offsets += len(partitions)
        step.effects.records.extend(OffsetCommitTombstone(group.group_id, topic, partition) for partition in partitions)
    erase(group, step)
    step.effects.note("group_deleted", group=group.clipped_id, offsets=offsets)


def _delete_fault(group: Group | None, group_id: str) -> Refusal | None:
    if group is None:
        return _not_found(group_id)
    if group.state is not GroupState.EMPTY:
        return Refusal(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {clipped(group_id)} is {group.state.value} with {counted(len(group.members), 'member')}; stop or remove "
            f"them, then delete it",
        )
    if group.pending:
        return Refusal(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {clipped(group_id)} is about to have members: {counted(len(group.pending), 'client')} asked for an id "
            f"and may join with it; stop them, then delete it",
        )
    return None


def _offsets_fault(group: Group | None, group_id: str) -> Refusal | None:
    if group is None:
        return _not_found(group_id)
    if group.state is GroupState.EMPTY or group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        return None
    return Refusal(
        ErrorCode.NON_EMPTY_GROUP,
        f"group {clipped(group_id)} has {counted(len(group.members), 'member')} of protocol type "
        f"{clipped(group.protocol_type)}, and what these work on is not known here; stop them first",
    )


def _offset_fault(group: Group, subscribed: Subscriptions, topic: str, partition: int, known: Topics) -> Refusal | None:
    if not known.has(topic, partition) and partition not in group.offsets.get(topic, ()):
        return Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {partition} of topic {clipped(topic)}, and no offset of it in group "
            f"{group.clipped_id}",
        )
    if subscribed.has(topic):
        why = (
            "some member's subscription does not parse, so it may be to"
            if subscribed.everything
            else "its members subscribe to"
        )
        return Refusal(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            f"group {group.clipped_id}: {why} topic {clipped(topic)}, whose offsets are in use; stop the members or "
            f"unsubscribe them first",
        )
    return None


def _not_found(group_id: str) -> Refusal:
    return Refusal(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"group {clipped(group_id)} does not exist: it has no members and no committed offsets here",
    )
