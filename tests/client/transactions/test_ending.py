"""How a transaction ends, against the coordinator's own core: answers are lost, requests come late and twice.

What a program is told is true: a transaction told as committed is committed, one told as aborted never is, whatever comes
later. A producer that has its id for itself is never fenced, and knows the outcome of each transaction as soon as it is
answered again.
"""

from __future__ import annotations

from random import Random

import pytest

from client.errors import (
    CohortError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from client.transactions.ending import Ending, Identity, Question
from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.records import Ended, IdentityRecord
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import AbortTransactionRequest, EndTxnResponse, LastSequence, UnacknowledgedTopic
from tests.coordinator.transactions.steps import Coordinator, adding

ID = "t"


def asked(coordinator: Coordinator, request: Request) -> EndTxnResponse | InitProducerIdResponse | None:
    """The answer, or None while the request is parked."""
    answer = coordinator.answers.get(coordinator.ask(request))
    assert answer is None or isinstance(answer, EndTxnResponse | InitProducerIdResponse)
    return answer


def carried_out(coordinator: Coordinator, ending: Ending) -> Ending:
    """The ending, asked without any trouble."""
    for _ in range(20):
        if ending.done:
            return ending
        ending.sent()
        answer = asked(coordinator, ending.request())
        if answer is None:
            coordinator.write_markers()
            continue
        assert ending.answered(answer) is None
    raise AssertionError(f"no end of {ending.request()}")


def taken_over(coordinator: Coordinator) -> Identity:
    ending = carried_out(coordinator, Ending(ID, 60_000, Question.TAKE_OVER))
    assert ending.following is not None
    return ending.following


def opened(coordinator: Coordinator) -> Identity:
    """A producer with a transaction that has written."""
    identity = taken_over(coordinator)
    coordinator.add(*identity, 0)
    return identity


def ending_of(identity: Identity, committed: bool = True, version: int = -1) -> Ending:
    return Ending(ID, 60_000, Question.COMMIT if committed else Question.ABORT, identity, version)


def lost(coordinator: Coordinator, ending: Ending) -> None:
    """A request is heard, and its answer is lost."""
    ending.sent()
    asked(coordinator, ending.request())


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("lost_answers", [0, 1, 3])
def test_a_lost_answer_is_told_again(committed: bool, lost_answers: int) -> None:
    coordinator = Coordinator()
    identity = opened(coordinator)
    ending = ending_of(identity, committed)
    for _ in range(lost_answers):
        lost(coordinator, ending)
        assert ending.in_doubt == committed
    carried_out(coordinator, ending)
    assert ending.outcome == ("committed" if committed else "aborted")
    assert ending.following == Identity(identity.producer_id, identity.epoch + 1)
    assert ending.fatal is None


@pytest.mark.parametrize("how", ["timeout", "administrator"])
def test_a_commit_after_an_abort_by_others_is_told_why_and_goes_on(how: str) -> None:
    coordinator = Coordinator()
    identity = opened(coordinator)
    if how == "timeout":
        coordinator.advance(60_001)
    else:
        coordinator.abort()
    ending = carried_out(coordinator, ending_of(identity))
    assert (ending.outcome, ending.fatal) == ("aborted", None)
    assert isinstance(ending.reason, TransactionAbortableError)
    assert ending.following == Identity(identity.producer_id, identity.epoch + 1)


def test_a_producer_that_was_replaced_is_told_so_and_knows_that_nothing_was_committed() -> None:
    coordinator = Coordinator()
    identity = opened(coordinator)
    taken_over(coordinator)
    ending = carried_out(coordinator, ending_of(identity))
    assert ending.outcome == "aborted"
    assert isinstance(ending.fatal, ProducerFencedError)
    assert not ending.unknowable


@pytest.mark.parametrize("committed_before", [True, False])
def test_a_commit_in_doubt_when_another_takes_over_is_never_guessed(committed_before: bool) -> None:
    coordinator = Coordinator()
    identity = opened(coordinator)
    ending = ending_of(identity)
    ending.sent()
    if committed_before:
        asked(coordinator, ending.request())
        coordinator.write_markers()
    taken_over(coordinator)
    carried_out(coordinator, ending)
    assert ending.outcome is None
    assert isinstance(ending.fatal, ProducerFencedError)
    assert ending.unknowable


def test_a_commit_with_a_version_is_known_also_when_another_has_taken_over() -> None:
    coordinator = Coordinator()
    identity = opened(coordinator)
    ending = ending_of(identity, version=7)
    lost(coordinator, ending)
    coordinator.write_markers()
    successor = taken_over(coordinator)
    carried_out(coordinator, ending)
    assert ending.outcome == "committed"
    assert ending.committed_version == 7
    assert isinstance(ending.fatal, ProducerFencedError), "and not the identity of its successor"
    assert ending.following != successor


def test_an_id_that_the_coordinator_has_forgotten_is_the_end_of_its_producer() -> None:
    coordinator = Coordinator()
    identity = opened(coordinator)
    for committed in (True, False):
        fresh = Coordinator(first_producer_id=5000)
        ending = carried_out(fresh, ending_of(identity, committed))
        assert isinstance(ending.fatal, InvalidProducerIdMappingError)
        assert ending.following is None, "it does not take the id anew"
        assert ending.outcome == "aborted", "as nothing was heard of it before"

    ending = ending_of(identity)
    ending.sent()
    carried_out(Coordinator(), ending)
    assert ending.outcome is None
    assert ending.unknowable
    assert isinstance(ending.fatal, InvalidProducerIdMappingError)


def test_a_commit_of_nothing_is_a_fault_of_the_program_unless_it_has_a_version() -> None:
    coordinator = Coordinator()
    identity = taken_over(coordinator)
    ending = carried_out(coordinator, ending_of(identity, version=3))
    assert (ending.outcome, ending.committed_version) == ("committed", 3)
    assert ending.following is not None
    ending = carried_out(coordinator, ending_of(ending.following))
    assert isinstance(ending.fatal, InvalidTxnStateError)
    assert ending.outcome == "aborted"


def test_what_waits_is_asked_again_and_is_not_in_doubt() -> None:
    ending = ending_of(Identity(1, 1))
    ending.sent()
    error = ending.answered(EndTxnResponse(ErrorCode.CONCURRENT_TRANSACTIONS, error_message="t-0"))
    assert error is not None
    assert error.retriable
    assert not ending.in_doubt
    ending.sent()
    error = ending.answered(EndTxnResponse(ErrorCode.KAFKA_STORAGE_ERROR))
    assert error is not None
    assert error.retriable
    assert ending.in_doubt, "the decision may be on disk"


class Program:
    """A producer of the id, with the transactions it was told of."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ending: Ending | None = Ending(ID, 60_000, Question.TAKE_OVER)
        self.identity = Identity(-1, -1)
        self.endings: list[tuple[Identity, Ending]] = []
        self.version = -1
        self.opened = False

    def act(self) -> None:
        """One thing that a producer does: it asks, writes, commits or aborts."""
        random, world = self.world.random, self.world
        if self.ending is not None:
            self.ask(self.ending)
        elif not self.opened and random.random() < 0.8:
            answer = world.coordinator.answers.get(world.deliver(adding(ID, *self.identity, random.randrange(3))))
            self.opened = answer is not None and getattr(answer, "error_code", -1) == ErrorCode.NONE
            if not self.opened:
                self.end(Question.ABORT)
        elif self.opened or random.random() < 0.2:
            self.end(random.choice((Question.COMMIT, Question.COMMIT, Question.ABORT)))
        else:
            self.version = max(self.version, world.version) + 1
            world.version = self.version
            self.end(Question.COMMIT, self.version)

    def end(self, question: Question, version: int = -1) -> None:
        if question is Question.COMMIT and not self.opened and version < 0:
            question = Question.ABORT
        self.ending = Ending(ID, 60_000, question, self.identity, version)
        self.endings.append((self.identity, self.ending))

    def ask(self, ending: Ending) -> None:
        random, world = self.world.random, self.world
        ending.sent()
        request = ending.request()
        if random.random() < world.trouble:
            return  # it never came
        answer = world.coordinator.answers.get(world.deliver(request))
        if answer is None or random.random() < world.trouble:
            return
        assert isinstance(answer, EndTxnResponse | InitProducerIdResponse)
        error: CohortError | None = ending.answered(answer)
        assert error is None or error.retriable
        if ending.following is not None:
            self.identity, self.ending, self.opened = ending.following, None, False
        elif ending.fatal is not None:
            assert isinstance(ending.fatal, ProducerFencedError), ending.fatal
            assert world.takers > 1, "a producer that has the id for itself is fenced"
            self.ending = None
            world.programs.remove(self)
            world.gone.append(self)


class World:
    """One coordinator, some producers of one id, and a network that loses, doubles and delays requests."""

    def __init__(self, seed: int, producers: int) -> None:
        self.random = Random(seed)
        self.trouble = self.random.choice((0.0, 0.1, 0.3))
        self.coordinator = Coordinator(TransactionConfig(last_epoch=self.random.choice((3, 32_766))))
        self.late: list[Request] = []
        self.version = -1
        self.takers = 0
        self.most = producers
        self.programs: list[Program] = []
        self.gone: list[Program] = []

    def deliver(self, request: Request) -> int:
        takes_over = isinstance(request, InitProducerIdRequest) and request.producer_id < 0
        if (
            self.random.random() < self.trouble and not takes_over
        ):  # it would fence its own producer, as it does in Kafka
            self.late.append(request)
        return self.coordinator.ask(request)

    def look(self) -> None:
        """Those who lead the partitions say whether the transaction is open there: if any program has written in it."""
        written = {program.identity for program in [*self.programs, *self.gone] if program.opened}
        for order in list(self.coordinator.lookups):
            self.coordinator.found(is_open=Identity(order.producer_id, order.producer_epoch) in written)

    def truth(self) -> dict[Identity, Ended]:
        return {
            Identity(*record.previous.identity): record.previous.how
            for record in self.coordinator.written
            if isinstance(record, IdentityRecord) and record.previous is not None
        }

    def run(self) -> None:
        random = self.random
        for _ in range(120):
            if self.takers < self.most and (not self.programs or random.random() < 0.05):
                self.takers += 1
                self.programs.append(Program(self))
            if not self.programs:
                break
            random.choice(self.programs).act()
            if self.late and random.random() < 0.3:
                self.coordinator.ask(self.late.pop(random.randrange(len(self.late))))
            if random.random() < 0.5:
                self.coordinator.write_markers()
            if random.random() < 0.05:
                self.coordinator.ask(AbortTransactionRequest(ID))
            if random.random() < 0.1:
                self.coordinator.advance(random.choice((1, 6_000, 70_000)))
            if random.random() < 0.05:
                self.coordinator.restart()
                self.look()
        self.trouble = 0.0
        for _ in range(60):
            self.coordinator.write_markers()
            for program in list(self.programs):
                if program.ending is not None:
                    program.ask(program.ending)
        for request in self.late:  # what comes after all that changes nothing
            self.coordinator.write_markers()
            self.coordinator.ask(request)

    def check(self) -> None:
        truth = self.truth()
        for program in [*self.programs, *self.gone]:
            assert program.ending is None, "each ending has an answer once the network is calm"
            for identity, ending in program.endings:
                how = truth.get(identity)
                if ending.outcome == "committed":
                    # Or the same version by another producer: then the work is done, as ``AlreadyCommittedError`` says.
                    assert how == Ended.COMMITTED or 0 <= ending._version <= ending.committed_version, (identity, how)
                elif ending.outcome == "aborted":
                    assert how != Ended.COMMITTED, (identity, how)
                else:
                    assert ending.unknowable
                    assert self.takers > 1


@pytest.mark.parametrize("producers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(60))
def test_what_a_program_is_told_is_true(seed: int, producers: int) -> None:
    world = World(seed * 10 + producers, producers)
    world.run()
    world.check()


# --- commits that are sent before their records are acknowledged -----------------------------------------------------

UNACKNOWLEDGED = (UnacknowledgedTopic("t", (LastSequence(0, 4),)),)
NOT_STORED = EndTxnResponse(ErrorCode.CONCURRENT_TRANSACTIONS, error_message="a write was refused")


def early(identity: Identity) -> Ending:
    return Ending(ID, 60_000, Question.COMMIT, identity, -1, UNACKNOWLEDGED)


def test_an_early_commit_that_is_not_decided_waits_for_its_records_and_asks_without_them() -> None:
    coordinator = Coordinator()
    ending = early(opened(coordinator))
    assert getattr(ending.request(), "unacknowledged", None) == UNACKNOWLEDGED
    ending.sent()
    assert ending.answered(NOT_STORED) is None
    assert (ending.waits, ending.done, ending.outcome) == (True, False, None)
    ending.go_on()
    assert getattr(ending.request(), "unacknowledged", None) == ()
    assert carried_out(coordinator, ending).outcome == "committed"


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("answered", [True, False])
def test_a_record_that_fails_after_an_early_commit_aborts_it_unless_it_has_taken_effect(
    decided: bool, answered: bool
) -> None:
    coordinator = Coordinator()
    identity = opened(coordinator)
    ending = early(identity)
    ending.sent()
    if decided:
        asked(coordinator, ending.request())
    if answered:
        ending.answered(NOT_STORED)  # of a request that came before
    ending.give_up(RecordTooLargeError("too large"))
    assert (ending.outcome, ending.done) == (None, False)
    carried_out(coordinator, ending)
    assert ending.outcome == ("committed" if decided else "aborted")
    assert ending.following == Identity(identity.producer_id, identity.epoch + 1)
    assert ending.fatal is None
    late = asked(coordinator, early(identity).request())
    assert late is not None
    assert (late.error_code == ErrorCode.NONE) == decided, "what comes late changes nothing"
