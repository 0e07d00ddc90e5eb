"""SyncGroup: members ask for their share, the leader brings all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Final

from coordinator.groups.config import GroupStep
from coordinator.groups.group import MAX_NAMES, Group, Groups, Member, clipped, described, listed, slices, takes_slices
from coordinator.groups.rebalance import answer_syncs, call_again, hold_sync, mark_synced, renew_session
from coordinator.groups.records import GroupMetadataRecord, MemberRecord
from coordinator.groups.refusals import Refusal, member_fault
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import Slices
from protocol.errors import ErrorCode
from protocol.messages.groups import SyncGroupRequest, SyncGroupResponse

_stored: Final = attrgetter(*MemberRecord._fields[:-1])
"""All that is stored of a member but its share, which it has under the same names."""


def sync(groups: Groups, request: SyncGroupRequest, step: GroupStep) -> None:
    """Decides a SyncGroup."""
    group = groups.get(request.group_id)
    fault = member_fault(group, request, step)
    if fault is None:
        assert group is not None, "an unknown group is a fault"
        member = group.members[request.member_id]
        fault = _protocol_fault(group, request) or _assignments_fault(group, member, request, step)
        if fault is None:
            _sync_by_state(group, member, request, step)
    if fault is not None:
        step.reply(SyncGroupResponse(fault.code, error_message=fault.message))


def _sync_by_state(group: Group, member: Member, request: SyncGroupRequest, step: GroupStep) -> None:
    if group.state is GroupState.PREPARING_REBALANCE:
        renew_session(member, step)
        called = call_again(group)
        step.reply(SyncGroupResponse(called.error_code, error_message=called.message))
    elif group.state is GroupState.STABLE:
        # Also the leader: the assignment of this generation is settled, what it brings now is a repetition.
        mark_synced(group, member, step)
        renew_session(member, step)
        step.reply(_responses(group)(group.assignments.get(member.member_id, b"")))
    else:
        assert group.state is GroupState.COMPLETING_REBALANCE, f"a member in a group that is {group.state.value}"
        mark_synced(group, member, step)
        hold_sync(group, member, step)
        if member.member_id == group.leader:
            step.effects.begin(group.group_id, _settle(group, request, step))


def _settle(group: Group, request: SyncGroupRequest, step: GroupStep) -> Slices:
    """The leader has brought the assignment: writes it, then answers pending SyncGroups. A member it left out gets none."""
    brought = {share.member_id: share.assignment for share in request.assignments}
    members = tuple(group.members.values())
    several = takes_slices(members)
    records: list[MemberRecord] = []
    for some in slices(members):
        records += _member_records(some, brought)
        if several:
            step.effects = yield
    step.effects.records.append(
        GroupMetadataRecord(
            group_id=group.group_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader,
            rebalance_reason=group.rebalance_reason,
            written_wall_ms=step.now.wall_ms,
            members=tuple(records),
        )
    )
    group.transition(GroupState.STABLE)
    group.end_rebalance(step.now)
    if brought.keys() != group.members.keys():
        _note_mistakes(group, brought, step)
    for some in slices(members):
        if several:
            step.effects = yield
        answer_syncs(group, some, _responses(group), brought, step)


def _note_mistakes(group: Group, brought: dict[str, bytes], step: GroupStep) -> None:
    """The leader has left members out, or named some that are not in the generation."""
    left_out = [member for member in group.members.values() if member.member_id not in brought]
    if left_out:
        step.effects.note(
            "members_without_assignment",
            group=group.clipped_id,
            leader=clipped(group.leader or ""),
            members=listed(left_out),
        )
    unknown = [clipped(name) for name in brought if name not in group.members]
    if unknown:
        more = f" and {len(unknown) - MAX_NAMES} more" if len(unknown) > MAX_NAMES else ""
        step.effects.note(
            "assignments_dropped",  # the leader gave them to members that are not in the generation
            group=group.clipped_id,
            leader=clipped(group.leader or ""),
            members=f"{', '.join(unknown[:MAX_NAMES])}{more}",
            generation=group.generation,
        )


def _member_records(members: Iterable[Member], shares: Mapping[str, bytes]) -> Iterator[MemberRecord]:
    """Made as the tuples that they are: the function that takes them by name costs as much again, for ten thousand."""
    make = tuple.__new__
    for member in members:
        yield make(MemberRecord, (*_stored(member), shares.get(member.member_id, b"")))


def _responses(group: Group) -> Callable[[bytes], SyncGroupResponse]:
    """What a member of the present generation is answered, by its share."""
    return partial(SyncGroupResponse, ErrorCode.NONE, group.protocol_type, group.protocol_name)


def _protocol_fault(group: Group, request: SyncGroupRequest) -> Refusal | None:
    """A member that says which protocol it syncs for must mean the one of the generation (KIP-559)."""
    for said, chosen, what in (
        (request.protocol_type, group.protocol_type, "protocol type"),
        (request.protocol_name, group.protocol_name, "protocol"),
    ):
        if said is not None and said != chosen:
            return Refusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"member {clipped(request.member_id)} syncs for {what} {clipped(said)}, but generation {group.generation} "
                f"of group {group.clipped_id} has {what} {clipped(chosen or '')}; join again",
            )
    return None


def _assignments_fault(group: Group, member: Member, request: SyncGroupRequest, step: GroupStep) -> Refusal | None:
    size = sum(len(share.assignment) for share in request.assignments)
    if size <= step.config.max_assignments_bytes:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"the assignments that {described(member)} brings for group {group.clipped_id} take {size} bytes; at most "
        f"{step.config.max_assignments_bytes} are allowed",
    )
