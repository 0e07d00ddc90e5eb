"""The join phase of a rebalance: it begins, members join again, the generation is complete. And members that are removed.

Requests that wait: parking them, answering them, and the session that stands still meanwhile.

While the coordinator holds a JoinGroup or SyncGroup of a member, the member shows that it is alive by waiting, so its
session does not run; it starts anew when that request is answered or given up. A pending Heartbeat does not stop the
session: it waits for a third of it at most.

A second request of a kind replaces the first, which is answered so that a client that still reads it does no harm: JoinGroup
and SyncGroup with REBALANCE_IN_PROGRESS (the client joins again and finds the group as it is), a heartbeat with NONE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coordinator.groups.config import GroupStep
from coordinator.groups.group import (
    Group,
    Member,
    clipped,
    described,
    listed,
    slices,
    takes_slices,
)
from coordinator.groups.rebalance_counts import RebalanceKind
from coordinator.groups.records import GenerationRecord, GroupMetadataRecord
from coordinator.groups.state import GroupState, InitialDelay
from coordinator.runtime.effects import ReplyToken, Slices
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    CARRY_ON,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)


def call_to_join(group: Group, kind: RebalanceKind, cause: str, step: GroupStep) -> None:
    """Begins a rebalance for ``cause``, or adds the cause to the one that is going on. ``kind`` is what is counted of it.

    The caller calls ``maybe_complete_join`` afterwards: perhaps all members that are needed have joined already.
    """
    if group.causes is not None:
        group.causes.add(cause)
        return
    group.prepare_rebalance(cause)
    group.begin_rebalance(kind, step.now)
    waiting = [
        member
        for member in group.members.values()
        if member.heartbeat_token is not None or member.sync_token is not None
    ]
    if waiting:
        step.effects.begin(group.group_id, _answer_waiting(group, waiting, call_again(group), step))
    stop_sync_timer(group, step)
    _set_rebalance_timer(group, step)
    if group.members:
        step.effects.note(
            "rebalance_started",
            group=group.clipped_id,
            members=len(group.members),
            generation=group.generation,
            reason=cause,
        )


def _answer_waiting(group: Group, waiting: list[Member], called: HeartbeatResponse, step: GroupStep) -> Slices:
    for number, some in enumerate(slices(waiting)):
        if number:
            step.effects = yield
        refuse_syncs(group, some, SyncGroupResponse(called.error_code, error_message=called.message), step)
        answer_heartbeats(group, some, called, step)


def call_again(group: Group) -> HeartbeatResponse:
    """What a heartbeat hears while the group waits for its member to join."""
    return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.reason}; join again")


def maybe_complete_join(group: Group, step: GroupStep) -> None:
    """Completes the generation when every member has joined, pending ones too, and no delay holds it back.

    Without members it is complete at once.
    """
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if not group.members or (_all_joined(group) and group.initial is None):
        _complete_join(group, step)


def _all_joined(group: Group) -> bool:
    return group.joined_members == len(group.members) and not group.awaited_pending


def on_rebalance_timer(group: Group, step: GroupStep) -> None:
    """The rebalance timeout passed: dynamic members that have not joined are removed, the others go on without them.

    Static members stay, with their place and whatever share they are given, until their session ends or they do not sync in
    time (KIP-345): they are expected back. But if no other member is there, the rebalance waits once more for one that leads
    it. Members pending stay pending: one that joins later makes a rebalance of its own.
    """
    if extend_initial_delay(group, step):
        return
    late = [member for member in not_joined(group) if member.group_instance_id is None]
    why = f"did not rejoin within {group.phase_timeout_ms} ms"
    for member in late:
        remove(group, member, why, step)
    if late:
        call_to_join(group, "rebalance_timeout", f"{listed(late)} {why}", step)
    if group.members and not group.joined_members:
        group.phase_timeout_ms = group.longest_rebalance_timeout_ms()
        _set_rebalance_timer(group, step)
        step.effects.note(
            "rebalance_prolonged",  # only static members are left, and none has rejoined
            group=group.clipped_id,
            waiting_for=listed(not_joined(group)),
            ms=group.phase_timeout_ms,
        )
        return
    if group.leader is not None and not group.members[group.leader].has_joined:
        group.leader = next(member.member_id for member in group.members.values() if member.has_joined)
    _complete_join(group, step)


def on_sync_timer(group: Group, step: GroupStep) -> None:
    """Members that joined the generation but never asked for their assignment are removed; the others rebalance."""
    late = [member for member in group.members.values() if not member.has_synced]
    assert late, f"group {group.group_id} has a sync timer but all members have synced"
    why = f"did not sync within {group.phase_timeout_ms} ms"
    for member in late:
        remove(group, member, why, step)
    call_to_join(group, "sync_timeout", f"{listed(late)} {why}", step)
    maybe_complete_join(group, step)


def remove(group: Group, member: Member, why: str, step: GroupStep) -> None:
    """Takes a member out and tells whatever waits for it. ``why`` completes a sentence that begins with the member.

    Does not rebalance, so that a batch makes one rebalance; the caller does.
    """
    group.remove(member)
    where = f"group {group.clipped_id}"
    text = f"{described(member)} was removed from {where}: it {why}; join again with an empty member id"
    answer_all(group, member, ErrorCode.UNKNOWN_MEMBER_ID, text, step)
    group.remember_departed(member.member_id, why)
    step.effects.note("member_removed", group=group.clipped_id, member=described(member), reason=why)


def remove_and_rebalance(group: Group, kind: RebalanceKind, member: Member, why: str, step: GroupStep) -> None:
    """Takes one member out and rebalances the others."""
    remove(group, member, why, step)
    call_to_join(group, kind, f"{described(member)} {why}", step)
    maybe_complete_join(group, step)


def mark_synced(group: Group, member: Member, step: GroupStep) -> None:
    """The member has asked for its assignment; when all have, the sync timeout ends."""
    if not member.has_synced:
        member.has_synced = True
        group.unsynced_members -= 1
        if group.unsynced_members == 0:
            stop_sync_timer(group, step)


def stop_sync_timer(group: Group, step: GroupStep) -> None:
    """All members have synced, or the generation is over."""
    if group.sync_deadline_ms is not None:
        group.sync_deadline_ms = None
        step.effects.timers["sync", group.group_id] = None


def join_response(group: Group, member: Member, members: tuple[JoinGroupMember, ...]) -> JoinGroupResponse:
    """What a member is told of the current generation; ``members`` goes to the leader only, which hands out the shares."""
    return join_responses(group, members)(member.member_id)


def join_responses(group: Group, members: tuple[JoinGroupMember, ...]) -> Callable[[str], JoinGroupResponse]:
    """What each member is told of the generation that is the current one now, by its id."""
    generation, protocol_type, protocol_name = group.generation, group.protocol_type, group.protocol_name
    leader, reason = group.leader or "", group.rebalance_reason

    def response(member_id: str) -> JoinGroupResponse:
        return JoinGroupResponse(
            ErrorCode.NONE,
            generation_id=generation,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            leader=leader,
            member_id=member_id,
            members=members if member_id == leader else (),
            rebalance_reason=reason,
        )

    return response


def members_for_leader(group: Group) -> tuple[JoinGroupMember, ...]:
    """Every member, in the order they joined, with what it says to the protocol of this generation."""
    return tuple([member.shown(group.protocol_name) for member in group.members.values()])


def _set_rebalance_timer(group: Group, step: GroupStep) -> None:
    """The members have the longest of their rebalance timeouts to join."""
    group.rebalance_deadline_ms = step.now.ms + group.phase_timeout_ms
    step.effects.timers["rebalance", group.group_id] = group.rebalance_deadline_ms


def _complete_join(group: Group, step: GroupStep) -> None:
    _prefer_leader_of_cohort(group)
    group.complete_join()
    step.effects.timers["rebalance", group.group_id] = None
    if not group.members:
        group.end_rebalance(step.now)
        _write_empty(group, step)
        return
    step.effects.records.append(GenerationRecord(group.group_id, group.generation))
    if takes_slices(group.members.values()):
        step.effects.begin(group.group_id, _answer_joins_in_slices(group, step))
    else:
        _answer_joins(group, group.members.values(), step)
    group.sync_deadline_ms = step.now.ms + group.phase_timeout_ms
    step.effects.timers["sync", group.group_id] = group.sync_deadline_ms
    step.effects.note(
        "generation_formed",
        group=group.clipped_id,
        generation=group.generation,
        members=len(group.members),
        leader=clipped(group.leader or ""),
        protocol=clipped(group.protocol_name or ""),
        reason=group.rebalance_reason,
    )


def _prefer_leader_of_cohort(group: Group) -> None:
    """Where members of both kinds share a group, one of Cohort's leads: the first that has joined this rebalance.

    Members with handlers at work hold on to their partitions while a generation forms, whatever the assignor. A leader of
    Cohort gives none of these to another member before they were given up. One of Kafka does so only under a cooperative
    assignor: the partition would have two owners, and the offsets of the new one would be overwritten by older ones.
    """
    if group.leader is not None and group.members[group.leader].of_kafka:
        ours = (each.member_id for each in group.members.values() if each.has_joined and not each.of_kafka)
        group.leader = next(ours, group.leader)


def _answer_joins(group: Group, members: Iterable[Member], step: GroupStep) -> None:
    """Tells members of their generation, the leader among them.

    A heartbeat that waited with the member's join carries on: from here on the member beats for the new generation.
    """
    answer_joins(group, members, join_responses(group, members_for_leader(group)), CARRY_ON, step)


def _answer_joins_in_slices(group: Group, step: GroupStep) -> Slices:
    """The same for a large group: the leader comes last, as it is told of all the others."""
    leader = group.members[group.leader or ""]
    make = join_responses(group, ())
    for some in slices([member for member in group.members.values() if member is not leader]):
        answer_joins(group, some, make, CARRY_ON, step)
        for member in some:
            member.shown(group.protocol_name)  # and keeps it: made here, it need only be listed at the end
        step.effects = yield
    _answer_joins(group, (leader,), step)


def _write_empty(group: Group, step: GroupStep) -> None:
    step.effects.records.append(
        GroupMetadataRecord(
            group_id=group.group_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=None,
            leader=None,
            rebalance_reason=group.rebalance_reason,
            written_wall_ms=step.now.wall_ms,
        )
    )
    step.effects.note(
        "group_emptied",
        group=group.clipped_id,
        generation=group.generation,
        reason=group.rebalance_reason,
    )


def not_joined(group: Group) -> list[Member]:
    """The members that a rebalance still waits for."""
    return [member for member in group.members.values() if not member.has_joined]


def begin_initial_delay(group: Group, step: GroupStep) -> None:
    """The rebalance of a group that was empty has begun: its first generation may be held back for more members (KIP-134).

    While members keep coming the delay begins anew, all in all for no longer than the rebalance timeout of the first one.
    """
    configured_ms = step.config.initial_rebalance_delay_ms
    if configured_ms:
        remaining_ms = max(0, group.phase_timeout_ms - configured_ms)
        group.initial = InitialDelay(configured_ms, configured_ms, remaining_ms)
        _set_initial_delay(group, configured_ms, step)


def extend_initial_delay(group: Group, step: GroupStep) -> bool:
    """The delay is over: whether it begins anew, because members came while it ran and there is time left."""
    initial = group.initial
    if initial is None:
        return False
    if not initial.more_came or not initial.remaining_ms:
        group.initial = None
        return False
    initial.more_came = False
    delay_ms = min(initial.configured_ms, initial.remaining_ms)
    initial.remaining_ms = max(0, initial.remaining_ms - initial.delay_ms)
    initial.delay_ms = delay_ms
    _set_initial_delay(group, delay_ms, step)
    return True


def _set_initial_delay(group: Group, delay_ms: int, step: GroupStep) -> None:
    group.rebalance_deadline_ms = step.now.ms + delay_ms
    step.effects.timers["rebalance", group.group_id] = group.rebalance_deadline_ms


def renew_session(member: Member, step: GroupStep) -> None:
    """The member was heard of: its session starts anew, unless it stands still."""
    member.is_loaded = False
    if member.join_token is None and member.sync_token is None:
        step.effects.timers[member.session_timer] = member.session_deadline_ms = step.now.ms + member.session_timeout_ms


def hold_join(group: Group, member: Member, step: GroupStep) -> None:
    """Holds a JoinGroup until the generation is complete; the member counts as joined."""
    member.is_loaded = False
    if member.join_token is not None:
        _forget(group, member.join_token)
        step.effects.reply(
            member.join_token,
            JoinGroupResponse(
                ErrorCode.REBALANCE_IN_PROGRESS,
                member_id=member.member_id,
                error_message=_replaced(member, "JoinGroup"),
            ),
        )
    member.join_token = token = step.context.token
    group.requests[token] = (group, member)
    group.set_joined(member)
    _stop_session(member, step)


def answer_joins(
    group: Group,
    members: Iterable[Member],
    make: Callable[[str], JoinGroupResponse],
    beaten: HeartbeatResponse,
    step: GroupStep,
) -> None:
    """Answers the pending JoinGroup of each of these members with what ``make`` makes of its id, and its heartbeat.

    Written out, as are the others that answer all members: calls would take most of the time for ten thousand.
    """
    requests, given, timers = group.requests, step.effects.given, step.effects.timers
    now_ms = step.now.ms
    for member in members:
        token = member.join_token
        if token is not None:
            del requests[token]
            given.append((token, member.member_id, make))
            member.join_token = None
            member.is_new = member.is_loaded = False
            if member.sync_token is None:
                timers[member.session_timer] = member.session_deadline_ms = now_ms + member.session_timeout_ms
        if member.heartbeat_token is not None:
            answer_heartbeat(group, member, beaten, step)


def hold_sync(group: Group, member: Member, step: GroupStep) -> None:
    """Holds a SyncGroup until the leader's assignment is there."""
    if member.sync_token is not None:
        _forget(group, member.sync_token)
        step.effects.reply(
            member.sync_token,
            SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, error_message=_replaced(member, "SyncGroup")),
        )
    member.sync_token = token = step.context.token
    group.requests[token] = (group, member)
    _stop_session(member, step)


