"""A log that was closed cleanly is opened by what the close has noted: as a scan would open it, wherever the power goes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import structlog

import coordinator.log.recovery
from coordinator.filesystem.executor import Disk
from coordinator.log import LogClosedError, LogConfig, LogDamagedError, PartitionLog
from coordinator.log.clean_end import CLEAN_END
from coordinator.log.directories import make_logs, sync_logs
from coordinator.log.recovery import Recovered, open_directory
from protocol.record_batch import HEADER_BYTES, read_header
from tests.coordinator.log.logs import DIRECTORY, batch_of, end_of_process, records_in
from tests.coordinator.log.transactional import transactional
from tests.simulation.disk import Directory, HostEnded, Inode, SimDisk, SimStorage
from tests.simulation.loop import Process
from tests.simulation.record_probes import what_is_known

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)
RUNS = 4
"""Starts of a life, each with a clean stop."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@dataclass
class Host:
    """A disk, the process that uses it, and what clients have been told."""

    random: Random
    disk: SimDisk = field(init=False)
    process: Process = field(default_factory=lambda: Process("daemon"))
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    opened: Counter[str] = field(default_factory=Counter)
    sequence: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.disk = SimDisk(self.random)
        made = SimStorage(self.disk, self.process)
        make_logs(made, [DIRECTORY])
        sync_logs(made, [DIRECTORY])

    def end(self, power: bool) -> None:
        """The process is gone, or the whole machine."""
        self.process.dead = True
        if power:
            self.disk.power_cut()
        else:
            self.disk.process_ended()

    def storage(self) -> SimStorage:
        """The disk for the next process."""
        self.process = Process("daemon")
        return SimStorage(self.disk, self.process)

    def directory(self) -> Directory:
        node = self.disk.root.live[DIRECTORY]
        assert isinstance(node, Directory)
        return node


def as_scanned(disk: SimDisk) -> Recovered:
    """What a copy of the disk is opened as without the note."""
    copy = SimDisk(Random(0))
    copy.root = deepcopy(disk.root)
    directory = copy.root.live[DIRECTORY]
    assert isinstance(directory, Directory)
    directory.live.pop(CLEAN_END, None)
    return open_directory(SimStorage(copy, Process("daemon")), DIRECTORY, CONFIG)


def check_opening(host: Host) -> None:
    """The log as it is now, opened by the note if that holds, is the log as a scan opens it."""
    copy = SimDisk(Random(0))
    copy.root = deepcopy(host.disk.root)
    found = open_directory(SimStorage(copy, Process("daemon")), DIRECTORY, CONFIG)
    assert what_is_known(found) == what_is_known(as_scanned(host.disk))
    host.opened["noted" if found.clean_end else "scanned"] += 1


async def run(host: Host, storage: SimStorage) -> None:
    """One run of the daemon: opens the log, appends some or nothing, closes it. Notes what is acknowledged as it is."""
    disk = Disk(storage, threads=1)
    try:
        log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
        for offset, value in host.acknowledged.items():
            assert offset < log.end_offset, f"{value!r} was acknowledged at {offset}"
        known = log.producers.get(7)
        host.sequence = known.batches[-1].last_sequence + 1 if known else 0
        for _ in range(int(host.random.random() * 5)):
            append(host, log)
            go_on_in_a_transaction(host, log)
            if host.random.random() < 0.6:
                await log.flush()
        await log.close()
    finally:
        disk.close()


def append(host: Host, log: PartitionLog) -> None:
    value = b"v%d-%d" % (host.sequence, int(host.random.random() * 1000))
    batch = batch_of((b"k", value, host.sequence), producer_id=7, base_sequence=host.sequence)
    offset = log.append(batch, read_header(batch), 1_000).base_offset
    host.sequence += 1

    def told(error: Exception | None) -> None:
        if error is None:
            host.acknowledged[offset] = value

    log.when_durable(offset + 1, told)


