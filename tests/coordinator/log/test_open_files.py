"""Files of closed segments: few stay open, however many logs there are and however many segments they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.segment_list import OpenFiles
from tests.coordinator.log.logs import append_value, end_of_process, made, outcome, records_in

CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=100, compact=True, min_cleanable_dirty_ratio=0.0)
LOGS = 6


@asynccontextmanager
async def logs_of_a_node(root: Path, open_files: OpenFiles) -> AsyncIterator[list[PartitionLog]]:
    storage = FileStorage(root)
    disk = Disk(storage)
    logs = []
    for number in range(LOGS):
        made(storage, f"orders-{number}")
        logs.append(
            await PartitionLog.open(
                disk, f"orders-{number}", CONFIG, leader_epoch=0, on_fatal=end_of_process, open_files=open_files
            )
        )
    yield logs
    for log in logs:
        await log.close()
    assert not held(logs)
    disk.close()


def held(logs: list[PartitionLog]) -> int:
    """How many closed segments hold a descriptor."""
    return sum(segment.file is not None for log in logs for segment in log._segments.closed)


async def fill(logs: list[PartitionLog]) -> None:
    for log in logs:
        for number in range(60):
            append_value(log, b"value %d" % number)
        assert await outcome(log) is None


async def test_all_logs_of_a_node_together_keep_few_files_of_closed_segments_open(tmp_path: Path) -> None:
    async with logs_of_a_node(tmp_path, OpenFiles(max_files=4)) as logs:
        await fill(logs)
        assert sum(log.segment_count for log in logs) > 60
        assert held(logs) <= 4
        for log in logs:
            assert len(await records_in(log, 200)) == 60
            assert held(logs) <= 4
        found = await asyncio.gather(*(log.offset_for_timestamp(0) for log in logs), *(records_in(log) for log in logs))
        assert len(found) == 2 * LOGS
        await logs[0].read(0, 100)  # those that all had a reader at once are closed with the next
        assert held(logs) <= 4


async def test_indexes_have_a_bound_of_their_own(tmp_path: Path) -> None:
    async with logs_of_a_node(tmp_path, OpenFiles(max_index_bytes=100)) as logs:
        await fill(logs)
        for log in logs:
            await records_in(log, 200)
        loaded = [segment.index for log in logs for segment in log._segments.closed if segment.index is not None]
        assert 0 < sum(index.size for index in loaded) <= 100


async def test_segments_that_are_gone_are_not_counted(tmp_path: Path) -> None:
    open_files = OpenFiles(max_files=8)
    async with logs_of_a_node(tmp_path, open_files) as logs:
        await fill(logs)
        for log in logs:
            await records_in(log)
            await log.delete_before(40)
            await log.compact(0)
            await records_in(log)
        assert held(logs) == len(open_files._segments) <= 8
    assert not open_files._segments
    assert not open_files._index_bytes
