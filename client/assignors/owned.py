"""What members say they own (KIP-429), and which of these claims hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from client.assignors.subscribers import Subscribers
from protocol.subscription import Subscription, TopicPartition

NOTHING = bytearray()


@dataclass(frozen=True, slots=True)
class Owned:
    """The owned partitions whose claims hold.

    ``taken`` has a byte for each partition of each subscribed topic: 1 where a claim holds. ``kept`` gives, for each
    member by its place, the claimed partitions by bundle, sorted. ``named`` are the topics of all claims, also of those that
    do not hold.
    """

    taken: dict[str, bytearray]
    kept: list[dict[int, list[TopicPartition]]]
    named: set[str]


def read_owned(partitions: Mapping[str, int], members: Mapping[str, Subscription], subscribers: Subscribers) -> Owned:
    """Sorts out what members claim to own.

    A claim holds when the partition exists and its member subscribes to the topic. Of several claims to one partition
    the one of the highest generation holds (KIP-792), and none where two members claim it in that same generation:
    one of them is wrong, and the leader cannot tell which. An old generation alone is no reason to drop a claim
    (KAFKA-14639). Anything else that a member claims has no effect, nor does claiming twice.
    """
    bundle_of = subscribers.bundle_of_topic()
    taken = {topic: bytearray(partitions[topic]) for topic in bundle_of}
    kept: list[dict[int, list[TopicPartition]]] = [{} for _ in subscribers.order]
    doubtful: set[TopicPartition] = set()
    named: set[str] = set()
    order = subscribers.order
    newest_first = sorted(range(len(order)), key=lambda place: -members[order[place]].generation)
    for place in newest_first:
        mine = kept[place]
        marks, topic = NOTHING, None
        keep: Callable[[TopicPartition], None] = doubtful.add
        for claim in members[order[place]].owned_partitions:
            if claim[0] != topic:
                topic = claim[0]
                named.add(topic)
                marks = taken[topic] if topic in subscribers.topics[place] else NOTHING
                if marks:
                    keep = mine.setdefault(bundle_of[topic], []).append
            partition = claim[1]
            if 0 <= partition < len(marks):
                if marks[partition]:
                    doubtful.add(claim)
                else:
                    marks[partition] = 1
                    keep(claim)
    if doubtful:
        _drop_contested(doubtful, newest_first, members, subscribers, Owned(taken, kept, named))
    for place, mine in enumerate(kept):
        for claimed in mine.values():
            claimed.sort()
        if len(mine) > 1:
            kept[place] = dict(sorted(mine.items()))  # or the order of claims would show in the plan
    return Owned(taken, kept, named)


def _drop_contested(
    doubtful: set[TopicPartition],
    newest_first: list[int],
    members: Mapping[str, Subscription],
    subscribers: Subscribers,
    owned: Owned,
) -> None:
    """Drops the claims that the newest claimant shares with another one of its generation.

    It has been taken down for the newest claimant, who comes first; a second claim by the same member changes nothing.
    """
    first: dict[TopicPartition, int] = {}
    contested: dict[int, set[TopicPartition]] = {}
    for place in newest_first:
        subscription = members[subscribers.order[place]]
        for claim in doubtful.intersection(subscription.owned_partitions):
            topic, partition = claim
            if topic not in subscribers.topics[place]:
                continue
            rival = first.setdefault(claim, place)
            if rival != place and members[subscribers.order[rival]].generation == subscription.generation:
                contested.setdefault(rival, set()).add(claim)
                owned.taken[topic][partition] = 0
    for place, dropped in contested.items():
        mine = owned.kept[place]
        for bundle, claimed in mine.items():
            mine[bundle] = [claim for claim in claimed if claim not in dropped]
