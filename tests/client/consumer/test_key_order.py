"""``process(order="key")``: order by key, commits without gaps, bounds, and how it ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.consumer import handler_task
from client.consumer.error_policy import Retry
from client.consumer.partition import FetchedBatch, PartitionState
from client.errors import HandlerError
from client.transport.deadline import Deadline
from client.types.records import ConsumerRecord
from protocol.record_batch import encode_batch, iter_batches
from protocol.subscription import TopicPartition
from tests.client.consumer.test_workers import T0, T1, Bench, simulated, until


def keyed_batch(keys: list[bytes | None], start: int) -> FetchedBatch:
    """Records from ``start`` on with these keys; values say their offsets."""
    offsets = list(range(start, start + len(keys)))
    stored = encode_batch([b"%d" % offset for offset in offsets], keys, timestamps_ms=offsets, offsets=offsets)
    (_, header), *_ = iter_batches(stored)
    header = replace(header, base_offset=start, leader_epoch=3)
    return FetchedBatch(header.pack() + stored[80:], 0, header)


class KeyBench(Bench):
    """As ``Bench``, with keys: ``keys`` by partition, a record each."""

    def __init__(self, keys: dict[TopicPartition, list[bytes | None]], handler: Any, **options: Any) -> None:
        self.keys = keys
        super().__init__({tp: len(each) for tp, each in keys.items()}, handler, by_key=True, **options)

    def fill(self, state: PartitionState, offset: int) -> None:
        keys = self.keys[state.tp]
        for start in range(offset, len(keys), 4):
            state.add(keyed_batch(keys[start : start + 4], start))
        self.news.set()

    def handler_tasks(self, tp: TopicPartition) -> list[asyncio.Task[None]]:
        """Those of the partition, as a program finds them."""
        name = f"cohort-handler-{tp.topic}-{tp.partition}"
        found = [task for task in asyncio.all_tasks() if f"{task.get_name()}-".startswith(f"{name}-")]
        return sorted(found, key=asyncio.Task.get_name)


class KeyedHandler:
    """A handler that takes some time; no two of a key may run at once, and none begin before those of its key before it."""

    def __init__(self, seconds: Any) -> None:
        self.running: dict[TopicPartition, set[int]] = defaultdict(set)
        self.finished: dict[TopicPartition, list[int]] = defaultdict(list)
        self.most = 0
        self._seconds = seconds
        self._keys: dict[tuple[TopicPartition, bytes], list[int]] = defaultdict(list)

    def knows(self, keys: dict[TopicPartition, list[bytes | None]]) -> None:
        for tp, each in keys.items():
            for offset, key in enumerate(each):
                if key is not None:
                    self._keys[tp, key].append(offset)

    async def __call__(self, record: ConsumerRecord) -> None:
        tp = TopicPartition(record.topic, record.partition)
        same = self._keys[tp, record.key] if record.key is not None else [record.offset]
        assert not self.running[tp].intersection(same), "two handlers of one key"
        before = {offset for offset in same if offset < record.offset}
        assert before <= set(self.finished[tp]), "it begins before those of its key before it are done"
        self.running[tp].add(record.offset)
        self.most = max(self.most, sum(map(len, self.running.values())))
        try:
            await asyncio.sleep(self._seconds(record))
        finally:
            self.running[tp].remove(record.offset)
        self.finished[tp].append(record.offset)


KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=14)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(KEYS, min_size=1, max_size=3),
    st.integers(1, 6),
    st.lists(
        st.sampled_from(
            ["revoke", "revoke, cancel", "lose", "pause", "wait", "seek", "restart", "cancel", "cancel all"]
        ),
        max_size=10,
    ),
)
def test_whatever_happens_each_key_is_in_order_and_nothing_unfinished_is_committed(
    seed: int, keys: list[list[bytes | None]], concurrency: int, events: list[str]
) -> None:
    random = Random(seed)
    by_partition = {TopicPartition("t", number): each for number, each in enumerate(keys)}

    async def program() -> None:
        handler = KeyedHandler(lambda record: random.choice([0, 0, 0.01, 0.05]))
        handler.knows(by_partition)
        bench = KeyBench(by_partition, handler, concurrency=concurrency)
        for event in events:
            await asyncio.sleep(random.choice([0, 0.005, 0.02]))
            tp = random.choice(list(by_partition))
            state = bench.assignment.state(tp)
            if event in ("revoke", "revoke, cancel"):
                revocation = asyncio.create_task(bench.revoke(tp, grace_ms=random.choice([0, 10, 100])))
                await asyncio.sleep(random.choice([0, 0.005]))
                for task in bench.handler_tasks(tp) if event == "revoke, cancel" else ():
                    task.cancel()
                done = (await revocation)[tp]
                assert not handler.running[tp]
                assert set(range(done)) <= set(handler.finished[tp]), "what is not finished was committed"
                bench.give(tp, done)
            elif event == "lose":
                bench.assignment.freeze([tp])
                bench.workers.abandon(frozenset([tp]))
                done = bench.take_away(tp)[tp]
                assert set(range(done)) <= set(handler.finished[tp])
                bench.give(tp, done)
            elif event == "pause":
                state.paused = True
                await asyncio.sleep(5)
                assert not handler.running[tp], "what was taken before is handled to its end, and no more is taken"
                state.paused = False
                bench.news.set()
            elif event == "seek":
                bench.seek(tp, state.done)
            elif event in ("cancel", "cancel all"):
                tasks = bench.handler_tasks(tp)
                for task in tasks if event == "cancel all" else tasks[-1:]:
                    task.cancel()
            elif event == "restart":
                await bench.end(grace_ms=random.choice([0, 10, 100]))
                assert not any(handler.running.values())
                for each in bench.assignment.states.values():
                    assert each.position == each.done, "what is not finished comes again"
                    assert not each.in_work
                starts = {name: bench.assignment.state(name).position for name in by_partition}
                bench = KeyBench(by_partition, handler, concurrency=concurrency)
                for name, start in starts.items():
                    bench.seek(name, start)
        counts = {tp: len(each) for tp, each in by_partition.items()}
        await until(lambda: bench.done() == counts)
        await bench.end()
        for tp, count in counts.items():
            assert sorted(set(handler.finished[tp])) == list(range(count)), "a record was lost"
        assert handler.most <= concurrency

    simulated(program(), seed)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=14),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=5),
    st.lists(st.sampled_from(["revoke", "restart", "wait"]), max_size=3),
)
def test_after_a_seek_in_a_handler_all_behind_it_comes_anew_and_once(
    seed: int, keys: list[bytes | None], concurrency: int, plan: list[tuple[int, int]], events: list[str]
) -> None:
    """``plan``: the handlers of which offsets seek, and where to. What a lane had taken and not begun before a seek was not
    handed out, so it comes once in all; what was begun comes again."""
    random = Random(seed)
    seeks = [(offset, min(target, len(keys))) for offset, target in plan]

    async def program() -> None:
        needed = set(range(len(keys)))
        begun: list[int] = []  # since the last seek
        running: set[bytes | int] = set()
        moved = floor = 0

        async def handler(record: ConsumerRecord) -> None:
            nonlocal moved, floor
            name = record.offset if record.key is None else record.key
            assert name not in running, "two handlers of one key"
            assert record.offset >= floor, "the seek has passed over it"
            assert record.offset not in begun, "it comes once, unless it was not done"
            running.add(name)
            begun.append(record.offset)
            began_after, soughts = moved, [each for each in seeks if each[0] == record.offset]
            try:
                await asyncio.sleep(random.choice([0, 0, 0.01, 0.05]))
                if soughts:
                    seeks.remove(soughts[0])
                    moved, floor = moved + 1, soughts[0][1]
                    needed.clear()
                    needed.update(range(floor, len(keys)))
                    begun.clear()
                    bench.seek(T0, floor)
                    await asyncio.sleep(random.choice([0, 0, 0.01, 0.05]))
                elif began_after == moved:
                    needed.discard(record.offset)
            except asyncio.CancelledError:
                if began_after == moved and record.offset in begun:
                    begun.remove(record.offset)
                raise
            finally:
                running.remove(name)

        bench = KeyBench({T0: keys}, handler, concurrency=concurrency)
        for event in events:
            await asyncio.sleep(random.choice([0, 0.005, 0.02]))
            done = bench.assignment.state(T0).done
            if event == "revoke":
                done = (await bench.revoke(T0, grace_ms=random.choice([0, 10, 100])))[T0]
            elif event == "restart":
                await bench.end(grace_ms=random.choice([0, 10, 100]))
                done = bench.assignment.state(T0).position
                bench = KeyBench({T0: keys}, handler, concurrency=concurrency)
            if event != "wait":
                assert not running
                assert not needed or done <= min(needed), "what a seek brings again was committed"
                begun, floor = [], 0
                bench.seek(T0, done) if event == "restart" else bench.give(T0, done)
        await until(lambda: not needed and not running)
        await asyncio.sleep(1)
        assert not bench.serving.done()
        assert not running
        assert begun or bench.assignment.state(T0).done == len(keys), "what is done is committed"
        await bench.end()

    simulated(program(), seed)


def test_a_slow_key_holds_up_its_own_records_only_and_what_is_committed() -> None:
    async def program() -> None:
        handler = KeyedHandler(lambda record: 10.0 if record.offset == 1 else 0.001)
        keys = {T0: [b"a", b"slow", b"a", b"slow", b"b", None, b"a"]}
        handler.knows(keys)
        bench = KeyBench(keys, handler, concurrency=3)
        await until(lambda: len(handler.finished[T0]) == 5)
        assert sorted(handler.finished[T0]) == [0, 2, 4, 5, 6]
        assert bench.done() == {T0: 1}, "only what has no gap below"
        await until(lambda: bench.done() == {T0: 7})
        await bench.end()

    simulated(program())


def test_no_more_is_taken_than_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_task, "_KEYED_RECORDS", 8)

    async def program() -> None:
        stuck = asyncio.Event()
        seen: list[int] = []

        async def handler(record: ConsumerRecord) -> None:
            seen.append(record.offset)
            if record.offset == 2:
                await stuck.wait()

        bench = KeyBench({T0: [None] * 40}, handler, concurrency=4)
        await until(lambda: len(seen) >= 10)
        await asyncio.sleep(1)
        assert sorted(seen) == list(range(10)), "two are done without a gap, and eight from the first that is not"
        stuck.set()
        await until(lambda: bench.done() == {T0: 40})
        await bench.end()

    simulated(program())


def test_bytes_that_wait_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_task, "_KEYED_BYTES", 100)

    async def program() -> None:
        stuck, seen = asyncio.Event(), 0

        async def handler(record: ConsumerRecord) -> None:
            nonlocal seen
            seen += 1
            await stuck.wait()

        bench = KeyBench({T0: [b"a"] * 40}, handler, concurrency=4)
        await until(lambda: seen == 1)
        await asyncio.sleep(1)
        worker: Any = bench.workers._workers[T0]
        assert 100 <= worker.held_bytes < 200, "the record that passes the bound is the last"
        stuck.set()
        await until(lambda: bench.done() == {T0: 40})
        assert worker.held_bytes == 0
        await bench.end()

    simulated(program())


def test_a_retry_holds_up_its_key_only() -> None:
    async def program() -> None:
        attempts: list[int] = []
        seen: list[int] = []

        def handler(record: ConsumerRecord) -> None:
            if record.offset == 0 and len(attempts) < 3:
                attempts.append(record.offset)
                raise OSError("not yet")
            seen.append(record.offset)

        bench = KeyBench({T0: [b"a", b"b", b"a", b"b"]}, handler, concurrency=1, on_error=Retry(initial_ms=1000))
        await until(lambda: seen == [1, 3])
        assert bench.done() == {T0: 0}
        await until(lambda: bench.done() == {T0: 4})
        assert (len(attempts), seen) == (3, [1, 3, 0, 2])
        await bench.end()

    simulated(program())


def test_a_retry_of_what_cannot_be_decoded_decodes_it_anew_and_hands_nothing_out_twice() -> None:
    async def program() -> None:
        attempts = 0
        seen: list[tuple[int, int]] = []

        def decode(value: bytes) -> int:
            nonlocal attempts
            if value == b"1":
                attempts += 1
                if attempts < 3:
                    raise LookupError("the schema is not there yet")
            return int(value)

        async def handler(record: ConsumerRecord) -> None:
            seen.append((record.offset, record.value))

        bench = KeyBench(
            {T0: [b"a", b"a", b"b", b"a"]}, handler, concurrency=2, on_error=Retry(initial_ms=500), deserializer=decode
        )
        await until(lambda: bench.done() == {T0: 4})
        assert sorted(seen) == [(0, 0), (1, 1), (2, 2), (3, 3)]
        assert seen.index((1, 1)) < seen.index((3, 3))
        assert attempts == 3
        await bench.end()

    simulated(program())


def test_a_failure_ends_the_process_and_the_first_record_that_is_not_done_comes_next() -> None:
    async def program() -> None:
        async def handler(record: ConsumerRecord) -> None:
            if record.offset == 1:
                await asyncio.sleep(0.05)
                raise LookupError("not on the menu")
            await asyncio.sleep(0.01)

        bench = KeyBench({T0: [b"a", b"b", b"c", b"b"]}, handler, concurrency=4)
        with pytest.raises(HandlerError, match="offset 1 of t-0"):
            await bench.serving
        await bench.workers.end(Deadline(1_000))
        state = bench.assignment.state(T0)
        assert (state.done, state.position, state.in_work) == (1, 1, False)

    simulated(program())


def test_handlers_of_keys_are_cancelled_after_the_grace_and_their_records_come_again() -> None:
    async def program() -> None:
        cancelled: list[int] = []

        async def handler(record: ConsumerRecord) -> None:
            try:
                await asyncio.sleep(0.01 if record.offset in (0, 2) else 60)
            except asyncio.CancelledError:
                cancelled.append(record.offset)
                raise

        bench = KeyBench({T0: [b"a", b"b", b"c", b"d", b"b"], T1: [b"a"]}, handler, concurrency=9)
        await until(lambda: bench.done() == {T0: 1, T1: 1})
        assert await bench.revoke(T0, grace_ms=50) == {T0: 1}
        assert sorted(cancelled) == [1, 3], "the second of key b was not begun"
        await bench.end()

    simulated(program())


def test_what_the_program_cancels_comes_again_and_is_committed_then() -> None:
    async def program() -> None:
        begun: list[int] = []
        finished: list[int] = []

        async def handler(record: ConsumerRecord) -> None:
            begun.append(record.offset)
            if record.offset == 1 and begun.count(1) < 3:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.sleep(0.01)
            finished.append(record.offset)

        bench = KeyBench({T0: [b"a", b"b", b"c", b"b", b"b"]}, handler, concurrency=9)
        await until(lambda: bench.done() == {T0: 5})
        assert begun.count(1) == 3, "as without keys, until its handler has returned"
        assert sorted(finished) == [0, 1, 2, 3, 4], "those of other keys come once"
        assert [offset for offset in finished if offset in (1, 3, 4)] == [1, 3, 4]
        worker: Any = bench.workers._workers[T0]
        assert (worker.held_bytes, worker.lanes) == (0, {})
        await bench.end()

    simulated(program())


def test_a_revocation_waits_for_handlers_of_keys_whatever_task_the_program_cancels_meanwhile() -> None:
    async def program() -> None:
        finished: list[int] = []

        async def handler(record: ConsumerRecord) -> None:
            await asyncio.sleep(1)
            finished.append(record.offset)

        bench = KeyBench({T0: [b"a", b"b"]}, handler, concurrency=2)
        await asyncio.sleep(0.1)
        revocation = asyncio.create_task(bench.revoke(T0, grace_ms=60_000))
        await asyncio.sleep(0.1)
        dispatcher, *handlers = bench.handler_tasks(T0)
        assert len(handlers) == 2
        dispatcher.cancel()
        assert await revocation == {T0: 2}
        assert sorted(finished) == [0, 1]
        await bench.end()

    simulated(program())


@pytest.mark.parametrize("when", ["before it began", "while it waits for its turn", "while it waits to try again"])
def test_a_lane_that_is_cancelled_goes_on_whatever_it_waits_for(when: str) -> None:
    async def program() -> None:
        finished: list[int] = []
        failed = False

        async def handler(record: ConsumerRecord) -> None:
            nonlocal failed
            if record.offset == 1 and not failed and when == "while it waits to try again":
                failed = True
                raise OSError("not yet")
            await asyncio.sleep(1)
            finished.append(record.offset)

        keys: list[bytes | None] = [b"a", b"b", b"a", b"b"]
        concurrency = 1 if when == "while it waits for its turn" else 2
        bench = KeyBench({T0: keys}, handler, concurrency=concurrency, on_error=Retry(initial_ms=5_000))
        if when != "before it began":
            await asyncio.sleep(0.5)
        else:
            while len(bench.handler_tasks(T0)) < 3:
                await asyncio.sleep(0)
        cancelled = [task for task in bench.handler_tasks(T0) if task.get_name().endswith("b'b'")]
        assert len(cancelled) == 1
        cancelled[0].cancel()
        await until(lambda: bench.done() == {T0: 4})
        assert [offset for offset in finished if offset % 2] == [1, 3]
        assert sorted(finished) == [0, 1, 2, 3]
        await bench.end()

    simulated(program())


def test_a_lease_is_for_the_record_that_it_names() -> None:
    async def program() -> None:
        async def handler(record: ConsumerRecord) -> None:
            await asyncio.sleep(1)

        bench = KeyBench({T0: [b"a", b"b", b"a"]}, handler, concurrency=9)
        await until(lambda: T0 in bench.workers._workers and len(bench.workers._workers[T0].tasks()) == 2)
        first, second, third = (ConsumerRecord("t", 0, offset, 0, None, None) for offset in range(3))
        await asyncio.sleep(0.01)
        assert bench.workers.lease(first, 5)
        assert bench.workers.lease(second, 5)
        assert not bench.workers.lease(third, 5), "it waits for the first"
        await bench.end(grace_ms=5_000)

    simulated(program())
