"""Groups of members, and random histories of joins, leaves, new subscriptions and changing topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from client.assignors import Assignor, Subscription
from protocol.subscription import TopicPartition
from tests.client.assignors.oracles import Plan

TOPICS = ("a", "b", "c", "d")
MEMBERS = ("m1", "m2", "m3", "m4", "m5")


@dataclass(frozen=True)
class Join:
    """A member comes, or changes its subscription."""

    member: str
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Leave:
    """A member goes; what it held is free."""

    member: str


@dataclass(frozen=True)
class Resize:
    """A topic comes (from 0), grows, or vanishes (to 0)."""

    topic: str
    partitions: int


Event = Join | Leave | Resize


def events(equal: bool = False, largest: int = 9) -> st.SearchStrategy[Event]:
    """Events; with ``equal`` all members subscribe to everything."""
    topics = st.just(TOPICS) if equal else st.lists(st.sampled_from(TOPICS), unique=True).map(tuple)
    return st.one_of(
        st.builds(Join, st.sampled_from(MEMBERS), topics),
        st.builds(Leave, st.sampled_from(MEMBERS)),
        st.builds(Resize, st.sampled_from(TOPICS), st.integers(0, largest)),
    )


def histories(equal: bool = False, largest: int = 9) -> st.SearchStrategy[list[list[Event]]]:
    """Lists of what happens between one rebalance and the next."""
    return st.lists(st.lists(events(equal, largest), min_size=1, max_size=6), min_size=1, max_size=6)


@dataclass
class Group:
    """Members that claim what they were last given, as the members of a group do."""

    partitions: dict[str, int] = field(default_factory=dict)
    members: dict[str, Subscription] = field(default_factory=dict)
    generation: int = 0

    def happen(self, event: Event) -> None:
        match event:
            case Join(member, topics):
                before = self.members.get(member, Subscription(()))
                self.members[member] = replace(before, topics=topics)
            case Leave(member):
                self.members.pop(member, None)
            case Resize(topic, partitions):
                self.partitions[topic] = partitions
                if not partitions:
                    del self.partitions[topic]

    def rebalance(self, assignor: Assignor) -> dict[str, list[TopicPartition]]:
        """One generation that all members see to its end."""
        plan = assignor.assign(self.partitions, self.members)
        self.generation += 1
        self.members = claiming(self.members, plan, self.generation)
        return plan


def claiming(members: Mapping[str, Subscription], plan: Plan, generation: int) -> dict[str, Subscription]:
    """The members, claiming what ``plan`` gives them."""
    return {
        member: replace(subscription, owned_partitions=tuple(plan.get(member, ())), generation=generation)
        for member, subscription in members.items()
    }


def without_void_claims(group: Group) -> dict[str, Subscription]:
    """The members with only those claims that the topics and their subscriptions still allow."""
    return {
        member: replace(
            subscription,
            owned_partitions=tuple(
                claim
                for claim in subscription.owned_partitions
                if claim.topic in subscription.topics and claim.partition < group.partitions.get(claim.topic, 0)
            ),
        )
        for member, subscription in group.members.items()
    }
