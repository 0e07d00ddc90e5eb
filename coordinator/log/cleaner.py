"""Compaction at work: reads and rewrites closed segments in the disk pool and exchanges them on disk.

The exchange may be killed at any instant: the output is written as ``<base>.cleaned`` and synced, renamed to
``<base>-<end>.swap`` (from here on it counts, before it never happened), the segments it covers are removed, and it takes
the first one's name. ``recovery`` finishes or undoes what it finds. Outputs are exchanged in the order of their offsets, so
a tombstone that has its delete horizon has nothing of its key before it, whenever the pass was cut off.

Memory is bounded: the map by ``compaction.MAP_BYTES``, a step by ``STEP_BYTES`` of input or one larger batch, the batch
being joined, and the output's index. A step is one call in the pool; the loop runs between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from coordinator.disk import Disk
from coordinator.log.compaction import CompactionResult, OffsetMap, cleanable, dirty_ratio, is_worth_cleaning
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogDamagedError
from coordinator.log.index import SparseIndex
from coordinator.log.producers import Producers, remembered_offsets
from coordinator.log.reading import read_batches
from coordinator.log.recovery import finish_swap, write_cleaner_point
from coordinator.log.rewriting import BatchRewriter
from coordinator.log.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, Segment, file_name, swap_name
from coordinator.log.segment_list import SegmentList
from coordinator.log_output import get_logger
from coordinator.storage import File, Storage
from protocol.errors import ProtocolError
from protocol.record_batch import BatchHeader, iter_batches

log = get_logger()

STEP_BYTES: Final = 256 * 1024
_LATEST_MS: Final = 2**63 - 1

T = TypeVar("T")


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

    def next_batches(self) -> bytes:
        """The next step's input. Blocks; raises ``ProtocolError``."""
        file, segment = self.segment.file, self.segment
        assert file is not None
        found = read_batches(file, self.position, segment.size, self.offset, STEP_BYTES, segment.next_offset)
        self.position, self.offset = found.next_position, found.next_offset
        return found.data


