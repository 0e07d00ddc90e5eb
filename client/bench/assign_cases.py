"""Groups for the benchmark of assignors: who subscribes to what, and who owned what before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from random import Random
from typing import Any, Final, Literal, NamedTuple

from client.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
)
from protocol.subscription import TopicPartition

Subscriptions = Literal["equal", "buckets", "random"]
Change = Literal["fresh", "leave", "join"]
Plan = dict[str, list[TopicPartition]]

ASSIGNORS: Final[tuple[Assignor, ...]] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)
CHANGES: Final[tuple[Change, ...]] = ("fresh", "leave", "join")

_BUCKETS: Final = 5
_MOST_DRAWN: Final = 50
_SEED: Final = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One size of group.

    ``subscriptions``: all members to all topics ("equal"); five kinds of members that have no topic in common ("buckets",
    as in Kafka's own benchmarks); or one to fifty topics drawn for each member ("random").
    """

    members: int
    partitions_per_member: int
    topics: int
    subscriptions: Subscriptions

    @property
    def partitions(self) -> int:
        """How many there are in all: every topic has one at least."""
        return self.topics * max(1, self.members * self.partitions_per_member // self.topics)

    @property
    def params(self) -> dict[str, Any]:
        """The circumstances, for a figure."""
        return {**asdict(self), "partitions": self.partitions}


class Group(NamedTuple):
    """The arguments of ``Assignor.assign``."""

    partitions: dict[str, int]
    members: dict[str, Subscription]

    @classmethod
    def of(cls, case: Case) -> Group:
        """A group in which no member owns anything yet."""
        topics = tuple(f"topic-{number:04}" for number in range(case.topics))
        draw = Random(_SEED)

        def subscribed(number: int) -> tuple[str, ...]:
            if case.subscriptions == "buckets":
                return topics[number % _BUCKETS :: _BUCKETS]
            if case.subscriptions == "random":
                return tuple(sorted(draw.sample(topics, draw.randint(1, min(case.topics, _MOST_DRAWN)))))
            return topics

        members = {f"member-{number:05}": Subscription(subscribed(number)) for number in range(case.members)}
        return cls(dict.fromkeys(topics, case.partitions // case.topics), members)

    def settled(self, assignor: Assignor) -> Group:
        """The same group when all own what ``assignor`` gives them, in generation 1."""
        plan = assignor.assign(self.partitions, self.members)
        members = {
            member_id: replace(subscription, owned_partitions=tuple(plan[member_id]), generation=1)
            for member_id, subscription in self.members.items()
        }
        return Group(self.partitions, members)

    def after(self, change: Literal["leave", "join"]) -> Group:
        """The same group without its first member, or with one more that subscribes to the same topics as the first."""
        members = dict(self.members)
        first = next(iter(members))
        if change == "leave":
            del members[first]
        else:
            members["member-new"] = Subscription(members[first].topics)
        return Group(self.partitions, members)


def grid() -> Iterator[Case]:
    """The grid of Kafka's own benchmarks, from small to large groups."""
    kinds: tuple[Subscriptions, ...] = ("equal", "buckets", "random")
    for members, per_member, topics, kind in product((100, 1_000, 10_000), (5, 10, 50), (10, 100, 1_000), kinds):
        yield Case(members, per_member, topics, kind)


TARGETS: Final = (
    Case(100, 10, 100, "equal"),
    Case(10_000, 10, 100, "buckets"),
    Case(10_000, 10, 1_000, "random"),
    Case(2_000, 500, 500, "equal"),
)
"""The groups for which a time is promised: 2 ms, 1 s, 1 s and 3 s."""

QUICK: Final = (Case(10, 5, 10, "equal"), Case(10, 5, 10, "buckets"), Case(10, 5, 10, "random"))
