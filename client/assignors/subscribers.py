"""Which member may get which topic: topics bundled by their subscribers, and the parts of a group that share nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.subscription import Subscription


@dataclass(frozen=True, slots=True)
class Bundle:
    """Topics that have the very same subscribers. A member that may hold one of their partitions may hold any.

    ``topics`` are sorted, ``partitions`` is their number in all, ``subscribers`` are places in the order of members.
    """

    topics: tuple[str, ...]
    partitions: int
    subscribers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Members and bundles (by their places) that have no subscription in common with the rest of the group."""

    members: list[int]
    bundles: list[int]


@dataclass(frozen=True, slots=True)
class Subscribers:
    """The subscriptions of a group: member ids in order, what each subscribes to that exists, and the bundles."""

    order: list[str]
    topics: list[frozenset[str]]
    bundles: list[Bundle]

    def bundle_of_topic(self) -> dict[str, int]:
        """The bundle, by its place, of each topic that has a subscriber."""
        return {topic: place for place, bundle in enumerate(self.bundles) for topic in bundle.topics}

    def parts(self) -> list[Part]:
        """Splits the group where no subscription joins it. Members that subscribe to nothing are in no part."""
        joined = list(
            range(len(self.order))
        )  # each member leads on to another one of its part, in the end to one for all
        for bundle in self.bundles:
            last = _last(joined, bundle.subscribers[0])
            for member in bundle.subscribers:
                if joined[member] != last:
                    joined[_last(joined, member)] = last
                    joined[member] = last
        parts: dict[int, Part] = {}
        for place, bundle in enumerate(self.bundles):
            parts.setdefault(_last(joined, bundle.subscribers[0]), Part([], [])).bundles.append(place)
        for member, topics in enumerate(self.topics):
            if topics:
                parts[_last(joined, member)].members.append(member)
        return list(parts.values())


def _last(joined: list[int], member: int) -> int:
    while joined[member] != member:
        joined[member] = member = joined[joined[member]]
    return member


def read_subscriptions(partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Subscribers:
    """Orders the members by id and bundles the topics. Topics without partitions count as not there."""
    order = sorted(members)
    existing: dict[tuple[str, ...], frozenset[str]] = {}
    alike: dict[frozenset[str], list[int]] = {}
    topics_of: list[frozenset[str]] = []
    for place, member_id in enumerate(order):
        asked = members[member_id].topics
        topics = existing.get(asked)
        if topics is None:
            topics = existing[asked] = frozenset(topic for topic in asked if partitions.get(topic, 0) > 0)
        topics_of.append(topics)
        alike.setdefault(topics, []).append(place)
    asking: dict[str, list[int]] = {}
    places = list(alike.values())
    for number, topics in enumerate(alike):
        for topic in topics:
            asking.setdefault(topic, []).append(number)
    bundled: dict[tuple[int, ...], list[str]] = {}
    for topic in sorted(asking):
        bundled.setdefault(tuple(asking[topic]), []).append(topic)
    return Subscribers(
        order, topics_of, [_bundle(names, partitions, numbers, places) for numbers, names in bundled.items()]
    )


def _bundle(
    names: list[str], partitions: Mapping[str, int], numbers: tuple[int, ...], places: Sequence[list[int]]
) -> Bundle:
    subscribers = tuple(sorted(place for number in numbers for place in places[number]))
    return Bundle(tuple(names), sum(partitions[name] for name in names), subscribers)
