"""``Consumer.process`` and rebalances: handlers whose partitions stay see nothing of them, and no record has two at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from client import Admin, Consumer, ConsumerRecord, TopicPartition
from client.assignors import CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor, StickyAssignor
from coordinator import Coordinator
from tests.integration.consuming import QUICK, Journal, create, fill, until

ASSIGNORS: dict[str, Sequence[type]] = {
    "default": (RangeAssignor, CooperativeStickyAssignor),
    "roundrobin": (RoundRobinAssignor,),
    "sticky": (StickyAssignor,),
    "cooperative-sticky": (CooperativeStickyAssignor,),
}


class Threads:
    """Handlers that block a thread until they are released; knows which attempts ran at the same time."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.begun: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.running: Counter[int] = Counter()
        self.beside: list[tuple[int, int]] = []

    def block(self, record: ConsumerRecord) -> None:
        name = (record.partition, record.offset)
        if self.running[record.partition]:
            self.beside.append(name)
        self.running[record.partition] += 1
        self.begun.append(name)
        self.release.wait(60)
        self.running[record.partition] -= 1
        self.ended.append(name)

    async def handle(self, record: ConsumerRecord) -> None:
        await asyncio.to_thread(self.block, record)


def consumer_of(address: str, *topics: str, **settings: Any) -> Consumer:
    defaults = {**QUICK, "group_id": "g", "auto_commit_interval_ms": 50}
    return Consumer(*topics, bootstrap_servers=address, **{**defaults, **settings})


async def committed(address: str) -> dict[int, int]:
    async with Admin(address) as admin:
        return {tp.partition: stored.offset for tp, stored in (await admin.list_offsets("g")).items()}


def is_stable(consumer: Consumer) -> bool:
    return consumer.state == "stable"


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("offer", ASSIGNORS)
async def test_handlers_of_partitions_that_stay_see_nothing_of_a_rebalance(offer: str) -> None:
    assignors = ASSIGNORS[offer]
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=4)
        await fill(c.address, "t", range(8))
        work, journal = Threads(), Journal()
        first = consumer_of(c.address, assignors=assignors, revoke_grace_ms=60_000)
        first.subscribe(["t"], listener=journal)
        await stack.enter_async_context(first)
        handling = asyncio.create_task(first.process(work.handle))
        await until(lambda: len(work.begun) == 4)

        second = await stack.enter_async_context(consumer_of(c.address, "t", assignors=assignors))
        # The join waits for no handler, and none ends meanwhile.
        await until(lambda: second.state == "stable" and second.group_metadata().generation > 1, 30)
        assert len(work.begun) == 4
        assert [what for what, _ in journal.events] == ["assigned"], "what is worked on has not been given up"
        work.release.set()
        seen: list[tuple[int, int]] = []

        async def note(record: ConsumerRecord) -> None:
            seen.append((record.partition, record.offset))

        others = asyncio.create_task(second.process(note))
        await until(lambda: len(work.ended) + len(seen) == 8)
        assert work.beside == []
        assert Counter(work.ended + seen) == Counter((partition, offset) for partition in range(4) for offset in (0, 1))
        assert {partition for partition, _ in seen} == {tp.partition for tp in second.assignment()}
        await until(lambda: not work.running.total())
        await end(others)
        await end(handling)
        assert await committed(c.address) == dict.fromkeys(range(4), 2)


async def test_handlers_commit_under_the_generation_that_formed_around_them() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        first = await stack.enter_async_context(consumer_of(c.address, "t", enable_auto_commit=False))
        go_on, begun = asyncio.Event(), []

        async def handle(record: ConsumerRecord) -> None:
            begun.append(record.partition)
            await go_on.wait()
            await first.commit(record)

        handling = asyncio.create_task(first.process(handle))
        await until(lambda: len(begun) == 2)
        generation = first.group_metadata().generation
        await stack.enter_async_context(consumer_of(c.address, "t"))
        await until(lambda: first.group_metadata().generation > generation)
        go_on.set()
        async with asyncio.timeout(30):
            while await committed(c.address) != {0: 1, 1: 1}:
                await asyncio.sleep(0.02)
        assert sorted(begun) == [0, 1]
        await end(handling)


