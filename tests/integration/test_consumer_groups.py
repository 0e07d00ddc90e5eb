"""Consumers of one group: sharing, taking over, following their topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
import structlog

from client import (
    Admin,
    Assignor,
    CohortError,
    Consumer,
    IllegalStateError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    RangeAssignor,
    RebalanceListener,
    RoundRobinAssignor,
    TopicPartition,
)
from client.assignors import CooperativeStickyAssignor
from coordinator import Coordinator
from tests.integration.consuming import QUICK, Journal, Reader, create, fill, take, until


def member(address: str, *topics: str, **settings: Any) -> Consumer:
    return Consumer(*topics, bootstrap_servers=address, group_id="g", **{**QUICK, **settings})


class Slow(Journal):
    """Takes its time to give up its partitions, so that a rebalance lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
        super().on_partitions_revoked(tps, reason)
        await self.may_go_on.wait()


async def test_two_share_and_one_takes_over_when_the_other_stops() -> None:
    async with Coordinator() as c:
        await create(c.address, t=5)
        async with member(c.address, "t") as first:
            await until(lambda: len(first.assignment()) == 5)
            async with member(c.address, "t") as second:
                await until(lambda: {len(first.assignment()), len(second.assignment())} == {2, 3})
                assert not first.assignment() & second.assignment()
                await until(lambda: first.state == second.state == "stable")
                assert first.group_metadata().generation == second.group_metadata().generation == 2
            assert second.state == "closed"
            await until(lambda: len(first.assignment()) == 5)


async def test_a_graceful_handover_under_load_neither_loses_nor_repeats() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=6)
        feeding = asyncio.create_task(feed(c.address, 6_000))
        readers = [Reader(await stack.enter_async_context(member(c.address, "t")))]
        await until(lambda: len(readers[0].records) > 500)
        readers.append(Reader(await stack.enter_async_context(member(c.address, "t"))))
        await until(lambda: len(readers[1].records) > 200)
        await readers[0].consumer.stop()
        await feeding
        await until(lambda: sum(len(reader.records) for reader in readers) >= 6_000)
        await asyncio.sleep(0.05)
        counted = Counter(number for reader in readers for number in reader.numbers)
        assert counted == Counter(range(6_000))
        assert readers[0].task.done()


async def feed(address: str, count: int) -> None:
    for start in range(0, count, 200):
        await fill(address, "t", range(start, start + 200))
        await asyncio.sleep(0.01)


async def test_fifty_that_join_together_settle() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=100)
        consumers = [member(c.address, "t", session_timeout_ms=10_000) for _ in range(50)]
        for consumer in consumers:
            stack.push_async_callback(consumer.stop)
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        await until(lambda: all(len(consumer.assignment()) == 2 for consumer in consumers), 30)
        owned = [tp for consumer in consumers for tp in consumer.assignment()]
        assert len(set(owned)) == 100
        await asyncio.gather(*(consumer.stop() for consumer in consumers))


async def test_the_listener_hears_everything_in_order_with_the_reason() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        journal = Journal()
        first = member(c.address)
        first.subscribe(["t"], listener=journal)
        async with first:
            await until(lambda: len(journal.events) == 1)
            async with member(c.address, "t", client_id="newcomer") as second:
                await until(lambda: len(second.assignment()) == 1)
            await until(lambda: len(journal.events) == 5)
        both, share = [("t", 0), ("t", 1)], journal.events[2][1]
        assert journal.events == [
            ("assigned", both),
            ("revoked", both),
            ("assigned", share),
            ("revoked", share),
            ("assigned", both),
            ("revoked", both),
        ]
        assert len(share) == 1
        assert all("newcomer" in reason and "joined" in reason for reason in journal.reasons[1:3])
        assert all("newcomer" in reason and "left: closing" in reason for reason in journal.reasons[3:5])
        assert journal.reasons[5] == "closing"


async def test_a_listener_that_lacks_methods_takes_part_in_every_rebalance() -> None:
    class OnlyAssigned:
        def __init__(self) -> None:
            self.shares: list[int] = []

        async def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
            self.shares.append(len(tps))

    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=2)
        listener, consumer = OnlyAssigned(), member(c.address, assignors=[RangeAssignor])
        consumer.subscribe(["t"], listener=cast("RebalanceListener", listener))
        async with consumer:
            await until(lambda: listener.shares == [2])
            async with member(c.address, "t", assignors=[RangeAssignor]) as second:  # revoked
                await until(lambda: len(consumer.assignment()) == len(second.assignment()) == 1)
            await until(lambda: listener.shares == [2, 1, 2])
            await admin.remove_members("g", all_members=True, reason="upkeep")  # lost
            await until(lambda: listener.shares == [2, 1, 2, 2] and consumer.state == "stable")
            assert await consumer.getmany() == {}, "there is nothing to raise"


