"""``Consumer.process`` against a real daemon: sharing, hand-over, what is committed, how it ends."""

from __future__ import annotations

import asyncio
import operator
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from client import (
    Admin,
    ClosedError,
    Consumer,
    ConsumerRecord,
    HandlerError,
    IllegalStateError,
    MaxPollIntervalExceededError,
    NoOffsetForPartitionError,
    RecordDeserializationError,
    TopicPartition,
)
from client.assignors import CooperativeStickyAssignor
from coordinator import Coordinator
from tests.integration.consuming import QUICK, Journal, create, fill, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP: dict[str, Any] = {**QUICK, "group_id": "g", "auto_commit_interval_ms": 50}


def consumer_of(address: str, *topics: str, **settings: Any) -> Consumer:
    return Consumer(*topics, bootstrap_servers=address, **{**GROUP, **settings})


async def committed(address: str) -> dict[int, int]:
    """The offsets of group g, by partition of t."""
    async with Admin(address) as admin:
        return {tp.partition: stored.offset for tp, stored in (await admin.list_offsets("g")).items()}


class Program:
    """A consumer whose records are handled until the test is over; notes what began and what was finished."""

    def __init__(self, consumer: Consumer, *, seconds: float = 0.001, **options: Any) -> None:
        self.consumer = consumer
        self.seconds = seconds
        self.running: dict[int, int] = {}
        self.begun: list[tuple[int, int]] = []
        self.finished: list[tuple[int, int]] = []
        self.cancelled: list[tuple[int, int]] = []
        self.task = asyncio.create_task(consumer.process(self.handle, **options))

    async def handle(self, record: ConsumerRecord) -> None:
        assert record.partition not in self.running
        assert TopicPartition(record.topic, record.partition) in self.consumer.assignment()
        name = (record.partition, record.offset)
        self.running[record.partition] = record.offset
        self.begun.append(name)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            del self.running[record.partition]
        self.finished.append(name)

    def offsets(self, partition: int) -> list[int]:
        return [offset for number, offset in self.finished if number == partition]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_every_record_once_in_order_and_all_committed() -> None:
    async with Coordinator() as c:
        await create(c.address, t=4)
        await fill(c.address, "t", range(400))
        async with consumer_of(c.address, "t") as consumer:
            program = Program(consumer, concurrency=2)
            await until(lambda: len(program.finished) == 400)
            assert all(program.offsets(number) == list(range(100)) for number in range(4))
            await consumer.stop()
            await asyncio.wait_for(program.task, 20)
        assert await committed(c.address) == dict.fromkeys(range(4), 100)


async def test_what_is_finished_is_committed_by_the_clock_and_what_is_not_is_not() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(20))
        stuck = asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            if record.partition == 1 and record.offset == 3:
                await stuck.wait()

        async with consumer_of(c.address, "t") as consumer:
            processing = asyncio.create_task(consumer.process(handle))
            async with asyncio.timeout(30):
                while await committed(c.address) != {0: 10, 1: 3}:
                    await asyncio.sleep(0.02)
            await consumer.commit()
            assert await committed(c.address) == {0: 10, 1: 3}
            stuck.set()
            async with asyncio.timeout(30):
                while await committed(c.address) != {0: 10, 1: 10}:
                    await asyncio.sleep(0.02)
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)


async def test_a_member_that_joins_takes_over_what_was_not_finished_and_nothing_else() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=6)
        await fill(c.address, "t", range(3_000))
        programs = [Program(await stack.enter_async_context(consumer_of(c.address, "t")))]
        await until(lambda: len(programs[0].finished) > 100)
        programs.append(Program(await stack.enter_async_context(consumer_of(c.address, "t"))))
        await until(lambda: sum(len(program.finished) for program in programs) == 3_000, 20)
        assert all(program.finished for program in programs)
        await asyncio.sleep(0.05)
        counted = Counter(name for program in programs for name in program.finished)
        assert counted == Counter((partition, offset) for partition in range(6) for offset in range(500))
        for program in programs:
            for partition in range(6):
                assert program.offsets(partition) == sorted(program.offsets(partition))
            await program.end()


