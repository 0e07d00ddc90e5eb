"""Writes under a kept epoch are taken as part of the transaction that the coordinator names, in order, and of no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from coordinator.runtime.admission import Admission
from coordinator.runtime.kept_epochs import KeptEpochWrite
from coordinator.runtime.participants import (
    ANSWER_TIMEOUT_S,
    MAX_WAITING,
    WRITES_AT_ONCE,
    ParticipantKey,
    TransactionName,
)
from protocol.errors import ErrorCode
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TransactionTopic
from tests.coordinator.runtime.test_admission import P0, P1, Alarm, Log

KEPT: Final = TransactionName("t", 7, 3)
"""As the producer names all its transactions."""


def means(epoch: int, producer_id: int = 7) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(ErrorCode.NONE, "", producer_id, epoch)


@dataclass
class Bench:
    """An admission whose coordinator answers when a test says so; what became of each write, by its name."""

    asked: list[AddPartitionsToTxnRequest] = field(default_factory=list)
    done: list[Callable[[AddPartitionsToTxnResponse], None]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    logs: defaultdict[ParticipantKey, Log] = field(default_factory=lambda: defaultdict(Log))
    became: list[tuple[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.admission = Admission(self, self.call_later)

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        self.asked.append(request)
        self.done.append(done)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        self.alarms.append(Alarm(delay_s, call))
        return self.alarms[-1]

    def send(self, name: str, *keys: ParticipantKey) -> None:
        self.admission.enter_under_kept_epoch(KEPT, [self._write(name, key) for key in keys or (P0,)])

    def _write(self, name: str, key: ParticipantKey) -> KeptEpochWrite:
        log = self.logs[key]

        def proceed(producer_id: int, epoch: int) -> None:
            assert log.get(producer_id, epoch) == epoch, "another transaction is open"
            log[producer_id] = epoch
            self.became.append((name, (producer_id, epoch)))

        return KeptEpochWrite(key, log, proceed, lambda code, text: self.became.append((name, code)))

    def ends(self, epoch: int, key: ParticipantKey = P0, producer_id: int = 7) -> None:
        self.admission.marker(key, [(producer_id, epoch, True)])
        if self.logs[key].get(producer_id) == epoch:
            del self.logs[key][producer_id]

    def settled(self) -> bool:
        return not len(self.admission) and all(alarm.cancelled for alarm in self.alarms if alarm.delay_s)


def test_the_coordinator_is_asked_once_a_transaction_and_names_it() -> None:
    bench = Bench()
    bench.send("first")
    bench.send("second")
    topics = (TransactionTopic("orders", "id-1", (0,)),)
    assert bench.asked == [AddPartitionsToTxnRequest("t", 7, 3, topics, verify_only=True, keeps_epoch=True)]
    assert bench.became == []
    bench.done[0](means(5))
    bench.send("third")
    assert bench.became == [("first", (7, 5)), ("second", (7, 5)), ("third", (7, 5))]
    bench.ends(5)
    bench.send("fourth")
    assert bench.became[3:] == []
    bench.done[1](means(6))
    assert bench.became[3:] == [("fourth", (7, 6))]
    assert len(bench.asked) == 2
    assert bench.settled()


def test_the_transaction_may_have_another_producer_id() -> None:
    bench = Bench()
    bench.send("first")
    bench.done[0](means(0, producer_id=40))
    bench.send("second")
    assert bench.became == [("first", (40, 0)), ("second", (40, 0))]
    bench.ends(0, producer_id=40)
    bench.send("third")
    assert len(bench.asked) == 2


def test_what_is_open_here_is_not_believed_to_be_meant_before_the_coordinator_has_said_so() -> None:
    bench = Bench()
    bench.logs[P0][7] = 5
    bench.send("after a restart of the leader")
    assert bench.became == []
    bench.done[0](means(5))
    assert bench.became == [("after a restart of the leader", (7, 5))]


def test_a_write_is_refused_as_the_coordinator_says() -> None:
    bench = Bench()
    bench.send("both", P0, P1)
    assert [topic.partitions for topic in bench.asked[0].topics] == [(0, 1)]
    bench.done[0](AddPartitionsToTxnResponse(ErrorCode.INVALID_TXN_STATE, "not added"))
    assert bench.became == [("both", ErrorCode.INVALID_TXN_STATE)] * 2
    assert bench.settled()


def test_an_answer_about_a_transaction_that_ended_meanwhile_is_void() -> None:
    bench = Bench()
    bench.send("late")
    bench.ends(5)
    bench.done[0](means(5))
    assert bench.became == [("late", ErrorCode.CONCURRENT_TRANSACTIONS)]
    bench.send("of the next")
    bench.ends(5)
    bench.done[1](means(6))
    assert bench.became[1:] == [("of the next", (7, 6))], "the marker that came again is that of the one before"
    assert bench.settled()


def test_markers_of_others_make_no_answer_void() -> None:
    bench = Bench()
    bench.send("one")
    bench.ends(9, producer_id=8)
    bench.ends(9, P1)
    bench.done[0](means(5))
    assert bench.became == [("one", (7, 5))]


def test_a_transaction_waits_for_the_end_marker_of_the_one_before_and_yields_to_a_later_one() -> None:
    bench = Bench()
    bench.logs[P0][7] = 4
    bench.send("too early")
    bench.done[0](means(5))
    bench.logs[P0][7] = 6
    bench.send("too late")
    bench.done[1](means(5))
    assert bench.became == [
        ("too early", ErrorCode.CONCURRENT_TRANSACTIONS),
        ("too late", ErrorCode.INVALID_PRODUCER_EPOCH),
    ]


def test_an_answer_from_before_another_node_led_the_partition_is_void() -> None:
    bench = Bench()
    bench.send("waits")
    bench.admission.lost(P0, ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has moved")
    assert bench.became == [("waits", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    bench.send("back again")
    bench.done[0](means(5))
    assert bench.became[1:] == [("back again", ErrorCode.CONCURRENT_TRANSACTIONS)]
    bench.send("once more")
    bench.done[1](means(5))
    assert bench.became[2:] == [("once more", (7, 5))]
    assert list(bench.admission.awaited()) == [P0], "who means what is forgotten with the leadership"
    bench.admission.lost(P0, ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has moved")
    bench.send("after a while")
    assert len(bench.asked) == 3
    assert list(bench.admission.awaited()) == [P0]


def test_waits_have_a_bound() -> None:
    bench = Bench()
    for number in range(MAX_WAITING + 1):
        bench.send(str(number))
    assert bench.became == [(str(MAX_WAITING), ErrorCode.CONCURRENT_TRANSACTIONS)]
    (alarm,) = bench.alarms
    assert alarm.delay_s == ANSWER_TIMEOUT_S
    alarm.call()
    assert set(bench.became[1:]) == {
        (str(number), ErrorCode.COORDINATOR_NOT_AVAILABLE) for number in range(MAX_WAITING)
    }
    bench.done[0](means(5))
    assert len(bench.became) == MAX_WAITING + 1
    assert not len(bench.admission)


def test_a_turn_takes_a_bounded_number_of_writes() -> None:
    bench = Bench()
    bench.send("first", P0, P1)
    for number in range(1, WRITES_AT_ONCE):
        bench.send(str(number), P0)
        bench.send(str(number), P1)
    bench.done[0](means(5))
    assert len(bench.became) == WRITES_AT_ONCE
    bench.ends(5, P1)
    while len(bench.admission):
        bench.alarms[-1].call()
    assert [became for _, became in bench.became[WRITES_AT_ONCE:]] == [
        ErrorCode.CONCURRENT_TRANSACTIONS
    ] * WRITES_AT_ONCE
