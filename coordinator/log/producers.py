"""The producer state of a partition: pure, so that live appends and recovery decide alike.

An idempotent producer gives its records sequence numbers, partition by partition, from 0. The partition takes a batch only
if its base sequence follows the last one it has, answers a duplicate with the offset it got then, and refuses any other
(KIP-98). So a batch that is sent again because its answer was lost is in the log once, and a batch that overtook another
never gets in.

The last ``REMEMBERED_BATCHES`` batches of each producer are remembered: as many as a client may have under way. All of them
go into the snapshot beside the log, so a restart forgets none (Kafka keeps one of five through a restart, and then answers
the duplicate of an older one with OUT_OF_ORDER_SEQUENCE_NUMBER).

A transactional producer is remembered from the first batch of its transaction to the end marker, and never forgotten in
between. Sequences begin at 0 in each transaction and partition. Which epochs may begin one is for the transaction
coordinator to say, who is asked before the first batch.

A Kafka producer from before KIP-890 keeps its epoch and numbers on from transaction to transaction (``kept_epoch`` of the
batch header). It is remembered past the end marker as an idempotent producer is, so that the first batch of its next
transaction has to follow the last one here. One that is not known here may begin with any sequence, as in Kafka (KIP-360).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Final, NamedTuple

from coordinator.log.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.transactions import OpenTransaction, OpenTransactions
from protocol.record_batch import Attributes, BatchHeader, sequence_after

REMEMBERED_BATCHES: Final = 5
MAX_PRODUCERS: Final = 100_000
"""Producers remembered by one partition; above it those that were silent for the longest time are forgotten.

Those with an open transaction do not count: their number is bounded by the transaction coordinators.
"""

MAX_EXPIRED: Final = 10_000
"""Producers that expire in one look: about 2 ms."""

BEFORE_RESTART: Final = -1
"""When a producer was heard of that is known from the log or a snapshot only."""

_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)


class WrittenBatch(NamedTuple):
    """A batch that is in the log: its first and last sequence number, its base offset and the offset after it.

    ``append_time_ms`` is the daemon's time that its records got, ``NO_TIMESTAMP`` where they have their producer's.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int
    append_time_ms: int = NO_TIMESTAMP


class ProducerState(NamedTuple):
    """What is remembered of one producer; ``batches`` are of ``epoch``, oldest first. Never changed, only replaced.

    ``last_heard_ms`` is wall time. ``transaction`` is the one that it has open: all its batches are of that, unless there
    is a ``kept_epoch``: then they are of all transactions under this one.
    """

    epoch: int
    batches: tuple[WrittenBatch, ...]
    last_heard_ms: int = BEFORE_RESTART
    transaction: OpenTransaction | None = None
    kept_epoch: int = -1


Snapshot = Sequence[tuple[int, ProducerState]]
"""Producer ids with their states, the one heard of longest ago first."""


def remembered_offsets(snapshot: Snapshot) -> frozenset[int]:
    """The base offsets of the batches by which producers are remembered: without them a snapshot could not be made anew."""
    return frozenset(batch.base_offset for _, state in snapshot for batch in state.batches)


def check_follows(header: BatchHeader, following: BatchHeader) -> None:
    """Two batches of one append: the second must continue the first, so that either both are taken or none is.

    Batches without a producer follow one another in any case. Raises ``OutOfOrderSequenceError``, or
    ``InvalidTransactionStateError`` when only one of them is transactional.
    """
    producer = (header.producer_id, header.producer_epoch)
    if producer != (following.producer_id, following.producer_epoch):
        raise OutOfOrderSequenceError(
            f"a request has batches of producers {producer[0]} and {following.producer_id}, epochs {producer[1]} and "
            f"{following.producer_epoch}: those of one partition have to be of one",
        )
    if (header.attributes ^ following.attributes) & _TRANSACTIONAL:
        raise InvalidTransactionStateError(
            f"a request of producer {producer[0]} has batches of a transaction and others: those of one partition have to "
            "be of one kind",
        )
    expected = sequence_after(header.base_sequence, header.record_count)
    if header.producer_id >= 0 and following.base_sequence != expected:
        raise OutOfOrderSequenceError(
            f"a request of producer {producer[0]} has a batch that begins with sequence {following.base_sequence} where "
            f"{expected} comes next: send what follows a gap by itself",
        )


