"""One partition's log: appends by group commit, reads, look-ups by time, compaction.

Everything here runs on the event loop's thread and decides; what touches the disk is handed to the pool one call at a time
(``writing``, ``reading``, ``recovery``, ``cleaner``).

Group commit: an append is put into the queue, and the first one asks the loop to start a round once everything that came
in the same turn is queued too. A round writes and syncs all that is queued; what arrives meanwhile is the next round's.
Nothing waits for a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.disk import Disk
from coordinator.log.append_queue import AppendQueue, Chunk
from coordinator.log.cleaner import Cleaner
from coordinator.log.compaction import CompactionResult
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogClosedError, LogDamagedError, LogError, LogWriteError, OffsetNotInLogError
from coordinator.log.high_watermark import DurableCallback, HighWatermark
from coordinator.log.index import SparseIndex
from coordinator.log.producers import BEFORE_RESTART
from coordinator.log.reading import find_timestamp, read_batches
from coordinator.log.recovery import NOTHING, Checkpoint, Recovered, open_directory, write_checkpoint
from coordinator.log.segment import Segment
from coordinator.log.segment_list import SegmentList
from coordinator.log.writing import Round, SyncFailedError, WriteRefusedError, sync, write_round
from coordinator.log_output import get_logger
from protocol.errors import ProtocolError
from protocol.record_batch import BatchHeader

log = get_logger()

_MAX_HINTS: Final = 128


class PartitionLog:
    """The log of one partition; open it with ``PartitionLog.open``.

    Offsets below ``high_watermark`` are acknowledged: with ``flush="ack"`` they are on disk. ``end_offset`` is the next
    offset to be given and counts appends that are still under way.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        recovered: Recovered,
        leader_epoch: int,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._segments = SegmentList(disk, directory, config, recovered.segments)
        self._leader_epochs = recovered.leader_epochs
        self._checkpoint = recovered.checkpoint or NOTHING
        self.producers = recovered.producers
        self._queue = AppendQueue(config)
        self._reset_queue(roll=False)
        self._high_watermark = HighWatermark(self.end_offset)
        self._synced_offset = self.end_offset
        self._cleaner = Cleaner(disk, directory, config, self._segments, recovered.clean_until, on_fatal)
        self._refusal: LogError | None = None
        self._closed = False
        self._trusted = True
        self._flushing = False
        self._flush_task: asyncio.Task[None] | None = None
        # Where the next read of a reader goes on: sequential readers need no index.
        self._hints: dict[int, tuple[Segment, int]] = {}

    @classmethod
    async def open(
        cls, disk: Disk, directory: str, config: LogConfig, *, leader_epoch: int, on_fatal: Callable[[str], None]
    ) -> PartitionLog:
        """Opens the log in ``directory``, which ``directories.make_logs`` has made, and recovers it.

        ``on_fatal`` is called with the reason when nobody can know any more what is on disk; it must end the process.
        Raises ``LogDamagedError`` when anything but a torn tail is wrong with what is there or it is missing, and
        ``OSError``.
        """
        recovered = await disk.run(open_directory, disk.storage, directory, config)
        return cls(disk, directory, config, recovered, leader_epoch, on_fatal)

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self._segments.start_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be given: what is being written counts."""
        return self._queue.end_offset

    @property
    def high_watermark(self) -> int:
        """The offset behind the last acknowledged record. It never falls while the log is open."""
        return self._high_watermark.offset

    @property
    def queued_bytes(self) -> int:
        """Bytes appended but not yet written."""
        return self._queue.queued_bytes

    @property
    def dirty_ratio(self) -> float:
        """The share of the closed segments' bytes that has not been compacted yet, 0 to 1."""
        return self._cleaner.dirty_ratio

    # Appending

    def append(self, batch: bytes, header: BatchHeader, now_ms: int = BEFORE_RESTART) -> int:
        """Gives the batch its offsets, queues it and returns its base offset; ``header`` is the batch's own, checked.

        ``producers.find`` has said before that an idempotent producer's batch comes next; ``now_ms`` is the wall time at
        which its producer was heard of. Nothing is acknowledged before ``when_durable(end_offset)`` says so. Raises
        ``LogClosedError``, or ``LogWriteError`` when the log has been closed to writes, and ``ValueError`` when header and
        batch do not belong together.
        """
        if self._refusal is not None:
            raise self._refusal
        if len(batch) != header.length:
            raise ValueError(f"the batch has {len(batch)} bytes, its header says {header.length}")
        base_offset = self._queue.add(header, batch, self.producers)
        if header.producer_id >= 0:
            self.producers.note(header, base_offset, now_ms)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._start_flush)
        return base_offset

    def when_durable(self, offset: int, callback: DurableCallback) -> None:
        """Calls back on the loop, in order of offsets, once ``high_watermark >= offset``; at once if it already is.

        The callback's argument is ``None``, or the ``LogWriteError`` or ``LogClosedError`` that kept it from happening.
        """
        if self._refusal is not None and offset > self.end_offset:
            callback(self._refusal)
        else:
            self._high_watermark.when_reached(offset, callback)

    def on_advance(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls ``listener`` after each move of the high watermark. Returns what removes it again, at any time."""
        return self._high_watermark.on_advance(listener)

    def _start_flush(self) -> None:
        self._flush_task = self._loop.create_task(self._flush_rounds(), name=f"flush {self.directory}")

    async def _flush_rounds(self) -> None:
        try:
            while self._queue:
                chunk = self._queue.take()
                try:
                    segment = await self._disk.run(write_round, self._round(chunk))
                except WriteRefusedError as error:
                    self._write_refused(chunk, error)
                except SyncFailedError as error:
                    self._sync_failed(str(error))
                else:
                    self._committed(chunk, segment)
        except BaseException as error:  # the loop is being torn down, or a fault of ours: no append may hang on it
            self._trusted = False
            self._refuse_all(LogClosedError(f"the writer of {self.directory} ended: {error!r}"))
            raise
        finally:
            self._flushing = False

    def _round(self, chunk: Chunk) -> Round:
        active = self._segments.active
        assert active.index is not None
        epochs = self._leader_epochs
        known = bool(epochs) and epochs[-1][0] == self.leader_epoch
        return Round(
            storage=self._disk.storage,
            directory=self.directory,
            config=self.config,
            segment=active,
            index=active.index,
            chunk=chunk,
            start_offset=self.start_offset,
            durable_offset=self._synced_offset,
            leader_epoch=self.leader_epoch,
            leader_epochs=None if known else [*epochs, (self.leader_epoch, chunk.base_offset)],
        )

    def _committed(self, chunk: Chunk, segment: Segment) -> None:
        if chunk.roll:
            segment.index = SparseIndex(self.config.index_interval_bytes)
            self._segments.roll(segment)
            self._synced_offset = chunk.base_offset
        assert segment.index is not None
        for entry in chunk.entries:
            segment.index.add_entry(*entry)
        segment.size += chunk.size
        segment.next_offset = chunk.next_offset
        segment.max_timestamp = segment.index.max_timestamp = chunk.max_timestamp
        if not self._leader_epochs or self._leader_epochs[-1][0] != self.leader_epoch:
            self._leader_epochs.append((self.leader_epoch, chunk.base_offset))
        if self.config.flush == "ack":
            self._synced_offset = chunk.next_offset
        self._queue.written(chunk)
        self.producers.settle(chunk.next_offset)
        self._high_watermark.advance(chunk.next_offset)

    def _write_refused(self, chunk: Chunk, error: WriteRefusedError) -> None:
        log.error("append_failed", directory=self.directory, reason=str(error), usable=error.usable)
        if error.usable:
            self._refuse_all(
                LogWriteError(f"nothing was appended to {self.directory}: {error}. Make room and send it again"),
                go_on=True,
                roll=chunk.roll,
            )
        else:
            self._trusted = False
            self._refuse_all(
                LogWriteError(
                    f"{self.directory} takes no appends any more: {error}, and the file could not be cut back. "
                    "Mend the disk and restart the daemon"
                )
            )

    def _sync_failed(self, reason: str) -> None:
        self._trusted = False
        reason = f"a sync of {self.directory} failed: {reason}. What is on disk is unknown until the log is recovered"
        log.critical("sync_failed", directory=self.directory, reason=reason)
        self._on_fatal(reason)
        self._refuse_all(LogWriteError(reason))

    def _refuse_all(self, error: LogError, go_on: bool = False, roll: bool = False) -> None:
        """Drops the queue, gives its offsets back and tells who waits. The log serves on only if ``go_on``."""
        if not go_on:
            self._refusal = error
        self._reset_queue(roll)
        self._high_watermark.fail(error)

    def _reset_queue(self, roll: bool) -> None:
        active = self._segments.active
        indexed = active.index.last_position if active.index else 0
        self.producers.undo()
        self._queue.reset(active.next_offset, active.size, indexed, active.max_timestamp, roll)

    # Reading

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches of one segment from the one that covers ``offset``, which may begin below it.

        At most ``max_bytes``, but at least one batch; never beyond the high watermark, where the result is ``b""``.
        Headers are checked here, bodies by whoever decodes them. Raises ``OffsetNotInLogError`` outside of
        ``[start_offset, end_offset]``, ``LogDamagedError`` for a damaged header, ``LogClosedError`` and ``OSError``.
        """
        self._check_open()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetNotInLogError(offset, self.start_offset, self.end_offset)
        if offset >= self.high_watermark:
            return b""
        segment = await self._segments.acquire(offset)
        try:
            assert segment.file is not None
            assert segment.index is not None
            hinted, position = self._hints.pop(offset, (None, 0))
            if hinted is not segment:
                position = segment.index.position_for_offset(offset)
            found = await self._disk.run(
                read_batches, segment.file, position, segment.size, offset, max_bytes, self.high_watermark
            )
        except ProtocolError as error:
            raise LogDamagedError(self.directory, f"{segment.path}, offset {offset}", str(error)) from error
        finally:
            segment.release()
        if not segment.retired:
            self._hints[found.next_offset] = (segment, found.next_position)
            if len(self._hints) > _MAX_HINTS:
                del self._hints[next(iter(self._hints))]
        return found.data

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after ``timestamp_ms`` below the high watermark, or ``None``.

        Raises ``LogDamagedError`` for a damaged batch on the way, ``LogClosedError`` and ``OSError``.
        """
        self._check_open()
        offset, end = self.start_offset, self.high_watermark
        while offset < end:
            segment = self._segments.covering(offset)
            if segment.max_timestamp >= timestamp_ms:
                segment = await self._segments.acquire(offset)
                try:
                    assert segment.file is not None
                    assert segment.index is not None
                    position = segment.index.position_for_timestamp(timestamp_ms)
                    found = await self._disk.run(find_timestamp, segment.file, position, segment.size, timestamp_ms)
                except ProtocolError as error:
                    raise LogDamagedError(self.directory, segment.path, str(error)) from error
                finally:
                    segment.release()
                if found is not None:
                    return found
            offset = segment.next_offset
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(f"the log {self.directory} is closed")

    # Upkeep

    async def compact(self, now_ms: int) -> CompactionResult | None:
        """Compacts closed segments by key if enough of them is dirty; ``None`` when it is not worth it or cannot be done.

        Reads and appends go on meanwhile. See ``coordinator.log.cleaner``. Raises ``LogDamagedError`` when a segment is
        damaged, ``LogClosedError``.
        """
        self._check_open()
        return await self._cleaner.compact(now_ms)

    async def flush(self) -> None:
        """Returns once everything appended so far is on disk, whatever ``config.flush`` says.

        Raises ``LogWriteError`` when it could not be written.
        """
        self._check_open()
        await self._flush()

    async def _flush(self) -> None:
        if self.end_offset > self.high_watermark:
            future: asyncio.Future[Exception | None] = self._loop.create_future()
            self._high_watermark.when_reached(
                self.end_offset, lambda error: None if future.done() else future.set_result(error)
            )
            error = await future
            if error is not None:
                raise error
        if self._synced_offset < self.high_watermark:
            await self._sync_active()

    async def _sync_active(self) -> None:
        segment, offset = self._segments.active, self.high_watermark
        assert segment.file is not None
        segment.acquire()
        try:
            await self._disk.run(sync, segment.file)
        except SyncFailedError as error:
            self._sync_failed(str(error))
            raise LogWriteError(str(error)) from error
        finally:
            segment.release()
        self._synced_offset = max(self._synced_offset, offset)

    async def close(self) -> None:
        """Makes durable what is queued, notes the end in the checkpoint and closes the files. Closing twice is fine.

        Appends are refused from the beginning; running reads finish; a compaction ends at its next step.
        """
        if not await self._stop():
            return
        try:
            await self._flush()
        except LogError as error:
            log.warning("closed_without_flush", directory=self.directory, reason=str(error))
        if self._trusted:
            active = self._segments.active
            checkpoint = Checkpoint(self.start_offset, active.base_offset, active.size, active.next_offset)
            try:
                if checkpoint != self._checkpoint:  # a thousand idle logs close at no cost
                    await self._disk.run(write_checkpoint, self._disk.storage, self.directory, checkpoint)
            except OSError as error:  # the log is whole without it; only the proof of its end is weaker
                log.warning("checkpoint_not_written", directory=self.directory, error=str(error))
        self._segments.close()

    async def discard(self) -> None:
        """Fails what is queued and closes the files, for a log whose directory is to be removed."""
        if not await self._stop():
            return
        self._trusted = False
        self._refuse_all(LogClosedError(f"the log {self.directory} is being deleted"))
        if self._flush_task is not None and not self._flush_task.done():
            await asyncio.wait((self._flush_task,))
        self._segments.close()

    async def _stop(self) -> bool:
        first, self._closed = not self._closed, True
        if self._refusal is None:
            self._refusal = LogClosedError(f"the log {self.directory} is closed")
        await self._cleaner.stop()
        return first
