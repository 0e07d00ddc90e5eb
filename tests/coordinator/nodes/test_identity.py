"""What a data directory knows of its node: refusals by name, and through power cuts and kills what a start is told."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Final
from unittest.mock import patch

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.nodes.cleanliness import THIS_START, NodeRecord
from coordinator.nodes.identity import PATH, Flush, NodeFile, NodeIdentity, decode, encode
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.simulation.disk import HostEnded, SimDisk, SimStorage
from tests.simulation.loop import Process

CONTENT: Final = NodeFile("uuid", "c", 3, 7, "ack", NodeRecord(("s1", "s2"), 5, "boot", True))
NEW: Final = "the directory is new"
LOST: Final = "something that was on disk is gone"
MEMORY: Final = "the machine was started anew, and what was acknowledged was in its memory only"


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    opened = Disk(FileStorage(str(tmp_path)), threads=1)
    yield opened
    opened.close()


class Ids:
    """Fresh ids that people can read."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"id{self.count}"


async def started(
    disk: Disk, boot: str = "b1", flush: Flush = "ack", lost: bool = False, ids: Callable[[], str] = lambda: "id"
) -> tuple[NodeIdentity, str]:
    identity = await NodeIdentity.read(disk)
    identity.check("c", 0)
    return identity, (await identity.begin("c", 0, ids, boot, flush, lost)).reason


class Refusing:
    """A disk that takes no file while it is ``full``, and takes them again after eight pauses."""

    def __init__(self, directory: Path) -> None:
        self.full = self.keeps = False
        """Whether it takes no file, and removes none."""
        self.error: OSError = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.tries = self.at_once = 0
        """How often a file was to be replaced, and how many at most were being replaced at once."""
        self.pauses: list[float] = []
        self.disk = Disk(HookedStorage(directory, self._call), threads=4)
        self._writing = 0
        self.slow = False
        """Whether a file that is being written waits until it ``goes_on``."""
        self.writes, self.goes_on = threading.Event(), threading.Event()

    async def pause(self, seconds: float) -> None:
        """In place of ``asyncio.sleep``."""
        self.pauses.append(seconds)
        self.full = len(self.pauses) < 8

    def _call(self, operation: str, path: str) -> None:
        if operation == "remove" and self.keeps:
            raise self.error
        if operation != "write_file":
            return
        self.tries += 1
        self._writing += 1
        self.at_once = max(self.at_once, self._writing)
        try:
            time.sleep(0.01)
            if self.slow:
                self.writes.set()
                self.goes_on.wait(30)
            if self.full:
                raise self.error
        finally:
            self._writing -= 1


async def not_noted(tmp_path: Path) -> tuple[Refusing, NodeIdentity]:
    """A node that is registered, on a full disk."""
    refusing = Refusing(tmp_path)
    identity, _ = await started(refusing.disk)
    refusing.full = True
    assert not await identity.registered(5, 3)
    return refusing, identity


def content_of(tmp_path: Path) -> NodeFile:
    return decode((tmp_path / PATH).read_bytes())


def test_what_is_written_is_read() -> None:
    assert decode(encode(CONTENT)) == CONTENT


def test_a_changed_byte_is_noticed() -> None:
    content = encode(CONTENT)
    for position in range(len(content) - 1):  # the line feed carries nothing
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            with pytest.raises(MetadataDamagedError, match=r"node\.json"):
                decode(bytes(damaged))


def test_a_newer_format_names_itself() -> None:
    with pytest.raises(
        MetadataDamagedError, match=r"node\.json has format 2, this version of Cohort reads format 1: start"
    ):
        decode(json.dumps({"format": 2, "crc32": 0}).encode())


@pytest.mark.parametrize("content", [b"", b"[]\n", b"null\n", b"{}\n", b'{"format": 1}\n'])
def test_a_file_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(
        MetadataDamagedError, match=r"node\.json is damaged: .* remove it: then the directory counts as new"
    ):
        decode(content)


async def test_a_directory_keeps_its_id_and_the_ids_of_its_last_two_starts(disk: Disk, tmp_path: Path) -> None:
    ids = Ids()
    for _ in range(3):
        await started(disk, ids=ids)
    assert content_of(tmp_path) == NodeFile("id2", "c", 0, 0, "ack", NodeRecord(("id3", "id4"), 0, "b1", False))


