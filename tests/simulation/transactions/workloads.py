"""What clients do: they consume, transform and produce, number their work, or run a job with members."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from coordinator.runtime.participants import TransactionName
from coordinator.transactions.records import NO_PRODUCER, Identity
from protocol.errors import RETRIABLE, ErrorCode
from protocol.messages.offsets import OffsetCommitPartition, OffsetCommitTopic, OffsetFetchRequest, OffsetFetchTopic
from protocol.messages.producers import OUTCOME_COMMITTED, InitProducerIdRequest
from protocol.messages.transactions import (
    NO_VERSION,
    EndTxnRequest,
    JoinTransactionRequest,
    TxnOffsetCommitRequest,
)
from tests.simulation.transactions.clients import Act, Asks, Client, Pauses, Produces, Running
from tests.simulation.transactions.facts import Attempt
from tests.simulation.transactions.plan import JOBS, LOOPS, NUMBERED

Steps = Generator[Act, Any, Any]

REQUIRE_STABLE: bool = True
"""Whether loops wait for undecided offsets."""

TRIES: Final = 8
UNSTABLE: Final = -2
GONE: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


@dataclass(slots=True)
class JobLog:
    """What the job's own log says: which batches are committed. It may lag behind the coordinator."""

    done: int = 0
    results: dict[tuple[int, int, int], Identity] = field(default_factory=dict)


def ask(where: str, request: Any, tries: int = TRIES) -> Steps:
    """Asks until there is a definite answer; None when there is none."""
    for _ in range(tries):
        answer = yield Asks(where, request)
        if answer is None:
            continue
        code = getattr(answer, "error_code", 0)
        if code not in RETRIABLE:
            return answer
        yield Pauses(20)
    return None


class Producer:
    """A producer with a transactional id, as the client library has one."""

    def __init__(self, client: Client) -> None:
        self.client, self.facts = client, client.world.facts
        self.identity: Identity | None = None
        self.doubt: Identity | None = None
        """The transaction of which it is not known how it ended."""
        self.committed_version = NO_VERSION
        self.attempt: Attempt | None = None
        self.sequences: dict[int, int] = {}
        self.outcome: bool | None = None
        """How the transaction in doubt ended, once that is known."""

    def begin(self) -> Steps:
        """Gets an identity if there is none, and settles what is in doubt. Returns whether the producer may go on."""
        while self.identity is None:
            given = self.doubt or Identity(NO_PRODUCER, -1)
            timeout_ms = self.client.world.plan.timeout_ms
            answer = yield from ask("C", InitProducerIdRequest(self.client.transactional_id, timeout_ms, *given))
            if answer is None:
                yield Pauses(50)
                continue
            if answer.error_code != ErrorCode.NONE:
                return False
            self.identity = self.client.told(Identity(answer.producer_id, answer.producer_epoch))
            self.committed_version = answer.committed_version
            if self.doubt is not None and answer.previous_outcome:
                self._settled(self.doubt, answer.previous_outcome == OUTCOME_COMMITTED)
            self.doubt = None
        self.attempt = self.facts.attempt(self.identity)
        self.sequences = {}
        return True

    def produce(self, place: int, content: object) -> Steps:
        """Writes one record; returns its error code, or None when it is in doubt."""
        assert self.identity is not None
        assert self.attempt is not None
        name = TransactionName(self.client.transactional_id, *self.identity)
        sequence = self.sequences.get(place, 0)
        for _ in range(TRIES):
            code = yield Produces(place, name, sequence, content, self.attempt)
            if code is ErrorCode.NONE:
                self.sequences[place] = sequence + 1
                return code
            if code is not None and code not in RETRIABLE:
                return code
            yield Pauses(10)
        return None

    def end(self, committed: bool, version: int = NO_VERSION) -> Steps:
        """Ends the transaction; returns whether the producer may go on. What is in doubt is settled by ``begin``."""
        assert self.identity is not None
        assert self.attempt is not None
        identity = self.identity
        self.attempt.may_commit |= committed
        request = EndTxnRequest(self.client.transactional_id, *identity, committed, version)
        answer = yield from ask("C", request, 1 if self.client.chance(0.2) else TRIES)
        self.identity = None
        self.outcome = None
        if answer is None:
            self.doubt = identity
            return True
        code = answer.error_code
        if code == ErrorCode.NONE:
            if committed:
                if version == NO_VERSION:
                    self.facts.committed_told(identity)
                else:
                    self.facts.version_told(self.client.transactional_id, version)
            else:
                self.facts.aborted_told(identity)
            self.outcome = committed
            self.committed_version = answer.committed_version
            if answer.producer_id == NO_PRODUCER:
                self.doubt = identity
            else:
                self.identity = self.client.told(Identity(answer.producer_id, answer.producer_epoch))
            return True
        if code in GONE:
            return False
        if code == ErrorCode.TRANSACTION_ABORTABLE:
            self.facts.aborted_told(identity)
        self.doubt = identity  # nothing was open, or it is aborted: it asks who it is
        return True

    def _settled(self, identity: Identity, committed: bool) -> None:
        if committed:
            self.facts.committed_told(identity)
        else:
            self.facts.aborted_told(identity)


