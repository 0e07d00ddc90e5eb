"""Appends by group commit: the queue of one log, the commits that write it, and what waits for them.

An append is queued, and the first one asks the loop to begin a group commit once everything that came in the same turn is
queued too. A commit writes and syncs all that is queued for one segment; what arrives meanwhile is the next one's. Nothing
waits for a timer.

``AppendQueue`` cuts what is queued into chunks of one segment each, ``Appender`` takes one after the other and moves how
far the log is on disk, or says what failed: all on the loop's thread. ``write`` blocks: it runs in the pool of the disk, and
touches nothing of the open log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.reserve import Reserve
from coordinator.filesystem.storage import File, Storage, WriteInDoubtError
from coordinator.log.checkpoints import Checkpoint, write_leader_epochs
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogClosedError, LogError, LogWriteError
from coordinator.log.following import ReplicatedBatch
from coordinator.log.index import NO_TIMESTAMP, SparseIndex
from coordinator.log.leader_epochs import NO_EPOCH, LeaderEpochs
from coordinator.log.log_start_offset import LogStartOffset
from coordinator.log.producers import Producers
from coordinator.log.progress import Progress
from coordinator.log.rolling import Roll, roll_segment
from coordinator.log.segment import Segment
from coordinator.log.segment_list import SegmentList
from coordinator.log_output import get_logger
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.record_batch import HEADER_BYTES, BatchHeader, restamped

log = get_logger()

CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""After so many bytes the end of a log is written down again, whatever the time."""

STORED_BYTES: Final = 1024 * 1024
"""Chunks up to this size are at hand for followers while they are being synced."""

_PRODUCER_BYTES: Final = 64
"""What a snapshot has of a producer, about."""


@dataclass(slots=True)
class Chunk:
    """Batches that wait to be written into one segment, with what the log has to note when they are."""

    base_offset: int
    next_offset: int
    roll: Roll | None = None
    """The new segment that begins with this chunk."""
    batches: list[tuple[int, int, bytes | memoryview, bytes | memoryview]] = field(default_factory=list)
    """Base offsets, leader epochs, bytes that begin with the header, and the batches."""
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    """Index entries: base offset, position in the segment, largest timestamp before it in the segment."""
    size: int = 0
    max_timestamp: int = NO_TIMESTAMP
    """Largest timestamp of the segment, this chunk included."""
    last_ms: int = NO_TIMESTAMP
    """Latest wall time of an append."""
    ends: list[tuple[int, Sequence[TransactionEnd]]] = field(default_factory=list)
    """Base offsets of its control batches, and what each ends."""
    is_written: bool = False
    """Whether the log knows that it is in the file."""
    written: Sequence[bytes | memoryview] = ()
    """What is in the file, in pieces, where followers may ask for it before it is on disk."""
    _stored: bytes = b""

    @property
    def stored(self) -> bytes:
        """The same in one piece: made for the first who asks, as in bulk hardly any follower comes before the sync ends."""
        if not self._stored:
            self._stored = b"".join(self.written)
        return self._stored


