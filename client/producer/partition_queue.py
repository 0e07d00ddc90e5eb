"""The batches of one partition on their way: in which order they go, what may be under way together, and their numbers.

What one request carries of a partition is a parcel. Without idempotence at most one is under way, or a retry would change
the order; with it several are, as the daemon takes batches by their numbers only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from client.producer.batch import Place, ProducerBatch
from client.producer.sequences import BatchNumber, Numbering
from protocol.subscription import TopicPartition

NUMBERED_WINDOW: Final = 5
"""From the oldest numbered batch that is not settled on, so many have been sent at most, settled ones among them: a daemon
recognises the last five when they come again."""

_BEHIND_HALVES: Final = 2


class PartitionQueue:
    """The batches of one partition in order. ``open`` is the last one while it still takes records.

    ``parcels`` are under way, in the order they were sent. ``backing_off`` is set between a failed attempt and the next.
    ``numbering`` is None without idempotence. ``renumber`` is the place from which on batches are to get new numbers: they
    wait until everything before them is settled and nothing is under way.
    """

    __slots__ = (
        "_numbered", "_opened", "_sure", "attempts", "backing_off", "batches", "numbering", "open", "parcels", "partition",
        "renumber",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, numbering: Numbering | None = None) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.parcels: list[Parcel] = []
        self.backing_off = False
        self.attempts = 0
        self.numbering = numbering
        self.renumber: Place | None = None
        self._sure = True
        self._opened = 0
        self._numbered = 0

    @property
    def idle(self) -> bool:
        """Whether nothing of this partition is under way and nothing keeps it from being sent."""
        return not self.parcels and self.may_send()

    @property
    def backlog(self) -> int:
        """How many batches are not settled yet."""
        return len(self.batches) + sum(len(parcel.batches) for parcel in self.parcels)

    @property
    def last_place(self) -> Place:
        """The place of the last batch there ever was, halves of it included."""
        return (self._opened, _BEHIND_HALVES)

    def may_send(self) -> bool:
        """Whether another parcel of this partition may go now."""
        if self.backing_off:
            return False
        if self.numbering is None:
            return not self.parcels
        if not self.numbering.is_possible:
            return False
        if not self.batches:
            return self.renumber is None
        head = self.batches[0]
        if self.renumber is not None and head.place >= self.renumber:
            return False
        # Nothing of another id or epoch may be under way: only numbers of one row keep the order.
        if self.parcels and not self._number_of(head).is_of_row(self.parcels[-1].batches[-1].number):
            return False
        return self._fits_window(head, ())

    def fits(self, batch: ProducerBatch, taken: Sequence[ProducerBatch]) -> bool:
        """Whether a batch may share a parcel with those ``taken`` before it, the first of which may be sent.

        Only numbers that follow one another share one: a daemon takes a parcel as a whole or not at all.
        """
        if self.numbering is None or not taken:
            return True
        if self.renumber is not None and batch.place >= self.renumber:
            return False
        last = taken[-1]
        assert last.number is not None, "what was taken has a number"
        return self._number_of(batch) == last.number.after(last.count) and self._fits_window(batch, taken)

    def _number_of(self, batch: ProducerBatch) -> BatchNumber:
        assert self.numbering is not None
        return batch.number or self.numbering.upcoming

    def _fits_window(self, batch: ProducerBatch, taken: Sequence[ProducerBatch]) -> bool:
        """Whether a daemon would still recognise every batch that may come again if this one is sent with ``taken``."""
        if batch.number is not None:
            return True
        # Of those that wait, only the first can have been sent before: what comes again goes to the front.
        unsettled = [*taken, *(other for parcel in self.parcels for other in parcel.batches), *islice(self.batches, 1)]
        oldest = min((other.ordinal for other in unsettled if other.number is not None), default=self._numbered)
        return self._numbered - oldest < NUMBERED_WINDOW

    def all_batches(self) -> list[ProducerBatch]:
        """Every batch that is not settled yet."""
        return [*(batch for parcel in self.parcels for batch in parcel.batches), *self.batches]

    def open_batch(self, now: float) -> ProducerBatch:
        """A new batch at the end."""
        self._opened += 1
        batch = self.open = ProducerBatch(self.partition, now, (self._opened,))
        self.batches.append(batch)
        return batch

    def put_back(self, batches: Sequence[ProducerBatch]) -> None:
        """Puts batches that were under way to their old place."""
        for batch in reversed(batches):
            at = next(
                (index for index, other in enumerate(self.batches) if other.place > batch.place), len(self.batches)
            )
            self.batches.insert(at, batch)

    def number(self, batch: ProducerBatch) -> None:
        """Gives a batch its number when it is sent for the first time."""
        if self.numbering is not None and batch.number is None:
            batch.number = self.numbering.take(batch.count)
            batch.ordinal = self._numbered
            self._numbered += 1

    def renumber_from(self, place: Place, sure: bool) -> None:
        """Asks for new numbers from ``place`` on, as the daemon does not take the old ones any more.

        ``sure`` says that it never took nor will take any of them: one before was refused for good.
        """
        if self.numbering is not None:
            self.renumber = place if self.renumber is None else min(self.renumber, place)
            self._sure = self._sure and sure

    def begin_anew_if_asked(self) -> list[ProducerBatch]:
        """Gives up the numbers of what waits, once nothing before it is left: it gets new ones in a new epoch.

        Returns the batches that must not get any, as an attempt that nobody answered may have brought them into the log, or
        may yet: they wait no longer, and nobody can say more of them.
        """
        if self.renumber is None or self.parcels or (self.batches and self.batches[0].place < self.renumber):
            return []
        assert self.numbering is not None, "only what is numbered is numbered anew"
        doubtful = [] if self._sure else [batch for batch in self.batches if batch.unanswered]
        if doubtful:
            self.batches = deque(batch for batch in self.batches if not batch.unanswered)
        self.renumber = None
        self._sure = True
        self.numbering.begin_anew()
        for batch in self.batches:
            batch.number = None
        return doubtful


@dataclass(slots=True, eq=False)
class Parcel:
    """What one request carries of one partition; ``first`` says that all batches before it were settled when it was sent."""

    queue: PartitionQueue
    batches: list[ProducerBatch]
    first: bool
