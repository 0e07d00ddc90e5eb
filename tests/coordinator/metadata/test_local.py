"""The local metadata store: what is damage and what is not, what the disk refuses, and files of older versions."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.reserve import PATH as RESERVE
from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.metadata.authority import Compare, Delete, DeletePrefix, KeyValue, Put
from coordinator.metadata.encoding import LOG, SNAPSHOT, MetadataDamagedError
from coordinator.metadata.local import LocalMetadataStore
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import end_of_process

LARGE = Put("large", {"text": "x" * 2000})
"""With this in the snapshot, the log takes some changes before the next."""


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    opened = Disk(FileStorage(str(tmp_path)), threads=1)
    yield opened
    opened.close()


async def store_on(disk: Disk) -> LocalMetadataStore:
    return await LocalMetadataStore.open(disk, lambda: "cluster-1", end_of_process)


async def grown(disk: Disk, changes: int) -> LocalMetadataStore:
    """A store with one large key in its snapshot and so many changes of one small key in its log."""
    store = await store_on(disk)
    await store.transaction([], [LARGE])
    for number in range(changes):
        await store.transaction([], [Put("n", {"value": number})])
    return store


def value_of(store: LocalMetadataStore) -> int:
    found = store.get("n")
    return -1 if found is None else int(found.value["value"])


async def test_changes_survive_reopening_in_the_snapshot_and_in_the_log(disk: Disk, tmp_path: Path) -> None:
    store = await grown(disk, 5)
    assert (tmp_path / LOG).read_bytes().count(b"\n") == 5
    again = await store_on(disk)
    assert (again.range(""), again.revision, again.cluster_id) == (store.range(""), 6, "cluster-1")
    await store.close()
    assert (tmp_path / LOG).read_bytes() == b""
    last = await store_on(disk)
    assert (last.range(""), last.revision) == (store.range(""), 6)


async def test_a_change_writes_what_it_changes_and_a_snapshot_comes_once_in_as_many_bytes(
    disk: Disk, tmp_path: Path
) -> None:
    store = await store_on(disk)
    await store.transaction([], [Put(f"key-{number}", {"text": "x" * 100}) for number in range(500)])
    size, inode = (tmp_path / SNAPSHOT).stat().st_size, (tmp_path / SNAPSHOT).stat().st_ino
    lines = 0
    while (tmp_path / SNAPSHOT).stat().st_ino == inode:
        written = (tmp_path / LOG).stat().st_size
        assert written <= size
        await store.transaction([], [Put("small", {"n": lines})])
        lines += 1
        assert (tmp_path / LOG).stat().st_size - written < 120
    assert 500 < lines < 1500
    assert ((tmp_path / LOG).stat().st_size, value_of(await grown(disk, 1))) == (0, 0)


async def test_a_changed_byte_of_what_a_clean_stop_leaves_is_noticed(disk: Disk, tmp_path: Path) -> None:
    store = await grown(disk, 2)
    await store.close()
    content = (tmp_path / SNAPSHOT).read_bytes()
    for position in range(len(content) - 1):  # the very last byte is the closing line feed, which carries nothing
        damaged = bytearray(content)
        damaged[position] ^= 1
        (tmp_path / SNAPSHOT).write_bytes(damaged)
        with pytest.raises(MetadataDamagedError):
            await store_on(disk)


async def test_a_changed_byte_of_the_log_is_noticed(disk: Disk, tmp_path: Path) -> None:
    """In the last line, too: its end and no block of zeros tell that it was written as a whole."""
    await grown(disk, 4)
    content = (tmp_path / LOG).read_bytes()
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            if not damaged[position]:
                continue  # it looks like a block that was not written
            (tmp_path / LOG).write_bytes(damaged)
            with pytest.raises(MetadataDamagedError, match=r"metadata\.changes"):
                await store_on(disk)
            assert (tmp_path / LOG).read_bytes() == damaged


async def test_a_line_that_was_cut_short_was_never_acknowledged(disk: Disk, tmp_path: Path) -> None:
    await grown(disk, 4)
    content = (tmp_path / LOG).read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    for length in range(last, len(content)):
        for rest in (b"", bytes(len(content) - length)):  # a block that was not written reads as zeros
            (tmp_path / LOG).write_bytes(content[:length] + rest)
            store = await store_on(disk)
            assert value_of(store) == 2
            await store.transaction([], [Put("n", {"value": 9})])
            assert value_of(await store_on(disk)) == 9


@pytest.mark.parametrize("content", [b"", b"{}\n{}\n", b"not json\n{}\n", b'{"format": 1}\n{}\n'])
async def test_a_file_that_is_none_is_refused(disk: Disk, tmp_path: Path, content: bytes) -> None:
    (tmp_path / SNAPSHOT).write_bytes(content)
    with pytest.raises(MetadataDamagedError):
        await store_on(disk)


async def test_a_newer_format_names_itself(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / SNAPSHOT).write_bytes(b'{"format": 5, "crc32": 0}\n{}\n')
    with pytest.raises(MetadataDamagedError, match="format 5, this version of Cohort reads formats 1 to 4: start"):
        await store_on(disk)
    assert (tmp_path / SNAPSHOT).read_bytes() == b'{"format": 5, "crc32": 0}\n{}\n'


async def test_a_file_of_an_older_version_is_read_and_carried_over(disk: Disk, tmp_path: Path) -> None:
    body = b'{"a": [3, {"n": 1}], "b": [7, {"n": 2}]}'
    head = {"format": 1, "cluster_id": "old", "revision": 7, "crc32": zlib.crc32(body, zlib.crc32(b"old 7"))}
    content = json.dumps(head).encode() + b"\n" + body + b"\n"
    (tmp_path / SNAPSHOT).write_bytes(content)
    for _ in range(2):  # until something changes, the older version can still read it
        store = await store_on(disk)
        assert [(entry.key, entry.mod_revision, entry.value["n"]) for entry in store.range("")] == [
            ("a", 3, 1),
            ("b", 7, 2),
        ]
        assert (store.cluster_id, store.revision, (tmp_path / SNAPSHOT).read_bytes()) == ("old", 7, content)
    assert await store.transaction([Compare("a", "mod", 3)], [Delete("a")]) == 8
    assert json.loads((tmp_path / SNAPSHOT).read_bytes().split(b"\n")[0])["format"] == 3, "it would not see the log"
    again = await store_on(disk)
    assert ([entry.key for entry in again.range("")], again.revision, again.cluster_id) == (["b"], 8, "old")


def files_without_versions() -> tuple[bytes, bytes]:
    """A snapshot and a log of format 2: a was changed and b removed since the snapshot."""
    body = b'{"a": [3, {"n": 1}], "b": [7, {"n": 2}], "c": [5, {}]}'
    head = {"format": 2, "cluster_id": "old", "revision": 7, "crc32": zlib.crc32(body, zlib.crc32(b"2 old 7"))}
    lines = []
    for text in (b'{"revision": 8, "changes": {"a": [8, {"n": 3}]}}', b'{"revision": 9, "changes": {"b": null}}'):
        lines.append(b"%08x %b\n" % (zlib.crc32(text), text))
    return json.dumps(head).encode() + b"\n" + body + b"\n", b"".join(lines)


async def test_files_without_versions_are_read_and_carried_over_with_the_first_change(
    disk: Disk, tmp_path: Path
) -> None:
    snapshot, lines = files_without_versions()
    (tmp_path / SNAPSHOT).write_bytes(snapshot)
    (tmp_path / LOG).write_bytes(lines)
    store = await store_on(disk)
    assert (store.range(""), store.revision) == ([KeyValue("a", {"n": 3}, 8, 8, 1), KeyValue("c", {}, 5, 5, 1)], 9)
    assert ((tmp_path / SNAPSHOT).read_bytes(), (tmp_path / LOG).read_bytes()) == (snapshot, lines)
    assert await store.transaction([Compare("a", "mod", 8)], [Put("a", {"n": 4})]) == 10
    assert json.loads((tmp_path / SNAPSHOT).read_bytes().split(b"\n")[0])["format"] == 3
    assert (tmp_path / LOG).read_bytes() == b""
    again = await store_on(disk)
    assert again.range("") == store.range("") == [KeyValue("a", {"n": 4}, 8, 10, 2), KeyValue("c", {}, 5, 5, 1)]


@pytest.mark.parametrize("stopped", [True, False])
async def test_keys_come_back_with_all_that_they_knew_of_themselves(disk: Disk, stopped: bool) -> None:
    store = await grown(disk, 3)
    await store.transaction([], [Put("p/a", [1, "text", None]), Put("p/b", {}), Put("once", 0)])
    await store.transaction([], [Delete("once"), Put("p/b", {"again": True})])
    await store.transaction([], [Put("once", 1), DeletePrefix("p/a")])
    if stopped:
        await store.close()
    again = await store_on(disk)
    assert (again.range(""), again.revision) == (store.range(""), 7)
    assert again.get("n") == KeyValue("n", {"value": 2}, 2, 4, 3)
    assert again.get("once") == KeyValue("once", 1, 7, 7, 1)
    assert again.get("p/b") == KeyValue("p/b", {"again": True}, 5, 6, 2)


async def test_what_a_lease_left_is_removed_by_the_next_start_durably(disk: Disk) -> None:
    store = await grown(disk, 1)
    first, second = await store.grant(2_000), await store.grant(2_000)
    await store.transaction([], [Put("live/1", 1, first.id), Put("live/2", 2, second.id)])
    await store.transaction([], [Put("n", {"value": 5}), Put("live/2", 3)])
    assert await first.renew()
    for _ in range(2):
        again = await store_on(disk)
        assert [known.key for known in again.range("")] == ["large", "live/2", "n"]
        assert again.revision == 5
    assert again.get("live/2") == KeyValue("live/2", 3, 3, 4, 2)


async def test_a_lease_that_the_disk_refuses_to_end_goes_on(tmp_path: Path) -> None:
    faults = Faults()
    disk = Disk(HookedStorage(tmp_path, faults), threads=1)
    store = await grown(disk, 1)
    lease = await store.grant(2_000)
    await store.transaction([], [Put("live/1", 1, lease.id)])
    faults.operations = {"append": errno.EIO}
    with pytest.raises(OSError, match=r"Input/output"):
        await lease.revoke()
    assert (store.get("live/1") is not None, await lease.renew()) == (True, True)
    faults.operations = {}
    await lease.revoke()
    assert (store.get("live/1"), await lease.renew()) == (None, False)
    disk.close()


async def test_a_disk_that_takes_no_snapshot_of_the_new_format_takes_no_change(tmp_path: Path) -> None:
    body = b"{}"
    head = {"format": 1, "cluster_id": "old", "revision": 7, "crc32": zlib.crc32(body, zlib.crc32(b"old 7"))}
    (tmp_path / SNAPSHOT).write_bytes(json.dumps(head).encode() + b"\n" + body + b"\n")

    def refuse(operation: str, path: str) -> None:
        if operation == "write_file":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    store = await store_on(disk)
    with pytest.raises(OSError, match="No space"):
        await store.transaction([], [Put("a", {})])
    assert ((tmp_path / LOG).read_bytes(), store.range("")) == (b"", [])
    disk.close()


@pytest.mark.parametrize("name", ["orders-0", "__consumer_offsets-12", "a.b-3"])
async def test_missing_metadata_of_a_directory_with_partitions_is_damage(disk: Disk, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(MetadataDamagedError, match=rf"metadata.json is missing, but .* {name}: restore"):
        await store_on(disk)
    assert not (tmp_path / SNAPSHOT).exists()


async def test_a_snapshot_and_a_log_that_do_not_belong_together_are_refused(disk: Disk, tmp_path: Path) -> None:
    await grown(disk, 3)
    kept = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).unlink()
    with pytest.raises(MetadataDamagedError, match=r"metadata\.changes is missing beside metadata\.json: restore both"):
        await store_on(disk)
    (tmp_path / LOG).write_bytes(kept.split(b"\n", 1)[1])
    with pytest.raises(MetadataDamagedError, match="goes on with revision 3 where 2 is due"):
        await store_on(disk)
    (tmp_path / LOG).write_bytes(kept)
    snapshot = (tmp_path / SNAPSHOT).read_bytes()
    (tmp_path / SNAPSHOT).unlink()
    with pytest.raises(MetadataDamagedError, match=r"metadata\.json is missing, but metadata\.changes holds changes"):
        await store_on(disk)
    (tmp_path / SNAPSHOT).write_bytes(snapshot)
    assert value_of(await store_on(disk)) == 2


async def test_a_new_data_directory_may_hold_files_of_others(disk: Disk, tmp_path: Path) -> None:
    for name in ("lock", "metadata.json.tmp", "README"):
        (tmp_path / name).write_text("")
    (tmp_path / "lost+found").mkdir()
    assert (await store_on(disk)).range("") == []


async def test_watchers_hear_of_each_change_and_a_failed_condition_changes_nothing(disk: Disk) -> None:
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    heard: list[int] = []
    stop = store.watch("a/", lambda delta: heard.append(delta.revision))
    assert await store.transaction([Compare("a/1", "mod", 0)], [Put("a/1", {"n": 1})]) == 1
    assert await store.transaction([Compare("a/1", "mod", 0)], [Put("a/1", {"n": 2})]) is None
    assert await store.transaction([Compare("a/1", "mod", 1)], [Put("b", {})]) == 2
    assert await store.transaction([], [Delete("a/1")]) == 3
    stop()
    assert await store.transaction([], [Put("a/2", {})]) == 4
    assert heard == [1, 3]


class Hook:
    """Fails the operation named in ``fails``, which ``FileStorage.write_file`` asks for itself."""

    def __init__(self) -> None:
        self.fails = ""
        self.number = errno.EIO

    def storage(self, root: Path) -> FileStorage:
        hook = self

        class Failing(FileStorage):
            def rename(self, source: str, target: str) -> None:
                hook.check("rename")
                super().rename(source, target)

            def sync_directory(self, path: str) -> None:
                hook.check("sync_directory")
                super().sync_directory(path)

        return Failing(root)

    def check(self, operation: str) -> None:
        if operation == self.fails:
            raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("operation", ["rename", "sync_directory"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failure_behind_the_point_of_no_return_ends_the_process(
    tmp_path: Path, operation: str, number: int
) -> None:
    hook, reasons = Hook(), list[str]()
    disk = Disk(hook.storage(tmp_path), threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "c", reasons.append)
    hook.fails, hook.number = operation, number
    with pytest.raises(WriteInDoubtError):
        await store.transaction([], [LARGE])
    assert len(reasons) == 1
    assert "it is unknown" in reasons[0]
    hook.fails = ""
    with pytest.raises(WriteInDoubtError):  # whatever comes now would be built on sand
        await store.transaction([], [Put("b", {})])
    assert (store.range(""), store.revision) == ([], 0)
    disk.close()


class Faults:
    """Fails the operations on the log that are named in ``operations``, with an error number for each."""

    def __init__(self) -> None:
        self.operations: dict[str, int] = {}

    def __call__(self, operation: str, path: str) -> None:
        number = self.operations.get(operation) if path == LOG else None
        if number is not None:
            raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "operations",
    [{"sync": errno.EIO}, {"sync": errno.ENOSPC}, {"append": errno.ENOSPC, "truncate": errno.EIO}],
    ids=["sync", "sync on a full disk", "what a refused append left cannot be cut"],
)
async def test_a_log_of_which_the_end_is_unknown_ends_the_process(tmp_path: Path, operations: dict[str, int]) -> None:
    faults, reasons = Faults(), list[str]()
    disk = Disk(HookedStorage(tmp_path, faults), threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "c", reasons.append)
    await store.transaction([], [LARGE])
    faults.operations = operations
    with pytest.raises(WriteInDoubtError, match=r"metadata\.changes"):
        await store.transaction([], [Put("a", {})])
    assert len(reasons) == 1
    assert "it is unknown" in reasons[0]
    faults.operations = {}
    with pytest.raises(WriteInDoubtError):
        await store.transaction([], [Put("b", {})])
    assert store.revision == 1
    await store.close()  # nothing is written any more
    assert (tmp_path / LOG).stat().st_size > 0
    disk.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_line_that_is_refused_is_cut_off_and_the_store_goes_on(tmp_path: Path, number: int) -> None:
    faults = Faults()
    disk = Disk(HookedStorage(tmp_path, faults), threads=1)
    store = await grown(disk, 1)
    before = (tmp_path / LOG).read_bytes()
    faults.operations = {"append": number}
    with pytest.raises(OSError, match=r"metadata\.changes|No space|Input/output"):
        await store.transaction([], [Put("a", {})])
    assert (tmp_path / LOG).read_bytes() == before
    faults.operations = {}
    assert await store.transaction([], [Put("b", {})]) == 3
    assert [entry.key for entry in (await store_on(disk)).range("")] == ["b", "large", "n"]
    disk.close()


async def test_a_snapshot_that_is_refused_leaves_the_log_and_one_that_cannot_empty_it_is_good(tmp_path: Path) -> None:
    def hook(operation: str, path: str) -> None:
        if (operation, path) in refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    refused: set[tuple[str, str]] = set()
    disk = Disk(HookedStorage(tmp_path, hook), threads=1)
    store = await grown(disk, 2)
    refused = {("write_file", SNAPSHOT)}
    assert await store.transaction([], [Put("second", dict(LARGE.value))]) == 4
    lines = (tmp_path / LOG).read_bytes().count(b"\n")
    assert lines == 3
    refused = {("open", LOG)}
    assert await store.transaction([], [Put("third", dict(LARGE.value))]) == 5
    assert (tmp_path / LOG).read_bytes().count(b"\n") == lines
    refused = set()
    again = await store_on(disk)
    assert (again.range(""), again.revision) == (store.range(""), 5)
    assert await again.transaction([], [Delete("third")]) == 6
    assert (await store_on(disk)).revision == 6
    disk.close()


async def test_a_refusal_before_it_changes_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    def refuse(operation: str, path: str) -> None:
        if operation in ("write_file", "append") and full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = False
    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    store = await store_on(disk)
    for refused in (Put("a", {}), LARGE):
        full = True
        with pytest.raises(OSError, match="No space"):
            await store.transaction([], [refused])
        full = False
    assert await store.transaction([], [Put("b", {})]) == 1
    assert [entry.key for entry in store.range("")] == ["b"]
    disk.close()


async def test_a_deletion_finds_room_on_a_full_disk_and_nothing_else_does(tmp_path: Path) -> None:
    full = False

    def refuse(operation: str, path: str) -> None:
        if operation in ("write_file", "append") and full and (tmp_path / RESERVE).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    disk.reserve.restore()
    store = await store_on(disk)
    await store.transaction([], [Put("a", {})])
    full = True
    with pytest.raises(OSError, match="No space"):
        await store.transaction([], [Put("b", {})])
    assert (tmp_path / RESERVE).exists()
    assert await store.transaction([], [Delete("a"), Put("deleting", {})]) == 2
    assert disk.reserve.spent
    assert [entry.key for entry in store.range("")] == ["deleting"]
    disk.close()


async def test_a_transaction_that_is_cancelled_while_it_is_written_is_carried_out(tmp_path: Path) -> None:
    writing, held = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "append" and writing.is_set():
            held.wait(10)

    disk = Disk(HookedStorage(tmp_path, hold), threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    heard: list[int] = []
    store.watch("", lambda delta: heard.append(delta.revision))
    writing.set()
    task = asyncio.create_task(store.transaction([], [Put("a", {})]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ([entry.key for entry in store.range("")], heard) == (["a"], [1])
    again = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    assert [entry.key for entry in again.range("")] == ["a"]
    disk.close()
