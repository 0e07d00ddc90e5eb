"""Cooperative sticky: the sticky plan, reached without stopping whoever keeps what it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from client.assignors.sticky import StickyPlan, sticky_plan
from protocol.subscription import Subscription, TopicPartition

ZOMBIE_GENERATIONS: Final = 5
"""A claim this many generations older than those of most members, or more, holds nothing back."""


class CooperativeStickyAssignor:
    """Shares out partitions as ``StickyAssignor`` does, in two steps where one changes hands (KIP-429).

    Members go on with what they hold while the group rebalances. A partition that is to go from one member to another
    is given to nobody at first; the former owner sees it missing, gives it up and joins again, and then the latter
    gets it. So no partition is in two hands at any time. As the plan moves as little as possible, the second step
    moves nothing else, and the group is done after two steps, or three when members came with false claims.

    Held back is what any other member claims, rightly or not: it may still be handing out records. There are two
    exceptions. Whoever keeps a partition keeps it whatever older claims say. And a claim does not count when more than half
    of the members that name a generation name one that is newer by ``ZOMBIE_GENERATIONS``: its member missed as many
    rebalances in a row, and would hold the partition back for ever if it never took part in one. Most members must
    have gone on, not just one, or a single member that names a false generation could void the claims of all others.
    A claim without generation always counts, since its age is unknown.
    """

    name: Final = "cooperative-sticky"
    cooperative: Final = True
    uses_owned_partitions: Final = True

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """See ``Assignor.assign``, but for the partitions held back. Each list is sorted by topic and partition."""
        plan = sticky_plan(partitions, members)
        held_back = _held_back(plan, members)
        if held_back:
            for place, added in enumerate(plan.added):
                plan.added[place] = [claim for claim in added if claim not in held_back]
        return plan.whole()


def _held_back(plan: StickyPlan, members: Mapping[str, Subscription]) -> set[TopicPartition]:
    """Partitions that are new to a member and claimed, necessarily by another: if by itself alone, its claim would hold."""
    added = {partition for share in plan.added for partition in share}
    if not added:
        return added
    named = sorted(subscription.generation for subscription in members.values() if subscription.generation >= 0)
    common = named[(len(named) - 1) // 2] if named else 0  # more than half are at this generation or a newer one
    held_back: set[TopicPartition] = set()
    for subscription in members.values():
        if subscription.generation < 0 or subscription.generation > common - ZOMBIE_GENERATIONS:
            held_back.update(added.intersection(subscription.owned_partitions))
    return held_back
