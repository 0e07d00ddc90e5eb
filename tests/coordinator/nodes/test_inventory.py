"""Which logs a data directory has: through changes at once, refusals of the disk, kills and power cuts."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from random import Random

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.nodes.inventory import PATH, Inventory, decode, encode
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.simulation.disk import HostEnded, SimDisk, SimStorage
from tests.simulation.loop import Process

LOGS = {("a", 0), ("a", 7), ("b", 1)}


def test_what_is_written_is_read() -> None:
    assert decode(encode(LOGS)) == LOGS
    assert decode(encode([])) == set()


def test_a_changed_byte_is_noticed() -> None:
    content = encode(LOGS)
    for position in range(len(content) - 1):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            with pytest.raises(MetadataDamagedError, match="inventory"):
                decode(bytes(damaged))


@pytest.mark.parametrize(
    "content", [b"", b"[]\n", b"null\n", b"{}\n", b'{"format": 1}\n', b'{"format": 1, "logs": 3}\n']
)
def test_a_file_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(MetadataDamagedError, match=r"inventory is damaged: .* counts as new"):
        decode(content)


def test_a_newer_format_names_itself() -> None:
    with pytest.raises(MetadataDamagedError, match=r"inventory has format 2, .* reads format 1: start"):
        decode(b'{"format": 2}')


async def test_without_one_it_is_made_of_the_directories_once(tmp_path: Path) -> None:
    for directory, topic_id in (("t-0", "x"), ("t-11", "x"), ("my-topic-3", "y")):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / f"{topic_id}.topic-id").touch()
    (tmp_path / "older-1").mkdir()
    (tmp_path / "reserve").touch()
    disk = Disk(FileStorage(str(tmp_path)), threads=1)
    assert (await Inventory.read(disk)).logs == {("x", 0), ("x", 11), ("y", 3)}
    (tmp_path / "t-0" / "x.topic-id").unlink()
    inventory = await Inventory.read(disk)
    assert inventory.has("x", 0), "what is missing now is lost"
    assert not inventory.has("x", 1)
    disk.close()


async def test_changes_at_once_share_a_write_and_are_durable_when_they_return(tmp_path: Path) -> None:
    writes = 0

    def count(operation: str, path: str) -> None:
        nonlocal writes
        writes += operation == "write_file"

    disk = Disk(HookedStorage(tmp_path, count), threads=1)
    inventory = await Inventory.read(disk)

    async def added(index: int) -> None:
        await inventory.add([("t", index)])
        assert ("t", index) in decode((tmp_path / PATH).read_bytes())

    await asyncio.gather(*(added(index % 50) for index in range(100)))
    assert writes <= 4
    await inventory.remove([("t", index) for index in range(40)])
    assert decode((tmp_path / PATH).read_bytes()) == {("t", index) for index in range(40, 50)}
    disk.close()


async def test_a_change_that_the_disk_refuses_did_not_happen(tmp_path: Path) -> None:
    full = False

    def refuse(operation: str, path: str) -> None:
        if operation == "write_file" and full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Disk(HookedStorage(tmp_path, refuse), threads=1)
    inventory = await Inventory.read(disk)
    await inventory.add([("t", 0)])
    full = True
    for change in (inventory.add([("t", 1)]), inventory.remove([("t", 0)])):
        with pytest.raises(OSError, match="No space"):
            await change
    assert inventory.logs == {("t", 0)}
    full = False
    await inventory.add([("t", 2)])
    assert decode((tmp_path / PATH).read_bytes()) == {("t", 0), ("t", 2)}
    disk.close()


async def test_what_was_added_is_there_after_every_power_cut() -> None:
    for seed in range(200):
        random, sim = Random(seed), SimDisk(Random(seed))
        added: set[tuple[str, int]] = set()
        asked: set[tuple[str, int]] = set()
        for _ in range(6):
            process = Process("daemon")
            sim.on_end = lambda process=process: setattr(process, "dead", True)  # type: ignore[misc]
            sim.end_after = 1 + int(random.random() * 12)
            disk = Disk(SimStorage(sim, process), threads=1)
            try:
                inventory = await Inventory.read(disk)
                assert added <= inventory.logs <= added | asked
                for _ in range(5):
                    log = ("t", int(random.random() * 1000))
                    asked.add(log)
                    await inventory.add([log])
                    added.add(log)
            except HostEnded:
                pass
            finally:
                disk.close()
                sim.end_after = None
            sim.power_cut() if random.random() < 0.7 else sim.process_ended()
