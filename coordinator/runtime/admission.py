"""Admission of transactional writes: what a leader checks before it takes one, the same for partitions and groups.

A participant, which is the log of a partition or a shard of groups, knows the transactions that are open in it. Of any other
its coordinator is asked, so that each transaction that is open in a log is known to its coordinator:

1. The producer's transaction is open here with the same epoch: the participant decides by its numbers. With a higher epoch:
   INVALID_PRODUCER_EPOCH. With a lower one its end marker has not come yet: the coordinator is asked, which answers when it
   has, or says who has the id now. If it has not come even so: CONCURRENT_TRANSACTIONS.
2. It is not open here. A write with sequence 0 is taken once the coordinator has the partition on disk (AddPartitionsToTxn);
   what the same producer sends meanwhile waits behind it, in order. A write with a sequence above 0 does not begin a
   transaction: the coordinator is asked with ``verify_only``, and it is refused with the reason that this gives. While the
   transaction goes on that is OUT_OF_ORDER_SEQUENCE_NUMBER: what comes before it was refused, and both may come again.
3. An end marker of the same or a later epoch, which arrives while the coordinator is being asked, makes its answer void: it
   may have left before the transaction ended (KIP-890). The reason is asked for as in 2.

Each write is taken or refused once, at the latest ``ANSWER_TIMEOUT_S`` after the coordinator was asked. Pure but for the
timer that it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from coordinator.runtime.kept_epochs import KeptEpochs, KeptEpochWrite
from coordinator.runtime.participants import (
    ANSWER_TIMEOUT_S,
    MAX_WAITING,
    WRITES_AT_ONCE,
    CallLater,
    Participant,
    ParticipantKey,
    Timer,
    TransactionName,
    Transactions,
    by_topic,
)
from protocol.errors import ErrorCode
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse


class TransactionalWrite(NamedTuple):
    """What a producer wants to write to one participant in its transaction.

    ``sequence`` is the first of its batches, 0 for what has no numbers. ``proceed`` writes it in the same turn, so that no
    end marker comes in between; ``refuse`` answers it. One of them is called, once; neither may raise.
    """

    key: ParticipantKey
    participant: Participant
    sequence: int
    proceed: Callable[[], None]
    refuse: Callable[[ErrorCode, str], None]


class _Waiting:
    """Writes of one transaction to one participant, in order; void once an end marker has come."""

    __slots__ = ("void", "writes")

    def __init__(self, write: TransactionalWrite) -> None:
        self.writes: deque[TransactionalWrite] = deque((write,))
        self.void = False


class _Question:
    """One request to the coordinator, and the writes that wait for its answer."""

    __slots__ = ("answer", "asks_for", "name", "timer")

    def __init__(self, name: TransactionName, asks_for: dict[ParticipantKey, _Waiting]) -> None:
        self.name = name
        self.asks_for = asks_for
        self.answer: AddPartitionsToTxnResponse | None = None
        self.timer: Timer | None = None


class Admission:
    """Takes or refuses the transactional writes of one node; see the module text."""

    def __init__(self, transactions: Transactions, call_later: CallLater) -> None:
        self._transactions = transactions
        self._call_later = call_later
        self._kept_epochs = KeptEpochs(transactions, call_later)
        self._waiting: dict[tuple[ParticipantKey, int], dict[int, _Waiting]] = {}
        """By participant and producer id, then by epoch: what waits for the coordinator."""

    def __len__(self) -> int:
        """Transactions that the coordinator is being asked about, counted for each participant."""
        return sum(map(len, self._waiting.values())) + len(self._kept_epochs)

    def enter(self, name: TransactionName, writes: Iterable[TransactionalWrite]) -> None:
        """Takes or refuses the writes of one request in one transaction, now or later.

        The coordinator is asked once for all that it has to be asked for.
        """
        asks_for: dict[ParticipantKey, _Waiting] = {}
        for write in writes:
            waiting = self._waiting.get((write.key, name.producer_id), {}).get(name.producer_epoch)
            if waiting is not None:
                self._wait(name, waiting, write)
            elif self._decide(name, write, asked=False):
                if write.sequence:
                    self._verify(name, write)
                else:
                    waiting = asks_for[write.key] = _Waiting(write)
                    self._waiting.setdefault((write.key, name.producer_id), {})[name.producer_epoch] = waiting
        if asks_for:
            self._ask(_Question(name, asks_for), verify_only=False)

    def enter_under_kept_epoch(self, name: TransactionName, writes: Iterable[KeptEpochWrite]) -> None:
        """The same for a Kafka producer from before KIP-890, whose ``name`` has the epoch that it keeps."""
        self._kept_epochs.enter(name, writes)

    def marker(self, key: ParticipantKey, ends: Iterable[tuple[int, int, bool]]) -> None:
        """End markers are about to be written by a participant: producer id, epoch, and whether it committed, of each."""
        for producer_id, producer_epoch, _ in ends:
            for epoch, waiting in self._waiting.get((key, producer_id), {}).items():
                if epoch <= producer_epoch:
                    waiting.void = True
        self._kept_epochs.marker(key, ends)

    def awaited(self) -> Iterable[ParticipantKey]:
        """The participants at which writes wait for the coordinator, or of which something is known."""
        return dict.fromkeys((*(key for key, _ in self._waiting), *self._kept_epochs.awaited()))

    def lost(self, key: ParticipantKey, code: ErrorCode, why: str) -> None:
        """A participant is not led here any more: what waits is for its next leader to take, which hears of end markers that
        are not heard of here."""
        found = [epochs.values() for (waits_for, _), epochs in self._waiting.items() if waits_for == key]
        for waiting in [each for epochs in found for each in epochs]:
            waiting.void = True
            writes, waiting.writes = waiting.writes, deque()
            for write in writes:
                write.refuse(code, why)
        self._kept_epochs.lost(key, code, why)

    def awaits(self, key: ParticipantKey, producer_id: int, producer_epoch: int) -> bool:
        """Whether writes of a transaction wait for the coordinator's answer, and may open it here."""
        return producer_epoch in self._waiting.get((key, producer_id), ())

    def _decide(self, name: TransactionName, write: TransactionalWrite, *, asked: bool) -> bool:
        """Takes or refuses a write by what is open; returns whether that is for the coordinator to say.

        ``asked`` is whether it has been asked.
        """
        epoch = write.participant.open_epoch(name.producer_id)
        if epoch is None:
            return True
        if epoch == name.producer_epoch:
            write.proceed()
        elif epoch < name.producer_epoch:
            if not asked and not write.sequence:
                return True
            text = f"{name}: {_where(write)} has not got the end marker of epoch {epoch} yet; try again"
            write.refuse(ErrorCode.CONCURRENT_TRANSACTIONS, text)
        else:
            text = f"{name}: a transaction of epoch {epoch} is open in {_where(write)}: a later instance has taken over"
            write.refuse(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        return False

    def _wait(self, name: TransactionName, waiting: _Waiting, write: TransactionalWrite) -> None:
        if len(waiting.writes) < MAX_WAITING:
            waiting.writes.append(write)
            return
        text = f"{name}: {MAX_WAITING} requests wait for {_where(write)} to become part of the transaction; try again"
        write.refuse(ErrorCode.CONCURRENT_TRANSACTIONS, text)

    def _verify(self, name: TransactionName, write: TransactionalWrite) -> None:
        """Asks why a write cannot be taken. Nothing waits behind it."""
        self._ask(_Question(name, {write.key: _Waiting(write)}), verify_only=True)

    def _ask(self, question: _Question, *, verify_only: bool) -> None:
        name = question.name
        answered = partial(self._answered, question, self._tell_reason if verify_only else self._admit)
        text = f"{name}: its coordinator has not answered within {ANSWER_TIMEOUT_S:.0f} s; try again"
        overdue = AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        question.timer = self._call_later(ANSWER_TIMEOUT_S, partial(answered, overdue))
        topics = by_topic(question.asks_for)
        self._transactions.add(AddPartitionsToTxnRequest(*name, topics, verify_only), answered)

    def _answered(
        self, question: _Question, go_on: Callable[[_Question], None], answer: AddPartitionsToTxnResponse
    ) -> None:
        if question.answer is None:  # the time was not over
            question.answer = answer
            if question.timer is not None:
                question.timer.cancel()
            go_on(question)

    def _admit(self, question: _Question) -> None:
        """The coordinator has answered an Add: takes or refuses what waits for it, a bounded number of writes in a turn.

        What arrives meanwhile, some of it because of these answers, waits behind what was there before.
        """
        name, asks_for, left = question.name, question.asks_for, WRITES_AT_ONCE
        while asks_for:
            key, waiting = next(iter(asks_for.items()))
            while waiting.writes:
                if not left:
                    self._call_later(0, partial(self._admit, question))
                    return
                left -= 1
                self._settle(question, waiting)
            del asks_for[key]
            epochs = self._waiting[key, name.producer_id]
            del epochs[name.producer_epoch]
            if not epochs:
                del self._waiting[key, name.producer_id]

    def _settle(self, question: _Question, waiting: _Waiting) -> None:
        name, answer, write = question.name, question.answer, waiting.writes.popleft()
        assert answer is not None
        if answer.error_code:
            write.refuse(ErrorCode(answer.error_code), answer.error_message)
        elif waiting.void:
            self._verify(name, write)
        elif self._decide(name, write, asked=True):
            if write.sequence:
                write.refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, _gap(name, write))
            else:
                write.proceed()

    def _tell_reason(self, question: _Question) -> None:
        """The coordinator has said why a write cannot be taken, or that it could if those before it were there."""
        (waiting,) = question.asks_for.values()
        name, answer, write = question.name, question.answer, waiting.writes.popleft()
        assert answer is not None
        if answer.error_code == ErrorCode.INVALID_TXN_STATE and write.sequence:
            # The transaction goes on, but the batches before this one have not been taken here.
            write.refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, answer.error_message)
        elif answer.error_code:
            write.refuse(ErrorCode(answer.error_code), answer.error_message)
        elif self._decide(name, write, asked=True):  # else the first batch has come meanwhile
            if write.sequence:
                write.refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, _gap(name, write))
            else:
                text = f"{name}: the transaction has ended in {_where(write)}, but its coordinator does not say so"
                write.refuse(ErrorCode.INVALID_TXN_STATE, text)


def _where(write: TransactionalWrite) -> str:
    return f"{write.key[0]}-{write.key[2]}"


def _gap(name: TransactionName, write: TransactionalWrite) -> str:
    return (
        f"{name}: its first batch in {_where(write)} is missing, and this one begins with sequence {write.sequence}: "
        "send them in order"
    )