class AppendQueue:
    """Knows how full the active segment will be once everything queued is written, and where the next one begins. Pure."""

    __slots__ = ("_indexed", "_max_timestamp", "_roll", "_size", "chunks", "config", "end_offset", "queued_bytes")

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.chunks: deque[Chunk] = deque()
        """What is to be written, in order. A chunk that is taken out is given back with ``written`` or ``reset``."""
        self.end_offset = 0
        self.queued_bytes = 0
        self._roll = False
        self._size = 0
        self._indexed = 0
        self._max_timestamp = NO_TIMESTAMP

    def add(
        self,
        batch: bytes | memoryview,
        header: BatchHeader,
        leader_epoch: int,
        producers: Producers,
        now_ms: int = NO_TIMESTAMP,
        head: bytes | None = None,
    ) -> int:
        """Queues a batch and returns the offset it will have; ``producers`` remembers all batches before it.

        ``head`` are the bytes of the header where they are not those of the batch.
        """
        base_offset, length, config = self.end_offset, len(batch), self.config
        # A segment begins with what is remembered of producers: not before that is less than what the last one holds.
        if self._roll or (
            self._size
            and self._size + length > config.segment_bytes
            and self._size + length > len(producers) * _PRODUCER_BYTES
        ):
            self._begin_segment(producers)
        elif not self.chunks:
            self.chunks.append(Chunk(base_offset, base_offset))
        position = self._size
        chunk = self.chunks[-1]
        if position - self._indexed >= config.index_interval_bytes:
            chunk.entries.append((base_offset, position, self._max_timestamp))
            self._indexed = position
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
        chunk.batches.append((base_offset, leader_epoch, batch if head is None else head, batch))
        chunk.size += length
        chunk.next_offset = self.end_offset = base_offset + header.last_offset_delta + 1
        chunk.max_timestamp = self._max_timestamp
        if now_ms > chunk.last_ms:
            chunk.last_ms = now_ms
        self._size = position + length
        self.queued_bytes += length
        return base_offset

    def roll(self, producers: Producers, frees_room: bool = False) -> bool:
        """Begins a new segment at ``end_offset``, whatever comes next; returns False when the last one will be empty."""
        if not self._size:
            return False
        self._begin_segment(producers, frees_room)
        return True

    def _begin_segment(self, producers: Producers, frees_room: bool = False) -> None:
        self._roll = False
        end = self.end_offset
        self.chunks.append(Chunk(end, end, Roll(end, list(producers), frees_room)))
        self._size = self._indexed = 0
        self._max_timestamp = NO_TIMESTAMP

    def written(self, chunk: Chunk) -> None:
        """The chunk is in the log: its bytes are no longer queued."""
        self.queued_bytes = max(self.queued_bytes - chunk.size, 0)

    def reset(self, active: Segment, roll: bool) -> None:
        """Drops all that is queued and starts from the active segment as it is.

        ``roll`` makes the next batch begin a new segment: a roll that failed may be half done, at just this offset.
        """
        self.chunks.clear()
        self.end_offset = active.next_offset
        self.queued_bytes = 0
        self._roll = roll
        self._size = active.size
        self._indexed = active.index.last_position if active.index else 0
        self._max_timestamp = active.max_timestamp


