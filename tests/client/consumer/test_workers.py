"""The workers of ``Consumer.process``: order, exclusivity, bounds, what counts as done, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.consumer.assignment import Assignment
from client.consumer.config import Deserializer
from client.consumer.decoding import BatchDecoder
from client.consumer.error_policy import DeadLetters, OnBatchError, OnError, Retry
from client.consumer.handler_calls import BatchLimits, Handler, HandlerCalls
from client.consumer.partition import FetchedBatch, PartitionState
from client.consumer.workers import Workers
from client.errors import CommitFailedError, HandlerError, RecordDeserializationError
from client.group import Progress
from client.producer.producer import Producer
from client.transport.deadline import Deadline
from client.types.records import ConsumerRecord
from protocol.record_batch import Attributes
from protocol.subscription import TopicPartition
from tests.client.consumer.test_assignment import batch
from tests.simulation.loop import SimLoop


def no_producer() -> Producer:
    raise AssertionError("none of these handlers writes dead letters")


T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


class Bench:
    """Partitions with records 0 to ``count``, their workers, and what ``process`` does around them."""

    def __init__(
        self,
        counts: dict[TopicPartition, int],
        handler: Handler,
        *,
        concurrency: int | None = None,
        on_error: OnError | OnBatchError | None = None,
        deserializer: Deserializer | None = None,
        still_ours: Callable[[PartitionState], bool] = lambda state: not state.frozen,
        by_key: bool = False,
        batch: BatchLimits | None = None,
        pool: Executor | None = None,
    ) -> None:
        self.counts = counts
        self.assignment = Assignment(BatchDecoder(None, deserializer))
        self.news = asyncio.Event()
        calls = HandlerCalls(
            handler,
            on_error,
            self.assignment,
            batch=batch,
            pool=pool,
            dead_letters=DeadLetters(no_producer, None),
            random=Random(1),
            still_ours=still_ours,
        )
        self.full: set[TopicPartition] = set()
        self.workers = Workers(
            calls,
            concurrency,
            self.assignment,
            by_key=by_key,
            make_room=self._fetch,
            on_news=self.news.set,
            more_may_come=lambda state: state.tp not in self.full,
        )
        for tp in counts:
            self.give(tp, 0)
        self.serving = asyncio.create_task(self._serve())

    def give(self, tp: TopicPartition, offset: int) -> PartitionState:
        """The partition is assigned, and all its records from ``offset`` on are there."""
        (state,) = self.assignment.add([tp], "reset")
        state.move_to(offset)
        self.fill(state, offset)
        return state

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.assignment.state(tp).move_to(offset)
        self._fetch()

    def fill(self, state: PartitionState, offset: int) -> None:
        for start in range(offset, self.counts[state.tp], 4):
            state.add(batch(list(range(start, min(start + 4, self.counts[state.tp])))))
        self.news.set()

    def _fetch(self) -> None:
        for state in self.assignment.states.values():
            if not state.buffered_bytes and not state.frozen and state.fetch_offset < self.counts[state.tp]:
                self.fill(state, state.fetch_offset)

    async def revoke(self, *tps: TopicPartition, grace_ms: float = 100) -> dict[TopicPartition, int]:
        """What a rebalance does; returns what would be committed."""
        self.assignment.freeze(tps)
        await self.workers.wind_down(frozenset(tps), Deadline(grace_ms))
        return self.take_away(*tps)

    def take_away(self, *tps: TopicPartition) -> dict[TopicPartition, int]:
        done = {tp: self.assignment.state(tp).done for tp in tps}
        self.assignment.remove(tps, taken_away=True)
        self.news.set()
        return done

    def done(self) -> dict[TopicPartition, int]:
        return {tp: stored.offset for tp, stored in self.workers.finished().items()}

    async def _serve(self) -> None:
        while True:
            self.news.clear()
            if self.workers.failure is not None:
                raise self.workers.failure
            self.workers.sync()
            await self.news.wait()

    async def end(self, grace_ms: float = 100) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        await self.workers.end(Deadline(grace_ms))


def simulated(program: Coroutine[Any, Any, None], seed: int = 0) -> None:
    """Runs ``program`` in virtual time; whatever it leaves undone or unheard is a failure."""
    loop = SimLoop(Random(seed))  # type: ignore[abstract]
    loop.run_until_complete(program)
    assert loop.failures == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


class Worker:
    """A handler that sleeps as long as it is told, and watches what it must never see."""

    def __init__(self, seconds: Callable[[ConsumerRecord], float] = lambda record: 0.01) -> None:
        self.running: dict[TopicPartition, int] = {}
        self.most = 0
        self.begun: list[tuple[int, int]] = []
        self.finished: list[tuple[int, int]] = []
        self.cancelled: list[tuple[int, int]] = []
        self._seconds = seconds

    async def __call__(self, record: ConsumerRecord) -> None:
        tp, name = TopicPartition(record.topic, record.partition), (record.partition, record.offset)
        assert tp not in self.running, "two handlers of one partition"
        self.running[tp] = record.offset
        self.most = max(self.most, len(self.running))
        self.begun.append(name)
        try:
            await asyncio.sleep(self._seconds(record))
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            del self.running[tp]
        self.finished.append(name)

    def offsets(self, partition: int) -> list[int]:
        return [offset for number, offset in self.finished if number == partition]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(1, 3)),
    st.lists(st.sampled_from(["revoke", "lose", "pause", "wait", "seek"]), max_size=8),
)
def test_whatever_happens_records_are_handled_in_order_and_only_finished_ones_are_done(
    seed: int, counts: list[int], concurrency: int | None, events: list[str]
) -> None:
    random = Random(seed)
    tps = {TopicPartition("t", number): count for number, count in enumerate(counts)}

    async def program() -> None:
        worker = Worker(lambda record: random.choice([0, 0, 0.01, 0.05]))
        watch = Worker.__call__

        async def handler(record: ConsumerRecord) -> None:
            for tp, offset in worker.running.items():
                state = bench.assignment.states.get(tp)
                assert state is None or state.done <= offset, "what is in work counts as done"
            await watch(worker, record)

        bench = Bench(tps, handler, concurrency=concurrency)
        for event in events:
            await asyncio.sleep(random.choice([0, 0.005, 0.02]))
            tp = random.choice(list(tps))
            state = bench.assignment.state(tp)
            if event == "revoke":
                done = await bench.revoke(tp, grace_ms=random.choice([0, 10, 100]))
                assert tp not in worker.running
                seen = len([number for number, _ in worker.begun if number == tp.partition])
                await asyncio.sleep(0.02)
                assert len([number for number, _ in worker.begun if number == tp.partition]) == seen
                assert done[tp] == max((offset + 1 for offset in worker.offsets(tp.partition)), default=0)
                bench.give(tp, done[tp])
            elif event == "lose":
                bench.assignment.freeze([tp])
                bench.workers.abandon(frozenset([tp]))
                bench.give(tp, bench.take_away(tp)[tp])
            elif event == "pause":
                state.paused = True
                await asyncio.sleep(0.06)
                seen = len([number for number, _ in worker.begun if number == tp.partition])
                await asyncio.sleep(0.03)
                assert len([number for number, _ in worker.begun if number == tp.partition]) == seen
                state.paused = False
                bench.news.set()
            elif event == "seek":
                bench.seek(tp, state.position)
        await until(lambda: bench.done() == tps)
        await bench.end()
        for tp, count in tps.items():
            assert sorted(set(worker.offsets(tp.partition))) == list(range(count))
            assert worker.offsets(tp.partition) == list(range(count)), "finished twice, or out of order"
        if concurrency is not None:
            assert worker.most <= concurrency

    simulated(program(), seed)


def test_partitions_are_handled_beside_each_other_and_a_slow_one_holds_up_no_other() -> None:
    async def program() -> None:
        worker = Worker(lambda record: 1000 if record.partition == 0 else 0.001)
        bench = Bench({T0: 3, T1: 50, T2: 50}, worker, concurrency=2)
        await until(lambda: bench.done() == {T0: 0, T1: 50, T2: 50})
        assert worker.running == {T0: 0}
        await bench.end()

    simulated(program())


def test_partitions_take_turns_when_there_are_fewer_slots_than_partitions() -> None:
    async def program() -> None:
        worker = Worker()
        bench = Bench({T0: 20, T1: 20, T2: 20}, worker, concurrency=1)
        await until(lambda: len(worker.finished) == 30)
        assert set(Counter(number for number, _ in worker.finished).values()) == {10}
        assert worker.most == 1
        await bench.end()

    simulated(program())


def test_a_handler_that_waits_for_nothing_leaves_turns_to_others() -> None:
    turns: list[float] = []  # in time of this process: others that use the machine do not count

    async def tick() -> None:
        while True:
            turns.append(time.process_time())
            await asyncio.sleep(0)

    async def handler(record: ConsumerRecord) -> None:
        end_s = time.process_time() + 0.002
        while time.process_time() < end_s:
            pass

    async def program() -> None:
        bench = Bench({T0: 30}, handler)
        ticking = asyncio.create_task(tick())
        while bench.done() != {T0: 30}:
            await asyncio.sleep(0)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await bench.end()
        assert max(later - earlier for earlier, later in pairwise(turns)) < 0.03

    asyncio.run(program())


def test_a_revoked_handler_may_finish_in_time_and_is_done_then() -> None:
    async def program() -> None:
        worker = Worker(lambda record: 0.05)
        bench = Bench({T0: 3, T1: 3}, worker)
        await until(lambda: len(worker.running) == 2)
        assert await bench.revoke(T0) == {T0: 1}
        assert worker.offsets(0) == [0]
        assert worker.cancelled == []
        await until(lambda: bench.done() == {T1: 3})
        assert worker.offsets(0) == [0], "handled after it was revoked"
        await bench.end()

    simulated(program())


def test_a_handler_that_is_cancelled_at_revocation_is_not_done_and_may_clean_up() -> None:
    cleaned = []

    async def handler(record: ConsumerRecord) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            cleaned.append(record.offset)

    async def program() -> None:
        bench = Bench({T0: 3}, handler)
        await until(lambda: bench.assignment.state(T0).in_work)
        assert await bench.revoke(T0) == {T0: 0}
        assert cleaned == [0]
        await bench.end()

    simulated(program())


def test_a_second_call_of_the_same_revocation_does_not_cut_the_clean_up_short() -> None:
    async def program() -> None:
        cleaned = []

        async def handler(record: ConsumerRecord) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1)
                cleaned.append(record.offset)

        bench = Bench({T0: 1}, handler)
        await until(lambda: bench.assignment.state(T0).in_work)
        first = asyncio.create_task(bench.revoke(T0, grace_ms=10))
        await asyncio.sleep(0.5)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await bench.revoke(T0, grace_ms=10) == {T0: 0}
        assert cleaned == [0]
        await bench.end()

    simulated(program())


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_handler_that_swallows_its_cancellation_is_not_done(ending: str) -> None:
    async def handler(record: ConsumerRecord) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            if ending == "raises":
                raise KeyError("half done") from None

    async def program() -> None:
        bench = Bench({T0: 3}, handler)
        await until(lambda: bench.assignment.state(T0).in_work)
        assert await bench.revoke(T0) == {T0: 0}
        assert bench.workers.failure is None
        await bench.end()

    simulated(program())


def test_a_handler_that_ignores_its_cancellation_is_not_waited_for_for_ever_and_never_has_company() -> None:
    release: list[bool] = []
    calls: list[int] = []

    async def handler(record: ConsumerRecord) -> None:
        calls.append(record.offset)
        while not release:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    async def program() -> None:
        bench = Bench({T0: 2}, handler)
        await until(lambda: calls == [0])
        began_s = asyncio.get_running_loop().time()
        assert await bench.revoke(T0) == {T0: 0}
        assert asyncio.get_running_loop().time() - began_s < 6
        bench.give(T0, 0)
        await asyncio.sleep(10)
        assert calls == [0]
        release.append(True)
        await until(lambda: bench.done() == {T0: 2})
        assert calls == [0, 0, 1]
        await bench.end()

    simulated(program())


def test_what_was_lost_is_cancelled_at_once_and_the_longest_in_work_is_named() -> None:
    async def program() -> None:
        worker = Worker(lambda record: 1000 if record.offset == 0 else 0.01)
        bench = Bench({T0: 1, T2: 2}, worker)
        loop = asyncio.get_running_loop()
        progress = bench.workers.progress = Progress(loop.time)
        progress.enter()
        await asyncio.sleep(1)
        assert progress.idle_s(loop.time()) == pytest.approx(1, abs=0.1)
        await asyncio.sleep(9)
        tps = frozenset({T0, T2})
        bench.assignment.freeze(tps)
        bench.workers.abandon(tps)
        assert progress.idle_s(loop.time()) == 0
        assert bench.take_away(*tps) == {T0: 0, T2: 0}
        assert bench.workers.overdue is not None
        record, seconds = bench.workers.overdue
        assert (record.partition, record.offset) in {(0, 0), (2, 0)}
        assert seconds == pytest.approx(10, abs=0.1)
        await until(lambda: not worker.running)
        await bench.end()

    simulated(program())


def test_progress_is_that_handlers_finish_and_the_oldest_counts() -> None:
    now = [0.0]
    progress = Progress(lambda: now[0])
    progress.enter()
    for time_s, begins, ends, idle_s in [
        (1, "a", None, 0),
        (2, "b", None, 1),
        (3, "c", "a", 1),
        (4, "b", None, 1),  # tried again: its time counts anew
        (5, None, "c", 1),
        (6, None, "b", 0),
    ]:
        now[0] = time_s
        if ends:
            progress.end(ends)
        if begins:
            progress.begin(begins)
        assert progress.idle_s(time_s) == idle_s


def test_a_lease_moves_the_deadline_of_its_own_work_later_and_never_earlier() -> None:
    now = [0.0]
    progress = Progress(lambda: now[0], 10)
    progress.enter()

    def deadline() -> float:
        """When a watch that looks every second calls the program stuck."""
        return next(second for second in range(100) if progress.idle_s(second) >= 10)

    progress.begin("slow")
    now[0] = 2
    progress.begin("other")
    assert deadline() == 10
    progress.lease(30, "slow")
    assert deadline() == 12, "the other is watched as before"
    progress.lease(5, "other")
    assert deadline() == 12
    progress.lease(30, "unknown work")
    assert progress.end("other") == 0
    assert deadline() == 32
    now[0] = 20
    progress.lease(25, "slow")
    assert deadline() == 45
    progress.lease(1, "slow")
    assert deadline() == 45
    progress.begin("slow")  # tried again: the lease was for the attempt before
    assert deadline() == 30
    assert progress.end("slow") == 0
    progress.leave()
    progress.lease(40)
    progress.touch()
    assert deadline() == 60
    progress.enter()
    progress.leave()
    assert deadline() == 30, "the next poll ends it"


async def failing(bench: Bench) -> BaseException:
    """How ``process`` ends when a handler fails."""
    async with asyncio.timeout(60):
        (error,) = await asyncio.gather(bench.serving, return_exceptions=True)
    assert isinstance(error, BaseException)
    return error


def test_a_handler_that_raises_ends_all_and_the_others_may_finish() -> None:
    async def program() -> None:
        finished = []

        async def handler(record: ConsumerRecord) -> None:
            await asyncio.sleep(0.01)
            if record.partition == 0 and record.offset == 1:
                raise KeyError("price")
            await asyncio.sleep(0.03)
            finished.append((record.partition, record.offset))

        bench = Bench({T0: 5, T1: 5}, handler)
        error = await failing(bench)
        await bench.end()
        assert isinstance(error, HandlerError)
        assert (error.topic, error.partition, error.offset) == ("t", 0, 1)
        assert "KeyError('price')" in str(error)
        assert "offset 1 of t-0" in str(error)
        assert isinstance(error.__cause__, KeyError)
        assert sorted(finished) == [(0, 0), (1, 0), (1, 1)]
        assert bench.done() == {T0: 1, T1: 2}
        assert bench.assignment.state(T0).position == 1, "the record that failed comes first next time"

    simulated(program())


def test_a_cancellation_that_comes_out_of_the_handler_itself_is_its_error() -> None:
    async def handler(record: ConsumerRecord) -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        task.cancel()
        await task

    async def program() -> None:
        bench = Bench({T0: 1}, handler)
        error = await failing(bench)
        assert isinstance(error, HandlerError)
        assert "CancelledError" in str(error)
        await bench.end()

    simulated(program())


async def _decide_later(verdict: Any) -> Any:
    await asyncio.sleep(0.01)
    return verdict


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize(
    ("verdict", "handled", "done", "raised"),
    [
        ("skip", [0, 1, 2], 3, None),
        ("retry", [0, 1, 1, 2], 3, None),
        ("raise", [0, 1], 1, "KeyError"),
        ("whatever", [0, 1], 1, "'whatever'; it can be 'raise', 'skip' or 'retry'"),
        (None, [0, 1], 1, "on_error returned None"),
    ],
)
def test_on_error_decides(coroutine: bool, verdict: Any, handled: list[int], done: int, raised: str | None) -> None:
    calls: list[int] = []
    asked: list[tuple[int, str]] = []

    async def handler(record: ConsumerRecord) -> None:
        calls.append(record.offset)
        if calls == [0, 1]:
            raise KeyError("once")

    def on_error(record: ConsumerRecord, error: Exception) -> Any:
        asked.append((record.offset, str(error)))
        return _decide_later(verdict) if coroutine else verdict

    async def program() -> None:
        bench = Bench({T0: 3}, handler, on_error=on_error)
        if raised is None:
            await until(lambda: bench.done() == {T0: done})
        else:
            error = await failing(bench)
            assert isinstance(error, HandlerError)
            assert raised in str(error)
            assert error.offset == 1
        await bench.end()
        assert calls == handled
        assert asked == [(1, "'once'")]
        assert bench.done() == {T0: done}

    simulated(program())


def test_an_on_error_that_fails_ends_the_process_and_both_errors_are_told() -> None:
    async def handler(record: ConsumerRecord) -> None:
        raise KeyError("first")

    def on_error(record: ConsumerRecord, error: Exception) -> Any:
        raise OSError("no dead letters")

    async def program() -> None:
        bench = Bench({T0: 3}, handler, on_error=on_error)
        error = await failing(bench)
        assert isinstance(error, HandlerError)
        assert "the on_error callback failed" in str(error)
        assert isinstance(error.__cause__, OSError)
        assert isinstance(error.__cause__.__context__, KeyError)
        await bench.end()
        assert bench.done() == {T0: 0}

    simulated(program())


def test_a_retry_that_never_succeeds_ends_with_its_partition() -> None:
    async def handler(record: ConsumerRecord) -> None:
        raise OSError("still down")

    async def program() -> None:
        bench = Bench({T0: 1, T1: 0}, handler, on_error=lambda record, error: "retry")
        await asyncio.sleep(0.01)
        assert await bench.revoke(T0) == {T0: 0}
        await bench.end()

    simulated(program())


def picky(value: bytes) -> int:
    number = int(value)
    if number in (2, 3, 7):
        raise ValueError(f"{number} is odd")
    return number


def test_records_that_a_deserializer_does_not_take_go_to_on_error_with_their_bytes() -> None:
    seen: list[object] = []
    refused: list[tuple[object, str]] = []

    async def handler(record: ConsumerRecord) -> None:
        seen.append(record.value)

    def on_error(record: ConsumerRecord, error: Exception) -> Any:
        assert isinstance(error, RecordDeserializationError)
        assert error.offset == record.offset
        refused.append((record.value, str(error.__cause__)))
        return "skip"

    async def program() -> None:
        bench = Bench({T0: 8}, handler, on_error=on_error, deserializer=picky)
        await until(lambda: bench.done() == {T0: 8})
        assert seen == [0, 1, 4, 5, 6]
        assert refused == [(b"2", "2 is odd"), (b"3", "3 is odd"), (b"7", "7 is odd")]
        await bench.end()

    simulated(program())


def test_a_retry_decodes_anew() -> None:
    attempts = Counter[int]()

    def flaky(value: bytes) -> int:
        number = int(value)
        attempts[number] += 1
        if number == 2 and attempts[number] < 3:
            raise OSError("the schema registry is away")
        return number

    seen: list[object] = []

    async def program() -> None:
        bench = Bench(
            {T0: 8}, lambda record: seen.append(record.value), on_error=lambda *_: "retry", deserializer=flaky
        )
        await until(lambda: bench.done() == {T0: 8})
        assert seen == list(range(8))
        await bench.end()

    simulated(program())


def test_without_on_error_the_deserializer_s_error_is_raised_and_nothing_is_passed_over() -> None:
    async def handler(record: ConsumerRecord) -> None:
        await asyncio.sleep(0)

    async def program() -> None:
        bench = Bench({T0: 8}, handler, deserializer=picky)
        error = await failing(bench)
        await bench.end()
        assert isinstance(error, RecordDeserializationError)
        assert error.offset == 2
        assert bench.done() == {T0: 2}
        assert bench.assignment.state(T0).position == 2

    simulated(program())


@pytest.mark.parametrize("target", [1, 2, 3, 7, 8])
def test_a_seek_in_the_handler_counts_when_the_handler_has_returned(target: int) -> None:
    calls: list[int] = []
    during: list[int] = []

    async def program() -> None:
        async def handler(record: ConsumerRecord) -> None:
            calls.append(record.offset)
            if calls == [0, 1, 2]:
                bench.seek(T0, target)
                await asyncio.sleep(0.01)
                during.append(bench.done()[T0])

        bench = Bench({T0: 8}, handler)
        await until(lambda: bench.done() == {T0: 8})
        assert calls == [0, 1, 2, *range(target, 8)]
        assert during == [2], "the record in work must not be covered before it is finished"
        await bench.end()

    simulated(program())


def test_a_handler_that_seeks_and_fails_leaves_its_record_undone() -> None:
    async def program() -> None:
        async def handler(record: ConsumerRecord) -> None:
            bench.seek(T0, 5)
            raise KeyError("after the seek")

        bench = Bench({T0: 8}, handler)
        await failing(bench)
        await bench.end()
        assert bench.done() == {T0: 0}
        assert bench.assignment.state(T0).position == 5

    simulated(program())


def test_a_record_committed_by_name_is_done_whatever_becomes_of_its_handler() -> None:
    async def program() -> None:
        async def handler(record: ConsumerRecord) -> None:
            if record.offset == 1:
                bench.assignment.settle(T0, 2)
                raise KeyError("after the commit")

        bench = Bench({T0: 3}, handler)
        await failing(bench)
        await bench.end()
        assert bench.done() == {T0: 2}
        assert bench.assignment.state(T0).position == 2

    simulated(program())


def test_a_commit_refused_because_the_partition_goes_is_no_failure_of_the_handler() -> None:
    ours = [False]
    calls: list[int] = []

    async def handler(record: ConsumerRecord) -> None:
        calls.append(record.offset)
        if len(calls) == 1:
            raise CommitFailedError("the generation ended")
        if len(calls) == 4:
            ours[0] = True
            raise CommitFailedError("for a reason of its own")

    async def program() -> None:
        bench = Bench({T0: 3}, handler, still_ours=lambda state: ours[0])
        error = await failing(bench)
        await bench.end()
        assert calls == [0, 0, 1, 2], "it was given back and came again"
        assert isinstance(error, HandlerError)
        assert isinstance(error.__cause__, CommitFailedError)

    simulated(program())


def test_plain_functions_handle_too_and_holes_at_the_end_are_done() -> None:
    seen: list[int] = []

    async def program() -> None:
        bench = Bench({T0: 0}, lambda record: seen.append(record.offset))
        state = bench.assignment.state(T0)
        state.add(batch([0, 2]))
        state.add(batch([3, 9]))
        bench.news.set()
        await until(lambda: bench.done() == {T0: 10})
        assert seen == [0, 2, 3, 9]
        await bench.end()

    simulated(program())


def test_the_end_leaves_no_task_behind_even_when_it_is_cancelled_in_turn() -> None:
    async def program() -> None:
        worker = Worker(lambda record: 1000)
        bench = Bench({T0: 1, T1: 1, T2: 0}, worker)
        await until(lambda: len(worker.running) == 2)
        ending = asyncio.create_task(bench.end(grace_ms=60_000))
        await asyncio.sleep(0.01)
        bench.workers.cancel()
        await ending
        assert worker.running == {}
        assert sorted(worker.cancelled) == [(0, 0), (1, 0)]
        assert bench.done() == {T0: 0, T1: 0, T2: 0}
        handlers = [task for task in asyncio.all_tasks() if "handler" in task.get_name()]
        assert handlers == []

    simulated(program())


def test_a_worker_that_waits_for_a_slot_begins_nothing_after_a_failure_nor_while_paused() -> None:
    async def program() -> None:
        begun: list[int] = []

        async def handler(record: ConsumerRecord) -> None:
            begun.append(record.partition)
            await asyncio.sleep(0.01)
            if len(begun) == 2:
                raise KeyError("second")

        bench = Bench({T0: 5, T1: 5, T2: 5}, handler, concurrency=1)
        await until(lambda: len(begun) == 1)
        bench.assignment.state(TopicPartition("t", next(n for n in range(3) if n not in begun))).paused = True
        paused = {tp.partition for tp, state in bench.assignment.states.items() if state.paused}
        await failing(bench)
        await bench.end()
        assert len(begun) == 2
        assert not paused & set(begun)

    for seed in range(5):
        simulated(program(), seed)


def test_a_retry_gives_up_at_once_when_its_partition_goes() -> None:
    async def handler(record: ConsumerRecord) -> None:
        await asyncio.sleep(0.01)
        raise OSError("still down")

    async def program() -> None:
        bench = Bench({T0: 1}, handler, on_error=lambda record, error: "retry")
        await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()
        assert await bench.revoke(T0, grace_ms=5_000) == {T0: 0}
        assert asyncio.get_running_loop().time() - began_s < 0.1
        await bench.end()

    simulated(program())


def test_a_retry_that_waits_for_its_turn_gives_up_at_once_when_its_partition_goes() -> None:
    """Its pause is over, and another partition's handler, which stays, has the only place."""

    failures = 0

    async def handler(record: ConsumerRecord) -> None:
        nonlocal failures
        if record.partition == 0:
            failures += 1
            raise OSError("still down")
        await asyncio.sleep(60 if failures else 0)

    async def program() -> None:
        bench = Bench({T0: 1, T1: 100}, handler, concurrency=1, on_error=Retry(initial_ms=10, jitter=0))
        await until(lambda: failures == 1)
        await asyncio.sleep(1)
        assert failures == 1
        began_s = asyncio.get_running_loop().time()
        assert await bench.revoke(T0, grace_ms=5_000) == {T0: 0}
        assert asyncio.get_running_loop().time() - began_s < 0.1
        await bench.end()

    simulated(program())


