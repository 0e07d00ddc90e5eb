"""Pending members (KIP-394): a new dynamic member is told its id first, and joins with it in a second JoinGroup.

So a client whose answer is lost, and which therefore asks again and again, leaves ids behind that become void by
themselves, not members that hold a share. A pending member is no member: it commits, syncs and beats nothing, and does not
count for the size of the group. But a join phase waits for it, or each new member would make a rebalance of its own; not
longer, though, than the connection lasts over which the id was asked for.

Ids that were given out are not written to the log, and no group is written only because it gave out ids (Kafka writes such
a group): nothing durable depends on them, and after a restart the member is told UNKNOWN_MEMBER_ID and asks for another.
A group that has nothing else is Empty, lives in memory only, and is dropped with its last pending member.
"""

from __future__ import annotations

from coordinator.groups.config import GroupConfig
from coordinator.groups.group import Group
from coordinator.groups.member import PendingMember
from coordinator.groups.rebalance import maybe_complete_join
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import Effects, Instant, RequestContext
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupRequest, JoinGroupResponse


def give_id(
    groups: dict[str, Group],
    group: Group,
    member_id: str,
    config: GroupConfig,
    request: JoinGroupRequest,
    context: RequestContext,
    now: Instant,
    effects: Effects,
) -> None:
    """Answers the first JoinGroup of a new member with its id, which is good for as long as its session would be."""
    if len(group.pending) >= config.max_pending_per_group:
        forget_pending(group, next(iter(group.pending.values())), effects)
    if len(group.given_ids) >= config.max_pending:
        other, oldest = group.given_ids.oldest()
        forget_pending(other, oldest, effects)
        if other is not group:
            maybe_complete_join(other, now, effects)
            drop_unless_written(groups, other, effects)
    pending = PendingMember(group.group_id, member_id, now.ms + request.session_timeout_ms, context.connection)
    group.pending[member_id] = pending
    group.awaited_pending += 1
    group.given_ids.add(pending, group)
    effects.timers[pending.timer] = pending.deadline_ms
    effects.reply(
        context.token,
        JoinGroupResponse(
            ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id, error_message="join again with this member id"
        ),
    )


def forget_pending(group: Group, pending: PendingMember, effects: Effects) -> None:
    """The id was used, given back or is void. Whoever calls this looks whether the join phase is complete without it."""
    del group.pending[pending.member_id]
    group.awaited_pending -= pending.awaited
    group.given_ids.remove(pending)
    effects.timers[pending.timer] = None


def on_pending_timer(
    groups: dict[str, Group], group: Group, pending: PendingMember, now: Instant, effects: Effects
) -> None:
    """Nobody has joined with the id in time."""
    forget_pending(group, pending, effects)
    maybe_complete_join(group, now, effects)
    drop_unless_written(groups, group, effects)


def stop_awaiting(group: Group, pending: PendingMember, now: Instant, effects: Effects) -> None:
    """The connection over which the id was asked for has closed: the client is dead, or comes over another one.

    Its id stays good for as long as it was, for the answer may just have been lost.
    """
    assert pending.awaited, f"nobody waits for {pending.member_id}"
    pending.awaited = False
    group.awaited_pending -= 1
    group.given_ids.forget_connection(pending)
    maybe_complete_join(group, now, effects)


def drop_if_nothing_is_left(groups: dict[str, Group], group: Group) -> None:
    """Forgets a group that has neither members, pending or not, nor anything in the log."""
    durable = group.durable is not None or group.handed_out or group.offsets
    if group.state is GroupState.EMPTY and not group.pending and not durable:
        group.transition(GroupState.DEAD)
        del groups[group.group_id]


def drop_unless_written(groups: dict[str, Group], group: Group, effects: Effects) -> None:
    """The same at the end of a decision, whose records, if it has any, are still to be applied."""
    if not effects.records:
        drop_if_nothing_is_left(groups, group)
