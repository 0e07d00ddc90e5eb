"""What tests of assignors share: groups and clusters to draw, and plans as text."""

from __future__ import annotations

from hypothesis import strategies as st

from client.assignors import Subscription
from protocol.subscription import TopicPartition

topics = st.sampled_from(["a", "b", "c", "d", "nowhere"])
clusters = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 12))
racks = st.sampled_from(["east", "west", "north"])
subscriptions = st.builds(
    Subscription,
    topics=st.lists(topics, unique=True).map(tuple),
    rack=st.none() | racks,
    group_instance_id=st.none() | st.text("xyz", min_size=1, max_size=2),
)
groups = st.dictionaries(st.text("mn0123", min_size=1, max_size=4), subscriptions, min_size=1, max_size=9)


def subscribed(*names: str) -> Subscription:
    """A subscription and nothing else."""
    return Subscription(names)


def shown(plan: dict[str, list[TopicPartition]]) -> dict[str, list[str]]:
    """A plan for people."""
    return {member: [f"{topic}-{partition}" for topic, partition in share] for member, share in plan.items()}