def answer_syncs(
    group: Group,
    members: Iterable[Member],
    make: Callable[[bytes], SyncGroupResponse],
    shares: Mapping[str, bytes],
    step: GroupStep,
) -> None:
    """Answers the pending SyncGroup of each of these members with what ``make`` makes of its share, or of an empty one."""
    requests, given, timers = group.requests, step.effects.given, step.effects.timers
    now_ms = step.now.ms
    for member in members:
        token = member.sync_token
        if token is not None:
            del requests[token]
            given.append((token, shares.get(member.member_id, b""), make))
            member.sync_token = None
            member.is_loaded = False
            if member.join_token is None:
                timers[member.session_timer] = member.session_deadline_ms = now_ms + member.session_timeout_ms


def refuse_syncs(group: Group, members: Iterable[Member], response: SyncGroupResponse, step: GroupStep) -> None:
    """Gives the pending SyncGroup of each of these members the same answer: its generation will have no assignment."""
    for member in members:
        token = member.sync_token
        if token is not None:
            _forget(group, token)
            step.effects.reply(token, response)
            member.sync_token = None
            renew_session(member, step)


def answer_heartbeats(group: Group, members: Iterable[Member], response: HeartbeatResponse, step: GroupStep) -> None:
    """Gives the pending Heartbeat of each of these members the same answer."""
    requests, given, timers = group.requests, step.effects.given, step.effects.timers
    for member in members:
        token = member.heartbeat_token
        if token is not None:
            del requests[token]
            given.append((token, response, None))
            member.heartbeat_token = None
            if member.heartbeat_deadline_ms is not None:
                member.heartbeat_deadline_ms = None
                timers[member.heartbeat_timer] = None


