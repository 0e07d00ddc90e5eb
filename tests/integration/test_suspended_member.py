"""A consumer that was suspended for longer than its session: what it is told when it wakes up."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from client import Consumer, RangeAssignor
from client.assignors import Assignor, CooperativeStickyAssignor
from client.background import SHARED_THREAD
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import QUICK, Journal, create, fill, take, until


async def stand_still(seconds: float) -> None:
    """Keeps the loop it runs on from everything else, as SIGSTOP does."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor])
async def test_a_program_is_not_told_of_an_assignment_that_is_over_when_it_wakes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assignor: type[Assignor]
) -> None:
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, t=2)
        await fill(daemon.address, "t", range(4))
        journal = Journal()
        consumer = Consumer(bootstrap_servers=daemon.address, group_id="g", assignors=[assignor], **QUICK)
        consumer.subscribe(["t"], listener=journal)
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
