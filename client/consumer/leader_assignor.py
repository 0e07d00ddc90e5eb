"""The leader's part: from all members' subscriptions to a plan, on the background loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeGuard

import msgpack

from client.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from client.assignors.assignor import NO_RACKS, Racks, wants_racks
from client.assignors.plan import Plan
from client.garbage import without_garbage_collection
from client.log import get_logger
from client.transport.cluster import Cluster
from client.transport.metadata import Topology
from protocol.codec import pack
from protocol.consumer_protocol import decode_sticky_user_data
from protocol.errors import ProtocolError
from protocol.messages.groups import JoinGroupMember
from protocol.subscription import (
    Subscription,
    TopicPartition,
    assignment_user_data,
    decode_subscription,
)

_OUR_OWN: Final = (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
"""Assignors that are known to compute and nothing else; one of a program may wait for something."""
_NEW_FROM: Final = "new_from"
_SMALL_BYTES: Final = 16_384
"""So many bytes of subscriptions are read in well under a millisecond."""
_SMALL_PLAN: Final = 1_000
"""Partitions times members of a plan that takes about a millisecond."""

log = get_logger()


class LeaderAssignor:
    """Runs the assignor the group chose, and watches whether its plan still fits the topics."""

    def __init__(
        self,
        group_id: str,
        assignors: Sequence[Assignor],
        first_seen: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """``first_seen``: how many partitions this member's topics had when it first saw them."""
        self._group_id = group_id
        self._first_seen = first_seen
        self._first_planned: dict[str, int] = {}
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._planned: dict[str, int] = {}

    async def assign(
        self, cluster: Cluster, protocol: str, members: Sequence[JoinGroupMember], leader: str
    ) -> Mapping[str, bytes]:
        """See ``Assigner.assign``.

        What takes long in a large group, or may, runs in worker threads: heartbeats go on meanwhile. In a small one the way
        to a thread and back is longer than the work, and all members wait for it.
        """
        loop = asyncio.get_running_loop()
        small = sum(len(member.metadata) for member in members) <= _SMALL_BYTES

        def read() -> tuple[dict[str, Subscription], list[str]]:
            with without_garbage_collection():
                subscriptions = self._subscriptions(members)
                return subscriptions, _topics(subscriptions.values())

        subscriptions, topics = read() if small else await loop.run_in_executor(None, read)
        counts = await self._count(cluster, topics)
        new_from = self._new_from()
        wanted = any(each.rack is not None for each in subscriptions.values())
        racks = cluster.topology.replica_racks(counts) if wanted else NO_RACKS
        assignor = self._assignors[protocol]
        if isinstance(assignor, StickyAssignor):
            subscriptions = {member_id: _with_user_data(said) for member_id, said in subscriptions.items()}

        def plan() -> dict[str, bytes]:
            static = subscriptions[leader].group_instance_id is not None
            told = {leader: pack(counts)} if static else {}  # it is to know this when it comes back
            with without_garbage_collection():
                return encoded_plan(assignor, counts, subscriptions, racks, new_from, told)

        if small and _is_our_own(assignor) and sum(counts.values()) * len(members) <= _SMALL_PLAN:
            return plan()
        return await loop.run_in_executor(None, plan)

    async def watch(self, cluster: Cluster, members: Sequence[JoinGroupMember], share: bytes) -> None:
        """See ``Assigner.watch``. The share of a static leader says how many partitions its plan was made for."""

        def read() -> list[str]:
            return _topics(self._subscriptions(members).values())

        await self._count(cluster, await asyncio.get_running_loop().run_in_executor(None, read))
        counts = _planned_counts(share)
        if counts is not None:
            self._planned = {topic: counts.get(topic, 0) for topic in self._planned}

    async def _count(self, cluster: Cluster, topics: Sequence[str]) -> dict[str, int]:
        """The partitions of the topics that exist; from now on ``outdated`` compares with these numbers."""
        cluster.track(topics)
        if not cluster.topology.asked.issuperset(topics):
            await cluster.refresh()
        known = cluster.topology.topics
        self._planned = {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}
        return {topic: count for topic, count in self._planned.items() if count}

    def _new_from(self) -> dict[str, int]:
        """The first partition of each topic that has appeared since this member reads it, or leads."""
        seen = self._first_seen()
        new_from: dict[str, int] = {}
        for topic, planned in self._planned.items():
            first = min(planned, seen.get(topic, planned), self._first_planned.get(topic, planned))
            self._first_planned[topic] = first
            if first < planned:
                new_from[topic] = first
        return new_from

    def outdated(self, topology: Topology) -> str | None:
        """See ``Assigner.outdated``."""
        for topic, planned in self._planned.items():
            if topic not in topology.asked:
                continue
            present = len(topology.topics[topic].partitions) if topic in topology.topics else 0
            if not planned and present:
                return f"topic {topic!r} has appeared, with {present} partition{'' if present == 1 else 's'}"
            if planned and not present:
                return f"topic {topic!r} is gone"
            if present != planned:
                return f"topic {topic!r} has {present} partitions now and had {planned}"
        return None

    def _subscriptions(self, members: Sequence[JoinGroupMember]) -> dict[str, Subscription]:
        """By member id. Members that join for the first time mostly say the same: it is read once."""
        read: dict[bytes, Subscription] = {}
        subscriptions: dict[str, Subscription] = {}
        for member in members:
            if member.metadata not in read:
                read[member.metadata] = self._subscription(member)
            said = read[member.metadata]
            if said.group_instance_id != member.group_instance_id:
                said = replace(said, group_instance_id=member.group_instance_id)
            subscriptions[member.member_id] = said
        return subscriptions

    def _subscription(self, member: JoinGroupMember) -> Subscription:
        try:
            return decode_subscription(member.metadata, member.group_instance_id)
        except ProtocolError as error:
            # One broken client must not keep the whole group from its work.
            log.warning(
                "subscription_unreadable",
                group=self._group_id,
                member=member.member_id,
                error=str(error),
            )
            return Subscription(())


