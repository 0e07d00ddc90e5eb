"""What an assignor is, and the order of members that most of them share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from typing import Final, Protocol, TypeGuard

from protocol.subscription import Subscription, TopicPartition

Racks = Mapping[TopicPartition, frozenset[str]]
"""The racks in which a partition has a replica; a partition that is not in the mapping has none that is known."""

NO_RACKS: Final[Racks] = {}


class Assignor(Protocol):
    """A strategy for sharing out partitions. All members of a group must have one in common, known by its ``name``.

    A program may bring its own: ``Consumer(assignors=[...])`` takes classes and instances. ``assign`` runs in a worker
    thread of the member that leads, so it may take its time; what it raises ends that member's turn as leader.

    Class attributes are optional. ``uses_owned_partitions = False`` says that the plan does not depend on who held what
    before; members then do not tell it at every join. ``cooperative = True`` says that members may go on with what they hold
    while a plan is made (KIP-429): it must give no member a partition that another one still owns. ``uses_racks = True``
    says that it is a ``RackAwareAssignor``.
    """

    @property
    def name(self) -> str:
        """The name members agree on; it travels in JoinGroup."""
        ...

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """Shares out all partitions of all subscribed topics.

        ``partitions`` gives the number of partitions of each topic that exists; ``members`` gives subscriptions by member
        id. Every member has an entry in the result, and every partition of a subscribed topic exactly one owner. The
        result depends on nothing but the arguments' content, so that any member that leads computes the same plan.
        """
        ...


class RackAwareAssignor(Assignor, Protocol):
    """An assignor that wants to know where partitions are (KIP-881). Where members are is in their subscriptions."""

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS
    ) -> dict[str, list[TopicPartition]]:
        """See ``Assignor.assign``. ``racks``: the racks of the nodes that have a replica, by partition.

        They are given when some member has said in which rack it is (``Consumer(client_rack=...)``) and nodes say it too.
        """
        ...


def wants_racks(assignor: Assignor) -> TypeGuard[RackAwareAssignor]:
    """Whether ``assign`` takes racks."""
    return bool(getattr(assignor, "uses_racks", False))


def ordered_members(members: Mapping[str, Subscription]) -> list[str]:
    """Member ids in the order in which shares are dealt.

    Static members come first, by their instance id: their place then survives a restart that gives them a new member id
    (KIP-345). The others follow by member id.
    """

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].group_instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def subscribers_by_topic(
    partitions: Mapping[str, int], members: Mapping[str, Subscription], order: list[str]
) -> dict[str, tuple[int, ...]]:
    """The subscribers of each topic, as ascending places in ``order``.

    Topics are sorted; those without a subscriber or that have no partitions are left out. Topics with the same subscribers
    share one tuple, and members that subscribe to the same topics are looked at together, so that a group of equals
    costs as much as one member.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for place, member_id in enumerate(order):
        alike.setdefault(members[member_id].topics, []).append(place)
    kinds_of: dict[str, dict[int, None]] = {}
    for kind, topics in enumerate(alike):
        for topic in topics:
            kinds_of.setdefault(topic, {})[kind] = None
    places = list(alike.values())
    merged: dict[tuple[int, ...], tuple[int, ...]] = {}
    subscribers: dict[str, tuple[int, ...]] = {}
    for topic in sorted(kinds_of):
        if partitions.get(topic, 0) > 0:
            kinds = tuple(kinds_of[topic])
            if kinds not in merged:
                merged[kinds] = tuple(sorted(chain.from_iterable(places[kind] for kind in kinds)))
            subscribers[topic] = merged[kinds]
    return subscribers


def topic_partitions(topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    """Partitions of one topic. A third of the time that calling ``TopicPartition`` takes, for there may be a million."""
    return list(map(tuple.__new__, repeat(TopicPartition), zip(repeat(topic), numbers)))
