"""A consumer or member that was suspended for longer than its session: what it is told when it wakes up."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from client import Consumer, Member, RangeAssignor
from client.assignors import Assignor, CooperativeStickyAssignor
from client.transport.background_loop import SHARED_THREAD
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import BRIEF, Journal, create, fill, take, until


async def stand_still(seconds: float) -> None:
    """Keeps the loop it runs on from everything else, as SIGSTOP does."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for


def subscribed(daemon: DaemonProcess, assignor: type[Assignor]) -> tuple[Consumer, Journal]:
    """A consumer that has not been started, and what its program is told."""
    journal = Journal()
    consumer = Consumer(bootstrap_servers=daemon.address, group_id="g", assignors=[assignor], **BRIEF)
    consumer.subscribe(["t"], listener=journal)
    return consumer, journal


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor])
async def test_a_program_is_not_told_of_an_assignment_that_is_over_when_it_wakes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assignor: type[Assignor]
) -> None:
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=2)
        await fill(daemon.address, "t", range(4))
        consumer, journal = subscribed(daemon, assignor)
        resolve = consumer._positions.resolve
        suspended: list[asyncio.Future[None]] = []

        async def suspended_then(*args: Any, **kwargs: Any) -> None:
            await resolve(*args, **kwargs)
            if not suspended:  # the assignment is known, and the program has not been told of it
                suspended.append(SHARED_THREAD.submit(stand_still(3.0)))  # it wakes up last
                await stand_still(2.0)

        monkeypatch.setattr(consumer._positions, "resolve", suspended_then)
        async with consumer:
            await until(lambda: bool(suspended and journal.events) and consumer.state == "stable", 30)
            assert sorted(await take(consumer, 4, 30)) == [0, 1, 2, 3]
            assert journal.events == [("assigned", [("t", 0), ("t", 1)])]
            assert consumer.group_metadata().generation > 1, "the first was over before it could be told"


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor])
async def test_a_program_is_told_no_end_of_what_it_was_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assignor: type[Assignor]
) -> None:
    """The consumer is stopped while it asks where it goes on, and has no answer."""
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=2)
        consumer, journal = subscribed(daemon, assignor)
        asks = asyncio.Event()

        async def resolve(*args: Any, **kwargs: Any) -> None:
            asks.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(consumer._positions, "resolve", resolve)
        async with asyncio.timeout(60):
            await consumer.start()
            await asks.wait()
            assert consumer.assignment()
            await consumer.stop(1.0)
        assert journal.events == []


async def suspend() -> None:
    """Suspends program and background for twice a session; the background wakes up last and has told nothing yet."""
    stands = threading.Event()

    async def background() -> None:
        stands.set()
        await stand_still(3.0)

    SHARED_THREAD.submit(background())
    stands.wait(30)
    await stand_still(2.0)


async def test_a_member_that_wakes_up_after_its_session_says_at_once_that_it_is_fenced(tmp_path: Path) -> None:
    revoked: list[str] = []
    with DaemonProcess(tmp_path) as daemon:
        async with Member(
            "work",
            bootstrap_servers=daemon.address,
            on_revoked=revoked.append,
            session_timeout_ms=1_000,
            heartbeat_interval_ms=100,
            rebalance_timeout_ms=5_000,
        ) as member:
            async with asyncio.timeout(30):
                first = await anext(member)
            assert member.state == "stable"
            await suspend()
            assert (member.state, revoked) == ("fenced", [])
            async with asyncio.timeout(30):
                again = await anext(member)
            assert len(revoked) == 1
            assert again.generation > first.generation
            assert member.state == "stable"


async def test_so_does_a_consumer(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=1)
        consumer = Consumer(bootstrap_servers=daemon.address, group_id="g", **BRIEF)
        consumer.subscribe(["t"])
        async with consumer:
            await until(lambda: consumer.state == "stable", 30)
            await suspend()
            assert consumer.state == "fenced"
            await until(lambda: consumer.state == "stable", 30)


async def test_a_join_that_outlasts_the_session_fences_no_member(tmp_path: Path) -> None:
    """While a join is parked there are no heartbeats: the coordinator keeps the place by itself."""
    holding = asyncio.Event()

    async def hold(reason: str) -> None:
        await holding.wait()

    quick: dict[str, Any] = {
        "session_timeout_ms": 1_000, "heartbeat_interval_ms": 100, "rebalance_timeout_ms": 20_000
    }  # fmt: skip
    with DaemonProcess(tmp_path) as daemon:
        first = Member("work", bootstrap_servers=daemon.address, **quick)
        slow = Member("work", bootstrap_servers=daemon.address, on_revoked=hold, **quick)
        third = Member("work", bootstrap_servers=daemon.address, **quick)
        async with asyncio.timeout(60), slow:
            await anext(slow)
            async with first:
                await until(lambda: first.state == "joining", 30)
                await asyncio.sleep(0.3)
                assert first.state == "joining"
                holding.set()
                await anext(first)
                await until(lambda: slow.state == first.state == "stable", 30)
                holding.clear()
                async with third:
                    await until(lambda: first.state == slow.state == "rebalancing", 30)
                    seen = set()
                    ends = asyncio.get_running_loop().time() + 2.5
                    while asyncio.get_running_loop().time() < ends:
                        seen.add((first.state, slow.state))
                        await asyncio.sleep(0.02)
                    assert seen == {("rebalancing", "rebalancing")}
                    holding.set()
                    await anext(third)
