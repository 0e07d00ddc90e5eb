"""Range: neighbouring partitions of each topic to each member."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from typing import Final

from client.assignors.assignor import NO_RACKS, Racks, ordered_members, subscribers_by_topic
from client.assignors.plan import Cut, Plan
from client.assignors.rack_placement import racks_can_help
from protocol.subscription import Subscription, TopicPartition


class RangeAssignor:
    """Cuts each topic on its own into one run of partitions a subscriber; the first runs are one longer.

    Members that subscribe to the same topics of equal size get the same partition numbers of each, which is what joins of
    co-partitioned topics need. The price: the extra partitions of all topics fall to the same first members, and topics
    with fewer partitions than subscribers leave the last ones idle.
    """

    name: Final = "range"
    uses_owned_partitions: Final = False
    uses_racks: Final = True

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS
    ) -> dict[str, list[TopicPartition]]:
        """See ``Assignor.assign`` and ``RackAwareAssignor.assign``.

        With racks a partition goes to the first member of one of its racks that has room in its quota; what is left is
        dealt out in runs. Topics of equal size with the same subscribers are dealt alike here too, so there a member's
        rack must hold the partition of every one of them. No member gets more or fewer than without racks, except that
        the extra partitions may go to others than the first. Ties fall otherwise than in Kafka, where each member in turn
        takes of a topic all that is near to it up to its quota, also what another one could have had near: here the
        partitions come in turn, and more of them are near in the end.
        """
        return self.plan(partitions, members, racks).partitions()

    def plan(self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS) -> Plan:
        """The same in the form that leaders send."""
        order = ordered_members(members)
        member_racks = [members[member_id].rack for member_id in order]
        alike: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for topic, subscribers in subscribers_by_topic(partitions, members, order).items():
            alike.setdefault((subscribers, partitions[topic]), []).append(topic)
        cuts: list[Cut] = []
        for (subscribers, count), topics in alike.items():
            local = _common_racks(topics, count, racks) if racks else []
            if local and racks_can_help(local, {member_racks[place] for place in subscribers}):
                cuts.append(_cut_near(topics, subscribers, local, member_racks))
            else:
                cuts.append(_cut_plainly(topics, subscribers, count))
        return Plan(order, cuts, [[] for _ in order])


def _cut_plainly(topics: Sequence[str], subscribers: Sequence[int], count: int) -> Cut:
    """One run each, the first ones longer."""
    base, extra = divmod(count, len(subscribers))
    served = subscribers if base else subscribers[:extra]
    return _cut(topics, range(count), {place: base + (number < extra) for number, place in enumerate(served)})


def _cut(topics: Sequence[str], numbers: Sequence[int], sizes: Mapping[int, int]) -> Cut:
    ends = accumulate(sizes.values())
    pieces = [(place, slice(end - size, end)) for (place, size), end in zip(sizes.items(), ends, strict=True) if size]
    return Cut(topics, numbers, pieces)


def _common_racks(topics: Sequence[str], count: int, racks: Racks) -> list[frozenset[str]]:
    """For each partition number the racks that hold this partition of all the topics."""
    nowhere: frozenset[str] = frozenset()
    return [
        frozenset.intersection(*(racks.get(TopicPartition(topic, number), nowhere) for topic in topics))
        for number in range(count)
    ]


def _cut_near(
    topics: Sequence[str],
    subscribers: Sequence[int],
    local: Sequence[frozenset[str]],
    member_racks: Sequence[str | None],
) -> Cut:
    """As ``_cut_plainly``, but partitions go to members of their racks first."""
    base, extra = divmod(len(local), len(subscribers))
    taken: dict[int, list[int]] = {place: [] for place in subscribers}
    in_rack: dict[str, deque[int]] = {}
    for place in subscribers:
        rack = member_racks[place]
        if rack is not None:
            in_rack.setdefault(rack, deque()).append(place)

    def has_room(place: int) -> bool:
        return len(taken[place]) < base + (extra > 0)

    def take(place: int, number: int) -> None:
        nonlocal extra
        extra -= len(taken[place]) == base
        taken[place].append(number)

    far: list[int] = []
    for number, racks in enumerate(local):
        near: list[int] = []
        for waiting in (in_rack[rack] for rack in racks if rack in in_rack):
            while waiting and not has_room(waiting[0]):  # and it never will again
                waiting.popleft()
            near += list(islice(waiting, 1))
        if near:
            take(min(near), number)
        else:
            far.append(number)
    rest = deque(subscribers)
    for number in far:
        while not has_room(rest[0]):
            rest.popleft()
        take(rest[0], number)
    numbers = [number for place in subscribers for number in sorted(taken[place])]
    return _cut(topics, numbers, {place: len(taken[place]) for place in subscribers})
