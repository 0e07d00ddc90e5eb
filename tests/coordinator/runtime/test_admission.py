"""Transactional writes are taken in order, once their coordinator knows of them, and never after their end marker."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest

from coordinator.runtime.admission import Admission, TransactionalWrite
from coordinator.runtime.participants import (
    ANSWER_TIMEOUT_S,
    MAX_WAITING,
    WRITES_AT_ONCE,
    ParticipantKey,
    TransactionName,
)
from protocol.errors import ErrorCode
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TransactionTopic

GRANTED = AddPartitionsToTxnResponse(ErrorCode.NONE)
P0, P1, OTHER = ("orders", "id-1", 0), ("orders", "id-1", 1), ("payments", "id-2", 0)


class Log(dict[int, int]):
    """The transactions that are open in a participant: epochs by producer id."""

    def open_epoch(self, producer_id: int) -> int | None:
        return self.get(producer_id)


@dataclass
class Alarm:
    """A timer that a test fires."""

    delay_s: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Bench:
    """An admission whose coordinator answers when a test says so; what became of each write, by its name."""

    asked: list[AddPartitionsToTxnRequest] = field(default_factory=list)
    done: list[Callable[[AddPartitionsToTxnResponse], None]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    logs: defaultdict[ParticipantKey, Log] = field(default_factory=lambda: defaultdict(Log))
    became: list[tuple[str, str]] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admission = Admission(self, self.call_later)

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        self.asked.append(request)
        self.done.append(done)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        self.alarms.append(Alarm(delay_s, call))
        return self.alarms[-1]

    def write(
        self, name: str, key: ParticipantKey, epoch: int, sequence: int, then: Callable[[], None] | None = None
    ) -> TransactionalWrite:
        def proceed() -> None:
            self.became.append((name, "taken"))
            self.logs[key][7] = epoch
            if then is not None:
                then()

        def refuse(code: ErrorCode, text: str) -> None:
            self.became.append((name, code.name))
            self.told[name] = text
            if then is not None:
                then()

        return TransactionalWrite(key, self.logs[key], sequence, proceed, refuse)

    def send(self, epoch: int, *writes: TransactionalWrite) -> None:
        self.admission.enter(TransactionName("t", 7, epoch), writes)

    def one(self, name: str, epoch: int, sequence: int, key: ParticipantKey = P0) -> None:
        self.send(epoch, self.write(name, key, epoch, sequence))

    def answer(self, place: int = -1, response: AddPartitionsToTxnResponse = GRANTED) -> None:
        self.done[place](response)

    def ends(self, epoch: int, key: ParticipantKey = P0) -> None:
        ends = [(7, epoch, False)]
        self.admission.marker(key, ends)
        if self.logs[key].get(7) == epoch:
            del self.logs[key][7]

    def settled(self) -> bool:
        return not len(self.admission) and all(alarm.cancelled for alarm in self.alarms if alarm.delay_s)


def test_the_first_write_waits_for_the_coordinator_and_later_ones_wait_behind_it() -> None:
    bench = Bench()
    bench.one("first", 3, 0)
    bench.one("second", 3, 10)
    bench.one("third", 3, 20)
    assert bench.became == []
    assert bench.asked == [AddPartitionsToTxnRequest("t", 7, 3, (TransactionTopic("orders", "id-1", (0,)),))]
    bench.answer()
    assert bench.became == [("first", "taken"), ("second", "taken"), ("third", "taken")]
    bench.one("fourth", 3, 30)
    assert bench.became[3:] == [("fourth", "taken")]
    assert len(bench.asked) == 1
    assert bench.settled()


def test_what_waits_at_a_participant_that_is_not_led_here_any_more_is_for_its_next_leader() -> None:
    bench = Bench()
    bench.one("first", 3, 0)
    bench.one("second", 3, 10)
    bench.one("elsewhere", 3, 0, P1)
    bench.admission.lost(P0, ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has moved")
    assert bench.became == [("first", "NOT_LEADER_OR_FOLLOWER"), ("second", "NOT_LEADER_OR_FOLLOWER")]
    assert bench.told["first"] == "it has moved"
    bench.one("back again", 3, 0)
    bench.answer(0)
    assert bench.became[2:] == [], "the answer is from before: an end marker may have come to the other leader"
    assert bench.asked[-1].verify_only
    bench.answer(2, AddPartitionsToTxnResponse(ErrorCode.PRODUCER_FENCED, "over"))
    bench.answer(1)
    assert bench.became[2:] == [("back again", "PRODUCER_FENCED"), ("elsewhere", "taken")]
    assert bench.settled()


def test_a_coordinator_that_answers_at_once_is_understood() -> None:
    bench = Bench()

    class AtOnce:
        def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
            done(GRANTED)

    bench.admission = Admission(AtOnce(), bench.call_later)
    bench.one("first", 3, 0)
    assert bench.became == [("first", "taken")]
    assert bench.settled()


def test_the_partitions_of_a_request_are_added_at_once_without_those_that_are_open_or_asked_for() -> None:
    bench = Bench()
    bench.one("open", 3, 0, OTHER)
    bench.answer()
    bench.one("asked for", 3, 0, P1)
    bench.send(3, *(bench.write(f"{key[0]}-{key[2]}", key, 3, 0) for key in (P0, P1, OTHER)))
    assert bench.became == [("open", "taken"), ("payments-0", "taken")]
    assert [request.topics for request in bench.asked[1:]] == [
        (TransactionTopic("orders", "id-1", (1,)),),
        (TransactionTopic("orders", "id-1", (0,)),),
    ]
    new = Bench()
    new.send(3, *(new.write(str(key), key, 3, 0) for key in (P0, OTHER, P1)))
    assert [request.topics for request in new.asked] == [
        (TransactionTopic("orders", "id-1", (0, 1)), TransactionTopic("payments", "id-2", (0,)))
    ]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_what_the_coordinator_refuses_is_refused_with_its_words_to_all_that_wait(code: ErrorCode) -> None:
    bench = Bench()
    bench.one("first", 3, 0)
    bench.one("second", 3, 10)
    bench.answer(response=AddPartitionsToTxnResponse(code, "says why"))
    assert bench.became == [("first", code.name), ("second", code.name)]
    assert bench.told == {"first": "says why", "second": "says why"}
    assert bench.logs[P0] == {}
    assert bench.settled()


def test_what_is_open_decides_by_its_epoch() -> None:
    bench = Bench()
    bench.logs[P0][7] = 4
    bench.one("older", 3, 0)
    bench.one("same", 4, 30)
    bench.one("newer", 5, 10)
    assert bench.became == [
        ("older", "INVALID_PRODUCER_EPOCH"),
        ("same", "taken"),
        ("newer", "CONCURRENT_TRANSACTIONS"),
    ]
    assert bench.asked == []
    assert "orders-0 has not got the end marker of epoch 4" in bench.told["newer"]


@pytest.mark.parametrize("ended", [True, False])
def test_the_next_transaction_waits_for_the_end_marker_of_the_one_before_at_the_coordinator(ended: bool) -> None:
    bench = Bench()
    bench.logs[P0][7] = 4
    bench.one("first", 5, 0)
    bench.one("second", 5, 10)
    assert bench.became == []
    assert [(request.producer_epoch, request.verify_only) for request in bench.asked] == [(5, False)]
    if ended:
        bench.ends(4)
    bench.answer()
    became = "taken" if ended else "CONCURRENT_TRANSACTIONS"
    assert bench.became == [("first", became), ("second", became)]
    assert bench.settled()


def test_one_that_claims_a_later_epoch_is_refused_with_the_reason_of_the_coordinator() -> None:
    bench = Bench()
    bench.logs[P0][7] = 4
    bench.one("stranger", 9, 0)
    bench.answer(response=AddPartitionsToTxnResponse(ErrorCode.PRODUCER_FENCED, "is not that of the id"))
    assert bench.became == [("stranger", "PRODUCER_FENCED")]
    assert bench.logs[P0] == {7: 4}


def test_what_has_been_opened_while_the_coordinator_was_asked_decides_too() -> None:
    bench = Bench()
    bench.one("older", 3, 0)
    bench.one("newer", 4, 0)
    assert len(bench.asked) == 2
    bench.answer(1)
    bench.answer(0)
    assert bench.became == [("newer", "taken"), ("older", "INVALID_PRODUCER_EPOCH")]
    assert bench.settled()


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_ABORTABLE])
def test_a_write_behind_an_end_is_refused_with_the_reason_of_the_coordinator(code: ErrorCode) -> None:
    bench = Bench()
    bench.one("late", 3, 10)
    assert [request.verify_only for request in bench.asked] == [True]
    bench.answer(response=AddPartitionsToTxnResponse(code, "it has ended"))
    assert bench.became == [("late", code.name)]
    assert bench.settled()


def test_a_write_that_came_before_the_first_one_is_refused_or_taken_when_that_has_come_meanwhile() -> None:
    bench = Bench()
    bench.one("early", 3, 10)
    bench.answer()
    assert bench.became == [("early", "OUT_OF_ORDER_SEQUENCE_NUMBER")]
    bench.one("early", 3, 10)
    bench.answer(response=AddPartitionsToTxnResponse(ErrorCode.INVALID_TXN_STATE, "nothing was written there yet"))
    assert bench.became.pop() == ("early", "OUT_OF_ORDER_SEQUENCE_NUMBER")
    del bench.done[-1]
    bench.one("early", 3, 10)
    bench.one("first", 3, 0)
    bench.answer(2)
    bench.answer(1)
    assert bench.became[1:] == [("first", "taken"), ("early", "taken")]
    assert bench.settled()


def test_a_write_behind_a_first_one_that_was_not_stored_is_refused() -> None:
    bench = Bench()
    first = bench.write("first", P0, 3, 0)
    bench.send(3, first._replace(proceed=lambda: bench.became.append(("first", "failed"))))
    bench.one("second", 3, 10)
    bench.answer()
    assert bench.became == [("first", "failed"), ("second", "OUT_OF_ORDER_SEQUENCE_NUMBER")]
    assert "its first batch in orders-0 is missing" in bench.told["second"]


@pytest.mark.parametrize(("ended", "void"), [(2, False), (3, True), (4, True)])
def test_an_end_marker_makes_an_answer_under_way_void_unless_it_is_of_an_earlier_epoch(ended: int, void: bool) -> None:
    bench = Bench()
    bench.one("first", 3, 0)
    bench.ends(ended)
    bench.ends(9, P1)
    bench.admission.marker(P0, [(8, 9, True)])
    bench.answer()
    if not void:
        assert bench.became == [("first", "taken")]
        return
    assert bench.became == []
    assert bench.asked[-1].verify_only
    bench.answer(response=AddPartitionsToTxnResponse(ErrorCode.TRANSACTION_ABORTABLE, "timed out"))
    assert bench.became == [("first", "TRANSACTION_ABORTABLE")]
    assert bench.settled()


def test_a_void_answer_is_not_taken_even_if_the_coordinator_does_not_know_of_the_end() -> None:
    bench = Bench()
    bench.one("first", 3, 0)
    bench.ends(3)
    bench.answer()
    bench.answer()
    assert bench.became == [("first", "INVALID_TXN_STATE")]


def test_a_coordinator_that_is_silent_is_not_waited_for_and_its_late_answer_changes_nothing() -> None:
    bench = Bench()
    bench.one("first", 3, 0)
    bench.one("second", 3, 10)
    (alarm,) = bench.alarms
    assert alarm.delay_s == ANSWER_TIMEOUT_S
    alarm.call()
    assert bench.became == [("first", "COORDINATOR_NOT_AVAILABLE"), ("second", "COORDINATOR_NOT_AVAILABLE")]
    bench.answer(0)
    assert len(bench.became) == 2
    bench.one("again", 3, 0)
    bench.answer()
    assert bench.became[2:] == [("again", "taken")]


def test_so_many_requests_wait_and_no_more() -> None:
    bench = Bench()
    for number in range(MAX_WAITING + 1):
        bench.one(str(number), 3, number)
    assert bench.became == [(str(MAX_WAITING), "CONCURRENT_TRANSACTIONS")]
    bench.answer()
    assert len(bench.became) == MAX_WAITING + 1


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS])
def test_what_an_answer_brings_about_waits_behind_what_was_there(code: ErrorCode) -> None:
    bench = Bench()
    bench.send(3, bench.write("first", P0, 3, 0, then=lambda: bench.one("third", 3, 20)))
    bench.one("second", 3, 10)
    bench.answer(response=AddPartitionsToTxnResponse(code))
    assert [name for name, _ in bench.became] == ["first", "second", "third"]
    assert len({what for _, what in bench.became}) == 1
    assert bench.settled()


def test_many_writes_are_taken_in_several_turns_and_an_end_marker_between_them_counts() -> None:
    bench = Bench()
    keys = [("orders", "id-1", index) for index in range(WRITES_AT_ONCE + 10)]
    bench.send(3, *(bench.write(str(key[2]), key, 3, 0) for key in keys))
    bench.answer()
    assert bench.became == [(str(index), "taken") for index in range(WRITES_AT_ONCE)]
    bench.one("behind", 3, 10, keys[-1])
    bench.ends(3, keys[-2])
    bench.alarms[-1].call()
    assert bench.became[WRITES_AT_ONCE:] == [
        *((str(index), "taken") for index in range(WRITES_AT_ONCE, WRITES_AT_ONCE + 8)),
        (str(WRITES_AT_ONCE + 9), "taken"),
        ("behind", "taken"),
    ]
    assert bench.asked[-1].verify_only
    assert bench.asked[-1].topics == (TransactionTopic("orders", "id-1", (keys[-2][2],)),)


class History:
    """A coordinator, two partitions and a producer that begins one transaction after the other, all of them late.

    What is checked at each write that is taken: the coordinator knows that the transaction has that partition, the marker
    of its end is still to come, and the transaction begins there with sequence 0.
    """

    def __init__(self, seed: int, kind: type[Admission]) -> None:
        self.random = random.Random(seed)
        self.late: list[Callable[[], None]] = []
        self.admission = kind(self, self.call_later)
        self.epoch = 0
        self.members: dict[int, set[ParticipantKey]] = defaultdict(set)
        """By epoch: where its transaction may be open. A partition leaves it when it has its end marker."""
        self.logs = {key: Log() for key in (P0, P1)}
        self.taken: dict[tuple[ParticipantKey, int], list[int]] = defaultdict(list)
        self.sent: dict[tuple[ParticipantKey, int], int] = defaultdict(int)
        self.open_writes = 0

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(delay_s, call)
        if not delay_s or self.random.random() < 0.05:
            self.late.append(lambda: None if alarm.cancelled else alarm.call())
        return alarm

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        self.late.append(partial(self.decide, request, done))

    def decide(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        keys = {(topic.name, topic.topic_id, index) for topic in request.topics for index in topic.partitions}
        answer = GRANTED
        if request.producer_epoch != self.epoch:
            answer = AddPartitionsToTxnResponse(ErrorCode.TRANSACTION_ABORTABLE, "it has ended")
        elif any(key in members for epoch, members in self.members.items() if epoch < self.epoch for key in keys):
            self.late.append(partial(self.decide, request, done))  # parked
            return
        elif not request.verify_only:
            self.members[self.epoch] |= keys
        self.late.append(partial(done, answer))

    def produce(self) -> None:
        # One of an earlier transaction may be late as well.
        epoch = self.epoch if self.random.random() < 0.8 else max(0, self.epoch - 1)
        keys = self.random.sample([P0, P1], self.random.choice([1, 1, 2]))
        writes = []
        for key in keys:
            sequence = self.sent[key, epoch] if self.random.random() < 0.8 else 0
            self.sent[key, epoch] = max(self.sent[key, epoch], sequence + 1)
            writes.append(self.write(key, epoch, sequence))
        self.open_writes += len(writes)
        self.admission.enter(TransactionName("t", 7, epoch), writes)

    def write(self, key: ParticipantKey, epoch: int, sequence: int) -> TransactionalWrite:
        answered: list[None] = []

        def answer() -> None:
            assert not answered
            answered.append(None)
            self.open_writes -= 1

        def proceed() -> None:
            answer()
            assert key in self.members[epoch], f"{key} has epoch {epoch}, and its coordinator does not know"
            taken = self.taken[key, epoch]
            assert taken or sequence == 0
            if sequence == len(taken):  # else the participant refuses the gap, or it is there already
                taken.append(sequence)
                self.logs[key][7] = epoch

        def refuse(code: ErrorCode, text: str) -> None:
            answer()
            assert code in (
                ErrorCode.TRANSACTION_ABORTABLE,
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                ErrorCode.INVALID_PRODUCER_EPOCH,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ), text

        return TransactionalWrite(key, self.logs[key], sequence, proceed, refuse)

    def end(self) -> None:
        ended, self.epoch = self.epoch, self.epoch + 1
        self.late += [partial(self.marker, key, ended) for key in self.members[ended]]

    def marker(self, key: ParticipantKey, epoch: int) -> None:
        self.admission.marker(key, [(7, epoch, True)])
        self.members[epoch].discard(key)
        if self.logs[key].get(7) == epoch:
            del self.logs[key][7]

    def run(self) -> None:
        for _ in range(self.random.randrange(10, 120)):
            chance = self.random.random()
            if chance < 0.4:
                self.produce()
            elif chance < 0.5:
                self.end()
            elif self.late:
                self.late.pop(self.random.randrange(len(self.late)))()
        self.end()
        for _ in range(10_000):
            if not self.late:
                break
            self.late.pop(self.random.randrange(len(self.late)))()
        assert not self.late
        assert not self.open_writes
        assert not len(self.admission)
        assert not any(self.logs.values()), "a transaction that its coordinator has ended is still open"


HISTORIES = 400


def test_whatever_is_late_each_open_transaction_is_known_to_its_coordinator() -> None:
    taken = 0
    for seed in range(HISTORIES):
        history = History(seed, Admission)
        history.run()
        taken += sum(map(len, history.taken.values()))
    assert taken > HISTORIES


class Trusting(Admission):
    """Does not know of end markers."""

    def marker(self, key: ParticipantKey, ends: Iterable[tuple[int, int, bool]]) -> None:
        return


class Careless(Admission):
    """Does not ask the coordinator."""

    def enter(self, name: TransactionName, writes: Iterable[TransactionalWrite]) -> None:
        for write in writes:
            if self._decide(name, write, asked=True):
                write.proceed()


@pytest.mark.parametrize("kind", [Trusting, Careless])
def test_without_the_rules_a_transaction_is_open_that_its_coordinator_does_not_know(kind: type[Admission]) -> None:
    failed = 0
    for seed in range(HISTORIES):
        try:
            History(seed, kind).run()
        except AssertionError:
            failed += 1
    assert failed