class _Output:
    """The compacted segment being written. Its methods block, and only one of them runs at a time."""

    def __init__(self, storage: Storage, directory: str, base_offset: int, config: LogConfig) -> None:
        self.base_offset = base_offset
        self.covered: list[Segment] = []
        self.committed = False
        """Whether the exchange counts: a restart will finish it."""
        self.installed: Segment | None = None
        """The new segment, once the exchange is complete on disk."""
        self._storage = storage
        self._directory = directory
        self._path = f"{directory}/{file_name(base_offset, CLEANED_SUFFIX)}"
        self._index = SparseIndex(config.index_interval_bytes)
        self._file: File | None = None
        self.size = 0

    def write(self, batches: Iterable[tuple[BatchHeader, bytes]]) -> None:
        if self._file is None:
            if self._storage.exists(self._path):  # what an earlier pass left when its disk failed
                self._storage.remove(self._path)
            self._file = self._storage.open(self._path, create=True)
        pieces: list[bytes | memoryview] = []
        for header, body in batches:
            pieces += (header.pack(), body)
            self._index.add(header.base_offset, self.size, header.max_timestamp)
            self.size += header.length
        self._file.append(pieces)

    def exchange(self, next_offset: int) -> None:
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
        segment.next_offset, segment.size, segment.max_timestamp = next_offset, self.size, self._index.max_timestamp
        segment.last_ms = max(covered.last_ms for covered in self.covered)
        self.installed = segment
        index = self._index.encode(self.base_offset, next_offset, self.size, segment.last_ms)
        self._storage.write_file(f"{self._directory}/{file_name(self.base_offset, INDEX_SUFFIX)}", index)

    def discard(self) -> None:
        """Undoes an output that was not committed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._storage.remove(self._path)


class Cleaner:
    """Compacts one log, one pass at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: SegmentList,
        producers: Producers,
        clean_until: int,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._segments = segments
        self._producers = producers
        # Behind the log's end it can only be a leftover: then nothing is known to be clean.
        self._clean_until = clean_until if clean_until <= segments.active.base_offset else 0
        self._on_fatal = on_fatal
        self._running = asyncio.Lock()
        self._stop_asked = False
        self.fault = ""
        """Why the last pass failed; "" when it did not."""

    @property
    def dirty_ratio(self) -> float:
        """The share of the closed segments' bytes that has not been compacted yet."""
        return dirty_ratio(self._segments.closed, self._clean_until)

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
        async with self._running:
            return

    async def compact(self, now_ms: int) -> CompactionResult | None:
        """One pass, if it is worth it and none is running.

        A disk that fails before an output counts, or a compression that is not installed, leaves the log as it was:
        that is logged and the result is ``None``.
        Raises ``LogDamagedError``.
        """
        if self._stopping() or self.is_running():
            return None
        try:
            closed = cleanable(self._segments.closed, self._config, now_ms)
            if not is_worth_cleaning(closed, self._clean_until, self._config, now_ms):
                return None
            async with self._running:
                result = await self._pass(closed, now_ms)
        except ProtocolError as error:
            self.fault = str(error)
            raise LogDamagedError(self._directory, "a segment being compacted", str(error)) from error
        except (OSError, ModuleNotFoundError) as error:
            self.fault = str(error)
            log.warning("compaction_failed", directory=self._directory, error=str(error))
            return None
        except Exception as error:  # an index that shows damage, or a fault of ours
            self.fault = str(error) or repr(error)
            raise
        self.fault = ""
        return result

    async def _pass(self, closed: list[Segment], now_ms: int) -> CompactionResult | None:
        offsets = OffsetMap(max(self._clean_until, self._segments.start_offset))
        for segment in closed:
            if segment.next_offset > self._clean_until and not offsets.complete:
                await self._each_step(segment, _map_step, offsets)
        if self._stopping() or offsets.end_offset <= self._clean_until:
            return None
        inputs = [segment for segment in closed if segment.base_offset < offsets.end_offset]
        remembered = await self._disk.tend(remembered_offsets, list(self._producers))
        outputs, rewriters = await self._rewrite(inputs, offsets, remembered, now_ms)
        if self._stopping():
            return None
        self._clean_until = offsets.end_offset
        await self._disk.tend(write_cleaner_point, self._disk.storage, self._directory, self._clean_until)
        result = CompactionResult(
            segments_before=len(inputs),
            segments_after=len(outputs),
            bytes_before=sum(segment.size for segment in inputs),
            bytes_after=sum(output.size for output in outputs),
            records_before=sum(rewriter.records_in for rewriter in rewriters),
            records_after=sum(rewriter.records_out for rewriter in rewriters),
            keyless_dropped=sum(rewriter.keyless_dropped for rewriter in rewriters),
            unreadable_kept=sum(rewriter.unreadable_kept for rewriter in rewriters),
            clean_until=self._clean_until,
        )
        if result.keyless_dropped:
            log.warning("keyless_records_dropped", directory=self._directory, records=result.keyless_dropped)
        if result.unreadable_kept:
            log.warning("unreadable_batches_kept", directory=self._directory, batches=result.unreadable_kept)
        log.info("compacted", directory=self._directory, result=result)
        return result

    async def _rewrite(
        self, inputs: list[Segment], offsets: OffsetMap, remembered: frozenset[int], now_ms: int
    ) -> tuple[list[_Output], list[BatchRewriter]]:
        """Rewrites segment after segment into outputs as large as a segment may be, and exchanges each when it is full."""
        outputs: list[_Output] = []
        rewriters: list[BatchRewriter] = []
        horizon = min(now_ms + self._config.delete_retention_ms, _LATEST_MS)
        for number, segment in enumerate(inputs):
            if not outputs or outputs[-1].committed:
                outputs.append(_Output(self._disk.storage, self._directory, segment.base_offset, self._config))
                rewriters.append(BatchRewriter(segment.base_offset, offsets, remembered, now_ms, horizon))
            output, rewriter = outputs[-1], rewriters[-1]
            output.covered.append(segment)
            try:
                await self._each_step(segment, _rewrite_step, (rewriter, output))
                following = inputs[number + 1 : number + 2]
                size = output.size + rewriter.pending_bytes
                full = not following or size + following[0].size > self._config.segment_bytes
                if full and not self._stopping():
                    await self._disk.tend(_finish, rewriter, output, segment.next_offset)
                    await self._exchange(output, segment.next_offset)
            except BaseException:
                await self._abandon(output)
                raise
            if self._stopping():
                await self._abandon(output)
                break
        return outputs, rewriters

    async def _exchange(self, output: _Output, next_offset: int) -> None:
        async with self._segments.exchanging():
            try:
                await self._disk.tend(output.exchange, next_offset)
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
            except OSError as error:  # it is in nobody's way: the next open or pass removes it
                log.warning("compaction_left_output", directory=self._directory, error=str(error))

    async def _each_step(self, segment: Segment, step: Callable[[_Cursor, T], None], argument: T) -> None:
        """Runs ``step`` in the pool until the segment is read or the pass is stopped."""
        segment = await self._segments.acquire(segment.base_offset)
        try:
            cursor = _Cursor(segment)
            while not cursor.done and not self._stopping():
                await self._disk.tend(step, cursor, argument)
        finally:
            segment.release()


def _map_step(cursor: _Cursor, offsets: OffsetMap) -> None:
    data = memoryview(cursor.next_batches())
    for position, header in iter_batches(data):
        if header.base_offset >= offsets.end_offset:  # the first dirty segment may be clean in part
            offsets.add(header, data[position : position + header.length])


def _rewrite_step(cursor: _Cursor, target: tuple[BatchRewriter, _Output]) -> None:
    rewriter, output = target
    data = memoryview(cursor.next_batches())
    for position, header in iter_batches(data):
        output.write(rewriter.feed(header, data[position : position + header.length]))


def _finish(rewriter: BatchRewriter, output: _Output, next_offset: int) -> None:
    output.write(rewriter.finish(next_offset))