async def test_an_exception_of_a_listener_reaches_the_next_call_and_the_group_goes_on() -> None:
    class Clumsy(Journal):
        def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
            raise KeyError("cache")

    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        first = member(c.address)
        first.subscribe(["t"], listener=Clumsy())
        async with first:
            await until(lambda: len(first.assignment()) == 2)
            second = await stack.enter_async_context(member(c.address, "t"))
            await until(lambda: len(second.assignment()) == 1)
            with pytest.raises(KeyError, match="cache") as caught:
                await take(first, 1)
            assert "on_partitions_revoked" in caught.value.__notes__[0]
            assert len(await take(first, 1)) == 1


async def test_a_pattern_picks_up_a_new_topic_within_a_second() -> None:
    async with Coordinator() as c:
        await create(c.address, logs_a=1, other=1)
        journal = Journal()
        consumer = member(c.address)
        consumer.subscribe(pattern="logs_.", listener=journal)
        async with consumer, member(c.address) as second:
            second.subscribe(pattern="logs_.")
            await until(lambda: len(consumer.assignment()) + len(second.assignment()) == 1)
            await create(c.address, logs_b=2)
            await until(lambda: len(consumer.assignment() | second.assignment()) == 3, 10)
            assert {tp.topic for tp in consumer.assignment() | second.assignment()} == {"logs_a", "logs_b"}
            await until(lambda: any("new logs_b" in reason for reason in journal.reasons), 10)


async def test_a_pattern_given_to_a_running_consumer_matches_the_topics_that_are_there() -> None:
    async with Coordinator() as c:
        await create(c.address, logs_a=1, other=1)
        async with member(c.address) as consumer:
            consumer.subscribe(pattern="logs_.")
            await until(lambda: {tp.topic for tp in consumer.assignment()} == {"logs_a"})
            await create(c.address, logs_b=1)
            await until(lambda: {tp.topic for tp in consumer.assignment()} == {"logs_a", "logs_b"})


async def test_added_partitions_and_topics_that_come_late_are_shared_out() -> None:
    async with Coordinator() as c:
        async with member(c.address, "t") as first, member(c.address, "t") as second:
            await until(lambda: first.state == second.state == "stable")
            await create(c.address, t=2)
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1, 10)
            async with Admin(c.address) as admin:
                await admin.create_partitions({"t": 6})
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 3, 10)
            await fill(c.address, "t", [5], partition=5)
            readers = [Reader(first), Reader(second)]
            await until(lambda: any(reader.records for reader in readers))
        assert [number for reader in readers for number in reader.numbers] == [5]


async def test_without_a_group_a_consumer_follows_its_topics_alone() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(10))
        consumer = Consumer(bootstrap_servers=c.address, auto_offset_reset="earliest")
        consumer.subscribe(pattern="t")
        async with consumer:
            assert sorted(await take(consumer, 10)) == list(range(10))
            async with Admin(c.address) as admin:
                await admin.create_partitions({"t": 3})
            await until(lambda: len(consumer.assignment()) == 3)
            await fill(c.address, "t", [10], partition=2)
            assert await take(consumer, 1) == [10]


async def test_a_changed_subscription_and_unsubscribing_move_partitions() -> None:
    async with Coordinator() as c:
        await create(c.address, a=1, b=2)
        async with member(c.address, "a") as first, member(c.address, "a", "b") as second:
            await until(lambda: len(first.assignment() | second.assignment()) == 3)
            first.subscribe(["b"])
            await until(lambda: {tp.topic for tp in first.assignment()} == {"b"})
            await until(lambda: {tp.topic for tp in second.assignment()} == {"a", "b"})
            first.unsubscribe()
            await until(lambda: len(second.assignment()) == 3)
            assert first.state == "unjoined"
            first.subscribe(["a"])
            await until(lambda: first.state == "stable" and len(first.assignment() | second.assignment()) == 3)


async def test_unsubscribing_and_subscribing_in_one_breath_ends_up_subscribed() -> None:
    async with Coordinator() as c:
        await create(c.address, a=1, b=1)
        async with member(c.address, "a") as consumer:
            for pause in (0, 0.001, 0.02):
                for topic in ("b", "a"):
                    consumer.unsubscribe()
                    await asyncio.sleep(pause)
                    consumer.subscribe([topic])
                    await until(lambda topic=topic: consumer.assignment() == {TopicPartition(topic, 0)})  # type: ignore[misc]
            await until(lambda: consumer.state == "stable")