def looper(client: Client) -> Running:
    """Consume, transform, produce: each input is answered once, and its offset goes with the answer."""
    producer = Producer(client)
    while True:
        if client.chance(0.03) or not (yield from producer.begin()):
            return
        offset = yield from _committed()
        if offset == UNSTABLE:
            yield Pauses(50)
            continue
        if not client.world.more(LOOPS, offset):
            return
        end = offset + 1 + int(client.world.random() * 3)
        end = min(end, client.world.work[LOOPS]) if client.world.calm else end
        client.world.more(LOOPS, end - 1)
        whole = yield from _answer_inputs(producer, offset, end)
        if client.chance(0.1):
            whole = False
        if not (yield from producer.end(whole)):
            return


def _committed() -> Steps:
    request = OffsetFetchRequest("loops", (OffsetFetchTopic("in", (0,)),), REQUIRE_STABLE)
    answer = yield from ask("G", request)
    if answer is None or answer.error_code:
        return UNSTABLE
    (found,) = answer.topics[0].partitions
    return UNSTABLE if found.error_code else max(0, found.committed_offset)


def _answer_inputs(producer: Producer, first: int, end: int) -> Steps:
    client = producer.client
    for number in range(first, end):
        for place in (number % 2, 2):
            if client.chance(0.02):
                return False
            code = yield from producer.produce(place, ("loop", number))
            if code is not ErrorCode.NONE:
                return False
    assert producer.identity is not None
    topics = (OffsetCommitTopic("in", (OffsetCommitPartition(0, end),)),)
    request = TxnOffsetCommitRequest("loops", client.transactional_id, *producer.identity, -1, "", None, topics)
    answer = yield from ask("G", request)
    return answer is not None and not answer.error_code and not answer.topics[0].partitions[0].error_code


def numbered(client: Client) -> Running:
    """Numbers its work, and does what is not committed."""
    producer = Producer(client)
    while True:
        if client.chance(0.03) or not (yield from producer.begin()):
            return
        version = producer.committed_version + 1
        if not client.world.more(NUMBERED, version):
            return
        whole = True
        for place in (0, 1):
            whole = whole and (yield from producer.produce(place, ("numbered", version))) is ErrorCode.NONE
        if client.chance(0.1):
            whole = False
        if not (yield from producer.end(whole, version)):
            return
        if producer.identity is not None and producer.outcome and producer.committed_version < version:
            return


def leaver(client: Client) -> Running:
    """A producer that is gone in the middle of a transaction, sooner or later."""
    producer = Producer(client)
    while (yield from producer.begin()):
        for place in (0, 1, 2):
            if client.chance(0.15) or client.world.calm:
                return
            yield from producer.produce(place, ("left", client.number))
        if not (yield from producer.end(client.chance(0.5))):
            return


def driver(client: Client) -> Running:
    """The driver of a job: each batch has tasks, whose attempts are members; it names one for each."""
    world, log = client.world, client.world.job
    batch = max(0, log.done - (1 if client.chance(0.3) else 0))
    while world.more(JOBS, batch):
        if client.chance(0.03):
            return
        committed = yield from _run_batch(client, batch)
        if committed is None:
            return
        if committed:
            batch += 1
            log.done = max(log.done, batch)


def _run_batch(client: Client, batch: int) -> Steps:
    """Whether the batch is committed; None when the job is fenced."""
    world = client.world
    winners: list[Identity] = []
    for task in (0, 1):
        for _ in range(8):
            attempt = world.start(partial(_attempt, batch=batch, task=task), client.transactional_id)
            key = (attempt.number, batch, task)
            for _ in range(4 if client.chance(0.2) else 60):
                if key in world.job.results or not attempt.alive:
                    break
                yield Pauses(30)
            if key in world.job.results:
                winners.append(world.job.results[key])
                break
    joined = yield from _join(client, batch, f"driver-{client.number}")
    if joined is None or joined.error_code != ErrorCode.NONE:
        return None if joined is not None and joined.error_code in GONE else False
    if joined.committed_version >= batch:
        world.facts.version_told(client.transactional_id, batch, joined)
        return True
    if len(winners) < 2:
        return False
    for attempt_ in world.facts.attempts:
        attempt_.may_commit |= attempt_.name in winners
    transaction = (joined.transaction_producer_id, joined.producer_epoch)
    members = (*(identity.producer_id for identity in winners), joined.producer_id)
    plan = f"the plan of {client.number}"
    request = EndTxnRequest(client.transactional_id, *transaction, True, batch, "query", members, metadata=plan)
    answer = yield from ask("C", request, 1 if client.chance(0.2) else TRIES)
    if answer is None:
        return False
    if answer.error_code == ErrorCode.NONE:
        world.facts.version_told(client.transactional_id, batch, answer)
        return True
    return None if answer.error_code in GONE else False


def _attempt(client: Client, batch: int, task: int) -> Running:
    """A task attempt: joins, writes its rows, and says who it is."""
    joined = yield from _join(client, batch, f"task-{task}-{client.number}")
    if joined is None or joined.error_code or joined.committed_version >= batch:
        return
    identity = client.told(Identity(joined.producer_id, joined.producer_epoch))
    producer = Producer(client)
    producer.identity = identity
    producer.attempt = client.world.facts.attempt(identity)
    for place in (task, 2):
        if client.chance(0.05):
            return
        if (yield from producer.produce(place, ("job", batch, task))) is not ErrorCode.NONE:
            return
    client.world.job.results[client.number, batch, task] = identity


def _join(client: Client, batch: int, member: str) -> Steps:
    timeout_ms = client.world.plan.timeout_ms
    return (yield from ask("C", JoinTransactionRequest(client.transactional_id, "query", batch, member, timeout_ms)))
