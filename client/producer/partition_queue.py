"""The batches of each partition on their way: in which order they go, what may be in flight together, their sequences.

Pure. Without idempotence at most one ``PartitionRequest`` of a partition is in flight, or a retry would change the order;
with it several are, as the daemon takes batches in the order of their sequences only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic

from client.producer.batch import BatchT, Place
from client.producer.sequences import BatchSequence, ProducerIdentity, Sequences, TransactionalSequences
from client.transport.metadata import Address
from protocol.subscription import TopicPartition

SEQUENCED_WINDOW: Final = 5
"""From the oldest batch with a sequence that is not settled on, so many have been sent at most, settled ones among them: a
daemon recognises the last five when they come again."""

_BEHIND_HALVES: Final = 2


class PartitionQueue(Generic[BatchT]):
    """The batches of one partition in order. ``open`` is the last one while it still takes records.

    ``in_flight`` is what was sent and not answered yet, in the order of sending. ``backing_off`` is set between a failed
    attempt and the next, which is due at ``retry_at``; ``asked`` is the leader that was sent something last, None if there
    was none to be sent to. ``sequences`` is None without idempotence. ``resequence`` is the
    place from which on batches are to get new sequences: they wait until everything before them is settled and nothing is
    in flight.
    """

    __slots__ = (
        "_added", "_sequenced", "_sure", "asked", "attempts", "backing_off", "batches", "in_flight", "open", "partition",
        "resequence", "retry_at", "sequences",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, sequences: Sequences | None = None) -> None:
        self.partition = partition
        self.batches: deque[BatchT] = deque()
        self.open: BatchT | None = None
        self.in_flight: list[PartitionRequest[BatchT]] = []
        self.backing_off = False
        self.retry_at = 0.0
        self.attempts = 0
        self.asked: Address | None = None
        self.sequences = sequences
        self.resequence: Place | None = None
        self._sure = True
        self._added = 0
        self._sequenced = 0

    @property
    def idle(self) -> bool:
        """Whether nothing of this partition is in flight and nothing keeps it from being sent."""
        return not self.in_flight and self.may_send()

    @property
    def backlog(self) -> int:
        """How many batches are not settled yet."""
        return len(self.batches) + sum(len(request.batches) for request in self.in_flight)

    @property
    def last_place(self) -> Place:
        """The place of the last batch there ever was, halves of it included."""
        return (self._added, _BEHIND_HALVES)

    def may_send(self) -> bool:
        """Whether more of this partition may go now."""
        if self.backing_off:
            return False
        if self.sequences is None:
            return not self.in_flight
        if not self.sequences.has_identity:
            return False
        if not self.batches:
            return self.resequence is None
        head = self.batches[0]
        if self.resequence is not None and head.place >= self.resequence:
            return False
        # Nothing of another id or epoch may be in flight: only sequences of one epoch keep the order.
        if self.in_flight and not self._sequence_of(head).same_epoch(self.in_flight[-1].batches[-1].sequence):
            return False
        return self._fits_window(head, ())

    def fits(self, batch: BatchT, taken: Sequence[BatchT]) -> bool:
        """Whether a batch may share a request with those ``taken`` before it, the first of which may be sent.

        Only sequences that follow one another share one: a daemon takes what a request has of a partition as a whole.
        """
        if self.sequences is None or not taken:
            return True
        if self.resequence is not None and batch.place >= self.resequence:
            return False
        last = taken[-1]
        assert last.sequence is not None, "what was taken has a sequence"
        return self._sequence_of(batch) == last.sequence.after(last.count) and self._fits_window(batch, taken)

    def _sequence_of(self, batch: BatchT) -> BatchSequence:
        assert self.sequences is not None
        return batch.sequence or self.sequences.upcoming

    def _fits_window(self, batch: BatchT, taken: Sequence[BatchT]) -> bool:
        """Whether a daemon would still recognise every batch that may come again if this one is sent with ``taken``."""
        if batch.sequence is not None:
            return True
        # Of those that wait, only the first can have been sent before: what comes again goes to the front.
        unsettled = [*taken, *(other for sent in self.in_flight for other in sent.batches), *islice(self.batches, 1)]
        oldest = min((other.ordinal for other in unsettled if other.sequence is not None), default=self._sequenced)
        return self._sequenced - oldest < SEQUENCED_WINDOW

    def all_batches(self) -> list[BatchT]:
        """Every batch that is not settled yet."""
        return [*(batch for request in self.in_flight for batch in request.batches), *self.batches]

    def add(self, batch: BatchT) -> None:
        """Puts a new batch at the end."""
        self._added += 1
        batch.place = (self._added,)
        self.batches.append(batch)

    def put_back(self, batches: Sequence[BatchT]) -> None:
        """Puts batches that were in flight to their old place."""
        for batch in reversed(batches):
            at = next(
                (index for index, other in enumerate(self.batches) if other.place > batch.place), len(self.batches)
            )
            self.batches.insert(at, batch)

    def assign_sequence(self, batch: BatchT) -> None:
        """Gives a batch its sequence when it is sent for the first time."""
        if self.sequences is not None and batch.sequence is None:
            batch.sequence = self.sequences.take(batch.count)
            batch.ordinal = self._sequenced
            self._sequenced += 1

    def reset(self) -> None:
        """Forgets failed attempts: they were of a transaction that ended, and nothing of it is left here."""
        self.backing_off = False
        self.attempts = 0

    def resequence_from(self, place: Place, sure: bool) -> None:
        """Asks for new sequences from ``place`` on, as the daemon does not take the old ones any more.

        ``sure`` says that it never took nor will take any of them: one before was refused for good.
        """
        if self.sequences is not None:
            self.resequence = place if self.resequence is None else min(self.resequence, place)
            self._sure = self._sure and sure

    def begin_epoch_if_asked(self) -> list[BatchT]:
        """Gives up the sequences of what waits, once nothing before it is left: it gets new ones in a new epoch.

        Returns the batches that must not get any, as an attempt that was not answered may have brought them into the log,
        or may yet: they wait no longer, and no more can be known of them.
        """
        if self.resequence is None or self.in_flight or (self.batches and self.batches[0].place < self.resequence):
            return []
        assert self.sequences is not None, "only what has a sequence gets a new one"
        doubtful = [] if self._sure else [batch for batch in self.batches if batch.unanswered]
        if doubtful:
            self.batches = deque(batch for batch in self.batches if not batch.unanswered)
        self.resequence = None
        self._sure = True
        self.sequences.begin_epoch()
        for batch in self.batches:
            batch.sequence = None
        return doubtful


@dataclass(slots=True, eq=False)
class PartitionRequest(Generic[BatchT]):
    """What one request carries of one partition; ``first``: all batches before it were settled when it was sent."""

    queue: PartitionQueue[BatchT]
    batches: list[BatchT]
    first: bool


class PartitionQueues(Generic[BatchT]):
    """All queues of a producer.

    ``batch_size`` bounds a batch in bytes, as estimated before compression; a single larger record gets a batch of its own.
    ``linger_s`` is how long a batch waits for company before it is sent. A batch that is not full waits while another is in
    flight, so batches grow with the load. ``identity`` is that of an idempotent producer.
    """

    def __init__(self, batch_size: int, linger_s: float, identity: ProducerIdentity | None = None) -> None:
        self.batch_size = batch_size
        self.linger_s = linger_s
        self._identity = identity
        self._not_lingering = 0
        self._queues: dict[TopicPartition, PartitionQueue[BatchT]] = {}
        self._waiting: dict[TopicPartition, PartitionQueue[BatchT]] = {}

    def queue(self, partition: TopicPartition) -> PartitionQueue[BatchT]:
        """The queue of a partition, made at the first call."""
        queue = self._queues.get(partition)
        if queue is None:
            sequences = None
            if self._identity is not None:
                sequences = (TransactionalSequences if self._identity.transactional else Sequences)(self._identity)
            queue = self._queues[partition] = PartitionQueue(partition, sequences)
        return queue

    @contextmanager
    def no_linger(self) -> Iterator[None]:
        """While inside no batch lingers."""
        self._not_lingering += 1
        try:
            yield
        finally:
            self._not_lingering -= 1

    def close_batches(self) -> None:
        """No batch that waits takes more records, so that it need not wait for the answer to the one before it."""
        for queue in self._waiting.values():
            queue.open = None

    @property
    def all(self) -> Iterable[PartitionQueue[BatchT]]:
        """All queues, in the order they were made."""
        return self._queues.values()

    @property
    def unsent(self) -> bool:
        """Whether any batch waits to be sent."""
        return bool(self._waiting)

    def waiting(self) -> list[PartitionQueue[BatchT]]:
        """Queues that have batches to send and may send them, those that were served longest ago first."""
        return [queue for queue in self._waiting.values() if queue.may_send()]

    def held_up(self, now: float) -> list[PartitionQueue[BatchT]]:
        """Queues that have batches to send and may not: too much of them is in flight, or an attempt has just failed."""
        return [queue for queue in self._waiting.values() if not queue.may_send() and self.is_ready(queue, now)]

    def records(self) -> int:
        """How many records are not settled yet."""
        return sum(batch.count for queue in self._queues.values() for batch in queue.all_batches())

    def add(self, queue: PartitionQueue[BatchT], batch: BatchT, *, is_open: bool = False) -> None:
        """Puts a new batch at the end of a queue; one that ``is_open`` still takes records."""
        queue.add(batch)
        queue.open = batch if is_open else None
        self._waiting.setdefault(queue.partition, queue)

    def is_ready(self, queue: PartitionQueue[BatchT], now: float) -> bool:
        """Whether the first batch may leave now.

        It is full, or was tried before; or nothing is in flight and it lingered long enough, or all must go.
        """
        head = queue.batches[0]
        if len(queue.batches) > 1 or head is not queue.open or head.size >= self.batch_size:
            return True
        return not queue.in_flight and (self._not_lingering > 0 or now >= head.created_at + self.linger_s)

    def take(self, queue: PartitionQueue[BatchT], room: int, now: float) -> PartitionRequest[BatchT] | None:
        """Takes the ready batches of a queue that fit into ``room`` bytes for a request; None when none fits.

        A batch that goes alone comes alone.
        """
        taken: list[BatchT] = []
        request = PartitionRequest(queue, taken, first=not queue.in_flight)
        while queue.batches and self.is_ready(queue, now):
            batch = queue.batches[0]
            if batch.size > room or (taken and batch.alone) or not queue.fits(batch, taken):
                break
            queue.assign_sequence(batch)
            room -= batch.size
            taken.append(queue.batches.popleft())
            if batch is queue.open:
                queue.open = None
            if batch.alone:
                break
        if not taken:
            return None
        queue.in_flight.append(request)
        self._waiting.pop(queue.partition, None)
        if queue.batches:  # behind all others: a partition that always has more must not keep them from being sent
            self._waiting[queue.partition] = queue
        return request

    def take_all(self, queue: PartitionQueue[BatchT]) -> PartitionRequest[BatchT]:
        """Takes every batch that waits as if for one request: what becomes of one becomes of all."""
        request = PartitionRequest(queue, list(queue.batches), first=not queue.in_flight)
        queue.in_flight.append(request)
        queue.batches.clear()
        queue.open = None
        self._waiting.pop(queue.partition, None)
        return request

    def settle(self, request: PartitionRequest[BatchT], again: Sequence[BatchT] = ()) -> None:
        """A request is in flight no longer; ``again`` are batches of it to be sent again, at their old place."""
        queue = request.queue
        queue.in_flight.remove(request)
        queue.put_back(again)
        if queue.batches:
            self._waiting.setdefault(queue.partition, queue)
        else:
            self._waiting.pop(queue.partition, None)

    def begin_epoch_if_asked(self, queue: PartitionQueue[BatchT]) -> list[BatchT]:
        """See ``PartitionQueue.begin_epoch_if_asked``."""
        doubtful = queue.begin_epoch_if_asked()
        if doubtful and not queue.batches:
            self._waiting.pop(queue.partition, None)
        return doubtful

    def drop_older_than(self, queue: PartitionQueue[BatchT], created_at: float) -> list[BatchT]:
        """Takes out the batches not in flight that were created at or before this time."""
        dropped: list[BatchT] = []
        while queue.batches and queue.batches[0].created_at <= created_at:
            batch = queue.batches.popleft()
            if batch is queue.open:
                queue.open = None
            dropped.append(batch)
        if not queue.batches:
            self._waiting.pop(queue.partition, None)
        return dropped