async def test_a_slow_handler_is_cancelled_when_its_partition_goes_and_the_record_comes_to_the_next_owner() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(20))
        journal = Journal()
        consumer = consumer_of(c.address, revoke_grace_ms=100)
        consumer.subscribe(["t"], listener=journal)
        await stack.enter_async_context(consumer)
        first = Program(consumer)
        await until(lambda: len(first.finished) == 20)
        first.seconds = 60
        await fill(c.address, "t", range(20, 24))
        await until(lambda: len(first.running) == 2)
        begun = len(first.begun)
        second = Program(await stack.enter_async_context(consumer_of(c.address, "t")))
        await until(lambda: len(second.finished) >= 2)
        gone = {partition for partition, _ in second.finished}
        assert len(gone) == 1
        assert [(partition, 10) for partition in gone] == [name for name in first.cancelled if name[0] in gone]
        assert second.finished[:2] == [(partition, offset) for partition in gone for offset in (10, 11)]
        assert [what for what, _ in journal.events][:2] == ["assigned", "revoked"]
        assert all(partition not in gone for partition, _ in first.begun[begun:])
        await second.end()
        await first.end()
        kept = ({0, 1} - gone).pop()
        assert await committed(c.address) == {gone.pop(): 12, kept: 10}


async def test_a_handler_that_finishes_within_the_grace_is_committed_under_the_old_generation() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(4))
        first = Program(
            await stack.enter_async_context(
                consumer_of(c.address, "t", auto_commit_interval_ms=60_000, revoke_grace_ms=5_000)
            ),
            seconds=0.3,
        )
        await until(lambda: len(first.running) == 2)
        second = Program(await stack.enter_async_context(consumer_of(c.address, "t")))
        await until(lambda: len(first.finished) + len(second.finished) == 4)
        assert first.cancelled == []
        assert Counter(first.finished + second.finished) == Counter((p, o) for p in range(2) for o in range(2))
        await first.end()
        await second.end()


async def test_a_handler_that_raises_ends_process_with_its_record_which_comes_again() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(10), partition=0)
        await fill(c.address, "t", range(1), partition=1)
        handled: list[tuple[int, int]] = []
        broken = [True]

        async def handle(record: ConsumerRecord) -> None:
            if record.partition == 1:
                await asyncio.sleep(0.3)
            elif record.offset == 7 and broken:
                await asyncio.sleep(0.1)
                raise KeyError("price")
            handled.append((record.partition, record.offset))

        async with consumer_of(c.address, "t", auto_commit_interval_ms=60_000) as consumer:
            with pytest.raises(HandlerError, match="offset 7 of t-0") as caught:
                await consumer.process(handle)
            assert isinstance(caught.value.__cause__, KeyError)
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 7)
            assert await committed(c.address) == {0: 7, 1: 1}
            assert (await consumer.getone()).offset == 7, "polls may go on where it failed"
            consumer.seek(T0, 7)
            broken.clear()
            processing = asyncio.create_task(consumer.process(handle))
            await until(lambda: len(handled) == 11)
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)
        assert sorted(handled) == [*((0, offset) for offset in range(10)), (1, 0)]


async def test_errors_can_be_skipped_and_those_of_deserializers_too() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", [0, 1, 66, 3, 4])
        dead: list[tuple[int, object]] = []
        seen: list[int] = []

        def number(value: bytes) -> int:
            if value == b"66":
                raise ValueError("what is 66?")
            return int(value)

        async def handle(record: ConsumerRecord) -> None:
            if record.value == 3:
                raise KeyError(3)
            seen.append(record.value)

        def on_error(record: ConsumerRecord, error: Exception) -> Any:
            dead.append((record.offset, record.value))
            return "skip"

        async with consumer_of(c.address, "t", value_deserializer=number) as consumer:
            with pytest.raises(RecordDeserializationError, match="offset 2 of t-0"):
                await consumer.process(handle)
            processing = asyncio.create_task(consumer.process(handle, on_error=on_error))
            await until(lambda: seen == [0, 1, 4])
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)
        assert dead == [(2, b"66"), (3, 3)]
        assert await committed(c.address) == {0: 5}


