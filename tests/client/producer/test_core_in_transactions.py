"""What the core of a producer does in transactions: one sequence a record, and a batch in doubt ends the transaction."""

from __future__ import annotations

from random import Random

import pytest

from client.errors import (
    ConnectionLostError,
    RequestTimedOutError,
    TransactionAbortedError,
)
from client.producer.batch import ProducerBatch
from client.producer.partition_queue import PartitionQueues
from client.producer.produce_request import InFlightRequest
from client.producer.sequences import BatchSequence, ProducerIdentity
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import decode_request
from protocol.messages.records import PartitionProduceResponse, ProduceRequest
from protocol.record_batch import Attributes, iter_batches
from tests.client.producer.test_core import NODE, ONE, PAUSE_S, ZERO, CountedBatch, Driver

ABORTED = TransactionAbortedError("aborted")


def transactional(**settings: object) -> Driver:
    """A driver in the transaction (7, 4)."""
    identity = ProducerIdentity(transactional=True)
    identity.begin(7, 4)
    return Driver(dict(settings), identity)


def begin(driver: Driver, epoch: int) -> None:
    assert driver.identity is not None
    driver.identity.begin(7, epoch)


def used(driver: Driver) -> bool:
    return driver.identity is not None and driver.identity.used


def sequences(request: InFlightRequest[CountedBatch]) -> list[BatchSequence | None]:
    return [batch.sequence for part in request.left for batch in part.batches]


def in_transaction(epoch: int, first: int) -> BatchSequence:
    return BatchSequence(7, epoch, first, transactional=True)


def test_each_partition_begins_with_0_in_each_transaction() -> None:
    driver = transactional()
    for epoch in (4, 5):
        begin(driver, epoch)
        assert not used(driver)
        driver.add(3, 4)
        driver.add(2, partition=ONE)
        request = driver.sent()
        assert sequences(request) == [in_transaction(epoch, 0), in_transaction(epoch, 3), in_transaction(epoch, 0)]
        assert used(driver)
        driver.answer(request)
        driver.add(1)
        request = driver.sent()
        assert sequences(request) == [in_transaction(epoch, 7)]
        driver.answer(request)
    assert driver.failures == []


def test_the_frame_names_the_transactional_id_and_each_batch_its_transaction() -> None:
    identity = ProducerIdentity(transactional=True)
    identity.begin(7, 4)
    queues = PartitionQueues[ProducerBatch](1000, 0.0, identity)
    queue = queues.queue(ZERO)
    batch = ProducerBatch(ZERO, 0.0, "gzip")
    batch.extend(None, [b"v"] * 3, 1, 60, None)  # type: ignore[arg-type]
    queues.add(queue, batch)
    part = queues.take(queue, 1000, 0.0)
    assert part is not None
    (frame,) = InFlightRequest(NODE, [part], 1.0).encode(1, "p", -1, "id")
    request = decode_message(ProduceRequest, decode_request(frame[4:]).body)
    assert request.transactional_id == "id"
    ((_, header),) = iter_batches(request.topic_data[0].partition_data[0].records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 4, 0)
    assert header.attributes & Attributes.TRANSACTIONAL
    assert header.compression == "gzip"


def test_a_batch_that_fails_ends_the_transaction_and_the_next_one_is_free() -> None:
    driver = transactional(max_in_flight=2)
    driver.add(3)
    first = driver.sent()
    driver.add(2, partition=ONE)
    second = driver.sent()
    driver.add(1, partition=ONE)
    driver.answer(first, ErrorCode.INVALID_RECORD)
    assert [type(error).__name__ for error in driver.failures] == ["InvalidRecordError"]
    assert driver.core.drain(0.0) == [], "nothing more is sent in a transaction that will be aborted"
    driver.core.abandon(lambda batch: ABORTED)
    assert driver.failures[1:] == [ABORTED, ABORTED]
    assert driver.queues.records() == 0
    begin(driver, 5)
    driver.add(4, partition=ONE)
    fresh = driver.sent()
    assert sequences(fresh) == [in_transaction(5, 0)]
    driver.add(5, partition=ZERO)
    assert len(driver.core.drain(0.0)) == 1, "what was given up does not count as in flight"
    assert not driver.answer(second), "an answer of the time before is heard and changes nothing"
    driver.core.lost(second, ConnectionLostError("late"), 0.0)
    driver.answer(fresh, offset=9)
    assert driver.stored == [(4, 9)]
    assert len(driver.failures) == 3


