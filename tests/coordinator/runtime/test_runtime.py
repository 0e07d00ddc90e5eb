"""The runtime runs any core: here counters, over the real log of an internal topic."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import structlog

from coordinator.metadata.catalog import OFFSETS_TOPIC
from coordinator.runtime import runtime
from coordinator.runtime.core import Encoded, LateAnswer
from coordinator.runtime.effects import Effects, ReplyToken, RequestContext, Step, TimerName
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.runtime import CoordinatorRuntime, Names
from coordinator.runtime.shard import ShardState
from coordinator.runtime.timers import CoordinatorTimers
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from tests.coordinator.logs.test_log_manager import Hook, node


@dataclass(frozen=True)
class Add(Request):
    """Adds to a counter; answered after ``after_ms`` if that is not 0."""

    name: str
    amount: int
    after_ms: int = 0


@dataclass(frozen=True)
class Total(Response):
    total: int
    error: str = ""


@dataclass
class Counters:
    """A core: adds up what it is asked to, and puts an answer off by a timer named ("answer", its token)."""

    WAITS_FOR_OTHERS: ClassVar[Collection[str]] = ()
    config: int = 1000
    """The most that a request may add."""
    totals: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, Add] = field(default_factory=dict)
    faulty: ClassVar[bool] = False

    def decide(self, request: Add, step: Step[int]) -> Effects:
        if request.amount > step.config:
            raise RuntimeError("a fault of ours")
        if request.after_ms:
            token = str(step.context.token)
            self.waiting[token] = request
            step.effects.timers["answer", token] = step.now.ms + request.after_ms
        else:
            total = self.totals.get(request.name, 0) + request.amount
            step.effects.records.append((request.name, total))
            step.reply(Total(total))
        return step.effects

    def on_timer(self, name: TimerName, step: Step[int]) -> Effects:
        request = self.waiting.pop(name[1], None)
        if request is not None:
            step.effects.reply(int(name[1]), Total(self.totals.get(request.name, 0)))
        return step.effects

    def abandon(self, token: ReplyToken, step: Step[int]) -> Effects:
        if self.waiting.pop(str(token), None) is not None:
            step.effects.timers["answer", str(token)] = None
        return step.effects

    def apply(self, record: tuple[str, int]) -> None:
        name, total = record
        self.totals[name] = total
        if self.faulty and name == "faulty":
            raise RuntimeError("a fault of ours")

    def loaded(self, step: Step[int]) -> Iterator[None]:
        yield from ()

    def unload(self, step: Step[int]) -> Effects:
        for token in self.waiting:
            step.effects.timers["answer", token] = None
            step.effects.reply(int(token), Total(-1, "unloaded"))
        self.waiting.clear()
        self.totals.clear()
        return step.effects

    def durable_state(self) -> dict[str, int]:
        return self.totals

    def encode(self, records: Sequence[tuple[str, int]]) -> Iterator[tuple[bytes, bytes]]:
        return ((name.encode(), str(total).encode()) for name, total in records)

    def decode(self, encoded: Iterable[Encoded]) -> Iterator[tuple[str, int]]:
        return ((key.decode(), int(value or b"0")) for key, value in encoded)

    def refusal(self, request: Request, code: ErrorCode, message: str) -> Total:
        return Total(-1, code.name)

    def while_loading(self, request: Request) -> LateAnswer | None:
        return None

    @staticmethod
    def request_is_about(request: Add) -> str:
        return request.name

    @staticmethod
    def timer_is_about(name: TimerName) -> str:
        return ""


NAMES = Names(
    "counter",
    lambda name: 3,
    100,
    lambda name: None if name else (ErrorCode.INVALID_REQUEST, "no name"),
    lambda request, code, message: Total(-1, message),
)


class Asked:
    """A request of a test, and its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.response: Total | None = None

    def answer(self, response: Response) -> None:
        assert self.response is None, "each request has one answer"
        assert isinstance(response, Total)
        self.response = response


class Running:
    """A runtime of counters on partition 3, and what is asked of it."""

    def __init__(self, runtime: CoordinatorRuntime[Counters], timers: CoordinatorTimers) -> None:
        self.runtime, self.timers = runtime, timers

    def submit(self, request: Add) -> tuple[Asked, ReplyToken]:
        shard = self.runtime.opened.get(3)
        assert shard is not None
        asked = Asked(request)
        token = self.runtime.replies.open(asked)
        shard.submit(request, RequestContext(token, "client", "127.0.0.1"))
        return asked, token

    async def ask(self, name: str, amount: int, after_ms: int = 0) -> Total:
        asked, _ = self.submit(Add(name, amount, after_ms))
        await until(lambda: asked.response is not None)
        assert asked.response is not None
        return asked.response

    @property
    def totals(self) -> dict[str, int]:
        shard = self.runtime.opened.get(3)
        assert shard is not None
        return shard.core.durable_state()

    async def active(self) -> None:
        shard = self.runtime.opened.get(3)
        assert shard is not None
        await until(lambda: shard.state is ShardState.ACTIVE)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def counters(path: Path, hook: Hook | None = None, *, opens: bool = True) -> AsyncIterator[Running]:
    async with node(path, hook) as opened:
        timers = CoordinatorTimers(asyncio.get_running_loop())
        made = CoordinatorRuntime(
            OFFSETS_TOPIC,
            Counters,
            NAMES,
            lambda partition: Counters(),
            opened.catalog,
            opened.partitions,
            timers,
            FairQueue(),
            wall_ms=lambda: 1_000_000,
        )
        await made.start()
        if opens:
            await made.open_partition(3)
        try:
            yield Running(made, timers)
        finally:
            await made.close()
            assert len(timers) == 0, "a runtime that is closed leaves no timer behind"
            timers.close()


