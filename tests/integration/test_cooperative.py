"""Cooperative rebalancing (KIP-429): what stays is read on, what goes is given up once, and nothing has two owners."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from client import (
    Admin,
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    IllegalStateError,
    RangeAssignor,
    TopicPartition,
)
from coordinator import Coordinator
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import QUICK, Reader, create, fill, take, until
from tests.integration.owning import KeepingAssignor, Register, Registered


def member(address: str, listener: Registered | None = None, topic: str = "t", **settings: Any) -> Consumer:
    chosen = {**QUICK, "assignors": [KeepingAssignor], "client_id": listener.name if listener else "c", **settings}
    consumer = Consumer(bootstrap_servers=address, group_id="g", **chosen)
    consumer.subscribe([topic], listener=listener)
    return consumer


def shares(*consumers: Consumer) -> list[int]:
    return [len(consumer.assignment()) for consumer in consumers]


def settled(*consumers: Consumer) -> bool:
    generations = {consumer.group_metadata().generation for consumer in consumers}
    return len(generations) == 1 and all(consumer.state == "stable" for consumer in consumers)


async def test_only_what_moves_is_revoked_and_the_second_rebalance_comes_by_itself() -> None:
    register = Register()
    a, b = register.listener("a"), register.listener("b")
    async with Coordinator() as c:
        await create(c.address, t=4)
        async with member(c.address, a) as first:
            await until(lambda: shares(first) == [4])
            async with member(c.address, b) as second:
                await until(lambda: shares(first, second) == [2, 2] and settled(first, second))
                assert a.events == [("assigned", [0, 1, 2, 3]), ("revoked", [2, 3])]
                assert b.events == [("assigned", [2, 3])]
                assert first.group_metadata().generation == 3
                assert "b-" in a.reasons[1]
                assert "joined" in a.reasons[1]
                assert "gave up 2 partitions: t-2, t-3" in b.reasons[0]
            await until(lambda: shares(first) == [4])
            assert a.events[2:] == [("assigned", [2, 3])]
        assert a.events[3:] == [("revoked", [0, 1, 2, 3])]
    assert not register.faults
    assert not register.owners


async def test_while_the_group_waits_for_a_slow_member_the_others_read_and_commit_on() -> None:
    leave = asyncio.Event()

    class Slow(Registered):
        async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
            await leave.wait()
            super().on_partitions_revoked(tps, reason)

    register = Register()
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=3)
        a, b = register.listener("a"), Slow("b", register)
        first = await stack.enter_async_context(member(c.address, a, revoke_grace_ms=0))
        second = await stack.enter_async_context(member(c.address, b, revoke_grace_ms=0))
        await until(lambda: sorted(shares(first, second)) == [1, 2] and settled(first, second))
        third = await stack.enter_async_context(member(c.address, register.listener("c")))
        try:
            if shares(second) == [2]:
                await until(lambda: second.group_metadata().generation > first.group_metadata().generation - 1)
            second.subscribe(["other"], listener=b)  # it gives up everything first, which takes as long as it is let
            await until(lambda: first.state == "rebalancing")
            await fill(c.address, "t", range(30))
            mine = sorted(first.assignment())
            got = await take(first, 10 * len(mine))
            assert len(got) == 10 * len(mine)
            assert first.state == "rebalancing"
            await first.commit()
            assert {tp: found.offset for tp, found in (await first.committed()).items() if found} == dict.fromkeys(
                mine, 10
            )
        finally:
            leave.set()
        await until(lambda: sorted(shares(first, second, third)) == [0, 1, 2] and settled(first, second, third))
    assert not register.faults


async def test_members_that_come_and_go_under_load_lose_and_repeat_nothing() -> None:
    register = Register()
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=6)
        readers: list[Reader] = []

        async def join(name: str) -> Reader:
            made = member(c.address, register.listener(name), auto_commit_interval_ms=20)
            readers.append(Reader(await stack.enter_async_context(made)))
            return readers[-1]

        async def feed() -> None:
            for start in range(0, 6_000, 100):
                await fill(c.address, "t", range(start, start + 100))
                await asyncio.sleep(0.01)

        feeding = asyncio.create_task(feed())
        first = await join("a")
        await until(lambda: len(first.records) > 300)
        second = await join("b")
        third = await join("c")
        await until(lambda: len(second.records) > 100 and len(third.records) > 100)
        await first.consumer.stop()
        fourth = await join("d")
        await until(lambda: len(fourth.records) > 100)
        await second.consumer.stop()
        await feeding
        await until(lambda: sum(len(reader.records) for reader in readers) >= 6_000)
        await asyncio.sleep(0.05)
        assert Counter(number for reader in readers for number in reader.numbers) == Counter(range(6_000))
    assert not register.faults


async def test_a_commit_that_meets_the_change_of_generation_is_stored_in_the_next() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=4)
        await fill(c.address, "t", range(4000))
        first = await stack.enter_async_context(member(c.address, enable_auto_commit=False))
        await until(lambda: shares(first) == [4])
        failed: list[CommitFailedError] = []
        committed = 0
        done = asyncio.Event()

        async def commit_all_the_time() -> None:
            nonlocal committed
            while not done.is_set():
                await first.getmany(max_records=1)
                try:
                    await first.commit()
                    committed += 1
                except CommitFailedError as error:
                    failed.append(error)

        committing = asyncio.create_task(commit_all_the_time())
        for _ in range(4):
            async with member(c.address) as other:
                await until(lambda: shares(first, other) == [2, 2] and settled(first, other))
            await until(lambda: shares(first) == [4] and settled(first))
        done.set()
        await committing
        assert committed > 10
        for error in failed:  # only of partitions that went while they were committed
            assert any(isinstance(why, IllegalStateError) for why in error.partitions.values()), error


async def test_a_changed_subscription_gives_up_its_topics_before_the_group_forms_anew() -> None:
    register = Register()
    a, b = register.listener("a"), register.listener("b")
    async with Coordinator() as c:
        await create(c.address, t=2, other=2)
        async with member(c.address, a) as first, member(c.address, b) as second:
            await until(lambda: shares(first, second) == [1, 1] and settled(first, second))
            first.subscribe(["t", "other"], listener=a)
            await until(lambda: shares(first, second) == [3, 1] and settled(first, second))
            assert all(what == "assigned" for what, _ in a.events[-1:])
            kept = sorted(tp.partition for tp in first.assignment() if tp.topic == "t")
            first.subscribe(["other"], listener=a)
            await until(lambda: shares(first, second) == [2, 2] and settled(first, second))
            assert a.events[-1] == ("revoked", kept)
            assert a.reasons[-1] == "the subscription changed"
    assert not register.faults


async def test_handlers_of_what_stays_go_on_and_those_of_what_goes_are_cancelled_in_time() -> None:
    running: dict[int, int] = {}
    cancelled: list[int] = []
    others: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        running[record.partition] = record.offset
        try:
            await asyncio.sleep(60 if record.offset == 2 else 0)
        except asyncio.CancelledError:
            cancelled.append(record.partition)
            raise

    async def hear(record: ConsumerRecord) -> None:
        others.append(record.offset)

    register = Register()
    async with Coordinator() as c:
        await create(c.address, t=2)
        for partition in range(2):
            await fill(c.address, "t", range(5), partition)
        async with member(c.address, register.listener("a"), revoke_grace_ms=100) as first:
            working = asyncio.create_task(first.process(handle))
            await until(lambda: running == {0: 2, 1: 2})
            async with member(c.address, register.listener("b")) as second:
                listening = asyncio.create_task(second.process(hear))
                await until(lambda: others == [2, 3, 4])  # two were finished and committed, the third was not
                (gone,) = second.assignment()
                assert cancelled == [gone.partition]
                assert not working.done()
            await listening
            await first.stop()
            await working
    assert sorted(cancelled) == [0, 1]
    assert not register.faults


async def test_partitions_that_are_added_move_nothing() -> None:
    register = Register()
    a, b = register.listener("a"), register.listener("b")
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=2)
        async with member(c.address, a) as first, member(c.address, b) as second:
            await until(lambda: shares(first, second) == [1, 1] and settled(first, second))
            before = [*a.events, *b.events]
            await admin.create_partitions({"t": 4})
            await until(lambda: shares(first, second) == [2, 2] and settled(first, second))
            assert sorted([*a.events, *b.events]) == sorted([*before, ("assigned", [2]), ("assigned", [3])])
            assert "has 4 partitions now and had 2" in a.reasons[-1]
    assert not register.faults


async def test_what_is_held_is_told_with_its_generation() -> None:
    assignor = KeepingAssignor()
    async with Coordinator() as c:
        await create(c.address, t=2)
        async with member(c.address, assignors=[assignor]) as first:
            await until(lambda: shares(first) == [2])
            async with member(c.address) as second:
                await until(lambda: shares(first, second) == [1, 1] and settled(first, second))
                ids = {first.group_metadata().member_id: 1, second.group_metadata().member_id: 2}
            await until(lambda: shares(first) == [2])
        told = [
            {ids.get(member_id): (len(each.owned_partitions), each.generation) for member_id, each in asked.items()}
            for asked in assignor.asked
        ]
        assert told == [{1: (0, -1)}, {1: (2, 1), 2: (0, -1)}, {1: (1, 2), 2: (0, -1)}, {1: (1, 3)}]


async def test_a_group_moves_from_eager_to_cooperative_without_two_owners_or_a_stop() -> None:
    register = Register()

    def old(name: str, address: str) -> Consumer:
        return member(address, register.listener(name), assignors=[RangeAssignor])

    def both(name: str, address: str) -> Consumer:
        return member(address, register.listener(name), assignors=[RangeAssignor, KeepingAssignor])

    def new(name: str, address: str) -> Consumer:
        return member(address, register.listener(name))

    async with Coordinator() as c, AsyncExitStack() as stack, Admin(c.address) as admin:
        await create(c.address, t=9)
        running = [await stack.enter_async_context(old(f"old{number}", c.address)) for number in range(3)]
        await until(lambda: shares(*running) == [3, 3, 3])
        for step, make in (("both", both), ("new", new)):
            for number in range(3):
                await running.pop(0).stop()
                running.append(await stack.enter_async_context(make(f"{step}{number}", c.address)))
                await until(lambda: shares(*running) == [3, 3, 3] and settled(*running))
                described = (await admin.describe_groups("g"))["g"]
                assert described.protocol == ("range" if make is both else "keeping")
        assert len(register.owners) == 9
    assert not register.faults


@pytest.mark.parametrize("kills", [1, 3])
async def test_a_daemon_that_dies_again_and_again_makes_no_second_owner(tmp_path: Path, kills: int) -> None:
    register = Register()
    listeners = [register.listener(name) for name in "abc"]
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=6)
        async with AsyncExitStack() as stack:
            made = [member(daemon.address, listener, session_timeout_ms=3_000) for listener in listeners]
            running = [await stack.enter_async_context(consumer) for consumer in made[:2]]
            await until(lambda: shares(*running) == [3, 3] and settled(*running))
            running.append(await stack.enter_async_context(made[2]))
            for _ in range(kills):
                daemon.kill()
                daemon.start()
                await asyncio.sleep(0.05)
            await until(lambda: shares(*running) == [2, 2, 2] and settled(*running), 20)
    assert not register.faults


async def test_a_member_whose_session_ended_has_lost_everything_and_says_so() -> None:
    register = Register()
    a = register.listener("a")
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=2)
        async with member(c.address, a) as first:
            await until(lambda: shares(first) == [2] and settled(first))
            await admin.remove_members("g", first.group_metadata().member_id, reason="maintenance")
            await until(lambda: len(a.events) == 3)
            assert a.events == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
            assert "maintenance" in a.reasons[1]


async def test_stopping_in_the_middle_of_a_rebalance_commits_and_leaves() -> None:
    gate = asyncio.Event()
    gate.set()

    class Slow(Registered):
        async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
            await gate.wait()
            super().on_partitions_revoked(tps, reason)

    register = Register()
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(20))
        first = member(c.address, register.listener("a"))
        slow = Slow("b", register)
        await first.start()
        second = await stack.enter_async_context(member(c.address, slow, assignors=[KeepingAssignor]))
        await until(lambda: shares(first, second) == [1, 1] and settled(first, second))
        assert len(await take(first, 10)) == 10
        gate.clear()  # only now: on a machine that is busy enough more partitions may have moved to and fro before
        second.subscribe(["other"], listener=slow)
        first.subscribe(["t", "other"], listener=register.listener("a"))
        await until(lambda: first.state == "rebalancing")
        await asyncio.sleep(0.1)  # its join is parked: the group waits for the second
        await first.getmany()
        await asyncio.wait_for(first.stop(), 20)
        gate.set()
        await until(lambda: second.state == "stable")
        found = await second.committed(TopicPartition("t", 0), TopicPartition("t", 1))
        assert sum(each.offset for each in found.values() if each) >= 10
