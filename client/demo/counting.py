"""What members count, how they write it down, and how their work is compared with a plain count. Pure.

A member writes what each batch of a partition added to the counts, as one line of its own result file: partition, offset
of the first record, and for each run of records of one file the number of words in each of them. It does so before it
commits. So a committed offset always has its result written down; a result may lack its commit, and then the next owner
of the partition is given the same records again. Because results are kept by offset, the comparison counts each record
once, tells which were delivered twice, and finds any that was never delivered.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from client.demo.files import FileCount
from client.types.records import ConsumerRecord, Output

_NEVER: Final = -1
_WORD_BITS: Final = 40
"""What is known of an offset is one integer: the number of its file, and in the lower bits its words."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What some consecutive records of one partition add: ``runs`` has a file's name and the words of each line."""

    partition: int
    offset: int
    runs: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def records(self) -> int:
        """How many records these are."""
        return sum(len(words) for _, words in self.runs)

    @property
    def next_offset(self) -> int:
        """The offset after the last of them."""
        return self.offset + self.records


def contribution(records: Sequence[ConsumerRecord]) -> Contribution:
    """Counts some consecutive records of one partition. Raises ``ValueError`` when offsets are missing between them."""
    first, last = records[0], records[-1]
    if last.offset - first.offset != len(records) - 1:
        raise ValueError(
            f"{len(records)} records from offset {first.offset} to {last.offset}: they are not consecutive"
        )
    runs = tuple(
        (os.fsdecode(key), tuple([len(record.value.split()) for record in run]))
        for key, run in groupby(records, key=lambda record: record.key)
    )
    return Contribution(first.partition, first.offset, runs)


def encode(contributions: Iterable[Contribution]) -> bytes:
    """Contributions as lines of a result file."""
    return b"".join(
        json.dumps([each.partition, each.offset, each.runs], separators=(",", ":")).encode() + b"\n"
        for each in contributions
    )


def decode(content: bytes) -> Iterator[Contribution]:
    """The contributions in a result file.

    A last line without its line feed is passed over: its member was killed while it wrote, so it had not committed.
    """
    for line in content.split(b"\n")[:-1]:
        partition, offset, runs = json.loads(line)
        yield Contribution(partition, offset, tuple((name, tuple(words)) for name, words in runs))


def output_of(record: ConsumerRecord, topic: str) -> Output:
    """What one record adds, as a record of ``topic``: where it is and how many words it has, keyed by its file."""
    return Output(topic, b"%d %d %d" % (record.partition, record.offset, len(record.value.split())), record.key)


def of_output(record: ConsumerRecord) -> Contribution:
    """What ``output_of`` has made a record of."""
    partition, offset, words = map(int, record.value.split())
    return Contribution(partition, offset, ((os.fsdecode(record.key), (words,)),))


@dataclass(slots=True)
class Comparison:
    """The outcome. All numbers are records unless they say otherwise.

    ``delivered`` counts each produced record once, ``deliveries`` each time it came. ``contradictions`` came twice with
    different content; ``unexpected`` came from offsets that were never acknowledged. ``unlike`` are files whose totals
    differ from the plain count.
    """

    produced: int = 0
    delivered: int = 0
    deliveries: int = 0
    contradictions: int = 0
    unexpected: int = 0
    files: int = 0
    counts: dict[str, FileCount] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)

    @property
    def redelivered(self) -> int:
        """Deliveries of records that had been delivered before."""
        return self.deliveries - self.delivered - self.unexpected

    @property
    def lost(self) -> int:
        """Produced and acknowledged, but never delivered."""
        return self.produced - self.delivered

    @property
    def passed(self) -> bool:
        """Whether the group did all the work, and each record counts once."""
        return not (self.lost or self.contradictions or self.unexpected or self.unlike)


def compare(
    contributions: Iterable[Contribution], ends: Mapping[int, int], plain: Mapping[str, FileCount]
) -> Comparison:
    """Holds what the members wrote down against the offsets that were acknowledged and against a plain count.

    ``ends`` gives for each partition the offset after its last acknowledged record; partitions begin at offset 0.
    """
    outcome = Comparison(produced=sum(ends.values()), files=len(plain))
    known = {partition: array("q", [_NEVER]) * end for partition, end in ends.items()}
    file_numbers: dict[str, int] = {}
    for each in contributions:
        seen = known.get(each.partition, array("q"))
        offset = each.offset
        outcome.deliveries += each.records
        for name, words in each.runs:
            count = outcome.counts.setdefault(name, FileCount())
            file_number = file_numbers.setdefault(name, len(file_numbers)) << _WORD_BITS
            for number in words:
                content = file_number | number
                if offset >= len(seen):
                    outcome.unexpected += 1
                elif seen[offset] == _NEVER:
                    seen[offset] = content
                    count.lines += 1
                    count.words += number
                elif seen[offset] != content:
                    outcome.contradictions += 1
                offset += 1
    outcome.delivered = outcome.produced - sum(seen.count(_NEVER) for seen in known.values())
    names = sorted(set(plain) | set(outcome.counts))
    outcome.unlike = [name for name in names if plain.get(name, FileCount()) != outcome.counts.get(name, FileCount())]
    return outcome