async def test_stop_gives_handlers_the_grace_and_process_returns() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(8))
        async with consumer_of(c.address, "t", auto_commit_interval_ms=60_000) as consumer:

            async def handle(record: ConsumerRecord) -> None:
                with pytest.raises(IllegalStateError, match="in a handler"):
                    await consumer.stop()
                with pytest.raises(IllegalStateError, match="in a handler"):
                    await consumer.enforce_rebalance("from inside")
                await program.handle(record)

            program = Program(consumer, seconds=0.2)
            program.task.cancel()
            await asyncio.gather(program.task, return_exceptions=True)
            program.task = asyncio.create_task(consumer.process(handle))
            await until(lambda: len(program.running) == 2)
            await consumer.stop()
            assert program.running == {}
            assert sorted(program.finished) == [(0, 0), (1, 0)]
            await asyncio.wait_for(program.task, 20)
            with pytest.raises(ClosedError):
                await consumer.process(program.handle)
        assert await committed(c.address) == {0: 1, 1: 1}


async def test_cancelling_process_gives_the_grace_and_commits_and_the_consumer_stays_usable() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(4))
        async with consumer_of(c.address, "t", auto_commit_interval_ms=60_000, revoke_grace_ms=500) as consumer:
            program = Program(consumer, seconds=0.1)
            await until(lambda: program.begun == [(0, 0)])
            await program.end()
            assert program.finished == [(0, 0)]
            assert await committed(c.address) == {0: 1}
            program.seconds = 60
            program.task = asyncio.create_task(consumer.process(program.handle))
            await until(lambda: program.begun == [(0, 0), (0, 1)])
            await program.end()
            assert program.cancelled == [(0, 1)]
            assert await committed(c.address) == {0: 1}
            assert (await asyncio.wait_for(consumer.getone(), 20)).offset == 1
            assert consumer.state == "stable"


async def test_a_second_cancellation_waits_for_nothing() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(1))
        async with consumer_of(c.address, "t", revoke_grace_ms=30_000) as consumer:
            program = Program(consumer, seconds=60)
            await until(lambda: program.begun == [(0, 0)])
            program.task.cancel()
            await asyncio.sleep(0.05)
            assert not program.task.done()
            await asyncio.wait_for(program.end(), 15)
            await until(lambda: program.cancelled == [(0, 0)])


async def test_no_other_call_polls_while_process_runs() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        async with consumer_of(c.address, "t") as consumer:
            waiting = asyncio.create_task(consumer.getone())
            await until(lambda: consumer.state == "stable")
            program = Program(consumer)
            with pytest.raises(IllegalStateError, match="process"):
                await asyncio.wait_for(waiting, 20)
            with pytest.raises(IllegalStateError, match="process"):
                await consumer.getmany()
            with pytest.raises(IllegalStateError, match="process"):
                await consumer.process(program.handle)
            await fill(c.address, "t", range(3))
            await until(lambda: len(program.finished) == 3)
            await program.end()
            with pytest.raises(ValueError, match="concurrency is 0"):
                await consumer.process(program.handle, concurrency=0)


@pytest.mark.parametrize("group_id", [None, "g"])
async def test_partitions_assigned_by_hand(group_id: str | None) -> None:
    async with Coordinator() as c:
        await create(c.address, t=3)
        await fill(c.address, "t", range(12))
        async with consumer_of(c.address, group_id=group_id, auto_commit_interval_ms=60_000) as consumer:
            consumer.assign([T0, T1])
            program = Program(consumer, seconds=0.05)
            await until(lambda: len(program.running) == 2)
            consumer.assign([T1, TopicPartition("t", 2)])
            await until(lambda: len(program.offsets(1)) == len(program.offsets(2)) == 4)
            assert program.offsets(0) == [0]
            assert program.cancelled == []
            program.seconds = 0.2
            await fill(c.address, "t", range(12, 15))
            await until(lambda: len(program.running) == 2)
            await consumer.stop()
            assert program.offsets(1) == list(range(5))
            await asyncio.wait_for(program.task, 20)
        assert await committed(c.address) == ({} if group_id is None else {0: 1, 1: 5, 2: 5})


