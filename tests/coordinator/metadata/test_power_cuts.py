"""The metadata through power cuts and kills: at each call of the disk, also while the next start reads what is left.

Whatever happens, the metadata is as before the change that was under way or as after it, and never older than what was
acknowledged. Each safeguard of the files is switched off once, and then this does not hold.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final
from unittest.mock import patch

import pytest

import coordinator.metadata.local as local
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import File
from coordinator.metadata.authority import Authority, Delete, DeletePrefix, KeyValue, Operation, Put
from coordinator.metadata.encoding import LOG, SNAPSHOT, MetadataDamagedError, replay
from coordinator.metadata.local import LocalMetadataStore, _Files
from tests.coordinator.log.logs import end_of_process
from tests.simulation.disk import HostEnded, SimDisk, SimStorage
from tests.simulation.loop import Process

SEEDS: Final = range(10)
State = Sequence[KeyValue]
Before = Callable[[SimDisk], int]
"""Fills a data directory and says its revision."""


def topic(number: int, size: int = 20) -> list[Operation]:
    """A topic with one partition, about as the catalog writes it."""
    return [Put(f"topics/t{number}", {"id": "x" * size}), Put(f"partitions/{number}", {"leader": 0})]


def gone(number: int) -> list[Operation]:
    return [Delete(f"topics/t{number}"), DeletePrefix(f"partitions/{number}"), Put(f"deleting/{number}", {})]


CHANGES: Final[Sequence[Sequence[Operation]]] = [
    topic(0, 600), topic(1), gone(0), topic(2), topic(3), [Put("topics/t1", {"id": "y"})], gone(1), topic(4, 900),
    topic(5), topic(6), gone(4), topic(7),
]  # fmt: skip
"""A few go to the log, then a snapshot comes, and so on."""


def states(revision: int) -> list[State]:
    """What there is after none of the changes, the first, the second and so on, where they begin behind a revision."""
    authority = Authority(revision=revision)
    found: list[State] = [[]]
    for change in CHANGES:
        authority.transaction([], change)
        found.append(authority.range(""))
    return found


STATES: Final = {revision: states(revision) for revision in (0, 2)}


def new(disk: SimDisk) -> int:
    """An empty data directory; its revision."""
    return 0


def of_an_older_version(disk: SimDisk) -> int:
    """A data directory that knows no log."""
    head = {"format": 1, "cluster_id": "c", "revision": 0, "crc32": zlib.crc32(b"{}", zlib.crc32(b"c 0"))}
    SimStorage(disk, Process("older")).write_file(SNAPSHOT, json.dumps(head).encode() + b"\n{}\n")
    return 0


def without_versions(disk: SimDisk) -> int:
    """A data directory of which the keys know only when they were changed; it has a log, of a key that came and went."""
    storage = SimStorage(disk, Process("older"))
    head = {"format": 2, "cluster_id": "c", "revision": 0, "crc32": zlib.crc32(b"{}", zlib.crc32(b"2 c 0"))}
    storage.write_file(SNAPSHOT, json.dumps(head).encode() + b"\n{}\n")
    file = storage.open(LOG, create=True)
    for text in (b'{"revision": 1, "changes": {"x": [1, {}]}}', b'{"revision": 2, "changes": {"x": null}}'):
        file.append([b"%08x %b\n" % (zlib.crc32(text), text)])
    file.sync()
    storage.sync_directory("")
    return 2


class Story:
    """One data directory; changes are made to it until the host ends, and again after each start."""

    def __init__(self, seed: int, before: Before) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(self.random)
        self.states = STATES[before(self.disk)]
        self.done = 0
        """How many changes were acknowledged."""

    async def lived(self, calls: int | None) -> bool:
        """Goes on with the changes and stops; False when the host ended at one of its calls before."""
        ended = False
        process = Process("daemon")

        def end() -> None:
            nonlocal ended
            ended = process.dead = True

        self.disk.on_end = end
        self.disk.end_after = calls
        disk = Disk(SimStorage(self.disk, process), threads=1)
        try:
            store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
            self.check(store)
            await self.began(store)
            while self.done < len(CHANGES):
                await store.transaction([], CHANGES[self.done])
                self.done += 1
            await self.stopping()
            self.check(store)
            await store.close()
            self.check(store)
        except HostEnded:
            assert ended
        finally:
            disk.close()
            self.disk.end_after = None
        return not ended

    def check(self, store: LocalMetadataStore) -> None:
        """The change that was under way may have been made."""
        found = store.range("")
        assert found in self.states[self.done : self.done + 2], f"{found} after {self.done} acknowledged changes"
        if found != self.states[self.done]:
            self.done += 1

    async def began(self, store: LocalMetadataStore) -> None:
        """The store is open."""

    async def stopping(self) -> None:
        """All changes are made."""

    def end(self) -> None:
        if self.random.random() < 0.7:
            self.disk.power_cut()
        else:
            self.disk.process_ended()


class LeasedStory(Story):
    """Each process has a key that goes with it."""

    def __init__(self, seed: int, before: Before) -> None:
        super().__init__(seed, before)
        self.revision = 0

    def check(self, store: LocalMetadataStore) -> None:
        """Revisions are not those of ``STATES``: the key of each process has its own, and so has its end."""
        assert store.revision >= self.revision
        self.revision = store.revision
        found = [(known.key, known.value, known.version) for known in store.range("")]
        states = [[(known.key, known.value, known.version) for known in state] for state in self.states]
        assert found in states[self.done : self.done + 2], f"{found} after {self.done} acknowledged changes"
        if found != states[self.done]:
            self.done += 1

    async def began(self, store: LocalMetadataStore) -> None:
        """What the process before had is gone, and nothing of it comes back."""
        lease = await store.grant(2_000)
        self.revision = await store.transaction([], [Put("live/0", {}, lease.id)]) or 0
        if self.random.random() < 0.5:
            await lease.revoke()
            lease = await store.grant(2_000)
            await store.transaction([], [Put("live/0", {}, lease.id)])
        self.lease = lease

    async def stopping(self) -> None:
        """A clean stop gives the lease back."""
        await self.lease.revoke()


async def calls_of_a_life(before: Before, story_of: type[Story]) -> int:
    counted = 0

    class Counting(SimStorage):
        def step(self, before_end: Callable[[], None] | None = None) -> None:
            nonlocal counted
            counted += 1
            super().step(before_end)

    story = story_of(0, before)
    with patch(f"{__name__}.SimStorage", Counting):
        assert await story.lived(None)
    return counted


async def hurt(seeds: Sequence[int], before: Before = new, story_of: type[Story] = Story) -> None:
    """Ends the host at each call of its life, and the next few at a drawn call of theirs."""
    calls = await calls_of_a_life(before, story_of)
    assert calls > 50
    for seed in seeds:
        for at in range(1, calls + 1):
            story = story_of(seed * 1000 + at, before)
            lives = [at, *(1 + int(story.random.random() * 12) for _ in range(3)), None]
            for life in lives:
                if await story.lived(life):
                    break
                story.end()
            assert story.done == len(CHANGES)


@pytest.mark.parametrize("before", [new, of_an_older_version, without_versions])
async def test_the_metadata_is_as_before_or_after_the_change_under_way(before: Before) -> None:
    await hurt(SEEDS, before)


async def test_keys_of_leases_go_with_their_process() -> None:
    await hurt(SEEDS, story_of=LeasedStory)


def no_sync(file: File) -> None:
    """Believes that what was written will get to the disk."""


def blind_replay(content: bytes, metadata: Any) -> int:
    """Takes what is behind a torn line for the log."""
    try:
        replay(content, metadata)
    except MetadataDamagedError:
        return len(content)
    return len(content)


@contextmanager
def without_sync() -> Iterator[None]:
    with patch.object(local, "_sync", no_sync):
        yield


@contextmanager
def without_cut() -> Iterator[None]:
    with patch.object(local, "replay", blind_replay):
        yield


@contextmanager
def with_a_snapshot_in_place() -> Iterator[None]:
    def in_place(storage: SimStorage, path: str, data: bytes) -> None:
        file = storage.open(path, create=True)
        file.truncate(0)
        file.append([data])
        file.sync()
        storage.sync_directory("")

    with patch.object(SimStorage, "write_file", in_place):
        yield


@contextmanager
def with_the_log_emptied_first() -> Iterator[None]:
    replaced = _Files._replaced

    def emptied_first(files: _Files, revision: int, entries: Mapping[str, bytes | None]) -> bool:
        files._empty_log()
        return replaced(files, revision, entries)

    with patch.object(_Files, "_replaced", emptied_first):
        yield


@contextmanager
def without_a_sync_of_the_name_that_is_read() -> Iterator[None]:
    load = _Files.load

    def unsynced(files: _Files) -> Any:
        with patch.object(SimStorage, "sync_directory", lambda storage, path: None):
            return load(files)

    with patch.object(_Files, "load", unsynced):
        yield


@contextmanager
def with_a_log_of_no_durable_name() -> Iterator[None]:
    def made(storage: SimStorage) -> None:
        storage.open(LOG, create=True)

    original = SimStorage.sync_directory

    def of_the_snapshot_only(storage: SimStorage, path: str) -> None:
        original(storage, path)
        root = storage._disk.root
        root.durable = {name: node for name, node in root.durable.items() if name != LOG}

    with patch.object(local, "_make_log", made), patch.object(SimStorage, "sync_directory", of_the_snapshot_only):
        yield


@pytest.mark.parametrize(
    "off",
    [
        without_sync,
        without_cut,
        with_a_snapshot_in_place,
        with_the_log_emptied_first,
        with_a_log_of_no_durable_name,
        without_a_sync_of_the_name_that_is_read,
    ],
)
def test_without_a_safeguard_it_does_not_hold(off: Callable[[], Any]) -> None:
    with off(), pytest.raises((AssertionError, MetadataDamagedError)):
        asyncio.run(hurt(SEEDS))


def test_without_its_end_a_key_of_a_lease_stays() -> None:
    with patch.object(Authority, "due", lambda authority, now_ms: []), pytest.raises(AssertionError, match="live/0"):
        asyncio.run(hurt(SEEDS, story_of=LeasedStory))
