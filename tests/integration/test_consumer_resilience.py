"""Consumers under trouble: blocked loops, stuck programs, cancellation, daemons that go and come back."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from client import (
    Admin,
    ClosedError,
    CommitFailedError,
    Consumer,
    IllegalStateError,
    MaxPollIntervalExceededError,
    RequestTimedOutError,
    TopicPartition,
)
from client.transport.background_loop import AwareLoop, BackgroundThread, SameLoop
from coordinator import Coordinator
from protocol.messages import ApiKey
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import QUICK, Journal, Reader, create, fill, take, until
from tests.integration.hostile_proxy import HostileProxy, Malice


def block_the_loop(seconds: float) -> None:
    """What a handler does that computes, or calls something that is not asynchronous."""
    time.sleep(seconds)


async def test_a_handler_that_blocks_the_loop_longer_than_the_session_stays_a_member(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=2)
        await fill(daemon.address, "t", range(10))
        journal = Journal()
        consumer = Consumer(bootstrap_servers=daemon.address, group_id="g", **{**QUICK, "session_timeout_ms": 600})
        consumer.subscribe(["t"], listener=journal)
        async with consumer:
            await take(consumer, 3)
            member = consumer.group_metadata()
            block_the_loop(2.0)
            assert sorted(await take(consumer, 7))
            await consumer.commit()
            assert consumer.group_metadata() == member
            assert [what for what, _ in journal.events] == ["assigned"]


async def test_nothing_is_assigned_to_a_member_that_has_lost_it_already() -> None:
    """The network falls silent between the share and the offsets to begin at; the session ends meanwhile."""
    settings = {**QUICK, "session_timeout_ms": 400, "request_timeout_ms": 1_500}
    journal = Journal()
    async with (
        HostileProxy(Malice(mute_after=ApiKey.OFFSET_FETCH), random.Random(1)) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as c,
    ):
        proxy.upstream_port = int(c.address.rpartition(":")[2])
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        consumer = Consumer(bootstrap_servers=f"127.0.0.1:{proxy.port}", group_id="g", **settings)
        consumer.subscribe(["t"], listener=journal)
        async with consumer:
            await until(lambda: "muted" in proxy.done)
            await asyncio.sleep(2.0)
            assert journal.events == []
            proxy.malice = Malice()
            proxy.hang_up()
            assert sorted(await take(consumer, 2)) == [0, 1]
            assert journal.events == [("assigned", [("t", 0), ("t", 1)])]


async def test_a_lost_answer_to_the_question_for_an_id_is_not_waited_for_as_long_as_a_rebalance() -> None:
    settings = {**QUICK, "rebalance_timeout_ms": 60_000, "request_timeout_ms": 1_000}
    async with (
        HostileProxy(Malice(mute_after=ApiKey.JOIN_GROUP), random.Random(1)) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as c,
    ):
        proxy.upstream_port = int(c.address.rpartition(":")[2])
        await create(c.address, t=2)
        async with Consumer("t", bootstrap_servers=f"127.0.0.1:{proxy.port}", group_id="g", **settings) as consumer:
            await until(lambda: "muted" in proxy.done)
            await asyncio.sleep(0.2)
            proxy.malice = Malice()  # the connection works again; what was under way is lost
            await until(lambda: len(consumer.assignment()) == 2)


@pytest.mark.parametrize("group_id", ["g", None])
async def test_a_subscription_that_changes_while_the_consumer_starts_is_read(group_id: str | None) -> None:
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=1, u=1)
        await fill(c.address, "u", range(3))
        await admin.alter_offsets("g", {TopicPartition("u", 0): 0})  # so that no position has to be looked up
        consumer = Consumer("t", bootstrap_servers=c.address, group_id=group_id, **QUICK)
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        consumer.subscribe(["t", "u"])
        await starting
        assert await take(consumer, 3) == [0, 1, 2]
        await consumer.stop()


async def test_a_stuck_program_loses_its_partitions_is_told_once_and_comes_back() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(10))
        journal = Journal()
        stuck = Consumer(bootstrap_servers=c.address, group_id="g", max_poll_interval_ms=300, **QUICK)
        stuck.subscribe(["t"], listener=journal)
        async with stuck:
            record = await stuck.getone()
            async with Consumer("t", bootstrap_servers=c.address, group_id="g", **QUICK) as other:
                reader = Reader(other)
                await until(lambda: len(other.assignment()) == 2)
                assert stuck.state == "fenced"
                await until(lambda: len(reader.records) == 10)
                with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
                    await stuck.commit(record)
                with pytest.raises(MaxPollIntervalExceededError, match=r"more than max_poll_interval_ms \(300 ms\)"):
                    await stuck.getone()
                assert journal.events[-1] == ("lost", [("t", 0), ("t", 1)])
                assert "made no progress" in journal.reasons[-1]
                waiting = asyncio.create_task(stuck.getone())
                await until(lambda: len(stuck.assignment()) == 1)
            await fill(c.address, "t", range(10, 20))
            assert int((await waiting).value) >= 10


async def test_a_lease_lets_slow_work_on_a_record_go_on_and_a_stuck_program_is_found_when_it_is_over() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(3))
        async with Consumer(
            "t", bootstrap_servers=c.address, group_id="g", max_poll_interval_ms=300, **QUICK
        ) as consumer:
            record = await consumer.getone()
            for _ in range(3):
                consumer.lease(record, 2)
                await asyncio.sleep(0.6)
                assert consumer.state == "stable"
            await consumer.commit(record)
            record = await consumer.getone()
            consumer.lease(record, 2)
            await asyncio.sleep(0.6)
            assert consumer.state == "stable"
            await until(lambda: consumer.state == "fenced")
            with pytest.raises(MaxPollIntervalExceededError):
                await consumer.getone()
            with pytest.raises(IllegalStateError, match="offset 1 of t-0 is not in work at this consumer"):
                consumer.lease(record, 1)
            with pytest.raises(ValueError, match="a lease of 0 seconds"):
                consumer.lease(record, 0)


async def test_a_stuck_program_is_found_however_often_the_group_rebalances() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(10))
        settings = {**QUICK, "revoke_grace_ms": 0, "bootstrap_servers": c.address, "group_id": "g"}
        async with (
            Consumer("t", max_poll_interval_ms=1000, rebalance_timeout_ms=5000, **settings) as stuck,
            Consumer("t", **settings) as other,
        ):
            await until(lambda: len(other.assignment()) == len(stuck.assignment()) == 1)
            await stuck.getmany(timeout_ms=1000)
            for _ in range(8):
                await other.enforce_rebalance("another one")
                await asyncio.sleep(0.3)
            assert stuck.state == "fenced"
            await until(lambda: len(other.assignment()) == 2)


async def test_a_commit_of_everything_fails_when_what_is_in_hand_was_lost() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        settings = {**QUICK, "bootstrap_servers": c.address, "group_id": "g", "enable_auto_commit": False}
        async with Consumer("t", max_poll_interval_ms=300, **settings) as stuck:
            await take(stuck, 4)
            await until(lambda: stuck.state == "fenced" and not stuck.assignment())
            with pytest.raises(
                CommitFailedError, match=r"t-0 is not this consumer's: it was lost .*max_poll_interval_ms"
            ):
                await stuck.commit()
        with pytest.raises(ClosedError, match="was stopped"):
            await stuck.commit()


async def test_a_commit_of_everything_fails_when_what_is_in_hand_went_and_came_back() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        settings = {**QUICK, "bootstrap_servers": c.address, "group_id": "g", "enable_auto_commit": False}
        async with Consumer("t", revoke_grace_ms=30_000, **settings) as consumer:
            await take(consumer, 4)
            began_s = asyncio.get_running_loop().time()
            await consumer.enforce_rebalance("because")
            assert asyncio.get_running_loop().time() - began_s < 2  # no grace for a program that waits here itself
            with pytest.raises(CommitFailedError, match=r"t-0 is not this consumer's: it was revoked .*because"):
                await consumer.commit()
            assert await take(consumer, 1) == [0]  # so the four come again
            await consumer.commit()


async def test_a_program_that_waits_for_records_is_not_stuck() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        consumer = Consumer("t", bootstrap_servers=c.address, group_id="g", max_poll_interval_ms=200, **QUICK)
        async with consumer:
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.6)
            await fill(c.address, "t", [7])
            assert (await waiting).value == b"7"
            assert consumer.group_metadata().generation == 1


async def test_polls_cancelled_at_any_moment_lose_nothing() -> None:
    draw = random.Random(20)
    async with Coordinator() as c:
        await create(c.address, t=3)
        await fill(c.address, "t", range(600))
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", max_poll_records=5, **QUICK) as consumer:
            got: list[int] = []
            cancelled = 0
            while len(got) < 600:
                poll = consumer.getone() if draw.random() < 0.5 else consumer.getmany(timeout_ms=100)
                task: asyncio.Task[Any] = asyncio.ensure_future(poll)
                for _ in range(draw.choice([0, 1, 2, 3, 10])):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    result = await task
                except asyncio.CancelledError:
                    cancelled += 1
                    continue
                batches = result.values() if isinstance(result, dict) else [[result]]
                got += [int(record.value) for batch in batches for record in batch]
        assert sorted(got) == list(range(600))
        assert cancelled > 50


async def test_starting_without_a_daemon_says_what_to_look_for() -> None:
    consumer = Consumer("t", bootstrap_servers="127.0.0.1:1", group_id="g", request_timeout_ms=300)
    with pytest.raises(RequestTimedOutError, match="is a daemon listening there"):
        await consumer.start()
    await asyncio.wait_for(consumer.stop(), 20)


async def test_stopping_is_bounded_when_the_daemon_is_gone() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        consumers = [Consumer("t", bootstrap_servers=c.address, group_id="g", **QUICK) for _ in range(2)]
        for consumer in consumers:
            await consumer.start()
        await until(lambda: all(consumer.state == "stable" for consumer in consumers))
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(consumer.stop(timeout=1.5) for consumer in consumers))
    assert asyncio.get_running_loop().time() - began < 3
    assert all(consumer.state == "closed" for consumer in consumers)


async def test_a_daemon_that_restarts_is_found_again_without_a_word_of_the_program(tmp_path: Path) -> None:
    async with Coordinator(str(tmp_path)) as c:
        port = int(c.address.rpartition(":")[2])
        await create(c.address, t=2)
        await fill(c.address, "t", range(10))
        consumer = Consumer("t", bootstrap_servers=c.address, group_id="g", **{**QUICK, "session_timeout_ms": 10_000})
        await consumer.start()
        reader = Reader(consumer)
        await until(lambda: len(reader.records) == 10)
        generation = consumer.group_metadata().generation
    await asyncio.sleep(0.3)
    async with Coordinator(str(tmp_path), port=port) as c:
        await fill(c.address, "t", range(10, 20))
        await until(lambda: len(reader.records) == 20)
        assert sorted(reader.numbers) == list(range(20))
        assert consumer.group_metadata().generation == generation
        await consumer.stop()


async def test_a_member_that_could_not_be_heard_knows_that_its_share_is_gone(tmp_path: Path) -> None:
    async with Coordinator(str(tmp_path)) as c:
        port = int(c.address.rpartition(":")[2])
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        journal = Journal()
        consumer = Consumer(bootstrap_servers=c.address, group_id="g", **{**QUICK, "session_timeout_ms": 500})
        consumer.subscribe(["t"], listener=journal)
        await consumer.start()
        await take(consumer, 5)
    await until(lambda: len(journal.events) == 2)
    assert journal.events[1] == ("lost", [("t", 0)])
    assert "no heartbeat was answered" in journal.reasons[1]
    assert await consumer.getmany(timeout_ms=10) == {}
    async with Coordinator(str(tmp_path), port=port):
        assert await take(consumer, 6) == [4, *range(5, 10)] or consumer.state == "stable"
        await consumer.stop()


async def test_a_handler_that_blocks_through_a_rebalance_is_handed_nothing_after_it(tmp_path: Path) -> None:
    quick = QUICK | {"rebalance_timeout_ms": 500}
    slow = quick | {"session_timeout_ms": 15_000, "heartbeat_interval_ms": 5_000}  # it asks too rarely to hear in time

    async def next_owner(address: str) -> list[int]:
        async with Consumer("t", bootstrap_servers=address, group_id="g", **quick) as consumer:
            return await take(consumer, 10, 3)

    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=1)
        await fill(daemon.address, "t", range(10))
        async with Consumer("t", bootstrap_servers=daemon.address, group_id="g", **slow) as consumer:
            assert await take(consumer, 1) == [0]
            other = asyncio.create_task(asyncio.to_thread(asyncio.run, next_owner(daemon.address)))
            await asyncio.sleep(0)
            block_the_loop(2.5)
            with pytest.raises(TimeoutError):  # not even records that were fetched before
                await take(consumer, 1, 0.01)
            assert await other == list(range(10))


async def test_a_record_of_an_earlier_assignment_cannot_be_committed_since_it_comes_again() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(6))
        settings = QUICK | {"enable_auto_commit": False, "revoke_grace_ms": 0}
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", **settings) as consumer:
            early = [await consumer.getone() for _ in range(4)]
            await consumer.commit(early[0])
            await consumer.enforce_rebalance("to lose it and get it back")
            with pytest.raises(
                CommitFailedError, match=r"record 3 of t-0 was handed out in an earlier assignment: it was"
            ):
                await consumer.commit(early[3])
            assert await take(consumer, 3) == [1, 2, 3]
            await consumer.commit(early[3])  # handed out again by now
            assert await consumer.committed() == {("t", 0): (4, "", -1)}


class SleptBackground(BackgroundThread):
    """Its clock can be put forward, as it is for a process that was suspended; its loop does not know yet."""

    slept_s = 0.0

    def time(self) -> float:
        return super().time() + self.slept_s


async def test_what_was_fetched_before_a_process_slept_longer_than_its_session_is_not_handed_out_after_it() -> None:
    background = SleptBackground()
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", background=background, **QUICK) as consumer:
            assert await take(consumer, 1) == [0]
            background.slept_s = QUICK["session_timeout_ms"] / 1000
            assert await consumer.getmany() == {}
            background.slept_s = 0.0
            assert await take(consumer, 9) == list(range(1, 10))
    background.stop()


async def test_a_member_knows_that_its_machine_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of sessions goes on while time.monotonic stands still."""
    slept_s = 0.0
    monkeypatch.setattr("client.transport.background_loop._CLOCK", 7)
    monkeypatch.setattr("client.transport.background_loop.time.clock_gettime", lambda _: time.monotonic() + slept_s)
    background = BackgroundThread()
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", background=background, **QUICK) as consumer:
            assert await take(consumer, 1) == [0]
            slept_s = 3600.0
            assert await consumer.getmany() == {}, "others may have the partition"
            assert await take(consumer, 10) == list(range(10)), "it joins again by itself; nothing was committed"
    background.stop()


def test_the_clock_of_sessions_goes_on_while_the_machine_sleeps() -> None:
    """Where the system has such a clock: on Linux and macOS."""
    loop = AwareLoop()
    names = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}
    number = getattr(time, names.get(sys.platform, ""), None)
    try:
        before = time.monotonic() if number is None else time.clock_gettime(number)
        assert before <= loop.time() <= before + 60
    finally:
        loop.close()


async def test_the_same_logic_runs_on_one_loop_without_threads() -> None:
    async with Coordinator() as c:
        await create(c.address, t=4)
        await fill(c.address, "t", range(20))
        settings = {**QUICK, "bootstrap_servers": c.address, "group_id": "g"}
        async with Consumer("t", background=SameLoop(), **settings) as first:
            got = await take(first, 20)
            await first.commit()
            async with Consumer("t", background=SameLoop(), **settings) as second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            await until(lambda: len(first.assignment()) == 4)
        assert sorted(got) == list(range(20))
