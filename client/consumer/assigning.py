"""The leader's part: from all members' subscriptions to a plan, on the background loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from client.assignors import Assignor
from client.cluster import Cluster
from client.log import get_logger
from client.topology import Topology
from protocol.errors import ProtocolError
from protocol.messages.groups import JoinGroupMember
from protocol.subscription import Subscription, decode_subscription, encode_assignment

log = get_logger()


class ConsumerAssigner:
    """Runs the assignor the group chose, and watches whether its plan still fits the topics."""

    def __init__(self, group_id: str, assignors: Sequence[Assignor]) -> None:
        self._group_id = group_id
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._planned: dict[str, int] = {}

    async def assign(self, cluster: Cluster, protocol: str, members: Sequence[JoinGroupMember]) -> Mapping[str, bytes]:
        """See ``Assigner.assign``. All that grows with the group runs in worker threads: heartbeats go on meanwhile."""
        loop = asyncio.get_running_loop()

        def read() -> tuple[dict[str, Subscription], list[str]]:
            subscriptions = {member.member_id: self._subscription(member) for member in members}
            return subscriptions, sorted({topic for each in subscriptions.values() for topic in each.topics})

        subscriptions, topics = await loop.run_in_executor(None, read)
        cluster.track(topics)
        if not cluster.topology.asked.issuperset(topics):
            await cluster.refresh()
        known = cluster.topology.topics
        self._planned = {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}
        counts = {topic: count for topic, count in self._planned.items() if count}
        assignor = self._assignors[protocol]

        def plan() -> dict[str, bytes]:
            shares = assignor.assign(counts, subscriptions)
            return {member_id: encode_assignment(share) for member_id, share in shares.items()}

        return await loop.run_in_executor(None, plan)

    def outdated(self, topology: Topology) -> str | None:
        """See ``Assigner.outdated``."""
        for topic, planned in self._planned.items():
            if topic not in topology.asked:
                continue
            present = len(topology.topics[topic].partitions) if topic in topology.topics else 0
            if present != planned:
                return f"topic {topic!r} has {present} partitions now and had {planned}"
        return None

    def _subscription(self, member: JoinGroupMember) -> Subscription:
        try:
            return decode_subscription(member.metadata, member.group_instance_id)
        except ProtocolError as error:
            # One broken client must not keep the whole group from its work.
            log.warning(
                "a member's subscription is unreadable; it gets nothing",
                group=self._group_id,
                member=member.member_id,
                error=str(error),
            )
            return Subscription(())
