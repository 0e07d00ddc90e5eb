"""JoinGroup: new members come in, known ones answer the call of a rebalance or ask for one.

Members pending (KIP-394): a new dynamic member is told its id first, and joins with it in a second JoinGroup.

So a client whose answer is lost, and which therefore asks again and again, leaves ids behind that become void by
themselves, not members that hold a share. A pending member is no member: it commits, syncs and beats nothing, and does not
count for the size of the group. But a join phase waits for it, or each new member would make a rebalance of its own; not
longer, though, than the connection lasts over which the id was asked for.

Ids that were given out are not written to the log, and no group is written only because it gave out ids (Kafka writes such
a group): nothing durable depends on them, and after a restart the member is told UNKNOWN_MEMBER_ID and asks for another.
A group that has nothing else is Empty, lives in memory only, and is dropped with its last pending member.
"""

from __future__ import annotations

from coordinator.groups.config import GroupStep
from coordinator.groups.group import (
    Group,
    Groups,
    Member,
    PendingMember,
    clipped,
    described,
    names_size,
    size_of,
    with_reason,
)
from coordinator.groups.rebalance import (
    begin_initial_delay,
    call_to_join,
    hold_join,
    join_response,
    maybe_complete_join,
    members_for_leader,
    remove,
    renew_session,
)
from coordinator.groups.rebalance_counts import RebalanceKind
from coordinator.groups.refusals import Refusal, identity_fault, join_request_fault, unknown_group
from coordinator.groups.state import GroupState
from coordinator.groups.static import changed_topics, rejoined, take_over
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupRequest, JoinGroupResponse


def join(groups: Groups, request: JoinGroupRequest, step: GroupStep) -> None:
    """Decides a JoinGroup. A refused request leaves nothing behind, no group either.

    Only one that comes too late for its place in a group of the greatest size loses it.
    """
    group = groups.get(request.group_id)
    member = None if group is None else _known_member(group, request)
    fault = join_request_fault(request, step)
    if fault is None and group is not None:
        fault = too_many(group, member, request, step)
        if fault is not None:
            _turn_away(group, member, request, step)
    fault = fault or _group_fault(group, member, request, step)
    if fault is not None:
        member_id = "" if fault.code == ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        step.reply(JoinGroupResponse(fault.code, member_id=member_id, error_message=fault.message))
        return
    if group is None:
        group = groups.add(request.group_id)
    instance_id = request.group_instance_id
    if member is not None and request.member_id:
        _join_known(group, member, request, step)
    elif member is not None:
        assert instance_id is not None, "who has no member id is known by its instance id only"
        take_over(group, member, groups.new_member_id(instance_id), request, step)
    elif instance_id is not None:
        _join_new(group, groups.new_member_id(instance_id), request, step)
    elif request.member_id:
        forget_pending(group, group.pending[request.member_id], step)
        _join_new(group, request.member_id, request, step)
    else:
        _give_id(groups, group, request, step)


def _turn_away(group: Group, member: Member | None, request: JoinGroupRequest, step: GroupStep) -> None:
    """Others have taken all places of a group: a member, or member pending, that comes too late is removed."""
    pending = group.pending.get(request.member_id)
    if pending is not None:
        forget_pending(group, pending, step)
    elif member is not None:
        kept = len(group.instances) - group.joined_statics
        waiting = f", and {kept} more places are kept for static members" if kept else ""
        why = f"came to rejoin when {group.joined_members} members, the most the group may have, had done so{waiting}"
        remove(group, member, why, step)
        call_to_join(group, "group_full", f"{described(member)} {why}", step)
    maybe_complete_join(group, step)


def _join_new(group: Group, member_id: str, request: JoinGroupRequest, step: GroupStep) -> None:
    member = Member(
        group_id=request.group_id,
        member_id=member_id,
        client_id=step.context.client_id,
        client_host=step.context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        group_instance_id=request.group_instance_id,
        client_software=step.context.client_software,
        of_kafka=step.context.of_kafka,
        is_new=True,
    )
    first = group.state is GroupState.EMPTY
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    cause = with_reason(f"{described(member)} joined", request.reason, step.config.max_reason_chars)
    call_to_join(group, "member_joined", cause, step)
    if first:
        begin_initial_delay(group, step)
    elif group.initial is not None:
        group.initial.more_came = True
    hold_join(group, member, step)
    maybe_complete_join(group, step)


