"""The process ends at every instant of a log's life, and the next one finds every acknowledged record."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from tests.coordinator.log.faulty_storage import HookedStorage, KillAt, Killed
from tests.coordinator.log.logs import (
    DIRECTORY,
    Record,
    append,
    end_of_process,
    made,
    opened,
    outcome,
    records_in,
    replay,
)

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, min_cleanable_dirty_ratio=0.0, delete_retention_ms=100)

RECORDS: list[Record] = [
    (b"k%d" % (number % 4), None if number % 9 == 5 else b"v%d" % number, number) for number in range(40)
]
"""One batch each; every ninth is a tombstone."""


class Life:
    """Opens the log, appends everything with compactions in between and closes it, or is killed on the way."""

    def __init__(self) -> None:
        self.acknowledged = 0

    async def live(self, root: Path, kill: KillAt) -> None:
        disk = Disk(HookedStorage(root, kill), threads=1)
        try:
            log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
            for start in range(0, len(RECORDS), 6):
                for record in RECORDS[start : start + 6]:
                    append(log, record)
                if await outcome(log) is None:
                    self.acknowledged = log.high_watermark
                if start in (12, 24):
                    await log.compact(start * 10)
            await log.close()
        finally:
            disk.close()


def quiet(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """A killed process does not report the tasks it leaves behind."""


async def check(root: Path, acknowledged: int) -> None:
    async with opened(FileStorage(root), CONFIG) as log:
        end = log.end_offset
        assert acknowledged <= end <= len(RECORDS)
        for now_ms in (10_000, 20_000):
            left = await records_in(log)
            assert all(RECORDS[offset] == record for offset, record in left.items())
            assert replay(left) == replay(dict(enumerate(RECORDS[:end])))
            await log.compact(now_ms)
        assert append(log, (b"new", b"v", 0)) == end
        assert await outcome(log) is None
    names = FileStorage(root).list(DIRECTORY)
    assert not [name for name in names if name.endswith((".tmp", ".cleaned", ".swap"))]
    async with opened(FileStorage(root), CONFIG) as log:
        assert log.end_offset == end + 1


def lived(root: Path, number: int) -> tuple[bool, int]:
    """Whether the life was killed at the ``number``-th operation, and what had been acknowledged by then."""
    made(FileStorage(root))
    kill, life = KillAt(number), Life()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(quiet)
        try:
            await life.live(root, kill)
        except BaseException:
            if not kill.killed:
                raise

    with structlog.testing.capture_logs():
        asyncio.run(run())
    return kill.killed, life.acknowledged


def test_whenever_the_process_is_killed_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    number = 0
    while True:
        root = tmp_path / str(number)
        killed, acknowledged = lived(root, number)
        with structlog.testing.capture_logs():
            asyncio.run(check(root, acknowledged))
        if not killed:
            break
        number += 1
    assert acknowledged == len(RECORDS)
    assert number > 100


@pytest.mark.parametrize("first", [40, 60, 80, 100])
def test_whenever_the_recovery_is_killed_the_next_one_finishes_it(tmp_path: Path, first: int) -> None:
    """Killed once in its life and then again and again while it recovers, one operation further each time."""
    killed, acknowledged = lived(tmp_path, first)
    assert killed
    number = 0
    with structlog.testing.capture_logs():
        while True:
            kill = KillAt(number)

            async def recover(kill: KillAt = kill) -> None:
                disk = Disk(HookedStorage(tmp_path, kill), threads=1)
                try:
                    await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
                except Killed:
                    assert kill.killed
                finally:
                    disk.close()

            asyncio.run(recover())
            if not kill.killed:
                break
            number += 1
        asyncio.run(check(tmp_path, acknowledged))