async def test_a_directory_of_another_cluster_or_node_is_refused_by_name(disk: Disk, tmp_path: Path) -> None:
    await started(disk)
    before = (tmp_path / PATH).read_bytes()
    identity = await NodeIdentity.read(disk)
    with pytest.raises(
        MetadataDamagedError, match="to cluster c, and its metadata is that of cluster other: the files"
    ):
        identity.check("other", 0)
    with pytest.raises(MetadataDamagedError, match="the directory of node 0, not of node 4: set node_id to 0, or use"):
        identity.check("c", 4)
    with pytest.raises(
        MetadataDamagedError, match=r"metadata\.json is missing, but node\.json says .* node 0 of cluster c"
    ):
        identity.for_new_metadata("new")
    with pytest.raises(MetadataDamagedError, match="node 0 of cluster c, and there is no cluster at etcd://h:1/x: set"):
        identity.for_new_metadata("new", "etcd://h:1/x")
    assert (tmp_path / PATH).read_bytes() == before


async def test_a_new_directory_may_begin_a_cluster(disk: Disk) -> None:
    identity = await NodeIdentity.read(disk)
    identity.check("any", 9)
    assert identity.for_new_metadata("c") == "c"


@pytest.mark.parametrize(
    ("flush", "stopped", "boot", "lost", "reason"),
    [
        ("ack", False, "b1", False, ""),
        ("ack", False, "b2", False, ""),
        ("ack", True, "b2", True, LOST),
        ("os", False, "b1", False, ""),
        ("os", False, "b2", False, MEMORY),
        ("os", True, "b2", False, ""),
    ],
)
@pytest.mark.parametrize("then", ["ack", "os"])
async def test_what_was_acknowledged_is_judged_by_what_the_start_before_did(
    disk: Disk, flush: Flush, stopped: bool, boot: str, lost: bool, reason: str, then: Flush
) -> None:
    identity, first = await started(disk, flush=flush)
    assert first == NEW
    if stopped:
        await identity.stopped()
    assert (await started(disk, boot, then, lost))[1] == reason
    assert (await started(disk, boot, then))[1] == "", "it is told once"


@pytest.mark.parametrize(
    ("flush", "then", "told"), [("os", "os", NEW), ("ack", "os", NEW), ("os", "ack", ""), ("ack", "ack", "")]
)
async def test_a_disk_that_takes_no_file_keeps_no_node_from_serving_and_what_would_not_be_true_goes(
    tmp_path: Path, flush: Flush, then: Flush, told: str
) -> None:
    full = False

    def refuse(operation: str, path: str) -> None:
        if operation == "write_file" and full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    identity, _ = await started(disk, flush=flush)
    await identity.stopped()
    full = True
    identity, reason = await started(disk, "b2", then)
    assert reason == ""
    full = False
    assert (await started(disk, "b3"))[1] == told, "what that start acknowledged may be lost, unless it is on disk"
    disk.close()


async def test_what_a_start_has_found_lost_is_not_forgotten_when_the_disk_refuses_its_note(tmp_path: Path) -> None:
    refusing = Refusing(tmp_path)
    identity, _ = await started(refusing.disk)
    await identity.registered(5, 5)
    refusing.full = True
    assert (await started(refusing.disk, lost=True))[1] == LOST
    refusing.full = False
    assert (await started(refusing.disk))[1] == NEW, "the note of what was before says that nothing was lost since 5"
    refusing.disk.close()


async def test_what_a_start_finds_lost_is_not_forgotten_when_it_ends_before_it_has_begun(tmp_path: Path) -> None:
    """Its log has begun anew by then: the next start finds nothing that is missing."""
    refusing = Refusing(tmp_path)
    identity, _ = await started(refusing.disk)
    await identity.registered(5, 5)
    tries = refusing.tries
    found = await NodeIdentity.read(refusing.disk)
    await asyncio.gather(*(found.not_clean() for _ in range(10)))
    assert refusing.tries == tries + 1, "many logs are lost together"
    identity, reason = await started(refusing.disk)
    assert identity.clean_since == THIS_START
    assert reason == "a start before this one was not clean, and has not been registered since"
    await identity.registered(9, 9)
    refusing.full = True
    await (await NodeIdentity.read(refusing.disk)).not_clean()
    assert not (tmp_path / PATH).exists()
    await (await NodeIdentity.read(refusing.disk)).not_clean()  # a directory that is new has nothing to lose
    refusing.disk.close()


