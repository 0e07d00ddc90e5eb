"""Static members (KIP-345): a process that is started again with the same instance id takes the place of the one before.

It joins with its instance id and without a member id, is given a new one, and keeps the share, the lead and the place in
the order of joining. In a stable group this needs no rebalance, unless the process wants something else than the one before:
Kafka looks at nothing but the choice of the protocol there, so that a change of topics waits for the next rebalance.

Whatever the old process asked and was waiting for is answered FENCED_INSTANCE_ID, and so is what it asks later.

The new member id is written at once, in every state, wherever the log has the old one. Kafka writes it in a stable group
only: a coordinator that dies during a rebalance then comes back with the old id and fences the process that is alive.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.groups.changes import changed_topics, same_names, wants_otherwise
from coordinator.groups.config import GroupConfig
from coordinator.groups.group import Group
from coordinator.groups.member import Member
from coordinator.groups.reasons import clipped, described, with_reason
from coordinator.groups.rebalance import call_to_join, join_response, maybe_complete_join, members_for_leader
from coordinator.groups.refusals import fenced
from coordinator.groups.state import GroupState
from coordinator.groups.waiting import answer_all, park_join, renew_session
from coordinator.runtime.effects import Effects, Instant, RequestContext
from protocol.messages.groups import JoinGroupRequest


def take_over(
    group: Group,
    member: Member,
    member_id: str,
    config: GroupConfig,
    request: JoinGroupRequest,
    context: RequestContext,
    now: Instant,
    effects: Effects,
) -> None:
    """A new process joins with the instance id of ``member`` and takes its place under ``member_id``."""
    old_id = member.member_id
    member.client_id, member.client_host = context.client_id, context.client_host
    _replace(group, member, member_id, effects)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    cause = _cause(group, member, request)
    renamed = not same_names(request.protocols, member.protocols)
    if request.protocols != member.protocols:
        group.set_protocols(member, request.protocols)
    group.count_names(member)
    if renamed and cause is None and group.state is GroupState.STABLE:
        cause = _other_choice(group, member)
    stays = group.state is GroupState.STABLE and cause is None
    if old_id in group.assignments:
        # A wish that a rebalance is to fulfil is not written with it: should this be the last of the rebalance that the
        # log sees, the member's next join must still show a change.
        _write(group, old_id, member, now, effects, with_protocols=stays)
    if stays:
        renew_session(member, now, effects)
        leads = member_id == group.leader
        response = join_response(group, member, members_for_leader(group) if leads else ())
        # Its assignment stands, so a leader need not make one (KIP-814); it has the members to watch what they need.
        effects.reply(context.token, replace(response, skip_assignment=leads))
        return
    if cause is not None:
        call_to_join(group, with_reason(cause, request.reason, config.max_reason_chars), now, effects)
    park_join(group, member, context.token, effects)
    maybe_complete_join(group, now, effects)


def _replace(group: Group, member: Member, member_id: str, effects: Effects) -> None:
    """The old process is told, whatever it waits for."""
    old_id = member.member_id
    where = f"client {clipped(member.client_id)} at {clipped(member.client_host)}"
    successor = f"member {clipped(member_id)} ({where}), a new process with the same group_instance_id"
    fault = fenced(member, member_id, old_id)
    answer_all(group, member, fault.code, fault.message, effects)
    group.rename(member, member_id)
    group.remember_departed(old_id, f"was replaced by {successor}")
    effects.notes.append(f"group {clipped(group.group_id)}: member {clipped(old_id)} was replaced by {successor}")


def _cause(group: Group, member: Member, request: JoinGroupRequest) -> str | None:
    """Why the new process makes a rebalance, or one more cause for the one that is going on; None if it does neither."""
    if group.state is GroupState.PREPARING_REBALANCE:
        return changed_topics(group, member, request.protocols)
    if group.state is GroupState.COMPLETING_REBALANCE:
        return f"{described(member)} was started again before it had its assignment"
    assert group.state is GroupState.STABLE, f"a member in a group that is {group.state.value}"
    wish = wants_otherwise(group, member, request.protocols)
    if wish is not None:
        return f"{described(member)} was started again and {wish}"
    return None


def _other_choice(group: Group, member: Member) -> str | None:
    """The cause if the members, with what the new process offers, would choose another protocol than they have."""
    elected = group.elect_protocol()
    if elected == group.protocol_name:
        return None
    return (
        f"{described(member)} was started again with other protocols, and {clipped(elected)} is the choice of all now"
    )


def _write(group: Group, old_id: str, member: Member, now: Instant, effects: Effects, *, with_protocols: bool) -> None:
    """Puts the new process in the place of the old one in the generation that the log has."""
    durable = group.durable
    assert durable is not None, f"assignments of group {group.group_id} without a record"
    members = tuple(
        stored._replace(
            member_id=member.member_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=member.protocols if with_protocols else stored.protocols,
        )
        if stored.member_id == old_id
        else stored
        for stored in durable.members
    )
    leader = member.member_id if durable.leader == old_id else durable.leader
    effects.records.append(replace(durable, leader=leader, written_wall_ms=now.wall_ms, members=members))
