"""How a member stays in its group and goes: Heartbeat and LeaveGroup, timers that fire, connections that close."""

from __future__ import annotations

from coordinator.groups.config import GroupStep
from coordinator.groups.group import Group, Groups, clipped, described, with_reason
from coordinator.groups.join import drop_unless_written, forget_pending, on_pending_timer
from coordinator.groups.rebalance import (
    answer_heartbeat,
    call_again,
    call_to_join,
    forget_heartbeat,
    forget_join,
    forget_sync,
    hold_heartbeat,
    maybe_complete_join,
    on_rebalance_timer,
    on_sync_timer,
    remove,
    remove_and_rebalance,
    renew_session,
)
from coordinator.groups.refusals import Refusal, group_id_fault, identity_fault, member_fault, unknown_group
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import ReplyToken, TimerName
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    CARRY_ON,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
)


def heartbeat(groups: Groups, request: HeartbeatRequest, step: GroupStep) -> None:
    """Decides a Heartbeat. It is held for ``max_wait_ms``, but at most for a third of the member's session."""
    group = groups.get(request.group_id)
    fault = member_fault(group, request, step)
    if fault is not None:
        step.reply(HeartbeatResponse(fault.code, fault.message))
        return
    assert group is not None, "an unknown group is a fault"
    member = group.members[request.member_id]
    if (
        member.client_software != step.context.client_software
    ):  # it was read from the log, or came over another connection
        member.client_software = step.context.client_software
        group.count_names(member)
    renew_session(member, step)
    if group.state is GroupState.PREPARING_REBALANCE and member.join_token is None:
        step.reply(call_again(group))
    elif request.max_wait_ms <= 0:
        step.reply(CARRY_ON)
    else:
        # The client's next one comes when it has the answer: three of them fit into a session, as Kafka's documentation asks
        # of ``heartbeat.interval.ms``, so that one that is lost does not end it.
        wait_ms = min(request.max_wait_ms, member.session_timeout_ms // 3)
        hold_heartbeat(group, member, step.now.ms + wait_ms, step)


def renewed(groups: Groups, request: HeartbeatRequest, software: str, now_ms: int) -> dict[TimerName, int] | None:
    """What most heartbeats that are not held come to: the member's session timer, and ``CARRY_ON`` as the answer.

    That is all that ``heartbeat`` would decide then, without what it takes to decide anything else. None where it would do
    otherwise, or a closer look is needed, as at an instance id: nothing has changed.
    """
    group = groups.get(request.group_id)
    if group is None or group.state is GroupState.PREPARING_REBALANCE or request.generation_id != group.generation:
        return None
    member = group.members.get(request.member_id)
    if (
        member is None
        or request.max_wait_ms > 0
        or request.group_instance_id is not None
        or member.client_software != software
        or member.join_token is not None
        or member.sync_token is not None
    ):
        return None
    member.is_loaded = False
    member.session_deadline_ms = deadline_ms = now_ms + member.session_timeout_ms
    return {member.session_timer: deadline_ms}


def leave(groups: Groups, request: LeaveGroupRequest, step: GroupStep) -> None:
    """Decides a LeaveGroup: one result a member, in order, and one rebalance if any member left."""
    fault = group_id_fault(request.group_id, step.config)
    if fault is not None:
        step.reply(LeaveGroupResponse(fault.code, error_message=fault.message))
        return
    group = groups.get(request.group_id)
    results: list[LeftMember] = []
    first_message = ""
    causes: list[str] = []
    for leaving in request.members:
        fault = _member_fault(group, request.group_id, leaving)
        if fault is None:
            assert group is not None, "an unknown group is a fault"
            cause = _remove(group, leaving, step)
            if cause is not None:
                causes.append(cause)
        else:
            first_message = first_message or fault.message
        code = ErrorCode.NONE if fault is None else fault.code
        results.append(LeftMember(leaving.member_id, leaving.group_instance_id, code))
    if group is not None:
        for cause in causes:
            call_to_join(group, "member_left", cause, step)
        maybe_complete_join(group, step)
        drop_unless_written(groups, group, step)
    step.reply(LeaveGroupResponse(ErrorCode.NONE, tuple(results), first_message))


def _remove(group: Group, leaving: LeavingMember, step: GroupStep) -> str | None:
    """Takes out one member; gives the cause of a rebalance, or None for a pending member, which held no share."""
    pending = group.pending.get(leaving.member_id)
    if pending is not None:
        forget_pending(group, pending, step)
        return None
    if leaving.member_id:
        member = group.members[leaving.member_id]
    else:
        assert leaving.group_instance_id is not None, "neither a member id nor an instance id"
        member = group.members[group.instances[leaving.group_instance_id]]
    how = "left"
    if not leaving.member_id or step.context.client_id != member.client_id:
        how = f"was removed by client {clipped(step.context.client_id)} at {clipped(step.context.client_host)}"
    why = with_reason(how, leaving.reason, step.config.max_reason_chars)
    remove(group, member, why, step)
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


def on_timer(groups: Groups, name: TimerName, step: GroupStep) -> None:
    """Decides a timer that fired. One whose deadline has moved is set again, one that is void does nothing."""
    kind = name[0]
    group = groups.get(name[1])
    if group is None:
        return
    if kind == "rebalance":
        if _is_due(group.rebalance_deadline_ms, name, step):
            on_rebalance_timer(group, step)
        return
    if kind == "sync":
        if _is_due(group.sync_deadline_ms, name, step):
            on_sync_timer(group, step)
        return
    if kind == "pending":
        pending = group.pending.get(name[2])
        if pending is not None and _is_due(pending.deadline_ms, name, step):
            on_pending_timer(groups, group, pending, step)
        return
    assert kind in ("session", "heartbeat"), f"a timer of an unknown kind: {name}"
    member = group.members.get(name[2])
    if member is None:
        return
    if kind == "heartbeat":
        if _is_due(member.heartbeat_deadline_ms, name, step):
            answer_heartbeat(group, member, CARRY_ON, step)
    elif _is_due(member.session_deadline_ms, name, step):
        assert member.session_deadline_ms is not None, "a session that is over had a deadline"
        late_ms = step.now.ms - member.session_deadline_ms
        why = f"missed its session of {member.session_timeout_ms} ms by {late_ms} ms"
        if member.is_loaded:
            why = f"did not come back within its session of {member.session_timeout_ms} ms after the coordinator restarted"
        remove_and_rebalance(group, "session_timeout", member, why, step)


def abandon(groups: Groups, token: ReplyToken, step: GroupStep) -> None:
    """Decides that the connection of a pending request closed. A token that is not pending (any more) does nothing.

    A member whose first JoinGroup is given up is removed at once: it was never told a generation, so it holds nothing that
    it could lose, and the group need not wait for its session to end. If it lives, it begins again.
    """
    pending = groups.requests.get(token)
    if pending is None:
        return
    group, member = pending
    if member.heartbeat_token == token:
        forget_heartbeat(group, member, step)
    elif member.sync_token == token:
        forget_sync(group, member, step)
    elif member.is_new:
        assert member.join_token == token, f"token {token} is pending for nothing"
        forget_join(group, member, step)
        remove_and_rebalance(group, "member_left", member, "closed its connection before it had joined", step)
    else:
        assert member.join_token == token, f"token {token} is pending for nothing"
        forget_join(group, member, step)
        # A heartbeat may wait beside a pending JoinGroup only; alone it is told to join again.
        answer_heartbeat(group, member, call_again(group), step)


def _is_due(deadline_ms: int | None, name: TimerName, step: GroupStep) -> bool:
    if deadline_ms is None:
        return False
    if step.now.ms >= deadline_ms:
        return True
    step.effects.timers[name] = deadline_ms
    return False
