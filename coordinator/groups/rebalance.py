"""The road of a rebalance: it begins, members join again, the generation is complete. And members that are removed."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.groups import initial_delay
from coordinator.groups.group import Group, slices, takes_slices
from coordinator.groups.member import Member
from coordinator.groups.reasons import Causes, clipped, counted, described, listed
from coordinator.groups.records import GenerationRecord, GroupMetadataRecord
from coordinator.groups.state import GroupState
from coordinator.groups.waiting import answer_all, answer_heartbeats, answer_joins, refuse_syncs
from coordinator.runtime.effects import Effects, Instant, Slices
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    CARRY_ON,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)


def call_to_join(group: Group, cause: str, now: Instant, effects: Effects) -> None:
    """Begins a rebalance for ``cause``, or adds the cause to the one that is going on.

    Whoever calls this calls ``maybe_complete_join`` after it: perhaps everybody that is needed is there already.
    """
    if group.causes is not None:
        group.causes.add(cause)
        return
    group.causes = Causes()
    group.causes.add(cause)
    group.transition(GroupState.PREPARING_REBALANCE)
    group.joined_members = group.joined_statics = 0
    called = call_again(group)
    for member in group.members.values():
        member.has_joined = False
    waiting = [
        member
        for member in group.members.values()
        if member.heartbeat_token is not None or member.sync_token is not None
    ]
    effects.begin(group.group_id, _answer_waiting(group, waiting, called, now, effects))
    stop_sync_timer(group, effects)
    _start_phase(group, now, effects)
    if group.members:
        effects.notes.append(
            f"group {clipped(group.group_id)}: rebalance of {counted(len(group.members), 'member')} begins after generation "
            f"{group.generation}: {cause}"
        )


def _answer_waiting(
    group: Group, waiting: list[Member], called: HeartbeatResponse, now: Instant, effects: Effects
) -> Slices:
    for number, some in enumerate(slices(waiting)):
        if number:
            effects = yield
        refuse_syncs(group, some, SyncGroupResponse(called.error_code, error_message=called.message), now, effects)
        answer_heartbeats(group, some, called, effects)


def call_again(group: Group) -> HeartbeatResponse:
    """What a heartbeat hears while the group waits for its member to join."""
    return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.reason}; join again")


def maybe_complete_join(group: Group, now: Instant, effects: Effects) -> None:
    """Completes the generation when every member has joined, pending ones too, and no delay holds it back.

    Without members nobody is waited for.
    """
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if not group.members or (_everybody_joined(group) and group.initial is None):
        _complete_join(group, now, effects)


def _everybody_joined(group: Group) -> bool:
    return group.joined_members == len(group.members) and not group.awaited_pending


def on_rebalance_timer(group: Group, now: Instant, effects: Effects) -> None:
    """The rebalance timeout passed: dynamic members that have not joined are removed, the others go on without them.

    Static members stay, with their place and whatever share they are given, until their session ends or they do not sync in
    time (KIP-345): they are expected back. But if nobody else is there, the rebalance waits once more for somebody to lead
    it. Pending members stay pending: whoever joins later makes a rebalance of its own.
    """
    if initial_delay.extend(group, now, effects):
        return
    late = [member for member in not_joined(group) if member.group_instance_id is None]
    why = f"did not rejoin within {group.phase_timeout_ms} ms"
    for member in late:
        remove(group, member, why, effects)
    if late:
        call_to_join(group, f"{listed(late)} {why}", now, effects)
    if group.members and not group.joined_members:
        _start_phase(group, now, effects)
        effects.notes.append(
            f"group {clipped(group.group_id)}: only static members are left and none has rejoined; waiting for "
            f"{listed(not_joined(group))} for {group.phase_timeout_ms} ms more"
        )
        return
    if group.leader is not None and not group.members[group.leader].has_joined:
        group.leader = next(member.member_id for member in group.members.values() if member.has_joined)
    _complete_join(group, now, effects)


def on_sync_timer(group: Group, now: Instant, effects: Effects) -> None:
    """Members that joined the generation but never asked for their assignment are removed; the others rebalance."""
    late = [member for member in group.members.values() if not member.has_synced]
    assert late, f"group {group.group_id} has a sync timer but waits for nobody"
    why = f"did not sync within {group.phase_timeout_ms} ms"
    for member in late:
        remove(group, member, why, effects)
    call_to_join(group, f"{listed(late)} {why}", now, effects)
    maybe_complete_join(group, now, effects)


def remove(group: Group, member: Member, why: str, effects: Effects) -> None:
    """Takes a member out and tells whatever waits for it. ``why`` completes a sentence that begins with the member.

    Does not rebalance, so that a batch makes one rebalance; the caller does.
    """
    group.remove(member)
    where = f"group {clipped(group.group_id)}"
    text = f"{described(member)} was removed from {where}: it {why}; join again with an empty member id"
    answer_all(group, member, ErrorCode.UNKNOWN_MEMBER_ID, text, effects)
    group.remember_departed(member.member_id, why)
    effects.notes.append(f"{where}: {described(member)} removed: it {why}")


def remove_and_rebalance(group: Group, member: Member, why: str, now: Instant, effects: Effects) -> None:
    """Takes one member out and rebalances the others."""
    remove(group, member, why, effects)
    call_to_join(group, f"{described(member)} {why}", now, effects)
    maybe_complete_join(group, now, effects)


def mark_synced(group: Group, member: Member, effects: Effects) -> None:
    """The member has asked for its assignment; when all have, nobody is waited for."""
    if not member.has_synced:
        member.has_synced = True
        group.unsynced_members -= 1
        if group.unsynced_members == 0:
            stop_sync_timer(group, effects)


def stop_sync_timer(group: Group, effects: Effects) -> None:
    """Nobody is waited for to sync."""
    if group.sync_deadline_ms is not None:
        group.sync_deadline_ms = None
        effects.timers["sync", group.group_id] = None


def join_response(group: Group, member: Member, members: tuple[JoinGroupMember, ...]) -> JoinGroupResponse:
    """What a member hears of the current generation; ``members`` goes to the leader only, which hands out the shares."""
    return join_responses(group, members)(member.member_id)


def join_responses(group: Group, members: tuple[JoinGroupMember, ...]) -> Callable[[str], JoinGroupResponse]:
    """What each member hears of the generation that is the current one now, by its id."""
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


def _start_phase(group: Group, now: Instant, effects: Effects) -> None:
    """The members have the longest of their rebalance timeouts to join."""
    group.phase_timeout_ms = group.longest_rebalance_timeout_ms()
    group.rebalance_deadline_ms = now.ms + group.phase_timeout_ms
    effects.timers["rebalance", group.group_id] = group.rebalance_deadline_ms


def _complete_join(group: Group, now: Instant, effects: Effects) -> None:
    assert group.causes is not None, f"group {group.group_id} completes a rebalance that never began"
    group.initial = None
    group.rebalance_deadline_ms = None
    effects.timers["rebalance", group.group_id] = None
    group.rebalance_reason = group.causes.text()
    group.causes = None
    group.generation = group.next_generation()
    if not group.members:
        _become_empty(group, now, effects)
        return
    effects.records.append(GenerationRecord(group.group_id, group.generation))
    group.protocol_name = group.elect_protocol()
    group.transition(GroupState.COMPLETING_REBALANCE)
    for member in group.members.values():
        member.has_synced = False
    effects.begin(group.group_id, _answer_joins(group, now, effects))
    group.unsynced_members = len(group.members)
    group.phase_timeout_ms = group.longest_rebalance_timeout_ms()
    group.sync_deadline_ms = now.ms + group.phase_timeout_ms
    effects.timers["sync", group.group_id] = group.sync_deadline_ms
    effects.notes.append(
        f"group {clipped(group.group_id)}: generation {group.generation} has {counted(len(group.members), 'member')}, "
        f"leader {clipped(group.leader or '')}, protocol {clipped(group.protocol_name)}: {group.rebalance_reason}"
    )


def _answer_joins(group: Group, now: Instant, effects: Effects) -> Slices:
    """Tells each member of the generation; the leader of a large group last, as it is told of all the others.

    A heartbeat that waited with the member's join carries on: from here on the member beats for the new generation.
    """
    members = list(group.members.values())
    if takes_slices(members):
        leader = group.members[group.leader or ""]
        make = join_responses(group, ())
        for some in slices([member for member in members if member is not leader]):
            answer_joins(group, some, make, CARRY_ON, now, effects)
            for member in some:
                member.shown(group.protocol_name)  # and keeps it: made here, it need only be listed at the end
            effects = yield
        members = [leader]
    answer_joins(group, members, join_responses(group, members_for_leader(group)), CARRY_ON, now, effects)


def _become_empty(group: Group, now: Instant, effects: Effects) -> None:
    group.transition(GroupState.EMPTY)
    group.protocol_name = None
    effects.records.append(
        GroupMetadataRecord(
            group_id=group.group_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=None,
            leader=None,
            rebalance_reason=group.rebalance_reason,
            written_wall_ms=now.wall_ms,
        )
    )
    effects.notes.append(
        f"group {clipped(group.group_id)}: empty since generation {group.generation}: {group.rebalance_reason}"
    )


def not_joined(group: Group) -> list[Member]:
    """The members that a rebalance still waits for."""
    return [member for member in group.members.values() if not member.has_joined]