async def test_a_registration_that_the_disk_refuses_to_note_is_noted_as_soon_as_it_takes_that(tmp_path: Path) -> None:
    refusing, identity = await not_noted(tmp_path)
    with patch.object(asyncio, "sleep", refusing.pause):
        await identity.keep_noting()
    assert refusing.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert content_of(tmp_path) == NodeFile("id", "c", 0, 5, "ack", NodeRecord(("id",), 3, "b1", False))
    tries = refusing.tries
    await identity.keep_noting()
    assert refusing.tries == tries, "there is nothing to note any more"
    refusing.disk.close()


async def test_a_note_that_waits_is_replaced_by_the_next_and_by_that_of_a_stop(tmp_path: Path) -> None:
    refusing, identity = await not_noted(tmp_path)
    keeping = asyncio.create_task(identity.keep_noting())
    refusing.full = False
    assert all(await asyncio.gather(*(identity.registered(broker_epoch, 3) for broker_epoch in (7, 8, 9))))
    await asyncio.wait_for(keeping, 10)
    assert content_of(tmp_path).broker_epoch == 9
    refusing.full = True
    assert not await identity.registered(12, 3)
    keeping = asyncio.create_task(identity.keep_noting())
    refusing.full = False
    await identity.stopped()
    await asyncio.wait_for(keeping, 10)
    assert content_of(tmp_path).record.stopped_cleanly
    assert refusing.at_once == 1
    refusing.disk.close()


async def test_a_registration_that_lost_something_leaves_no_note_of_the_one_before_that_had_it(tmp_path: Path) -> None:
    refusing = Refusing(tmp_path)
    identity, _ = await started(refusing.disk)
    assert await identity.registered(5, 5)
    refusing.full = True
    assert not await identity.registered(9, 5)
    assert content_of(tmp_path).broker_epoch == 5, "that it has all since 5 is still true"
    assert not await identity.registered(12, 12)
    assert not (tmp_path / PATH).exists()
    refusing.disk.close()


async def test_a_note_under_way_does_not_outlive_what_is_known_meanwhile(tmp_path: Path) -> None:
    """A slow disk writes that all is there since 5 while another directory stands in for the node."""
    refusing = Refusing(tmp_path)
    refusing.full = True
    identity, _ = await started(refusing.disk)
    assert not await identity.registered(5, 5)
    refusing.full, refusing.slow = False, True
    noting = asyncio.create_task(identity.keep_noting())
    await asyncio.to_thread(refusing.writes.wait, 30)
    noting.cancel()
    unclean = asyncio.create_task(identity.not_clean())
    await asyncio.wait((unclean,), timeout=0.1)
    assert not unclean.done()
    refusing.goes_on.set()
    await unclean
    assert content_of(tmp_path).record.clean_since == THIS_START
    refusing.disk.close()


async def test_what_is_not_true_and_cannot_be_removed_is_tried_again(tmp_path: Path) -> None:
    refusing = Refusing(tmp_path)
    identity, _ = await started(refusing.disk)
    assert await identity.registered(5, 5)
    refusing.full = refusing.keeps = True
    with pytest.raises(OSError, match="No space left"):
        await identity.registered(12, 12)
    with patch.object(asyncio, "sleep", refusing.pause):
        await identity.keep_noting()
    assert len(refusing.pauses) == 8
    assert content_of(tmp_path).record.clean_since == 12
    refusing.disk.close()


async def test_nothing_is_written_once_it_is_unknown_what_the_disk_has(tmp_path: Path) -> None:
    refusing = Refusing(tmp_path)
    identity, _ = await started(refusing.disk)
    refusing.full, refusing.error = True, WriteInDoubtError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(WriteInDoubtError):
        await identity.registered(5, 5)
    refusing.full = False
    for again in (identity.registered(9, 9), identity.stopped(), identity.keep_noting()):
        with pytest.raises(WriteInDoubtError):
            await again
    refusing.disk.close()


