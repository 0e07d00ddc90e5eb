"""The simulated disk: what survives which end, and what fails how."""

from __future__ import annotations

import errno
from random import Random

import pytest

from coordinator.filesystem.storage import DataDirectoryLockedError
from protocol.record_batch import HEADER_BYTES, encode_batch, restamped
from tests.simulation.disk import HostEnded, SimDisk, SimStorage
from tests.simulation.faults import flipped_batch, is_segment
from tests.simulation.loop import Process

SEEDS = range(200)


def disk_and_storage(seed: int = 0) -> tuple[SimDisk, SimStorage]:
    disk = SimDisk(Random(seed))
    return disk, SimStorage(disk, Process("daemon"))


def again(disk: SimDisk) -> SimStorage:
    return SimStorage(disk, Process("daemon again"))


def test_synced_bytes_in_a_synced_directory_survive_a_power_cut() -> None:
    for seed in SEEDS:
        disk, storage = disk_and_storage(seed)
        file = storage.open("log", create=True)
        file.append([b"kept", memoryview(b" for good")])
        file.sync()
        storage.sync_directory("")
        disk.power_cut()
        assert again(disk).read_file("log") == b"kept for good"


def test_unsynced_bytes_may_be_lost_cut_off_or_full_of_holes() -> None:
    durable, written = b"a" * 200, b"b" * 300
    seen = set()
    for seed in SEEDS:
        disk, storage = disk_and_storage(seed)
        file = storage.open("log", create=True)
        file.append([durable])
        file.sync()
        storage.sync_directory("")
        file.append([written])
        disk.power_cut()
        left = again(disk).read_file("log")
        assert left.startswith(durable)
        assert set(left[200:]) <= {0, ord("b")}
        holes = b"\0" in left[200:]
        seen.add("lost" if len(left) == 200 else "holes" if holes else "whole" if len(left) == 500 else "cut")
    assert seen == {"lost", "holes", "whole", "cut"}


def test_unsynced_names_may_be_lost_and_a_killed_process_loses_nothing() -> None:
    survived = 0
    for seed in SEEDS:
        disk, storage = disk_and_storage(seed)
        storage.make_directory("t-0")
        storage.sync_directory("")
        storage.open("t-0/log", create=True).append([b"x"])
        disk.process_ended()
        assert again(disk).read_file("t-0/log") == b"x"
        disk.power_cut()
        survived += again(disk).exists("t-0/log")
    assert 0 < survived < len(SEEDS)


def test_write_file_leaves_the_old_or_the_new_content_wherever_the_power_goes() -> None:
    for seed in SEEDS:
        for calls in range(1, 10):
            disk, storage = disk_and_storage(seed)
            storage.write_file("metadata", b"old")
            disk.on_end = disk.power_cut
            disk.end_after = calls
            try:
                storage.write_file("metadata", b"new")
                finished = True
            except HostEnded:
                finished = False
            disk.end_after = None
            left = again(disk).read_file("metadata")
            assert left == b"new" if finished else left in (b"old", b"new")


def test_a_failed_sync_leaves_the_bytes_in_doubt() -> None:
    left = set()
    for seed in SEEDS:
        disk, storage = disk_and_storage(seed)
        file = storage.open("log", create=True)
        storage.sync_directory("")
        file.append([b"0123456789"])
        disk.fail_syncs = 1
        with pytest.raises(OSError, match="Input/output") as failed:
            file.sync()
        assert failed.value.errno == errno.EIO
        disk.process_ended()
        left.add(again(disk).read_file("log"))
    assert {b"", b"0123456789"} < left


def test_a_full_disk_takes_what_fits() -> None:
    disk, storage = disk_and_storage()
    file = storage.open("log", create=True)
    disk.capacity = 5
    with pytest.raises(OSError, match="No space") as full:
        file.append([b"0123456789"])
    assert full.value.errno == errno.ENOSPC
    assert file.read(0, 10) == b"01234"
    file.truncate(0)
    file.append([b"01234"])


def test_one_bit_is_flipped_in_memory_and_on_disk() -> None:
    disk, storage = disk_and_storage()
    file = storage.open("log", create=True)
    file.append([bytes(10)])
    file.sync()
    storage.sync_directory("")
    _, inode = disk.files()[0]
    disk.flip_bit(inode)
    assert sum(byte.bit_count() for byte in file.read(0, 10)) == 1
    disk.power_cut()
    assert sum(byte.bit_count() for byte in again(disk).read_file("log")) == 1


def test_a_flipped_bit_is_proven_by_what_is_behind_it_until_a_fault_takes_that() -> None:
    batches = []
    for offset in range(3):
        batch = encode_batch([b"x"], timestamps_ms=[0])
        batches.append(restamped(batch[:HEADER_BYTES], offset, 0, 1) + batch[HEADER_BYTES:])
    content, path = b"".join(batches), "events-0/00000000000000000000.log"
    last, second = len(batches[0]) + len(batches[1]) + 1, len(batches[0]) + 1
    assert not flipped_batch(("events", 0), path, content, last, last_segment=True).proven
    flip = flipped_batch(("events", 0), path, content, second, last_segment=True)
    assert (flip.offset, flip.proven) == (1, False), "the one behind may have been written together with it"
    flip = flipped_batch(("events", 0), path, content, 1, last_segment=True)
    proof_end = len(content)
    assert flip.proven
    assert flip.after_cut(path, proof_end).proven
    assert flip.after_cut("events-1/00000000000000000000.log", 0).proven
    assert not flip.after_cut(path, proof_end - 1).proven
    earlier = flipped_batch(("events", 0), path, content, 1, last_segment=False)
    assert earlier.after_cut("events-0/00000000000000000003.log", 0).proven, "that there is a later segment proves it"


def test_the_lock_belongs_to_a_living_process() -> None:
    disk, storage = disk_and_storage()
    lock = storage.lock("lock")
    with pytest.raises(DataDirectoryLockedError, match="daemon"):
        again(disk).lock("lock")
    lock.release()
    process = Process("second")
    SimStorage(disk, process).lock("lock")
    process.dead = True
    again(disk).lock("lock")


def test_a_dead_process_does_nothing_to_the_disk() -> None:
    disk = SimDisk(Random(0))
    process = Process("daemon")
    file = SimStorage(disk, process).open("log", create=True)
    process.dead = True
    with pytest.raises(HostEnded):
        file.append([b"x"])
    assert again(disk).read_file("log") == b""


def test_segments_are_those_of_logs_that_are_in_use() -> None:
    assert is_segment("orders-1/00000000000000000000.log")
    assert is_segment("__consumer_offsets-7/00000000000000000012.log")
    for other in ("orders-1/00000000000000000000.index", "orders-1.damaged/00.log", "orders-1.0a1b-delete/00.log"):
        assert not is_segment(other)