async def test_a_start_opens_all_logs_and_then_loads_them(tmp_path: Path) -> None:
    """Threads that recover logs and a loop that loads would take turns: both together take twice as long."""
    async with counters(tmp_path) as first:
        for partition in (1, 3, 7):
            await first.runtime.open_partition(partition)
    async with counters(tmp_path, opens=False) as again:
        assert [shard.partition for shard in again.runtime.shards()] == [1, 3, 7]
        assert {shard.state for shard in again.runtime.shards()} == {ShardState.LOADING}
        await again.runtime.wait_loaded()
        assert {shard.state for shard in again.runtime.shards()} == {ShardState.ACTIVE}


async def test_what_was_decided_is_there_after_a_restart(tmp_path: Path) -> None:
    async with counters(tmp_path) as first:
        assert [await first.ask("a", 1), await first.ask("a", 2), await first.ask("b", 5)] == [
            Total(1),
            Total(3),
            Total(5),
        ]
    async with counters(tmp_path) as second:
        assert second.totals == {"a": 3, "b": 5}
        assert await second.ask("a", 4) == Total(7)


async def test_only_partitions_that_were_asked_for_have_a_log(tmp_path: Path) -> None:
    async with counters(tmp_path) as running:
        assert [shard.partition for shard in running.runtime.shards()] == [3]
        assert running.runtime.opened.get(4) is None
        await running.runtime.open_partition(4)
    async with counters(tmp_path) as running:
        assert [shard.partition for shard in running.runtime.shards()] == [3, 4]


async def test_a_log_that_the_disk_refuses_to_open_at_the_start_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "RETRY_S", 0.01)
    async with counters(tmp_path) as first:
        await first.ask("a", 1)
    hook = Hook()
    hook.fails, hook.number = ("read", f"{OFFSETS_TOPIC}-3/00000000000000000000.log"), errno.EIO
    with structlog.testing.capture_logs() as lines:
        async with counters(tmp_path, hook, opens=False) as second:
            assert second.runtime.shards() == []
            hook.fails = ("", "")
            await until(lambda: second.runtime.opened.get(3) is not None)
            await second.active()
            assert second.totals == {"a": 1}
    assert [line["shard"] for line in lines if line["event"] == "coordinator_not_served"] == [f"{OFFSETS_TOPIC}-3"]


async def test_timers_fire_at_the_core_that_set_them(tmp_path: Path) -> None:
    async with counters(tmp_path) as running:
        running.timers.serve("another topic", lambda *_: pytest.fail("the timer is of the counters"), ())
        await running.ask("a", 3)
        assert await running.ask("a", 0, after_ms=20) == Total(3)


async def test_a_request_whose_connection_closes_has_no_answer_and_leaves_no_timer(tmp_path: Path) -> None:
    async with counters(tmp_path) as running:
        asked, token = running.submit(Add("a", 0, 60_000))
        assert len(running.timers) == 1
        assert running.runtime.replies.forget(token)
        shard = running.runtime.opened.get(3)
        assert shard is not None
        shard.abandon(asked.request, token)
        assert (len(running.timers), asked.response) == (0, None)


async def test_who_waits_when_the_runtime_closes_is_answered_by_the_core(tmp_path: Path) -> None:
    async with counters(tmp_path) as running:
        asked, _ = running.submit(Add("a", 0, 60_000))
        stored, _ = running.submit(Add("a", 1))
    assert (asked.response, stored.response) == (Total(-1, "unloaded"), Total(1))


async def test_a_refused_write_takes_back_what_was_decided_and_reads_the_log(tmp_path: Path) -> None:
    hook = Hook()
    async with counters(tmp_path, hook) as running:
        await running.ask("a", 1)
        waiting, _ = running.submit(Add("a", 0, 60_000))
        hook.fails, hook.number = ("append", ".log"), errno.ENOSPC
        assert await running.ask("a", 2) == Total(-1, "COORDINATOR_NOT_AVAILABLE")
        assert waiting.response == Total(-1, "COORDINATOR_NOT_AVAILABLE")
        assert len(running.timers) == 0
        hook.fails = ("", "")
        await running.active()
        assert running.totals == {"a": 1}
        assert await running.ask("a", 4) == Total(5)


@pytest.mark.parametrize("where", ["decide", "apply"])
async def test_a_fault_of_the_core_is_told_and_its_state_is_made_anew_from_the_log(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counters(tmp_path) as running:
        await running.ask("a", 1)
        monkeypatch.setattr(Counters, "faulty", True)
        request = Add("a", 1001) if where == "decide" else Add("faulty", 1)
        failed, _ = running.submit(request)
        assert failed.response == Total(-1, "COORDINATOR_NOT_AVAILABLE")
        refused, _ = running.submit(Add("a", 1))
        assert refused.response == Total(-1, "COORDINATOR_LOAD_IN_PROGRESS")
        await running.active()
        assert running.totals == {"a": 1}
        assert await running.ask("a", 4) == Total(5)


async def test_a_name_has_its_shard_once_its_coordinator_was_asked_for(tmp_path: Path) -> None:
    async with counters(tmp_path, opens=False) as running:
        made = running.runtime
        assert made.shard("a") is None
        assert "no client has asked for this counter's coordinator" in str(made.without_shard(Add("a", 1), "a"))
        assert made.without_shard(Add("", 1), "") == Total(-1, "no name")
        assert await made.open("a") == 3
        assert made.shard("a") is made.shards()[0]
        assert made.shard("") is None
        assert made.shard("a" * 101) is None
