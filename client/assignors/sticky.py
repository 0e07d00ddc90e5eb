"""Sticky: balance first, then as little movement as possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from client.assignors.assignor import NO_RACKS, Racks
from client.assignors.min_cost_flow import Units
from client.assignors.owned import Owned, read_owned
from client.assignors.placement import deal, keep
from client.assignors.plan import Cut, Plan
from client.assignors.rack_placement import place_near
from client.assignors.shares import MOVES_PER_GAIN, Limits, quotas, shares
from client.assignors.subscribers import Part, Subscribers, read_subscriptions
from protocol.subscription import Subscription, TopicPartition


@dataclass(frozen=True, slots=True)
class StickyPlan:
    """For each member in ``order`` what it keeps of its claims and what it gets besides, both without order.

    What no member claims may be dealt in ``cuts``.
    """

    order: list[str]
    kept: list[list[TopicPartition]]
    added: list[list[TopicPartition]]
    cuts: list[Cut]

    def whole(self) -> Plan:
        """All that each member gets. The lists of ``kept`` become part of the result."""
        for mine, more in zip(self.kept, self.added, strict=True):
            mine += more
        return Plan(self.order, self.cuts, self.kept)


def sticky_plan(
    partitions: Mapping[str, int], members: Mapping[str, Subscription], limits: Limits, racks: Racks
) -> StickyPlan:
    """The balanced plan that takes the fewest partitions from members that claim them; see ``StickyAssignor``."""
    subscribers = read_subscriptions(partitions, members)
    owned = read_owned(partitions, members, subscribers)
    needs: Units = [{} for _ in subscribers.order]
    for part in subscribers.parts():
        # Those with the least choice come first where it does not matter who does; more of them are then served at once.
        part.members.sort(key=lambda place: len(subscribers.topics[place]))
        for place, share in zip(part.members, _shares(subscribers, part, owned, limits), strict=True):
            needs[place] = share
    near_kept, near_added = place_near(members, subscribers, owned, needs, racks)
    kept = keep(owned, needs)
    added, cuts = deal(subscribers.bundles, needs, owned)
    for shares_of, near in ((kept, near_kept), (added, near_added)):
        for mine, more in zip(shares_of, near, strict=True):
            mine += more
    return StickyPlan(subscribers.order, kept, added, cuts)


def _shares(subscribers: Subscribers, part: Part, owned: Owned, limits: Limits) -> Units:
    """How many partitions of which bundle each member of ``part`` gets."""
    kept = [owned.kept[place] for place in part.members]
    if len(part.bundles) == 1:
        bundle = part.bundles[0]
        counts = quotas(subscribers.bundles[bundle].partitions, [len(mine.get(bundle, ())) for mine in kept])
        return [{bundle: count} for count in counts]
    bundle_at = {bundle: at for at, bundle in enumerate(part.bundles)}
    member_at = {place: at for at, place in enumerate(part.members)}
    counted = shares(
        [subscribers.bundles[bundle].partitions for bundle in part.bundles],
        [[member_at[place] for place in subscribers.bundles[bundle].subscribers] for bundle in part.bundles],
        [{bundle_at[bundle]: len(claimed) for bundle, claimed in mine.items() if claimed} for mine in kept],
        limits,
    )
    if len(part.bundles) == len(subscribers.bundles):
        return counted
    return [{part.bundles[at]: units for at, units in share.items()} for share in counted]


class StickyAssignor:
    """Shares out partitions as evenly as subscriptions allow, and moves as few as that takes (KIP-54, KIP-341).

    Balance: with equal subscriptions no member has two partitions more than another. With unequal ones no chain of
    moves from member to member improves the balance. Among such plans, it is one that leaves the most partitions
    where they are; both hold exactly, whatever the size. Members say what they hold in ``owned_partitions``, and
    since when in ``generation``; false claims do no harm, see ``client.assignors.owned``.

    With racks (KIP-881) balance still comes first: each member gets as many partitions, of topics with the same subscribers
    taken together, as without. Among the plans that do so, it is one with the most partitions near to their owners, and
    among those one that moves few: a partition moves for being near, once. Kafka's gives up what is far from its owner even
    when nothing near takes its place, and may give members of unequal subscriptions other numbers.

    Balance has a price. Where members share topics with neighbours only, as along a chain, one partition may reach the
    member that lacks it only by a move of each member between them. ``moves_per_gain`` (4) is the most moves that are made
    for each partition by which the two ends differ, beyond the one that may remain; a difference of two is evened out by
    four moves at most, one of ten by 36. If the best balance takes more for any partition, or more work than is in
    proportion to the number of subscriptions, a plan by local search is taken: it begins with what the members hold, and
    every step of it improves the balance at no more than that price.

    Raises ``ValueError`` when ``moves_per_gain`` is below 1.
    """

    name: Final = "sticky"
    cooperative: Final = False
    uses_owned_partitions: Final = True
    uses_racks: Final = True

    def __init__(self, *, moves_per_gain: int = MOVES_PER_GAIN) -> None:
        self._limits = Limits(moves_per_gain)

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS
    ) -> dict[str, list[TopicPartition]]:
        """See ``Assignor.assign`` and ``RackAwareAssignor.assign``. Each list is sorted by topic and partition."""
        return self.plan(partitions, members, racks).partitions()

    def plan(self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS) -> Plan:
        """The same in the form that leaders send."""
        return sticky_plan(partitions, members, self._limits, racks).whole()
