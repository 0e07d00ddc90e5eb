"""Whatever happens to a log with transactions, and wherever the host ends: readers of what is committed find a plain list.

Producers write in transactions and without, transactions are decided as a coordinator decides them (a commit once all is
acknowledged), and the log is compacted, cut off by retention, deleted from, read, closed, killed and cut off from power.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

import pytest
import structlog

from coordinator.filesystem.executor import Disk
from coordinator.log import LogClosedError, LogConfig, OffsetNotInLogError, PartitionLog
from coordinator.log import cleaner as cleaner_module
from coordinator.log import compaction as compaction_module
from coordinator.log import partition as partition_module
from coordinator.log.aborted import AbortedBatches
from coordinator.log.compaction import cleanable
from coordinator.log.directories import make_logs, sync_logs
from coordinator.log.retention import start_after_retention
from coordinator.log.segment import Segment
from protocol.record_batch import Attributes, BatchHeader, encode_batch, read_header
from tests.coordinator.log.logs import DIRECTORY
from tests.coordinator.log.test_reading_committed import committed_from
from tests.coordinator.log.transactional import transactional
from tests.simulation.disk import HostEnded, SimDisk, SimStorage
from tests.simulation.loop import Process

CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=200, min_cleanable_dirty_ratio=0.0)
CONFIGS = [replace(CONFIG, compact=True), replace(CONFIG, retention_bytes=4_000), replace(CONFIG, retention_ms=400)]
LIVES, STEPS = 4, 25
_STEPS = {"write": 9, "plain": 3, "end": 6, "flush": 2, "read": 4, "compact": 3, "retain": 2, "delete": 1, "many": 3}

Owner = tuple[int, int]
"""Producer id and epoch of a transaction."""


class Record(NamedTuple):
    """What was appended; ``owner`` is its transaction."""

    key: bytes
    value: bytes
    owner: Owner | None


@dataclass
class History:
    """A host, and what its clients know of the log."""

    random: Random
    config: LogConfig
    done: Counter[str] = field(default_factory=Counter)
    records: dict[int, Record] = field(default_factory=dict)
    verdicts: dict[Owner, bool] = field(default_factory=dict)
    """What the coordinator has decided: whether it is committed."""
    markers: dict[Owner, int] = field(default_factory=dict)
    sequences: dict[Owner, int] = field(default_factory=dict)
    """The next of each producer that goes on writing in its transaction."""
    epochs: Counter[int] = field(default_factory=Counter)
    start = stable = watermark = 0
    now_ms = 1_000

    def __post_init__(self) -> None:
        self.disk, self.process = SimDisk(self.random), Process("daemon")
        storage = SimStorage(self.disk, self.process)
        make_logs(storage, [DIRECTORY])
        sync_logs(storage, [DIRECTORY])

    def end_host(self) -> None:
        self.process.dead = True
        if self.random.random() < 0.5:
            self.disk.power_cut()
        else:
            self.disk.process_ended()

    def fatal(self, reason: str) -> None:
        assert self.process.dead, reason

    async def live(self, last: bool) -> None:
        """Opens the log and goes on until the host ends, or the log is closed."""
        self.process = Process("daemon")
        disk = Disk(SimStorage(self.disk, self.process), threads=1)
        self.disk.end_after = None if last or self.random.random() < 0.2 else 5 + int(self.random.random() * 120)
        self.disk.on_end = self.end_host
        try:
            log = await PartitionLog.open(disk, DIRECTORY, self.config, leader_epoch=0, on_fatal=self.fatal)
            self.recovered(log)
            await self.check(log)
            for _ in range(STEPS):
                self.now_ms += int(self.random.random() * 40)
                (step,) = self.random.choices([*_STEPS], [*_STEPS.values()])
                await getattr(self, step)(log)
                self.done[step] += 1
                self.look(log)
            for owner in self.open_in(log):
                self.decide(log, owner, committed=False)
            await log.flush()
            await self.check(log)
            assert (log.last_stable_offset, log.open_transactions()) == (log.end_offset, [])
            await log.close()
            self.done["closed"] += 1
        finally:
            disk.close()

    def recovered(self, log: PartitionLog) -> None:
        """What was not acknowledged may be gone; the coordinator sends the markers of what it has decided again."""
        end = log.end_offset
        assert end >= self.watermark
        self.records = {offset: record for offset, record in self.records.items() if offset < end}
        self.markers = {owner: offset for owner, offset in self.markers.items() if offset < end}
        begun: dict[Owner, int] = {}
        for offset, record in self.records.items():
            if record.owner is not None and record.owner not in self.markers:
                begun.setdefault(record.owner, offset)
        known = {(opened.producer_id, opened.epoch): opened.first_offset for opened in log.open_transactions()}
        assert known == begun
        self.sequences.clear()
        for owner in begun:
            if owner in self.verdicts:
                self.decide(log, owner, self.verdicts[owner])

    def open_in(self, log: PartitionLog) -> list[Owner]:
        return [(opened.producer_id, opened.epoch) for opened in log.open_transactions()]

    def decide(self, log: PartitionLog, owner: Owner, committed: bool) -> None:
        committed = self.verdicts.setdefault(owner, committed)  # once and for all
        self.sequences.pop(owner, None)
        marker = log.end_offset
        log.end_transactions([(*owner, committed)], 0, self.now_ms)
        self.markers[owner] = marker
        assert log.open_transaction(owner[0]) is None

    def append(self, log: PartitionLog, owner: Owner | None) -> None:
        count = 1 + int(self.random.random() * 3)
        offsets = range(log.end_offset, log.end_offset + count)
        keys = [b"k%d" % int(self.random.random() * 6) for _ in offsets]
        values = [b"%d by %r" % (offset, repr(owner).encode()) for offset in offsets]
        if owner is None:
            batch = encode_batch(values, keys, timestamps_ms=[self.now_ms] * count)
        else:
            sequence = self.sequences.get(owner, 0)
            batch = transactional(keys, values, [self.now_ms] * count, owner[0], sequence)
            batch = replace(read_header(batch), producer_epoch=owner[1]).pack() + batch[80:]
            self.sequences[owner] = sequence + count
        assert log.append(batch, read_header(batch), self.now_ms).base_offset == offsets[0]
        for offset, key, value in zip(offsets, keys, values, strict=True):
            self.records[offset] = Record(key, value, owner)

    # Steps

    async def plain(self, log: PartitionLog) -> None:
        self.append(log, None)

    async def write(self, log: PartitionLog) -> None:
        producer_id = 5 + int(self.random.random() * 3)
        opened = log.open_transaction(producer_id)
        if opened is None:
            self.epochs[producer_id] += 1
            self.append(log, (producer_id, self.epochs[producer_id]))
        elif (owner := (producer_id, opened.epoch)) in self.sequences:
            self.append(log, owner)
        else:  # of a producer that a restart has cut off
            self.decide(log, owner, committed=False)

    async def end(self, log: PartitionLog) -> None:
        opened = self.open_in(log)
        if opened:
            owner = self.random.choice(opened)
            committed = owner in self.sequences and self.random.random() < 0.6
            if committed:  # a decision comes when all its records are acknowledged
                await log.flush()
            self.decide(log, owner, committed)

    async def flush(self, log: PartitionLog) -> None:
        await log.flush()

    async def compact(self, log: PartitionLog) -> None:
        if self.config.compact:
            await log.compact(self.now_ms)

    async def retain(self, log: PartitionLog) -> None:
        await log.retain(self.now_ms)

    async def delete(self, log: PartitionLog) -> None:
        span = log.last_stable_offset - log.start_offset
        offset = log.start_offset + int(self.random.random() * (span + 1) / 3)
        assert await log.delete_before(offset) == offset

    async def read(self, log: PartitionLog) -> None:
        await self.check(log)

    async def many(self, log: PartitionLog) -> None:
        """Reads go on while the log changes."""
        await asyncio.gather(
            self.end(log), self.check(log), self.compact(log), self.retain(log), self.check(log), self.plain(log)
        )

    # Invariants

    def look(self, log: PartitionLog) -> None:
        """Each bound only rises, through restarts too, and they keep their order."""
        assert self.start <= log.start_offset
        assert self.stable <= log.last_stable_offset
        assert self.watermark <= log.high_watermark
        assert log.start_offset <= log.last_stable_offset <= log.high_watermark <= log.end_offset
        self.start, self.stable, self.watermark = log.start_offset, log.last_stable_offset, log.high_watermark

    async def check(self, log: PartitionLog) -> None:
        """A reader from some offset finds what is committed, whole, and nothing else."""
        self.look(log)
        stable = log.last_stable_offset
        offset = log.start_offset + int(self.random.random() * (log.end_offset + 1 - log.start_offset))
        max_bytes = self.random.choice([1, 400, 2_000, 1 << 20])
        try:
            found = await committed_from(log, offset, max_bytes)
        except OffsetNotInLogError:
            assert log.start_offset > offset, "retention has overtaken it"
            return
        self.look(log)
        committed = {at: record for at, record in self.records.items() if self.is_committed(at, log.last_stable_offset)}
        assert found.items() <= {at: record.value for at, record in committed.items()}.items()
        last = {record.key: at for at, record in committed.items()}
        for at, record in committed.items():
            if max(offset, log.start_offset) <= at < stable and at not in found:
                assert self.config.compact
                assert last[record.key] > at, f"offset {at} is lost"

    def is_committed(self, offset: int, stable: int) -> bool:
        owner = self.records[offset].owner
        if offset >= stable or owner is None:
            return offset < stable
        assert owner in self.verdicts, "everything below the last stable offset is decided"
        return self.verdicts[owner]


def lived(seed: int) -> Counter[str]:
    """Some lives of a log, and what was done in them; the last one ends with a close."""
    history = History(Random(seed), CONFIGS[seed % len(CONFIGS)])
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    try:
        with structlog.testing.capture_logs():
            for life in range(LIVES):
                with suppress(HostEnded, LogClosedError):
                    loop.run_until_complete(history.live(last=life == LIVES - 1))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    assert history.done["closed"] >= 1
    return history.done


def _live(seeds: range) -> Counter[str]:
    return sum((lived(seed) for seed in seeds), Counter[str]())


@pytest.mark.parametrize("first", range(0, 90, 15))
def test_whatever_happens_readers_of_what_is_committed_find_a_plain_list(first: int) -> None:
    done = _live(range(first, first + 15))
    assert all(done[step] > 20 for step in _STEPS)


def _knows_no_aborts(header: BatchHeader, aborted: AbortedBatches) -> bool:
    return bool(header.attributes & Attributes.CONTROL)


def _cleans_everything(closed: Sequence[Segment], config: LogConfig, stable: int, now_ms: int) -> list[Segment]:
    return cleanable(closed, config, 2**62, now_ms)


def _passes_the_last_stable_offset(
    segments: Sequence[Segment], config: LogConfig, start_offset: int, stable: int, now_ms: int | None
) -> int:
    return start_after_retention(segments, config, start_offset, 2**62, now_ms)


def _hides_nothing(self: AbortedBatches, attributes: int, producer_id: int, base_offset: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        (compaction_module, "goes", _knows_no_aborts),
        (cleaner_module, "cleanable", _cleans_everything),
        (partition_module, "start_after_retention", _passes_the_last_stable_offset),
        (AbortedBatches, "has", _hides_nothing),
    ],
)
def test_what_is_left_out_shows(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, instead: Callable[..., object]
) -> None:
    monkeypatch.setattr(where, name, instead)
    with pytest.raises(AssertionError):
        _live(range(60))