class Producers:
    """The idempotent producers of one partition, and the transactions that they have open there.

    ``find`` says whether a batch is a duplicate or may be appended, ``note`` remembers one that is being appended, and
    ``end`` the end marker of a transaction. What was noted of appends that failed is taken back with ``undo``; ``settle``
    says that it cannot be any more.
    """

    __slots__ = ("_first_look_ms", "_forgotten", "_open", "_states", "transactions", "unsettled")

    def __init__(self, states: Iterable[tuple[int, ProducerState]] = ()) -> None:
        self._states: dict[int, ProducerState] = {}  # in the order in which they were last heard of
        self._open: dict[int, ProducerState] = {}
        """Those that have a transaction open."""
        for producer_id, state in states:
            self._remember(producer_id, state)
        self.transactions = OpenTransactions(
            state.transaction for state in self._open.values() if state.transaction is not None
        )
        self.unsettled: deque[tuple[int, int, ProducerState | None]] = deque()
        """What ``undo`` would take back: base offset, producer id, and what was remembered of the producer before."""
        self._forgotten = 0
        self._first_look_ms: int | None = None

    def __len__(self) -> int:
        return len(self._states) + len(self._open)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        """Every producer id with its state: those with a transaction, then the others, heard of longest ago first."""
        yield from self._open.items()
        yield from self._states.items()

    @property
    def forgettable(self) -> int:
        """How many have no transaction open."""
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        """What is remembered of a producer."""
        return self._states.get(producer_id) or self._open.get(producer_id)

    def below(self, offset: int) -> Iterator[tuple[int, ProducerState]]:
        """What there is to know of records below ``offset``, for a copy of the log that begins there.

        Those with a transaction come first, then the others, heard of last first.

        Of each producer the batches below it, and the transaction that it opened there and has not ended. What the copy
        finds in the log from ``offset`` on is left out: it notes that by itself.
        """
        for producer_id, state in chain(self._open.items(), reversed(self._states.items())):
            batches = tuple(batch for batch in state.batches if batch.base_offset < offset)
            if batches:
                opened = state.transaction
                transaction = opened if opened is not None and opened.first_offset < offset else None
                yield producer_id, state._replace(batches=batches, transaction=transaction)

    def transaction_of(self, producer_id: int) -> OpenTransaction | None:
        """The transaction that a producer has open here."""
        state = self._open.get(producer_id)
        return None if state is None else state.transaction

    def last_written(self, producer_id: int, epoch: int) -> WrittenBatch | None:
        """The last batch of a transaction; None when it is not open here."""
        state = self._open.get(producer_id)
        return None if state is None or state.epoch != epoch else state.batches[-1]

    def find(self, header: BatchHeader) -> WrittenBatch | None:
        """The batch in the log of which this one is a duplicate; None when it is new and comes next.

        Raises a ``ProducerStateError``. Kafka lets a
        producer that is not known begin with any sequence (KIP-360), and then takes the first batches of a new producer in
        whatever order they come.
        """
        transactional = header.attributes & _TRANSACTIONAL
        known = self._states.get(header.producer_id)
        first = header.base_sequence
        who = f"producer {header.producer_id}"
        if known is None and (known := self._open.get(header.producer_id)) is not None:
            _check_open(header, known.epoch)
        if known is None:
            if first == 0 or header.kept_epoch >= 0:
                return None
            raise UnknownProducerIdError(
                f"{who} is not known here, and its batch begins with sequence {first}: begin a new epoch with 0",
            )
        if header.producer_epoch < known.epoch:
            raise InvalidProducerEpochError(
                f"{who} has epoch {known.epoch} here, the batch has {header.producer_epoch}: a later instance of this "
                "producer has taken over",
            )
        numbers_on = _numbers_on(header, known)  # lower epochs are refused above
        if not numbers_on and (header.producer_epoch > known.epoch or (transactional and known.transaction is None)):
            if first == 0:
                return None
            raise OutOfOrderSequenceError(
                f"{who} begins epoch {header.producer_epoch} with sequence {first}: a new epoch begins with 0",
            )
        last = sequence_after(first, header.record_count - 1)
        for batch in known.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        expected = sequence_after(known.batches[-1].last_sequence, 1)
        if first != expected:
            raise OutOfOrderSequenceError(
                f"{who} sends sequences {first} to {last} in epoch {known.epoch}, but {expected} comes next here: "
                f"batches before it are missing, or it repeats one older than the last {REMEMBERED_BATCHES}",
            )
        return None

    def note(self, header: BatchHeader, base_offset: int, now_ms: int = BEFORE_RESTART) -> None:
        """Remembers a batch that is being appended at ``base_offset``; ``now_ms`` is wall time.

        A transactional one opens its transaction here, if that is not open.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self._take(producer_id)
        self.unsettled.append((base_offset, producer_id, known))
        transaction = None
        before: tuple[WrittenBatch, ...] = ()
        if known is not None and known.epoch == epoch:
            before, transaction = known.batches, known.transaction
        elif known is not None and known.transaction is not None:  # in a log that has lost the end marker
            self.transactions.end(known.transaction, base_offset)
        numbers_on = known is not None and _numbers_on(header, known)
        if numbers_on and known is not None:
            before = known.batches
        if transaction is None and header.attributes & _TRANSACTIONAL:
            started_ms = header.base_timestamp if now_ms == BEFORE_RESTART else now_ms
            transaction = OpenTransaction(producer_id, epoch, base_offset, started_ms)
            self.transactions.note(transaction)
            before = before if numbers_on else ()
        batch = WrittenBatch(
            header.base_sequence,
            sequence_after(header.base_sequence, header.last_offset_delta),  # compaction may have taken records out
            base_offset,
            base_offset + header.last_offset_delta + 1,
            header.append_time_ms,
        )
        batches = (*before[1 - REMEMBERED_BATCHES :], batch)
        state = ProducerState(epoch, batches, now_ms, transaction, header.kept_epoch)
        self._remember(producer_id, state)
        if (above := len(self._states) - MAX_PRODUCERS) > 0:
            # Some more at once: each look for the first of a dictionary passes over all that were taken out before it.
            self.forget(above + MAX_PRODUCERS // 100)

    def end(self, producer_id: int, epoch: int, offset: int) -> bool:
        """Notes an end marker that is being appended at ``offset``. Unless it numbers on, the producer is not remembered.

        Returns False, and does nothing, when no transaction of that producer and epoch is open.
        """
        known = self._open.get(producer_id)
        if known is None or known.transaction is None or known.epoch != epoch:
            return False
        del self._open[producer_id]
        self.unsettled.append((offset, producer_id, known))
        self.transactions.end(known.transaction, offset)
        if known.kept_epoch >= 0:
            self._states[producer_id] = known._replace(transaction=None)
        return True

    def _take(self, producer_id: int) -> ProducerState | None:
        known = self._states.pop(producer_id, None)
        return self._open.pop(producer_id, None) if known is None else known

    def _remember(self, producer_id: int, state: ProducerState) -> None:
        if state.transaction is None:
            self._states[producer_id] = state
        else:
            self._open[producer_id] = state

    def settle(self, offset: int) -> None:
        """Everything noted below ``offset`` is written."""
        while self.unsettled and self.unsettled[0][0] < offset:
            self.unsettled.popleft()
        self.transactions.settle(offset)

    def undo(self) -> None:
        """Takes back what was noted and has not been settled: those batches never got into the log."""
        while self.unsettled:
            _, producer_id, before = self.unsettled.pop()
            self._take(producer_id)
            if before is not None:
                self._remember(producer_id, before)
        self.transactions.undo()

    def forget(self, count: int) -> None:
        """Forgets those ``count`` that were heard of longest ago: there are too many."""
        for producer_id in list(islice(self._states, max(0, count))):
            del self._states[producer_id]
            self._forgotten += 1

    def take_forgotten(self) -> int:
        """How many were forgotten for being too many since this was last asked."""
        forgotten, self._forgotten = self._forgotten, 0
        return forgotten

    def expire(self, now_ms: int, retention_ms: int) -> int:
        """Forgets producers that were last heard of ``retention_ms`` or longer ago, by wall time; returns how many.

        Those that were known before a restart count as heard of at the first call: the log does not say when that was. It
        looks at those heard of longest ago, up to the first that stays, and forgets ``MAX_EXPIRED`` at most; the others go
        at the next calls.
        """
        if self._first_look_ms is None:
            self._first_look_ms = now_ms
        gone = []
        for producer_id, state in islice(self._states.items(), MAX_EXPIRED):
            heard_ms = self._first_look_ms if state.last_heard_ms == BEFORE_RESTART else state.last_heard_ms
            if now_ms - heard_ms < retention_ms:
                break
            gone.append(producer_id)
        for producer_id in gone:
            del self._states[producer_id]
        return len(gone)


def _numbers_on(header: BatchHeader, known: ProducerState) -> bool:
    """Whether a producer keeps its epoch from the transaction before to that of a batch."""
    return header.kept_epoch >= 0 and header.kept_epoch == known.kept_epoch


def _check_open(header: BatchHeader, epoch: int) -> None:
    """What a batch must be while its producer has a transaction of ``epoch`` open here; a lower epoch is for others."""
    who = f"producer {header.producer_id}"
    if not header.attributes & _TRANSACTIONAL:
        raise InvalidTransactionStateError(
            f"{who} has a transaction of epoch {epoch} open here, and the batch belongs to none: end the transaction first",
        )
    if header.producer_epoch > epoch:
        raise ConcurrentTransactionsError(
            f"{who} has a transaction of epoch {epoch} open here, the batch is of epoch {header.producer_epoch}: the end "
            "of the one before is still to come",
        )


Write = Callable[[bytes, BatchHeader, int], int]
"""Queues a batch at a wall time and returns its base offset."""


class AppendResult(NamedTuple):
    """Where a batch is in the log.

    A duplicate was there before: nothing was appended, and these are the offsets and the time of its first append.
    ``append_time_ms`` is the daemon's time that its records got, -1 where they have their producer's.
    """

    base_offset: int
    last_offset: int
    duplicate: bool
    append_time_ms: int


def append_once_each(
    producers: Producers,
    batches: Sequence[tuple[bytes, BatchHeader]],
    now_ms: int,
    write: Write,
    append_time_ms: int = NO_TIMESTAMP,
) -> list[AppendResult]:
    """Idempotence: calls ``write`` for those batches that are not in the log already; tells where each is.

    All of them or none, as batches of one producer continue one another. ``write`` returns the base offset;
    ``append_time_ms`` is what new batches have been stamped with.
    """
    for (_, header), (_, following) in pairwise(batches):
        check_follows(header, following)
    results = []
    for batch, header in batches:
        if header.producer_id >= 0 and (found := producers.find(header)) is not None:
            results.append(AppendResult(found.base_offset, found.next_offset - 1, True, found.append_time_ms))
            continue
        base_offset = write(batch, header, now_ms)
        if header.producer_id >= 0:
            producers.note(header, base_offset, now_ms)
        results.append(AppendResult(base_offset, base_offset + header.last_offset_delta, False, append_time_ms))
    return results
