"""What holds for a group between any two decisions, whatever happened: one function and one name for each law."""

from __future__ import annotations

from coordinator.groups.core import GroupCore
from coordinator.groups.group import MAX_CAUSES, MAX_DEPARTED, Group
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import ReplyToken, TimerName

MAX_CAUSE_CHARS = 1_000
"""More than any single cause takes: two names of 120 characters, a reason of 255 and the words between."""


def pending_tokens(core: GroupCore) -> set[ReplyToken]:
    """The requests that members have pending."""
    return {
        token
        for group in core.groups.values()
        for member in group.members.values()
        for token in (member.join_token, member.sync_token, member.heartbeat_token)
        if token is not None
    }


def the_leader_is_a_member(group: Group) -> None:
    """And without members none leads."""
    assert (group.leader in group.members) if group.members else group.leader is None


def a_group_without_members_is_empty(group: Group) -> None:
    """And only that one."""
    assert bool(group.members) == (group.state is not GroupState.EMPTY)


def the_counters_count(group: Group) -> None:
    """What stands beside the members agrees with the members."""
    members = group.members.values()
    assert group.metadata_bytes == sum(member.metadata_bytes for member in members)
    assert group.names_bytes == sum(member.count_names() for member in members)
    if group.state is GroupState.PREPARING_REBALANCE:
        assert group.joined_members == sum(member.has_joined for member in members)
        waits = group.joined_members < len(members) or group.pending or group.initial is not None
        assert waits, "a join phase that waits for no member"
        return
    assert group.initial is None, "only a join phase is held back"
    if members:
        assert group.protocol_name in group.protocols_of_all()
        assert group.unsynced_members == sum(not member.has_synced for member in members)


def a_phase_has_its_deadline(group: Group) -> None:
    """A rebalance has one while it waits for joins, a generation while it waits for syncs."""
    preparing = group.state is GroupState.PREPARING_REBALANCE
    assert (group.rebalance_deadline_ms is not None) == preparing == (group.causes is not None)
    settling = not preparing and any(not member.has_synced for member in group.members.values())
    assert (group.sync_deadline_ms is not None) == settling


def stable_means_a_share_for_each_member(group: Group) -> None:
    """Stable: the log has this generation and a share for each member. CompletingRebalance: it has not."""
    settled = group.durable is not None and group.durable.generation == group.generation
    if group.state is GroupState.STABLE:
        assert settled, "Stable without its generation in the log"
        assert set(group.assignments) == set(group.members), "Stable without an assignment for each member in the log"
    elif group.state is GroupState.COMPLETING_REBALANCE:
        assert not settled, "the log has the generation before its assignment is there"


def a_pending_request_will_be_answered(group: Group) -> None:
    """A request is pending only while something is going on that will answer it."""
    preparing = group.state is GroupState.PREPARING_REBALANCE
    completing = group.state is GroupState.COMPLETING_REBALANCE
    for member in group.members.values():
        assert member.join_token is None or preparing, "a join waits, but no generation is being made"
        assert member.sync_token is None or completing, "a sync waits, but no assignment will come"
        assert member.heartbeat_token is None or not preparing or member.join_token is not None, (
            "a heartbeat waits, but its member is called to join"
        )
        assert not member.is_new or member.join_token is not None, "no client knows the id of this member"


def a_session_runs_unless_a_request_is_held(group: Group) -> None:
    """A member whose join or sync is held shows its life by waiting; all others have a deadline."""
    for member in group.members.values():
        held = member.join_token is not None or member.sync_token is not None
        assert (member.session_deadline_ms is None) == held, "a session runs exactly while no request is held"
        assert (member.heartbeat_token is None) == (member.heartbeat_deadline_ms is None)


def pending_members_are_no_members(group: Group) -> None:
    """Until they join; and the shard knows each id that was given out."""
    assert not group.pending.keys() & group.members.keys()
    for member_id, pending in group.pending.items():
        assert pending.member_id == member_id
        assert pending in group.members_pending
    assert group.awaited_pending == sum(pending.awaited for pending in group.pending.values())


def each_instance_has_one_member(group: Group) -> None:
    """And each static member its instance."""
    assert group.instances == {
        member.group_instance_id: name for name, member in group.members.items() if member.group_instance_id is not None
    }
    assert all(member.member_id == name for name, member in group.members.items())


def timers_stand_as_the_group_says(group: Group, timers: dict[TimerName, int]) -> None:
    """Each deadline of the core is a timer of the shell, and the other way round."""
    assert timers.get(("rebalance", group.group_id)) == group.rebalance_deadline_ms
    assert timers.get(("sync", group.group_id)) == group.sync_deadline_ms
    for pending in group.pending.values():
        assert timers.get(pending.timer) == pending.deadline_ms
    for member in group.members.values():
        assert timers.get(member.session_timer) == member.session_deadline_ms
        assert timers.get(member.heartbeat_timer) == member.heartbeat_deadline_ms


def what_people_read_is_bounded(group: Group) -> None:
    """However many members come and go."""
    assert len(group.departed) <= MAX_DEPARTED
    assert group.reason.count("; ") <= MAX_CAUSES
    assert len(group.reason) <= (MAX_CAUSES + 1) * MAX_CAUSE_CHARS


GROUP_LAWS = (
    the_leader_is_a_member,
    a_group_without_members_is_empty,
    the_counters_count,
    a_phase_has_its_deadline,
    stable_means_a_share_for_each_member,
    a_pending_request_will_be_answered,
    a_session_runs_unless_a_request_is_held,
    pending_members_are_no_members,
    each_instance_has_one_member,
    what_people_read_is_bounded,
)
"""The laws that need nothing but the group."""
