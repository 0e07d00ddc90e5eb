"""Who unsubscribes while it waits to be let into its group leaves at once, however long others hold up the rebalance."""

from __future__ import annotations

import asyncio

import pytest

from client import Admin, ClosedError, Consumer, IllegalStateError, RangeAssignor, TopicPartition
from client.assignors import CooperativeStickyAssignor
from coordinator import Coordinator
from tests.integration.consuming import QUICK, Journal, create, fill, take, until


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor])
async def test_a_join_that_waits_for_a_slow_member_is_given_up(assignor: type) -> None:
    go_on = asyncio.Event()

    class Slow(Journal):
        async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
            await go_on.wait()

    journal = Journal()
    settings = {**QUICK, "session_timeout_ms": 10_000, "revoke_grace_ms": 0, "assignors": [assignor]}
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=2, other=1)

        async def until_described(client_id: str, there: bool) -> None:
            async with asyncio.timeout(20):
                while (client_id in str((await admin.describe_groups("g"))["g"].members)) != there:
                    await asyncio.sleep(0.02)

        slow = Consumer(bootstrap_servers=c.address, group_id="g", client_id="slow", **settings)
        slow.subscribe(["t"], listener=Slow())
        late = Consumer(bootstrap_servers=c.address, group_id="g", client_id="late", **settings)
        late.subscribe(["t"], listener=journal)
        async with slow:
            await until(lambda: slow.state == "stable")
            if assignor is CooperativeStickyAssignor:
                slow.subscribe(["other"], listener=Slow())  # slow to give up the topic before it joins again
                await until(lambda: slow.state == "rebalancing")
            async with late:
                await until_described("late", True)
                await until(lambda: slow.state == "rebalancing")
                late.unsubscribe()
                await until(lambda: late.state == "unjoined", 8)
                await until_described("late", False)
                assert not late.assignment()
                go_on.set()
                late.subscribe(["t"], listener=journal)
                await until(lambda: late.state == slow.state == "stable" and bool(late.assignment()))


async def test_a_stop_during_a_rebalance_does_not_wait_for_records_that_the_program_had_in_hand() -> None:
    settings = {**QUICK, "revoke_grace_ms": 20_000, "assignors": [RangeAssignor]}
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", [0, 1])
        first = Consumer("t", bootstrap_servers=c.address, group_id="g", **settings)
        await first.start()
        assert await first.getone()
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", **settings) as second:
            await until(lambda: first.state == "rebalancing")
            await asyncio.sleep(0.1)
            async with asyncio.timeout(15):
                await first.stop()
            assert sorted(await take(second, 2)) == [0, 1], "what was in hand was not done"


class Slow(Journal):
    """Holds up a rebalance."""

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:  # type: ignore[override]
        await asyncio.sleep(1)


@pytest.mark.parametrize("how", ["stop", "unsubscribe"])
async def test_a_call_that_waits_for_a_rebalance_ends_with_the_membership(how: str) -> None:
    settings = {**QUICK, "session_timeout_ms": 10_000, "revoke_grace_ms": 0, "assignors": [RangeAssignor]}
    async with Coordinator() as c:
        await create(c.address, t=2)
        slow = Consumer(bootstrap_servers=c.address, group_id="g", **settings)
        slow.subscribe(["t"], listener=Slow())
        async with slow, Consumer("t", bootstrap_servers=c.address, group_id="g", **settings) as other:
            await until(lambda: len(slow.assignment()) == len(other.assignment()) == 1, 15)
            enforced = asyncio.create_task(other.enforce_rebalance("why not"))
            await until(lambda: other.state == "rebalancing")
            if how == "stop":
                await other.stop()
                with pytest.raises(
                    ClosedError, match="this member of group 'g' was stopped before its next generation"
                ):
                    await asyncio.wait_for(enforced, 20)
            else:
                other.unsubscribe()
                with pytest.raises(IllegalStateError, match=r"has left group 'g' by unsubscribe\(\)"):
                    await asyncio.wait_for(enforced, 20)
                with pytest.raises(IllegalStateError, match=r"has left group 'g' by unsubscribe\(\)"):
                    await asyncio.wait_for(other.enforce_rebalance("again"), 20)
                other.subscribe(["t"])
                await asyncio.wait_for(other.enforce_rebalance("now it can"), 10)
                assert len(other.assignment()) == 1
