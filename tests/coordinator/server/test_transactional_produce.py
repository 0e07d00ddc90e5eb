"""Produce in a transaction: what is asked of requests, in which order they are written, and what refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.runtime import admission
from coordinator.runtime.participants import WRITES_AT_ONCE
from protocol.errors import ErrorCode
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TransactionTopic
from protocol.record_batch import Attributes, decode_columns, encode_batch, read_header
from tests.coordinator.server.produce_node import ID, PRODUCER, ProduceNode, batch, produce_node

NONE = [ErrorCode.NONE]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ProduceNode]:
    async with produce_node(tmp_path) as made:
        yield made


async def values(node: ProduceNode, index: int = 0) -> list[bytes | None]:
    data = await node.log(index).read(0, 1 << 20)
    found: list[bytes | None] = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        if not header.attributes & Attributes.CONTROL:
            found += decode_columns(data, position, header).values()
        position += header.length
    return found


async def test_a_transaction_begins_when_its_coordinator_has_it_on_disk_and_goes_on_without_it(
    node: ProduceNode,
) -> None:
    node.coordinators.answer = None
    producer = await node.connect()
    first = producer.send((0, batch(0, b"a")))
    second = producer.send((0, batch(1, b"b")))
    await node.coordinators.until_asked(1)
    await asyncio.sleep(0.05)
    assert node.log().end_offset == 0
    assert node.coordinators.asked == [
        AddPartitionsToTxnRequest(ID, PRODUCER, 0, (TransactionTopic("t", node.key()[1], (0,)),))
    ]
    node.coordinators.answer_all()
    assert await producer.codes(first) == await producer.codes(second) == NONE
    assert await producer.codes(producer.send((0, batch(2, b"c")))) == NONE
    assert len(node.coordinators.asked) == 1
    assert await values(node) == [b"a", b"b", b"c"]
    assert node.log().open_epoch(PRODUCER) == 0
    assert node.log().last_stable_offset == 0
    await node.end(0, committed=True)
    assert node.log().last_stable_offset == node.log().high_watermark == 4
    await producer.close()


async def test_other_requests_do_not_wait_for_a_transaction_that_begins(node: ProduceNode) -> None:
    node.coordinators.answer = None
    producer = await node.connect()
    waits = producer.send((0, batch(0)))
    plain = producer.send((0, encode_batch([b"plain"], timestamps_ms=[1])), transactional_id=None)
    assert await producer.codes(plain) == NONE
    other = producer.send((0, batch(0, b"other", producer_id=8)))
    await node.coordinators.until_asked(2)
    node.coordinators.done.pop()(AddPartitionsToTxnResponse(ErrorCode.NONE))
    assert await producer.codes(other) == NONE
    assert waits not in producer.answers
    node.coordinators.answer_all()
    assert await producer.codes(waits) == NONE
    assert await values(node) == [b"plain", b"other", b"v"]
    await producer.close()


async def test_the_partitions_of_a_request_are_added_at_once_and_fail_one_by_one(node: ProduceNode) -> None:
    producer = await node.connect()
    plain = encode_batch([b"plain"], timestamps_ms=[1])
    number = producer.send((2, batch(0)), (0, batch(0)), (1, plain), (7, batch(0)), (0, batch(1)))
    assert await producer.codes(number) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    (asked,) = node.coordinators.asked
    assert asked.topics == (TransactionTopic("t", node.key()[1], (2, 0)),)
    assert await values(node) == [b"v", b"v"]
    await producer.close()


@pytest.mark.parametrize(
    ("records", "transactional_id", "acks", "code", "says"),
    [
        (batch(0), None, -1, ErrorCode.INVALID_RECORD, "needs the request's transactional id"),
        (batch(0), ID, 1, ErrorCode.INVALID_REQUIRED_ACKS, "with a transactional id it has to be -1"),
        (batch(0, producer_id=-1), ID, -1, ErrorCode.INVALID_RECORD, "transactional batches of a producer only"),
        (batch(0, attributes=Attributes(0)), ID, -1, ErrorCode.INVALID_RECORD, "transactional batches"),
        (batch(0) + batch(1, attributes=Attributes(0)), ID, -1, ErrorCode.INVALID_RECORD, "transactional batches"),
        (batch(0, attributes=Attributes.CONTROL), ID, -1, ErrorCode.INVALID_RECORD, "not a producer's to set"),
        (batch(0, attributes=Attributes.CONTROL), None, -1, ErrorCode.INVALID_RECORD, "not a producer's to set"),
        (
            batch(0, attributes=Attributes.CONTROL | Attributes.TRANSACTIONAL),
            ID,
            -1,
            ErrorCode.INVALID_RECORD,
            "not a producer's to set",
        ),
        (batch(0) + batch(1, producer_id=8), ID, -1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "have to be of one"),
    ],
)
async def test_what_does_not_belong_in_a_transaction_is_refused(
    node: ProduceNode, records: bytes, transactional_id: str | None, acks: int, code: ErrorCode, says: str
) -> None:
    producer = await node.connect()
    (answer,) = await producer.answer(producer.send((0, records), transactional_id=transactional_id, acks=acks))
    assert answer.error_code == code
    assert says in answer.error_message
    assert node.log().end_offset == 0
    await producer.close()


async def test_a_producer_with_an_open_transaction_writes_nothing_beside_it(node: ProduceNode) -> None:
    producer = await node.connect()
    assert await producer.codes(producer.send((0, batch(0)))) == NONE
    beside = producer.send((0, batch(1, attributes=Attributes(0))), transactional_id=None)
    assert await producer.codes(beside) == [ErrorCode.INVALID_TXN_STATE]
    await producer.close()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
async def test_what_the_coordinator_says_is_said_of_each_partition(node: ProduceNode, code: ErrorCode) -> None:
    node.coordinators.answer = AddPartitionsToTxnResponse(code, "says why")
    producer = await node.connect()
    answers = await producer.answer(producer.send((0, batch(0)), (1, batch(0))))
    assert [(answer.error_code, answer.error_message) for answer in answers] == [(code, "says why")] * 2
    late = await producer.answer(producer.send((2, batch(5))))
    goes_on = code == ErrorCode.INVALID_TXN_STATE
    assert late[0].error_code == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if goes_on else code)
    assert node.coordinators.asked[-1].verify_only
    assert [node.log(index).end_offset for index in range(3)] == [0, 0, 0]
    await producer.close()


async def test_each_transaction_begins_with_sequence_0_and_repetitions_of_the_one_before_are_told_apart(
    node: ProduceNode,
) -> None:
    producer = await node.connect()
    for epoch in range(3):
        assert await producer.codes(producer.send((0, batch(0, b"%d" % epoch, epoch=epoch)))) == NONE
        repeated = await producer.answer(producer.send((0, batch(0, b"%d" % epoch, epoch=epoch))))
        assert repeated[0].base_offset == 2 * epoch
        newer = producer.send((0, batch(0, epoch=epoch + 1)))
        assert await producer.codes(newer) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        older = producer.send((0, batch(0, epoch=epoch - 1))) if epoch else None
        if older is not None:
            assert await producer.codes(older) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        await node.end(epoch, committed=True)
    assert await values(node) == [b"0", b"1", b"2"]
    await producer.close()


async def test_a_write_whose_transaction_ends_while_it_waits_is_never_written(node: ProduceNode) -> None:
    node.coordinators.answer = None
    producer = await node.connect()
    late = producer.send((0, batch(0)), (1, batch(0)))
    await node.coordinators.until_asked(1)
    await node.end(0, committed=False)
    node.coordinators.answer_all()
    await node.coordinators.until_asked(2)
    node.coordinators.answer_all(AddPartitionsToTxnResponse(ErrorCode.TRANSACTION_ABORTABLE, "timed out"))
    assert await producer.codes(late) == [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NONE]
    assert node.log().end_offset == 0
    await producer.close()


async def test_a_client_that_hangs_up_while_it_waits_gives_its_memory_back_once_it_is_decided(
    node: ProduceNode,
) -> None:
    node.coordinators.answer = None
    producer = await node.connect()
    producer.send((0, batch(0, b"x" * 50_000)))
    await node.coordinators.until_asked(1)
    producer.abort()
    async with asyncio.timeout(30):
        while node.listener._connections:
            await asyncio.sleep(0)
    assert node.listener.budget.used > 50_000
    node.coordinators.answer_all()
    await node.until_idle()
    again = await node.connect()
    assert (await again.answer(again.send((0, batch(0, b"x" * 50_000)))))[0].base_offset == 0
    await again.close()


async def test_an_answer_by_timeout_leaves_the_request_counted_until_it_is_decided(node: ProduceNode) -> None:
    node.coordinators.answer = None
    producer = await node.connect()
    number = producer.send((0, batch(0, b"x" * 50_000)), timeout_ms=20)
    assert await producer.codes(number) == [ErrorCode.REQUEST_TIMED_OUT]
    assert node.listener.budget.used > 50_000
    node.coordinators.answer_all(AddPartitionsToTxnResponse(ErrorCode.PRODUCER_FENCED, "fenced"))
    await node.until_idle()
    assert node.log().end_offset == 0
    await producer.close()


async def test_a_coordinator_that_does_not_answer_is_not_waited_for_long(
    node: ProduceNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ANSWER_TIMEOUT_S", 0.05)
    node.coordinators.answer = None
    producer = await node.connect()
    (answer,) = await producer.answer(producer.send((0, batch(0))))
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await node.until_idle()
    node.coordinators.answer_all()
    assert node.log().end_offset == 0
    await producer.close()


async def test_a_topic_that_is_made_anew_meanwhile_gets_nothing_of_it(node: ProduceNode) -> None:
    node.coordinators.answer = None
    producer = await node.connect()
    number = producer.send((0, batch(0)))
    await node.coordinators.until_asked(1)
    topic = node.catalog.topic("t")
    await node.catalog.begin_deletion(topic)
    await node.logs.delete("t", range(3))
    await node.catalog.end_deletion(topic.topic_id)
    anew = node.catalog.draft("t", 3, {})
    await node.logs.create(anew, range(3))
    await node.catalog.commit(anew)
    node.coordinators.answer_all()
    (answer,) = await producer.answer(number)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "made anew" in answer.error_message
    assert node.log().end_offset == 0
    await producer.close()


async def test_many_partitions_are_written_in_turns_and_answered_together(node: ProduceNode) -> None:
    producer = await node.connect()
    batches = [(index % 3, batch(index // 3)) for index in range(3 * WRITES_AT_ONCE)]
    assert await producer.codes(producer.send(*batches)) == NONE * len(batches)
    assert [len(await values(node, index)) for index in range(3)] == [WRITES_AT_ONCE] * 3
    await producer.close()
