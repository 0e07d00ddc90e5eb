"""A small plan of an assignor of ours is made at once, where heartbeats run; what may take long goes to a worker thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from client import Consumer, RoundRobinAssignor
from client.assignors.assignor import NO_RACKS, Racks
from client.assignors.plan import Plan
from coordinator import Coordinator
from protocol.subscription import Subscription
from tests.integration.consuming import QUICK, create, until


class Noting(RoundRobinAssignor):
    """Writes down in which thread it was asked."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def plan(self, partitions: Mapping[str, int], members: Mapping[str, Subscription], racks: Racks = NO_RACKS) -> Plan:
        self.threads.append(threading.current_thread().name)
        return super().plan(partitions, members, racks)


@pytest.mark.parametrize(("ours", "partitions", "expected"), [(True, 4, "cohort-background"), (True, 1_001, "asyncio_"),
                                                              (False, 4, "asyncio_")])  # fmt: skip
async def test_the_thread_of_a_plan(
    ours: bool, partitions: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting = Noting()
    if ours:
        monkeypatch.setattr("client.consumer.leader_assignor._OUR_OWN", (Noting,))
    async with Coordinator() as c:
        await create(c.address, t=partitions)
        async with Consumer("t", bootstrap_servers=c.address, group_id="g", assignors=[noting], **QUICK) as consumer:
            await until(lambda: len(consumer.assignment()) == partitions)
    assert [name.startswith(expected) for name in noting.threads] == [True]
