"""Requests that wait: parking them, answering them, and the session that stands still meanwhile.

While the coordinator holds a JoinGroup or SyncGroup of a member, the member shows that it is alive by waiting, so its
session does not run; it starts anew when that request is answered or given up. A parked heartbeat does not stop the session:
it waits for half of it at most.

A second request of a kind replaces the first, which is answered so that a client that still reads it does no harm: JoinGroup
and SyncGroup with REBALANCE_IN_PROGRESS (the client joins again and finds the group as it is), a heartbeat with NONE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coordinator.groups.group import Group
from coordinator.groups.member import Member
from coordinator.groups.reasons import described
from coordinator.runtime.effects import Effects, Instant, ReplyToken
from protocol.errors import ErrorCode
from protocol.messages.groups import CARRY_ON, HeartbeatResponse, JoinGroupResponse, SyncGroupResponse


def renew_session(member: Member, now: Instant, effects: Effects) -> None:
    """The member was heard of: its session starts anew, unless it stands still."""
    member.is_loaded = False
    if member.join_token is None and member.sync_token is None:
        effects.timers[member.session_timer] = member.session_deadline_ms = now.ms + member.session_timeout_ms


def park_join(group: Group, member: Member, token: ReplyToken, effects: Effects) -> None:
    """Holds a JoinGroup until the generation is complete; the member counts as joined."""
    member.is_loaded = False
    if member.join_token is not None:
        _forget(group, member.join_token)
        effects.reply(
            member.join_token,
            JoinGroupResponse(
                ErrorCode.REBALANCE_IN_PROGRESS,
                member_id=member.member_id,
                error_message=_replaced(member, "JoinGroup"),
            ),
        )
    member.join_token = token
    group.parked[token] = (group, member)
    group.set_joined(member)
    _stop_session(member, effects)


def answer_joins(
    group: Group,
    members: Iterable[Member],
    make: Callable[[str], JoinGroupResponse],
    beaten: HeartbeatResponse,
    now: Instant,
    effects: Effects,
) -> None:
    """Answers the parked JoinGroup of each of these members with what ``make`` makes of its id, and its heartbeat.

    Written out, as are the others that answer all members: calls would take most of the time for ten thousand.
    """
    parked, given, timers = group.parked, effects.given, effects.timers
    for member in members:
        token = member.join_token
        if token is not None:
            del parked[token]
            given.append((token, member.member_id, make))
            member.join_token = None
            member.is_new = member.is_loaded = False
            if member.sync_token is None:
                timers[member.session_timer] = member.session_deadline_ms = now.ms + member.session_timeout_ms
        if member.heartbeat_token is not None:
            answer_heartbeat(group, member, beaten, effects)


def park_sync(group: Group, member: Member, token: ReplyToken, effects: Effects) -> None:
    """Holds a SyncGroup until the leader's assignment is there."""
    if member.sync_token is not None:
        _forget(group, member.sync_token)
        effects.reply(
            member.sync_token,
            SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, error_message=_replaced(member, "SyncGroup")),
        )
    member.sync_token = token
    group.parked[token] = (group, member)
    _stop_session(member, effects)


def answer_syncs(
    group: Group,
    members: Iterable[Member],
    make: Callable[[bytes], SyncGroupResponse],
    shares: Mapping[str, bytes],
    now: Instant,
    effects: Effects,
) -> None:
    """Answers the parked SyncGroup of each of these members with what ``make`` makes of its share, or of an empty one."""
    parked, given, timers = group.parked, effects.given, effects.timers
    for member in members:
        token = member.sync_token
        if token is not None:
            del parked[token]
            given.append((token, shares.get(member.member_id, b""), make))
            member.sync_token = None
            member.is_loaded = False
            if member.join_token is None:
                timers[member.session_timer] = member.session_deadline_ms = now.ms + member.session_timeout_ms


