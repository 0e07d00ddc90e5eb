"""Static members (KIP-345): a process that is started again with the same instance id takes the place of the one before.

It joins with its instance id and without a member id, is given a new one, and keeps the share, the lead and the place in
the order of joining. In a stable group this needs no rebalance, unless the process wants something else than the one before:
Kafka looks at nothing but the choice of the protocol there, so that a change of topics waits for the next rebalance.

Whatever the old process asked and was waiting for is answered FENCED_INSTANCE_ID, and so is what it asks later.

The new member id is written at once, in every state, wherever the log has the old one. Kafka writes it in a stable group
only: a coordinator that dies during a rebalance then comes back with the old id and fences the process that is alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from coordinator.groups.config import GroupStep
from coordinator.groups.group import Group, Member, clipped, described, with_reason
from coordinator.groups.rebalance import (
    answer_all,
    call_to_join,
    hold_join,
    join_response,
    maybe_complete_join,
    members_for_leader,
    renew_session,
)
from coordinator.groups.refusals import fenced
from coordinator.groups.state import GroupState
from protocol.errors import ProtocolError
from protocol.messages.groups import JoinGroupProtocol, JoinGroupRequest
from protocol.subscription import CONSUMER_PROTOCOL_TYPE, decode_assignment, decode_subscription, decode_topics

_MAX_TOPICS_CHARS: Final = 100
_MAX_TOPICS: Final = 5


def take_over(group: Group, member: Member, member_id: str, request: JoinGroupRequest, step: GroupStep) -> None:
    """A new process joins with the instance id of ``member`` and takes its place under ``member_id``."""
    old_id = member.member_id
    member.client_id, member.client_host = step.context.client_id, step.context.client_host
    member.client_software, member.of_kafka = step.context.client_software, step.context.of_kafka
    _replace(group, member, member_id, step)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    cause = _cause(group, member, old_id, request)
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
        _write(group, old_id, member, step, with_protocols=stays)
    if stays:
        renew_session(member, step)
        leads = member_id == group.leader
        response = join_response(group, member, members_for_leader(group) if leads else ())
        # Its assignment stands, so a leader need not make one (KIP-814); it has the members to watch what they need.
        step.reply(replace(response, skip_assignment=leads))
        return
    if cause is not None:
        call_to_join(
            group, "static_member_restarted", with_reason(cause, request.reason, step.config.max_reason_chars), step
        )
    hold_join(group, member, step)
    maybe_complete_join(group, step)


def _replace(group: Group, member: Member, member_id: str, step: GroupStep) -> None:
    """The old process is told, whatever it waits for."""
    old_id = member.member_id
    where = f"client {clipped(member.client_id)} at {clipped(member.client_host)}"
    successor = f"member {clipped(member_id)} ({where}), a new process with the same group_instance_id"
    fault = fenced(member, member_id, old_id)
    answer_all(group, member, fault.code, fault.message, step)
    group.rename(member, member_id)
    group.remember_departed(old_id, f"was replaced by {successor}")
    step.effects.note("static_member_replaced", group=group.clipped_id, member=clipped(old_id), replaced_by=successor)


def _cause(group: Group, member: Member, old_id: str, request: JoinGroupRequest) -> str | None:
    """Why the new process makes a rebalance, or one more cause for the one that is going on; None if it does neither.

    ``old_id`` is the id under which the process before it has its assignment.
    """
    if group.state is GroupState.PREPARING_REBALANCE:
        return changed_topics(group, member, request.protocols)
    if group.state is GroupState.COMPLETING_REBALANCE:
        return f"{described(member)} was started again before it had its assignment"
    assert group.state is GroupState.STABLE, f"a member in a group that is {group.state.value}"
    if _was_giving_up(group, member, old_id):
        return (
            f"{described(member)} was started again before it had joined without the partitions that it was to give up"
        )
    wish = wants_otherwise(group, member, request.protocols)
    if wish is not None:
        return f"{described(member)} was started again and {wish}"
    return None


def _was_giving_up(group: Group, member: Member, old_id: str) -> bool:
    """Whether the process before held partitions in the rebalance that its assignment does not leave it (KIP-429).

    It was to join again when it had given them up, so that others get them. The new process holds nothing and has no
    reason to, so without a rebalance these partitions would be without an owner.
    """
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    said, _ = _said(group, member.protocols, member.protocols)
    try:
        subscription = decode_subscription(said)
        left = decode_assignment(group.assignments.get(old_id, b""))
    except ProtocolError:
        return False
    return subscription.holds and not set(subscription.owned_partitions) <= set(left)


def _other_choice(group: Group, member: Member) -> str | None:
    """The cause if the members, with what the new process offers, would choose another protocol than they have."""
    elected = group.elect_protocol()
    if elected == group.protocol_name:
        return None
    return (
        f"{described(member)} was started again with other protocols, and {clipped(elected)} is the choice of all now"
    )


def _write(group: Group, old_id: str, member: Member, step: GroupStep, *, with_protocols: bool) -> None:
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
    step.effects.records.append(replace(durable, leader=leader, written_wall_ms=step.now.wall_ms, members=members))


def rejoined(group: Group, member: Member, protocols: tuple[JoinGroupProtocol, ...]) -> str:
    """A known member comes with other ``protocols`` than before: what that means."""
    if not same_names(protocols, member.protocols):
        return f"{described(member)} offers {_listed_names(protocols)} instead of {_listed_names(member.protocols)}"
    before, after = _said(group, member.protocols, protocols)
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return f"{described(member)} changed its metadata"
    try:
        old, new = decode_topics(before), decode_topics(after)
    except ProtocolError:
        return f"{described(member)} changed its subscription"
    if set(old) != set(new):
        return f"{described(member)} changed its subscription from {_shown(old)} to {_shown(new)}"
    return f"{described(member)} rejoined"


def changed_topics(group: Group, member: Member, protocols: tuple[JoinGroupProtocol, ...]) -> str | None:
    """The sentence for a member whose topics are others now; None if they are not, or cannot be told."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    before, after = _said(group, member.protocols, protocols)
    try:
        changed = set(decode_topics(before)) != set(decode_topics(after))
    except ProtocolError:
        return None
    return rejoined(group, member, protocols) if changed else None


