"""Consume, transform, produce through SIGKILL of members and daemon, and compare with a plain count."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.consuming import create, fill
from tests.integration.transforming import SOURCE, TARGET, committed, expected, seen, until_done
from tests.integration.transforming_program import TRANSACTION_TIMEOUT_MS, Program

NUMBERS = range(6_000)
PARTITIONS = 6
ALL = {partition: len(NUMBERS) // PARTITIONS for partition in range(PARTITIONS)}


@contextmanager
def programs(address: str, assignor: str, count: int) -> Iterator[list[Program]]:
    """Members that are gone at the end."""
    members = [Program(address, f"id-{number}", assignor) for number in range(count)]
    try:
        yield members
    finally:
        for each in members:
            if each.ended is None:
                os.kill(each.pid, signal.SIGCONT)
            each.kill()


async def progress(address: str, since: int, records: int) -> int:
    """Waits until the group has committed so many records more, or everything."""
    async with asyncio.timeout(60):
        while (done := sum((await committed(address)).values())) < min(since + records, len(NUMBERS)):
            await asyncio.sleep(0.02)
    return done


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_members_are_killed_in_the_middle_and_others_take_their_ids_over(tmp_path: Path, assignor: str) -> None:
    random = Random(assignor)
    with DaemonProcess(tmp_path) as daemon, programs(daemon.address, assignor, 0) as members:
        await create(daemon.address, **{SOURCE: PARTITIONS, TARGET: 2})
        await fill(daemon.address, SOURCE, NUMBERS)
        members += [Program(daemon.address, f"id-{number}", assignor) for number in range(3)]
        done = await progress(daemon.address, 0, 100)
        for _ in range(5):
            done = await progress(daemon.address, done, 400)
            await asyncio.sleep(random.uniform(0, 0.1))
            number = random.randrange(3)
            members[number].kill()
            members[number] = Program(daemon.address, members[number].transactional_id, assignor)
        await until_done(daemon.address, ALL, 90)
        assert [each.stop() for each in members] == [0, 0, 0]
        assert await seen(daemon.address) == expected(NUMBERS)


async def test_the_daemon_is_killed_in_the_middle(tmp_path: Path) -> None:
    random = Random("daemon")
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, **{SOURCE: PARTITIONS, TARGET: 2})
        await fill(daemon.address, SOURCE, NUMBERS)
        with programs(daemon.address, "cooperative-sticky", 2) as members:
            done = await progress(daemon.address, 0, 100)
            for _ in range(4):
                done = await progress(daemon.address, done, 400)
                await asyncio.sleep(random.uniform(0, 0.1))
                daemon.kill()
                daemon.start()
            await until_done(daemon.address, ALL, 90)
            assert [each.stop() for each in members] == [0, 0]
        assert await seen(daemon.address) == expected(NUMBERS)


async def test_members_sleep_beyond_their_transaction_and_their_session(tmp_path: Path) -> None:
    """What wakes up finds its transaction aborted and its partitions with another member, and goes on."""
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, **{SOURCE: PARTITIONS, TARGET: 2})
        await fill(daemon.address, SOURCE, NUMBERS)
        with programs(daemon.address, "range", 2) as members:
            done = await progress(daemon.address, 0, 100)
            for number in (0, 1):
                done = await progress(daemon.address, done, 500)
                os.kill(members[number].pid, signal.SIGSTOP)
                await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000 + 0.5)
                os.kill(members[number].pid, signal.SIGCONT)
            await until_done(daemon.address, ALL, 90)
            assert [each.stop() for each in members] == [0, 0]
        assert await seen(daemon.address) == expected(NUMBERS)


async def test_a_second_program_with_the_same_id_ends_the_first(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        await create(daemon.address, **{SOURCE: PARTITIONS, TARGET: 2})
        await fill(daemon.address, SOURCE, NUMBERS)
        with programs(daemon.address, "range", 1) as members:
            await progress(daemon.address, 0, 300)
            members.append(Program(daemon.address, members[0].transactional_id, "range"))
            async with asyncio.timeout(30):
                while members[0].ended is None:
                    await asyncio.sleep(0.05)
            assert members[0].ended == 1, "it is fenced"
            await until_done(daemon.address, ALL, 90)
            assert members[1].stop() == 0
        assert await seen(daemon.address) == expected(NUMBERS)
