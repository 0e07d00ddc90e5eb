"""Orders of a core: carried out once its records are on disk, in the order of the log, and void when the shard drops."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.metadata.catalog import OFFSETS_TOPIC
from coordinator.runtime.effects import Effects, RequestContext, Slices, Step
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.runtime.shard import CoordinatorShard, ShardState, no_orders
from coordinator.runtime.timers import CoordinatorTimers
from protocol.messages import Response
from tests.coordinator.logs.test_log_manager import Hook, node
from tests.coordinator.runtime.test_runtime import NAMES, Add, Asked, Counters, Total, until


class Orders(Counters):
    """Counters that order each total to be told, and all totals again when they have been loaded.

    A request to add nothing orders "read"; one about "slices" orders something in each of three slices.
    """

    def decide(self, request: Add, step: Step[int]) -> Effects:
        if request.name == "slices":
            step.effects.begin("slices", self._in_slices(step))
            return step.effects
        effects = super().decide(request, step)
        total = self.totals.get(request.name, 0) + request.amount
        effects.order((request.name, total) if request.amount else "read")
        if not request.amount:
            effects.records.clear()
        return effects

    def loaded(self, step: Step[int]) -> Iterator[None]:
        for name, total in self.totals.items():
            yield
            step.effects.order((name, total, "again"))

    @staticmethod
    def _in_slices(step: Step[int]) -> Slices:
        effects = step.effects
        for number in range(3):
            effects.records.append(("slices", number))
            effects.order(("slice", number))
            if number < 2:
                effects = yield
        effects.reply(step.context.token, Total(3))


class Gate(Hook):
    """Syncs of the shard's log wait while it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.waiting = False

    def __call__(self, operation: str, path: str) -> None:
        super().__call__(operation, path)
        if operation == "sync" and path.endswith(".log") and OFFSETS_TOPIC in path:
            self.waiting = not self.open.is_set()
            assert self.open.wait(10)


class Told(Asked):
    """A request whose answer is noted among the orders."""

    def __init__(self, request: Add, happened: list[object]) -> None:
        super().__init__(request)
        self._happened = happened

    def answer(self, response: Response) -> None:
        super().answer(response)
        self._happened.append(response)


class Bench:
    """A shard of such counters, and what happened in order: answers, and orders that were carried out."""

    def __init__(self, happened: list[object], gate: Gate) -> None:
        self.happened, self.gate = happened, gate
        self.faulty = False
        self.runtime: CoordinatorRuntime[Orders]

    @property
    def shard(self) -> CoordinatorShard[Orders]:
        return self.runtime.opened[3]

    def carry_out(self, shard: CoordinatorShard[Orders], order: object) -> None:
        assert shard is self.shard
        assert shard.state is ShardState.ACTIVE
        if self.faulty:
            self.faulty = False
            raise RuntimeError("a fault of ours")
        self.happened.append(order)

    def ask(self, name: str, amount: int) -> None:
        request = Add(name, amount)
        token = self.runtime.replies.open(Told(request, self.happened))
        self.shard.submit(request, RequestContext(token, "client", "127.0.0.1"))

    async def shut(self) -> None:
        """Shuts the gate and has a first record wait at it."""
        self.gate.open.clear()
        self.ask("first", 1)
        await until(lambda: self.gate.waiting)

    async def happens(self, *expected: object) -> None:
        await until(lambda: len(self.happened) >= len(expected))
        assert self.happened == list(expected)


@asynccontextmanager
async def orders(path: Path) -> AsyncIterator[Bench]:
    gate = Gate()
    bench = Bench([], gate)
    async with node(path, gate) as opened:
        timers = CoordinatorTimers(asyncio.get_running_loop())
        bench.runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            Orders,
            NAMES,
            lambda partition: Orders(),
            opened.catalog,
            opened.partitions,
            timers,
            FairQueue(),
            wall_ms=lambda: 1_000_000,
            carry_out=bench.carry_out,
        )
        await bench.runtime.start()
        await bench.runtime.open_partition(3)
        try:
            yield bench
        finally:
            gate.open.set()
            await bench.runtime.close()
            timers.close()


async def test_an_order_is_carried_out_when_its_records_are_on_disk_and_not_before(tmp_path: Path) -> None:
    async with orders(tmp_path) as bench:
        await bench.shut()
        for _ in range(50):
            await asyncio.sleep(0)
        assert bench.happened == []
        bench.gate.open.set()
        await bench.happens(("first", 1), Total(1))


async def test_orders_and_answers_keep_the_order_of_the_log_whether_they_have_records_or_not(tmp_path: Path) -> None:
    async with orders(tmp_path) as bench:
        await bench.shut()
        bench.ask("a", 0)
        bench.ask("b", 2)
        bench.ask("c", 0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert bench.happened == [], "also one without records waits: what it was decided on may be taken back"
        bench.gate.open.set()
        await bench.happens(("first", 1), Total(1), "read", Total(0), ("b", 2), Total(2), "read", Total(0))


async def test_with_nothing_under_way_an_order_without_records_is_carried_out_at_once(tmp_path: Path) -> None:
    async with orders(tmp_path) as bench:
        bench.ask("a", 0)
        assert bench.happened == ["read", Total(0)]


async def test_each_slice_of_a_decision_has_its_orders(tmp_path: Path) -> None:
    async with orders(tmp_path) as bench:
        bench.ask("slices", 1)
        await bench.happens(("slice", 0), ("slice", 1), ("slice", 2), Total(3))


async def test_orders_of_a_write_that_was_refused_are_void_and_those_of_the_load_are_carried_out(
    tmp_path: Path,
) -> None:
    async with orders(tmp_path) as bench:
        bench.ask("a", 1)
        await bench.happens(("a", 1), Total(1))
        bench.gate.fails, bench.gate.number = ("append", ".log"), errno.ENOSPC
        bench.ask("a", 5)
        bench.ask("b", 0)
        refused = Total(-1, "COORDINATOR_NOT_AVAILABLE")
        await bench.happens(("a", 1), Total(1), refused, refused, ("a", 1, "again"))


async def test_orders_that_wait_when_the_shard_closes_are_void_and_given_again_by_the_next_load(tmp_path: Path) -> None:
    async with orders(tmp_path) as bench:
        await bench.shut()
        closing = asyncio.create_task(bench.runtime.close())
        await until(lambda: bench.shard.state is ShardState.CLOSED)
        bench.gate.open.set()
        await closing
        assert bench.happened == [Total(1)]
    async with orders(tmp_path) as bench:
        await bench.happens(("first", 1, "again"))


@pytest.mark.parametrize("under_way", [True, False])
async def test_a_fault_of_what_carries_out_an_order_drops_the_shard_whose_load_gives_it_again(
    tmp_path: Path, under_way: bool
) -> None:
    async with orders(tmp_path) as bench:
        bench.ask("a", 1)
        await bench.happens(("a", 1), Total(1))
        bench.faulty = True
        if under_way:
            bench.ask("b", 2)
            await bench.happens(("a", 1), Total(1), Total(2), ("a", 1, "again"), ("b", 2, "again"))
        else:
            bench.ask("b", 0)
            await bench.happens(("a", 1), Total(1), Total(0), ("a", 1, "again"))
        assert bench.shard.state is ShardState.ACTIVE


async def test_an_order_of_a_core_that_has_no_business_giving_one_is_a_fault(tmp_path: Path) -> None:
    async with orders(tmp_path) as bench:
        with pytest.raises(TypeError, match="__consumer_offsets gives no orders, and this is one: 'read'"):
            no_orders(bench.shard, "read")
