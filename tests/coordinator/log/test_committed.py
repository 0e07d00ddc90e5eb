"""A high watermark that is not the disk's: readers end there, and what waits for it goes its own way."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.filesystem.files import FileStorage
from coordinator.log.errors import LogClosedError, LogTruncatedError, LogWriteError, OffsetNotInLogError
from coordinator.log.progress import Progress
from protocol.record_batch import read_header
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import append_value, opened, outcome, records_in
from tests.coordinator.log.test_write_failures import Failing
from tests.coordinator.log.transactional import transactional


async def test_readers_end_at_it_and_it_never_moves_by_itself(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.commit_by(Progress(0))
        for value in (b"a", b"b", b"c"):
            append_value(log, value)
        told, looks = list[object](), list[int]()
        log.when_committed(2, told.append)
        log.on_advance(lambda: looks.append(log.high_watermark))
        assert await outcome(log) is None
        assert (log.flushed.offset, log.high_watermark, log.last_stable_offset, told, looks) == (3, 0, 0, [], [])
        assert await records_in(log) == {}
        with pytest.raises(OffsetNotInLogError):
            await log.delete_before(1)
        log.commit_to(2)
        assert (log.high_watermark, told, looks) == (2, [None], [2])
        log.commit_to(1)
        assert log.high_watermark == 2
        assert list(await records_in(log)) == [0, 1]
        assert await log.delete_before(2) == 2


async def test_a_marker_counts_once_it_is_committed(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.commit_by(Progress(0))
        batch = transactional([b"k"], [b"v"], [0], 7, 0)
        log.append(batch, read_header(batch))
        log.end_transactions([(7, 0, True)], 0, 0)
        assert await outcome(log) is None
        log.commit_to(1)
        assert (log.high_watermark, log.last_stable_offset) == (1, 0)
        log.commit_to(2)
        assert log.last_stable_offset == 2


async def test_a_refused_write_fails_what_waits_for_it_and_nothing_that_is_written(tmp_path: Path) -> None:
    failing, told = Failing(), list[tuple[str, Exception | None]]()
    async with opened(HookedStorage(tmp_path, failing)) as log:
        log.commit_by(Progress(0))
        append_value(log, b"written")
        log.when_committed(1, lambda error: told.append(("written", error)))
        assert await outcome(log) is None
        failing.operations = {"append": ".log"}
        append_value(log, b"refused")
        log.when_committed(2, lambda error: told.append(("refused", error)))
        assert isinstance(await outcome(log), LogWriteError)
        assert [(name, type(error)) for name, error in told] == [("refused", LogWriteError)]
        failing.operations = {}
        log.commit_to(1)
        assert told[1:] == [("written", None)]


async def test_it_falls_with_a_truncation_and_rises_to_where_a_log_begins_anew(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), leader_epoch=None) as log:
        await log.begin_epoch(1)
        log.commit_by(Progress(0))
        told = list[Exception | None]()
        for value in (b"a", b"b", b"c"):
            append_value(log, value)
        assert await outcome(log) is None
        log.commit_to(2)
        log.when_committed(3, told.append)
        await log.truncate_to(1)
        assert (log.high_watermark, log.end_offset) == (1, 1)
        assert [type(error) for error in told] == [LogTruncatedError]
        await log.reset_to(7)
        assert (log.high_watermark, log.start_offset, log.end_offset) == (7, 7, 7)


async def test_what_waits_moves_along_and_hears_of_the_end(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        log.commit_by(Progress(0))
        append_value(log, b"a")
        told, looks = list[Exception | None](), list[int]()
        log.when_committed(1, told.append)
        stop = log.on_advance(lambda: looks.append(log.high_watermark))
        log.commit_by(Progress(0))
        assert await outcome(log) is None
        log.commit_to(1)
        assert (told, looks) == ([None], [1])
        stop()
        append_value(log, b"b")
        append_value(log, b"c")
        assert await outcome(log) is None
        log.when_committed(2, told.append)
        log.commit_by(None)
        assert (log.high_watermark, told, looks) == (3, [None, None], [1])
        log.commit_by(Progress(2))
        log.when_committed(3, told.append)
    assert [type(error) for error in told] == [type(None), type(None), LogClosedError]
