"""LeaveGroup: members go, one by one or in a batch, and the others rebalance once."""

from __future__ import annotations

from coordinator.groups.config import GroupConfig
from coordinator.groups.effects import Effects, Instant, RequestContext
from coordinator.groups.group import Group
from coordinator.groups.pending import drop_if_nothing_is_left, forget_pending
from coordinator.groups.reasons import described, with_reason
from coordinator.groups.rebalance import call_to_join, maybe_complete_join, remove
from coordinator.groups.refusals import Refusal, group_id_fault, instance_fault, unknown_group, unknown_member
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
            pending = group.pending.get(leaving.member_id)
            if pending is not None:
                forget_pending(group, pending, effects)
                results.append(LeftMember(leaving.member_id, leaving.group_instance_id, ErrorCode.NONE))
                continue
            member = group.members[leaving.member_id]
            why = with_reason("left", leaving.reason, config.max_reason_chars)
            remove(group, member, why, effects)
            causes.append(f"{described(member)} {why}")
        else:
            first_message = first_message or fault.message
        code = ErrorCode.NONE if fault is None else fault.code
        results.append(LeftMember(leaving.member_id, leaving.group_instance_id, code))
    if group is not None:
        for cause in causes:
            call_to_join(group, cause, now, effects)
        maybe_complete_join(group, now, effects)
        drop_if_nothing_is_left(groups, group)
    effects.reply(context.token, LeaveGroupResponse(ErrorCode.NONE, tuple(results), first_message))
    return effects


def _member_fault(group: Group | None, group_id: str, leaving: LeavingMember) -> Refusal | None:
    fault = instance_fault(leaving.group_instance_id)
    if fault is not None:
        return fault
    if group is None:
        return unknown_group(group_id)
    if leaving.member_id not in group.members and leaving.member_id not in group.pending:
        return unknown_member(group, leaving.member_id)
    return None