@pytest.mark.parametrize(
    "code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH]
)
def test_a_batch_in_doubt_is_not_numbered_anew(code: ErrorCode) -> None:
    driver = transactional()
    driver.add(3)
    request = driver.sent()
    driver.core.lost(request, ConnectionLostError("broken"), 0.0)
    request = driver.sent(PAUSE_S)
    assert sequences(request) == [in_transaction(4, 0)]
    driver.answer(request, code, now=PAUSE_S)
    (error,) = driver.failures
    assert error.abortable
    assert "it may be in the log" in str(error) or "may or may not be" in str(error)
    assert driver.core.drain(5.0) == []


def test_a_batch_behind_one_that_comes_again_waits_for_it() -> None:
    driver = transactional()
    driver.add(3)
    first = driver.sent()
    driver.add(2)
    second = driver.sent()
    driver.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    again = driver.sent(PAUSE_S)
    assert sequences(again) == [in_transaction(4, 0), in_transaction(4, 3)]
    assert driver.failures == []


def test_halves_of_a_batch_that_is_too_large_keep_its_numbers() -> None:
    driver = transactional()
    driver.add(4)
    first = driver.sent()
    driver.add(2)
    second = driver.sent()
    driver.answer(first, ErrorCode.MESSAGE_TOO_LARGE)
    driver.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    numbers = []
    for _ in range(3):
        (request,) = driver.core.drain(PAUSE_S)
        numbers += sequences(request)
        driver.answer(request, now=PAUSE_S)
    assert numbers == [in_transaction(4, 0), in_transaction(4, 2), in_transaction(4, 4)]
    assert driver.failures == []
    assert [count for count, _ in driver.stored] == [2, 2, 2]


def test_time_that_is_over_ends_the_transaction() -> None:
    driver = transactional()
    driver.add(3)
    request = driver.sent()
    driver.core.lost(request, ConnectionLostError("broken"), 9.9)
    assert isinstance(driver.failures[0], RequestTimedOutError)
    assert driver.identity is not None
    assert driver.identity.producer_id is None


CODES = [
    ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CONCURRENT_TRANSACTIONS, None,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_a_record_has_one_sequence_whatever_is_answered(seed: int) -> None:
    """Batches are runs of records; however they are cut and repeated, the n-th record of a partition has sequence n."""
    random = Random(seed)
    driver = transactional()
    added = {ZERO: 0, ONE: 0}
    in_flight: list[InFlightRequest[CountedBatch]] = []
    seen: dict[tuple[object, tuple[int, ...]], tuple[int, int]] = {}
    now = 0.0
    for _ in range(60):
        now += random.choice((0.0, 0.05, 0.3))
        if random.random() < 0.5:
            partition = random.choice((ZERO, ONE))
            count = random.choice((1, 2, 5, 8))
            driver.add(count, partition=partition)
            added[partition] += count
        for request in driver.core.drain(now):
            request.encode(1, "d", -1, "id")
            in_flight.append(request)
            for part in request.left:
                for batch in part.batches:
                    assert batch.sequence is not None
                    assert batch.sequence[:2] == (7, 4)
                    span = (batch.sequence.first_sequence, batch.count)
                    assert seen.setdefault((batch.partition, batch.place), span) == span
        if in_flight and random.random() < 0.6:
            request = in_flight.pop(random.randrange(len(in_flight)))
            code = random.choice(CODES)
            if code is None:
                driver.core.lost(request, ConnectionLostError("broken"), now)
            else:
                parts = [part.queue.partition for part in request.left]
                said = {one: PartitionProduceResponse(one.partition, code, base_offset=0) for one in parts}
                driver.core.answered(request, said, now)
        if driver.failures:
            break
    for (one, _), (start, size) in seen.items():
        for (other, _), (first, count) in seen.items():
            if one == other and start < first:  # halves lie within their whole, all else apart
                assert first >= start + size or first + count <= start + size
    if driver.failures:
        assert driver.core.drain(now + 1) == [], "nothing is sent in a transaction that has to be aborted"
