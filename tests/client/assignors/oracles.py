"""What a plan must satisfy, worked out in the plainest way there is: by looking at everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from client.assignors import Subscription
from protocol.subscription import TopicPartition

Plan = Mapping[str, list[TopicPartition]]


def subscribed_partitions(partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> set[TopicPartition]:
    """All partitions with a subscriber."""
    topics = {topic for subscription in members.values() for topic in subscription.topics}
    return {TopicPartition(topic, number) for topic in topics for number in range(partitions.get(topic, 0))}


def check_valid(partitions: Mapping[str, int], members: Mapping[str, Subscription], plan: Plan) -> None:
    """Every member has an entry, sorted; every partition one owner, who subscribes to it."""
    assert set(plan) == set(members)
    given = [partition for share in plan.values() for partition in share]
    assert len(given) == len(set(given))
    assert set(given) == subscribed_partitions(partitions, members)
    for member, share in plan.items():
        assert share == sorted(share)
        assert {partition.topic for partition in share} <= set(members[member].topics)


def improving_chain(members: Mapping[str, Subscription], plan: Plan) -> list[str] | None:
    """A chain of members along which passing on one partition each improves the balance; None if there is none.

    It begins with a member and ends with one that holds two less.
    """
    subscribers: dict[str, list[str]] = {}
    for member, subscription in members.items():
        for topic in set(subscription.topics):
            subscribers.setdefault(topic, []).append(member)
    topics_of = {member: {partition.topic for partition in share} for member, share in plan.items()}
    for load in sorted({len(share) for share in plan.values()}):
        came_from: dict[str, str | None] = {member: None for member, share in plan.items() if len(share) >= load + 2}
        chain = list(came_from)
        passed: set[str] = set()
        for member in chain:
            if len(plan[member]) <= load:
                way = [member]
                while (before := came_from[way[-1]]) is not None:
                    way.append(before)
                return way[::-1]
            for topic in sorted(topics_of[member] - passed):
                passed.add(topic)
                for other in subscribers[topic]:
                    if other not in came_from:
                        came_from[other] = member
                        chain.append(other)
    return None


def claims_of(members: Mapping[str, Subscription]) -> dict[str, set[TopicPartition]]:
    """What each member claims."""
    return {member: set(subscription.owned_partitions) for member, subscription in members.items()}


def kept(members: Mapping[str, Subscription], plan: Plan) -> int:
    """How many partitions stay with a member that claims them."""
    return sum(len(claimed.intersection(plan[member])) for member, claimed in claims_of(members).items())


def unevenness(plan: Plan) -> int:
    """The sum of squared loads: of two plans for the same partitions, the better balanced one has the lower."""
    return sum(len(share) ** 2 for share in plan.values())


def best_by_exhaustion(partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> tuple[int, int]:
    """The least unevenness of all plans, and the most claims kept by a plan with it. Claims are right and not contested.

    All ways to share out each topic are tried; of ways that lead to the same loads the one that keeps most goes on.
    """
    order = sorted(members)
    most_kept: dict[tuple[int, ...], int] = {(0,) * len(order): 0}
    for topic, size in partitions.items():
        takers = [place for place, member in enumerate(order) if topic in members[member].topics]
        if not takers:
            continue
        owned = [sum(claim.topic == topic for claim in members[order[place]].owned_partitions) for place in takers]
        longer: dict[tuple[int, ...], int] = {}
        for loads, keeping in most_kept.items():
            for shares in _ways(size, len(takers)):
                grown = list(loads)
                for place, share in zip(takers, shares, strict=True):
                    grown[place] += share
                together = keeping + sum(map(min, shares, owned))
                key = tuple(grown)
                longer[key] = max(longer.get(key, 0), together)
        most_kept = longer
    least = min(sum(load * load for load in loads) for loads in most_kept)
    return least, max(keeping for loads, keeping in most_kept.items() if sum(load * load for load in loads) == least)


def _ways(units: int, takers: int) -> Iterator[tuple[int, ...]]:
    if takers == 1:
        yield (units,)
        return
    for first in range(units + 1):
        for rest in _ways(units - first, takers - 1):
            yield (first, *rest)
