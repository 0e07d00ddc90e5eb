"""Round robin: all partitions dealt out in turn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from client.assignors.assignor import NO_RACKS, Racks, ordered_members, subscribers_by_topic
from client.assignors.plan import Cut, Plan, Slices, dealt_in_turn
from protocol.subscription import Subscription, TopicPartition


class RoundRobinAssignor:
    """Deals the partitions of all topics, in order, to the members in turn, passing over those not subscribed.

    With equal subscriptions no member has two partitions more than another. With unequal ones the plan may be lopsided
    (KIP-54), and every change of members moves nearly everything.
    """

    name: Final = "roundrobin"
    uses_owned_partitions: Final = False

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """See ``Assignor.assign``."""
        return self.plan(partitions, members).partitions()

    def plan(self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS) -> Plan:
        """The same in the form that leaders send. ``racks`` makes no difference, as in Kafka."""
        order = ordered_members(members)
        alike: dict[tuple[tuple[int, ...], int, int], list[str]] = {}
        after = 0  # the turn moves past the member that was served last, and does not start over with the next topic
        for topic, subscribers in subscribers_by_topic(partitions, members, order).items():
            count, first = partitions[topic], bisect_left(subscribers, after)
            alike.setdefault((subscribers, count, first % len(subscribers)), []).append(topic)
            after = subscribers[(first + count - 1) % len(subscribers)] + 1
        cuts: list[Cut] = []
        turns: Slices = {}
        for (subscribers, count, first), topics in alike.items():
            cuts.append(dealt_in_turn(topics, count, subscribers, first, turns))
        return Plan(order, cuts, [[] for _ in order])
