"""Round robin: all partitions dealt out in turn."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Final

from client.assignors.assignor import ordered_members, subscribed_topics
from protocol.subscription import Subscription, TopicPartition


class RoundRobinAssignor:
    """Deals the partitions of all topics, in order, to the members in turn, passing over those not subscribed.

    With equal subscriptions no member has two partitions more than another. With unequal ones the plan may be lopsided,
    and every change of members moves nearly everything.
    """

    name: Final = "roundrobin"
    uses_owned_partitions: Final = False

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """See ``Assignor.assign``."""
        order = ordered_members(members)
        plan: dict[str, list[TopicPartition]] = {member_id: [] for member_id in order}
        topics_of = {member_id: frozenset(members[member_id].topics) for member_id in order}
        turn = cycle(order)
        for topic in subscribed_topics(partitions, members):
            for partition in range(partitions[topic]):
                # The turn moves past whoever was served and does not start over with the next topic.
                member_id = next(member_id for member_id in turn if topic in topics_of[member_id])
                plan[member_id].append(TopicPartition(topic, partition))
        return plan