def go_on_in_a_transaction(host: Host, log: PartitionLog) -> None:
    """Perhaps one of another producer begins, or ends."""
    draw, open_here = host.random.random(), log.open_transactions()
    if draw < 0.3 and not open_here:
        host.epoch += 1
        batch = transactional([b"k"], [b"in a transaction"], [1_000], 8, 0, host.epoch)
        log.append(batch, read_header(batch), 1_000)
    elif draw < 0.6 and open_here:
        log.end_transactions([(8, open_here[0].epoch, draw < 0.45)], 0, 1_000)


async def check_records(host: Host) -> None:
    """What was acknowledged is there, and is what was written."""
    disk = Disk(host.storage(), threads=1)
    try:
        log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
        there = await records_in(log)
        assert {offset: there[offset][1] for offset in host.acknowledged} == host.acknowledged
        assert list(there) == [*range(log.end_offset)]
        await log.close()
    finally:
        disk.close()


def lived(seed: int, cut_at: int, power: bool) -> tuple[bool, Host]:
    """A life of ``RUNS`` runs that ends at its ``cut_at``-th call to the disk, and then goes on for two runs more.

    Each opening, and the disk after each run, is compared with what a scan finds.
    """
    host = Host(Random(f"{seed}/{cut_at}/{power}"))
    host.disk.end_after = cut_at
    host.disk.on_end = lambda: host.end(power)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    try:
        for _ in range(RUNS + 2):
            with suppress(HostEnded, LogClosedError):
                loop.run_until_complete(run(host, host.storage()))
            check_opening(host)
        cut, host.disk.end_after = host.disk.end_after is None, None
        loop.run_until_complete(check_records(host))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    return cut, host


def cut_everywhere(seed: int, power: bool) -> Counter[str]:
    """Lives that are cut at each of their calls to the disk; how often the note held in all of them together."""
    opened: Counter[str] = Counter()
    cut_at, cut = 1, True
    while cut:
        cut, host = lived(seed, cut_at, power)
        opened += host.opened
        cut_at += 1
    assert cut_at > 60
    return opened


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", [True, False])
def test_a_log_opened_by_the_note_is_the_log_opened_by_a_scan(seed: int, power: bool) -> None:
    opened = cut_everywhere(seed, power)
    assert opened["noted"] > 100
    assert opened["scanned"] > 50


def _any_size(clean: Any, file: Any, base_offset: int, checkpoint: tuple[int, int, int]) -> bool:
    return bool(clean.segment.base_offset == base_offset)


def test_a_note_that_is_believed_whatever_the_size_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.log.recovery, "holds", _any_size)
    with pytest.raises((AssertionError, LogDamagedError)):
        cut_everywhere(0, power=True)


def closed(host: Host, batches: int = 3) -> None:
    """A log with some batches, closed cleanly."""

    async def fill() -> None:
        disk = Disk(host.storage(), threads=1)
        try:
            log = await PartitionLog.open(disk, DIRECTORY, CONFIG, leader_epoch=0, on_fatal=end_of_process)
            for _ in range(batches):
                append(host, log)
            await log.close()
        finally:
            disk.close()

    asyncio.run(fill())


def file_of(host: Host, name: str) -> Inode:
    inode = host.directory().live[name]
    assert isinstance(inode, Inode)
    return inode


def opened_as(host: Host) -> Recovered:
    return open_directory(host.storage(), DIRECTORY, CONFIG)


def test_a_clean_start_reads_no_batch_and_syncs_nothing() -> None:
    host = Host(Random(1))
    closed(host)
    calls: list[tuple[str, int]] = []

    class Counted(SimStorage):
        def open(self, path: str, create: bool = False) -> Any:
            file = super().open(path, create)
            read, sync = file.read, file.sync
            file.read = lambda position, length: calls.append((path, length)) or read(position, length)  # type: ignore[func-returns-value,method-assign]
            file.sync = lambda: calls.append((path, -1)) or sync()  # type: ignore[func-returns-value,method-assign]
            return file

    recovered = open_directory(Counted(host.disk, Process("daemon")), DIRECTORY, CONFIG)
    assert recovered.clean_end is not None
    assert [length for _, length in calls] == [HEADER_BYTES]  # where the last entry of the index points