async def test_without_auto_commit_the_handler_commits() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(20))
        handled = []
        async with consumer_of(c.address, "t", enable_auto_commit=False) as consumer:

            async def handle(record: ConsumerRecord) -> None:
                if record.offset < 6:
                    await consumer.commit(record)
                handled.append(record)

            processing = asyncio.create_task(consumer.process(handle))
            await until(lambda: len(handled) == 20)
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)
        assert await committed(c.address) == {0: 6, 1: 6}


async def test_pause_resume_and_seek_in_a_handler() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(20))
        seen: dict[int, list[int]] = {0: [], 1: []}
        async with consumer_of(c.address, "t", fetch_max_wait_ms=25_000) as consumer:

            async def handle(record: ConsumerRecord) -> None:
                offsets = seen[record.partition]
                offsets.append(record.offset)
                if record.partition == 0 and len(offsets) == 3:
                    consumer.pause(T0)
                if record.partition == 1 and len(offsets) == 5:
                    consumer.seek(T1, 2)

            processing = asyncio.create_task(consumer.process(handle))
            await until(lambda: seen[1] == [0, 1, 2, 3, 4, *range(2, 10)])
            await asyncio.sleep(0.05)
            assert seen[0] == [0, 1, 2]
            consumer.resume(T0)
            await until(lambda: seen[0] == list(range(10)), 15)  # the fetch that waits takes longer
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)
        assert await committed(c.address) == {0: 10, 1: 10}


async def test_a_stuck_handler_ends_the_membership_whatever_others_do_and_the_next_call_joins_again() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        stuck = [True]
        finished: list[tuple[int, int]] = []

        async def handle(record: ConsumerRecord) -> None:
            if record.partition == 0 and stuck:
                await asyncio.sleep(60)
            finished.append((record.partition, record.offset))

        async def feed() -> None:
            for number in range(100):
                await fill(c.address, "t", [number], partition=1)
                await asyncio.sleep(0.02)

        async with consumer_of(c.address, "t", max_poll_interval_ms=400) as consumer:
            feeding = asyncio.create_task(feed())
            with pytest.raises(MaxPollIntervalExceededError, match=r"offset 0 of t-0 ran for \d+ ms"):
                await asyncio.wait_for(consumer.process(handle), 20)
            assert len(finished) > 3
            assert (consumer.state, consumer.assignment()) == ("fenced", frozenset())
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            stuck.clear()
            processing = asyncio.create_task(consumer.process(handle))
            await until(lambda: (0, 0) in finished)
            await asyncio.sleep(0.6)
            assert consumer.state == "stable", "with nothing to do, processing is progress"
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)


async def test_a_handler_with_a_lease_may_take_longer_and_only_that_one() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        done: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            if record.partition == 0:
                consumer.lease(record, 2)
                await asyncio.sleep(1)
            done.append(record.partition)
            with pytest.raises(IllegalStateError, match="is not in work at this consumer"):
                consumer.lease(record._replace(offset=7), 1)

        async with consumer_of(c.address, "t", max_poll_interval_ms=400) as consumer:
            processing = asyncio.create_task(consumer.process(handle))
            await until(lambda: sorted(done) == [0, 1])
            assert consumer.state == "stable"
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)


async def test_what_a_poll_would_raise_is_raised() -> None:
    class Clumsy(Journal):
        def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
            raise KeyError("cache")

    async with Coordinator() as c:
        await create(c.address, t=1)
        async with consumer_of(c.address, "t", auto_offset_reset="none") as consumer:
            with pytest.raises(NoOffsetForPartitionError):
                await asyncio.wait_for(consumer.process(lambda record: None), 20)
        async with consumer_of(c.address) as consumer:
            with pytest.raises(IllegalStateError, match="nothing to read"):
                await consumer.process(lambda record: None)
            consumer.subscribe(["t"], listener=Clumsy())
            with pytest.raises(KeyError, match="cache"):
                await asyncio.wait_for(consumer.process(lambda record: None), 20)


