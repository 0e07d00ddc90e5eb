"""A shard comes and goes, a connection closes, a timer fires: what happens to groups without any request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordinator.groups.config import GroupConfig
from coordinator.groups.group import Group, Parked
from coordinator.groups.member import Member
from coordinator.groups.pending import forget_pending, on_pending_timer
from coordinator.groups.rebalance import (
    call_again,
    call_to_join,
    on_rebalance_timer,
    on_sync_timer,
    remove_and_rebalance,
)
from coordinator.groups.state import GroupState
from coordinator.groups.waiting import (
    answer_all,
    answer_heartbeat,
    forget_heartbeat,
    forget_join,
    forget_sync,
    renew_session,
)
from coordinator.runtime.effects import Effects, Instant, ReplyToken, TimerName
from protocol.errors import ErrorCode
from protocol.messages.groups import CARRY_ON

_MEMBERS_PER_STEP: Final = 250


def on_timer(groups: dict[str, Group], name: TimerName, now: Instant) -> Effects:
    """Decides a timer that fired. One whose deadline has moved is set again, one that is void does nothing."""
    effects = Effects()
    kind = name[0]
    group = groups.get(name[1])
    if group is None:
        return effects
    if kind == "rebalance":
        if _is_due(group.rebalance_deadline_ms, name, now, effects):
            on_rebalance_timer(group, now, effects)
        return effects
    if kind == "sync":
        if _is_due(group.sync_deadline_ms, name, now, effects):
            on_sync_timer(group, now, effects)
        return effects
    if kind == "pending":
        pending = group.pending.get(name[2])
        if pending is not None and _is_due(pending.deadline_ms, name, now, effects):
            on_pending_timer(groups, group, pending, now, effects)
        return effects
    assert kind in ("session", "heartbeat"), f"a timer of an unknown kind: {name}"
    member = group.members.get(name[2])
    if member is None:
        return effects
    if kind == "heartbeat":
        if _is_due(member.heartbeat_deadline_ms, name, now, effects):
            answer_heartbeat(group, member, CARRY_ON, effects)
    elif _is_due(member.session_deadline_ms, name, now, effects):
        assert member.session_deadline_ms is not None, "a session that is over had a deadline"
        late_ms = now.ms - member.session_deadline_ms
        why = f"missed its session of {member.session_timeout_ms} ms by {late_ms} ms"
        if member.is_loaded:
            why = f"did not come back within its session of {member.session_timeout_ms} ms after the coordinator restarted"
        remove_and_rebalance(group, member, why, now, effects)
    return effects


def abandon(parked: Parked, token: ReplyToken, now: Instant) -> Effects:
    """Decides that nobody waits for an answer any more. A token that is not parked (any more) does nothing.

    A member whose first JoinGroup is given up is removed at once: it was never told a generation, so it holds nothing that
    it could lose, and the group need not wait for its session to end. If it lives, it begins again.
    """
    effects = Effects()
    if token not in parked:
        return effects
    group, member = parked[token]
    if member.heartbeat_token == token:
        forget_heartbeat(group, member, effects)
    elif member.sync_token == token:
        forget_sync(group, member, now, effects)
    elif member.is_new:
        assert member.join_token == token, f"token {token} is parked for nothing"
        forget_join(group, member, now, effects)
        remove_and_rebalance(group, member, "closed its connection before it had joined", now, effects)
    else:
        assert member.join_token == token, f"token {token} is parked for nothing"
        forget_join(group, member, now, effects)
        # A heartbeat may wait beside a parked JoinGroup only; alone it is told to join again.
        answer_heartbeat(group, member, call_again(group), effects)
    return effects


def load(group: Group, config: GroupConfig, now: Instant, effects: Effects) -> Iterator[int]:
    """Makes the soft state of a group from its durable state; the sessions of its members start now.

    Gives 0 at the end, and before it how many members have come to life since the last time, now and then.

    Of a rebalance only the number of its generation is written, so a group with members is Stable in the generation that was
    settled last: those that come back in time go on without a rebalance. A group that is larger than it may be, because the
    bound was lowered, rebalances at once.
    """
    group.loaded = True
    record = group.durable
    if record is None:
        group.generation = group.handed_out
        yield 0
        return
    group.generation = record.generation
    group.protocol_type, group.protocol_name = record.protocol_type, record.protocol_name
    group.rebalance_reason = record.rebalance_reason
    for place, stored in enumerate(record.members, start=1):
        member = Member(
            group_id=group.group_id,
            member_id=stored.member_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocols=stored.protocols,
            group_instance_id=stored.group_instance_id,
        )
        group.add(member)
        renew_session(member, now, effects)
        member.is_loaded = True
        if place % _MEMBERS_PER_STEP == 0:
            yield _MEMBERS_PER_STEP
    if record.members:
        group.leader = record.leader
        group.state = GroupState.STABLE  # born so: TRANSITIONS begins here
    if len(group.members) > config.group_max_size:
        size = f"{len(group.members)} members, more than group_max_size {config.group_max_size}"
        call_to_join(group, f"the coordinator restarted, and the group has {size}", now, effects)
    yield 0


def unload(group: Group, effects: Effects) -> None:
    """Another node leads the group, or none: everybody who waits is sent to look for it, and no timer stays."""
    for member in group.members.values():
        answer_all(group, member, ErrorCode.NOT_COORDINATOR, "the group has moved; find its coordinator again", effects)
    for pending in list(group.pending.values()):
        forget_pending(group, pending, effects)
    for kind, deadline_ms in (("rebalance", group.rebalance_deadline_ms), ("sync", group.sync_deadline_ms)):
        if deadline_ms is not None:
            effects.timers[kind, group.group_id] = None
    group.transition(GroupState.DEAD)


def _is_due(deadline_ms: int | None, name: TimerName, now: Instant, effects: Effects) -> bool:
    if deadline_ms is None:
        return False
    if now.ms >= deadline_ms:
        return True
    effects.timers[name] = deadline_ms
    return False
