"""Polls of every kind, cancelled and beside each other, between seeks, pauses, assignments and deleted records.

A model knows for each partition which record comes next. Whatever the program does, that is the next one it is handed: none
is lost, none comes twice, none is of a partition that was paused or given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from client import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from tests.daemon_process import DaemonProcess

PARTITIONS = 3
KINDS = ("one", "many", "columns")

partitions = st.integers(0, PARTITIONS - 1)
polls = st.tuples(
    st.just("poll"),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),  # beside each other
    st.sampled_from([None, 0, 1, 2, 3, 5, 20]),  # turns of the loop after which they are cancelled
    st.sampled_from([None, 1, 10, 1_000]),
)
steps = st.one_of(
    polls,
    polls,
    polls,
    st.tuples(st.just("pause"), partitions),
    st.tuples(st.just("resume"), partitions),
    st.tuples(st.just("seek"), partitions, st.floats(0, 1)),
    st.tuples(st.just("seek_to_beginning"), partitions),
    st.tuples(st.just("assign"), st.sets(partitions, min_size=1)),
    st.tuples(st.just("fill"), partitions, st.integers(1, 80)),
    st.tuples(st.just("delete"), partitions, st.floats(0, 1)),
    st.tuples(st.just("position"), partitions),
)
limits = st.fixed_dictionaries(
    {
        "max_partition_fetch_bytes": st.sampled_from([200, 3_000, 100_000]),
        "fetch_max_bytes": st.sampled_from([100, 5_000, 1_000_000]),
        "fetch_min_bytes": st.sampled_from([1, 500]),
        "max_poll_records": st.sampled_from([None, 1, 7]),
    }
)
topics = (f"t{number}" for number in count())


class Model:
    """What is in the logs, and what comes next of each partition."""

    def __init__(self, topic: str) -> None:
        self.tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.starts = dict.fromkeys(self.tps, 0)
        self.ends = dict.fromkeys(self.tps, 0)
        self.next = dict.fromkeys(self.tps, 0)
        self.assigned = set(self.tps)
        self.paused: set[TopicPartition] = set()

    def within(self, tp: TopicPartition, share: float) -> int:
        """An offset in the log."""
        return self.starts[tp] + int(share * (self.ends[tp] - self.starts[tp]))

    def handed_out(self, tp: TopicPartition, records: Sequence[tuple[int, bytes | None]]) -> None:
        assert tp in self.assigned
        assert tp not in self.paused
        for offset, value in records:
            assert value == b"%d" % offset
            if offset != self.next[tp]:
                assert self.next[tp] < offset <= self.starts[tp], "only what was deleted may be passed over"
            self.next[tp] = offset + 1

    def take(self, kind: str, result: Any) -> None:
        if isinstance(result, ConsumerRecord):
            self.handed_out(TopicPartition(result.topic, result.partition), [(result.offset, result.value)])
            return
        for tp, found in result.items():
            if kind == "many":
                self.handed_out(tp, [(record.offset, record.value) for record in found])
            else:
                for part in found:
                    self.handed_out(tp, list(zip(part.offsets, part.values(), strict=True)))


async def poll(
    consumer: Consumer, model: Model, kinds: Sequence[str], turns: int | None, max_records: int | None
) -> None:
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "one": lambda: consumer.getone(),
        "many": lambda: consumer.getmany(timeout_ms=10, max_records=max_records),
        "columns": lambda: consumer.getmany_columns(timeout_ms=10, max_records=max_records),
    }
    ended: list[asyncio.Task[Any]] = []
    tasks = [asyncio.create_task(calls[kind](), name=kind) for kind in kinds]
    for task in tasks:
        task.add_done_callback(ended.append)
    if turns is None:
        await asyncio.wait(tasks, timeout=0.02)
    for _ in range(turns or 0):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    for task in ended:  # in the order in which the program gets them
        if not task.cancelled():
            model.take(task.get_name(), task.result())


async def act(consumer: Consumer, model: Model, admin: Admin, producer: Producer, step: Any) -> None:
    name, *arguments = step
    if name == "poll":
        await poll(consumer, model, *arguments)
        return
    if name == "assign":
        wanted = {model.tps[number] for number in arguments[0]}
        came = wanted - model.assigned
        model.assigned = wanted
        model.paused &= wanted
        consumer.assign(sorted(wanted))
        for tp in sorted(came):
            consumer.seek(tp, model.next[tp])
        return
    tp = model.tps[arguments[0]]
    if name == "fill":
        values = [b"%d" % (model.ends[tp] + number) for number in range(arguments[1])]
        await producer.send_many(tp.topic, values, partition=tp.partition)
        model.ends[tp] += len(values)
    elif name == "delete":
        model.starts[tp] = model.within(tp, arguments[1])
        await admin.delete_records({tp: model.starts[tp]})
    elif tp not in model.assigned:
        return
    elif name == "pause":
        consumer.pause(tp)
        model.paused.add(tp)
    elif name == "resume":
        consumer.resume(tp)
        model.paused.discard(tp)
    elif name == "seek":
        model.next[tp] = model.within(tp, arguments[1])
        consumer.seek(tp, model.next[tp])
    elif name == "seek_to_beginning":
        await consumer.seek_to_beginning(tp)
        model.next[tp] = model.starts[tp]
    else:
        position = await consumer.position(tp)
        assert position == model.next[tp] or model.next[tp] < position <= model.starts[tp]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data", "--flush", "os") as daemon:
        yield daemon.address


# Not shrunk: what stalls takes seconds each time.
@settings(max_examples=25, deadline=None, phases=(Phase.reuse, Phase.generate), suppress_health_check=list(HealthCheck))
@given(limits, st.sampled_from([None, "g"]), st.lists(steps, min_size=10, max_size=60))
def test_each_record_comes_next_when_its_turn_has_come(
    address: str, limits: dict[str, Any], group: str | None, steps: list[Any]
) -> None:
    async def program() -> None:
        model = Model(next(topics))
        async with (
            Admin(address) as admin,
            Producer(address, batch_size=600) as producer,
            Consumer(
                bootstrap_servers=address,
                group_id=group,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=20,
                fetch_max_wait_ms=20,
                **limits,
            ) as consumer,
        ):
            await admin.create_topics({model.tps[0].topic: PARTITIONS})
            for number in range(PARTITIONS):
                await act(consumer, model, admin, producer, ("fill", number, 100))
            consumer.assign(model.tps)
            for step in steps:
                await act(consumer, model, admin, producer, step)
            await act(consumer, model, admin, producer, ("assign", set(range(PARTITIONS))))
            for number in range(PARTITIONS):
                await act(consumer, model, admin, producer, ("resume", number))
            async with asyncio.timeout(10):
                while any(max(model.next[tp], model.starts[tp]) < model.ends[tp] for tp in model.tps):
                    model.take("many", await consumer.getmany(timeout_ms=500))

    asyncio.run(program())
