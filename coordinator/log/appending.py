"""Appends to an open log by group commit: the queue, the rounds that write it, and what becomes of those that fail.

An append is put into the queue, and the first one asks the loop to start a round once everything that came in the same
turn is queued too. A round writes and syncs all that is queued; what arrives meanwhile is the next round's. Nothing waits
for a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.log.append_queue import AppendQueue, Chunk
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogClosedError, LogError, LogWriteError
from coordinator.log.high_watermark import HighWatermark
from coordinator.log.index import SparseIndex
from coordinator.log.producers import Producers
from coordinator.log.recovery import Checkpoint
from coordinator.log.segment import Segment
from coordinator.log.segment_list import SegmentList
from coordinator.log.start import LogStart
from coordinator.log.writing import Round, SyncFailedError, WriteRefusedError, sync, write_round
from coordinator.log_output import get_logger
from protocol.record_batch import BatchHeader

log = get_logger()

CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""After so many bytes the end of a log is written down again, whatever the time."""


class Appender:
    """Writes one log. ``refusal`` is set once nothing may be appended any more."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: SegmentList,
        start: LogStart,
        producers: Producers,
        leader_epoch: int,
        leader_epochs: list[tuple[int, int]],
        on_fatal: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.config = config
        self.producers = producers
        self.leader_epoch = leader_epoch
        self.refusal: LogError | None = None
        self.trusted = True
        """Whether what is in memory is what is on disk."""
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._segments = segments
        self._start = start
        self._leader_epochs = leader_epochs
        self._queue = AppendQueue(config)
        self._reset_queue(roll=False)
        self.high_watermark = HighWatermark(self.end_offset)
        self._synced_offset = self.end_offset
        self._flushing = False
        self._flush_task: asyncio.Task[None] | None = None
        self._flush_name = f"flush {directory}"
        self._unnoted_bytes = 0
        """Bytes written since the checkpoint was."""
        self._noting: asyncio.Task[None] | None = None
        self._note_name = f"checkpoint {directory}"
        self._rolls: dict[int, asyncio.Future[None]] = {}
        """Who waits for the segment that begins at an offset."""

    @property
    def end_offset(self) -> int:
        """The next offset to be given."""
        return self._queue.end_offset

    @property
    def queued_bytes(self) -> int:
        """Bytes appended but not yet written."""
        return self._queue.queued_bytes

    def configure(self, config: LogConfig) -> None:
        """From now on the log has these settings."""
        self.config = config
        self._queue.configure(config)

    def append(self, batch: bytes, header: BatchHeader, now_ms: int) -> int:
        """See ``PartitionLog.append``."""
        if self.refusal is not None:
            raise self.refusal
        if len(batch) != header.length:
            raise ValueError(f"the batch has {len(batch)} bytes, its header says {header.length}")
        base_offset = self._queue.add(header, batch, self.producers, now_ms)
        if header.producer_id >= 0:
            self.producers.note(header, base_offset, now_ms)
        self._wake()
        return base_offset

    async def roll(self, frees_room: bool = False) -> None:
        """Closes the active segment now, unless it is empty, and returns when that is done or has failed.

        With ``frees_room`` it is about to be removed: a disk that is full gives up its reserve for that.
        It waits for the rounds before the new segment, and for none of the appends that come meanwhile: those of a busy
        log never end.
        """
        if self.refusal is not None or not self._queue.roll(self.producers, frees_room):
            return
        done = self._rolls[self.end_offset] = self._loop.create_future()
        self._wake()
        await done

    def _wake(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._flush_task = self._loop.create_task(self._flush_rounds(), name=self._flush_name)

    async def _flush_rounds(self) -> None:
        try:
            while self._queue:
                chunk = self._queue.take()
                try:
                    segment = await self._write(chunk)
                except WriteRefusedError as error:
                    self._write_refused(chunk, error)
                except SyncFailedError as error:
                    self.sync_failed(str(error))
                else:
                    self._committed(chunk, segment)
        except BaseException as error:  # the loop is being torn down, or a fault of ours: no append may hang on it
            self.trusted = False
            if isinstance(error, Exception):  # only a restart makes memory what is on disk again
                self._on_fatal(f"the writer of {self.directory} failed unexpectedly: {error!r}")
            self.refuse_all(LogClosedError(f"the writer of {self.directory} ended: {error!r}"))
            raise
        finally:
            self._flushing = False

    async def _write(self, chunk: Chunk) -> Segment:
        if not chunk.roll:
            return await self._disk.run(write_round, self._round(chunk))
        async with self._start.checkpoint_lock:
            return await self._disk.run(write_round, self._round(chunk))

    def _round(self, chunk: Chunk) -> Round:
        active = self._segments.active
        assert active.index is not None
        epochs = self._leader_epochs
        known = bool(epochs) and epochs[-1][0] == self.leader_epoch
        return Round(
            storage=self._disk.storage,
            reserve=self._disk.reserve,
            directory=self.directory,
            config=self.config,
            segment=active,
            index=active.index,
            chunk=chunk,
            start_offset=self._start.offset,
            durable_offset=self._synced_offset,
            leader_epoch=self.leader_epoch,
            leader_epochs=None if known else [*epochs, (self.leader_epoch, chunk.base_offset)],
        )

    def _committed(self, chunk: Chunk, segment: Segment) -> None:
        if chunk.roll:
            segment.index = SparseIndex(self.config.index_interval_bytes)
            self._segments.roll(segment)
            self._synced_offset = chunk.base_offset
            self._start.noted = Checkpoint(self._start.offset, chunk.base_offset, 0, chunk.base_offset)
            self._unnoted_bytes = 0
            _settle(self._rolls.pop(chunk.base_offset, None))
        assert segment.index is not None
        for entry in chunk.entries:
            segment.index.add_entry(*entry)
        if chunk.last_ms >= 0:
            segment.last_ms = max(segment.last_ms, chunk.last_ms)
            if not segment.size:
                segment.first_ms = chunk.last_ms
        segment.size += chunk.size
        segment.next_offset = chunk.next_offset
        segment.max_timestamp = segment.index.max_timestamp = chunk.max_timestamp
        if not self._leader_epochs or self._leader_epochs[-1][0] != self.leader_epoch:
            self._leader_epochs.append((self.leader_epoch, chunk.base_offset))
        if self.config.flush == "ack":
            self._synced_offset = chunk.next_offset
        self._unnoted_bytes += chunk.size
        if self._unnoted_bytes >= CHECKPOINT_BYTES:
            self._unnoted_bytes = 0
            self._noting = self._loop.create_task(self._note_end(), name=self._note_name)
        self._queue.written(chunk)
        self.producers.settle(chunk.next_offset)
        self.high_watermark.advance(chunk.next_offset)

    async def _note_end(self) -> None:
        """Beside the rounds: they go on meanwhile."""
        try:
            await self._start.note_end()
        except SyncFailedError as error:
            self.sync_failed(str(error))
        except OSError as error:  # the log is whole without it, and maintenance tries again
            log.warning("checkpoint_not_written", directory=self.directory, error=str(error))

    def _write_refused(self, chunk: Chunk, error: WriteRefusedError) -> None:
        log.error("append_failed", directory=self.directory, reason=str(error), usable=error.usable)
        if error.usable:
            self.refuse_all(
                LogWriteError(f"nothing was appended to {self.directory}: {error}. Make room and send it again"),
                go_on=True,
                roll=chunk.roll,
            )
        else:
            self.trusted = False
            self.refuse_all(
                LogWriteError(
                    f"{self.directory} takes no appends any more: {error}, and the file could not be cut back. "
                    "Mend the disk and restart the daemon"
                )
            )

    def sync_failed(self, reason: str) -> None:
        """Nobody knows what is on disk: ends the process."""
        self.trusted = False
        reason = f"a sync of {self.directory} failed: {reason}. What is on disk is unknown until the log is recovered"
        log.critical("sync_failed", directory=self.directory, reason=reason)
        self._on_fatal(reason)
        self.refuse_all(LogWriteError(reason))

    def refuse_all(self, error: LogError, go_on: bool = False, roll: bool = False) -> None:
        """Drops the queue, gives its offsets back and tells who waits. The log serves on only if ``go_on``."""
        if not go_on:
            self.refusal = error
        self._reset_queue(roll)
        if not self.trusted:  # what may be on disk beyond that will never be acknowledged, and nothing may wait for it
            self._queue.end_offset = self.high_watermark.offset
        rolls, self._rolls = self._rolls, {}
        for done in rolls.values():
            _settle(done)
        self.high_watermark.fail(error)

    def _reset_queue(self, roll: bool) -> None:
        active = self._segments.active
        indexed = active.index.last_position if active.index else 0
        self.producers.undo()
        self._queue.reset(active.next_offset, active.size, indexed, active.max_timestamp, roll)

    async def flush(self) -> None:
        """See ``PartitionLog.flush``."""
        if self.end_offset > self.high_watermark.offset:
            future: asyncio.Future[Exception | None] = self._loop.create_future()
            self.high_watermark.when_reached(
                self.end_offset, lambda error: None if future.done() else future.set_result(error)
            )
            error = await future
            if error is not None:
                raise error
        if self._synced_offset < self.high_watermark.offset:
            await self._sync_active()

    async def _sync_active(self) -> None:
        segment, offset = self._segments.active, self.high_watermark.offset
        assert segment.file is not None
        segment.acquire()
        try:
            await self._disk.run(sync, segment.file)
        except SyncFailedError as error:
            self.sync_failed(str(error))
            raise LogWriteError(str(error)) from error
        finally:
            segment.release()
        self._synced_offset = max(self._synced_offset, offset)

    async def wait_idle(self) -> None:
        """Returns once no round is under way or about to begin."""
        while self._flushing:
            await asyncio.sleep(0)
            if self._flush_task is not None and not self._flush_task.done():
                await asyncio.wait((self._flush_task,))


def _settle(done: asyncio.Future[None] | None) -> None:
    if done is not None and not done.done():
        done.set_result(None)