def hold_heartbeat(group: Group, member: Member, deadline_ms: int, step: GroupStep) -> None:
    """Holds a heartbeat until the group needs the member, or until ``deadline_ms``."""
    if member.heartbeat_token is not None:
        _forget(group, member.heartbeat_token)
        step.effects.reply(member.heartbeat_token, CARRY_ON)
    member.heartbeat_token = token = step.context.token
    group.requests[token] = (group, member)
    step.effects.timers[member.heartbeat_timer] = member.heartbeat_deadline_ms = deadline_ms


def answer_heartbeat(group: Group, member: Member, response: HeartbeatResponse, step: GroupStep) -> None:
    """Answers the pending Heartbeat of a member, if there is one."""
    token = member.heartbeat_token
    if token is not None:
        forget_heartbeat(group, member, step)
        step.effects.reply(token, response)


def answer_all(group: Group, member: Member, code: ErrorCode, message: str, step: GroupStep) -> None:
    """Answers whatever waits for a member that goes with the same error, and stops its timers."""
    if member.join_token is not None:
        _forget(group, member.join_token)
        step.effects.reply(
            member.join_token, JoinGroupResponse(code, member_id=member.member_id, error_message=message)
        )
        member.join_token = None
    if member.sync_token is not None:
        _forget(group, member.sync_token)
        step.effects.reply(member.sync_token, SyncGroupResponse(code, error_message=message))
        member.sync_token = None
    answer_heartbeat(group, member, HeartbeatResponse(code, message), step)
    _stop_session(member, step)


