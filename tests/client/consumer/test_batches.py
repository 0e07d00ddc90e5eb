"""``process_batch``: what makes a batch, and that it is done, tried again, skipped or given back as a whole."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.consumer.error_policy import Retry
from client.consumer.handler_calls import BatchLimits
from client.errors import HandlerError, RecordDeserializationError
from client.types.records import ConsumerRecord
from protocol.subscription import TopicPartition
from tests.client.consumer.test_workers import T0, T1, Bench, simulated, until


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 12), min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from([0, 5, 50]),
    st.lists(st.sampled_from(["revoke", "lose", "wait", "seek"]), max_size=6),
)
def test_whatever_happens_batches_are_in_order_and_done_as_a_whole(
    seed: int, counts: list[int], max_records: int, max_wait_ms: int, events: list[str]
) -> None:
    random = Random(seed)
    tps = {TopicPartition("t", number): count for number, count in enumerate(counts)}
    finished: dict[TopicPartition, list[int]] = {tp: [] for tp in tps}
    running: set[TopicPartition] = set()

    async def handler(records: list[ConsumerRecord]) -> None:
        tp, offsets = TopicPartition(records[0].topic, records[0].partition), [record.offset for record in records]
        assert tp not in running
        assert 1 <= len(records) <= max_records
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        running.add(tp)
        try:
            await asyncio.sleep(random.choice([0, 0.01, 0.05]))
        finally:
            running.remove(tp)
        finished[tp] += offsets

    async def program() -> None:
        bench = Bench(tps, handler, batch=BatchLimits(max_records, max_wait_ms))
        for event in events:
            await asyncio.sleep(random.choice([0, 0.005, 0.02]))
            tp = random.choice(list(tps))
            if event == "revoke":
                done = (await bench.revoke(tp, grace_ms=random.choice([0, 10, 100])))[tp]
                assert done == len(finished[tp])
                bench.give(tp, done)
            elif event == "lose":
                bench.assignment.freeze([tp])
                bench.workers.abandon(frozenset([tp]))
                bench.give(tp, bench.take_away(tp)[tp])
            elif event == "seek":
                bench.seek(tp, bench.assignment.state(tp).position)
        await until(lambda: bench.done() == tps)
        await bench.end()
        for tp, count in tps.items():
            assert finished[tp] == list(range(count)), "handled twice, or out of order"

    simulated(program(), seed)


def test_a_batch_takes_what_is_there_and_waits_for_more_as_long_as_it_may() -> None:
    async def program() -> None:
        batches: list[list[int]] = []

        def handler(records: list[ConsumerRecord]) -> None:
            batches.append([record.offset for record in records])

        at_once = Bench({T0: 5}, handler, batch=BatchLimits(3, 0))
        await until(lambda: at_once.done() == {T0: 5})
        assert batches == [[0, 1, 2], [3, 4]], "stored batches of four and one are no bounds"
        await at_once.end()

        batches.clear()
        started_s = asyncio.get_running_loop().time()
        waiting = Bench({T0: 2}, handler, batch=BatchLimits(3, 1_000))
        await asyncio.sleep(0.3)
        assert batches == []
        waiting.counts[T0] = 3
        waiting.fill(waiting.assignment.state(T0), 2)
        await until(lambda: waiting.done() == {T0: 3})
        assert batches == [[0, 1, 2]]
        assert asyncio.get_running_loop().time() - started_s < 0.9, "a whole batch waits for nothing"
        waiting.counts[T0] = 4
        waiting.fill(waiting.assignment.state(T0), 3)
        await until(lambda: waiting.done() == {T0: 4})
        assert batches == [[0, 1, 2], [3]]
        assert asyncio.get_running_loop().time() - started_s >= 1, "the rest has waited for its time"
        await waiting.end()

    simulated(program())


def test_a_batch_that_waits_goes_when_it_turns_out_that_no_more_can_come() -> None:
    async def program() -> None:
        batches: list[int] = []
        begun_s = asyncio.get_running_loop().time()
        bench = Bench({T0: 6}, lambda records: batches.append(len(records)), batch=BatchLimits(100, 60_000))
        await asyncio.sleep(1)
        assert batches == []
        bench.full.add(T0)
        bench.news.set()
        await until(lambda: batches == [6])
        bench.counts[T0] = 8
        bench.fill(bench.assignment.state(T0), 6)
        await until(lambda: batches == [6, 2])
        assert asyncio.get_running_loop().time() - begun_s < 30, "the second did not wait at all"
        await bench.end()

    simulated(program())


def test_what_a_handler_does_to_its_list_changes_nothing_of_what_is_done() -> None:
    async def program() -> None:
        def handler(records: list[ConsumerRecord]) -> None:
            records.sort(key=lambda record: -record.offset)
            if records[-1].offset:
                records.clear()

        bench = Bench({T0: 5}, handler, batch=BatchLimits(3, 0))
        await until(lambda: bench.done() == {T0: 5})
        await bench.end()

    simulated(program())


def test_a_handler_in_a_thread_that_lets_out_stop_iteration_has_failed() -> None:
    async def program() -> None:
        def handler(record: ConsumerRecord) -> None:
            if record.offset == 1:
                next(iter(()))

        with ThreadPoolExecutor(1) as pool:
            bench = Bench({T0: 3}, handler, pool=pool, on_error="skip")
            async with asyncio.timeout(10):
                while bench.done() != {T0: 3}:
                    await asyncio.sleep(0.01)
            await bench.end()

    asyncio.run(program())


def test_a_batch_that_waits_is_given_up_at_once_when_its_partition_goes() -> None:
    async def program() -> None:
        async def handler(records: list[ConsumerRecord]) -> None:
            raise AssertionError("it never begins")

        bench = Bench({T0: 2}, handler, batch=BatchLimits(10, 60_000))
        await asyncio.sleep(0.1)
        begun_s = asyncio.get_running_loop().time()
        assert await bench.revoke(T0, grace_ms=30_000) == {T0: 0}
        assert asyncio.get_running_loop().time() - begun_s < 1
        await bench.end()

    simulated(program())


def test_a_batch_is_tried_again_as_it_was_and_skipped_as_a_whole() -> None:
    async def program() -> None:
        seen: list[list[int]] = []
        asked: list[list[int]] = []

        async def handler(records: list[ConsumerRecord]) -> None:
            seen.append([record.offset for record in records])
            if records[0].offset == 0 and len(seen) < 3:
                raise OSError("not yet")
            if records[0].offset == 3:
                raise LookupError("never")

        def on_error(records: list[ConsumerRecord], error: Exception) -> Any:
            asked.append([record.offset for record in records])
            return Retry(initial_ms=10) if isinstance(error, OSError) else "skip"

        bench = Bench({T0: 8}, handler, batch=BatchLimits(3, 0), on_error=on_error)
        await until(lambda: bench.done() == {T0: 8})
        assert seen == [[0, 1, 2]] * 3 + [[3, 4, 5], [6, 7]]
        assert asked == [[0, 1, 2]] * 2 + [[3, 4, 5]]
        await bench.end()

    simulated(program())


def test_a_failure_names_the_records_and_all_of_them_come_again() -> None:
    async def program() -> None:
        async def handler(records: list[ConsumerRecord]) -> None:
            raise LookupError("not on the menu")

        bench = Bench({T0: 4}, handler, batch=BatchLimits(3, 0))
        with pytest.raises(
            HandlerError, match=r"failed on the records at offsets 0 to 2 of t-0.*they come first"
        ) as failed:
            await bench.serving
        assert (failed.value.topic, failed.value.partition, failed.value.offset) == ("t", 0, 0)
        state = bench.assignment.state(T0)
        await until(lambda: not state.in_work)
        assert (state.done, state.position) == (0, 0)

    simulated(program())


def test_a_record_that_cannot_be_decoded_is_a_batch_of_its_own() -> None:
    async def program() -> None:
        seen: list[list[int]] = []
        asked: list[tuple[list[Any], str]] = []

        def decode(value: bytes) -> int:
            if value == b"2":
                raise ValueError("two")
            return int(value)

        async def handler(records: list[ConsumerRecord]) -> None:
            seen.append([record.value for record in records])

        def on_error(records: list[ConsumerRecord], error: Exception) -> Any:
            assert isinstance(error, RecordDeserializationError)
            asked.append(([record.value for record in records], type(error.__cause__).__name__))
            return "skip"

        bench = Bench({T0: 6, T1: 2}, handler, batch=BatchLimits(10, 0), on_error=on_error, deserializer=decode)
        await until(lambda: bench.done() == {T0: 6, T1: 2})
        assert sorted(seen) == [[0, 1], [0, 1], [3, 4, 5]]
        assert asked == [([b"2"], "ValueError")]
        await bench.end()

    simulated(program())
