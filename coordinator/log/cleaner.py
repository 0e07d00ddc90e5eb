"""Compaction at work: reads closed segments, has them rewritten and exchanges them on disk.

What is rewritten, and by which process, is what ``compaction_process`` is about; files are read and written here.

The exchange may be killed at any instant: the output is written as ``<base>.cleaned`` and synced, renamed to
``<base>-<end>.swap`` (from here on it counts, before it never happened), the segments it covers are removed, and it takes
the first one's name. ``recovery`` finishes or undoes what it finds. Outputs are exchanged in the order of their offsets, so
a tombstone that has its delete horizon has nothing of its key before it, whenever the pass was cut off.

Memory is bounded: the map by ``compaction.MAP_BYTES``, a step by ``STEP_BYTES`` of input or one larger batch, the batch
being joined, the output's index, and the aborted transactions that overlap one segment. A step is one call in the pool; the
loop runs between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import File, Storage
from coordinator.log.aborted import AbortedTransactions, merged
from coordinator.log.checkpoints import write_cleaner_point
from coordinator.log.compaction import CompactionResult, cleanable, dirty_ratio, is_worth_cleaning
from coordinator.log.compaction_process import CompactionWork, Indexed, Mapped, Rewritten, local_work
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogDamagedError
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.producers import Producers, Snapshot, remembered_offsets
from coordinator.log.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, Segment, file_name, finish_swap, swap_name
from coordinator.log.segment_list import SegmentList
from coordinator.log_output import get_logger
from protocol.errors import ProtocolError

log = get_logger()

STEP_BYTES: Final = 256 * 1024
_LATEST_MS: Final = 2**63 - 1

Begin = Callable[[int, int], CompactionWork]
"""Begins the work of a pass, from the offset where its map begins and the bytes of its segments. Blocks."""

_Taken = TypeVar("_Taken", Mapped, Rewritten)


@dataclass(slots=True)
class _Cursor:
    """How far a segment has been read."""

    segment: Segment
    position: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        self.offset = self.segment.base_offset

    @property
    def done(self) -> bool:
        return self.position >= self.segment.size

    def feed(self, take: Callable[[bytes, int], _Taken]) -> _Taken:
        """Gives the next piece to ``take`` and goes on behind what it consumed. Blocks; raises ``ProtocolError``."""
        file, left = self.segment.file, self.segment.size - self.position
        assert file is not None
        taken = take(file.read(self.position, min(STEP_BYTES, left)), self.offset)
        if not taken.consumed:
            if taken.needed > left:
                raise ProtocolError(f"the batch of offset {self.offset} is cut off after {left} bytes")
            taken = take(file.read(self.position, taken.needed), self.offset)
        self.position += taken.consumed
        self.offset = taken.next_offset
        return taken


class _Output:
    """The compacted segment being written. Its methods block, and only one of them runs at a time."""

    def __init__(self, storage: Storage, directory: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self.covered: list[Segment] = []
        self.committed = False
        """Whether the exchange counts: a restart will finish it."""
        self.installed: Segment | None = None
        """The new segment, once the exchange is complete on disk."""
        self._storage = storage
        self._directory = directory
        self._path = f"{directory}/{file_name(base_offset, CLEANED_SUFFIX)}"
        self._file: File | None = None
        self.size = 0

    def write(self, batches: bytes) -> None:
        if self._file is None:
            if self._storage.exists(self._path):  # what an earlier pass left when its disk failed
                self._storage.remove(self._path)
            self._file = self._storage.open(self._path, create=True)
        if batches:
            self._file.append((batches,))
            self.size += len(batches)

    def exchange(self, next_offset: int, index: Indexed) -> None:
        """Commits the output and puts it into the place of the segments it covers."""
        assert self._file is not None
        self._file.sync()
        self._file.close()
        name = swap_name(self.base_offset, next_offset)
        self._storage.rename(self._path, f"{self._directory}/{name}")
        self.committed = True
        self._storage.sync_directory(self._directory)
        finish_swap(self._storage, self._directory, name, (self.base_offset, next_offset))
        segment = Segment(f"{self._directory}/{file_name(self.base_offset, LOG_SUFFIX)}", self.base_offset)
        segment.next_offset, segment.size, segment.max_timestamp = next_offset, self.size, index.max_timestamp
        segment.last_ms, segment.lowest_aborted = self.last_ms, index.lowest_aborted
        self.installed = segment
        self._storage.write_file(f"{self._directory}/{file_name(self.base_offset, INDEX_SUFFIX)}", index.encoded)

    @property
    def last_ms(self) -> int:
        """The latest time of an append to what it covers; not known if it is not of one, which may be the latest."""
        times = [covered.last_ms for covered in self.covered]
        return NO_TIMESTAMP if NO_TIMESTAMP in times else max(times)

    def discard(self) -> None:
        """Undoes an output that was not committed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._storage.remove(self._path)


