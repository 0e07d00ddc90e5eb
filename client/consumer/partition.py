"""What a consumer knows of one partition it reads: where it is, what is buffered, what may be committed. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, NamedTuple

from client.consumer.decoding import BatchDecoder, DecodedBatch
from client.consumer.offsets_in_work import OffsetsInWork
from client.errors import RecordDeserializationError
from client.transport.metadata import Address
from client.types.columns import RecordColumns
from client.types.records import ConsumerRecord
from protocol.record_batch import Attributes, BatchHeader
from protocol.subscription import TopicPartition

Pending = Literal["committed", "reset", "earliest", "latest"]
"""Where the position is to come from: the group's offset, the reset policy, an end of the log."""

UNKNOWN = -1
_CONTROL: Final = int(Attributes.CONTROL)


class FetchedBatch(NamedTuple):
    """One undecoded batch inside an answer to a fetch."""

    buffer: bytes
    position: int
    header: BatchHeader


class PartitionState:
    """One assigned partition.

    ``position`` is the offset of the next record to hand out, ``fetch_offset`` the next to ask the leader for; what lies
    between is buffered. ``done`` is the position that may be committed without asking the program: every record below was
    handed out by an earlier poll, or its handler has finished. ``epoch`` rises when the position is moved, so that answers
    to earlier questions can be told. ``claim`` is the fetch that is to bring the next batches, if one is under way.
    ``behind``: the last answer left records at the leader. ``last_fetch_seq``: which of the fetcher's answers brought some
    last.
    ``left_log``: the leader does not hold ``fetch_offset``, which does not matter before what is buffered was handed out.
    ``of_another_log``: the topic was deleted and created anew, and the position is to be found in the new one.
    ``asked_leader`` is the node that was asked for records last.
    ``work`` has the offsets that handlers have; ``done`` does not pass the first of them. What they had when the position
    was moved counts no more, but holds ``done`` where it is until they are through with it: a seek counts from then on.
    ``origin`` is the batch that the record taken last came from, as it is stored.
    """

    __slots__ = (
        "_aside",
        "_batches",
        "_columns",
        "_decoded",
        "_earlier",
        "_error",
        "_failing",
        "_leader_epochs",
        "_reached",
        "_said_done",
        "_undone",
        "asked_leader",
        "behind",
        "buffered_bytes",
        "claim",
        "committed",
        "done",
        "epoch",
        "failures",
        "fallback",
        "fetch_offset",
        "frozen",
        "last_fetch_seq",
        "left_log",
        "left_range_at",
        "of_another_log",
        "origin",
        "paused",
        "pending",
        "position",
        "readable_end",
        "retry_at_s",
        "tp",
        "work",
    )

    def __init__(self, tp: TopicPartition, pending: Pending, failing: dict[PartitionState, None] | None = None) -> None:
        self.tp = tp
        self._failing = {} if failing is None else failing
        self.pending: Pending | None = pending
        self.position = self.fetch_offset = self.done = self.committed = UNKNOWN
        self.epoch = 0
        self.paused = False
        self.frozen = False
        self.work = OffsetsInWork()
        self._aside = 0  # how many records of ``work`` no handler has any more, although they are not done
        self._earlier = 0  # how many records handlers have that were taken before the position was moved
        self._undone = False  # whether a handler is through with one of these and has not done it
        self._said_done = UNKNOWN
        self.origin: FetchedBatch | None = None
        self.buffered_bytes = 0
        self.behind = False
        self.readable_end = UNKNOWN
        """Up to where it could be read at the last fetch."""
        self.last_fetch_seq = 0
        self.claim: object | None = None
        self.asked_leader: Address | None = None
        self._leader_epochs: list[tuple[int, int]] = [
            (UNKNOWN, UNKNOWN)
        ]  # of what was read: from which offset on, which
        self._error: Exception | None = None
        self.failures = 0
        self.fallback = UNKNOWN
        self.retry_at_s = 0.0
        self.left_log = False
        self.left_range_at: int | None = None
        self.of_another_log = False
        self._batches: deque[FetchedBatch] = deque()
        self._decoded: DecodedBatch | None = None  # what is left of the first batch, if records were taken last
        self._columns: RecordColumns | None = None  # what is left of the first batch, if columns were taken last
        self._reached = UNKNOWN  # the highest position before it was moved

    @property
    def error(self) -> Exception | None:
        """What the next poll has to raise. While there is one, ``failing`` holds this partition."""
        return self._error

    @error.setter
    def error(self, error: Exception | None) -> None:
        """None when the program was told, or when there is nothing to tell any more."""
        self._error = error
        if error is None:
            self._failing.pop(self, None)
        else:
            self._failing[self] = None

    @property
    def readable(self) -> bool:
        """Whether records of this partition may be handed out."""
        return not self.paused and not self.frozen

    @property
    def in_work(self) -> bool:
        """Whether handlers have records of this partition."""
        return self._earlier > 0 or self.work.first is not None

    @property
    def handed_to(self) -> int:
        """The offset after the last record that was handed out since the partition was assigned, or passed by ``seek``."""
        return max(self._reached, self.position)

    def move_to(self, offset: int, leader_epoch: int = UNKNOWN) -> None:
        """Sets the position; what was buffered or asked for before is void.

        ``leader_epoch`` is that of the record before ``offset``, as far as it is known.
        """
        self._void()
        self._leader_epochs = [(UNKNOWN, leader_epoch)]
        self.pending = None
        self.of_another_log = False
        self.fallback = UNKNOWN
        self.position = self.fetch_offset = offset
        if not self.in_work:
            self.done = offset

    def go_back(self, offset: int) -> None:
        """Everything from ``offset`` on is not done, whatever was taken, and comes again."""
        if self.position != offset or self.done != offset:
            self.move_to(offset)
            self.done = offset

    def look_up(self, pending: Pending, fallback: int = UNKNOWN) -> None:
        """Forgets the position; it is to come from ``pending``. Where nothing is committed, ``fallback`` is the position."""
        self._void()
        self.pending, self.fallback = pending, fallback
        self.position = self.fetch_offset = self.done = UNKNOWN

    def say_done(self, offset: int) -> None:
        """Everything below ``offset`` is done, as far as it was handed out."""
        self._said_done = max(self._said_done, min(offset, self.position))
        self.done = max(self.done, self._said_done)

    def finish(self, offset: int, epoch: int) -> None:
        """What was taken at ``epoch``, beginning with the record at ``offset``, is done; also when a handler has moved the
        position: then all below that is."""
        work = self.work
        if epoch == self.epoch:
            work.finish(offset)
        else:
            self._earlier -= 1
        if not self._earlier:
            self._undone = False
            done = work.committable(self.position) if work else self.position
            self.done = done if done > self._said_done else self._said_done

    def pass_over(self) -> None:
        """What was buffered held no record: unless handlers have some, nothing below the position is left to do."""
        if not self.in_work:
            self.done = self.position

    def set_aside(self, epoch: int) -> None:
        """A record taken at ``epoch`` is not done: it stays in work, so that nothing behind it is committed, until
        ``give_back_all``. Nothing of this when the position was moved since."""
        if epoch == self.epoch:
            self._aside += 1
            return
        self._earlier -= 1
        self._undone = True
        self._settle_undone()

    def drop(self, epoch: int) -> None:
        """As ``set_aside``, of a record that no handler was called with: when the position was moved since, it is over."""
        if epoch == self.epoch:
            self._aside += 1
            return
        self._earlier -= 1
        if self._undone:
            self._settle_undone()
        elif not self._earlier:
            self.done = max(self._said_done, self.work.committable(self.position))

    def _settle_undone(self) -> None:
        """The position may have been moved back; that it was moved on counts with what is done next."""
        if not self._earlier:
            self._undone = False
            self.done = min(self.done, max(self._said_done, self.work.committable(self.position)))

    def give_back_all(self) -> None:
        """What is in work is not done and comes again, with all that was taken behind the first of it.

        Not so what was committed by name.
        """
        first = self.work.first
        if first is not None:
            self.work.clear()
            self._aside = 0
            self.move_to(max(first, self.done))

    def give_back(self, epoch: int) -> None:
        """All that is in work was taken at ``epoch``, by one handler: it is not done and comes again.

        Not so when it was committed by name, or when the position was moved since.
        """
        self.set_aside(epoch)
        self.give_back_all()

    def _void(self) -> None:
        self.epoch += 1
        self._earlier += self.work.clear() - self._aside
        self._aside = 0
        self._said_done = UNKNOWN
        self._reached = self.handed_to
        self.claim = None
        self.error = None
        self.failures, self.retry_at_s = 0, 0.0
        self.left_log = False
        self.left_range_at = None
        self._batches.clear()
        self._decoded = self._columns = None
        self.buffered_bytes = 0

    def add(self, batch: FetchedBatch) -> None:
        """Buffers the next batch; one that lies wholly below the fetch offset is passed over.

        So is one that holds no record, as end markers of transactions and what compaction has emptied, as soon as nothing
        is buffered before it: what is read to its end is not behind although no record comes.
        """
        if batch.header.next_offset <= self.fetch_offset:
            return
        if batch.header.leader_epoch > self._leader_epochs[-1][1]:
            self._note_leader_epoch(batch.header)
        self.fetch_offset = batch.header.next_offset
        if not self._batches and _holds_no_record(batch.header):
            self._pass(batch.header)
            return
        self._batches.append(batch)
        self.buffered_bytes += batch.header.length

    def _note_leader_epoch(self, header: BatchHeader) -> None:
        epochs = self._leader_epochs
        while len(epochs) > 1 and epochs[1][0] < self.done:
            del epochs[0]  # all that may be committed is of a later one
        epochs.append((header.base_offset, header.leader_epoch))

    def leader_epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before ``offset``, -1 when it is unknown (KIP-320)."""
        return next((epoch for first, epoch in reversed(self._leader_epochs) if first < offset), UNKNOWN)

    def fetch_anew(self, leader_epoch: int) -> None:
        """The log is another one behind the position, and has nothing before it of a later epoch than ``leader_epoch``:
        what is buffered is not in it any more."""
        self._batches.clear()
        self._decoded = self._columns = None
        self.buffered_bytes = 0
        self.claim = None
        self.left_log = False
        self.fetch_offset = self.position
        self._leader_epochs = [(UNKNOWN, min(leader_epoch, self.leader_epoch_before(self.position)))]

    def take(self, limit: int, decoder: BatchDecoder) -> list[ConsumerRecord]:
        """At most ``limit`` buffered records, in order, and moves past them.

        A batch or a record that cannot be decoded ends the taking; its error is kept in ``error``, and is met again by the
        next take.
        """
        taken: list[ConsumerRecord] = []
        while limit > 0:
            batch = self._head(decoder)
            if batch is None:
                break
            wanted = min(limit, batch.end - batch.place)
            try:
                part = batch.take(wanted)
            except Exception as error:  # the user's next poll raises it
                self.error = error
                break
            limit -= len(part)
            taken += part
            if batch.place < batch.end:
                # The next record's own offset when that one is what a deserializer did not take.
                failed = len(part) < wanted
                self.position = batch.offsets[batch.place] if failed else part[-1].offset + 1
            else:
                self._drop_batch(self._batches[0].header)
        return taken

    def take_for_work(self, decoder: BatchDecoder) -> ConsumerRecord | None:
        """As ``take_one``, for a handler, in whose hands the record is until ``finish`` or ``give_back``."""
        if self._head(decoder) is None:
            return None
        origin = self._batches[0]
        record = self.take_one(decoder)
        if record is not None:
            self.work.take(record.offset)
            self.origin = origin
        return record

    def take_many_for_work(self, limit: int, decoder: BatchDecoder) -> tuple[list[ConsumerRecord], list[FetchedBatch]]:
        """As ``take``, for one handler, in whose hands all of them are until ``finish`` or ``give_back`` of the first.

        Beside the records stand the batches that they came from.
        """
        taken: list[ConsumerRecord] = []
        origins: list[FetchedBatch] = []
        while len(taken) < limit and (head := self._head(decoder)) is not None:
            origin, wanted = self._batches[0], min(limit - len(taken), head.end - head.place)
            part = self.take(wanted, decoder)
            if part:
                taken += part
                origins.append(origin)
            if len(part) < wanted:
                break
        if taken:
            self.error = None  # the next take meets it again
            self.work.take(taken[0].offset)
        return taken, origins

    @property
    def buffered_records(self) -> int:
        """How many records are buffered."""
        count = sum(batch.header.record_count for batch in self._batches if not _holds_no_record(batch.header))
        if self._decoded is not None:
            count -= self._batches[0].header.record_count - (self._decoded.end - self._decoded.place)
        return count

    def next_key(self, decoder: BatchDecoder) -> bytes | None:
        """The key of the next buffered record as it is stored; None without one, or without a record."""
        head = self._head(decoder)
        return None if head is None else head.stored_key()

    def stored(self, record: ConsumerRecord, origin: FetchedBatch | None) -> ConsumerRecord:
        """``record``, which came from ``origin``, with the bytes that are stored and not what deserializers made of them."""
        return record if origin is None else self._undecoded(origin, record.offset)

    def decoded_anew(
        self, record: ConsumerRecord, origin: FetchedBatch, decoder: BatchDecoder
    ) -> tuple[ConsumerRecord, RecordDeserializationError | None]:
        """``record``, with stored bytes, as deserializers make it now; or as it is, and why they do not."""
        batch = decoder.records(self.tp, *origin, record.offset)
        assert batch is not None, "the record came from it"
        try:
            return batch.take_one(), None
        except RecordDeserializationError as error:
            return record, error

    def take_one(self, decoder: BatchDecoder) -> ConsumerRecord | None:
        """The next buffered record, or None; otherwise as ``take``."""
        batch = self._decoded
        if batch is None or batch.place == batch.end:
            batch = self._head(decoder)
            if batch is None:
                return None
        try:
            record = batch.take_one()
        except Exception as error:  # the user's next poll raises it
            self.error = error
            return None
        if batch.place < batch.end:
            self.position = record.offset + 1
        else:
            self._drop_batch(self._batches[0].header)
        return record

    def take_columns(self, limit: int, decoder: BatchDecoder) -> list[RecordColumns]:
        """At most ``limit`` buffered records as columns, in order, and moves past them; otherwise as ``take``."""
        taken: list[RecordColumns] = []
        self._decoded = None  # records that were decoded of the same batch: the position says how far
        while limit > 0 and self._batches:
            buffer, position, header = self._batches[0]
            try:
                columns = self._columns or decoder.columns(self.tp, buffer, position, header, self.position)
            except Exception as error:  # the user's next poll raises it
                self.error = error
                break
            if columns is not None and len(columns) > limit:
                self._columns = columns[limit:]
                taken.append(columns[:limit])
                self.position = self._columns.offsets[0]
                break
            if columns is None:
                self._pass(header)
                self._forget_first(header)
                continue
            taken.append(columns)
            limit -= len(columns)
            self._drop_batch(header)
        return taken

    def take_undecoded(self, offset: int) -> ConsumerRecord:
        """The record at ``offset``, at which the last take failed for a deserializer, with the bytes that are stored."""
        self.origin = self._batches[0]
        record = self._undecoded(self.origin, offset)
        self.error = None
        if self._decoded is not None:
            self._decoded.place += 1
        self.work.take(offset)
        self.position = offset + 1
        return record

    def _undecoded(self, origin: FetchedBatch, offset: int) -> ConsumerRecord:
        batch = BatchDecoder(None, None).records(self.tp, *origin, offset)
        assert batch is not None, "a deserializer has seen the record"
        return batch.take_one()

    def _head(self, decoder: BatchDecoder) -> DecodedBatch | None:
        """The first batch that has records left, decoded."""
        self._columns = None
        while self._batches:
            buffer, position, header = self._batches[0]
            if self._decoded is None:
                try:
                    self._decoded = decoder.records(self.tp, buffer, position, header, self.position)
                except Exception as error:  # the user's next poll raises it
                    self.error = error
                    return None
            if self._decoded is not None and self._decoded.place < self._decoded.end:
                return self._decoded
            self._pass(header)
            self._forget_first(header)
        return None

    def _drop_batch(self, header: BatchHeader) -> None:
        """The first batch was handed out to its end."""
        self.position = header.next_offset
        self._forget_first(header)
        while self._batches and _holds_no_record(self._batches[0].header):
            self._pass(self._batches[0].header)
            self._forget_first(self._batches[0].header)

    def _pass(self, header: BatchHeader) -> None:
        """Moves past a batch of which no record is left to hand out; if all before it is done, so is this."""
        if self.done == self.position and not self.in_work:
            self.done = header.next_offset
        self.position = header.next_offset

    def _forget_first(self, header: BatchHeader) -> None:
        self._decoded = self._columns = None
        self._batches.popleft()
        self.buffered_bytes -= header.length


def _holds_no_record(header: BatchHeader) -> bool:
    return not header.record_count or bool(header.attributes & _CONTROL)