async def test_a_thread_that_outlives_the_grace_keeps_its_partition_from_a_second_handler_here() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        work = Threads()
        first = await stack.enter_async_context(consumer_of(c.address, "t", revoke_grace_ms=50))
        handling = asyncio.create_task(first.process(work.handle))
        await until(lambda: len(work.begun) == 2)
        second = consumer_of(c.address, "t", session_timeout_ms=20_000)
        async with second:
            await until(lambda: len(second.assignment()) == 1, 30)  # handlers have 5 s for their end
        await until(lambda: len(first.assignment()) == 2, 20)
        await asyncio.sleep(0.5)
        assert len(work.begun) == 2, "both attempts go on in their threads"
        work.release.set()
        await until(lambda: len(work.ended) == 3)
        assert work.beside == []
        assert Counter(work.ended).most_common()[0][1] == 2, "the one whose partition went is handled again, afterwards"
        await end(handling)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_process_called_again_waits_for_the_threads_of_the_call_before(wrapped: bool) -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=1)
        await fill(c.address, "t", range(1))
        work = Threads()

        async def handle(record: ConsumerRecord) -> None:
            if wrapped:
                await asyncio.wait_for(work.handle(record), 60)
            else:
                await work.handle(record)

        consumer = await stack.enter_async_context(consumer_of(c.address, "t", revoke_grace_ms=50))
        handling = asyncio.create_task(consumer.process(handle))
        await until(lambda: len(work.begun) == 1)
        await end(handling)
        again = asyncio.create_task(consumer.process(handle))
        await asyncio.sleep(0.5)
        assert len(work.begun) == 1
        work.release.set()
        await until(lambda: len(work.ended) == 2)
        assert work.beside == []
        await end(again)


async def test_a_process_that_ends_in_the_middle_of_a_rebalance_still_holds_what_it_claimed() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        first = await stack.enter_async_context(consumer_of(c.address, "t"))
        begun: list[int] = []
        go_on = asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            begun.append(record.partition)
            await go_on.wait()

        handling = asyncio.create_task(first.process(handle))
        await until(lambda: len(begun) == 2)
        second = await stack.enter_async_context(consumer_of(c.address, "t"))
        await until(lambda: first.state == "rebalancing")
        go_on.set()
        await end(handling)
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
        assert first.assignment() | second.assignment() == {TopicPartition("t", 0), TopicPartition("t", 1)}
        assert await committed(c.address) == {0: 1, 1: 1}


async def test_a_handler_that_blocks_the_loop_does_not_hold_up_who_joins() -> None:
    """Its member is joined for in the background, as often as need be; only what goes from it waits for it."""
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=6)
        await fill(c.address, "t", range(6))
        blocked, release, seen = threading.Event(), threading.Event(), []

        def block(record: ConsumerRecord) -> None:
            seen.append((record.partition, record.offset))
            if not blocked.is_set():
                blocked.set()
                release.wait(60)

        stop = threading.Event()

        def program() -> None:
            async def main() -> None:
                async with consumer_of(c.address, "t", session_timeout_ms=20_000) as consumer:
                    handling = asyncio.create_task(consumer.process(block))
                    while not stop.is_set():
                        await asyncio.sleep(0.01)
                    await consumer.stop()
                    await handling

            asyncio.run(main())

        thread = threading.Thread(target=program, daemon=True)
        thread.start()
        try:
            await until(blocked.is_set, 30)
            others = []
            for _ in range(2):
                joined = time.monotonic()
                other = await stack.enter_async_context(consumer_of(c.address, "t", session_timeout_ms=20_000))
                await until(partial(is_stable, other), 30)
                assert time.monotonic() - joined < 20, "about a second on an idle machine; the handler takes 60"
                others.append(other)
            assert not release.is_set()
            async with Admin(c.address) as admin:
                assert len((await admin.describe_groups("g"))["g"].members) == 3
            release.set()
            await until(lambda: [len(other.assignment()) for other in others] == [2, 2], 30)
            counted = Counter(seen)
            assert set(counted.values()) == {1}, "no record was handled twice"
            for other in others:
                taken = await other.getmany(timeout_ms=100)
                assert not set(counted).intersection(
                    (tp.partition, record.offset) for tp in taken for record in taken[tp]
                )
        finally:
            release.set()
            stop.set()
            await asyncio.to_thread(thread.join, 30)


async def test_a_program_that_blocked_its_loop_through_rebalances_commits_and_leaves_in_order() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        blocked, release = threading.Event(), threading.Event()
        failed: list[BaseException] = []

        async def block(record: ConsumerRecord) -> None:
            if not blocked.is_set():
                blocked.set()
                release.wait(60)
            await consumers[0].commit(record)

        consumers: list[Consumer] = []

        def program() -> None:
            async def main() -> None:
                consumer = consumer_of(c.address, "t", enable_auto_commit=False, session_timeout_ms=20_000)
                consumers.append(consumer)
                async with consumer:
                    handling = asyncio.create_task(consumer.process(block))
                    while not release.is_set():
                        await asyncio.sleep(0.01)
                    await consumer.stop()
                    await handling

            try:
                asyncio.run(main())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=program, daemon=True)
        thread.start()
        await until(blocked.is_set, 30)
        other = await stack.enter_async_context(consumer_of(c.address, "t", session_timeout_ms=20_000))
        await until(lambda: other.state == "stable", 30)
        release.set()
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
        assert failed == []
        await until(lambda: len(other.assignment()) == 2, 20)
        assert await committed(c.address) in ({0: 1}, {1: 1}, {0: 1, 1: 1})
