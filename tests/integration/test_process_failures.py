"""``Consumer.process`` and handlers that fail: pauses between attempts, their end, and dead letters on a real daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from client import (
    Admin,
    Consumer,
    ConsumerRecord,
    DeadLetter,
    HandlerError,
    Producer,
    Retry,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from coordinator import Coordinator
from protocol.messages import ApiKey
from tests.integration.answering_proxy import address, answered
from tests.integration.consuming import QUICK, create, fill, until

QUICKLY: dict[str, Any] = {"initial_ms": 5, "maximum_ms": 20}


def consumer_of(address: str, *topics: str, **settings: Any) -> Consumer:
    defaults = {**QUICK, "group_id": "g", "auto_commit_interval_ms": 50}
    return Consumer(*topics, bootstrap_servers=address, **{**defaults, **settings})


async def committed(address: str) -> dict[int, int]:
    async with Admin(address) as admin:
        return {tp.partition: stored.offset for tp, stored in (await admin.list_offsets("g")).items()}


async def letters(address: str, topic: str = "dlq") -> list[ConsumerRecord]:
    async with Consumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        found: list[ConsumerRecord] = []
        ends = sum((await consumer.end_offsets(await partitions(address, topic))).values())
        while len(found) < ends:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                found += records
    return sorted(found, key=lambda record: record.timestamp_ms)


async def partitions(address: str, topic: str) -> list[TopicPartition]:
    async with Producer(address) as producer:
        return [TopicPartition(topic, number) for number in await producer.partitions_for(topic)]


def told(record: ConsumerRecord) -> dict[str, str]:
    prefix = "__cohort.errors."
    return {
        name.removeprefix(prefix): (value or b"").decode() for name, value in record.headers if name.startswith(prefix)
    }


async def handling(
    consumer: Consumer, handler: Callable[[ConsumerRecord], Any], done: Callable[[], bool], **options: Any
) -> None:
    """Processes until ``done``."""
    task = asyncio.create_task(consumer.process(handler, **options))
    try:
        async with asyncio.timeout(20):
            while not done() and not task.done():
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_handler_that_always_fails_is_called_a_few_times_a_second_and_others_are_not_held_up() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(1), partition=0)
        await fill(c.address, "t", range(20), partition=1)
        failing: list[float] = []
        passed: list[int] = []

        def handle(record: ConsumerRecord) -> None:
            if record.partition == 0:
                failing.append(time.monotonic())
                raise ConnectionError("the database is down")
            passed.append(record.offset)

        async with consumer_of(c.address, "t") as consumer:
            started = time.monotonic()
            await handling(
                consumer,
                handle,
                lambda: len(failing) >= 4 and len(passed) == 20,
                concurrency=1,
                on_error="retry",
            )
        assert passed == list(range(20)), "the pauses of the one take up no place among the handlers"
        assert time.monotonic() - started > 0.1 * 0.8 * (1 + 2 + 4)
        assert all(later - earlier > 0.08 for earlier, later in pairwise(failing))
        assert await committed(c.address) == {0: 0, 1: 20} or await committed(c.address) == {1: 20}


async def test_attempts_come_to_an_end_and_what_follows_is_said() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(3))
        called: list[int] = []

        def handle(record: ConsumerRecord) -> None:
            called.append(record.offset)
            if record.offset == 1:
                raise KeyError("price")

        async with consumer_of(c.address, "t") as consumer:
            with pytest.raises(HandlerError, match="offset 1 of t-0"):
                await consumer.process(handle, on_error=Retry(attempts=3, **QUICKLY))
            assert called == [0, 1, 1, 1]
            called.clear()
            policy = Retry(attempts=2, then="skip", **QUICKLY)
            await handling(consumer, handle, lambda: called[-1:] == [2], on_error=policy)
            assert called == [1, 1, 2]
        assert await committed(c.address) == {0: 3}


async def test_a_dead_letter_holds_the_record_as_it_was_stored_and_says_where_it_comes_from() -> None:
    async with Coordinator() as c:
        await create(c.address, orders=1, dlq=1)
        async with Producer(c.address) as producer:
            await producer.send_and_wait("orders", b"1", b"a")
            bad = await producer.send_and_wait(
                "orders", b"66", b"b", timestamp_ms=1_000_000_000_000, headers=[("trace", b"x")]
            )
            await producer.send_and_wait("orders", b"no number", b"c")
            await producer.send_and_wait("orders", b"4", b"d")
        seen: list[int] = []

        def handle(record: ConsumerRecord) -> None:
            if record.value == 66:
                raise ValueError("what is 66?")
            seen.append(record.value)

        before_ms = time.time() * 1000 - 1_000
        async with consumer_of(c.address, "orders", value_deserializer=int) as consumer:
            policy = Retry(attempts=3, then=DeadLetter("dlq"), **QUICKLY)
            await handling(consumer, handle, lambda: seen == [1, 4], on_error=policy)
        assert await committed(c.address) == {0: 4}
        first, second = await letters(c.address)
        assert (first.key, first.value, first.headers[0]) == (b"b", b"66", ("trace", b"x"))
        assert (second.key, second.value) == (b"c", b"no number")
        assert first.timestamp_ms > before_ms, "it is kept for as long as its topic keeps what comes today"
        assert told(first) == {
            "topic": "orders",
            "partition": "0",
            "offset": str(bad.offset),
            "timestamp": "1000000000000",
            "group": "g",
            "attempts": "3",
            "exception.class.name": "builtins.ValueError",
            "exception.message": "what is 66?",
        }
        assert told(second)["attempts"] == "3"
        assert told(second)["exception.class.name"] == "builtins.ValueError"
        assert "no number" in told(second)["exception.message"]


async def test_on_error_may_choose_for_each_record() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1, dlq=1)
        await fill(c.address, "t", range(4))
        called: list[int] = []

        def handle(record: ConsumerRecord) -> None:
            called.append(record.offset)
            if record.offset != 3:
                raise KeyError(record.offset)

        async def choose(record: ConsumerRecord, error: Exception) -> Any:
            assert isinstance(error, KeyError)
            return ["skip", DeadLetter("dlq"), Retry(attempts=2, then="skip", **QUICKLY)][record.offset]

        async with consumer_of(c.address, "t") as consumer:
            await handling(consumer, handle, lambda: called[-1:] == [3], on_error=choose)
            assert called == [0, 1, 2, 2, 3]
            for wrong in ("ignore", 3):
                with pytest.raises(ValueError, match="on_error"):
                    await consumer.process(handle, on_error=wrong)  # type: ignore[arg-type]
        assert [told(letter)["offset"] for letter in await letters(c.address)] == ["1"]


async def test_a_record_whose_dead_letter_cannot_be_written_is_not_done() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(2))

        def handle(record: ConsumerRecord) -> None:
            raise KeyError("price")

        async with consumer_of(c.address, "t") as consumer:
            with pytest.raises(HandlerError, match=r"dead letter to 'dlq'.*offset 0 of t-0") as caught:
                await consumer.process(handle, on_error=DeadLetter("dlq"))
            assert isinstance(caught.value.__cause__, UnknownTopicOrPartitionError)
            assert isinstance(caught.value.__cause__.__context__, KeyError)
            assert (await committed(c.address)).get(0, 0) == 0
            await create(c.address, dlq=1)
            await handling(consumer, handle, lambda: not consumer_lags(consumer), on_error=DeadLetter("dlq"))
        assert await committed(c.address) == {0: 2}
        assert [letter.value for letter in await letters(c.address)] == [b"0", b"1"]


def consumer_lags(consumer: Consumer) -> bool:
    states = consumer._assignment.states.values()
    return any(state.done < 2 for state in states) or not states


async def test_a_dead_letter_is_on_disk_before_its_offset_is_committed() -> None:
    """The commit of the clock comes many times while the letter is under way, and never covers its record."""
    async with Coordinator() as c:
        await create(c.address, t=1, dlq=1)
        await fill(c.address, "t", range(1))
        early: list[int] = []

        def handle(record: ConsumerRecord) -> None:
            raise KeyError("price")

        async with consumer_of(c.address, "t", auto_commit_interval_ms=1) as consumer:
            task = asyncio.create_task(consumer.process(handle, on_error=DeadLetter("dlq")))
            async with asyncio.timeout(20):
                while (await committed(c.address)).get(0) != 1:
                    early.append(1)
            assert len(await letters(c.address)) == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_rebalance_does_not_wait_for_a_pause_between_attempts() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        called: list[int] = []

        def handle(record: ConsumerRecord) -> None:
            called.append(record.partition)
            raise KeyError("price")

        async with consumer_of(c.address, "t", revoke_grace_ms=60_000) as first:
            task = asyncio.create_task(first.process(handle, on_error=Retry(initial_ms=600_000, maximum_ms=600_000)))
            await until(lambda: len(called) == 2)
            async with consumer_of(c.address, "t") as second:
                await until(lambda: len(second.assignment()) == 1, 20)
                record = await asyncio.wait_for(second.getone(), 10)
                assert record.offset == 0, "what was not done comes to the next owner"
            task.cancel()
            await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 20)


async def test_the_end_of_process_does_not_wait_for_a_dead_letter_that_is_not_acknowledged() -> None:
    async with answered() as proxy, Admin(address(proxy)) as admin:
        await admin.create_topics({"dlq": 1})
        await fill(address(proxy), "t", range(1), partition=0)
        proxy.unanswered.add(ApiKey.PRODUCE)
        failed = asyncio.Event()

        def handle(record: ConsumerRecord) -> None:
            failed.set()
            raise KeyError("price")

        async with consumer_of(address(proxy), "t", revoke_grace_ms=1_000) as consumer:
            task = asyncio.create_task(consumer.process(handle, on_error=DeadLetter("dlq")))
            await asyncio.wait_for(failed.wait(), 20)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=60)
            assert done, "delivery_timeout_ms of its producer is two minutes"
        assert (await committed(address(proxy))).get(0, 0) == 0
