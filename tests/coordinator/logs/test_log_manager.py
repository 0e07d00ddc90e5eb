"""Directories of partitions: only creation makes them, a name is free when the last of its namesake is gone."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import structlog

from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, LogError
from coordinator.log.clean_end import CLEAN_END
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog, Topic
from coordinator.metadata.local import LocalMetadataStore
from tests.coordinator.log.faulty_storage import HookedStorage, KillAt, Killed
from tests.coordinator.log.logs import append_value


class Node:
    """A catalog and its partitions on a data directory, as the daemon puts them together."""

    def __init__(self, disk: Disk, catalog: Catalog, reasons: list[str]) -> None:
        self.catalog = catalog
        self.fatal = reasons
        self.partitions = LogManager(disk, catalog, lambda topic: LogConfig(), reasons.append)

    async def create(self, name: str, count: int) -> Topic:
        topic = self.catalog.draft(name, count, {})
        await self.partitions.create(topic, range(count))
        await self.catalog.commit(topic)
        return topic

    def end(self, name: str, index: int = 0) -> int | None:
        log = self.partitions.get(name, index)
        return None if log is None else log.end_offset


class Hook:
    """Fails one operation on paths of one ending, and writes down what it saw."""

    def __init__(self) -> None:
        self.fails = ("", "")
        self.number = errno.ENOSPC
        self.seen: list[tuple[str, str]] = []

    def __call__(self, operation: str, path: str) -> None:
        self.seen.append((operation, path))
        if self.fails[0] == operation and path.endswith(self.fails[1]):
            raise OSError(self.number, os.strerror(self.number), path)


@asynccontextmanager
async def node(root: Path, hook: Hook | KillAt | None = None, *, close: bool = True) -> AsyncIterator[Node]:
    storage = HookedStorage(root, hook) if hook is not None else FileStorage(root)
    disk = Disk(storage, threads=2)
    ids = count(1)
    reasons: list[str] = []
    try:
        store = await LocalMetadataStore.open(disk, lambda: "c", reasons.append)
        ident = f"r{store.revision}"
        catalog = Catalog(
            store,
            0,
            lambda: f"{ident}-{next(ids)}",
            max_partitions=1000,
            max_partitions_per_topic=1000,
            config_defaults=Settings().topic_defaults,
        )
        opened = Node(disk, catalog, reasons)
        await catalog.ensure_internal_topics()
        await opened.partitions.open_all()
        yield opened
        if close:
            await opened.partitions.close()
    finally:
        disk.close()


async def fill(opened: Node, name: str) -> None:
    log = opened.partitions.get(name, 0)
    assert log is not None
    append_value(log, b"a record")
    await log.flush()


def directories(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


async def test_a_partition_whose_directory_is_gone_is_damaged_and_the_others_serve(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.create("t", 2)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with structlog.testing.capture_logs() as lines:
        async with node(tmp_path) as second:
            assert (second.end("t", 0), second.end("t", 1)) == (None, 0)
            assert "t-0 is damaged at its directory: it is missing" in str(second.partitions.damage("t", 0))
    assert [(line["topic"], line["partition"]) for line in lines if line["log_level"] == "error"] == [("t", 0)]
    assert not (tmp_path / "t-0").exists(), "nothing is put in its place"
    (tmp_path / "elsewhere").rename(tmp_path / "t-0")
    async with node(tmp_path) as third:
        assert third.end("t", 0) == 0


async def test_a_partition_whose_directory_was_emptied_is_damaged(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.create("t", 1)
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    with structlog.testing.capture_logs():
        async with node(tmp_path) as second:
            assert "there is no segment at all" in str(second.partitions.damage("t", 0))


async def test_a_partition_whose_file_cannot_be_read_keeps_no_other_from_being_served(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.create("t", 3)
        await fill(first, "t")
    hook = Hook()
    hook.fails, hook.number = ("read", "t-0/00000000000000000000.log"), errno.EIO
    with structlog.testing.capture_logs() as lines:
        async with node(tmp_path, hook) as second:
            assert [second.end("t", index) for index in range(3)] == [None, 0, 0]
            told = str(second.partitions.damage("t", 0))
            assert "t-0/00000000000000000000.log" in told
            assert "Input/output error" in told
            async with asyncio.timeout(60):
                while second.partitions.damage("t", 0) == told:  # tried again, after a pause, and again
                    await second.partitions.reopen()
                    hook.fails, hook.number = ("open", "t-0/00000000000000000000.log"), errno.EACCES
                    await asyncio.sleep(0.05)
                hook.fails = ("", "")
                while second.end("t", 0) is None:
                    await second.partitions.reopen()
                    await asyncio.sleep(0.05)
            assert second.end("t", 0) == 1
            assert second.partitions.damage("t", 0) is None
            assert second.fatal == []
    errors = [line for line in lines if line["log_level"] == "error"]
    assert [(line["topic"], line["partition"]) for line in errors] == [("t", 0), ("t", 0)]


async def test_a_partition_that_cannot_be_opened_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.create("t", 1)
        await fill(first, "t")
    hook = Hook()
    hook.fails, hook.number = ("read", "t-0/00000000000000000000.log"), errno.EIO
    with structlog.testing.capture_logs():
        async with node(tmp_path, hook) as second:
            topic = second.catalog.topics["t"]
            await second.catalog.begin_deletion(topic)
            await second.partitions.delete("t", range(1))
            await second.catalog.end_deletion(topic.topic_id)
            hook.fails = ("", "")
            await second.create("t", 1)
            await second.partitions.reopen()
            assert (second.end("t"), second.partitions.damage("t", 0)) == (0, None)


async def test_a_sync_that_fails_ends_the_start_or_the_daemon(tmp_path: Path) -> None:
    """What memory shows may never reach the disk, so a second sync that succeeds proves nothing."""
    async with node(tmp_path) as first:
        await first.create("t", 2)
        await fill(first, "t")
    (tmp_path / "t-0" / CLEAN_END).unlink()  # as after a crash: only what is scanned is synced
    hook = Hook()
    hook.fails, hook.number = ("sync", "t-0/00000000000000000000.log"), errno.EIO
    with pytest.raises(OSError, match=r"Input/output error.*it is unknown.*t-0/00000000000000000000\.log"):
        async with node(tmp_path, hook):
            raise AssertionError("it started")
    hook.fails = ("open", "t-0/00000000000000000000.log")
    with structlog.testing.capture_logs():
        async with node(tmp_path, hook) as second:
            hook.fails = ("sync", "t-0/00000000000000000000.log")
            async with asyncio.timeout(60):
                while not second.fatal:
                    await second.partitions.reopen()
                    await asyncio.sleep(0.05)
            assert "t-0 could not be opened" in second.fatal[0]


async def test_a_process_without_descriptors_does_not_start(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.create("t", 2)
    hook = Hook()
    hook.fails, hook.number = ("open", ".log"), errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        async with node(tmp_path, hook):
            raise AssertionError("it started")


async def test_a_partition_of_an_internal_topic_is_made_once_and_then_missed(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        offsets = first.catalog.topics[OFFSETS_TOPIC]
        assert not first.partitions.is_created(OFFSETS_TOPIC, 7)
        assert await first.partitions.open_one(offsets, 7) is not None
        assert first.partitions.is_created(OFFSETS_TOPIC, 7)
        assert not first.partitions.is_created(OFFSETS_TOPIC, 8)
    (tmp_path / f"{OFFSETS_TOPIC}-7").rename(tmp_path / "elsewhere")
    with structlog.testing.capture_logs():
        async with node(tmp_path) as second:
            assert second.partitions.is_created(OFFSETS_TOPIC, 7)
            assert await second.partitions.open_one(second.catalog.topics[OFFSETS_TOPIC], 7) is None
            assert "it is missing" in str(second.partitions.damage(OFFSETS_TOPIC, 7))


async def test_what_a_creation_left_behind_is_replaced(tmp_path: Path) -> None:
    async with node(tmp_path, close=False) as first:
        await first.partitions.create(first.catalog.draft("t", 3, {}), range(3))
    async with node(tmp_path) as second:
        assert second.end("t") is None
        await second.create("t", 1)
        assert second.end("t") == 0


async def test_a_directory_with_records_of_no_topic_is_not_opened_and_not_removed(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.create("t", 1)
        await fill(first, "t")
    (tmp_path / "t-0").rename(tmp_path / "u-1")
    with structlog.testing.capture_logs():
        async with node(tmp_path) as second:
            with pytest.raises(FileExistsError, match="holds records that the metadata does not know: move it away"):
                await second.create("u", 2)
    assert (tmp_path / "u-1" / f"{0:020}.log").stat().st_size > 0


async def test_records_in_a_compacted_segment_count_too(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        (tmp_path / "t-0").mkdir()
        (tmp_path / "t-0" / f"{0:020}-{5:020}.swap").write_bytes(b"records")
        with pytest.raises(FileExistsError):
            await first.create("t", 1)


async def test_a_fresh_partition_waits_for_all_its_siblings_before_it_fails(tmp_path: Path) -> None:
    hook = Hook()
    async with node(tmp_path, hook) as opened:
        draft = opened.catalog.draft("t", 40, {})
        hook.fails = ("open", "t-3/00000000000000000000.log")
        with pytest.raises(OSError, match="No space"):
            await opened.partitions.create(draft, range(40))
        seen = len(hook.seen)
        await asyncio.sleep(0)
        assert len(hook.seen) == seen, "nothing runs on"
        hook.fails = ("", "")
        await opened.partitions.delete("t", range(40))
        assert [opened.end("t", index) for index in range(40)] == [None] * 40
    assert directories(tmp_path) == []


async def test_a_thousand_partitions_cost_a_sync_each_and_a_few_for_all(tmp_path: Path) -> None:
    hook = Hook()
    async with node(tmp_path, hook) as opened:
        hook.seen.clear()
        await opened.partitions.create(opened.catalog.draft("t", 1000, {}), range(1000))
        syncs = [path for operation, path in hook.seen if operation == "sync_directory"]
        assert sorted(path for path in syncs if path) == sorted(f"t-{index}" for index in range(1000))
        assert len(syncs) < 1010
        await opened.partitions.close()
        assert not [path for operation, path in hook.seen if operation in ("sync", "write_file")]
        hook.seen.clear()
        await opened.partitions.delete("t", range(1000))
        assert sum(operation == "sync_directory" for operation, _ in hook.seen) < 10


async def test_removals_are_durable_before_they_return(tmp_path: Path) -> None:
    hook = Hook()
    async with node(tmp_path, hook) as opened:
        await opened.create("t", 2)
        hook.seen.clear()
        await opened.partitions.delete("t", range(2))
        changes = [entry for entry in hook.seen if entry[0] in ("rename", "sync_directory", "remove_tree")]
        renamed = [index for index, entry in enumerate(changes) if entry[0] == "rename"]
        assert len(renamed) == 2
        assert ("sync_directory", "") in changes[renamed[-1] :]
    assert directories(tmp_path) == []


async def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    hook = Hook()
    async with node(tmp_path, hook) as first:
        topic = await first.create("t", 2)
        await fill(first, "t")
        await first.catalog.begin_deletion(topic)
        hook.fails = ("rename", "t-1.deleted")
        with pytest.raises(OSError, match="No space"):
            await first.partitions.delete("t", range(2))
    async with node(tmp_path) as second:
        assert second.catalog.deletions() == []
    assert directories(tmp_path) == []


async def test_a_deletion_that_still_fails_keeps_no_partition_from_being_served(tmp_path: Path) -> None:
    hook = Hook()
    async with node(tmp_path) as first:
        await first.create("other", 1)
        await first.catalog.begin_deletion(await first.create("t", 1))
    hook.fails = ("rename", ".deleted")
    with structlog.testing.capture_logs() as lines:
        async with node(tmp_path, hook) as second:
            assert second.end("other") == 0
            assert [name for _, name, _ in second.catalog.deletions()] == ["t"]
    assert [line["topic"] for line in lines if line["log_level"] == "warning"] == ["t"]


async def test_a_note_of_deletion_never_takes_the_directories_of_a_living_topic(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.catalog.begin_deletion(await first.create("t", 3))
        await first.partitions.delete("t", range(3))
        await first.create("t", 1)  # no handler does this: it ends the deletion first
        await fill(first, "t")
        (tmp_path / "t-2").mkdir()
    async with node(tmp_path) as second:
        assert second.end("t") == 1
        assert second.catalog.deletions() == []
    assert directories(tmp_path) == ["t-0"]


async def test_a_stray_file_that_looks_like_a_removal_does_not_prevent_the_start(tmp_path: Path) -> None:
    (tmp_path / "x.deleted").write_text("notes of an operator")
    (tmp_path / "t-0.deleted").write_text("a file where a directory would be")
    (tmp_path / "u-0.deleted").mkdir()
    with structlog.testing.capture_logs() as lines:
        async with node(tmp_path) as opened:
            assert opened.fatal == []
    assert (tmp_path / "x.deleted").exists()
    assert not (tmp_path / "u-0.deleted").exists()
    assert [line["name"] for line in lines] == ["t-0.deleted"]


@pytest.mark.parametrize("fails", [("sync_directory", ""), ("rename", ".deleted")])
async def test_an_input_output_error_among_the_directories_ends_the_daemon(
    tmp_path: Path, fails: tuple[str, str]
) -> None:
    hook = Hook()
    async with node(tmp_path, hook) as opened:
        await opened.create("t", 1)
        hook.number, hook.fails = errno.EIO, fails
        with pytest.raises(OSError, match="Input/output error"):
            await opened.partitions.delete("t", range(1))
        assert len(opened.fatal) == 1
        assert "unknown" in opened.fatal[0]
        hook.fails = ("", "")


def quiet(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """A killed process does not report the tasks it leaves behind."""


async def live(root: Path, kill: KillAt) -> None:
    """Creates, fills, deletes and creates again under one name."""
    asyncio.get_running_loop().set_exception_handler(quiet)
    async with node(root, kill, close=False) as opened:
        first = await opened.create("t", 2)
        await fill(opened, "t")
        await opened.catalog.begin_deletion(first)
        await opened.partitions.delete("t", range(2))
        await opened.catalog.end_deletion(first.topic_id)
        await opened.create("t", 1)
        await opened.partitions.close()


def test_whenever_the_process_is_killed_the_next_finds_whole_topics_or_none(tmp_path: Path) -> None:
    number = 0
    while True:
        root, kill = tmp_path / str(number), KillAt(number)
        root.mkdir()
        try:
            with structlog.testing.capture_logs():
                asyncio.run(live(root, kill))
        except (Killed, LogError):
            assert kill.killed

        async def check(root: Path = root) -> None:
            async with node(root) as opened:
                topic = opened.catalog.topics.get("t")
                wanted = range(len(topic.partitions)) if topic else range(0)
                assert [opened.end("t", index) for index in wanted] in ([], [0, 0], [1, 0], [0])
                if topic is None:
                    await opened.create("t", 2)
                    assert [opened.end("t", index) for index in range(2)] == [0, 0]

        asyncio.run(check())
        if not kill.killed:
            break
        number += 1
    assert number > 25