def _with_user_data(said: Subscription) -> Subscription:
    """What a member of Kafka's ``StickyAssignor`` held is in its user data; other members say it in their subscription."""
    if not said.user_data or said.owned_partitions:
        return said
    try:
        owned, generation = decode_sticky_user_data(said.user_data)
    except ProtocolError:
        return said  # of an assignor that is not known here
    held = tuple(TopicPartition(topic, number) for topic in sorted(owned) for number in sorted(owned[topic]))
    return replace(said, owned_partitions=held, generation=generation)


def _planned_counts(share: bytes) -> dict[str, int] | None:
    """The numbers that a static leader has put beside its share; None for a plan of a client that does not."""
    try:
        counts = msgpack.unpackb(assignment_user_data(share))
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, ProtocolError):
        return None
    known = isinstance(counts, dict) and all(type(topic) is str and type(n) is int for topic, n in counts.items())
    return counts if known else None


def noted_as_new(share: bytes) -> Mapping[str, int]:
    """The first new partition of each topic with new ones in this share, as its leader has noted it."""
    try:
        noted = msgpack.unpackb(assignment_user_data(share)).get(_NEW_FROM, {})
        known = all(type(topic) is str and type(first) is int for topic, first in noted.items())
    except (ValueError, TypeError, AttributeError, msgpack.exceptions.UnpackException, ProtocolError):
        return {}  # nothing, or the note of another client
    return noted if known else {}


def _topics(subscriptions: Iterable[Subscription]) -> list[str]:
    return sorted({topic for topics in {each.topics for each in subscriptions} for topic in topics})


def _is_our_own(
    assignor: Assignor,
) -> TypeGuard[RangeAssignor | RoundRobinAssignor | StickyAssignor | CooperativeStickyAssignor]:
    """Not so for a subclass, which may do as it likes."""
    return type(assignor) in _OUR_OWN


def encoded_plan(
    assignor: Assignor,
    partitions: Mapping[str, int],
    members: Mapping[str, Subscription],
    racks: Racks,
    new_from: Mapping[str, int],
    user_data: Mapping[str, bytes],
) -> dict[str, bytes]:
    """What a leader sends to each member: its share of the plan that ``assignor`` makes, and its ``user_data``.

    A member without any is told which partitions of its share are new, those from ``new_from`` of their topic on: one that
    has just come cannot know. Plans of our own assignors are encoded as they are, without a ``TopicPartition`` for each.
    """
    holding = _holding(assignor, members)
    if _is_our_own(assignor) and (is_cooperative(assignor) or not holding):
        plan = assignor.plan(partitions, members, racks)
    else:
        if racks and wants_racks(assignor):
            made = assignor.assign(partitions, members, racks)
        else:
            made = assignor.assign(partitions, members)
        shares = withhold_what_is_held(made, holding)
        order = list({**shares, **user_data})
        plan = Plan(order, [], [list(shares.get(member_id, ())) for member_id in order])
    new = {member_id: pack({_NEW_FROM: new}) for member_id, new in plan.reaching(new_from).items()}
    return plan.encoded({**new, **user_data})


def is_cooperative(assignor: Assignor) -> bool:
    """Whether members may hold their partitions while this assignor's plan is made (KIP-429)."""
    return bool(getattr(assignor, "cooperative", False))


def _holding(assignor: Assignor, subscriptions: Mapping[str, Subscription]) -> Mapping[str, Subscription]:
    """Those of members that hold what they own while the plan is made.

    Under a cooperative assignor all do, under another one those that say so.
    """
    if is_cooperative(assignor):
        return subscriptions
    return {member_id: subscription for member_id, subscription in subscriptions.items() if subscription.holds}


def withhold_what_is_held(
    shares: Mapping[str, Sequence[TopicPartition]], holding: Mapping[str, Subscription]
) -> Mapping[str, Sequence[TopicPartition]]:
    """The plan without the partitions that another member still holds: they are given away when it has given them up.

    ``CooperativeStickyAssignor`` sees to this by itself. For a cooperative assignor of a program it is made sure of here: a
    partition must not have two owners, whatever an assignor does. So it is for members that hold on to their share under
    another one. The members of ``holding`` hold what they say they own, however old the generation that they name.
    """
    if not holding:
        return shares
    added = {
        tp: member_id
        for member_id, share in shares.items()
        for tp in set(share).difference(holding[member_id].owned_partitions if member_id in holding else ())
    }
    held: set[TopicPartition] = set()
    if added:
        for member_id, subscription in holding.items():
            claimed = added.keys() & subscription.owned_partitions
            held.update(tp for tp in claimed if added[tp] != member_id)
    if not held:
        return shares
    return {member_id: [tp for tp in share if tp not in held] for member_id, share in shares.items()}