async def test_a_stop_that_is_not_written_is_none(tmp_path: Path) -> None:
    full = False

    def refuse(operation: str, path: str) -> None:
        if operation == "write_file" and full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    identity, _ = await started(disk, flush="os")
    full = True
    await identity.stopped()
    full = False
    assert (await started(disk, "b2"))[1] == MEMORY
    disk.close()


async def test_a_file_of_which_the_content_is_unknown_ends_the_start(tmp_path: Path) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "write_file":
            raise WriteInDoubtError(errno.EIO, os.strerror(errno.EIO))

    disk = Disk(HookedStorage(tmp_path, fail), threads=1)
    with pytest.raises(WriteInDoubtError):
        await started(disk)
    disk.close()


class Story:
    """One data directory through starts, stops and ends of its host; records are acknowledged while it serves."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(self.random)
        self.known = False
        """Whether a start was noted."""
        self.at_risk = self.lost = self.interrupted = self.refused = False
        """Whether records are in memory only; were there when the machine lost its power; whether a start or a stop was cut
        short since, which may have been noted or not; and whether the disk may have refused to note one."""

    async def lived(self, calls: int | None) -> bool:
        """A start, and a stop if the host does not end at one of its calls before."""
        process = Process("daemon")

        def end() -> None:
            process.dead = True

        self.disk.on_end, self.disk.end_after = end, calls
        self.disk.fail_writes = 1 + int(self.random.random() * 2) if self.random.random() < 0.2 else 0
        disk = Disk(SimStorage(self.disk, process), threads=1)
        flush: Flush = "os" if self.random.random() < 0.5 else "ack"
        try:
            identity, reason = await started(disk, f"b{self.disk.power_cuts}", flush)
            self.check(reason)
            self.refused = PATH in self.disk.not_replaced
            self.at_risk = flush == "os"
            if self.random.random() < 0.3:
                return False
            self.at_risk = False  # what comes before the last file has synced it
            await identity.stopped()
            self.refused = PATH in self.disk.not_replaced
            self.at_risk = self.refused and flush == "os"
        except HostEnded:
            self.interrupted = True
            return False
        finally:
            disk.close()
            self.disk.end_after = None
        return True

    def check(self, reason: str) -> None:
        if self.refused and not self.interrupted:
            assert reason or not self.lost, "it says that nothing is lost"
        elif not self.interrupted:
            assert bool(reason) == (self.lost or not self.known), reason
        self.known, self.lost, self.interrupted = True, False, False

    def end(self) -> None:
        if self.random.random() < 0.7:
            self.lost = self.lost or self.at_risk
            self.disk.power_cut()
        else:
            self.disk.process_ended()


async def hurt(seeds: int) -> None:
    for seed in range(seeds):
        story = Story(seed)
        for _ in range(12):
            await story.lived(1 + int(story.random.random() * 20) if story.random.random() < 0.7 else None)
            story.end()


async def test_what_may_be_lost_is_told_and_nothing_else() -> None:
    await hurt(300)


async def written_late(
    identity: NodeIdentity, cluster_id: str, node_id: int, new_id: Callable[[], str], boot_id: str, *rest: object
) -> object:
    """Serves on without a note of the start."""
    with patch.object(NodeIdentity, "_written", lambda identity, content: False):
        return await begin(identity, cluster_id, node_id, new_id, boot_id, *rest)  # type: ignore[arg-type]


begin = NodeIdentity.begin


def left_standing(identity: NodeIdentity, content: NodeFile) -> None:
    """A refused note leaves what was there."""


@pytest.mark.parametrize(
    "off", ["the start is not noted", "the machine always counts as the same", "what is not true any more stays"]
)
def test_without_a_safeguard_it_does_not_hold(off: str) -> None:
    def same_boot(
        self: NodeIdentity, cluster: str, node: int, ids: Callable[[], str], boot: str, *rest: object
    ) -> object:
        return begin(self, cluster, node, ids, "b", *rest)  # type: ignore[arg-type]

    without: dict[str, tuple[str, object]] = {
        "the start is not noted": ("begin", written_late),
        "the machine always counts as the same": ("begin", same_boot),
        "what is not true any more stays": ("_remove_untrue", left_standing),
    }
    with patch.object(NodeIdentity, *without[off]), pytest.raises(AssertionError):
        asyncio.run(hurt(300))
