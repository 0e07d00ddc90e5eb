"""Real files behind the storage interface, and the pool that blocking calls run in."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import DataDirectoryLockedError, File, WriteInDoubtError


@pytest.mark.parametrize("pieces", [[b"a"], [b"ab", b"", memoryview(b"cde")], [b"%d," % n for n in range(5000)]])
def test_an_append_writes_all_pieces_in_order_at_the_end(tmp_path: Path, pieces: list[bytes | memoryview]) -> None:
    file = FileStorage(tmp_path).open("log", create=True)
    file.append([b"before "])
    file.append(pieces)
    assert (tmp_path / "log").read_bytes() == b"before " + b"".join(pieces)
    assert file.size() == 7 + sum(map(len, pieces))
    file.close()
    file.close()


def test_a_write_that_the_system_takes_in_parts_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev, write = os.writev, os.write
    monkeypatch.setattr(os, "writev", lambda fd, pieces: writev(fd, [b"".join(pieces)[:5]]))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    file = FileStorage(tmp_path).open("log", create=True)
    file.append([b"%d," % number for number in range(20)])
    assert (tmp_path / "log").read_bytes() == b"".join(b"%d," % number for number in range(20))
    file.close()


def test_reads_are_short_only_at_the_end_and_appends_follow_a_cut(tmp_path: Path) -> None:
    file = FileStorage(tmp_path).open("log", create=True)
    file.append([b"0123456789"])
    assert [file.read(2, 3), file.read(8, 5), file.read(20, 5)] == [b"234", b"89", b""]
    file.truncate(4)
    file.append([b"ab"])
    file.sync()
    assert file.read(0, 100) == b"0123ab"
    file.close()


def test_names(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "data")
    storage.make_directory("topic-0")
    storage.make_directory("topic-0")
    storage.write_file("topic-0/b", b"1")
    storage.write_file("topic-0/b", b"2")
    storage.open("topic-0/a", create=True).close()
    assert storage.list("topic-0") == ["a", "b"]
    storage.rename("topic-0/b", "topic-0/a")
    assert (storage.list("topic-0"), storage.read_file("topic-0/a")) == (["a"], b"2")
    assert (storage.exists("topic-0/a"), storage.exists("topic-0/b")) == (True, False)
    with pytest.raises(FileNotFoundError):
        storage.open("topic-0/b")
    storage.remove("topic-0/a")
    storage.sync_directory("topic-0")
    storage.remove_tree("topic-0")
    storage.remove_tree("topic-0")
    assert storage.list("") == []


Synced = list[str]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    """The paths that are synced from now on."""
    paths: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return paths


@pytest.mark.parametrize("make", [lambda storage: storage.lock("lock"), lambda storage: storage.make_directory("t-0")])
def test_a_new_data_directory_and_what_is_above_it_are_durable_names(
    tmp_path: Path, synced: Synced, make: Callable[[FileStorage], object]
) -> None:
    make(FileStorage(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    FileStorage(tmp_path / "a" / "b").make_directory("t-1")
    assert len(synced) == 2


def test_a_file_is_replaced_as_a_whole_and_durably(tmp_path: Path, synced: Synced) -> None:
    FileStorage(tmp_path).write_file("f", b"1")
    assert synced == [str(tmp_path / "f.tmp"), str(tmp_path)]


@pytest.mark.parametrize(
    ("fails", "number", "in_doubt"),
    [
        ("file", errno.ENOSPC, False),
        ("file", errno.EIO, True),
        ("rename", errno.ENOSPC, True),
        ("directory", errno.ENOSPC, True),
        ("directory", errno.EIO, True),
    ],
)
def test_a_failed_replacement_says_whether_the_old_content_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, number: int, in_doubt: bool
) -> None:
    storage = FileStorage(tmp_path)
    storage.write_file("f", b"old")
    fsync = os.fsync

    def failing_sync(descriptor: int) -> None:
        if fails == ("file" if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".tmp") else "directory"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    def failing_replace(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing_sync)
    if fails == "rename":
        monkeypatch.setattr(os, "replace", failing_replace)
    with pytest.raises(OSError, match=os.strerror(number)) as failed:
        storage.write_file("f", b"new")
    assert failed.value.errno == number
    assert isinstance(failed.value, WriteInDoubtError) is in_doubt
    if not in_doubt:
        assert storage.read_file("f") == b"old"


def failing(number: int) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        ("writev", lambda storage, file: file.append([b"x"])),
        ("pread", lambda storage, file: file.read(0, 1)),
        ("fdatasync" if hasattr(os, "fdatasync") else "fsync", lambda storage, file: file.sync()),
        ("ftruncate", lambda storage, file: file.truncate(0)),
        ("fstat", lambda storage, file: file.size()),
        ("fsync", lambda storage, file: storage.write_file("t-0/f", b"x")),
    ],
)
def test_an_error_of_the_disk_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, operation: Callable[..., object]
) -> None:
    storage = FileStorage(tmp_path)
    storage.make_directory("t-0")
    file = storage.open("t-0/f", create=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(errno.EIO))
        with pytest.raises(OSError, match=r"Input/output error.*t-0/f"):
            operation(storage, file)
    file.close()


def test_a_replacement_that_failed_keeps_no_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    storage.write_file("f", b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            storage.write_file("f", b"new")
    assert (storage.list(""), storage.read_file("f")) == (["f"], b"old")


def test_the_lock_is_held_on_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileStorage(tmp_path).lock("lock").release()
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    lock = FileStorage(tmp_path).lock("lock")
    with pytest.raises(DataDirectoryLockedError):
        FileStorage(tmp_path).lock("lock")
    lock.release()


def test_a_lock_is_lost_with_its_file(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "data")
    lock = storage.lock("lock")
    assert lock.lost() is None
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert "was removed" in str(lock.lost())
    other = storage.lock("lock")
    assert "was replaced" in str(lock.lost())
    assert other.lost() is None
    lock.release()
    other.release()
    assert lock.lost() is None


def test_a_data_directory_is_locked_by_one_process_and_the_other_is_told_which(tmp_path: Path) -> None:
    lock = FileStorage(tmp_path / "data").lock("lock")
    other = (
        f"from coordinator.filesystem.files import FileStorage; FileStorage({str(tmp_path / 'data')!r}).lock('lock')"
    )
    found = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"is locked by process {os.getpid()}: one daemon may use a data directory" in found.stderr
    with pytest.raises(DataDirectoryLockedError):
        FileStorage(tmp_path / "data").lock("lock")
    lock.release()
    lock.release()
    assert subprocess.run([sys.executable, "-c", other], check=False).returncode == 0


async def test_a_disk_call_returns_what_the_function_returns_or_raises(tmp_path: Path) -> None:
    disk = Disk(FileStorage(tmp_path), threads=2)
    assert await disk.run(max, 1, 2) == 2
    with pytest.raises(FileNotFoundError):
        await disk.run(disk.storage.read_file, "nothing")
    disk.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_disk_call_is_over_when_the_cancellation_arrives(tmp_path: Path, fails: bool) -> None:
    disk = Disk(FileStorage(tmp_path), threads=1)
    held, over = threading.Event(), []

    def call() -> None:
        held.wait(10)
        over.append(True)
        if fails:
            raise OSError("too late to matter")

    running = asyncio.create_task(disk.run(call))
    waiting = asyncio.create_task(disk.run(call))
    await asyncio.sleep(0)
    running.cancel()
    waiting.cancel()
    await asyncio.sleep(0)
    running.cancel()
    assert not running.done()
    held.set()
    results = await asyncio.gather(running, waiting, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert over == [True, True]
    disk.close()


@pytest.mark.parametrize("busy", ["read", "tend"])
async def test_writes_wait_for_no_thread_that_reads_or_tends(tmp_path: Path, busy: str) -> None:
    disk, held = Disk(FileStorage(tmp_path), threads=1), threading.Event()
    lane = disk.read if busy == "read" else disk.tend
    slow = [asyncio.create_task(lane(held.wait, 60)) for _ in range(3)]
    async with asyncio.timeout(60):
        assert await disk.run(max, 1, 2) == 2
    assert not any(task.done() for task in slow)
    held.set()
    assert await asyncio.gather(*slow) == [True, True, True]
    disk.close()


async def test_a_file_is_closed_off_the_loop_and_after_the_end_too(tmp_path: Path) -> None:
    class Noting:
        def __init__(self) -> None:
            self.closed_by: list[int] = []

        def close(self) -> None:
            self.closed_by.append(threading.get_ident())

    disk, file = Disk(FileStorage(tmp_path), threads=1), Noting()
    disk.close_file(cast("File", file))
    await disk.tend(lambda: None)
    assert file.closed_by != [threading.get_ident()]
    disk.close()
    disk.close_file(cast("File", file))
    assert len(file.closed_by) == 2