async def test_unsubscribing_hands_over_and_subscribing_again_goes_on() -> None:
    async with Coordinator() as c:
        await create(c.address, a=1, b=1)
        await fill(c.address, "a", range(3))
        await fill(c.address, "b", range(3))
        seen: list[tuple[str, int]] = []

        async def handle(record: ConsumerRecord) -> None:
            await asyncio.sleep(0.01)
            seen.append((record.topic, record.offset))

        async with consumer_of(c.address, "a") as consumer:
            processing = asyncio.create_task(consumer.process(handle))
            await until(lambda: len(seen) == 3)
            consumer.unsubscribe()
            await until(lambda: consumer.state == "unjoined")
            consumer.subscribe(["b"])
            await until(lambda: len(seen) == 6)
            consumer.unsubscribe()
            consumer.assign([TopicPartition("a", 0)])
            consumer.seek(TopicPartition("a", 0), 1)
            await until(lambda: len(seen) == 8)
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)
        assert seen == [*(("a", n) for n in range(3)), *(("b", n) for n in range(3)), ("a", 1), ("a", 2)]


_MEMBER = """
import asyncio, sys
from client import Consumer

async def main():
    async with Consumer("t", bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest",
                        session_timeout_ms=1000, heartbeat_interval_ms=100, auto_commit_interval_ms=50) as consumer:
        async def handle(record):
            await asyncio.sleep(0.02)
            print(record.partition, record.offset, flush=True)
        await consumer.process(handle)

asyncio.run(main())
"""


async def test_after_sigkill_the_other_goes_on_at_what_was_committed(tmp_path: Path) -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=4)
        await fill(c.address, "t", range(400))
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", _MEMBER, c.address), stdout=asyncio.subprocess.PIPE
        )
        assert other.stdout is not None
        killed = [await asyncio.wait_for(other.stdout.readline(), 20) for _ in range(4)]
        program = Program(await stack.enter_async_context(consumer_of(c.address, "t")), seconds=0.002)
        await until(lambda: len(program.finished) > 50)
        killed += [await asyncio.wait_for(other.stdout.readline(), 20) for _ in range(20)]
        other.send_signal(signal.SIGKILL)
        killed += (await other.stdout.read()).splitlines(keepends=True)
        assert await other.wait() == -signal.SIGKILL
        theirs = [(int(partition), int(offset)) for partition, offset in (line.split() for line in killed)]
        everything = {(partition, offset) for partition in range(4) for offset in range(100)}
        await until(lambda: set(program.finished) | set(theirs) == everything, 20)
        twice = set(program.finished) & set(theirs)
        assert len(twice) <= 4 * (0.05 / 0.02 + 3), "only what the last commits did not cover comes again"
        assert len(program.finished) == len(set(program.finished))
        await program.end()


async def test_in_a_cooperative_group_the_handlers_of_partitions_that_stay_run_on() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=4)
        await fill(c.address, "t", range(40))
        settings: dict[str, Any] = {"assignors": [CooperativeStickyAssignor], "revoke_grace_ms": 100}
        journal = Journal()
        consumer = consumer_of(c.address, **settings)
        consumer.subscribe(["t"], listener=journal)
        first = Program(await stack.enter_async_context(consumer), seconds=1)
        await until(lambda: len(first.running) == 4)
        second = Program(await stack.enter_async_context(consumer_of(c.address, "t", **settings)))
        await until(lambda: len(second.finished) == 20)
        kept = {tp.partition for tp in consumer.assignment()}
        moved = {0, 1, 2, 3} - kept
        assert len(kept) == len(moved) == 2
        assert first.cancelled == [(partition, 0) for partition in sorted(moved)]
        assert sorted(second.finished) == [(partition, offset) for partition in sorted(moved) for offset in range(10)]
        assert ("revoked", [("t", partition) for partition in sorted(moved)]) in journal.events
        assert set(first.running) == kept, "they were neither cancelled nor begun again"
        first.seconds = 0.001
        await until(lambda: len(first.finished) == 20)
        assert len(first.begun) == 22
        await first.end()
        await second.end()
        assert await committed(c.address) == dict.fromkeys(range(4), 10)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("cooperative", [False, True])