def refuse_syncs(
    group: Group, members: Iterable[Member], response: SyncGroupResponse, now: Instant, effects: Effects
) -> None:
    """Gives the parked SyncGroup of each of these members the same answer: its generation will have no assignment."""
    for member in members:
        token = member.sync_token
        if token is not None:
            _forget(group, token)
            effects.reply(token, response)
            member.sync_token = None
            renew_session(member, now, effects)


def answer_heartbeats(group: Group, members: Iterable[Member], response: HeartbeatResponse, effects: Effects) -> None:
    """Gives the parked heartbeat of each of these members the same answer."""
    parked, given, timers = group.parked, effects.given, effects.timers
    for member in members:
        token = member.heartbeat_token
        if token is not None:
            del parked[token]
            given.append((token, response, None))
            member.heartbeat_token = None
            if member.heartbeat_deadline_ms is not None:
                member.heartbeat_deadline_ms = None
                timers[member.heartbeat_timer] = None


def park_heartbeat(group: Group, member: Member, token: ReplyToken, deadline_ms: int, effects: Effects) -> None:
    """Holds a heartbeat until the group needs the member, or until ``deadline_ms``."""
    if member.heartbeat_token is not None:
        _forget(group, member.heartbeat_token)
        effects.reply(member.heartbeat_token, CARRY_ON)
    member.heartbeat_token = token
    group.parked[token] = (group, member)
    effects.timers[member.heartbeat_timer] = member.heartbeat_deadline_ms = deadline_ms


def answer_heartbeat(group: Group, member: Member, response: HeartbeatResponse, effects: Effects) -> None:
    """Answers the parked heartbeat of a member, if there is one."""
    token = member.heartbeat_token
    if token is not None:
        forget_heartbeat(group, member, effects)
        effects.reply(token, response)


def answer_all(group: Group, member: Member, code: ErrorCode, message: str, effects: Effects) -> None:
    """Answers whatever waits for a member that goes with the same error, and stops its timers."""
    if member.join_token is not None:
        _forget(group, member.join_token)
        effects.reply(member.join_token, JoinGroupResponse(code, member_id=member.member_id, error_message=message))
        member.join_token = None
    if member.sync_token is not None:
        _forget(group, member.sync_token)
        effects.reply(member.sync_token, SyncGroupResponse(code, error_message=message))
        member.sync_token = None
    answer_heartbeat(group, member, HeartbeatResponse(code, message), effects)
    _stop_session(member, effects)


def forget_join(group: Group, member: Member, now: Instant, effects: Effects) -> None:
    """Nobody waits for the JoinGroup any more. The member stays joined: it gets the same answer when it asks again."""
    assert member.join_token is not None, f"{member.member_id} has no parked JoinGroup"
    _forget(group, member.join_token)
    member.join_token = None
    renew_session(member, now, effects)


def forget_sync(group: Group, member: Member, now: Instant, effects: Effects) -> None:
    """Nobody waits for the SyncGroup any more."""
    assert member.sync_token is not None, f"{member.member_id} has no parked SyncGroup"
    _forget(group, member.sync_token)
    member.sync_token = None
    renew_session(member, now, effects)


def forget_heartbeat(group: Group, member: Member, effects: Effects) -> None:
    """Nobody waits for the heartbeat any more."""
    assert member.heartbeat_token is not None, f"{member.member_id} has no parked heartbeat"
    _forget(group, member.heartbeat_token)
    member.heartbeat_token = None
    _stop_heartbeat_timer(member, effects)


def _forget(group: Group, token: ReplyToken) -> None:
    del group.parked[token]


def _stop_session(member: Member, effects: Effects) -> None:
    if member.session_deadline_ms is not None:
        member.session_deadline_ms = None
        effects.timers[member.session_timer] = None


def _stop_heartbeat_timer(member: Member, effects: Effects) -> None:
    if member.heartbeat_deadline_ms is not None:
        member.heartbeat_deadline_ms = None
        effects.timers[member.heartbeat_timer] = None


def _replaced(member: Member, kind: str) -> str:
    return f"{described(member)} sent another {kind} after this one, which is answered in its place; join again"
