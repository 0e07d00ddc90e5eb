"""Membership without topics: sharing out work of any kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from client import ClosedError, CohortError, InconsistentGroupProtocolError, Member, MemberAssignment
from client.group import MembershipSettings, Progress
from client.group.coordinator_client import CoordinatorClient
from client.group.member import _WorkAssigner
from client.transport.background_loop import SameLoop
from coordinator import Coordinator
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import until

QUICK: dict[str, Any] = {"session_timeout_ms": 1_000, "heartbeat_interval_ms": 100, "rebalance_timeout_ms": 5_000}


def block_the_loop(seconds: float) -> None:
    """What code does that computes, or calls something that is not asynchronous."""
    time.sleep(seconds)


def by_metadata(members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
    """Everybody gets its own metadata and the number of members."""
    return {member_id: metadata + b" of %d" % len(members) for member_id, metadata in members}


def worker(address: str, name: str, **settings: Any) -> Member:
    return Member(
        "work", bootstrap_servers=address, metadata=name.encode(), **{**QUICK, "assign": by_metadata, **settings}
    )


async def nth(member: Member) -> MemberAssignment:
    async with asyncio.timeout(30):
        return await anext(member)


async def test_every_rebalance_brings_an_assignment_with_its_reason() -> None:
    async with Coordinator() as c, worker(c.address, "a") as first:
        assert first.state == "joining"
        alone = await nth(first)
        assert (alone.generation, alone.is_leader, alone.assignment) == (1, True, b"a of 1")
        async with worker(c.address, "b", client_id="newcomer") as second:
            generation, is_leader, assignment, reason = await nth(first)
            assert (generation, is_leader, assignment) == (2, True, b"a of 2")
            assert "newcomer" in reason
            assert (await nth(second))[1:3] == (False, b"b of 2")
            assert second.member_id.startswith("newcomer-")
        left = await nth(first)
        assert (left.generation, left.assignment) == (3, b"a of 1")
        assert "left: closing" in left.reason


async def test_a_member_hears_of_a_rebalance_at_once_however_long_its_heartbeat_interval_is() -> None:
    """A heartbeat is held for a third of the session at most, and the next one is there at once."""
    slow = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 5_500, "rebalance_timeout_ms": 60_000}
    async with Coordinator() as c, worker(c.address, "a", **slow) as first:
        await nth(first)
        await asyncio.sleep(2.5)  # the first heartbeat has been answered
        began = time.monotonic()
        async with worker(c.address, "b", **slow):
            assert (await nth(first)).assignment == b"a of 2"
            assert time.monotonic() - began < 1.5


async def test_another_member_leads_when_the_leader_stops() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        first = worker(c.address, "a")
        await first.start()
        assert (await nth(first)).is_leader
        second = await stack.enter_async_context(worker(c.address, "b"))
        assert not (await nth(second)).is_leader
        await first.stop()
        assert first.state == "closed"
        assert (await nth(second))[1:3] == (True, b"b of 1")
        with pytest.raises(StopAsyncIteration):
            await anext(first)


async def test_without_assign_everybody_gets_nothing_and_one_leads() -> None:
    async with Coordinator() as c, worker(c.address, "a", assign=None) as first:
        assert (await nth(first))[1:3] == (True, b"")
        async with worker(c.address, "b", assign=None) as second:
            assert (await nth(second))[1:3] == (False, b"")


async def test_new_protocols_are_seen_at_a_rejoin() -> None:
    async with Coordinator() as c, worker(c.address, "a") as first, worker(c.address, "b") as second:
        async with asyncio.timeout(30):
            while (await nth(second)).assignment != b"b of 2":
                pass
        second.protocols = lambda: [("work", b"B")]
        second.rejoin("more memory")
        changed = await nth(second)
        assert changed.assignment == b"B of 2"
        assert "more memory" in changed.reason
        await until(lambda: first.generation == second.generation)


async def test_before_the_share_goes_the_program_is_told_and_waited_for() -> None:
    told: list[tuple[str, int]] = []

    async def stop_work(reason: str) -> None:
        await asyncio.sleep(0.2)
        told.append((reason, second.generation))

    async with Coordinator() as c, worker(c.address, "a", on_revoked=stop_work) as first:
        await nth(first)
        async with worker(c.address, "b") as second:
            await nth(second)
            assert len(told) == 1
            assert "joined" in told[0][0]
            assert told[0][1] == -1  # the second had to wait for it
        await nth(first)


async def test_an_assign_that_fails_is_raised_and_another_leads() -> None:
    def fail(members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
        raise ArithmeticError("no plan")

    async with Coordinator() as c, worker(c.address, "a", assign=fail) as first:
        with pytest.raises(ArithmeticError, match="no plan") as caught:
            await nth(first)
        assert "computing the assignment of group 'work'" in caught.value.__notes__[0]
        assert first.state == "fenced"
        async with worker(c.address, "b") as second:
            assert (await nth(second))[1:3] == (True, b"b of 1")
            assert (await nth(first))[1:3] == (False, b"a of 2")


async def test_a_long_assign_does_not_cost_the_session(tmp_path: Path) -> None:
    def ponder(members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
        time.sleep(1.2)
        return by_metadata(members)

    with DaemonProcess(tmp_path) as daemon:
        async with worker(daemon.address, "a", assign=ponder, session_timeout_ms=400) as first:
            assert (await nth(first))[:3] == (1, True, b"a of 1")
            assert first.state == "stable"


async def test_a_blocked_loop_does_not_hold_up_the_rebalance_it_leads_in(tmp_path: Path) -> None:
    def ponder(members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
        time.sleep(0.3)
        return by_metadata(members)

    with DaemonProcess(tmp_path) as daemon:
        first = worker(daemon.address, "a", assign=ponder, session_timeout_ms=500)
        second = worker(daemon.address, "b", session_timeout_ms=500)
        async with first:
            await nth(first)
            async with second:
                await until(lambda: first.state == "rebalancing")
                block_the_loop(1.5)  # longer than either session; the plan is made and brought meanwhile
                assert (await nth(second)).assignment == b"b of 2"
                assert first.generation == second.generation == 2


async def test_a_member_the_group_has_forgotten_joins_again(tmp_path: Path) -> None:
    revoked: list[str] = []
    daemon = DaemonProcess(tmp_path / "one").start()
    member = worker(daemon.address, "a", on_revoked=revoked.append)
    await member.start()
    await nth(member)
    daemon.kill()
    other = DaemonProcess(tmp_path / "two")
    other.port = daemon.port
    with other:
        again = await nth(member)
        assert (again.generation, again.assignment) == (1, b"a of 1")
        assert len(revoked) == 1
        await member.stop()


async def test_strangers_cannot_mix() -> None:
    async with Coordinator() as c, worker(c.address, "a") as first:
        await nth(first)
        async with worker(c.address, "b", protocol_type="other") as second:
            with pytest.raises(InconsistentGroupProtocolError, match="another group id"):
                await nth(second)


async def test_a_member_works_on_one_loop_without_threads() -> None:
    async with Coordinator() as c, worker(c.address, "a", background=SameLoop()) as first:
        await nth(first)
        async with worker(c.address, "b", background=SameLoop()) as second:
            assert (await nth(second)).assignment == b"b of 2"


async def test_stopping_while_the_join_is_parked_leaves_at_once() -> None:
    go_on = asyncio.Event()
    async with Coordinator() as c, worker(c.address, "a", on_revoked=lambda _: go_on.wait()) as first:
        await nth(first)
        second = worker(c.address, "b")
        await second.start()
        await asyncio.sleep(0.1)  # its join waits for the first
        assert second.state == "joining"
        await asyncio.wait_for(second.stop(), 20)
        go_on.set()
        async with asyncio.timeout(20):
            while (await nth(first)).assignment != b"a of 1":
                pass


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_what_is_closed_while_it_connects_neither_joins_nor_leaves_a_connection(steps: int) -> None:
    """A stop that is cancelled sends LeaveGroup before the join that is under way has heard that it is to end."""
    async with Coordinator() as c:
        settings = MembershipSettings(
            group_id="work", bootstrap_servers=c.address, client_id="closed", protocol_type="work"
        )
        progress = Progress(asyncio.get_running_loop().time, None)
        session = CoordinatorClient(
            settings, _WorkAssigner(None), progress, lambda _: None, lambda: False, lambda: None, Random(0)
        )
        joining = asyncio.create_task(session.join([("work", b"")], "it starts"))
        for _ in range(steps):  # a connection, a greeting and metadata take more turns of the loop
            await asyncio.sleep(0)
        await session.close()
        async with asyncio.timeout(20):
            with pytest.raises(ClosedError):
                await joining
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith("-closed")] == []
        with pytest.raises(ClosedError, match="stopped"):
            await session.join([("work", b"")], "again")


async def test_a_loop_that_ends_without_stop_frees_the_share() -> None:
    def forget(address: str) -> None:
        async def forgetful() -> None:
            member = worker(address, "a", session_timeout_ms=60_000)
            await member.start()
            await nth(member)

        asyncio.run(forgetful())

    async with Coordinator() as c:
        await asyncio.to_thread(forget, c.address)
        async with worker(c.address, "heir") as heir, asyncio.timeout(20):
            while (await nth(heir)).assignment != b"heir of 1":
                pass


async def cancel_and_await(_: str) -> None:
    """The usual end of a worker task, which lets its CancelledError out."""
    work = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    work.cancel()
    await work


async def test_a_callback_that_lets_a_cancellation_out_has_failed_and_the_membership_goes_on() -> None:
    async with Coordinator() as c, worker(c.address, "a", on_revoked=cancel_and_await) as first:
        await nth(first)
        async with worker(c.address, "b") as second:
            with pytest.raises(CohortError, match="on_revoked ended with CancelledError") as caught:
                await nth(first)
            assert isinstance(caught.value.__cause__, asyncio.CancelledError)
            assert (await nth(first)).assignment == b"a of 2"
            assert (await nth(second)).assignment == b"b of 2"


async def test_a_membership_whose_task_ends_is_not_waited_for_in_silence() -> None:
    async with Coordinator() as c, worker(c.address, "a") as first:
        await nth(first)
        for task in asyncio.all_tasks():
            if task.get_name() == "cohort-membership-work":
                task.cancel()
        for _ in range(2):
            with pytest.raises(CohortError, match="the membership of group 'work' has ended by CancelledError"):
                await nth(first)
        await first.stop()
        async with worker(c.address, "b") as second:
            assert (await nth(second)).assignment == b"b of 1"


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
async def test_a_cancelled_stop_leaves_the_group_and_the_next_one_finishes(steps: int) -> None:
    told: list[str] = []

    async def stop_work(reason: str) -> None:
        await asyncio.sleep(0.05)
        told.append(reason)

    async with Coordinator() as c:
        first = worker(c.address, "a", on_revoked=stop_work, session_timeout_ms=60_000)
        await first.start()
        await nth(first)
        stopping = asyncio.create_task(first.stop())
        for _ in range(steps):
            await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await first.stop()
        assert told == ["closing"]
        async with worker(c.address, "heir") as heir:
            assert (await nth(heir)).assignment == b"heir of 1"


async def test_a_second_stop_waits_for_the_first() -> None:
    ended = False

    async def stop_work(reason: str) -> None:
        nonlocal ended
        await asyncio.sleep(0.2)
        ended = True

    async with Coordinator() as c:
        first = worker(c.address, "a", on_revoked=stop_work)
        await first.start()
        await nth(first)
        stopping = asyncio.create_task(first.stop())
        await asyncio.sleep(0)
        await first.stop()
        assert ended
        assert stopping.done()
        await stopping


async def test_a_callback_of_stop_that_stops_again_is_told_that_it_would_wait_for_itself() -> None:
    async def stop_work(reason: str) -> None:
        await first.stop()

    with structlog.testing.capture_logs() as logs:
        async with Coordinator() as c:
            first = worker(c.address, "a", on_revoked=stop_work)
            async with first:
                await nth(first)
    (line,) = [line for line in logs if line["event"] == "on_revoked_failed"]
    assert "which stop() itself has called" in line["error"]


async def test_what_a_callback_raises_at_the_end_is_logged() -> None:
    def fail(_: str) -> None:
        raise ArithmeticError("cannot stop")

    with structlog.testing.capture_logs() as logs:
        async with Coordinator() as c, worker(c.address, "a", on_revoked=fail) as first:
            await nth(first)
    (line,) = [line for line in logs if line["event"] == "on_revoked_failed"]
    assert "cannot stop" in line["error"]


async def test_misuse_is_told() -> None:
    member = Member("work")
    with pytest.raises(ClosedError, match="not started"):
        await anext(member)
    await member.stop()
    with pytest.raises(ClosedError, match="make a new one"):
        await member.start()
    with pytest.raises(ValueError, match="group_id is empty"):
        Member("")