async def test_members_that_come_and_go_at_random_lose_nothing_and_never_work_on_one_partition_together(
    seed: int, cooperative: bool
) -> None:
    random = Random(seed)
    busy: dict[int, Consumer] = {}
    finished: Counter[tuple[int, int]] = Counter()
    settings: dict[str, Any] = {"revoke_grace_ms": 20}
    if cooperative:
        settings["assignors"] = [CooperativeStickyAssignor]

    def handler_of(consumer: Consumer) -> Any:
        async def handle(record: ConsumerRecord) -> None:
            assert record.partition not in busy, "two members work on one partition"
            busy[record.partition] = consumer
            try:
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.005, 0.05]))
            finally:
                del busy[record.partition]
            finished[record.partition, record.offset] += 1

        return handle

    async with Coordinator() as c:
        await create(c.address, t=6)
        await fill(c.address, "t", range(900))
        members: list[tuple[Consumer, asyncio.Task[None]]] = []
        for _ in range(10):
            if len(members) < 2 or (len(members) < 4 and random.random() < 0.5):
                consumer = consumer_of(c.address, "t", **settings)
                await consumer.start()
                task = asyncio.create_task(consumer.process(handler_of(consumer), concurrency=random.choice([None, 2])))
                members.append((consumer, task))
            else:
                consumer, task = members.pop(random.randrange(len(members)))
                if random.random() < 0.5:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                await consumer.stop()
                await asyncio.gather(task, return_exceptions=True)
                assert consumer not in busy.values()
            await asyncio.sleep(random.random() * 0.15)
        everything = {(partition, offset) for partition in range(6) for offset in range(150)}
        await until(lambda: set(finished) == everything, 30)
        assert set(finished.values()) == {1}, "a record that was finished came again"
        for consumer, task in members:
            await consumer.stop()
            await task
        assert await committed(c.address) == dict.fromkeys(range(6), 150)


async def test_what_members_have_done_is_committed_when_all_stop_within_one_rebalance() -> None:
    random = Random(1)
    done: dict[int, int] = {}

    async def handle(record: ConsumerRecord) -> None:
        done[record.partition] = record.offset + 1

    async def stop(member: Consumer) -> None:
        await asyncio.sleep(random.random() * 0.01)
        await member.stop()

    async with Coordinator() as c:
        await create(c.address, t=6)
        for wanted in (dict.fromkeys(range(6), 10 * count) for count in range(1, 9)):
            done.clear()
            members = [consumer_of(c.address, "t", assignors=[CooperativeStickyAssignor]) for _ in range(4)]
            await asyncio.gather(*(member.start() for member in members))
            tasks = [asyncio.create_task(member.process(handle)) for member in members]
            await fill(c.address, "t", range(60))
            await until(partial(operator.eq, done, wanted))
            await asyncio.gather(*map(stop, members), *tasks)
            assert await committed(c.address) == done


async def test_a_stop_ends_in_time_even_when_a_handler_does_not() -> None:
    release = asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(1))
        for by_hand in (False, True):
            release.clear()
            consumer = consumer_of(c.address, revoke_grace_ms=60_000)
            await consumer.start()
            if by_hand:
                consumer.assign([T0])
            else:
                consumer.subscribe(["t"])
            processing = asyncio.create_task(consumer.process(handle))
            await until(lambda: consumer._assignment.states[T0].in_work if consumer.assignment() else False)  # noqa: B023
            async with asyncio.timeout(15):
                await consumer.stop(timeout=1)
            release.set()
            await asyncio.wait_for(processing, 20)
        assert (await committed(c.address)).get(0, 0) == 0
