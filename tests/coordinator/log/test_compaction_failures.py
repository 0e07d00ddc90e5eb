"""Compaction that is cancelled, meets damage, a full disk or a compression it cannot read."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogDamagedError, PartitionLog
from protocol.record_batch import read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import DIRECTORY, batch_of, batches_in, made, opened, outcome, records_in, replay
from tests.coordinator.log.test_compaction import CONFIG, assert_compacted, base_of_active, fill


async def test_a_pass_that_is_cancelled_or_closed_on_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        await fill(log, [[(1, number)] for number in range(60)])
        before = await records_in(log)
        for steps in range(0, 40, 3):
            task = asyncio.create_task(log.compact(0))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            left = await records_in(log)
            assert replay(left) == replay(before)
        task = asyncio.create_task(log.compact(0))
        await asyncio.sleep(0)
        await log.close()
        await task
    assert not [name for name in FileStorage(tmp_path).list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert replay(await records_in(log)) == replay(before)


async def test_a_damaged_segment_is_not_compacted(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        await fill(log, [[(1, number)] for number in range(30)])
        path = tmp_path / DIRECTORY / f"{0:020}.log"
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(LogDamagedError, match="checksum"):
            await log.compact(0)
        assert not [name for name in FileStorage(tmp_path).list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]


async def test_a_compression_that_is_not_installed_stops_compaction_but_neither_reads_nor_look_ups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    batch = batch_of((b"k1", b"v", 50), (b"k1", b"v", 60))
    header = read_header(batch)
    header = replace(header, attributes=header.attributes | 2)
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        for _ in range(20):
            log.append(header.pack() + batch[80:], header)
        assert await outcome(log) is None
        with structlog.testing.capture_logs() as logged:
            assert await log.compact(0) is None
        assert [entry["event"] for entry in logged] == ["compaction_failed"]
        assert "zstandard" in logged[0]["error"]
        assert await log.offset_for_timestamp(55) == (0, 60)
        assert len(await batches_in(log)) == 20


@pytest.mark.parametrize(("operation", "ending"), [("append", ".cleaned"), ("sync", ".cleaned"), ("rename", ".swap")])
async def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, operation: str, ending: str) -> None:
    full = True

    def fail(seen: str, path: str) -> None:
        if full and seen == operation and path.endswith(ending):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(HookedStorage(tmp_path, fail), CONFIG) as log:
        await fill(log, [[(1, number)] for number in range(30)])
        before = await batches_in(log)
        with structlog.testing.capture_logs() as logged:
            assert await log.compact(0) is None
        assert [entry["event"] for entry in logged] == ["compaction_failed"]
        assert await batches_in(log) == before
        full = False
        assert await log.compact(0) is not None


async def test_an_exchange_that_fails_half_way_ends_the_process_and_the_next_finishes_it(tmp_path: Path) -> None:
    def fail(seen: str, path: str) -> None:
        if seen == "remove" and path.endswith(".log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    reasons: list[str] = []
    disk = Disk(HookedStorage(tmp_path, fail))
    made(disk.storage)
    log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=reasons.append)
    await fill(log, [[(1, number)] for number in range(30)])
    before, active = await records_in(log), base_of_active(log)
    await log.compact(0)
    assert len(reasons) == 1
    assert "finishes it" in reasons[0]
    disk.close()
    async with opened(FileStorage(tmp_path), CONFIG) as log:
        assert_compacted(before, await records_in(log), active)