def forget_join(group: Group, member: Member, step: GroupStep) -> None:
    """The connection of the JoinGroup has closed. The member stays joined: it gets the same answer when it asks again."""
    assert member.join_token is not None, f"{member.member_id} has no pending JoinGroup"
    _forget(group, member.join_token)
    member.join_token = None
    renew_session(member, step)


def forget_sync(group: Group, member: Member, step: GroupStep) -> None:
    """The connection of the SyncGroup has closed."""
    assert member.sync_token is not None, f"{member.member_id} has no pending SyncGroup"
    _forget(group, member.sync_token)
    member.sync_token = None
    renew_session(member, step)


def forget_heartbeat(group: Group, member: Member, step: GroupStep) -> None:
    """The connection of the Heartbeat has closed, or it is answered."""
    assert member.heartbeat_token is not None, f"{member.member_id} has no pending heartbeat"
    _forget(group, member.heartbeat_token)
    member.heartbeat_token = None
    _stop_heartbeat_timer(member, step)


def _forget(group: Group, token: ReplyToken) -> None:
    del group.requests[token]


def _stop_session(member: Member, step: GroupStep) -> None:
    if member.session_deadline_ms is not None:
        member.session_deadline_ms = None
        step.effects.timers[member.session_timer] = None


def _stop_heartbeat_timer(member: Member, step: GroupStep) -> None:
    if member.heartbeat_deadline_ms is not None:
        member.heartbeat_deadline_ms = None
        step.effects.timers[member.heartbeat_timer] = None


def _replaced(member: Member, kind: str) -> str:
    return f"{described(member)} sent another {kind} after this one, which is answered in its place; join again"