async def test_after_unsubscribing_partitions_can_be_assigned_and_committed() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        t0 = TopicPartition("t", 0)
        journal = Journal()
        consumer = member(c.address)
        consumer.subscribe(["t"], listener=journal)
        async with consumer:
            assert await take(consumer, 4) == [0, 1, 2, 3]
            consumer.unsubscribe()
            consumer.assign([t0])
            assert await take(consumer, 2) == [3, 4]  # three were done; the fourth was in work
            assert consumer.assignment() == {t0}
            assert [what for what, _ in journal.events] == ["assigned", "revoked"]
            await consumer.commit({t0: 4})
            assert await take(consumer, 2) == [5, 6]
            consumer.assign([])
            consumer.assign([t0])
            assert await take(consumer, 2) == [6, 7]  # what was done with was committed when it was dropped
            consumer.unsubscribe()
            found = (await consumer.committed(t0))[t0]
            assert found is not None
            assert found.offset == 7
            consumer.subscribe(["t"])
            assert await take(consumer, 1) == [7]
            assert consumer.group_metadata().member_id


async def test_stopping_in_the_same_breath_as_unsubscribing_does_not_hang() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        consumer = member(c.address, "t")
        await consumer.start()
        await until(lambda: consumer.state == "stable")
        consumer.unsubscribe()
        await asyncio.wait_for(consumer.stop(), 20)


async def test_a_second_stop_waits_for_the_first_and_finishes_what_a_cancelled_one_has_left() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        for cancelled in (False, True):
            slow, consumer = Slow(), member(c.address)
            consumer.subscribe(["t"], listener=slow)
            await consumer.start()
            await until(lambda: bool(consumer.assignment()))  # noqa: B023
            first = asyncio.create_task(consumer.stop())
            await until(lambda: "closing" in slow.reasons)  # noqa: B023
            second = asyncio.create_task(consumer.stop())
            short = asyncio.create_task(consumer.stop(timeout=0.05))
            await asyncio.wait([second], timeout=0.3)
            await asyncio.wait_for(short, 20)  # its own time is over
            assert not first.done()
            assert not second.done(), "the consumer has not stopped"
            if cancelled:
                first.cancel()
            slow.may_go_on.set()
            await second
            assert first.done()
            assert consumer._lifecycle.stopped
            assert not consumer.assignment()


async def test_a_listener_cannot_stop_its_consumer_and_does_not_hang_trying() -> None:
    class Stopping(Journal):
        async def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
            await consumer.stop()

    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", [1])
        consumer = member(c.address)
        consumer.subscribe(["t"], listener=Stopping())
        async with consumer:
            with pytest.raises(IllegalStateError, match="rebalance callback"):
                await consumer.getone()
            assert await take(consumer, 1) == [1]


async def test_a_listener_may_ask_and_commit_while_its_consumer_stops() -> None:
    class Closing(Journal):
        async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
            for tp in tps:
                positions.append(await consumer.position(tp))
                await consumer.commit({tp: positions[-1]})
            raise ArithmeticError("that was all")

    positions: list[int] = []
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(10))
        consumer = member(c.address, enable_auto_commit=False)
        consumer.subscribe(["t"], listener=Closing())
        with structlog.testing.capture_logs() as logs:
            async with consumer:
                await take(consumer, 4)
        assert positions == [4]
        (line,) = [line for line in logs if line["event"] == "rebalance_listener_failed"]
        assert "that was all" in line["error"]
        async with member(c.address, "t") as second:
            assert await take(second, 1) == [4]


async def test_a_listener_that_lets_a_cancellation_out_has_failed_and_the_rebalance_goes_on() -> None:
    class Cancelling(Journal):
        async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
            work = asyncio.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            work.cancel()
            await work

    async with Coordinator() as c:
        await create(c.address, t=2)
        consumer = member(c.address)
        consumer.subscribe(["t"], listener=Cancelling())
        async with consumer:
            await until(lambda: len(consumer.assignment()) == 2)
            async with member(c.address, "t") as second:
                with pytest.raises(CohortError, match=r"on_partitions_revoked .* ended with CancelledError"):
                    await consumer.getone()
                await until(lambda: len(consumer.assignment()) == len(second.assignment()) == 1)


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("cancellations", [1, 2])
async def test_a_cancelled_stop_leaves_the_group_and_closes_everything(steps: int, cancellations: int) -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        journal = Journal()
        consumer = member(c.address, session_timeout_ms=60_000)
        consumer.subscribe(["t"], listener=journal)
        await consumer.start()
        await until(lambda: consumer.state == "stable")
        stopping = asyncio.create_task(consumer.stop())
        for _ in range(cancellations):
            for _ in range(steps):
                await asyncio.sleep(0)
            stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        async with member(c.address, "t") as heir:
            await until(lambda: len(heir.assignment()) == 1)
        await consumer.stop()
        assert consumer.assignment() == frozenset()
        assert [what for what, _ in journal.events] in (["assigned", "revoked"], ["assigned", "lost"])
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("cohort-fetch")]


