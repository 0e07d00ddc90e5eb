"""What an assignor is, and the order of members that most of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from protocol.subscription import Subscription, TopicPartition


class Assignor(Protocol):
    """A strategy for sharing out partitions. All members of a group must have one in common, known by its ``name``.

    A class attribute ``uses_owned_partitions = False`` says that the plan does not depend on who held what before; members
    then do not tell it at every join.
    """

    @property
    def name(self) -> str:
        """The name members agree on; it travels in JoinGroup."""
        ...

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """Shares out all partitions of all subscribed topics.

        ``partitions`` gives the number of partitions of each topic that exists; ``members`` gives subscriptions by member
        id. Every member has an entry in the result, and every partition of a subscribed topic exactly one owner. The
        result depends on nothing but the arguments' content, so that any member that leads computes the same plan.
        """
        ...


def ordered_members(members: Mapping[str, Subscription]) -> list[str]:
    """Member ids in the order in which shares are dealt.

    Static members come first, by their instance id: their place then survives a restart that gives them a new member id
    (KIP-345). The others follow by member id.
    """

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].group_instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def subscribed_topics(partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> list[str]:
    """Every topic that somebody subscribes to and that has partitions, sorted."""
    topics = {topic for subscription in members.values() for topic in subscription.topics}
    return sorted(topic for topic in topics if partitions.get(topic, 0) > 0)
