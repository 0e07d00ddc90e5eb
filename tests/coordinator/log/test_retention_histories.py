"""Whatever happens to a log, in whatever order, and wherever the process ends: what may be read is what was written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.directories import make_logs, sync_logs
from protocol.record_batch import BatchHeader, encode_batch, read_header
from tests.coordinator.log.faulty_storage import HookedStorage, KillAt
from tests.coordinator.log.logs import DIRECTORY, Record, end_of_process, made, opened, outcome, records_in, replay

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, min_cleanable_dirty_ratio=0.0, delete_retention_ms=100)
PRODUCER = 7

CONFIGS = [
    replace(CONFIG, compact=True),
    replace(CONFIG, retention_ms=300),
    replace(CONFIG, retention_bytes=900),
    replace(CONFIG, retention_ms=300, retention_bytes=900, compact=True, segment_bytes=300),
    replace(CONFIG, segment_ms=150, retention_ms=1000, max_compaction_lag_ms=200, compact=True),
    replace(CONFIG, retention_ms=500, min_compaction_lag_ms=200, compact=True, flush="os"),
]


class History:
    """A log, and all that was ever written to it."""

    def __init__(self, root: Path) -> None:
        self.storage = FileStorage(root)
        self.config = CONFIG
        self.now_ms = 1000
        self.written: dict[int, Record] = {}
        self.appended_ms: dict[int, int] = {}
        self.start = 0
        self.sequence = 0
        self.last: tuple[BatchHeader, int] | None = None

    async def run(self, steps: list[tuple[str, int]]) -> None:
        make_logs(self.storage, [DIRECTORY])
        sync_logs(self.storage, [DIRECTORY])
        remaining = list(steps)
        while True:
            clean = True
            async with opened(self.storage, self.config, close=False) as log:
                await self.check(log)
                while remaining:
                    step, number = remaining.pop(0)
                    if step in ("restart", "crash"):
                        clean = step == "restart"
                        break
                    self.now_ms += number * 7
                    await getattr(self, step)(log, number)
                    await self.check(log)
                if clean:
                    await log.close()
            if not remaining:
                break

    async def append(self, log: PartitionLog, number: int) -> None:
        count, stamp = 1 + number % 4, self.now_ms + (number % 5 - 2) * 200
        records: list[Record] = [
            (b"k%d" % ((number + each) % 5), None if (number + each) % 4 == 0 else b"v%d" % self.now_ms, stamp)
            for each in range(count)
        ]
        keys, values, timestamps = zip(*records, strict=True)
        batch = encode_batch(
            values, keys, timestamps_ms=timestamps, compression="gzip" if number % 3 == 0 else None,
            producer_id=PRODUCER, producer_epoch=0, base_sequence=self.sequence,
        )  # fmt: skip
        header = read_header(batch)
        base = log.append(batch, header, self.now_ms).base_offset
        assert await outcome(log) is None
        self.sequence += count
        self.last = header, base
        for each, record in enumerate(records):
            self.written[base + each] = record
            self.appended_ms[base + each] = self.now_ms

    async def retain(self, log: PartitionLog, number: int) -> None:
        before = log.start_offset
        await log.retain(self.now_ms)
        config = self.config
        for offset in range(before, log.start_offset):
            young = min(self.written[offset][2], self.appended_ms[offset]) > self.now_ms - config.retention_ms
            assert config.retention_bytes >= 0 or (config.retention_ms >= 0 and not young)

    async def delete(self, log: PartitionLog, number: int) -> None:
        offset = min(log.start_offset + number, log.high_watermark)
        assert await log.delete_before(offset) == offset

    async def compact(self, log: PartitionLog, number: int) -> None:
        await log.compact(self.now_ms)

    async def configure(self, log: PartitionLog, number: int) -> None:
        self.config = CONFIGS[number % len(CONFIGS)]
        log.configure(self.config)

    async def all_at_once(self, log: PartitionLog, number: int) -> None:
        offset = min(log.start_offset + number, log.high_watermark)
        self.now_ms += 500
        await asyncio.gather(
            log.compact(self.now_ms), log.retain(self.now_ms), log.delete_before(offset), self.append(log, number),
            log.offset_for_timestamp(self.now_ms - 400),
        )  # fmt: skip
        assert log.start_offset >= offset

    async def check(self, log: PartitionLog) -> None:
        assert log.end_offset == log.high_watermark == len(self.written)
        assert self.start <= log.start_offset <= log.end_offset
        self.start = log.start_offset
        left = {offset: record for offset, record in (await records_in(log)).items() if offset >= self.start}
        assert all(self.written[offset] == record for offset, record in left.items())
        kept = {offset: record for offset, record in self.written.items() if offset >= self.start}
        assert replay(left) == replay(kept)
        if self.last is not None:
            remembered = log.producers.find(self.last[0])
            assert remembered is not None
            assert remembered.base_offset == self.last[1]
        found = await log.offset_for_timestamp(0)
        assert found is None or found[0] >= self.start


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append"] * 6 + ["retain", "retain", "delete", "compact", "configure", "all_at_once", "restart", "crash"]
        ),
        st.integers(0, 40),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_whatever_happens_what_may_be_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with structlog.testing.capture_logs():
        asyncio.run(History(tmp_path_factory.mktemp("history")).run(steps))


KILLED = replace(CONFIG, segment_bytes=800, retention_ms=60, compact=True)


class Life:
    """Appends, deletes, retains and compacts until it is killed; knows what it was promised by then."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.start = 0

    async def live(self, root: Path, kill: KillAt) -> None:
        disk = Disk(HookedStorage(root, kill), threads=1)
        try:
            log = await PartitionLog.open(disk, DIRECTORY, KILLED, leader_epoch=0, on_fatal=end_of_process)
            for number in range(24):
                batch = batch_number(number)
                log.append(batch, read_header(batch), number * 10)
                if number % 4 == 3 and await outcome(log) is None:
                    self.acknowledged = log.high_watermark
                if number in (11, 19):
                    await log.delete_before(number - 5)
                    self.start = log.start_offset
                if number == 15:
                    await log.retain(number * 10)
                    self.start = log.start_offset
                if number in (15, 23):
                    await log.compact(number * 10)
            await log.retain(10_000)
            self.start = log.start_offset
            await log.close()
        finally:
            disk.close()


