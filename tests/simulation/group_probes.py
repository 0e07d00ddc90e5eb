"""Eyes in the group core: what static and cooperative members and expiry do, judged by rules written down apart from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from client.consumer.rebalance import ConsumerParticipant
from coordinator.groups.config import GroupStep
from coordinator.groups.core import GroupCore
from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.groups.group import Group
from coordinator.groups.records import GroupMetadataTombstone, OffsetCommitTombstone
from coordinator.groups.state import GroupState
from protocol.messages.groups import JoinGroupProtocol, JoinGroupRequest, LeaveGroupRequest
from protocol.subscription import CONSUMER_PROTOCOL_TYPE, decode_assignment, decode_subscription
from tests.simulation.history import Ended, Partition
from tests.simulation.world import here

COOPERATIVE: Final = "cooperative-sticky"


def is_cooperative(request: JoinGroupRequest) -> bool:
    """Whether the member goes on with what it holds while the generation forms."""
    return all(protocol.name == COOPERATIVE for protocol in request.protocols)


def held_by(request: JoinGroupRequest) -> tuple[Partition, ...]:
    """What the member still holds when it sends this: nothing, if it is not cooperative and has no handlers at work."""
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return ()
    subscription = decode_subscription(request.protocols[0].metadata)
    if not is_cooperative(request) and not subscription.holds:
        return ()
    return tuple((tp.topic, tp.partition) for tp in subscription.owned_partitions)


def _was_giving_up(group: Group, member_id: str | None) -> bool:
    """Whether a member went on with partitions that are not in its assignment: it was to join again without them."""
    for protocol in group.members[member_id].protocols if member_id is not None else ():
        if protocol.name == group.protocol_name and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
            subscription = decode_subscription(protocol.metadata)
            left = decode_assignment(group.assignments.get(member_id or "", b""))
            return subscription.holds and bool(set(subscription.owned_partitions).difference(left))
    return False


def join(original: Callable[..., Any], core: GroupCore, request: JoinGroupRequest, step: GroupStep) -> Any:
    """Notes groups of cooperative members; and static members that come back as they were, but make a rebalance."""
    place = here()
    group = core.groups.get(request.group_id)
    instance_id = request.group_instance_id
    old_id = group.instances.get(instance_id) if group is not None and instance_id is not None else None
    old = group.members[old_id].protocols if group is not None and old_id is not None else None
    settled = group is not None and group.state is GroupState.STABLE and not _was_giving_up(group, old_id)
    generation = group.generation if group is not None else 0
    effects = original(core, request, step)
    if place is not None:
        history = place[0].history
        if not is_cooperative(request):
            history.cooperative.pop(request.group_id, None)
            history.eager[request.group_id] = None
        elif request.group_id not in history.eager:
            history.cooperative[request.group_id] = None
        back = settled and old is not None and not request.member_id and _wishes(old) == _wishes(request.protocols)
        if back and group is not None and (group.state is not GroupState.STABLE or group.generation != generation):
            history.disturbed.append(
                f"at {history.now():.3f} s {instance_id} of {request.group_id} came back as it was, but the group is "
                f"{group.state.value}: {group.reason}"
            )
    return effects


def _wishes(protocols: tuple[JoinGroupProtocol, ...]) -> Any:
    """What a member wants, but for what it owns."""
    wishes = []
    for protocol in protocols:
        said: Any = protocol.metadata
        try:
            subscription = decode_subscription(protocol.metadata)
        except Exception:  # not a consumer's: compared as bytes
            wishes.append((protocol.name, said))
        else:
            wishes.append((protocol.name, (sorted(subscription.topics), subscription.user_data, subscription.rack)))
    return wishes


def rename(original: Callable[..., None], group: Group, member: Any, member_id: str) -> None:
    """Notes that the place of a static member goes to another process."""
    place = here()
    if place is not None:
        history = place[0].history
        history.overruled[member.member_id] = history.now()
        history.ownership.append(Ended(history.now(), group.group_id, member.member_id, "was replaced"))
    original(group, member, member_id)


def leave(original: Callable[..., Any], core: GroupCore, request: LeaveGroupRequest, step: GroupStep) -> Any:
    """Notes members that another client removes."""
    place = here()
    group = core.groups.get(request.group_id)
    if place is not None and group is not None:
        for leaving in request.members:
            member_id = leaving.member_id or group.instances.get(leaving.group_instance_id or "", "")
            member = group.members.get(member_id)
            if member is not None and member.client_id != step.context.client_id:
                place[0].history.overruled[member_id] = place[0].history.now()
    return original(core, request, step)


def expire(original: Callable[..., Any], core: GroupCore, name: Any, step: GroupStep) -> Any:
    """Judges what a look for expired offsets erases."""
    effects = original(core, name, step)
    place = here()
    if place is not None and name == EXPIRY_TIMER:
        kept: dict[str, int] = {}
        for record in effects.records:
            group = core.groups[record.group_id]
            left = kept.setdefault(record.group_id, sum(map(len, group.offsets.values())))
            why = None
            if isinstance(record, OffsetCommitTombstone):
                kept[record.group_id] = left - 1
                why = _why_kept(group, record, step.now.wall_ms - core.config.offsets_retention_ms)
            elif isinstance(record, GroupMetadataTombstone) and (left or group.pending or group.members):
                why = f"it is gone with {left} offsets, {len(group.pending)} pending and {len(group.members)} members"
            if why is not None:
                history = place[0].history
                history.expired_early.append(f"at {history.now():.3f} s {record}: {why}")
    return effects


def _why_kept(group: Group, record: OffsetCommitTombstone, cutoff_ms: int) -> str | None:
    committed_ms = group.offsets[record.topic][record.partition][3]
    if committed_ms > cutoff_ms:
        return f"it was committed {committed_ms - cutoff_ms} ms too late for that"
    if group.state is GroupState.EMPTY:
        empty_ms = group.durable.written_wall_ms if group.durable is not None else committed_ms
        return (
            f"the group has been empty {empty_ms - cutoff_ms} ms too short for that" if empty_ms > cutoff_ms else None
        )
    if group.state is not GroupState.STABLE or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return f"the group is {group.state.value}"
    topics = {
        topic
        for member in group.members.values()
        for topic in decode_subscription(member.metadata(group.protocol_name)).topics
    }
    return f"members subscribe to {sorted(topics)}" if record.topic in topics else None


def tell(original: Callable[..., Any], participant: ConsumerParticipant, what: str, tps: Any, reason: str) -> Any:
    """Judges what a program is told: nothing of an assignment that its member cannot hold any more by its own clock."""
    place, session = here(), participant._session
    if place is not None and session is not None and what == "on_partitions_assigned" and tps:
        world, process = place
        now_s, latest = world.loop.time(), session.latest
        over_s = now_s - min(latest.expires_s, latest.rejoin_by_s)
        if session.ended is not None or over_s > 0:
            world.history.told_late.append(
                f"at {now_s:.3f} s {process.name} was told of {sorted(map(tuple, tps))} of generation {session.generation}, "
                f"which was over for {over_s:.3f} s: {session.ended}"
            )
    return original(participant, what, tps, reason)
