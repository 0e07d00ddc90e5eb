"""The work of compaction in a process of its own: the same result, and whatever becomes of it, the log is whole."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, LogDamagedError, PartitionLog, compaction_process
from coordinator.log.cleaner import Begin
from coordinator.log.compaction_process import (
    CompactionProcessError,
    CompactionWork,
    LocalWork,
    ProcessPasses,
    ProcessWork,
    local_work,
)
from protocol.errors import ProtocolError
from protocol.record_batch import encode_batch, read_header
from tests.coordinator.log.logs import DIRECTORY, end_of_process, made, outcome, records_in, replay

CONFIG = LogConfig(segment_bytes=100_000, min_cleanable_dirty_ratio=0.0, compact=True)


@asynccontextmanager
async def opened(root: Path, begin: Begin) -> AsyncIterator[PartitionLog]:
    disk = Disk(FileStorage(root))
    made(disk.storage)
    log = await PartitionLog.open(
        disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process, begin_compaction=begin
    )
    yield log
    await log.close()
    disk.close()


async def fill(log: PartitionLog, batches: int = 120) -> None:
    draw = random.Random(5)
    for number in range(batches):
        keys = [b"key-%d" % draw.randrange(300) for _ in range(40)]
        values = [None if draw.random() < 0.1 else b"%d" % number + b"v" * 60 for _ in keys]
        producer = (number % 3, 0, number // 6 * 40) if number % 2 else (-1, -1, -1)
        batch = encode_batch(
            values, keys, timestamps_ms=[number] * 40,
            producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2],
        )  # fmt: skip
        log.append(batch, read_header(batch))
    assert await outcome(log) is None


def in_a_process(start_offset: int, size: int) -> CompactionWork:
    return ProcessWork(start_offset)


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / DIRECTORY).iterdir()) if path.suffix != ".tmp"}


async def test_a_process_makes_the_same_files(tmp_path: Path) -> None:
    for name, begin in (("here", local_work), ("there", in_a_process)):
        async with opened(tmp_path / name, begin) as log:
            await fill(log)
            before = await records_in(log)
            result = await log.compact(0)
            assert result is not None
            assert result.records_after < result.records_before
            assert replay(await records_in(log)) == replay(before)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


class Ending:
    """Works in a process that a test ends at the given call, by its own means."""

    def __init__(self, at: int, end: Callable[[ProcessWork], None]) -> None:
        self.at, self.end, self.calls = at, end, 0
        self.begun: list[ProcessWork] = []

    def __call__(self, start_offset: int, size: int) -> CompactionWork:
        work = ProcessWork(start_offset)
        self.begun.append(work)
        original = work._call

        def call(method: str, *args: object) -> object:
            self.calls += 1
            if self.calls == self.at:
                self.end(work)
            return original(method, *args)

        work._call = call  # type: ignore[method-assign]
        return work


@pytest.mark.parametrize("at", [1, 2, 4, 6, 8])
async def test_a_pass_whose_process_dies_leaves_the_log_as_it_was_and_the_next_one_does_it(
    tmp_path: Path, at: int
) -> None:
    ending = Ending(at, lambda work: work._process.kill())
    async with opened(tmp_path, ending) as log:
        await fill(log)
        before = await records_in(log)
        with structlog.testing.capture_logs() as lines:
            assert await log.compact(0) is None
        assert [line["event"] for line in lines] == ["compaction_failed"]
        assert "the process of compaction is gone" in log.fault
        assert replay(await records_in(log)) == replay(before)
        assert await log.compact(0) is not None
        assert (log.fault, replay(await records_in(log))) == ("", replay(before))
    assert [work._process.returncode for work in ending.begun] == [-signal.SIGKILL] * 2
    assert not [name for name in contents(tmp_path) if name.endswith((".cleaned", ".swap"))]


async def test_a_log_closes_although_its_process_of_compaction_hangs(tmp_path: Path) -> None:
    hanging = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(work: ProcessWork) -> None:
        work._process.send_signal(signal.SIGSTOP)
        loop.call_soon_threadsafe(hanging.set)

    ending = Ending(2, stop)
    async with opened(tmp_path, ending) as log:
        await fill(log)
        compacting = asyncio.create_task(log.compact(0))
        async with asyncio.timeout(60):
            await hanging.wait()
            await log.close()
            with structlog.testing.capture_logs() as lines:
                assert await compacting is None
        assert lines == []
    assert ending.begun[0]._process.returncode == -signal.SIGKILL


async def test_a_process_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    work = ProcessWork(0)
    work._socket.settimeout(0.05)
    work._process.send_signal(signal.SIGSTOP)
    with pytest.raises(CompactionProcessError, match="does not answer"):
        work.counts()
    work.close()


async def test_damage_that_the_process_finds_is_damage(tmp_path: Path) -> None:
    async with opened(tmp_path, in_a_process) as log:
        await fill(log)
        path = tmp_path / DIRECTORY / f"{0:020}.log"
        content = bytearray(path.read_bytes())
        content[200] ^= 1
        path.write_bytes(content)
        with pytest.raises(LogDamagedError, match="checksum"):
            await log.compact(0)


def test_the_process_ends_with_the_one_that_began_it() -> None:
    work = ProcessWork(0)
    work._socket.close()
    assert work._process.wait(60) == 0


def test_small_passes_and_those_without_a_process_are_worked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = ProcessPasses()
    assert isinstance(passes(0, compaction_process.LEAST_BYTES - 1), LocalWork)
    monkeypatch.setattr(sys, "executable", "/nothing/of/the/kind")
    with structlog.testing.capture_logs() as lines:
        assert isinstance(passes(0, compaction_process.LEAST_BYTES), LocalWork)
        assert isinstance(passes(0, compaction_process.LEAST_BYTES), LocalWork)
    assert [line["log_level"] for line in lines] == ["warning"], "it is not told again and again"
    monkeypatch.undo()
    work = passes(0, compaction_process.LEAST_BYTES)
    assert isinstance(work, ProcessWork), "what failed once is tried again"
    work.close()


def test_the_process_imports_nothing_from_where_the_daemon_happens_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the working directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    ProcessWork(0).close()


def test_a_program_that_is_no_python_gives_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with structlog.testing.capture_logs():
        assert isinstance(ProcessPasses()(0, compaction_process.LEAST_BYTES), LocalWork)


def test_a_piece_says_what_it_lacks_and_what_is_wrong_with_it() -> None:
    batch = encode_batch([b"v"], [b"k"], timestamps_ms=[1])
    work = LocalWork(0)
    assert work.map(batch[:-1], 0)[:3] == (0, len(batch), 0)
    assert work.map(batch + batch[:7], 0)[:3] == (len(batch), 0, 1)
    with pytest.raises(ProtocolError, match="offset 0 is where offset 5 belongs"):
        work.map(batch, 5)
    with pytest.raises(ProtocolError, match="cut off after 7 bytes"):
        work.map(batch[:7], 0)