class Appender:
    """Writes one log. ``refusal`` is set once nothing may be appended any more."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: SegmentList,
        start: LogStartOffset,
        producers: Producers,
        epochs: LeaderEpochs,
        flushed: Progress,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.leader_epoch = NO_EPOCH
        """The epoch that appends of a leader get."""
        self.epochs = epochs
        """Those of everything that was appended."""
        self._epochs_noted = True
        """Whether they are on disk."""
        self.refusal: LogError | None = None
        self.trusted = True
        """Whether what is in memory is what is on disk."""
        self.refused_s: tuple[float, float] | None = None
        """When the disk refused a write for the first and the last time since it took one; None when it took the last."""
        self.queue = AppendQueue(config)
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._segments = segments
        self._start = start
        self._producers = producers
        self.queue.reset(segments.active, roll=False)
        self.flushed = flushed
        self.committed = flushed
        """The high watermark; the same where what is on disk is committed thereby."""
        self.on_written: Callable[[], None] | None = None
        """Called when something is written and perhaps not on disk yet; without it nobody learns of that in between."""
        self.before_append: Callable[[], None] | None = None
        """Called with the first append behind a time in which all was written."""
        self.unsynced: Chunk | None = None
        """What is written and not on disk yet: followers ask for it now, and need no read for it."""
        self._synced_offset = self.queue.end_offset
        self._committing = False
        self._commit_task: asyncio.Task[None] | None = None
        self._commit_name = f"group-commit {directory}"
        self._unnoted_bytes = 0
        """Bytes written since the checkpoint was."""
        self._noting: asyncio.Task[None] | None = None
        self._note_name = f"checkpoint {directory}"
        self._rolls: dict[int, asyncio.Future[None]] = {}
        """What waits for the segment that begins at an offset."""

    @property
    def synced(self) -> bool:
        """Whether all that is acknowledged is on disk, whatever ``config.flush`` says."""
        return self._synced_offset >= self.flushed.offset

    def append(self, batch: bytes, header: BatchHeader, now_ms: int, head: bytes | None = None) -> int:
        """Queues a batch and returns its base offset; ``head`` as for ``AppendQueue.add``. Raises ``refusal``."""
        if self.refusal is not None:
            raise self.refusal
        base_offset = self.queue.add(batch, header, self.leader_epoch, self._producers, now_ms, head)
        if not self._committing:
            self._begin()
        return base_offset

    def append_stamped(self, batch: bytes, header: BatchHeader, now_ms: int) -> int:
        """As ``append``, of a batch whose records get another time than its own bytes say: ``header`` has it."""
        return self.append(batch, header, now_ms, header.pack())

    def begin_epoch(self, leader_epoch: int) -> None:
        """Appends are of this epoch from now on; nothing may be queued. It is on disk before the first of them.

        Raises ``ValueError`` when the last record is of a later epoch.
        """
        assert self.queue.end_offset == self._segments.active.next_offset, f"{self.directory} has appends under way"
        if self.epochs.begin(leader_epoch, self.queue.end_offset):
            self._epochs_noted = False
        self.leader_epoch, self.refused_s = leader_epoch, None

    def append_as_follower(
        self, batches: Sequence[ReplicatedBatch], epochs: Sequence[tuple[int, int]], now_ms: int
    ) -> None:
        """Queues batches of a leader that continue the log, and the epochs of their offsets. Raises ``refusal``."""
        if self.refusal is not None:
            raise self.refusal
        self.leader_epoch = NO_EPOCH
        for epoch, start in epochs:
            if self.epochs.begin(epoch, start):
                self._epochs_noted = False
        producers = self._producers
        for header, batch, ends in batches:
            base_offset = self.queue.add(batch, header, header.leader_epoch, producers, now_ms)
            if header.producer_id >= 0 and header.base_sequence >= 0:
                producers.note(header, base_offset, now_ms)
            if ends:
                self.queue.chunks[-1].ends.append((base_offset, ends))
                for end in ends:
                    producers.end(end.producer_id, end.producer_epoch, base_offset)
        if not self._committing:
            self._begin()

    def append_ends(self, ends: Sequence[TransactionEnd], now_ms: int) -> None:
        """Queues a control batch with end markers of open transactions. Raises ``refusal``."""
        encoded = encode_control_batch(ends, now_ms)
        base_offset = self.append(b"".join(encoded.pieces()), encoded.header, now_ms)
        self.queue.chunks[-1].ends.append((base_offset, ends))
        for end in ends:
            self._producers.end(end.producer_id, end.producer_epoch, base_offset)

    async def roll(self, frees_room: bool = False) -> None:
        """Closes the active segment now, unless it is empty, and returns when that is done or has failed.

        With ``frees_room`` it is about to be removed: a disk that is full gives up its reserve for that.
        It waits for the commits before the new segment, and for none of the appends that come meanwhile: those of a busy
        log never end.
        """
        if self.refusal is not None or not self.queue.roll(self._producers, frees_room):
            return
        done = self._rolls[self.queue.end_offset] = self._loop.create_future()
        if not self._committing:
            self._begin()
        await done

    def _begin(self) -> None:
        self._committing = True
        if self.before_append is not None:
            self.before_append()
        self._commit_task = self._loop.create_task(self._commit_all(), name=self._commit_name)

    async def _commit_all(self) -> None:
        chunks = self.queue.chunks
        try:
            while chunks:
                try:
                    async with self._disk.commits:
                        if not chunks:
                            break  # dropped meanwhile
                        chunk = chunks.popleft()
                        segment = await self._commit(chunk)
                except WriteRefusedError as error:
                    self._write_refused(chunk, error)
                except WriteInDoubtError as error:
                    self.sync_failed(error)
                else:
                    self._written(chunk, segment)
                    self._flushed(chunk)
        except BaseException as error:  # the loop is being torn down, or a fault of ours: no append may hang on it
            self.trusted = False
            if isinstance(error, Exception):  # only a restart makes memory what is on disk again
                self._on_fatal(f"the writer of {self.directory} failed unexpectedly: {error!r}")
            self.refuse_all(LogClosedError(f"the writer of {self.directory} ended: {error!r}"))
            raise
        finally:
            self._committing = False

    async def _commit(self, chunk: Chunk) -> Segment:
        if chunk.roll is None:
            return await self._disk.run(write, self._group_commit(chunk))
        async with self._start.checkpoint_lock:
            return await self._disk.run(write, self._group_commit(chunk))

    def _group_commit(self, chunk: Chunk) -> GroupCommit:
        epochs = None
        if not self._epochs_noted and chunk.batches:
            epochs, self._epochs_noted = self.epochs.entries, True
        return GroupCommit(
            storage=self._disk.storage,
            reserve=self._disk.reserve,
            directory=self.directory,
            sync=self.queue.config.flush == "ack",
            segment=self._segments.active,
            chunk=chunk,
            bounds=(self._start.offset, self.committed.offset),
            durable_offset=self._synced_offset if chunk.roll is None else chunk.base_offset,
            leader_epochs=epochs,
            on_written=None if self.on_written is None else partial(self._tell_written, chunk),
        )

    def _tell_written(self, chunk: Chunk, segment: Segment) -> None:
        """In the pool of the disk, between write and sync."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._written, chunk, segment)

    def _written(self, chunk: Chunk, segment: Segment) -> None:
        """The chunk is in the file: followers may have it, and nothing of it can be taken back."""
        if chunk.is_written:
            return
        if chunk.roll is not None:
            segment.index = SparseIndex(self.queue.config.index_interval_bytes)
            self._segments.roll(segment)
            self._synced_offset = chunk.base_offset
            self._start.noted = Checkpoint(self._start.offset, chunk.base_offset, 0, chunk.base_offset)
            self._unnoted_bytes = 0
            _settle(self._rolls.pop(chunk.base_offset, None))
        assert segment.index is not None
        for entry in chunk.entries:
            segment.index.add_entry(*entry)
        for base_offset, ends in chunk.ends:
            segment.index.aborted.note_ends(base_offset, ends)
        if chunk.last_ms >= 0:
            segment.last_ms = max(segment.last_ms, chunk.last_ms)
            if not segment.size:
                segment.first_ms = chunk.last_ms
        segment.size += chunk.size
        segment.next_offset = chunk.next_offset
        segment.max_timestamp = segment.index.max_timestamp = chunk.max_timestamp
        self._unnoted_bytes += chunk.size
        if self._unnoted_bytes >= CHECKPOINT_BYTES:
            self._unnoted_bytes = 0
            self._noting = self._loop.create_task(self._note_end(), name=self._note_name)
        self.queue.written(chunk)
        if self._producers.unsettled:
            self._producers.settle(chunk.next_offset)
        chunk.is_written, self.refused_s = True, None
        if self.on_written is not None:
            self.unsynced = chunk
            self.on_written()

    def _flushed(self, chunk: Chunk) -> None:
        """The chunk is on disk, as far as ``config.flush`` asks."""
        self.unsynced = None
        if self.queue.config.flush == "ack":
            self._synced_offset = chunk.next_offset
        if self.committed is self.flushed and self._producers.transactions.unacknowledged:
            self._producers.transactions.acknowledge(chunk.next_offset)
        self.flushed.advance(chunk.next_offset)

    async def _note_end(self) -> None:
        """Beside the commits: they go on meanwhile."""
        try:
            await self._start.note_end()
        except WriteInDoubtError as error:
            self.sync_failed(error)
        except OSError as error:  # the log is whole without it, and maintenance tries again
            log.warning("checkpoint_not_written", directory=self.directory, error=str(error))

    def _write_refused(self, chunk: Chunk, error: WriteRefusedError) -> None:
        log.error("append_failed", directory=self.directory, reason=str(error), usable=error.usable)
        if isinstance(error.__cause__, OSError):
            now_s = self._loop.time()
            self.refused_s = (now_s if self.refused_s is None else self.refused_s[0]), now_s
        if error.usable:
            self.refuse_all(
                LogWriteError(f"nothing was appended to {self.directory}: {error}. Make room and send it again"),
                go_on=True,
                roll=chunk.roll is not None,
            )
        else:
            self.trusted = False
            self.refuse_all(
                LogWriteError(
                    f"{self.directory} takes no appends any more: {error}, and the file could not be cut back. "
                    "Mend the disk and restart the daemon"
                )
            )

    def sync_failed(self, error: WriteInDoubtError) -> LogWriteError:
        """It is unknown what is on disk: ends the process. Returns what appends are refused with."""
        self.trusted = False
        reason = f"a sync of {self.directory} failed: {error}. What is on disk is unknown until the log is recovered"
        log.critical("sync_failed", directory=self.directory, reason=reason)
        self._on_fatal(reason)
        refusal = LogWriteError(reason)
        self.refuse_all(refusal)
        return refusal

    def refuse_all(self, error: LogError, go_on: bool = False, roll: bool = False) -> None:
        """Drops the queue, gives its offsets back and fails what waits for them. The log serves on only if ``go_on``."""
        if not go_on:
            self.refusal = error
        self._reset_queue(roll)
        if not self.trusted:  # what may be on disk beyond that will never be acknowledged, and nothing may wait for it
            self.queue.end_offset = self.flushed.offset
        rolls, self._rolls = self._rolls, {}
        for done in rolls.values():
            _settle(done)
        self.flushed.fail(error)
        if (
            self.committed is not self.flushed
        ):  # what is written and not committed yet may be, as long as the log serves
            self.committed.fail(error, self.queue.end_offset if go_on else 0)

    def _reset_queue(self, roll: bool) -> None:
        self._producers.undo()
        self.queue.reset(self._segments.active, roll)
        # What the disk has of them may go beyond the end now, and what begins there begins anew.
        self._epochs_noted = False
        self.epochs.cut(self.queue.end_offset)
        if self.leader_epoch != NO_EPOCH:
            self.epochs.begin(self.leader_epoch, self.queue.end_offset)

    async def flush(self) -> None:
        """See ``PartitionLog.flush``."""
        if self.queue.end_offset > self.flushed.offset:
            future: asyncio.Future[Exception | None] = self._loop.create_future()
            self.flushed.when_reached(
                self.queue.end_offset, lambda error: None if future.done() else future.set_result(error)
            )
            error = await future
            if error is not None:
                raise error
        if self._synced_offset < self.flushed.offset:
            await self._sync_active()

    async def _sync_active(self) -> None:
        segment, offset = self._segments.active, self.flushed.offset
        assert segment.file is not None
        segment.acquire()
        try:
            await self._disk.run(segment.file.sync)
        except WriteInDoubtError as error:
            raise self.sync_failed(error) from error
        finally:
            segment.release()
        self._synced_offset = max(self._synced_offset, offset)

    async def wait_idle(self) -> None:
        """Returns once no commit is under way or about to begin."""
        while self._committing:
            await asyncio.sleep(0)
            if self._commit_task is not None and not self._commit_task.done():
                await asyncio.wait((self._commit_task,))


