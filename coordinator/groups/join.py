"""JoinGroup: new members come in, known ones answer the call of a rebalance or ask for one."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.groups.admission import group_fault, request_fault
from coordinator.groups.config import GroupConfig
from coordinator.groups.effects import Effects, Instant, RequestContext
from coordinator.groups.group import GivenIds, Group, Parked
from coordinator.groups.member import Member
from coordinator.groups.pending import forget_pending, give_id
from coordinator.groups.reasons import described, with_reason
from coordinator.groups.rebalance import call_to_join, join_response, maybe_complete_join, members_for_leader
from coordinator.groups.state import GroupState
from coordinator.groups.waiting import park_join, renew_session
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
    """Decides a JoinGroup. A refused request leaves nothing behind, no group either."""
    effects = Effects()
    group = groups.get(request.group_id)
    fault = request_fault(request, context, config) or group_fault(group, request, config)
    if fault is not None:
        effects.reply(
            context.token, JoinGroupResponse(fault.code, member_id=request.member_id, error_message=fault.message)
        )
        return effects
    if group is None:
        group = groups[request.group_id] = Group(request.group_id, parked, given_ids)
    if request.member_id in group.members:
        _join_known(group, group.members[request.member_id], config, request, context, now, effects)
    elif request.member_id:
        forget_pending(group, group.pending[request.member_id], effects)
        _join_new(group, request.member_id, config, request, context, now, effects)
    else:
        give_id(groups, group, new_member_id(context.client_id), config, request, context, now, effects)
    return effects


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
        is_new=True,
    )
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    cause = with_reason(f"{described(member)} joined", request.reason, config.max_reason_chars)
    call_to_join(group, cause, now, effects)
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
    changed = request.protocols != member.protocols
    if changed:
        group.set_protocols(member, request.protocols)
    member.client_id, member.client_host = context.client_id, context.client_host
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    cause = _cause_for_rebalance(group, member, changed)
    if cause is None and group.state is not GroupState.PREPARING_REBALANCE:
        renew_session(member, now, effects)
        members = members_for_leader(group) if member.member_id == group.leader else ()
        effects.reply(context.token, join_response(group, member, members))
        return
    if cause is not None:
        call_to_join(group, with_reason(cause, request.reason, config.max_reason_chars), now, effects)
    park_join(group, member, context.token, effects)
    maybe_complete_join(group, now, effects)


def _cause_for_rebalance(group: Group, member: Member, changed: bool) -> str | None:
    """Why this JoinGroup of a known member makes a rebalance; None when it only answers the call or repeats itself."""
    if changed:
        return f"{described(member)} changed its subscription"
    if group.state is GroupState.STABLE and member.member_id == group.leader:
        # The only way in which a leader can tell that what it shares out has changed.
        return f"the leader, {described(member)}, asked for it"
    return None