def batch_number(number: int) -> bytes:
    return encode_batch(
        [b"value %d" % number], [b"k%d" % (number % 4)], timestamps_ms=[number * 10],
        producer_id=PRODUCER, producer_epoch=0, base_sequence=number,
    )  # fmt: skip


async def check_killed(root: Path, life: Life) -> None:
    async with opened(FileStorage(root), KILLED) as log:
        start, end = log.start_offset, log.end_offset
        assert life.acknowledged <= end <= 24
        assert life.start <= start <= end
        left = {offset: record for offset, record in (await records_in(log)).items() if offset >= start}
        whole: dict[int, Record] = {
            number: (b"k%d" % (number % 4), b"value %d" % number, number * 10) for number in range(end)
        }
        assert replay(left) == replay({offset: record for offset, record in whole.items() if offset >= start})
        assert all(whole[offset] == record for offset, record in left.items())
        for number in range(max(end - 5, 0), end):
            remembered = log.producers.find(read_header(batch_number(number)))
            assert remembered is not None
            assert remembered.base_offset == number
        batch = batch_number(end)
        log.append(batch, read_header(batch), 300)
        assert await outcome(log) is None
    names = FileStorage(root).list(DIRECTORY)
    assert not [name for name in names if name.endswith((".tmp", ".cleaned", ".swap"))]
    async with opened(FileStorage(root), KILLED) as log:
        assert (log.start_offset, log.end_offset) == (start, end + 1)


def test_whenever_the_process_is_killed_the_start_is_where_it_was_or_where_it_was_going(tmp_path: Path) -> None:
    number = 0
    while True:
        root = tmp_path / str(number)
        made(FileStorage(root))
        kill, life = KillAt(number), Life()

        async def run(kill: KillAt = kill, life: Life = life, root: Path = root) -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            try:
                await life.live(root, kill)
            except BaseException:
                if not kill.killed:
                    raise

        with structlog.testing.capture_logs():
            asyncio.run(run())
            asyncio.run(check_killed(root, life))
        if not kill.killed:
            break
        number += 1
    assert life.start == life.acknowledged == 24
    assert number > 60