def test_the_record_of_a_handler_that_is_not_waited_for_any_longer_comes_again_and_is_never_done() -> None:
    release = asyncio.Event()

    async def handler(record: ConsumerRecord) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def program() -> None:
        bench = Bench({T0: 2}, handler)
        state = bench.assignment.state(T0)
        await until(lambda: state.in_work)
        await bench.end(grace_ms=10)
        assert (state.position, state.done, state.in_work) == (0, 0, False)
        state.move_to(1)
        release.set()
        await asyncio.sleep(0.01)
        assert (state.position, state.done) == (1, 1), "its end comes too late to change anything"

    simulated(program())


def test_batches_without_records_are_passed_over_and_done() -> None:
    async def program() -> None:
        bench = Bench({T0: 0}, Worker())
        buffer, position, header = batch([0, 1, 2])
        control = FetchedBatch(buffer, position, replace(header, attributes=Attributes.CONTROL))
        bench.assignment.state(T0).add(control)
        bench.news.set()
        await until(lambda: bench.done() == {T0: 3})
        await bench.end()

    simulated(program())


def test_a_partition_that_vanishes_without_a_rebalance_lets_its_handler_finish_and_ends_its_task() -> None:
    def tasks() -> list[str]:
        return sorted(task.get_name() for task in asyncio.all_tasks() if "handler" in task.get_name())

    async def program() -> None:
        worker = Worker(lambda record: 0.05)
        bench = Bench({T0: 3, T1: 0}, worker)
        await asyncio.sleep(0.01)
        assert tasks() == ["cohort-handler-t-0", "cohort-handler-t-1"]
        bench.take_away(T0, T1)
        await asyncio.sleep(0.01)
        assert tasks() == ["cohort-handler-t-0"]
        await asyncio.sleep(0.1)
        assert tasks() == []
        assert worker.finished == [(0, 0)]
        assert worker.cancelled == []
        await bench.end()

    simulated(program())


def test_an_earlier_assignment_that_is_given_up_late_does_not_touch_the_one_after_it() -> None:
    async def program() -> None:
        worker = Worker(lambda record: 0.05)
        bench = Bench({T0: 3}, worker)
        await until(lambda: len(worker.running) == 1)
        bench.take_away(T0)
        bench.give(T0, 0)
        await until(lambda: worker.begun == [(0, 0), (0, 0)])
        tps = frozenset({T0})
        await bench.workers.wind_down(tps, Deadline(1_000))
        assert worker.running == {T0: 0}
        bench.workers.abandon(tps)
        await until(lambda: bench.done() == {T0: 3})
        assert worker.cancelled == []
        await bench.end()

    simulated(program())
