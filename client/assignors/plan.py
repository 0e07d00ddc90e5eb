"""A plan as runs of partition numbers, from which assignments are encoded; ``TopicPartition``s are made when asked for.

A million partitions are mostly dealt in the same way, topic after topic: what is known of one topic holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from client.assignors.assignor import topic_partitions
from protocol.consumer_protocol import (
    encode_assignment_of_entries,
    encode_entries,
    encode_numbers,
    encode_topic,
)
from protocol.subscription import TopicPartition, group_by_topic

Slices = dict[tuple[int, int], list[slice]]
"""Slices by members that take turns and members that get any."""

_NONE: Final[Mapping[str, bytes]] = {}


@dataclass(frozen=True, slots=True)
class Cut:
    """How ``topics`` are dealt, all of them alike: partition numbers in the order dealt, and who gets which of them.

    ``pieces`` are places of members and slices of ``numbers``: not empty, ascending by where they begin, one a member.
    """

    topics: Sequence[str]
    numbers: Sequence[int]
    pieces: Sequence[tuple[int, slice]]

    @property
    def single(self) -> bool:
        """Whether each piece is one number."""
        return len(self.pieces) == len(self.numbers)


def dealt_in_turn(topics: Sequence[str], count: int, places: Sequence[int], first: int, turns: Slices) -> Cut:
    """A cut in which each of ``places``, beginning with that at ``first``, gets one partition of ``count`` in its turn.

    ``turns`` remembers slices, which are the same for every member that begins.
    """
    served = min(count, len(places))
    taking = [*places[first : first + served], *places[: max(0, first + served - len(places))]]
    key = len(places), served
    if key not in turns:
        turns[key] = [slice(turn, None, len(places)) for turn in range(served)]
    return Cut(topics, range(count), list(zip(taking, turns[key], strict=True)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Who gets what: ``loose`` has partitions by the place of their member in ``order``, ``cuts`` all others.

    No topic of which a member has loose partitions is in one of its cuts, and none is in two of them.
    """

    order: list[str]
    cuts: list[Cut]
    loose: list[list[TopicPartition]]

    def partitions(self) -> dict[str, list[TopicPartition]]:
        """The partitions of each member, sorted. The lists of ``loose`` become part of the result."""
        unsorted = [share for share in self.loose if share] if self.cuts else self.loose
        targets = [[self.loose[place] for place, _ in cut.pieces] for cut in self.cuts]
        by_topic = {topic: at for at, cut in enumerate(self.cuts) for topic in cut.topics}
        for topic in sorted(by_topic):
            cut, shares = self.cuts[by_topic[topic]], targets[by_topic[topic]]
            dealt = topic_partitions(topic, cut.numbers)
            if cut.single:
                for share, partition in zip(shares, dealt, strict=True):
                    share.append(partition)
            else:
                for share, (_, piece) in zip(shares, cut.pieces, strict=True):
                    share += dealt[piece]
        for share in unsorted:
            share.sort()
        return dict(zip(self.order, self.loose, strict=True))

    def encoded(self, user_data: Mapping[str, bytes] = _NONE) -> dict[str, bytes]:
        """The assignment of each member as it is sent, with its ``user_data`` if there is any for it."""
        return {
            member_id: encode_assignment_of_entries(count, entries, user_data.get(member_id, b""))
            for member_id, (count, entries) in zip(self.order, self._entries(), strict=True)
        }

    def reaching(self, first: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """For each member that has partitions from ``first`` of their topic on: those topics, and where they begin."""
        found: dict[str, dict[str, int]] = {}
        if not first:
            return found
        for cut in self.cuts:
            for topic in first.keys() & cut.topics:
                for place, piece in cut.pieces:
                    if cut.numbers[piece][-1] >= first[topic]:
                        found.setdefault(self.order[place], {})[topic] = first[topic]
        for place, share in enumerate(self.loose):
            for topic, number in share:
                if number >= first.get(topic, number + 1):
                    found.setdefault(self.order[place], {})[topic] = first[topic]
        return {member_id: dict(sorted(topics.items())) for member_id, topics in found.items()}

    def _entries(self) -> Iterator[tuple[int, list[bytes]]]:
        """For each member the number of its topics, and topics with their numbers as bytes."""
        counts = [0] * len(self.order)
        entries: list[list[bytes]] = [[] for _ in self.order]
        singles: dict[int, bytes] = {}
        for cut in self.cuts:
            names = [encode_topic(topic) for topic in cut.topics]
            only = names[0] if len(names) == 1 else None
            for (place, _), numbers in zip(cut.pieces, _packed(cut, singles), strict=True):
                # What follows each topic is the same, so it is the separator.
                entries[place].append(numbers.join(names) + numbers if only is None else only + numbers)
                counts[place] += len(names)
        for place, share in enumerate(self.loose):
            if share:
                grouped = group_by_topic(share)
                entries[place].append(encode_entries(grouped))
                counts[place] += len(grouped)
        return zip(counts, entries, strict=True)


def _packed(cut: Cut, singles: dict[int, bytes]) -> list[bytes]:
    """The bytes of the numbers of each piece. ``singles`` remembers those of one number."""
    if not cut.single:
        return [encode_numbers(cut.numbers[piece]) for _, piece in cut.pieces]
    for number in cut.numbers:
        if number not in singles:
            singles[number] = encode_numbers((number,))
    return [singles[number] for number in cut.numbers]
