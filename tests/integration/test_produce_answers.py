"""What a producer makes of the answers it gets, and of those it does not get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from client.errors import RequestTimedOutError
from client.producer.producer import Producer
from protocol.errors import ErrorCode
from protocol.messages import ApiKey
from protocol.messages.records import PartitionProduceResponse
from tests.integration.answering_proxy import AnsweringProxy, address, answered
from tests.integration.fetched import values


@pytest.fixture
async def proxy() -> AsyncIterator[AnsweringProxy]:
    async with answered() as proxy:
        yield proxy


async def task_named(start: str) -> asyncio.Task[object]:
    """The one task whose name begins so, once it is there."""
    async with asyncio.timeout(30):
        while not (found := [task for task in asyncio.all_tasks() if task.get_name().startswith(start)]):
            await asyncio.sleep(0.001)
    (task,) = found
    return task


def duplicate(answer: PartitionProduceResponse) -> PartitionProduceResponse:
    """A daemon that knows the batch is in the log, but not any more where."""
    return PartitionProduceResponse(answer.index, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, error_message="seen before")


async def test_a_duplicate_whose_place_is_not_known_any_more_is_stored_at_offset_minus_one(
    proxy: AnsweringProxy,
) -> None:
    """As Kafka's client has it: what was to be achieved has been."""
    async with Producer(address(proxy)) as producer:
        assert (await producer.send_and_wait("t", b"0", partition=0)).offset == 0
        proxy.rewrite = duplicate
        assert (await producer.send_and_wait("t", b"1", partition=0, timestamp_ms=7))[2:] == (-1, 7)
        assert [entry.offset for entry in await producer.send_many("t", [b"2", b"3"], partition=0)] == [-1, -1]
        proxy.rewrite = lambda answer: answer
        assert (await producer.send_and_wait("t", b"4", partition=0)).offset == 4, "numbers go on where they were"
        assert producer._pool.used == 0
    assert (await values(address(proxy), "t"))[0] == [b"%d" % number for number in range(5)]


async def test_of_several_batches_it_is_not_known_which_one_is_the_duplicate(proxy: AnsweringProxy) -> None:
    """Each is asked about alone: those of which the daemon knows the place get their offsets."""
    async with Producer(address(proxy), batch_size=400, max_in_flight=1) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        answers = 0

        def the_second(answer: PartitionProduceResponse) -> PartitionProduceResponse:
            nonlocal answers
            answers += 1
            return duplicate(answer) if answers == 2 else answer

        proxy.rewrite = the_second
        entries = await producer.send_many("t", [b"%0100d" % number for number in range(12)], partition=0)
        assert answers > 4
        assert [entry.offset for entry in entries] == list(range(1, 13))
    assert len((await values(address(proxy), "t"))[0]) == 13


async def test_what_is_stored_does_not_wait_until_it_is_known_what_became_of_another_topic(
    proxy: AnsweringProxy,
) -> None:
    def unknown(answer: PartitionProduceResponse) -> PartitionProduceResponse:
        proxy.unanswered = {ApiKey.METADATA}
        return replace(answer, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if answer.index else answer

    async with Producer(address(proxy), delivery_timeout_ms=3000) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        proxy.rewrite = unknown
        futures = [await producer.send("t", b"1", partition=partition) for partition in (0, 1)]
        assert (await futures[0]).offset == 1
        assert not futures[1].done()
        async with asyncio.timeout(20):
            with pytest.raises(RequestTimedOutError):
                await futures[1]


@pytest.mark.parametrize("acks", ["all", 1])
async def test_a_daemon_that_does_not_answer_is_named_and_not_the_connection(proxy: AnsweringProxy, acks: str) -> None:
    async with Producer(address(proxy), acks=acks, request_timeout_ms=150, delivery_timeout_ms=500) as producer:  # type: ignore[arg-type]
        await producer.send_and_wait("t", b"0", partition=0)
        proxy.unanswered = {ApiKey.PRODUCE}
        with pytest.raises(RequestTimedOutError, match=rf"127.0.0.1:{proxy.port} did not answer Produce within"):
            await producer.send_and_wait("t", b"1", partition=0)


async def test_a_connection_that_has_become_a_black_hole_is_replaced(proxy: AnsweringProxy) -> None:
    async with Producer(address(proxy), request_timeout_ms=2100) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        proxy.black_hole()
        async with asyncio.timeout(20):
            await producer.send_and_wait("t", b"1", partition=0)
        assert proxy.connections == 2
    assert (await values(address(proxy), "t"))[0] == [b"0", b"1"]


async def test_a_record_is_not_late_because_the_question_for_a_producer_id_takes_longer(proxy: AnsweringProxy) -> None:
    """The question began before the record came, and ends after its time."""
    async with Producer(address(proxy), request_timeout_ms=3000, delivery_timeout_ms=3000) as producer:
        await producer.partitions_for("t")
        proxy.unanswered = {ApiKey.INIT_PRODUCER_ID}
        loop = asyncio.get_running_loop()
        futures = [await producer.send("t", b"0", partition=0)]
        await asyncio.sleep(1.5)
        futures.append(await producer.send("t", b"1", partition=1))
        sent = loop.time()
        with pytest.raises(RequestTimedOutError, match=r"InitProducerId|producer id"):
            await futures[1]
        assert 2.7 < loop.time() - sent < 4.2, "its own time, and not that of the second question"
        assert futures[0].exception()


async def test_a_request_that_a_program_cancels_by_accident_is_sent_again(proxy: AnsweringProxy) -> None:
    """As programs do that cancel all tasks there are and then stop their producers.

    A request has a task when a connection must be made for it first.
    """
    async with Producer(address(proxy)) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        proxy.unanswered = {ApiKey.PRODUCE}
        for connection in producer._cluster._connections.values():
            connection.close()
        future = await producer.send("t", b"1", partition=0)
        request = await task_named("cohort-produce-")
        await asyncio.sleep(0.05)
        proxy.unanswered = set()
        request.cancel()
        async with asyncio.timeout(20):
            assert (await future).offset == 1
    assert (await values(address(proxy), "t"))[0] == [b"0", b"1"]


async def test_a_question_for_an_id_that_is_cancelled_by_accident_is_asked_again(proxy: AnsweringProxy) -> None:
    async with Producer(address(proxy)) as producer:
        await producer.partitions_for("t")
        proxy.unanswered = {ApiKey.INIT_PRODUCER_ID}
        future = await producer.send("t", b"0", partition=0)
        question = await task_named("cohort-producer-id-")
        await asyncio.sleep(0.05)
        proxy.unanswered = set()
        question.cancel()
        async with asyncio.timeout(20):
            assert (await future).offset == 0