def _settle(done: asyncio.Future[None] | None) -> None:
    if done is not None and not done.done():
        done.set_result(None)


# Blocking, in the pool of the disk


class WriteRefusedError(Exception):
    """The disk took nothing of this commit. ``usable`` tells whether the file is as it was before."""

    def __init__(self, reason: str, usable: bool) -> None:
        super().__init__(reason)
        self.usable = usable


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """Everything that a group commit needs, copied so that the log may go on meanwhile."""

    storage: Storage
    reserve: Reserve
    directory: str
    sync: bool
    """Whether acknowledged means on disk."""
    segment: Segment
    chunk: Chunk
    bounds: tuple[int, int]
    """Where the log begins, and the high watermark."""
    durable_offset: int
    """Everything below it is on disk when the chunk is written."""
    leader_epochs: list[tuple[int, int]] | None
    """The new list if the chunk is the first behind the beginning of one."""
    on_written: Callable[[Segment], None] | None
    """Is told, before the sync, that the chunk is in the file."""


def write(commit: GroupCommit) -> Segment:
    """Writes the chunk and makes it durable if the configuration says so. Returns the segment it went into.

    Raises ``WriteRefusedError`` after having cut the file back, ``WriteInDoubtError`` when a sync failed.
    """
    segment = commit.segment
    try:
        if commit.leader_epochs is not None:
            write_leader_epochs(commit.storage, commit.directory, commit.leader_epochs)
        if (roll := commit.chunk.roll) is not None:
            segment = roll_segment(commit.storage, commit.reserve, commit.directory, segment, roll, commit.bounds)
    except WriteInDoubtError:
        raise
    except Exception as error:
        raise _refused(error, usable=True) from error
    assert segment.file is not None
    try:
        _write_batches(commit, segment, segment.file)
    except BaseException:
        if segment is not commit.segment:
            segment.file.close()
        raise
    return segment