def test_logs_that_nothing_is_appended_to_keep_their_note_and_close_without_a_write() -> None:
    host = Host(Random(1))
    closed(host)
    files = {name: file_of(host, name) for name in host.directory().live}
    before = {name: bytes(inode.live) for name, inode in files.items()}
    for _ in range(3):
        closed(host, batches=0)
        assert {name: file_of(host, name) for name in host.directory().live} == files
    assert {name: bytes(inode.live) for name, inode in files.items()} == before


def test_a_log_that_was_scanned_gets_its_note_at_the_next_close_although_nothing_was_appended() -> None:
    host = Host(Random(1))
    closed(host)
    del host.directory().live[CLEAN_END]
    closed(host, batches=0)
    assert opened_as(host).clean_end is not None


def test_an_empty_log_has_no_note() -> None:
    host = Host(Random(1))
    closed(host, batches=0)
    assert CLEAN_END not in host.directory().live


def _flip(data: bytearray, position: int) -> None:
    data[position] ^= 1 << position % 8


def test_a_note_with_any_bit_flipped_is_not_believed_and_goes() -> None:
    host = Host(Random(1))
    closed(host)
    good = bytes(file_of(host, CLEAN_END).live)
    expected = what_is_known(as_scanned(host.disk))
    for position in range(len(good)):
        inode = Inode(bytearray(good), good)
        _flip(inode.live, position)
        host.directory().live[CLEAN_END] = inode
        recovered = opened_as(host)
        assert recovered.clean_end is None
        assert what_is_known(recovered) == expected
        assert CLEAN_END not in host.directory().live


def _longer(host: Host) -> None:
    file_of(host, f"{0:020}.log").live += b"CHB1 torn"


def _older_checkpoint(host: Host) -> None:
    del host.directory().live["checkpoint"]


def _another_batch_there(host: Host) -> None:
    """Batches of the same size at the place of those that the note is about."""
    inode = file_of(host, f"{0:020}.log")
    half = len(inode.live) // 3
    inode.live[half:] = bytes(len(inode.live) - half)


@pytest.mark.parametrize("change", [_longer, _older_checkpoint, _another_batch_there])
def test_a_note_that_does_not_fit_is_not_believed(change: Callable[[Host], None]) -> None:
    host = Host(Random(1))
    closed(host, batches=3)
    change(host)
    try:
        assert opened_as(host).clean_end is None
    except LogDamagedError:
        assert change is _another_batch_there


def test_a_tail_that_is_cut_back_to_the_noted_size_leaves_what_was_noted() -> None:
    host = Host(Random(1))
    closed(host)
    inode = file_of(host, f"{0:020}.log")
    expected = what_is_known(as_scanned(host.disk))
    inode.live += b"CHB1 torn"
    del inode.live[-9:]
    recovered = opened_as(host)
    assert recovered.clean_end is not None
    assert what_is_known(recovered) == expected


def test_what_was_noted_of_the_last_append_is_known_after_a_clean_restart_only() -> None:
    host = Host(Random(1))
    closed(host)
    assert opened_as(host).segments[-1].last_ms == 1_000
    assert as_scanned(host.disk).segments[-1].last_ms == -1


def test_a_full_disk_at_the_stop_costs_only_the_note() -> None:
    host = Host(Random(1))
    closed(host)
    del host.directory().live[CLEAN_END]
    host.disk.capacity = host.disk.used()
    closed(host, batches=0)
    host.disk.capacity = None
    recovered = opened_as(host)
    assert recovered.clean_end is None
    assert recovered.segments[-1].next_offset == 3


def test_records_of_a_log_whose_creator_was_killed_survive_a_power_cut() -> None:
    for seed in range(20):  # what a power cut leaves of names that are not durable is drawn
        host = Host(Random(seed))
        make_logs(host.storage(), ["payments-0"])  # killed before sync_logs
        host.end(power=False)
        recovered = open_directory(host.storage(), "payments-0", CONFIG)
        file = recovered.segments[-1].file
        assert file is not None
        batch = batch_of((b"k", b"acknowledged", 0))
        file.append([batch])
        file.sync()
        host.end(power=True)
        assert open_directory(host.storage(), "payments-0", CONFIG).segments[-1].next_offset == 1
