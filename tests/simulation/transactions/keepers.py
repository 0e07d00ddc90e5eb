"""Kafka's producers from before KIP-890: they keep one epoch, add partitions by themselves and number on.

What KIP-890 has put right for newer ones is left out here, as these clients leave it out: requests to coordinators come in
the order of their connection, and a producer that has no answer to a batch asks for another epoch before it goes on.
"""

from __future__ import annotations

from coordinator.runtime.participants import TransactionName
from coordinator.transactions.records import NO_PRODUCER, Identity
from protocol.errors import RETRIABLE, ErrorCode
from protocol.messages.offsets import OffsetCommitPartition, OffsetCommitTopic, OffsetFetchRequest, OffsetFetchTopic
from protocol.messages.producers import InitProducerIdRequest
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TransactionTopic,
    TxnOffsetCommitRequest,
)
from tests.simulation.transactions.clients import Asks, Client, Pauses, Produces, Running
from tests.simulation.transactions.facts import Attempt
from tests.simulation.transactions.participants import OFFSETS
from tests.simulation.transactions.plan import KEEPERS
from tests.simulation.transactions.workloads import TRIES, UNSTABLE, Steps


def ask(where: str, request: object, tries: int = TRIES) -> Steps:
    """Asks until there is a definite answer; None when there is none."""
    for _ in range(tries):
        answer = yield Asks(where, request, in_order=True)  # type: ignore[arg-type]
        if answer is not None and getattr(answer, "error_code", 0) not in RETRIABLE:
            return answer
        yield Pauses(20)
    return None


class KeepingProducer:
    """A producer with a transactional id."""

    def __init__(self, client: Client) -> None:
        self.client, self.facts = client, client.world.facts
        self.identity = Identity(NO_PRODUCER, -1)
        self.needs_epoch = True
        """Whether it has none yet, or cannot number on in the one it has."""
        self.sequences: dict[int, int] = {}
        self.added: set[int] = set()
        self.attempt: Attempt | None = None

    def begin(self) -> Steps:
        """Returns whether the producer may go on."""
        while self.needs_epoch:
            asked = InitProducerIdRequest(
                self.client.transactional_id, self.client.world.plan.timeout_ms, *self.identity
            )
            answer = yield from ask("C", asked)
            if answer is None:
                yield Pauses(50)
                continue
            if answer.error_code != ErrorCode.NONE:
                return False
            self.identity = self.client.told(Identity(answer.producer_id, answer.producer_epoch))
            self.sequences, self.needs_epoch = {}, False
        self.attempt = self.facts.attempt(Identity(NO_PRODUCER, self.client.number))
        self.added = set()
        return True

    def add(self, topic: str, topic_id: str, partition: int) -> Steps:
        """Makes a partition part of the transaction; returns whether it is."""
        topics = (TransactionTopic(topic, topic_id, (partition,)),)
        asked = AddPartitionsToTxnRequest(self.client.transactional_id, *self.identity, topics, keeps_epoch=True)
        self.added.add(-1 if topic == OFFSETS[0] else partition)
        answer = yield from ask("C", asked)
        return answer is not None and answer.error_code == ErrorCode.NONE

    def produce(self, place: int, content: object) -> Steps:
        """Writes one record; returns whether that is acknowledged."""
        assert self.attempt is not None
        if place not in self.added and not (yield from self.add(*self.client.world.leaders[place].key)):
            return False
        name = TransactionName(self.client.transactional_id, *self.identity)
        sequence = self.sequences.get(place, 0)
        for _ in range(TRIES):
            code = yield Produces(place, name, sequence, content, self.attempt, keeps_epoch=True)
            if code is ErrorCode.NONE:
                self.sequences[place] = sequence + 1
                return True
            if code is not None and code not in RETRIABLE:
                break
            yield Pauses(10)
        self.needs_epoch = True
        return False

    def commit_offset(self, offset: int) -> Steps:
        """Has an offset take effect with the transaction; returns whether that is acknowledged."""
        if not (yield from self.add(*OFFSETS)):
            return False
        topics = (OffsetCommitTopic("in", (OffsetCommitPartition(0, offset),)),)
        asked = TxnOffsetCommitRequest(
            KEEPERS, self.client.transactional_id, *self.identity, -1, "", None, topics, keeps_epoch=True
        )
        answer = yield from ask("G", asked)
        return answer is not None and not answer.error_code and not answer.topics[0].partitions[0].error_code

    def end(self, committed: bool) -> Steps:
        """Ends the transaction; returns whether the producer may go on."""
        assert self.attempt is not None
        if not self.added:
            return True
        self.attempt.may_commit |= committed
        asked = EndTxnRequest(self.client.transactional_id, *self.identity, committed, keeps_epoch=True)
        answer = yield from ask("C", asked)
        if answer is None or answer.error_code != ErrorCode.NONE:
            return False
        self.attempt.told = committed
        return True


def keeper(client: Client) -> Running:
    """Consume, transform, produce: each input is answered once, and its offset goes with the answer."""
    producer = KeepingProducer(client)
    while True:
        if client.chance(0.03) or not (yield from producer.begin()):
            return
        fetched = yield from ask("G", OffsetFetchRequest(KEEPERS, (OffsetFetchTopic("in", (0,)),), True))
        found = None if fetched is None or fetched.error_code else fetched.topics[0].partitions[0]
        offset = UNSTABLE if found is None or found.error_code else max(0, found.committed_offset)
        if offset == UNSTABLE:
            yield Pauses(50)
            continue
        if not client.world.more(KEEPERS, offset):
            return
        end = offset + 1 + int(client.world.random() * 3)
        end = min(end, client.world.work[KEEPERS]) if client.world.calm else end
        client.world.more(KEEPERS, end - 1)
        whole = True
        for number in range(offset, end):
            for place in (number % 2, 2):
                whole = whole and not client.chance(0.02) and (yield from producer.produce(place, ("kept", number)))
        whole = whole and (yield from producer.commit_offset(end)) and not client.chance(0.1)
        if not (yield from producer.end(whole)):
            return