async def test_a_rebalance_can_be_enforced_by_any_member_and_shows_its_reason() -> None:
    async with Coordinator() as c:
        await create(c.address, t=2)
        journal = Journal()
        first = member(c.address)
        first.subscribe(["t"], listener=journal)
        async with first, member(c.address, "t") as second:
            await until(lambda: len(second.assignment()) == len(first.assignment()) == 1)
            for consumer in (first, second):
                before = consumer.group_metadata().generation
                await consumer.enforce_rebalance("the moon is full")
                assert consumer.group_metadata().generation > before
            await until(lambda: first.state == "stable")
            assert sum("the moon is full" in reason for reason in journal.reasons) >= 2


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor])
async def test_a_pause_outlasts_rebalances_until_the_partition_goes_to_another(assignor: type[Assignor]) -> None:
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(2))
        consumer = Consumer("t", bootstrap_servers=c.address, group_id="g", assignors=[assignor], **QUICK)
        async with consumer:
            await until(lambda: len(consumer.assignment()) == 2)
            consumer.pause(t0, t1)
            for _ in range(2):
                await consumer.enforce_rebalance("to see what becomes of a pause")
                assert consumer.paused() == {t0, t1}
            assert await consumer.getmany(timeout_ms=200) == {}
            async with Consumer("t", bootstrap_servers=c.address, group_id="g", assignors=[assignor], **QUICK) as other:
                await until(lambda: len(consumer.assignment()) == len(other.assignment()) == 1)
                (kept,) = consumer.assignment()
                assert consumer.paused() == {kept}
            await until(lambda: len(consumer.assignment()) == 2)
            assert consumer.paused() == {kept}, "the other one had another owner in between"
            consumer.resume(kept)
            assert sorted(await take(consumer, 2)) == [0, 1]
            consumer.pause(t0)
            consumer.unsubscribe()
            await until(lambda: not consumer.assignment())
            consumer.subscribe(["t"])
            await until(lambda: len(consumer.assignment()) == 2)
            assert consumer.paused() == frozenset()


async def test_what_was_paused_can_be_resumed_in_the_middle_of_a_rebalance() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack:
        await create(c.address, t=4)
        slow, listening = Slow(), member(c.address, assignors=[RangeAssignor], rebalance_timeout_ms=60_000)
        listening.subscribe(["t"], listener=slow)
        consumer = member(c.address, "t", assignors=[RangeAssignor], rebalance_timeout_ms=60_000)
        for each in (consumer, listening):
            await stack.enter_async_context(each)
            await until(lambda each=each: bool(each.assignment()))  # type: ignore[misc]
        await until(lambda: len(consumer.assignment()) == len(listening.assignment()) == 2)
        paused = consumer.assignment()
        consumer.pause(*paused)
        rejoining = asyncio.create_task(consumer.enforce_rebalance("a look at a long rebalance"))
        await until(lambda: not consumer.assignment() and len(slow.reasons) > 0)
        assert consumer.paused() == paused, "it may get them back, and they would be paused then"
        consumer.resume(*consumer.paused())
        slow.may_go_on.set()
        await rejoining
        await until(lambda: len(consumer.assignment()) == len(listening.assignment()) == 2)
        assert consumer.paused() == frozenset()
        own = next(iter(consumer.assignment()))
        await fill(c.address, "t", [7], partition=own.partition)
        assert await take(consumer, 1) == [7]


async def test_what_keeps_a_member_out_is_raised_and_may_be_tried_again() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        first = member(c.address, "t", assignors=[RangeAssignor])
        stranger = member(c.address, "t", assignors=[RoundRobinAssignor()])
        await first.start()
        await until(lambda: len(first.assignment()) == 1)  # the first member decides which protocol the group has
        async with first, stranger:
            with pytest.raises(InconsistentGroupProtocolError, match="roundrobin"):
                await stranger.getone()
            assert stranger.state == "fenced"
            await first.stop()
            await fill(c.address, "t", [1])
            assert await take(stranger, 1) == [1]
        async with member(c.address, "t", session_timeout_ms=10**9) as patient:
            with pytest.raises(InvalidSessionTimeoutError, match="session_timeout_ms"):
                await patient.getone()
