"""The core of a producer, driven by hand: no loop, no clock, no socket. Batches here are plain counts of records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest

from client.errors import (
    ClosedError,
    CohortError,
    ConnectionLostError,
    InvalidRecordError,
    MessageTooLargeError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from client.producer.batch import Batch, Place
from client.producer.config import SenderSettings
from client.producer.core import ProducerCore
from client.producer.partition_queue import PartitionQueues
from client.producer.produce_request import ENOUGH_BYTES, InFlightRequest
from client.producer.sequences import BatchSequence, ProducerIdentity
from client.transport.metadata import Address, Topology
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import decode_request
from protocol.messages import ApiKey
from protocol.messages.cluster import PartitionMetadata, TopicMetadata
from protocol.messages.records import PartitionProduceResponse, ProduceRequest
from protocol.subscription import TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
NODE: Address = ("node", 1)
OTHER: Address = ("other", 2)
PAUSE_S = 0.25


class CountedBatch(Batch):
    """So many records of 100 bytes each."""

    __slots__ = ("_count",)

    def __init__(self, partition: TopicPartition, count: int, place: Place = ()) -> None:
        super().__init__(partition, 0.0, 100 * count, place)
        self._count = count

    @property
    def count(self) -> int:
        return self._count

    def encode(self) -> list[bytes]:
        return [b"%d" % self._count]

    def split(self) -> tuple[CountedBatch, CountedBatch]:
        halves = self._count // 2, self._count - self._count // 2
        first, second = (CountedBatch(self.partition, half, (*self.place, at)) for at, half in enumerate(halves))
        first.alone = second.alone = True
        return first, second


def topology(partitions: int = 2, leader: int = 0) -> Topology:
    found = tuple(PartitionMetadata(0, index, leader, 0, (0,), (0,)) for index in range(partitions))
    return Topology(1, "c", {0: NODE}, {"t": TopicMetadata(0, "t", "id", False, found)}, frozenset({"t"}))


@dataclass
class Driver:
    """What sends the requests of a core and is told of outcomes; ``node_takes`` bytes of a frame, 0: not known."""

    settings: dict[str, Any] = field(default_factory=dict)
    identity: ProducerIdentity | None = field(default_factory=lambda: ProducerIdentity(7))
    node_takes: int = 0
    client_id: str = "d"

    def __post_init__(self) -> None:
        self.topology = topology()
        self.stored: list[tuple[int, int]] = []
        self.failures: list[CohortError] = []
        self.retries = 0
        given = {
            "acks": -1, "compression": None, "max_in_flight": 5, "max_request_bytes": 10_000, "retries": None,
            "availability_timeout_s": 0.0, "request_timeout_s": 2.0, "delivery_timeout_s": 10.0, **self.settings,
        }  # fmt: skip
        self.queues = PartitionQueues[CountedBatch](1000, 0.0, self.identity)
        self.core = ProducerCore(self, self.queues, SenderSettings(**given), self.identity, lambda _: PAUSE_S, self)

    def max_request_bytes(self, api_key: ApiKey, address: Address) -> int:
        return self.node_takes

    def acknowledged(self, batch: CountedBatch, base_offset: int, log_append_time_ms: int) -> None:
        self.stored.append((batch.count, base_offset))

    def failed(self, batch: CountedBatch, error: CohortError) -> None:
        self.failures.append(error)

    def retrying(self, queue: object, error: CohortError) -> None:
        self.retries += 1

    def add(self, *counts: int, partition: TopicPartition = ZERO) -> None:
        for count in counts:
            self.queues.add(self.queues.queue(partition), CountedBatch(partition, count))

    def sent(self, now: float = 0.0) -> InFlightRequest[CountedBatch]:
        (request,) = self.core.drain(now)
        request.encode(1, "d", -1)
        return request

    def answer(
        self,
        request: InFlightRequest[CountedBatch],
        code: ErrorCode = ErrorCode.NONE,
        now: float = 0.0,
        offset: int = 0,
    ) -> bool:
        partitions = [part.queue.partition for part in request.left]
        said = {one: PartitionProduceResponse(one.partition, code, base_offset=offset) for one in partitions}
        return self.core.answered(request, said, now)


def counts(request: InFlightRequest[CountedBatch]) -> list[list[int]]:
    return [[batch.count for batch in part.batches] for part in request.left]


def test_a_request_carries_the_batches_of_all_partitions_and_each_learns_its_offset() -> None:
    driver = Driver()
    driver.add(3, 4)
    driver.add(5, partition=ONE)
    request = driver.sent()
    assert counts(request) == [[3, 4], [5]]
    (frame,) = request.encode(9, "d", -1)
    decoded = decode_message(ProduceRequest, decode_request(frame[4:]).body)
    assert [(data.index, data.records) for data in decoded.topic_data[0].partition_data] == [(0, b"34"), (1, b"5")]
    assert not driver.answer(request, offset=10)
    assert driver.stored == [(3, 10), (4, 13), (5, 10)]
    assert driver.core.requests_in_flight == 0


def test_requests_are_cut_by_what_the_program_and_the_node_allow() -> None:
    driver = Driver({"max_request_bytes": 1000})
    driver.add(6, partition=ZERO)
    driver.add(6, partition=ONE)
    assert [counts(request) for request in driver.core.drain(0.0)] == [[[6]], [[6]]]
    narrow = Driver(node_takes=512 + 1 + 700)
    narrow.add(6, 2)
    assert counts(narrow.sent()) == [[6]]


def test_a_request_that_has_enough_leaves_so_that_the_node_is_at_work_while_the_next_is_made() -> None:
    driver = Driver({"max_request_bytes": 10 * ENOUGH_BYTES, "max_in_flight": 2})
    each = ENOUGH_BYTES // 200 + 1  # records of 100 bytes: half of what is enough
    driver.add(each, each, partition=ZERO)
    driver.add(each, partition=ONE)
    first, second = driver.core.drain(0.0)
    assert [counts(first), counts(second)] == [[[each, each]], [[each]]]
    driver.add(each, each, partition=ZERO)
    assert driver.core.drain(0.0) == []  # two are in flight, and no more may be
    driver.answer(first)
    driver.add(each, partition=ONE)
    assert [counts(request) for request in driver.core.drain(0.0)] == [[[each, each], [each]]], (
        "none may follow this one"
    )


def test_a_batch_that_no_request_can_carry_is_halved_and_a_single_record_fails() -> None:
    driver = Driver(node_takes=512 + 1 + 250)
    driver.add(4)
    assert driver.core.drain(0.0) == []
    assert driver.core.next_drain == 0.0
    for _ in range(2):
        request = driver.sent()
        assert counts(request) == [[2]]
        driver.answer(request)
    large = Driver(node_takes=512 + 1 + 50)
    large.add(1)
    assert large.core.drain(0.0) == []
    assert isinstance(large.failures[0], RecordTooLargeError)


def test_no_more_requests_are_in_flight_to_a_node_than_allowed() -> None:
    driver = Driver({"max_in_flight": 1})
    driver.add(1)
    request = driver.sent()
    driver.add(1, partition=ONE)
    assert driver.core.drain(0.0) == []
    driver.answer(request)
    assert counts(driver.sent()) == [[1]]


def test_what_is_lost_comes_again_after_a_pause_with_the_same_sequence() -> None:
    driver = Driver()
    driver.add(3)
    request = driver.sent(1.0)
    (batch,) = request.left[0].batches
    driver.core.lost(request, ConnectionLostError("broken"), 1.5)
    assert (driver.retries, batch.sequence) == (1, BatchSequence(7, 0, 0))
    assert driver.core.drain(1.6) == []
    assert driver.core.next_drain == 1.5 + PAUSE_S
    assert not driver.core.resumes(1.6)
    assert driver.core.resumes(1.5 + PAUSE_S)
    again = driver.sent(1.5 + PAUSE_S)
    assert again.left[0].batches == [batch]
    assert (batch.sequence, batch.attempts, batch.unanswered) == (BatchSequence(7, 0, 0), 2, 2)


def test_a_request_is_settled_once_whatever_is_told_of_it_later() -> None:
    driver = Driver()
    driver.add(3)
    request = driver.sent()
    driver.answer(request)
    driver.core.lost(request, ConnectionLostError("broken"), 1.0)
    assert (driver.stored, driver.retries, driver.core.requests_in_flight) == ([(3, 0)], 0, 0)


def led_by(node: int, epoch: int) -> Topology:
    found = tuple(PartitionMetadata(0, index, node, epoch, (0, 1), (0, 1)) for index in range(2))
    topic = TopicMetadata(0, "t", "id", False, found)
    return Topology(1 + epoch, "c", {0: NODE, 1: OTHER}, {"t": topic}, frozenset({"t"}))


def test_what_another_node_leads_by_now_is_sent_there_without_a_pause() -> None:
    driver = Driver()
    driver.add(3)
    request = driver.sent()
    driver.topology = led_by(1, epoch=1)
    driver.answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, now=1.0)
    again = driver.sent(now=1.0)
    assert again.leader == OTHER
    assert again.left[0].batches[0].sequence == BatchSequence(7, 0, 0)
    assert again.left[0].batches[0].unanswered == 2  # the old leader may have appended it before it was deposed


def test_a_leader_that_is_not_known_to_have_moved_is_asked_again_after_a_pause_or_once_it_has() -> None:
    driver = Driver()
    driver.add(3)
    driver.answer(driver.sent(), ErrorCode.NOT_LEADER_OR_FOLLOWER, now=1.0)
    assert driver.core.drain(1.0 + PAUSE_S / 2) == []
    driver.topology = led_by(1, epoch=1)
    assert driver.sent(now=1.0 + PAUSE_S / 2).leader == OTHER


def test_a_request_to_a_node_that_no_longer_leads_is_given_up_for_what_has_moved() -> None:
    driver = Driver()
    driver.add(3)
    driver.add(4, partition=ONE)
    request = driver.sent()
    assert not driver.core.has_moved(request)
    moved = led_by(1, epoch=1)
    stays = driver.topology.topics["t"].partitions[1]
    topic = replace(moved.topics["t"], partitions=(moved.topics["t"].partitions[0], stays))
    driver.topology = replace(moved, topics={"t": topic})
    assert driver.core.has_moved(request)
    assert not driver.core.give_up_moved(request, 1.0)
    assert driver.sent(now=1.0).leader == OTHER
    driver.answer(request, now=1.5, offset=20)
    assert driver.stored == [(4, 20)]
    driver.topology = led_by(1, epoch=2)
    driver.add(5, partition=ONE)
    assert driver.sent(now=2.0).leader == OTHER
    assert driver.core.requests_in_flight == 2


def test_time_and_attempts_run_out() -> None:
    driver = Driver()
    driver.add(3)
    request = driver.sent(0.0)
    assert request.timeout_s == 2.0
    driver.core.lost(request, ConnectionLostError("broken"), 9.9)
    assert isinstance(driver.failures[0], RequestTimedOutError)
    assert "may or may not be in the log" in str(driver.failures[0])
    impatient = Driver({"retries": 0})
    impatient.add(3)
    impatient.core.lost(impatient.sent(), ConnectionLostError("broken"), 0.1)
    assert len(impatient.failures) == 1


def test_without_an_id_nothing_is_sent_and_time_runs_out() -> None:
    driver = Driver(identity=ProducerIdentity())
    driver.add(3)
    assert driver.core.needs_identity
    assert driver.core.drain(0.0) == []
    assert 10.0 < driver.core.next_drain < 10.1
    driver.core.why_no_identity = RequestTimedOutError("no answer")
    driver.core.drain(driver.core.next_drain)
    assert "no answer" in str(driver.failures[0])
    assert driver.core.next_drain == inf


def test_a_partition_that_its_leader_does_not_know_is_judged_by_newer_metadata() -> None:
    for there in (True, False):
        driver = Driver()
        driver.add(3)
        request = driver.sent()
        said = {ZERO: PartitionProduceResponse(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
        assert driver.core.answered(request, said, 0.0), "it cannot be judged yet"
        assert (driver.failures, driver.retries, driver.core.requests_in_flight) == ([], 0, 1)
        if not there:
            driver.topology = Topology(2, "c", {0: NODE}, {}, frozenset({"t"}))
        assert not driver.core.answered(request, said, 0.1, refreshed=True)
        assert driver.retries == there
        assert [type(error) for error in driver.failures] == ([] if there else [UnknownTopicOrPartitionError])
        assert driver.core.requests_in_flight == 0


def test_without_a_leader_batches_wait_and_of_a_deleted_topic_they_fail() -> None:
    driver = Driver()
    driver.topology = topology(leader=-1)
    driver.add(3)
    assert driver.core.drain(0.0) == []
    driver.topology = topology()
    assert counts(driver.sent(PAUSE_S)) == [[3]]
    gone = Driver()
    gone.topology = Topology(2, "c", {0: NODE}, {}, frozenset({"t"}))
    gone.add(3)
    assert gone.core.drain(0.0) == []
    assert isinstance(gone.failures[0], UnknownTopicOrPartitionError)


def test_an_answer_that_leaves_a_partition_out_leaves_its_fate_open() -> None:
    driver = Driver()
    driver.add(3)
    request = driver.sent()
    driver.core.answered(request, {}, 0.0)
    assert driver.retries == 0
    assert isinstance(driver.failures[0], UnknownServerError)
    assert "may or may not be in the log" in str(driver.failures[0])


def test_of_several_batches_the_one_that_is_wrong_is_found_and_those_behind_begin_an_epoch() -> None:
    driver = Driver()
    driver.add(3, 4)
    driver.answer(driver.sent(), ErrorCode.INVALID_RECORD)
    assert driver.failures == []
    request = driver.sent()
    assert counts(request) == [[3]], "each goes alone now"
    driver.answer(request, ErrorCode.INVALID_RECORD)
    assert isinstance(driver.failures[0], InvalidRecordError)
    request = driver.sent()
    assert [batch.sequence for batch in request.left[0].batches] == [BatchSequence(7, 1, 0)]
    driver.answer(request, offset=5)
    assert driver.stored == [(4, 5)]


def test_what_the_daemon_finds_too_large_is_halved_down_to_single_records() -> None:
    driver = Driver()
    driver.add(2)
    driver.answer(driver.sent(), ErrorCode.MESSAGE_TOO_LARGE)
    request = driver.sent()
    assert counts(request) == [[1]]
    driver.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    assert isinstance(driver.failures[0], MessageTooLargeError)
    driver.answer(driver.sent(), offset=3)
    assert driver.stored == [(1, 3)]


def test_a_batch_that_is_too_large_after_a_lost_answer_is_halved_only_where_records_may_be_stored_twice() -> None:
    plain = Driver(identity=None)
    plain.add(2)
    plain.core.lost(plain.sent(), ConnectionLostError("broken"), 0.0)
    plain.answer(plain.sent(PAUSE_S), ErrorCode.MESSAGE_TOO_LARGE, PAUSE_S)
    for offset in (3, 4):
        request = plain.sent(PAUSE_S)
        assert counts(request) == [[1]]
        plain.answer(request, offset=offset)
    assert (plain.stored, plain.failures) == ([(1, 3), (1, 4)], [])
    idempotent = Driver()
    idempotent.add(2)
    idempotent.core.lost(idempotent.sent(), ConnectionLostError("broken"), 0.0)
    idempotent.answer(idempotent.sent(PAUSE_S), ErrorCode.MESSAGE_TOO_LARGE, PAUSE_S)
    assert "may or may not be in the log" in str(idempotent.failures[0])


def test_a_sequence_that_the_daemon_does_not_expect_is_given_up_unless_its_records_may_be_there() -> None:
    for doubtful in (False, True):
        driver = Driver()
        driver.add(3)
        request = driver.sent()
        if doubtful:
            driver.core.lost(request, ConnectionLostError("broken"), 0.0)
            request = driver.sent(PAUSE_S)
        driver.answer(request, ErrorCode.UNKNOWN_PRODUCER_ID, now=PAUSE_S)
        if doubtful:
            assert "sent again they might be there twice" in str(driver.failures[0])
        else:
            again = driver.sent(2 * PAUSE_S)
            assert [batch.sequence for batch in again.left[0].batches] == [BatchSequence(7, 1, 0)]


def test_a_producer_that_was_fenced_needs_a_new_id() -> None:
    driver = Driver()
    driver.add(3)
    driver.answer(driver.sent(), ErrorCode.INVALID_PRODUCER_EPOCH)
    assert driver.core.needs_identity
    assert driver.identity is not None
    assert driver.core.drain(PAUSE_S) == []
    driver.identity.producer_id = 8
    (part,) = driver.sent(PAUSE_S).left
    assert [batch.sequence for batch in part.batches] == [BatchSequence(8, 0, 0)]


@pytest.mark.parametrize("in_flight", [True, False])
def test_closing_fails_what_is_left_and_nothing_is_told_of_it_later(in_flight: bool) -> None:
    driver = Driver()
    driver.add(3)
    request = driver.sent() if in_flight else None
    driver.core.close()
    assert isinstance(driver.failures[0], ClosedError)
    if request is not None:
        driver.answer(request)
        driver.core.lost(request, ConnectionLostError("broken"), 0.0)
    assert (len(driver.failures), driver.stored, driver.retries) == (1, [], 0)
