"""``process`` in threads and by key, and ``process_batch``, against a real daemon."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from client import (
    Admin,
    Consumer,
    ConsumerRecord,
    DeadLetter,
    HandlerError,
    IllegalStateError,
    JsonSerde,
    Output,
    Producer,
    Retry,
    TopicPartition,
)
from coordinator import Coordinator
from tests.integration.consuming import create, fill, until
from tests.integration.test_consumer_process import committed, consumer_of

T0 = TopicPartition("t", 0)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with Coordinator() as c:
        await create(c.address, t=1)
        yield c.address


async def send_keyed(address: str, keys: list[bytes | None]) -> None:
    async with Producer(address) as producer:
        await producer.send_many("t", [b"%d" % number for number in range(len(keys))], keys)


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# --- threads --------------------------------------------------------------------------------------------------------


async def test_plain_handlers_run_in_threads_beside_each_other_and_the_loop_goes_on(address: str) -> None:
    await create(address, wide=3)
    await fill(address, "wide", range(6))
    meeting = threading.Barrier(3)
    names: set[str] = set()
    setting = contextvars.ContextVar("setting", default="none")
    setting.set("of the program")

    def cook(record: ConsumerRecord) -> None:
        meeting.wait(30)  # passes only when three handlers are in it at once
        names.add(threading.current_thread().name)
        assert setting.get() == "of the program"

    async with consumer_of(address, "wide") as consumer:
        task = asyncio.create_task(consumer.process(cook, threads=3))
        async with Admin(address) as admin:
            async with asyncio.timeout(30):
                while sum(stored.offset for stored in (await admin.list_offsets("g")).values()) < 6:
                    await asyncio.sleep(0.02)
        await end(task)
    assert names
    assert all(name.startswith("cohort-handler") for name in names)
    await until(lambda: not [each for each in threading.enumerate() if each.name.startswith("cohort-handler")])


async def test_a_thread_is_waited_for_at_the_end_and_what_it_did_is_committed(address: str) -> None:
    await fill(address, "t", range(3))
    begun = threading.Event()
    seen: list[int] = []

    def cook(record: ConsumerRecord) -> None:
        begun.set()
        time.sleep(0.5)
        seen.append(record.offset)

    async with consumer_of(address, "t") as consumer:
        task = asyncio.create_task(consumer.process(cook, threads=2))
        await until(begun.is_set)
    await task
    assert seen == [0]
    assert await committed(address) == {0: 1}


async def test_a_thread_that_outlives_the_grace_is_no_commit_and_its_record_comes_again(address: str) -> None:
    await fill(address, "t", range(2))
    go_on = threading.Event()
    seen: list[tuple[str, int]] = []

    def stuck(record: ConsumerRecord) -> None:
        seen.append(("stuck", record.offset))
        go_on.wait(60)

    async with consumer_of(address, "t", revoke_grace_ms=100) as consumer:
        first = asyncio.create_task(consumer.process(stuck, threads=1))
        await until(lambda: bool(seen))
        await end(first)
        assert await committed(address) in ({}, {0: 0})
        second = asyncio.create_task(consumer.process(lambda record: seen.append(("anew", record.offset)), threads=1))
        await asyncio.sleep(0.3)
        assert seen == [("stuck", 0)], "its partition is not handled beside it"
        go_on.set()
        await until(lambda: len(seen) == 3)
        assert seen == [("stuck", 0), ("anew", 0), ("anew", 1)]
        await end(second)


async def test_failures_in_threads_are_tried_again_and_a_coroutine_is_refused(address: str) -> None:
    await fill(address, "t", range(2))
    attempts: list[int] = []

    def cook(record: ConsumerRecord) -> None:
        attempts.append(record.offset)
        if len(attempts) < 3:
            raise OSError("the database is away")

    async def coroutine(record: ConsumerRecord) -> None:
        """Never called."""

    class Hidden:
        def __call__(self, record: ConsumerRecord) -> Any:
            return coroutine(record)

    async with consumer_of(address, "t") as consumer:
        with pytest.raises(TypeError, match="threads are for plain functions"):
            await consumer.process(coroutine, threads=2)
        with pytest.raises(HandlerError, match="must be a plain function, but it returned an awaitable"):
            await consumer.process(Hidden(), threads=2)
        for threads in (0, True, 5000):
            with pytest.raises(ValueError, match="threads is"):
                await consumer.process(cook, threads=threads)
        task = asyncio.create_task(consumer.process(cook, threads=2, on_error=Retry(initial_ms=10)))
        await until(lambda: attempts == [0, 0, 0, 1])
        await end(task)
    assert await committed(address) == {0: 2}


# --- by key ---------------------------------------------------------------------------------------------------------


async def test_keys_are_handled_beside_each_other_in_their_order_and_all_is_committed(address: str) -> None:
    keys: list[bytes | None] = [b"key-%d" % (number % 7) for number in range(300)]
    await send_keyed(address, keys)
    seen: dict[bytes, list[int]] = defaultdict(list)
    running: set[bytes] = set()
    most = 0

    async def cook(record: ConsumerRecord[bytes, int]) -> None:
        nonlocal most
        assert record.key not in running
        running.add(record.key)
        most = max(most, len(running))
        await asyncio.sleep(0.002)
        running.remove(record.key)
        seen[record.key].append(record.value)

    async with consumer_of(address, "t", value_deserializer=int) as consumer:
        task = asyncio.create_task(consumer.process(cook, order="key", concurrency=5))
        await until(lambda: sum(map(len, seen.values())) == 300)
        await end(task)
    assert await committed(address) == {0: 300}
    assert most == 5
    for number in range(7):
        assert seen[b"key-%d" % number] == list(range(number, 300, 7))


async def test_commits_stop_before_the_first_record_that_is_not_done(address: str) -> None:
    await send_keyed(address, [b"a", b"stuck", b"a", b"b"])
    stuck, seen = asyncio.Event(), []

    async def cook(record: ConsumerRecord) -> None:
        if record.key == b"stuck":
            await stuck.wait()
        seen.append(record.offset)

    async with consumer_of(address, "t") as consumer:
        task = asyncio.create_task(consumer.process(cook, order="key", concurrency=3))
        await until(lambda: len(seen) == 3)
        await consumer.commit()
        assert await committed(address) == {0: 1}
        stuck.set()
        await until(lambda: len(seen) == 4)
        await consumer.commit()
        assert await committed(address) == {0: 4}
        await end(task)


async def test_a_member_that_joins_takes_over_from_the_first_record_that_was_not_done(address: str) -> None:
    await create(address, t2=2)
    async with Producer(address) as producer:
        for partition in (0, 1):
            await producer.send_many("t2", [b"x"] * 4, [b"a", b"stuck", b"b", b"a"], partition=partition)
    first_seen: list[tuple[int, int]] = []
    second_seen: list[tuple[int, int]] = []

    async def first(record: ConsumerRecord) -> None:
        if record.key == b"stuck":
            await asyncio.sleep(600)
        first_seen.append((record.partition, record.offset))

    async def second(record: ConsumerRecord) -> None:
        second_seen.append((record.partition, record.offset))

    async with consumer_of(address, "t2", revoke_grace_ms=200) as one:
        task = asyncio.create_task(one.process(first, order="key", concurrency=8))
        await until(lambda: len(first_seen) == 6)
        async with consumer_of(address, "t2", revoke_grace_ms=200) as two:
            other = asyncio.create_task(two.process(second, order="key", concurrency=8))
            await until(lambda: len(second_seen) == 3)
            (partition,) = {partition for partition, _ in second_seen}
            assert sorted(second_seen) == [(partition, 1), (partition, 2), (partition, 3)]
            await end(other)
        await end(task)


async def test_what_does_not_go_with_the_order_of_keys_is_refused(address: str) -> None:
    await send_keyed(address, [b"a"])

    async def commits(record: ConsumerRecord) -> None:
        await consumer.commit(record)

    async with consumer_of(address, "t") as consumer:
        with pytest.raises(ValueError, match="order='key' has many handlers at once: pass concurrency"):
            await consumer.process(commits, order="key")
        with pytest.raises(ValueError, match="order is 'keys'; it can be 'partition' or 'key'"):
            await consumer.process(commits, order="keys", concurrency=2)  # type: ignore[arg-type]
        async with Producer(address, transactional_id="tx") as producer:
            with pytest.raises(ValueError, match="order='key' and producer"):
                await consumer.process(commits, order="key", concurrency=2, producer=producer)
        with pytest.raises(HandlerError, match="all records before it are done too") as failed:
            await consumer.process(commits, order="key", concurrency=2)
        assert isinstance(failed.value.__cause__, IllegalStateError)


async def test_threads_work_by_key_too(address: str) -> None:
    await send_keyed(address, [b"a", b"b", b"c", b"a", b"b", b"c"])
    meeting = threading.Barrier(3)
    seen: list[int] = []

    def cook(record: ConsumerRecord) -> None:
        meeting.wait(30)
        seen.append(record.offset)

    async with consumer_of(address, "t") as consumer:
        task = asyncio.create_task(consumer.process(cook, order="key", threads=3))
        await until(lambda: len(seen) == 6)
        await end(task)
    assert (sorted(seen[:3]), sorted(seen[3:])) == ([0, 1, 2], [3, 4, 5])
    assert await committed(address) == {0: 6}


# --- batches --------------------------------------------------------------------------------------------------------


async def test_batches_are_of_one_partition_and_committed_as_a_whole(address: str) -> None:
    await create(address, wide=3)
    await fill(address, "wide", range(90))
    batches: list[list[int]] = []

    async def cook(records: list[ConsumerRecord[bytes, int]]) -> None:
        assert len({record.partition for record in records}) == 1
        batches.append([record.value for record in records])

    async with consumer_of(address, "wide", value_deserializer=int) as consumer:
        task = asyncio.create_task(consumer.process_batch(cook, max_records=20, max_wait_ms=200))
        await until(lambda: sum(map(len, batches)) == 90)
        await end(task)
    assert sorted(map(len, batches)) == [10, 10, 10, 20, 20, 20]
    for partition in range(3):
        numbers = [number for batch in batches for number in batch if number % 3 == partition]
        assert numbers == list(range(partition, 90, 3))
    async with Admin(address) as admin:
        assert {stored.offset for stored in (await admin.list_offsets("g")).values()} == {30}


async def test_a_batch_does_not_wait_for_what_the_buffers_have_no_room_for(address: str) -> None:
    """``max_records`` of large records are more than the buffers hold: what fills them is a batch, without a wait."""
    await create(address, wide=2)
    async with Producer(address) as producer:
        await producer.send_many("t", [b"t" * 50_000] * 20)
        for partition in range(2):
            await producer.send_many("wide", [b"w" * 50_000] * 20, partition=partition)
    sizes: list[int] = []

    async def cook(records: list[ConsumerRecord[bytes, bytes]]) -> None:
        sizes.append(len(records))

    for topic, count, bounds in (
        ("t", 20, {"max_partition_fetch_bytes": 120_000}),
        ("wide", 40, {"max_partition_fetch_bytes": 120_000, "fetch_max_bytes": 120_000}),
    ):
        sizes.clear()
        async with consumer_of(address, topic, **bounds) as consumer:
            task = asyncio.create_task(consumer.process_batch(cook, max_records=1_000, max_wait_ms=3_000))
            began_s = time.monotonic()
            async with asyncio.timeout(60):
                while sum(sizes) < count:
                    await asyncio.sleep(0.005)
            took_s = time.monotonic() - began_s
            await end(task)
        assert took_s < 6, f"{len(sizes)} batches waited for each other: {took_s:.1f} s"


async def test_a_batch_that_fails_for_good_is_kept_aside_as_it_is_stored(address: str) -> None:
    await create(address, letters=1)
    async with Producer(address, value_serializer=JsonSerde()) as producer:
        await producer.send_many("t", [{"n": 1}, {"n": 2}, {"n": 3}])
    calls: list[int] = []

    def cook(records: list[ConsumerRecord]) -> None:
        calls.append(len(records))
        raise LookupError(f"no table for {len(records)}")

    async with consumer_of(address, "t", value_deserializer=JsonSerde()) as consumer:
        task = asyncio.create_task(
            consumer.process_batch(
                cook, threads=1, on_error=Retry(attempts=2, initial_ms=10, then=DeadLetter("letters"))
            )
        )
        async with consumer_of(address, "letters", group_id=None) as letters:
            kept = [await letters.getone() for _ in range(3)]
        await until(lambda: consumer._assignment.states[T0].done == 3)
        await end(task)
    assert calls == [3, 3]
    assert [letter.value for letter in kept] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    headers = [dict(letter.headers) for letter in kept]
    assert [each["__cohort.errors.offset"] for each in headers] == [b"0", b"1", b"2"]
    assert {each["__cohort.errors.attempts"] for each in headers} == {b"2"}
    assert await committed(address) == {0: 3}


async def test_batches_and_their_outputs_are_one_transaction(address: str) -> None:
    await create(address, sums=1)
    await fill(address, "t", range(100))

    def add(records: list[ConsumerRecord]) -> Output:
        return Output("sums", b"%d" % sum(int(record.value) for record in records))

    async with (
        consumer_of(address, "t") as consumer,
        Producer(address, transactional_id="adding") as producer,
        consumer_of(address, "sums", group_id=None) as reader,
    ):
        task = asyncio.create_task(consumer.process_batch(add, max_records=30, producer=producer))
        total = 0
        async with asyncio.timeout(30):
            while total < sum(range(100)):
                total += int((await reader.getone()).value)
        assert total == sum(range(100))
        await end(task)
    assert await committed(address) == {0: 100}


async def test_limits_of_batches_are_checked(address: str) -> None:
    async with consumer_of(address, "t") as consumer:
        for max_records in (0, True, 2_000_000):
            with pytest.raises(ValueError, match="max_records is"):
                await consumer.process_batch(print, max_records=max_records)
        for max_wait_ms in (-1, float("nan"), 1e9):
            with pytest.raises(ValueError, match="max_wait_ms is"):
                await consumer.process_batch(print, max_wait_ms=max_wait_ms)


async def test_a_typed_consumer_hands_its_types_to_handlers(address: str) -> None:
    await send_keyed(address, [b"a"])
    seen: list[tuple[str, int]] = []

    async def cook(record: ConsumerRecord[str, int]) -> None:
        seen.append((record.key.upper(), record.value + 1))

    async with Consumer(
        "t",
        bootstrap_servers=address,
        group_id="g",
        auto_offset_reset="earliest",
        key_deserializer=bytes.decode,
        value_deserializer=int,
    ) as consumer:
        task = asyncio.create_task(consumer.process(cook))
        await until(lambda: bool(seen))
        await end(task)
    assert seen == [("A", 1)]
