"""Round robin: all partitions dealt out in turn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import cycle
from typing import Final

from client.assignors.assignor import ordered_members, subscribers_by_topic, topic_partitions
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
        order = ordered_members(members)
        shares: list[list[TopicPartition]] = [[] for _ in order]
        after = 0  # the turn moves past whoever was served last, and does not start over with the next topic
        for topic, subscribers in subscribers_by_topic(partitions, members, order).items():
            count = partitions[topic]
            first = bisect_left(subscribers, after)
            turn = subscribers[first : first + count]
            turn += subscribers[: min(first, count - len(turn))]
            dealt = [shares[place] for place in turn]
            for share, partition in zip(cycle(dealt), topic_partitions(topic, range(count))):
                share.append(partition)
            after = turn[(count - 1) % len(turn)] + 1
        return dict(zip(order, shares, strict=True))
