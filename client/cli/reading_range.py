"""From where to where ``cohort consume`` reads partitions that it has to itself, when the command line says so."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from client.admin.offset_reset import epoch_ms
from client.cli.failure import CommandError
from client.cli.options import partition_numbers, point_in_time
from client.types.records import TopicPartition

if TYPE_CHECKING:
    from client.consumer import Consumer

BEGINNING: Final = "beginning"
END: Final = "end"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log: ``where`` is ``BEGINNING``, ``END`` or an offset, which counts back from the end when negative."""

    where: str | int


def position(text: str) -> Position:
    """``beginning``, ``end``, an offset, or ``-N`` for N records before the end."""
    if text in (BEGINNING, END):
        return Position(text)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) < 2**63):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no offset: a whole number, {BEGINNING}, {END}, or -N for N records before the end"
        )
    return Position(int(text))


def add_range_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that ``ReadingRange.of`` reads."""
    parser.add_argument(
        "--partition", metavar="0,2-5", type=partition_numbers, help="only these partitions (default: all)"
    )
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--offset",
        metavar="OFFSET",
        type=position,
        help="begin there in each partition: an offset, beginning, end, or -N for N records before the end",
    )
    begin.add_argument(
        "--from-time",
        metavar="TIME",
        type=point_in_time,
        help="begin at the first record at or after an ISO 8601 time, or so long ago as 90s, 15m, 2h or 1d",
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--until-end", action="store_true", help="stop at the end of each partition as it is at the start")
    end.add_argument(
        "--until-time", metavar="TIME", type=point_in_time, help="stop before the first record at or after this time"
    )


@dataclass(frozen=True, slots=True)
class ReadingRange:
    """What the command line says about where to begin and to stop; see ``add_range_options`` for the fields."""

    partitions: tuple[int, ...] | None
    begin: Position | datetime
    end: Position | datetime | None

    @staticmethod
    def of(options: argparse.Namespace) -> ReadingRange | None:
        """The range in ``options``, ``None`` when they name none. Wrong usage where a group decides what is read."""
        end = Position(END) if options.until_end else options.until_time
        begin = options.offset or options.from_time
        if options.partition is None and begin is None and end is None:
            return None
        if options.group is not None:
            options.parser.error(
                "--partition, --offset, --from-time and the options --until-... are for reading without a group: "
                "a group shares partitions out and goes on from its committed offsets "
                "('cohort groups reset-offsets' moves them)"
            )
        if options.from_beginning and begin is not None:
            options.parser.error("--from-beginning and another place to begin exclude each other")
        return ReadingRange(options.partition, begin or Position(BEGINNING if options.from_beginning else END), end)

    async def apply(self, consumer: Consumer, counts: Mapping[str, int]) -> dict[TopicPartition, int] | None:
        """Assigns the partitions and seeks; gives the offset before which each one stops, ``None`` when none does.

        ``counts`` is the number of partitions of each topic. Raises ``CommandError`` naming a partition that is not there.
        """
        chosen = [
            TopicPartition(topic, number) for topic, count in counts.items() for number in self._numbers(topic, count)
        ]
        consumer.assign(chosen)
        for tp, offset in (await _offsets(consumer, chosen, self.begin)).items():
            consumer.seek(tp, offset)
        return None if self.end is None else await _offsets(consumer, chosen, self.end)

    def _numbers(self, topic: str, count: int) -> Sequence[int]:
        if self.partitions is None:
            return range(count)
        if self.partitions[-1] >= count:
            raise CommandError(f"topic {topic!r} has no partition {self.partitions[-1]}, but 0 to {count - 1}")
        return self.partitions


async def _offsets(
    consumer: Consumer, partitions: Sequence[TopicPartition], place: Position | datetime
) -> dict[TopicPartition, int]:
    ends = await consumer.end_offsets(partitions)
    if isinstance(place, datetime):
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, epoch_ms(place)))
        return {tp: ends[tp] if at is None else at.offset for tp, at in found.items()}
    if place.where == END:
        return ends
    begins = await consumer.beginning_offsets(partitions)
    if place.where == BEGINNING:
        return begins
    assert isinstance(place.where, int), "position() lets nothing else through"
    if place.where >= 0:
        return dict.fromkeys(partitions, place.where)
    return {tp: max(begins[tp], ends[tp] + place.where) for tp in partitions}