def wants_otherwise(group: Group, member: Member, protocols: tuple[JoinGroupProtocol, ...]) -> str | None:
    """What a static member that was started again wants otherwise than the process before it; None if nothing.

    For consumers what they owned, and in which generation, does not count: a new process owns nothing.
    """
    before, after = _said(group, member.protocols, protocols)
    if before == after:
        return None
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return "changed its metadata"
    try:
        old, new = decode_subscription(before), decode_subscription(after)
    except ProtocolError:
        return "changed its subscription"
    if set(old.topics) != set(new.topics):
        return f"changed its subscription from {_shown(old.topics)} to {_shown(new.topics)}"
    if old.rack != new.rack:
        return f"moved from rack {clipped(old.rack or 'unknown', 60)} to {clipped(new.rack or 'unknown', 60)}"
    return "changed its user data" if old.user_data != new.user_data else None


def _said(
    group: Group, before: tuple[JoinGroupProtocol, ...], after: tuple[JoinGroupProtocol, ...]
) -> tuple[bytes, bytes]:
    """What is said to the protocol of the generation, or to one that both name, or nothing."""
    old = {protocol.name: protocol.metadata for protocol in before}
    new = {protocol.name: protocol.metadata for protocol in after}
    if group.protocol_name in old and group.protocol_name in new:
        return old[group.protocol_name], new[group.protocol_name]
    shared = next((name for name in new if name in old), None)
    return (b"", b"") if shared is None else (old[shared], new[shared])


def same_names(one: tuple[JoinGroupProtocol, ...], other: tuple[JoinGroupProtocol, ...]) -> bool:
    """Whether the same protocols are offered, in the same order."""
    return _names(one) == _names(other)


def _names(protocols: tuple[JoinGroupProtocol, ...]) -> list[str]:
    return [protocol.name for protocol in protocols]


def _listed_names(protocols: tuple[JoinGroupProtocol, ...]) -> str:
    return clipped(", ".join(_names(protocols)))


def _shown(topics: Iterable[str]) -> str:
    names = sorted(set(topics))
    more = f", and {len(names) - _MAX_TOPICS} more" if len(names) > _MAX_TOPICS else ""
    return "{" + clipped(", ".join(names[:_MAX_TOPICS]), _MAX_TOPICS_CHARS) + more + "}"
