"""LeaveGroup: members go, one by one or in a batch, and the others rebalance once."""

from __future__ import annotations

from coordinator.groups.config import GroupConfig
from coordinator.groups.group import Group
from coordinator.groups.pending import drop_unless_written, forget_pending
from coordinator.groups.reasons import clipped, described, with_reason
from coordinator.groups.rebalance import call_to_join, maybe_complete_join, remove
from coordinator.groups.refusals import Refusal, group_id_fault, identity_fault, unknown_group
from coordinator.runtime.effects import Effects, Instant, RequestContext
from protocol.errors import ErrorCode
from protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, LeavingMember, LeftMember


def leave(
    groups: dict[str, Group], config: GroupConfig, request: LeaveGroupRequest, context: RequestContext, now: Instant
) -> Effects:
    """Decides a LeaveGroup: one result a member, in order, and one rebalance if anybody went."""
    effects = Effects()
    fault = group_id_fault(request.group_id, config)
    if fault is not None:
        effects.reply(context.token, LeaveGroupResponse(fault.code, error_message=fault.message))
        return effects
    group = groups.get(request.group_id)
    results: list[LeftMember] = []
    first_message = ""
    causes: list[str] = []
    for leaving in request.members:
        fault = _member_fault(group, request.group_id, leaving)
        if fault is None:
            assert group is not None, "an unknown group is a fault"
            cause = _remove(group, leaving, config, context, effects)
            if cause is not None:
                causes.append(cause)
        else:
            first_message = first_message or fault.message
        code = ErrorCode.NONE if fault is None else fault.code
        results.append(LeftMember(leaving.member_id, leaving.group_instance_id, code))
    if group is not None:
        for cause in causes:
            call_to_join(group, cause, now, effects)
        maybe_complete_join(group, now, effects)
        drop_unless_written(groups, group, effects)
    effects.reply(context.token, LeaveGroupResponse(ErrorCode.NONE, tuple(results), first_message))
    return effects


def _remove(
    group: Group, leaving: LeavingMember, config: GroupConfig, context: RequestContext, effects: Effects
) -> str | None:
    """Takes out one member; gives the cause of a rebalance, or None for a pending member, which held no share."""
    pending = group.pending.get(leaving.member_id)
    if pending is not None:
        forget_pending(group, pending, effects)
        return None
    if leaving.member_id:
        member = group.members[leaving.member_id]
    else:
        assert leaving.group_instance_id is not None, "nobody is named"
        member = group.members[group.instances[leaving.group_instance_id]]
    how = "left"
    if not leaving.member_id or context.client_id != member.client_id:
        how = f"was removed by client {clipped(context.client_id)} at {clipped(context.client_host)}"
    why = with_reason(how, leaving.reason, config.max_reason_chars)
    remove(group, member, why, effects)
    return f"{described(member)} {why}"


def _member_fault(group: Group | None, group_id: str, leaving: LeavingMember) -> Refusal | None:
    """A static member may be named by its instance id alone (KIP-345); an administrator knows no more."""
    if group is None:
        return unknown_group(group_id)
    instance_id = leaving.group_instance_id
    if not leaving.member_id and instance_id in group.instances:
        return None
    if leaving.member_id in group.pending and instance_id is None:
        return None
    return identity_fault(group, leaving.member_id, instance_id)
