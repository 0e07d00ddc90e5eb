"""A full disk, a failing disk: nothing is acknowledged that is not there, and the log says what happened."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import in_doubt
from coordinator.log import LogConfig, LogWriteError, PartitionLog, group_commit
from coordinator.log.group_commit import AppendQueue
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import DIRECTORY, append_value, made, opened, outcome, records_in


class Failing:
    """Fails each operation named in ``operations`` on a file of one of their endings, while there are any."""

    def __init__(self) -> None:
        self.operations: dict[str, str] = {}
        self.number = errno.ENOSPC

    def __call__(self, operation: str, path: str) -> None:
        if operation in self.operations and path.endswith(self.operations[operation]):
            raise OSError(self.number, os.strerror(self.number))


async def test_a_full_disk_fails_the_whole_round_and_the_log_serves_on(tmp_path: Path) -> None:
    failing = Failing()
    storage = HookedStorage(tmp_path, failing)
    async with opened(storage) as log:
        append_value(log, b"kept")
        assert await outcome(log) is None
        failing.operations = {"append": ".log"}
        errors: list[Exception | None] = []
        for offset in (2, 3):
            append_value(log, b"refused")
            log.when_durable(offset, errors.append)
        refused = await outcome(log)
        assert isinstance(refused, LogWriteError)
        assert "No space left on device" in str(refused)
        assert errors == [refused, refused]
        assert (log.end_offset, log.high_watermark, log._appender.queue.queued_bytes) == (1, 1, 0)
        assert list(await records_in(log)) == [0]
        failing.operations = {}
        assert append_value(log, b"kept too") == 1
        assert await outcome(log) is None
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"kept", b"kept too"]
    async with opened(FileStorage(tmp_path)) as log:
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"kept", b"kept too"]


@pytest.mark.parametrize(
    ("operation", "ending"),
    [("write_file", ".index"), ("create", ".log"), ("write_file", "checkpoint"), ("append", ".log")],
)
async def test_a_disk_that_is_full_when_a_segment_is_to_be_closed(tmp_path: Path, operation: str, ending: str) -> None:
    """Whatever part of the change fails, the log serves on, is found whole in this state, and makes the change later."""
    failing = Failing()
    config = LogConfig(segment_bytes=600)
    values: list[bytes | None] = []
    async with opened(HookedStorage(tmp_path, failing), config) as log:
        while log.end_offset < 3:
            append_value(log, b"a" * 100)
            values.append(b"a" * 100)
        assert await outcome(log) is None
        failing.operations = {operation: ending}
        for _ in range(2):
            append_value(log, b"b" * 100)
            assert isinstance(await outcome(log), LogWriteError)
        failing.operations = {}
    async with opened(HookedStorage(tmp_path, failing), config) as log:
        failing.operations = {operation: ending}
        append_value(log, b"b" * 100)
        if isinstance(await outcome(log), LogWriteError):
            failing.operations = {}
            append_value(log, b"c")  # it would fit into the old segment, but the change has begun
            values.append(b"c")
        else:
            values.append(b"b" * 100)
        failing.operations = {}
        append_value(log, b"d" * 400)
        values.append(b"d" * 400)
        assert await outcome(log) is None
        assert [value for _, value, _ in (await records_in(log)).values()] == values
    async with opened(FileStorage(tmp_path), config) as log:
        assert [value for _, value, _ in (await records_in(log)).values()] == values


async def test_a_file_that_cannot_be_cut_back_takes_no_appends_any_more_but_is_still_read(tmp_path: Path) -> None:
    failing = Failing()
    async with opened(HookedStorage(tmp_path, failing)) as log:
        append_value(log, b"kept")
        assert await outcome(log) is None
        failing.operations = {"append": ".log", "truncate": ".log"}
        append_value(log, b"refused")
        assert isinstance(await outcome(log), LogWriteError)
        failing.operations = {}
        with pytest.raises(LogWriteError, match=r"takes no appends any more.*restart the daemon"):
            append_value(log, b"refused too")
        assert list(await records_in(log)) == [0]
    async with opened(FileStorage(tmp_path)) as log:
        assert list(await records_in(log)) == [0]


@pytest.mark.parametrize("operation", ["sync", "write_file"])
async def test_a_failed_sync_is_fatal_and_acknowledges_nothing(tmp_path: Path, operation: str) -> None:
    failing = Failing()
    failing.number = errno.EIO
    reasons: list[str] = []
    disk = Disk(HookedStorage(tmp_path, failing))
    made(disk.storage)
    log = await PartitionLog.open(disk, DIRECTORY, LogConfig(), leader_epoch=0, on_fatal=reasons.append)
    failing.operations = {operation: ""}
    append_value(log, b"unknown")
    assert isinstance(await outcome(log), LogWriteError)
    assert len(reasons) == 1
    assert "orders-0 failed" in reasons[0]
    assert "Input/output error" in reasons[0]
    assert (log.high_watermark, log.end_offset) == (0, 0)
    assert await log.read(0, 100) == b""
    with pytest.raises(LogWriteError):
        append_value(log, b"more")
    await log.close()
    disk.close()


async def test_an_explicit_flush_that_fails_is_fatal_too(tmp_path: Path) -> None:
    failing = Failing()
    reasons: list[str] = []
    disk = Disk(HookedStorage(tmp_path, failing))
    config = LogConfig(flush="os")
    made(disk.storage)
    log = await PartitionLog.open(disk, DIRECTORY, config, leader_epoch=0, on_fatal=reasons.append)
    append_value(log, b"written")
    assert await outcome(log) is None
    failing.operations = {"sync": ".log"}
    with pytest.raises(LogWriteError):
        await log.flush()
    assert len(reasons) == 1
    await log.close()
    disk.close()


async def test_a_close_that_cannot_note_the_end_still_closes(tmp_path: Path) -> None:
    failing = Failing()
    async with opened(HookedStorage(tmp_path, failing)) as log:
        append_value(log, b"kept")
        assert await outcome(log) is None
        failing.operations = {"write_file": "checkpoint"}
    async with opened(FileStorage(tmp_path)) as log:
        assert list(await records_in(log)) == [0]


@pytest.mark.parametrize(("operation", "ending"), [("create", ".log"), ("remove", ".producers")])
async def test_an_input_output_error_that_leaves_no_doubt_is_a_refusal(
    tmp_path: Path, operation: str, ending: str
) -> None:
    """A file that cannot be made or removed says nothing about what was acknowledged: the daemon goes on."""
    failing = Failing()
    config = LogConfig(segment_bytes=600)
    async with opened(HookedStorage(tmp_path, failing), config) as log:
        while log.segment_count < 2:  # from the second segment on there is a snapshot to remove
            append_value(log, b"a" * 100)
            assert await outcome(log) is None
        failing.number, failing.operations = errno.EIO, {operation: ending}
        error: Exception | None = None
        while error is None:
            append_value(log, b"b" * 100)
            error = await outcome(log)
        assert isinstance(error, LogWriteError)
        assert "Input/output error" in str(error)
        assert "sync" not in str(error)
        end = log.end_offset
        failing.operations = {}
        assert append_value(log, b"c") == end
        assert await outcome(log) is None
    async with opened(FileStorage(tmp_path), config) as log:
        assert len(await records_in(log)) == end + 1


class InDoubt(HookedStorage):
    """Its replacement of a checkpoint fails behind the rename, with an error other than EIO."""

    def write_file(self, path: str, data: bytes) -> None:
        super().write_file(path, data)
        if path.endswith("checkpoint"):
            raise in_doubt(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


async def test_a_replacement_in_doubt_ends_the_process_whatever_its_error(tmp_path: Path) -> None:
    reasons: list[str] = []
    disk = Disk(InDoubt(tmp_path, lambda operation, path: None))
    made(disk.storage)
    log = await PartitionLog.open(
        disk, DIRECTORY, LogConfig(segment_bytes=300), leader_epoch=0, on_fatal=reasons.append
    )
    error: Exception | None = None
    while error is None:
        append_value(log, b"a" * 100)
        error = await outcome(log)
    assert isinstance(error, LogWriteError)
    assert len(reasons) == 1
    assert "it is unknown" in reasons[0]
    await log.close()
    disk.close()


async def test_a_fault_of_the_writer_refuses_its_group_commit_and_the_log_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        append_value(log, b"kept")
        assert await outcome(log) is None

        def broken(*_: object) -> bytes:
            raise ZeroDivisionError("a fault of ours")

        with monkeypatch.context() as patched, structlog.testing.capture_logs() as lines:
            append_value(log, b"refused")
            patched.setattr(group_commit, "restamped", broken)
            refused = await outcome(log)
        assert isinstance(refused, LogWriteError)
        assert "a fault of ours" in str(refused)
        assert any(line.get("exc_info") is not None for line in lines)
        append_value(log, b"kept too")
        assert await outcome(log) is None
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"kept", b"kept too"]


async def test_a_fault_behind_the_write_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory and what is on disk may differ then, and only a restart finds out."""
    reasons: list[str] = []
    disk = Disk(FileStorage(tmp_path))
    made(disk.storage)
    log = await PartitionLog.open(disk, DIRECTORY, LogConfig(), leader_epoch=0, on_fatal=reasons.append)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(AppendQueue, "written", broken)
    append_value(log, b"on disk")
    assert await outcome(log) is not None
    assert len(reasons) == 1
    assert "a fault of ours" in reasons[0]
    await log.close()
    disk.close()
