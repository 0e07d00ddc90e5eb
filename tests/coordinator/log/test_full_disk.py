"""A disk without room: what deletes finds the room that it needs to begin, and gives back more."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.reserve import PATH, RESERVE_BYTES
from coordinator.log import LogConfig, PartitionLog
from protocol.record_batch import encode_batch, read_header
from tests.coordinator.log.faulty_storage import HookedStorage, KillAt
from tests.coordinator.log.logs import DIRECTORY, append_value, end_of_process, made, outcome, records_in

BLOCK = 4096
CONFIG = LogConfig(retention_ms=1000)
RECORDS = 10


class Quota:
    """A hook that has no room for another block, once ``fill`` was called, unless something is removed."""

    def __init__(self, root: Path, kill: KillAt | None = None) -> None:
        self._root = root
        self._kill = kill
        self.blocks: int | None = None

    def used(self) -> int:
        """Blocks of all files."""
        return sum(-(-path.stat().st_size // BLOCK) for path in self._root.rglob("*") if path.is_file())

    def fill(self) -> None:
        self.blocks = self.used()

    def __call__(self, operation: str, path: str) -> None:
        if self._kill is not None:
            self._kill(operation, path)
        if operation not in {"write_file", "append"} or self.blocks is None:
            return
        wanted = RESERVE_BYTES // BLOCK if path == PATH else 1
        if self.used() + wanted > self.blocks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@asynccontextmanager
async def full(root: Path, quota: Quota, reserve: bool = True) -> AsyncIterator[PartitionLog]:
    """A log whose one segment has expired, on a disk that is full."""
    made(FileStorage(root))
    disk = Disk(HookedStorage(root, quota), threads=1)
    try:
        if reserve:
            disk.reserve.restore()
        log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
        for number in range(RECORDS):
            batch = encode_batch(
                [bytes(BLOCK)], timestamps_ms=[number], producer_id=7, producer_epoch=0, base_sequence=number
            )
            log.append(batch, read_header(batch), number)
        assert await outcome(log) is None
        quota.fill()
        yield log
        await log.close()
    finally:
        disk.close()


async def test_an_expired_active_segment_makes_room(tmp_path: Path) -> None:
    quota = Quota(tmp_path)
    async with full(tmp_path, quota) as log:
        append_value(log, b"there is no room for this")
        assert await outcome(log) is not None
        assert await log.retain(1000 + RECORDS) == RECORDS
        assert FileStorage(tmp_path).list(DIRECTORY)[0] == f"{RECORDS:020}.log"
        await log.retain(1000 + RECORDS)  # the next look makes the reserve, should the file have been closed too late
        assert (tmp_path / PATH).stat().st_size == RESERVE_BYTES
        assert append_value(log, b"here is") == RECORDS
        assert await outcome(log) is None
        assert list(await records_in(log)) == [RECORDS]


async def test_what_has_not_expired_does_not_take_the_reserve(tmp_path: Path) -> None:
    quota = Quota(tmp_path)
    async with full(tmp_path, quota) as log:
        log.configure(LogConfig(retention_ms=1000, segment_ms=5))  # it is to be closed, and stays
        assert await log.retain(1000) == 0
        assert (log.segment_count, (tmp_path / PATH).stat().st_size) == (1, RESERVE_BYTES)
        assert len(await records_in(log)) == RECORDS


async def test_records_can_be_deleted(tmp_path: Path) -> None:
    async with full(tmp_path, Quota(tmp_path)) as log:
        assert await log.delete_before(RECORDS) == RECORDS
        await log.retain(None)
        assert FileStorage(tmp_path).list(DIRECTORY)[0] == f"{RECORDS:020}.log"


async def test_without_a_reserve_the_log_serves_on_as_it_is(tmp_path: Path) -> None:
    async with full(tmp_path, Quota(tmp_path), reserve=False) as log:
        assert await log.retain(1000 + RECORDS) == 0
        assert len(await records_in(log)) == RECORDS


async def test_a_reserve_that_is_not_whole_is_made_again(tmp_path: Path) -> None:
    (tmp_path / PATH).write_bytes(b"cut off")
    reserve = Disk(FileStorage(tmp_path)).reserve
    reserve.restore()
    assert ((tmp_path / PATH).stat().st_size, reserve.spent) == (RESERVE_BYTES, False)


async def relieved(root: Path, kill: KillAt, at: list[int]) -> None:
    """Retention on a full disk, killed on the way."""
    quota = Quota(root)
    async with full(root, quota) as log:
        quota._kill = kill
        at.append(await log.retain(1000 + RECORDS))


def test_whenever_the_process_is_killed_the_log_is_there_or_gone(tmp_path: Path) -> None:
    number, begins = 0, set[int]()
    while True:
        root, kill, told = tmp_path / str(number), KillAt(number), list[int]()

        async def run(root: Path = root, kill: KillAt = kill, told: list[int] = told) -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            try:
                await relieved(root, kill, told)
            except BaseException:
                if not kill.killed:
                    raise

        with structlog.testing.capture_logs():
            asyncio.run(run())
            begins.add(asyncio.run(check(root, told)))
        if not kill.killed:
            break
        number += 1
    assert begins == {0, RECORDS}
    assert number > 10


async def check(root: Path, told: list[int]) -> int:
    disk = Disk(FileStorage(root), threads=1)
    try:
        log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
        start = log.start_offset
        assert (start, log.end_offset) in {(0, RECORDS), (RECORDS, RECORDS)}
        assert start == RECORDS or RECORDS not in told
        assert list(await records_in(log)) == list(range(start, RECORDS))
        again = encode_batch([b"v"], timestamps_ms=[0], producer_id=7, producer_epoch=0, base_sequence=RECORDS - 1)
        assert log.producers.find(read_header(again)) is not None, "what has gone is remembered all the same"
        assert append_value(log, b"next") == RECORDS
        assert await outcome(log) is None
        await log.close()
        return start
    finally:
        disk.close()
