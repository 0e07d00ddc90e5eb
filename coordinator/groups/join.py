"""JoinGroup: new members come in, known ones answer the call of a rebalance or ask for one."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.groups.config import GroupConfig
from coordinator.groups.effects import Effects, Instant, RequestContext
from coordinator.groups.group import Group, Parked
from coordinator.groups.member import Member, size_of
from coordinator.groups.reasons import clipped, described, with_reason
from coordinator.groups.rebalance import call_to_join, join_response, maybe_complete_join, members_for_leader
from coordinator.groups.refusals import Refusal, group_id_fault, instance_fault, unknown_group, unknown_member
from coordinator.groups.state import GroupState
from coordinator.groups.waiting import park_join, renew_session
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupRequest, JoinGroupResponse


def join(
    groups: dict[str, Group],
    parked: Parked,
    config: GroupConfig,
    new_member_id: Callable[[str], str],
    request: JoinGroupRequest,
    context: RequestContext,
    now: Instant,
) -> Effects:
    """Decides a JoinGroup. A refused request leaves nothing behind, no group either."""
    effects = Effects()
    group = groups.get(request.group_id)
    fault = _request_fault(request, context, config) or _group_fault(group, request, config)
    if fault is not None:
        effects.reply(
            context.token, JoinGroupResponse(fault.code, member_id=request.member_id, error_message=fault.message)
        )
        return effects
    if request.member_id:
        assert group is not None, "an unknown group refuses a member id"
        _join_known(group, group.members[request.member_id], config, request, context, now, effects)
    else:
        if group is None:
            group = groups[request.group_id] = Group(request.group_id, parked)
        _join_new(group, new_member_id(context.client_id), config, request, context, now, effects)
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


def _request_fault(request: JoinGroupRequest, context: RequestContext, config: GroupConfig) -> Refusal | None:
    """What can be said without knowing the group."""
    fault = group_id_fault(request.group_id, config)
    if fault is not None:
        return fault
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        return Refusal(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session_timeout_ms {request.session_timeout_ms} of client {clipped(context.client_id)} is outside "
            f"{config.min_session_timeout_ms} to {config.max_session_timeout_ms}; set one within",
        )
    fault = instance_fault(request.group_instance_id)
    if fault is not None:
        return fault
    if not 1 <= request.rebalance_timeout_ms <= config.max_rebalance_timeout_ms:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"rebalance_timeout_ms {request.rebalance_timeout_ms} of client {clipped(context.client_id)} is outside 1 to "
            f"{config.max_rebalance_timeout_ms}; set one within",
        )
    if len(context.client_id.encode()) > config.max_client_id_bytes:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"client id {clipped(context.client_id, 60)} is longer than {config.max_client_id_bytes} bytes; choose a "
            f"shorter one",
        )
    return _protocols_fault(request, context, config)


def _protocols_fault(request: JoinGroupRequest, context: RequestContext, config: GroupConfig) -> Refusal | None:
    client = f"client {clipped(context.client_id)}"
    if not request.protocol_type or not request.protocols:
        return Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{client} joins group {clipped(request.group_id)} without protocol type or protocols; offer one",
        )
    if len(request.protocols) > config.max_protocols_per_member:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{client} offers {len(request.protocols)} protocols; at most {config.max_protocols_per_member} are allowed",
        )
    if len({protocol.name for protocol in request.protocols}) < len(request.protocols):
        return Refusal(ErrorCode.INVALID_REQUEST, f"{client} offers a protocol twice; name each one once")
    size = size_of(request.protocols)
    if size > config.max_member_metadata_bytes:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"the protocols of {client} take {size} bytes; at most {config.max_member_metadata_bytes} are allowed",
        )
    return None


def _group_fault(group: Group | None, request: JoinGroupRequest, config: GroupConfig) -> Refusal | None:
    """What stands between this request and this group."""
    if group is None:
        return unknown_group(request.group_id) if request.member_id else None
    member = group.members.get(request.member_id)
    if member is None and request.member_id:
        return unknown_member(group, request.member_id)
    if not group.members:
        return None
    shown = f"group {clipped(group.group_id)}"
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
    if member is None and len(group.members) >= config.max_members_per_group:
        return Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"{shown} has {len(group.members)} members, which is the most it may have; wait until one leaves",
        )
    size = group.metadata_bytes + size_of(request.protocols) - (member.metadata_bytes if member is not None else 0)
    if size > config.max_group_metadata_bytes:
        return Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"with this join the protocols of {shown} would take {size} bytes, at most "
            f"{config.max_group_metadata_bytes} are allowed; offer less metadata or wait until a member leaves",
        )
    return None