def _join_known(group: Group, member: Member, request: JoinGroupRequest, step: GroupStep) -> None:
    cause = _cause_for_rebalance(group, member, request)
    is_changed = request.protocols != member.protocols
    if is_changed:
        group.set_protocols(member, request.protocols)
    member.client_id, member.client_host = step.context.client_id, step.context.client_host
    member.client_software, member.of_kafka = step.context.client_software, step.context.of_kafka
    group.count_names(member)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if cause is None and group.state is not GroupState.PREPARING_REBALANCE:
        renew_session(member, step)
        members = members_for_leader(group) if member.member_id == group.leader else ()
        step.reply(join_response(group, member, members))
        return
    if cause is not None:
        kind: RebalanceKind = "member_changed" if is_changed else "leader_asked"
        call_to_join(group, kind, with_reason(cause, request.reason, step.config.max_reason_chars), step)
    hold_join(group, member, step)
    maybe_complete_join(group, step)


def _cause_for_rebalance(group: Group, member: Member, request: JoinGroupRequest) -> str | None:
    """Why this JoinGroup of a known member makes a rebalance; None when it only answers the call or repeats itself.

    In a rebalance that is going on, only other topics are one more cause: members that say what they own now say something
    else each time, and would bury what it is about.
    """
    if request.protocols != member.protocols:
        if group.state is GroupState.PREPARING_REBALANCE:
            return changed_topics(group, member, request.protocols)
        return rejoined(group, member, request.protocols)
    if group.state is GroupState.STABLE and member.member_id == group.leader:
        # The only way in which a leader can tell that what it shares out has changed.
        return f"the leader, {described(member)}, asked for it"
    return None


def _known_member(group: Group, request: JoinGroupRequest) -> Member | None:
    """The member that a JoinGroup is about: the one with its id, or, for a new process without one, with its instance id."""
    member_id = request.member_id
    if not member_id and request.group_instance_id is not None:
        member_id = group.instances.get(request.group_instance_id, "")
    return group.members.get(member_id)


def too_many(group: Group, member: Member | None, request: JoinGroupRequest, step: GroupStep) -> Refusal | None:
    """Whether the group has no place left (KIP-389).

    In a rebalance the places go to those that join first, so that a group that is too large shrinks; later they belong to
    the members. A static member that is started again is one of them (in Kafka a full group refuses it), and its place is
    kept through a rebalance too, as long as its session lasts (KIP-345): no new member takes it. The process before it is to
    hear that it was replaced: told of the size, it would come back and take the place again.
    """
    current_id = group.instances.get(request.group_instance_id or "")
    if current_id is not None and request.member_id and request.member_id != current_id:
        return None
    size = len(group.members)
    if group.state is GroupState.PREPARING_REBALANCE:
        is_static = member is not None and member.group_instance_id is not None
        size = group.joined_members + (0 if is_static else len(group.instances) - group.joined_statics)
    if group.state is GroupState.EMPTY or size < step.config.group_max_size:
        return None
    if group.state is GroupState.PREPARING_REBALANCE:
        has_place = member is not None and member.has_joined
    else:
        has_place = member is not None or request.group_instance_id in group.instances
    if has_place:
        return None
    return Refusal(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"group {group.clipped_id} has {size} members, which is the most it may have; wait until one leaves, "
        f"or raise group_max_size",
    )


