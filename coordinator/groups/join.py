"""JoinGroup: new members come in, known ones answer the call of a rebalance or ask for one."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.groups import initial_delay
from coordinator.groups.admission import group_fault, known_member, request_fault, too_many
from coordinator.groups.changes import changed_topics, rejoined
from coordinator.groups.config import GroupConfig
from coordinator.groups.given_ids import GivenIds
from coordinator.groups.group import Group, Parked
from coordinator.groups.member import Member
from coordinator.groups.pending import forget_pending, give_id
from coordinator.groups.reasons import described, with_reason
from coordinator.groups.rebalance import call_to_join, join_response, maybe_complete_join, members_for_leader, remove
from coordinator.groups.state import GroupState
from coordinator.groups.static import take_over
from coordinator.groups.waiting import park_join, renew_session
from coordinator.runtime.effects import Effects, Instant, RequestContext
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupRequest, JoinGroupResponse


def join(
    groups: dict[str, Group],
    parked: Parked,
    given_ids: GivenIds,
    config: GroupConfig,
    new_member_id: Callable[[str], str],
    request: JoinGroupRequest,
    context: RequestContext,
    now: Instant,
) -> Effects:
    """Decides a JoinGroup. A refused request leaves nothing behind, no group either.

    Only one that comes too late for its place in a group of the greatest size loses it.
    """
    effects = Effects()
    group = groups.get(request.group_id)
    member = None if group is None else known_member(group, request)
    fault = request_fault(request, context, config)
    if fault is None and group is not None:
        fault = too_many(group, member, request, config)
        if fault is not None:
            _turn_away(group, member, request, now, effects)
    fault = fault or group_fault(group, member, request, context, config)
    if fault is not None:
        member_id = "" if fault.code == ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        effects.reply(context.token, JoinGroupResponse(fault.code, member_id=member_id, error_message=fault.message))
        return effects
    if group is None:
        group = groups[request.group_id] = Group(request.group_id, parked, given_ids)
    instance_id = request.group_instance_id
    if member is not None and request.member_id:
        _join_known(group, member, config, request, context, now, effects)
    elif member is not None:
        assert instance_id is not None, "who has no member id is known by its instance id only"
        take_over(group, member, new_member_id(instance_id), config, request, context, now, effects)
    elif instance_id is not None:
        _join_new(group, new_member_id(instance_id), config, request, context, now, effects)
    elif request.member_id:
        forget_pending(group, group.pending[request.member_id], effects)
        _join_new(group, request.member_id, config, request, context, now, effects)
    else:
        give_id(groups, group, new_member_id(context.client_id), config, request, context, now, effects)
    return effects


def _turn_away(group: Group, member: Member | None, request: JoinGroupRequest, now: Instant, effects: Effects) -> None:
    """Others have taken all places of a group: whoever comes too late is a member, or about to be one, no longer."""
    pending = group.pending.get(request.member_id)
    if pending is not None:
        forget_pending(group, pending, effects)
    elif member is not None:
        kept = len(group.instances) - group.joined_statics
        waiting = f", and {kept} more places are kept for static members" if kept else ""
        why = f"came to rejoin when {group.joined_members} members, the most the group may have, had done so{waiting}"
        remove(group, member, why, effects)
        call_to_join(group, f"{described(member)} {why}", now, effects)
    maybe_complete_join(group, now, effects)


def _join_new(
    group: Group,
    member_id: str,
    config: GroupConfig,
    request: JoinGroupRequest,
    context: RequestContext,
    now: Instant,
    effects: Effects,
) -> None:
    member = Member(
        group_id=request.group_id,
        member_id=member_id,
        client_id=context.client_id,
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        group_instance_id=request.group_instance_id,
        is_new=True,
    )
    first = group.state is GroupState.EMPTY
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    cause = with_reason(f"{described(member)} joined", request.reason, config.max_reason_chars)
    call_to_join(group, cause, now, effects)
    if first:
        initial_delay.begin(group, config.initial_rebalance_delay_ms, now, effects)
    elif group.initial is not None:
        group.initial.more_came = True
    park_join(group, member, context.token, effects)
    maybe_complete_join(group, now, effects)


def _join_known(
    group: Group,
    member: Member,
    config: GroupConfig,
    request: JoinGroupRequest,
    context: RequestContext,
    now: Instant,
    effects: Effects,
) -> None:
    cause = _cause_for_rebalance(group, member, request)
    if request.protocols != member.protocols:
        group.set_protocols(member, request.protocols)
    member.client_id, member.client_host = context.client_id, context.client_host
    group.count_names(member)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if cause is None and group.state is not GroupState.PREPARING_REBALANCE:
        renew_session(member, now, effects)
        members = members_for_leader(group) if member.member_id == group.leader else ()
        effects.reply(context.token, join_response(group, member, members))
        return
    if cause is not None:
        call_to_join(group, with_reason(cause, request.reason, config.max_reason_chars), now, effects)
    park_join(group, member, context.token, effects)
    maybe_complete_join(group, now, effects)


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