def _write_batches(commit: GroupCommit, segment: Segment, file: File) -> None:
    durable_offset = commit.durable_offset
    pieces: list[bytes | memoryview] = []
    try:
        for base_offset, epoch, head, batch in commit.chunk.batches:
            # Stamped now and not when it was appended: only now is it known what the last commit has made durable.
            pieces.append(restamped(head, base_offset, epoch, base_offset - durable_offset))
            pieces.append(memoryview(batch)[HEADER_BYTES:])
        if pieces:  # a roll may come alone
            file.append(pieces)
    except Exception as error:
        raise _refused(error, usable=_cut_back(file, segment.size)) from error
    if commit.on_written is not None:
        if commit.chunk.size <= STORED_BYTES:
            commit.chunk.written = pieces
        commit.on_written(segment)
    if commit.sync:
        file.sync()


def _refused(error: Exception, usable: bool) -> WriteRefusedError:
    """What is raised when ``error`` kept a chunk from being written: of the disk, or of this program.

    A batch that meets a fault of this program is refused as one that the disk refuses, so that the log serves on.
    """
    if isinstance(error, OSError):
        return WriteRefusedError(str(error), usable)
    log.error("append_failed_unexpectedly", exc_info=error)
    return WriteRefusedError(f"an unexpected error, which the daemon's log has: {error!r}", usable)


def _cut_back(file: File, size: int) -> bool:
    try:
        file.truncate(size)
    except OSError:
        return False
    file.sync()
    return True