def _no_longer_asked() -> int:
    raise AssertionError("a cleaner that was stopped begins no pass")


class Cleaner:
    """Compacts one log, one pass at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: SegmentList,
        producers: Producers,
        last_stable_offset: Callable[[], int],
        clean_until: int,
        on_fatal: Callable[[str], None],
        begin: Begin = local_work,
    ) -> None:
        self._begin = begin
        self._work: CompactionWork | None = None
        """What does the pass that is under way."""
        self._disk = disk
        self._directory = directory
        self._config = config
        self._segments = segments
        self._producers = producers
        self._last_stable_offset = last_stable_offset
        # Behind the log's end it can only be a leftover: then nothing is known to be clean.
        self.clean_until = clean_until if clean_until <= segments.active.base_offset else 0
        """Below it the log is compacted."""
        self._on_fatal = on_fatal
        self._running = asyncio.Lock()
        self._stop_asked = False
        self.fault = ""
        """Why the last pass failed; "" when it did not."""

    @property
    def dirty_ratio(self) -> float:
        """The share of the closed segments' bytes that has not been compacted yet."""
        return dirty_ratio(self._segments.closed, self.clean_until)

    def configure(self, config: LogConfig) -> None:
        """The next pass has these settings."""
        self._config = config

    def is_running(self) -> bool:
        """Whether a pass is under way: its segments must stay where they are."""
        return self._running.locked()

    def _stopping(self) -> bool:
        return self._stop_asked

    async def stop(self) -> None:
        """Makes a running pass end at its next step, and no other begin."""
        self._stop_asked = True
        if self._work is not None:
            self._work.abort()
        async with self._running:
            self._last_stable_offset = _no_longer_asked  # it holds the log, which holds this: a circle

    async def compact(self, now_ms: int) -> CompactionResult | None:
        """One pass, if it is worth it and none is running.

        A disk that fails before an output counts, or a compression that is not installed, leaves the log as it was:
        that is logged and the result is ``None``.
        Raises ``LogDamagedError``.
        """
        if self._stopping() or self.is_running():
            return None
        try:
            closed = cleanable(self._segments.closed, self._config, self._last_stable_offset(), now_ms)
            if not is_worth_cleaning(closed, self.clean_until, self._config, now_ms):
                return None
            async with self._running:
                result = await self._pass(closed, now_ms)
        except ProtocolError as error:
            self.fault = str(error)
            raise LogDamagedError(self._directory, "a segment being compacted", str(error)) from error
        except (OSError, ModuleNotFoundError) as error:
            if self._stopping():
                return None  # what was under way has been cut short
            self.fault = str(error)
            log.warning("compaction_failed", directory=self._directory, error=str(error))
            return None
        except Exception as error:  # an index that shows damage, or a fault of ours
            self.fault = str(error) or repr(error)
            raise
        self.fault = ""
        return result

    async def _pass(self, closed: list[Segment], now_ms: int) -> CompactionResult | None:
        try:
            return await self._passed(closed, now_ms)
        finally:
            work, self._work = self._work, None
            if work is not None:
                await self._disk.tend(work.close)

    def _begin_work(self, closed: list[Segment]) -> CompactionWork:
        """In the pool. Keeps the work here, as the caller may be cancelled."""
        start = max(self.clean_until, self._segments.start_offset)
        self._work = work = self._begin(start, sum(segment.size for segment in closed))
        return work

    async def _passed(self, closed: list[Segment], now_ms: int) -> CompactionResult | None:
        work = await self._disk.tend(self._begin_work, closed)
        end_offset = max(self.clean_until, self._segments.start_offset)
        for segment in closed:
            if segment.next_offset > self.clean_until:
                mapped = await self._each_step(segment, work, work.map)
                if mapped is not None:
                    end_offset = mapped.end_offset
                    if mapped.complete:
                        break
        if self._stopping() or end_offset <= self.clean_until:
            return None
        inputs = [segment for segment in closed if segment.base_offset < end_offset]
        outputs = await self._rewrite(work, inputs, now_ms)
        if self._stopping():
            return None
        counts = await self._disk.tend(work.counts)
        self.clean_until = end_offset
        await self._disk.tend(write_cleaner_point, self._disk.storage, self._directory, self.clean_until)
        result = CompactionResult(
            segments_before=len(inputs),
            segments_after=len(outputs),
            bytes_before=sum(segment.size for segment in inputs),
            bytes_after=sum(output.size for output in outputs),
            records_before=counts.records_in,
            records_after=counts.records_out,
            keyless_dropped=counts.keyless_dropped,
            unreadable_kept=counts.unreadable_kept,
            clean_until=self.clean_until,
        )
        if result.keyless_dropped:
            log.warning("keyless_records_dropped", directory=self._directory, records=result.keyless_dropped)
        if result.unreadable_kept:
            log.warning("unreadable_batches_kept", directory=self._directory, batches=result.unreadable_kept)
        log.info("compacted", directory=self._directory, result=result)
        return result

    async def _rewrite(self, work: CompactionWork, inputs: list[Segment], now_ms: int) -> list[_Output]:
        """Rewrites segment after segment into outputs as large as a segment may be, and exchanges each when it is full."""
        outputs: list[_Output] = []
        remembered = await self._disk.tend(_remembered, list(self._producers))
        horizon = min(now_ms + self._config.delete_retention_ms, _LATEST_MS)
        for number, segment in enumerate(inputs):
            if not outputs or outputs[-1].committed:
                outputs.append(_Output(self._disk.storage, self._directory, segment.base_offset))
                await self._disk.tend(
                    work.begin, segment.base_offset, now_ms, horizon, remembered, self._config.index_interval_bytes
                )
            output = outputs[-1]
            output.covered.append(segment)
            try:
                rewritten = await self._each_step(segment, work, _Rewriting(work, output).step)
                following = inputs[number + 1 : number + 2]
                size = output.size + (rewritten.pending_bytes if rewritten is not None else 0)
                full = not following or size + following[0].size > self._config.segment_bytes
                if full and not self._stopping():
                    index = await self._disk.tend(_finish, work, output, segment.next_offset)
                    await self._exchange(output, segment.next_offset, index)
            except BaseException:
                await self._abandon(output)
                raise
            if self._stopping():
                await self._abandon(output)
                break
        return outputs

    async def _exchange(self, output: _Output, next_offset: int, index: Indexed) -> None:
        async with self._segments.exchanging():
            try:
                await self._disk.tend(output.exchange, next_offset, index)
            finally:  # also when cancelled: what is done on disk is done
                if output.installed is not None:
                    self._segments.exchange(output.covered, output.installed)
                elif output.committed:
                    self._on_fatal(
                        f"the compaction of {self._directory} could not be finished: files were exchanged in part. "
                        "Restart the daemon, which finishes it"
                    )

    async def _abandon(self, output: _Output) -> None:
        if not output.committed:
            try:
                await self._disk.tend(output.discard)
            except OSError as error:  # nothing reads it: the next open or pass removes it
                log.warning("compaction_left_output", directory=self._directory, error=str(error))

    async def _each_step(
        self, segment: Segment, work: CompactionWork, take: Callable[[bytes, int], _Taken]
    ) -> _Taken | None:
        """Gives a segment to ``take`` in the pool, piece by piece, until it is read, the pass is stopped or the map full.

        Returns what the last one brought, None when there was none.
        """
        segment = await self._segments.acquire(segment.base_offset)
        taken: _Taken | None = None
        try:
            # The markers of what is read lie here or behind it, where nothing has been exchanged yet.
            aborted = await self._segments.aborted_in(segment.base_offset, segment.next_offset)
            if aborted:
                await self._disk.tend(_tell_aborted, work, aborted, segment.base_offset, segment.next_offset)
            cursor = _Cursor(segment)
            while not cursor.done and not self._stopping():
                taken = await self._disk.tend(cursor.feed, take)
                if isinstance(taken, Mapped) and taken.complete:
                    break
        finally:
            segment.release()
        return taken


@dataclass(slots=True)
class _Rewriting:
    """Rewrites pieces of segments and writes what comes out."""

    work: CompactionWork
    output: _Output

    def step(self, piece: bytes, offset: int) -> Rewritten:
        rewritten = self.work.rewrite(piece, offset)
        if rewritten.consumed:
            self.output.write(rewritten.output)
        return rewritten


def _tell_aborted(work: CompactionWork, segments: list[AbortedTransactions], start: int, end: int) -> None:
    work.know_aborted(merged(segments, start, end).integers().tobytes())


def _remembered(snapshot: Snapshot) -> list[int]:
    return sorted(remembered_offsets(snapshot))


def _finish(work: CompactionWork, output: _Output, next_offset: int) -> Indexed:
    """Writes the rest of an output; returns its index."""
    output.write(work.finish(next_offset))
    return work.index(next_offset, output.last_ms)
