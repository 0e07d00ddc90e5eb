"""Topics: names and numbers that are refused, changes that survive, a store that is the old or the new state."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.reserve import PATH as RESERVE
from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog, TopicError, parse_topic_config
from coordinator.metadata.local import PATH, LocalMetadataStore, MetadataDamagedError
from coordinator.metadata.store import Compare, Delete, Put
from protocol.errors import ErrorCode
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import end_of_process


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    opened = Disk(FileStorage(str(tmp_path)), threads=1)
    yield opened
    opened.close()


async def catalog_on(disk: Disk) -> Catalog:
    ids = count(1)
    store = await LocalMetadataStore.open(disk, lambda: "cluster-1", end_of_process)
    return Catalog(
        store,
        0,
        lambda: f"topic-{next(ids)}-{store.revision}",
        max_partitions=150,
        max_partitions_per_topic=100,
        config_defaults=Settings().topic_defaults,
    )


async def test_a_topic_survives_reopening(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 3, {"segment.bytes": 4096}))
    again = await catalog_on(disk)
    assert again.topics == catalog.topics
    assert again.revision == catalog.revision == 1
    assert again.cluster_id == "cluster-1"
    topic = again.topic("orders")
    assert len(topic.partitions) == 3
    assert (topic.partitions[0].leader, topic.partitions[0].isr) == (0, (0,))


async def test_growth_keeps_the_old_partitions(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 3, {}))
    before = catalog.topic("orders")
    await catalog.commit(catalog.draft_growth(catalog.check_growth("orders", 12), 12))
    after = (await catalog_on(disk)).topic("orders")
    assert after.topic_id == before.topic_id
    assert after.partitions[:3] == before.partitions
    assert len(after.partitions) == 12


async def test_deletion_is_noted_until_the_files_are_gone(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 2, {}))
    topic = catalog.topic("orders")
    await catalog.begin_deletion(topic)
    again = await catalog_on(disk)
    assert "orders" not in again.topics
    assert again.deletions() == [(topic.topic_id, "orders", 2)]
    await again.end_deletion(topic.topic_id)
    assert (await catalog_on(disk)).deletions() == []


async def test_the_offsets_topic_has_fifty_partitions_and_is_made_once(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.ensure_internal_topics()
    await catalog.ensure_internal_topics()
    assert len(catalog.topic(OFFSETS_TOPIC).partitions) == 50
    assert catalog.topic(OFFSETS_TOPIC).internal
    assert catalog.revision == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a" * 250, "a\n"])
async def test_illegal_names_are_refused(disk: Disk, name: str) -> None:
    with pytest.raises(TopicError) as refused:
        (await catalog_on(disk)).check_new(name, 1, -1)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"), [(0, -1, 37), (-7, -1, 37), (101, -1, 37), (1, 0, 38), (1, 3, 38)]
)
async def test_absurd_numbers_are_refused(disk: Disk, partitions: int, replicas: int, code: int) -> None:
    with pytest.raises(TopicError) as refused:
        (await catalog_on(disk)).check_new("orders", partitions, replicas)
    assert refused.value.code == code


async def test_topics_only_grow_and_internal_ones_not_at_all(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.ensure_internal_topics()
    await catalog.commit(catalog.draft("orders", 3, {}))
    for name, partitions, code in [("orders", 3, 37), ("orders", 2, 37), ("nope", 9, 3), (OFFSETS_TOPIC, 60, 17)]:
        with pytest.raises(TopicError) as refused:
            catalog.check_growth(name, partitions)
        assert refused.value.code == code


async def test_all_topics_together_have_a_bound_that_the_refusal_names(disk: Disk) -> None:
    catalog = await catalog_on(disk)
    await catalog.ensure_internal_topics()  # its partitions do not count
    await catalog.commit(catalog.draft("a", 100, {}))
    catalog.check_new("b", 50, -1)
    with pytest.raises(TopicError, match=r"the other topics have 100, .* have 150 \(max_partitions\)") as refused:
        catalog.check_new("b", 51, -1)
    assert refused.value.code == ErrorCode.INVALID_PARTITIONS
    await catalog.commit(catalog.draft("b", 40, {}))
    assert catalog.check_growth("b", 50) == catalog.topic("b")
    with pytest.raises(TopicError, match="the other topics have 100"):
        catalog.check_growth("b", 51)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("segment.bytes", text) for text in ("x", "", "-1", "1.5", "²", "٤٠٩٦", "9" * 10, "9" * 5000, "0" * 5000)),
        ("segment.byte", "4096"),
        ("s" * 5000, "4096"),
    ],
)
def test_topic_settings_are_known_numbers(name: str, text: str) -> None:
    assert parse_topic_config({"segment.bytes": "4096"}) == {"segment.bytes": 4096}
    with pytest.raises(TopicError) as refused:
        parse_topic_config({name: text})
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert len(str(refused.value)) < 400


async def test_watchers_hear_of_each_change_and_a_failed_condition_changes_nothing(disk: Disk) -> None:
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    heard: list[int] = []
    stop = store.watch("a/", lambda revision, keys: heard.append(revision))
    assert await store.transaction([Compare("a/1", 0)], [Put("a/1", {"n": 1})]) == 1
    assert await store.transaction([Compare("a/1", 0)], [Put("a/1", {"n": 2})]) is None
    assert await store.transaction([Compare("a/1", 1)], [Put("b", {})]) == 2
    assert await store.transaction([], [Delete("a/1")]) == 3
    stop()
    assert await store.transaction([], [Put("a/2", {})]) == 4
    assert heard == [1, 3]


async def test_a_changed_byte_is_noticed(disk: Disk, tmp_path: Path) -> None:
    catalog = await catalog_on(disk)
    await catalog.commit(catalog.draft("orders", 1, {}))
    content = (tmp_path / PATH).read_bytes()
    for position in range(len(content) - 1):  # the very last byte is the closing line feed, which carries nothing
        damaged = bytearray(content)
        damaged[position] ^= 1
        (tmp_path / PATH).write_bytes(damaged)
        with pytest.raises(MetadataDamagedError):
            await catalog_on(disk)


@pytest.mark.parametrize("content", [b"", b"{}\n{}\n", b"not json\n{}\n", b'{"format": 1}\n{}\n'])
async def test_a_file_that_is_none_is_refused(disk: Disk, tmp_path: Path, content: bytes) -> None:
    (tmp_path / PATH).write_bytes(content)
    with pytest.raises(MetadataDamagedError):
        await catalog_on(disk)


async def test_a_newer_format_names_itself(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / PATH).write_bytes(b'{"format": 2, "crc32": 0}\n{}\n')
    with pytest.raises(MetadataDamagedError, match="format 2, this version of Cohort reads format 1"):
        await catalog_on(disk)


@pytest.mark.parametrize("name", ["orders-0", "__consumer_offsets-12", "a.b-3"])
async def test_missing_metadata_of_a_directory_with_partitions_is_damage(disk: Disk, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(MetadataDamagedError, match=rf"metadata.json is missing, but .* {name}: restore"):
        await catalog_on(disk)
    assert not (tmp_path / PATH).exists()


async def test_a_new_data_directory_may_hold_what_belongs_to_nobody(disk: Disk, tmp_path: Path) -> None:
    for name in ("lock", "metadata.json.tmp", "README"):
        (tmp_path / name).write_text("")
    (tmp_path / "lost+found").mkdir()
    assert (await catalog_on(disk)).topics == {}


class Hook:
    """Fails the operations named in ``fails``, which are asked for by ``FileStorage.write_file`` itself."""

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
        await store.transaction([], [Put("a", {})])
    assert len(reasons) == 1
    assert "it is unknown" in reasons[0]
    hook.fails = ""
    with pytest.raises(WriteInDoubtError):  # whatever comes now would be built on sand
        await store.transaction([], [Put("b", {})])
    assert (store.range(""), store.revision) == ([], 0)
    disk.close()


async def test_a_refusal_before_it_changes_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    def refuse(operation: str, path: str) -> None:
        if operation == "write_file" and full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = False
    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    full = True
    with pytest.raises(OSError, match="No space"):
        await store.transaction([], [Put("a", {})])
    full = False
    assert await store.transaction([], [Put("b", {})]) == 1
    assert [entry.key for entry in store.range("")] == ["b"]
    disk.close()


async def test_a_deletion_finds_room_on_a_full_disk_and_nothing_else_does(tmp_path: Path) -> None:
    full = False

    def refuse(operation: str, path: str) -> None:
        if operation == "write_file" and full and (tmp_path / RESERVE).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    disk.reserve.restore()
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
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
        if operation == "write_file" and writing.is_set():
            held.wait(10)

    disk = Disk(HookedStorage(tmp_path, hold), threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    heard: list[int] = []
    store.watch("", lambda revision, keys: heard.append(revision))
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