def _group_fault(
    group: Group | None, member: Member | None, request: JoinGroupRequest, step: GroupStep
) -> Refusal | None:
    """What stands between this request and this group."""
    if group is None:
        return unknown_group(request.group_id) if request.member_id else None
    if request.member_id and (request.group_instance_id is not None or request.member_id not in group.pending):
        fault = identity_fault(group, request.member_id, request.group_instance_id)
        if fault is not None:
            return fault
    if not group.members:
        return None
    shown = f"group {group.clipped_id}"
    if request.protocol_type != group.protocol_type:
        return Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{shown} is of protocol type {clipped(group.protocol_type)}, the request of {clipped(request.protocol_type)}; "
            f"use another group id",
        )
    if not group.others_support(request.protocols, member):
        return Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"none of {', '.join(clipped(protocol.name) for protocol in request.protocols[:10])} is supported by all other "
            f"members of {shown}, who share {', '.join(map(clipped, group.protocols_of_all()[:10]))}; offer one of these",
        )
    return _size_fault(group, member, request, step)


def _size_fault(group: Group, member: Member | None, request: JoinGroupRequest, step: GroupStep) -> Refusal | None:
    """Now and not when the leader's answer, or the record of the generation, turns out to be too large for a frame."""
    shown = f"group {group.clipped_id}"
    names = group.names_bytes - (member.names_bytes if member is not None else 0)
    context = step.context
    told = request.member_id, context.client_id, context.client_host, context.client_software, request.group_instance_id
    names += names_size(told, len(request.protocols))
    if names > step.config.max_group_names_bytes:
        return Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"with this join the ids and client ids of the members of {shown} would take {names} bytes, at most "
            f"{step.config.max_group_names_bytes} are allowed; use shorter client ids or wait until a member leaves",
        )
    size = group.metadata_bytes + size_of(request.protocols) - (member.metadata_bytes if member is not None else 0)
    if size > step.config.max_group_metadata_bytes:
        return Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"with this join the protocols of {shown} would take {size} bytes, at most "
            f"{step.config.max_group_metadata_bytes} are allowed; offer less metadata or wait until a member leaves",
        )
    return None


def _give_id(groups: Groups, group: Group, request: JoinGroupRequest, step: GroupStep) -> None:
    """Answers the first JoinGroup of a new member with its id, which is good for as long as its session would be."""
    if len(group.pending) >= step.config.max_pending_per_group:
        forget_pending(group, next(iter(group.pending.values())), step)
    if len(groups.members_pending) >= step.config.max_pending:
        other, oldest = group.members_pending.oldest()
        forget_pending(other, oldest, step)
        if other is not group:
            maybe_complete_join(other, step)
            drop_unless_written(groups, other, step)
    member_id = groups.new_member_id(step.context.client_id)
    pending = PendingMember(
        group.group_id, member_id, step.now.ms + request.session_timeout_ms, step.context.connection
    )
    group.pending[member_id] = pending
    group.awaited_pending += 1
    group.members_pending.add(pending, group)
    step.effects.timers[pending.timer] = pending.deadline_ms
    step.reply(
        JoinGroupResponse(
            ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id, error_message="join again with this member id"
        ),
    )


def forget_pending(group: Group, pending: PendingMember, step: GroupStep) -> None:
    """The id was used, given back or is void. The caller completes the join phase if it is complete without it."""
    del group.pending[pending.member_id]
    group.awaited_pending -= pending.awaited
    group.members_pending.remove(pending)
    step.effects.timers[pending.timer] = None


def on_pending_timer(groups: Groups, group: Group, pending: PendingMember, step: GroupStep) -> None:
    """No member has joined with the id in time."""
    forget_pending(group, pending, step)
    maybe_complete_join(group, step)
    drop_unless_written(groups, group, step)


def stop_awaiting(group: Group, pending: PendingMember, step: GroupStep) -> None:
    """The connection over which the id was asked for has closed: the client is dead, or comes over another one.

    Its id stays good for as long as it was, for the answer may just have been lost.
    """
    assert pending.awaited, f"no join phase waits for {pending.member_id}"
    pending.awaited = False
    group.awaited_pending -= 1
    group.members_pending.forget_connection(pending)
    maybe_complete_join(group, step)


def drop_unless_written(groups: Groups, group: Group, step: GroupStep) -> None:
    """Forgets a group that has nothing left at the end of a decision; records it has decided are still to be applied."""
    if not step.effects.records:
        groups.drop_if_nothing_is_left(group)
