"""Cooperative sticky: the sticky plan, reached while members read on from the partitions that they keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from client.assignors.assignor import NO_RACKS, Racks
from client.assignors.plan import Plan
from client.assignors.shares import MOVES_PER_GAIN, Limits
from client.assignors.sticky import StickyPlan, sticky_plan
from protocol.subscription import Subscription, TopicPartition


class CooperativeStickyAssignor:
    """Shares out partitions as ``StickyAssignor`` does, in two steps where one changes hands (KIP-429).

    Members go on with what they hold while the group rebalances. A partition that is to go from one member to another
    is given to no member at first; the former owner sees it missing, gives it up and joins again, and then the latter
    gets it. So no partition is in two hands at any time. As the plan moves as little as possible, the second step
    moves nothing else, and the group is done after two steps, or three when members came with false claims.

    Held back is what any other member claims, rightly or not and however old the claim: it may still be handing out
    records. A member that joins without ever learning of a plan cannot hold partitions back for long, since the
    coordinator removes members that do not fetch their share of a generation. A member that keeps a partition keeps it
    whatever others claim. The leader applies the same rule to the plan of any cooperative assignor.

    ``moves_per_gain``: see ``StickyAssignor``.
    """

    name: Final = "cooperative-sticky"
    cooperative: Final = True
    uses_owned_partitions: Final = True
    uses_racks: Final = True

    def __init__(self, *, moves_per_gain: int = MOVES_PER_GAIN) -> None:
        self._limits = Limits(moves_per_gain)

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS
    ) -> dict[str, list[TopicPartition]]:
        """See ``StickyAssignor.assign``, but for the partitions held back. Each list is sorted by topic and partition."""
        return self.plan(partitions, members, racks).partitions()

    def plan(self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS) -> Plan:
        """The same in the form that leaders send."""
        plan = sticky_plan(partitions, members, self._limits, racks)
        held_back = _held_back(plan, members)
        if held_back:
            for place, added in enumerate(plan.added):
                plan.added[place] = [claim for claim in added if claim not in held_back]
        return plan.whole()


def _held_back(plan: StickyPlan, members: Mapping[str, Subscription]) -> set[TopicPartition]:
    """Partitions that are new to a member and claimed, necessarily by another: if by itself alone, its claim would hold."""
    added = {partition for share in plan.added for partition in share}
    held_back: set[TopicPartition] = set()
    for subscription in members.values() if added else ():
        held_back.update(added.intersection(subscription.owned_partitions))
    return held_back
