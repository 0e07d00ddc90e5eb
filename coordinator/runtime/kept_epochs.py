"""Admission of writes by Kafka producers from before KIP-890, which keep one epoch from transaction to transaction.

Such a producer has the coordinator make partitions part of its transaction by itself, before it writes there, and names all
its transactions by the epoch that it keeps. The coordinator counts them as any others: each has an epoch that is used once,
under which its records lie in the log and its end marker comes. A leader, who gets a write under the kept epoch, asks
which transaction that is:

1. It is open here, and the coordinator has said of it before that the producer means it: the write is taken as its part.
2. Else the coordinator is asked with ``verify_only``, whatever the sequence is; what the same producer sends meanwhile
   waits behind it, in order. The answer names the transaction, or refuses the write: the partition is no part of it.
3. The end marker of that transaction, or of a later one, arrives while the coordinator is being asked: the write may come
   again.

A write that was sent in one transaction and arrives in the next is taken as part of that, if the partition is part of both
and it is the next in sequence: this is what KIP-890 has put right for those who know it. Pure but for the timer it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

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


class KeptEpochWrite(NamedTuple):
    """What a producer that keeps its epoch wants to write to one participant.

    ``proceed`` writes it in the same turn, as part of the transaction with this producer id and epoch; ``refuse`` answers
    it. One of them is called, once; neither may raise.
    """

    key: ParticipantKey
    participant: Participant
    proceed: Callable[[int, int], None]
    refuse: Callable[[ErrorCode, str], None]


class _Waiting:
    """Writes of one producer to one participant, in order, and which transactions have ended there meanwhile.

    With ``lost`` that is not known: another node has led the participant.
    """

    __slots__ = ("ended", "lost", "writes")

    def __init__(self, write: KeptEpochWrite) -> None:
        self.writes: deque[KeptEpochWrite] = deque((write,))
        self.ended: dict[int, int] = {}
        """The last epoch by producer id."""
        self.lost = False


class _Question:
    """One request to the coordinator, and the writes that wait for its answer."""

    __slots__ = ("answer", "asks_for", "name", "timer")

    def __init__(self, name: TransactionName, asks_for: dict[ParticipantKey, _Waiting]) -> None:
        self.name = name
        self.asks_for = asks_for
        self.answer: AddPartitionsToTxnResponse | None = None
        self.timer: Timer | None = None


class KeptEpochs:
    """Takes or refuses such writes of one node; see the module text."""

    def __init__(self, transactions: Transactions, call_later: CallLater) -> None:
        self._transactions = transactions
        self._call_later = call_later
        self._waiting: dict[ParticipantKey, dict[TransactionName, _Waiting]] = {}
        """By participant, and as the producer names itself: what waits for the coordinator."""
        self._meant: dict[ParticipantKey, dict[TransactionName, tuple[int, int]]] = {}
        """By participant, and as the producer names itself: producer id and epoch of its transaction that is open there."""

    def __len__(self) -> int:
        """Producers about which the coordinator is being asked, counted for each participant."""
        return sum(map(len, self._waiting.values()))

    def enter(self, name: TransactionName, writes: Iterable[KeptEpochWrite]) -> None:
        """Takes or refuses the writes of one request, now or later; ``name`` has the epoch that the producer keeps."""
        asks_for: dict[ParticipantKey, _Waiting] = {}
        for write in writes:
            waiting = self._waiting.get(write.key, {}).get(name)
            if waiting is not None:
                self._wait(name, waiting, write)
                continue
            meant = self._meant.get(write.key, {}).get(name)
            if meant is not None and write.participant.open_epoch(meant[0]) == meant[1]:
                write.proceed(*meant)
            else:
                asks_for[write.key] = self._waiting.setdefault(write.key, {})[name] = _Waiting(write)
        if asks_for:
            self._ask(_Question(name, asks_for))

    def marker(self, key: ParticipantKey, ends: Iterable[tuple[int, int, bool]]) -> None:
        """End markers are about to be written by a participant: producer id, epoch, and whether it committed, of each."""
        waiting, meant = self._waiting.get(key), self._meant.get(key)
        if waiting is None and meant is None:
            return
        last = {producer_id: producer_epoch for producer_id, producer_epoch, _ in ends}
        for each in () if waiting is None else waiting.values():
            for producer_id, epoch in last.items():
                each.ended[producer_id] = max(epoch, each.ended.get(producer_id, epoch))
        if meant is not None:
            for name in [name for name, (producer_id, _) in meant.items() if producer_id in last]:
                del meant[name]
            if not meant:
                del self._meant[key]

    def awaited(self) -> Iterable[ParticipantKey]:
        """The participants of which something is known, or at which writes wait for the coordinator's answer."""
        return dict.fromkeys((*self._waiting, *self._meant))

    def lost(self, key: ParticipantKey, code: ErrorCode, why: str) -> None:
        """A participant is not led here any more."""
        self._meant.pop(key, None)
        for waiting in tuple(self._waiting.get(key, {}).values()):
            waiting.lost = True
            writes, waiting.writes = waiting.writes, deque()
            for write in writes:
                write.refuse(code, why)

    def _wait(self, name: TransactionName, waiting: _Waiting, write: KeptEpochWrite) -> None:
        if len(waiting.writes) < MAX_WAITING:
            waiting.writes.append(write)
            return
        text = (
            f"{name}: {MAX_WAITING} requests wait for the coordinator to say which transaction they are of; try again"
        )
        write.refuse(ErrorCode.CONCURRENT_TRANSACTIONS, text)

    def _ask(self, question: _Question) -> None:
        name = question.name
        answered = partial(self._answered, question)
        text = f"{name}: its coordinator has not answered within {ANSWER_TIMEOUT_S:.0f} s; try again"
        overdue = AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        question.timer = self._call_later(ANSWER_TIMEOUT_S, partial(answered, overdue))
        topics = by_topic(question.asks_for)
        request = AddPartitionsToTxnRequest(*name, topics, verify_only=True, keeps_epoch=True)
        self._transactions.add(request, answered)

    def _answered(self, question: _Question, answer: AddPartitionsToTxnResponse) -> None:
        if question.answer is None:  # the time was not over
            question.answer = answer
            if question.timer is not None:
                question.timer.cancel()
            self._admit(question)

    def _admit(self, question: _Question) -> None:
        """Takes or refuses what waits for the answer, a bounded number of writes in a turn."""
        name, asks_for, left = question.name, question.asks_for, WRITES_AT_ONCE
        while asks_for:
            key, waiting = next(iter(asks_for.items()))
            while waiting.writes:
                if not left:
                    self._call_later(0, partial(self._admit, question))
                    return
                left -= 1
                self._settle(question, waiting)
            del asks_for[key], self._waiting[key][name]
            if not self._waiting[key]:
                del self._waiting[key]

    def _settle(self, question: _Question, waiting: _Waiting) -> None:
        name, answer, write = question.name, question.answer, waiting.writes.popleft()
        assert answer is not None
        producer_id, epoch = answer.producer_id, answer.producer_epoch
        where = f"{write.key[0]}-{write.key[2]}"
        if answer.error_code:
            write.refuse(ErrorCode(answer.error_code), answer.error_message)
            return
        opened = write.participant.open_epoch(producer_id)
        if waiting.lost or waiting.ended.get(producer_id, -1) >= epoch:
            text = f"{name}: its transaction may have ended in {where} while its coordinator was asked; try again"
            write.refuse(ErrorCode.CONCURRENT_TRANSACTIONS, text)
        elif opened is None or opened == epoch:
            write.proceed(producer_id, epoch)
            if write.participant.open_epoch(producer_id) == epoch:
                self._meant.setdefault(write.key, {})[name] = producer_id, epoch
        elif opened < epoch:
            text = f"{name}: {where} has not got the end marker of its transaction before yet; try again"
            write.refuse(ErrorCode.CONCURRENT_TRANSACTIONS, text)
        else:
            text = f"{name}: a later transaction is open in {where}: a later instance has taken over"
            write.refuse(ErrorCode.INVALID_PRODUCER_EPOCH, text)
