"""Work that keeps the GIL stops the heartbeats too: that is found out safely, and a process pool avoids it."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from client import CommitFailedError, Consumer, ConsumerRecord
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import Journal, create, fill, until

SESSION: dict[str, Any] = {
    "group_id": "g", "session_timeout_ms": 2_000, "heartbeat_interval_ms": 200, "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
}  # fmt: skip


def backtrack(letters: int) -> float:
    """A regular expression that tries two to the power of ``letters`` ways, and the seconds of CPU time that this takes."""
    begin = time.process_time()
    assert re.match(r"(a+)+$", "a" * letters + "b") is None
    return time.process_time() - begin


def letters_for(seconds: float) -> int:
    """So many letters keep the GIL for ``seconds`` at least, wherever this runs."""
    letters = 16
    while (took := backtrack(letters)) < 0.1:
        letters += 1
    while took < seconds:
        letters, took = letters + 1, took * 1.95  # each letter doubles it
    return letters


async def test_a_session_that_ends_while_the_gil_is_kept_is_found_out_and_nothing_is_committed_for_it(
    tmp_path: Path,
) -> None:
    letters = letters_for(2.5)
    with DaemonProcess(tmp_path / "data") as daemon:
        await create(daemon.address, t=1)
        await fill(daemon.address, "t", range(2))
        journal = Journal()
        async with Consumer(bootstrap_servers=daemon.address, **SESSION) as consumer:
            consumer.subscribe(["t"], listener=journal)
            record = await asyncio.wait_for(consumer.getone(), 20)
            took = backtrack(letters)
            assert took > 2, "longer than the session"
            try:
                await consumer.commit(record)
            except CommitFailedError:
                await until(lambda: "lost" in [what for what, _ in journal.events], 20)
                assert (await asyncio.wait_for(consumer.getone(), 20)).offset == 0, "it comes again"
            else:
                raise AssertionError("the commit of a lost session was taken")


async def test_the_same_work_in_a_process_costs_no_membership(tmp_path: Path) -> None:
    letters = letters_for(2.5)
    with (
        DaemonProcess(tmp_path / "data") as daemon,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        await create(daemon.address, t=1)
        await fill(daemon.address, "t", range(1))
        took: list[float] = []

        async def handle(record: ConsumerRecord) -> None:
            took.append(await asyncio.get_running_loop().run_in_executor(pool, backtrack, letters))
            await consumer.commit(record)

        async with Consumer("t", bootstrap_servers=daemon.address, **SESSION) as consumer:
            handling = asyncio.create_task(consumer.process(handle))
            await until(lambda: consumer.state == "stable", 20)
            generation = consumer.group_metadata().generation
            async with asyncio.timeout(120):
                while not any((await consumer.committed(*consumer.assignment())).values()):
                    await asyncio.sleep(0.05)
            assert consumer.group_metadata().generation == generation
            assert len(took) == 1
            handling.cancel()
            await asyncio.gather(handling, return_exceptions=True)
