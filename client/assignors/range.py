"""Range: neighbouring partitions of each topic to each member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from client.assignors.assignor import ordered_members, subscribed_topics
from protocol.subscription import Subscription, TopicPartition


class RangeAssignor:
    """Cuts each topic on its own into one run of partitions a subscriber; the first runs are one longer.

    Members that subscribe to the same topics of equal size get the same partition numbers of each, which is what joins of
    co-partitioned topics need. The price: the extra partitions of all topics fall to the same first members.
    """

    name: Final = "range"
    uses_owned_partitions: Final = False

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """See ``Assignor.assign``."""
        order = ordered_members(members)
        plan: dict[str, list[TopicPartition]] = {member_id: [] for member_id in order}
        topics_of = {member_id: frozenset(members[member_id].topics) for member_id in order}
        for topic in subscribed_topics(partitions, members):
            subscribers = [member_id for member_id in order if topic in topics_of[member_id]]
            base, extra = divmod(partitions[topic], len(subscribers))
            start = 0
            for place, member_id in enumerate(subscribers):
                end = start + base + (place < extra)
                plan[member_id] += [TopicPartition(topic, partition) for partition in range(start, end)]
                start = end
        return plan
