"""Recovery: a torn tail is cut, damage is refused, and no wrong record is ever served."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, LogDamagedError
from coordinator.log.clean_end import CLEAN_END
from coordinator.log.recovery import open_directory
from protocol.errors import ProtocolError
from protocol.record_batch import iter_batches
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import DIRECTORY, Record, append, append_value, opened, outcome, records_in, records_of

LOG = f"{DIRECTORY}/{0:020}.log"
ROUNDS = 3
ROUND = 2
"""Rounds, and batches in each; one record a batch."""


class NoSync(FileStorage):
    """Opening a log thousands of times tests nothing about the disk: leave its syncs out."""

    def sync_directory(self, path: str) -> None:
        return

    def write_file(self, path: str, data: bytes) -> None:
        Path(self._path(path)).write_bytes(data)


@dataclass
class Stored:
    """A directory as a crash or a clean close left it, and what it held."""

    root: Path
    records: dict[int, Record]

    @property
    def directory(self) -> Path:
        return self.root / DIRECTORY

    def log_bytes(self) -> bytes:
        return (self.root / LOG).read_bytes()

    def bounds(self) -> list[int]:
        """Where each batch begins, and the end."""
        data = self.log_bytes()
        return [position for position, _ in iter_batches(data)] + [len(data)]

    def put(self, name: str, data: bytes) -> None:
        """Restores everything, then puts ``data`` in place of the file ``name``."""
        copy = self.root.parent / "again"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.root, copy)
        (copy / DIRECTORY / name).write_bytes(data)

    def reopened(self, config: LogConfig = LogConfig()) -> dict[int, Record]:  # noqa: B008  (frozen)
        """The records that the changed copy serves."""
        storage = NoSync(self.root.parent / "again")
        recovered = open_directory(storage, DIRECTORY, config)
        try:
            batches = []
            for segment in recovered.segments:
                data = storage.read_file(segment.path)[: segment.size]
                batches += [(header, data[at : at + header.length]) for at, header in iter_batches(data)]
            return records_of(batches)
        finally:
            recovered.segments[-1].retire()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def store(root: Path, *, closed: bool, config: LogConfig | None = None) -> Stored:
    async def run() -> Stored:
        async with opened(FileStorage(root / "live"), config) as log:
            for number in range(ROUNDS * ROUND):
                append(log, (b"key", b"value %d" % number, number))
                if number % ROUND == ROUND - 1:
                    await log.flush()
            records = await records_in(log)
            shutil.copytree(root / "live", root / "crashed")
        return Stored(root / ("live" if closed else "crashed"), records)

    return asyncio.run(run())


def test_a_log_cut_at_any_byte_after_a_crash_is_what_was_whole_before_the_cut(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=False)
    data, bounds = stored.log_bytes(), stored.bounds()
    for length in range(len(data) + 1):
        stored.put(f"{0:020}.log", data[:length])
        whole = sum(bound <= length for bound in bounds) - 1
        assert stored.reopened() == {offset: stored.records[offset] for offset in range(whole)}


def test_a_log_cut_at_any_byte_after_a_clean_close_is_refused(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=True)
    data = stored.log_bytes()
    for length in range(len(data)):
        stored.put(f"{0:020}.log", data[:length])
        with pytest.raises(LogDamagedError, match="was on disk up to offset 6"):
            stored.reopened()


def test_a_flipped_bit_after_a_clean_close_is_refused_at_the_latest_when_it_is_read(tmp_path: Path) -> None:
    """As in a closed segment. Without what the close has noted, the segment is scanned, and the partition is refused."""
    stored = store(tmp_path, closed=True)
    data = stored.log_bytes()
    for position in range(len(data)):
        stored.put(f"{0:020}.log", flipped(data, position))
        with pytest.raises((LogDamagedError, ProtocolError)):
            stored.reopened()
        (tmp_path / "again" / DIRECTORY / CLEAN_END).unlink(missing_ok=True)
        with pytest.raises(LogDamagedError):
            stored.reopened()


def test_a_flipped_bit_after_a_crash_is_refused_or_costs_only_the_last_round(tmp_path: Path) -> None:
    """The last round cannot be told from one under way. Everything before it has a witness behind it."""
    stored = store(tmp_path, closed=False)
    data, bounds = stored.log_bytes(), stored.bounds()
    last_round = ROUNDS * ROUND - ROUND
    for position in range(len(data)):
        stored.put(f"{0:020}.log", flipped(data, position))
        if position < bounds[last_round]:
            with pytest.raises(LogDamagedError, match="damaged"):
                stored.reopened()
        else:
            served = stored.reopened()
            assert list(served) in ([*range(last_round)], [*range(last_round + 1)])
            assert all(stored.records[offset] == record for offset, record in served.items())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_garbage_behind_the_last_batch_is_a_torn_tail(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    stored = store(tmp_path_factory.mktemp("garbage"), closed=data.draw(st.booleans()))
    tail = data.draw(st.one_of(st.binary(max_size=300), st.integers(1, 5000).map(bytes)))
    stored.put(f"{0:020}.log", stored.log_bytes() + tail)
    assert stored.reopened() == stored.records


def test_a_batch_inside_the_data_of_a_torn_batch_proves_nothing(tmp_path: Path) -> None:
    """Somebody may well store log files as values."""

    async def run() -> None:
        async with opened(FileStorage(tmp_path / "live")) as log:
            for _ in range(6):
                append_value(log, b"x")
                await log.flush()
            embedded = await log.read(0, 10_000)
            append_value(log, embedded * 2)
            await log.flush()
            shutil.copytree(tmp_path / "live", tmp_path / "crashed")

    asyncio.run(run())
    stored = Stored(tmp_path / "crashed", {})
    data, bounds = stored.log_bytes(), stored.bounds()
    for length in range(bounds[-2], bounds[-1]):
        stored.put(f"{0:020}.log", data[:length])
        assert list(stored.reopened()) == [*range(6)]


def test_batches_that_changed_places_are_refused(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=False)
    data, bounds = stored.log_bytes(), stored.bounds()
    first, second = data[: bounds[1]], data[bounds[1] : bounds[2]]
    for wrong in (second + first, first + first, first + data[bounds[2] :], second):
        stored.put(f"{0:020}.log", wrong)
        with pytest.raises(LogDamagedError, match="belongs"):
            stored.reopened()


SEGMENTS = LogConfig(segment_bytes=300, index_interval_bytes=100)


def segments_of(stored: Stored) -> list[str]:
    return sorted(path.name for path in stored.directory.glob("*.log"))


@pytest.mark.parametrize("closed", [True, False])
def test_a_missing_segment_is_refused(tmp_path: Path, closed: bool) -> None:
    stored = store(tmp_path, closed=closed, config=SEGMENTS)
    names = segments_of(stored)
    assert len(names) == 3
    for name in names:
        stored.put(name, b"")
        (tmp_path / "again" / DIRECTORY / name).unlink()
        with pytest.raises(LogDamagedError):
            stored.reopened(SEGMENTS)


def test_a_closed_segment_cut_anywhere_is_refused_with_its_index_and_without(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=False, config=SEGMENTS)
    name = segments_of(stored)[1]
    data = (stored.directory / name).read_bytes()
    for length in range(len(data)):
        for index_lost in (False, True):
            stored.put(name, data[:length])
            if index_lost:
                (tmp_path / "again" / DIRECTORY / name.replace(".log", ".index")).unlink()
            with pytest.raises(LogDamagedError):
                stored.reopened(SEGMENTS)


def test_a_flipped_bit_in_a_closed_segment_is_refused_at_the_latest_when_it_is_read(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=False, config=SEGMENTS)
    name = segments_of(stored)[0]
    data = (stored.directory / name).read_bytes()
    for position in range(len(data)):
        stored.put(name, flipped(data, position))
        with pytest.raises((LogDamagedError, ProtocolError)):
            stored.reopened(SEGMENTS)
        (tmp_path / "again" / DIRECTORY / name.replace(".log", ".index")).unlink()
        with pytest.raises(LogDamagedError):
            stored.reopened(SEGMENTS)


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped", "another segment's"])
def test_an_index_that_is_not_right_is_made_again(tmp_path: Path, damage: str) -> None:
    stored = store(tmp_path, closed=True, config=SEGMENTS)
    indexes = sorted(stored.directory.glob("*.index"))
    good = indexes[0].read_bytes()
    wrong = {"cut": good[:-3], "flipped": flipped(good, 30), "another segment's": indexes[1].read_bytes(), "lost": b""}
    stored.put(indexes[0].name, wrong[damage])
    again = tmp_path / "again" / DIRECTORY / indexes[0].name
    if damage == "lost":
        again.unlink()
    assert stored.reopened(SEGMENTS) == stored.records
    assert again.read_bytes() == good


@pytest.mark.parametrize("name", ["checkpoint", "leader-epochs"])
def test_a_damaged_small_file_that_cannot_be_derived_is_refused(tmp_path: Path, name: str) -> None:
    stored = store(tmp_path, closed=True)
    data = (stored.directory / name).read_bytes()
    for position in range(len(data)):
        stored.put(name, flipped(data, position))
        with pytest.raises(LogDamagedError, match=name):
            stored.reopened()


def test_a_damaged_cleaner_point_makes_compaction_start_over(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=True)
    stored.put("cleaner-point", b"nonsense")
    assert stored.reopened() == stored.records


def test_what_a_killed_daemon_leaves_half_done_is_cleared_away(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=True)
    leftovers = ["checkpoint.tmp", f"{0:020}.index.tmp", f"{0:020}.cleaned"]
    stored.put(leftovers[0], b"half")
    for name in leftovers[1:]:
        (tmp_path / "again" / DIRECTORY / name).write_bytes(b"half")
    assert stored.reopened() == stored.records
    assert not [name for name in leftovers if (tmp_path / "again" / DIRECTORY / name).exists()]


def test_the_end_that_a_recovery_found_is_proven_from_then_on(tmp_path: Path) -> None:
    stored = store(tmp_path, closed=False)
    stored.put("cleaner-point.tmp", b"")
    assert stored.reopened() == stored.records
    log = tmp_path / "again" / LOG
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(LogDamagedError, match="was on disk up to offset 6, but is readable only up to 5"):
        stored.reopened()


async def test_a_torn_tail_is_cut_and_the_log_goes_on_there(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), close=False) as log:
        append_value(log, b"a")
        assert await outcome(log) is None
    path = tmp_path / LOG
    path.write_bytes(path.read_bytes() + b"CHB1 torn")
    with structlog.testing.capture_logs() as logged:
        async with opened(FileStorage(tmp_path)) as log:
            assert [value for _, value, _ in (await records_in(log)).values()] == [b"a"]
            assert append_value(log, b"b") == 1
            assert await outcome(log) is None
    assert [(entry["event"], entry["bytes_cut"], entry["end_offset"]) for entry in logged] == [("torn_tail_cut", 9, 1)]
    async with opened(FileStorage(tmp_path)) as log:
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"a", b"b"]


async def test_a_log_on_a_full_disk_is_recovered_and_read_and_takes_appends_when_there_is_room(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path), close=False) as log:
        append_value(log, b"a")
        assert await outcome(log) is None
    path = tmp_path / LOG
    path.write_bytes(path.read_bytes() + b"CHB1 torn")
    full = True

    def refuse(operation: str, name: str) -> None:
        if full and operation in ("append", "write_file", "create", "make_directory"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    async with opened(HookedStorage(tmp_path, refuse)) as log:
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"a"]
        append_value(log, b"b")
        refused = await outcome(log)
        assert "Make room and send it again" in str(refused)
        full = False
        append_value(log, b"c")
        assert await outcome(log) is None
        assert [value for _, value, _ in (await records_in(log)).values()] == [b"a", b"c"]
    async with opened(FileStorage(tmp_path)) as log:
        assert list(await records_in(log)) == [0, 1]


def flipped(data: bytes, position: int) -> bytes:
    """The same bytes with one bit of one byte turned; which one varies with the position."""
    damaged = bytearray(data)
    damaged[position] ^= 1 << position % 8
    return bytes(damaged)
