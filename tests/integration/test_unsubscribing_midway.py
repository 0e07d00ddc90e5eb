"""Who unsubscribes while it waits to be let into its group leaves at once, however long others hold up the rebalance."""

from __future__ import annotations

import asyncio

import pytest

from client import Admin, Consumer, RangeAssignor, TopicPartition
from client.assignors import CooperativeStickyAssignor
from coordinator import Coordinator
from tests.integration.consuming import QUICK, Journal, create, until


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
        slow = Consumer(bootstrap_servers=c.address, group_id="g", client_id="slow", **settings)
        slow.subscribe(["t"], listener=Slow())
        late = Consumer(bootstrap_servers=c.address, group_id="g", client_id="late", **settings)
        late.subscribe(["t"], listener=journal)
        async with slow:
            await until(lambda: slow.state == "stable")
            async with late:
                if assignor is CooperativeStickyAssignor:
                    slow.subscribe(["other"])  # its listener is slow to give up the topic before it joins again
                await until(lambda: slow.state == "rebalancing")
                await asyncio.sleep(0.1)
                late.unsubscribe()
                await until(lambda: late.state == "unjoined", 3)
                async with asyncio.timeout(3):
                    while "late" in str((await admin.describe_groups("g"))["g"].members):
                        await asyncio.sleep(0.02)
                assert not late.assignment()
                go_on.set()
                late.subscribe(["t"], listener=journal)
                await until(lambda: late.state == slow.state == "stable" and bool(late.assignment()))
