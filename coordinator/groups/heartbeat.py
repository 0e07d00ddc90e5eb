"""Heartbeat: renews the session when it arrives and waits, if it may, until the group needs the member."""

from __future__ import annotations

from coordinator.groups.config import GroupStep
from coordinator.groups.group import Group
from coordinator.groups.rebalance import call_again
from coordinator.groups.refusals import member_fault
from coordinator.groups.state import GroupState
from coordinator.groups.waiting import park_heartbeat, renew_session
from coordinator.runtime.effects import Effects
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, HeartbeatResponse


def heartbeat(groups: dict[str, Group], request: HeartbeatRequest, step: GroupStep) -> Effects:
    """Decides a Heartbeat. It is parked for ``max_wait_ms``, but at most for half of the member's session."""
    effects, context, now = step.effects, step.context, step.now
    group = groups.get(request.group_id)
    fault = member_fault(
        group, step.config, request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    if fault is not None:
        effects.reply(context.token, HeartbeatResponse(fault.code, fault.message))
        return effects
    assert group is not None, "an unknown group is a fault"
    member = group.members[request.member_id]
    renew_session(member, now, effects)
    if group.state is GroupState.PREPARING_REBALANCE and member.join_token is None:
        effects.reply(context.token, call_again(group))
    elif request.max_wait_ms <= 0:
        effects.reply(context.token, CARRY_ON)
    else:
        wait_ms = min(request.max_wait_ms, member.session_timeout_ms // 2)
        park_heartbeat(group, member, context.token, now.ms + wait_ms, effects)
    return effects
