"""One partition's log: appends by group commit, reads, look-ups by time, compaction, retention.

Everything here runs on the event loop's thread and decides; what touches the disk is handed to the pool one call at a time.
``group_commit`` writes, ``reader`` reads, ``recovery`` opens, ``cleaner`` compacts, ``retention`` and ``log_start_offset``
delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import Storage, WriteInDoubtError
from coordinator.log.acknowledged import Acknowledged
from coordinator.log.checkpoints import LEADER_EPOCHS, NOTHING
from coordinator.log.cleaner import Begin, Cleaner
from coordinator.log.compaction import CompactionResult
from coordinator.log.compaction_process import local_work
from coordinator.log.config import LogConfig
from coordinator.log.directories import tidied
from coordinator.log.errors import (
    LogClosedError,
    LogDamagedError,
    LogError,
    LogTruncatedError,
    LogWriteError,
    OffsetNotInLogError,
)
from coordinator.log.following import ReplicatedBatch
from coordinator.log.group_commit import Appender
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.leader_epochs import LeaderEpochs, check_continues
from coordinator.log.log_start_offset import LogStartOffset
from coordinator.log.producers import BEFORE_RESTART, AppendResult, Snapshot, Write, WrittenBatch, append_once_each
from coordinator.log.reader import LogReader
from coordinator.log.recovery import Recovered, open_directory
from coordinator.log.retention import goes_when_closed, is_due_to_close, start_after_retention
from coordinator.log.segment_list import OpenFiles, SegmentList
from coordinator.log.transactions import OpenTransaction
from coordinator.log.truncation import begin_anew, truncate
from coordinator.log_output import get_logger
from protocol.control_batch import TransactionEnd
from protocol.record_batch import BatchHeader

log = get_logger()


class PartitionLog(Acknowledged):
    """The log of one partition; open it with ``PartitionLog.open``.

    ``end_offset`` is the next offset to be given: appends that are under way count.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        recovered: Recovered,
        leader_epoch: int | None,
        on_fatal: Callable[[str], None],
        on_new_producer: Callable[[], None] | None,
        open_files: OpenFiles,
        begin_compaction: Begin = local_work,
    ) -> None:
        self.directory = directory
        self.config = config
        self._disk = disk
        self._on_fatal = on_fatal
        self._on_new_producer = on_new_producer
        self._open_files = open_files
        self._begin_compaction = begin_compaction
        super().__init__(recovered.segments[-1].next_offset)
        self._on_written: Callable[[], None] | None = None
        self._before_append: Callable[[], None] | None = None
        self._closed = False
        self._unreadable: LogError | None = None
        """Why nothing can be read: the files are being changed, or could not be."""
        self._changing = asyncio.Lock()
        self.retention_fault = ""
        """Why the last look of retention failed, as log maintenance has noted; "" when it did not."""
        self._take_over(recovered)
        if leader_epoch is not None:
            self._appender.begin_epoch(leader_epoch)

    def _take_over(self, recovered: Recovered) -> None:
        """Makes what was found on disk the log, when it is opened and whenever its files were changed."""
        disk, directory, config = self._disk, self.directory, self.config
        self.producers = recovered.producers
        segments = self._segments = SegmentList(disk, directory, config, recovered.segments, self._open_files)
        self._reader = LogReader(disk, directory, self._segments)
        self._cleaner = Cleaner(
            disk,
            directory,
            config,
            self._segments,
            self.producers,
            lambda: self.last_stable_offset,
            recovered.clean_until,
            self._on_fatal,
            self._begin_compaction,
        )
        checkpoint, epochs = recovered.checkpoint or NOTHING, recovered.leader_epochs
        self._start = LogStartOffset(
            disk, directory, segments, recovered.start_offset, checkpoint, recovered.clean_end, self._cleaner.is_running
        )
        self._appender = Appender(
            disk, directory, config, segments, self._start, self.producers, epochs, self.flushed, self._on_fatal
        )
        self._appender.on_written, self._appender.before_append = self._on_written, self._before_append
        self._appender.committed = self.committed

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        leader_epoch: int | None,
        on_fatal: Callable[[str], None],
        on_new_producer: Callable[[], None] | None = None,
        open_files: OpenFiles | None = None,
        begin_compaction: Begin = local_work,
        is_new: bool = False,
    ) -> PartitionLog:
        """Opens the log in ``directory``, which ``directories.make_logs`` has made, and recovers it.

        It begins with ``leader_epoch``, if there is one.
        ``on_fatal`` is called with the reason when it is unknown what is on disk; it must end the process.
        ``on_new_producer`` is called when an idempotent producer, or a new epoch of one, has begun to write here.
        ``open_files`` bounds the files of closed segments, for all logs that are given the same. ``begin_compaction`` says
        where the work of a compaction is done. ``is_new``: this process has made the log, and synced its names.
        Raises ``LogDamagedError`` when anything but a torn tail is wrong with what is there or it is missing, and
        ``OSError``.
        """
        opening = partial(open_directory, names_are_durable=is_new)
        recovered = await disk.tend(opening, disk.storage, directory, config)
        active = recovered.segments[-1]
        if leader_epoch is not None and (last := recovered.leader_epochs.at(active.next_offset - 1)) > leader_epoch:
            active.retire()
            why = f"its last record is of epoch {last}, but the leader's epoch is {leader_epoch}"
            raise LogDamagedError(directory, LEADER_EPOCHS, why)
        return cls(
            disk,
            directory,
            config,
            recovered,
            leader_epoch,
            on_fatal,
            on_new_producer,
            open_files or OpenFiles(),
            begin_compaction,
        )

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._start.offset

    @property
    def end_offset(self) -> int:
        """The next offset to be given: what is being written counts."""
        return self._appender.queue.end_offset

    @property
    def written_offset(self) -> int:
        """Below it everything is in the files, and stays unless the log is truncated: followers may have it."""
        return self._segments.active.next_offset

    def when_written(
        self, listener: Callable[[], None] | None, before_append: Callable[[], None] | None = None
    ) -> None:
        """Calls ``listener`` from the next write on each time when ``written_offset`` has moved, before it is on disk.

        As long as there is none a write and its sync are one to the loop, and ``written_offset`` moves behind both.
        ``before_append`` is called with the first append behind a time in which all of the log was written.
        """
        self._on_written = self._appender.on_written = listener
        self._before_append = self._appender.before_append = before_append

    @property
    def clean_until(self) -> int:
        """Below it the log is compacted: tombstones may be gone."""
        return self._cleaner.clean_until

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of the records, those under way included; for others to read."""
        return self._appender.epochs

    @property
    def size(self) -> int:
        """Bytes on disk, what lies below the start in the first segment included."""
        return sum(segment.size for segment in self._segments.all)

    @property
    def max_timestamp(self) -> int:
        """The largest time of a record, in ms, negative where none has one; what is being written may not count yet."""
        return max((segment.max_timestamp for segment in self._segments.all), default=-1)

    @property
    def segment_count(self) -> int:
        """How many segments there are, the active one included."""
        return len(self._segments.all)

    @property
    def fault(self) -> str:
        """Why retention or compaction failed the last time; "" when they did not."""
        return self.retention_fault or (f"compaction failed: {self.compaction_fault}" if self.compaction_fault else "")

    @property
    def compaction_fault(self) -> str:
        """Why compaction failed the last time; "" when it did not, or nothing is left for it to do."""
        return self._cleaner.fault if self.config.compact and self.dirty_ratio > 0 else ""

    @property
    def dirty_ratio(self) -> float:
        """The share of the closed segments' bytes that has not been compacted yet, 0 to 1."""
        return self._cleaner.dirty_ratio

    # Appending

    def append(self, batch: bytes, header: BatchHeader, now_ms: int = BEFORE_RESTART) -> AppendResult:
        """As ``append_all``, of one batch."""
        return self.append_all(((batch, header),), now_ms)[0]

    def append_all(
        self, batches: Sequence[tuple[bytes, BatchHeader]], now_ms: int = BEFORE_RESTART
    ) -> list[AppendResult]:
        """Gives each batch its offsets and queues it, unless it is in the log already: all of them, or none.

        A batch with the attribute TRANSACTIONAL opens its transaction here, if that is not open; whether it may is for the
        transaction coordinator to say, and for the caller to have asked.

        Each comes with its own header, checked; ``now_ms`` is the wall time of the append, which the records get with
        ``message_timestamp_type="LogAppendTime"``. Nothing is acknowledged before ``when_committed`` or ``when_durable``
        says so for the offset behind the last record, of duplicates too. Raises ``ProducerStateError`` when a batch does not
        continue what its producer wrote before, or is not of the transaction that the producer has open here;
        ``LogClosedError``, ``LogWriteError`` when the log has been closed to writes, and ``ValueError`` when header and
        batch do not belong together.
        """
        for batch, header in batches:
            if len(batch) != header.length:
                raise ValueError(f"the batch has {len(batch)} bytes, its header says {header.length}")
        append_time_ms = NO_TIMESTAMP
        write: Write = self._appender.append
        if self.config.message_timestamp_type == "LogAppendTime":
            append_time_ms, write = now_ms, self._appender.append_stamped
            batches = [(batch, header.stamped(now_ms)) for batch, header in batches]
        results = append_once_each(self.producers, batches, now_ms, write, append_time_ms)
        first = batches[0][1]
        if first.producer_id >= 0 and first.base_sequence == 0 and self._on_new_producer is not None:
            self._on_new_producer()
        return results

    async def begin_epoch(self, leader_epoch: int) -> None:
        """Appends are of this leader epoch from now on; it is on disk before the first of them.

        Everything before it is on disk when this returns; nothing may be appended meanwhile. Raises ``ValueError`` when the
        last record is of a later epoch, ``LogWriteError`` and ``LogClosedError``.
        """
        await self.flush()
        self._appender.begin_epoch(leader_epoch)

    def append_as_follower(
        self, batches: Sequence[ReplicatedBatch], epochs: Sequence[tuple[int, int]], now_ms: int = BEFORE_RESTART
    ) -> None:
        """Queues batches of the leader that begin where the log ends. They keep offsets and epochs.

        ``epochs`` are the leader's in this range. Nothing is judged but that they continue the log: their producers and
        transactions are noted as they come, and this node's settings for new records do not count. Raises
        ``NotAContinuationError``, and appends nothing then; ``LogClosedError`` and ``LogWriteError``.
        """
        end = self.end_offset
        check_continues([batch.header for batch in batches], epochs, end, self.epochs.at(end - 1))
        self._appender.append_as_follower(batches, epochs, now_ms)

    async def truncate_to(self, offset: int) -> None:
        """Gives up what begins at ``offset``, durably, as the leader has something else there.

        The log ends there then, or earlier: batches stay whole. What waits for more is told ``LogTruncatedError``, as are
        reads and appends meanwhile. Raises ``OffsetNotInLogError``, ``LogDamagedError``, and ``LogWriteError`` when the disk
        refuses: then the log takes and gives nothing any more, until it is opened again.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetNotInLogError(offset, self.start_offset, self.end_offset)
        await self._change(truncate, offset)

    async def reset_to(self, offset: int, producers: Snapshot = ()) -> None:
        """Gives up all and begins anew at ``offset``, wherever that is, durably. Raises as ``truncate_to``.

        ``producers`` are those that wrote below it, as the leader remembers them: a repetition of what they wrote is known.
        """
        await self._change(partial(begin_anew, producers=producers), offset)

    async def _change(self, change: Callable[[Storage, str, int, int], None], offset: int) -> None:
        """Has nothing under way, changes the files, and opens them as a start does."""
        async with self._changing:
            self._check_open()
            if self._appender.refusal is not None:
                raise self._appender.refusal
            gone = LogTruncatedError(
                f"the log {self.directory} is cut at offset {offset}, as its leader has other records"
            )
            self._unreadable = self._appender.refusal = gone
            await self._appender.wait_idle()
            await self._cleaner.stop()
            await self._start.stop()
            self._segments.close(gone)
            storage, opened = self._disk.storage, list[Recovered]()

            def changed(start_offset: int) -> None:
                tidied(storage, self.directory)
                change(storage, self.directory, offset, start_offset)
                opened.append(open_directory(storage, self.directory, self.config))

            try:
                await self._disk.tend(changed, self.start_offset)
            except WriteInDoubtError as error:
                raise self._appender.sync_failed(error) from error
            except (OSError, LogDamagedError) as error:
                raise self._not_changed(error) from error
            finally:  # also when cancelled: what is done on disk is done
                if opened:
                    self._take_over(opened[0])
                    self.flushed.rewind(self.end_offset, gone)
                    self.flushed.advance(self.end_offset)  # it may have begun anew further on
                    if self.committed is not self.flushed:
                        self.committed.rewind(self.end_offset, gone)
                        self.commit_to(self.start_offset)
                    self._unreadable = None

    def _not_changed(self, error: OSError | LogDamagedError) -> LogError:
        """Nothing goes on with a log that is half cut: whoever opens it again finds out how far that has come."""
        self._appender.trusted = False
        why = (
            error
            if isinstance(error, LogDamagedError)
            else LogWriteError(f"{self.directory} could not be cut: {error}")
        )
        self._unreadable = why
        self._appender.refuse_all(why)
        return why

    def open_transaction(self, producer_id: int) -> OpenTransaction | None:
        """The transaction that a producer has open here: appends that are under way count."""
        return self.producers.transaction_of(producer_id)

    def open_epoch(self, producer_id: int) -> int | None:
        """The epoch of the transaction that a producer has open here; see ``coordinator.runtime.admission.Participant``."""
        transaction = self.producers.transaction_of(producer_id)
        return None if transaction is None else transaction.epoch

    def last_written(self, producer_id: int, epoch: int) -> WrittenBatch | None:
        """The last batch of a transaction that is open here; see ``coordinator.runtime.held_commits.Log``."""
        return self.producers.last_written(producer_id, epoch)

    def open_transactions(self) -> list[OpenTransaction]:
        """All transactions that are open here, in the order of their first offsets."""
        return self.producers.transactions.open()

    def end_transactions(self, ends: Sequence[tuple[int, int, bool]], coordinator_epoch: int, now_ms: int) -> int:
        """Appends one control batch with an end marker for each transaction that is open here; nothing if there is none.

        ``ends`` are producer ids and epochs with whether they have committed, ``coordinator_epoch`` is the leader epoch of
        the partition that has the decision, for people. Returns the offset to wait for with ``when_committed``: also when
        all had ended before, as those markers may still be on their way. Raises as ``append_all``.
        """
        if self._appender.refusal is not None:
            raise self._appender.refusal
        found: dict[int, TransactionEnd] = {}
        for producer_id, epoch, committed in ends:
            transaction = self.producers.transaction_of(producer_id)
            if transaction is not None and transaction.epoch == epoch:
                end = TransactionEnd(coordinator_epoch, producer_id, epoch, committed, transaction.first_offset)
                found.setdefault(producer_id, end)
        if found:
            self._appender.append_ends(list(found.values()), now_ms)
        return self.end_offset

    # Reading

    async def read(
        self, offset: int, max_bytes: int, committed: bool = False, *, end_offset: int | None = None
    ) -> bytes:
        """Whole batches of one segment from the one that covers ``offset``, which may begin below it.

        At most ``max_bytes``, but at least one batch; never beyond the high watermark (for followers: ``end_offset``, which
        is written), where the result is ``b""``. With ``committed`` never beyond the last stable offset, and with empty
        batches in the place of aborted ones: one for neighbours and the markers between them, which covers their offsets.
        Where all is aborted it reads on a little, also in the next segment.
        Headers are checked here, bodies where they are decoded. Raises ``OffsetNotInLogError`` outside of
        ``[start_offset, end_offset]``, ``LogDamagedError`` for a damaged header, ``LogClosedError`` and ``OSError``.
        """
        self._check_open()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetNotInLogError(offset, self.start_offset, self.end_offset)
        end = self.readable_end(committed) if end_offset is None else end_offset
        if offset >= end:
            return b""
        if committed:
            return await self._reader.read_committed(offset, max_bytes, end)
        return await self._reader.read(offset, max_bytes, end)

    def just_written(self, offset: int, max_bytes: int) -> bytes:
        """What is being synced, if it begins at ``offset`` and fits: what a ``read`` would bring, without the disk."""
        chunk = self._appender.unsynced
        if chunk is None or chunk.base_offset != offset or chunk.size > max_bytes or self._closed:
            return b""
        return chunk.stored

    def bytes_from(self, offset: int, committed: bool = False, *, end_offset: int | None = None) -> tuple[int, bool]:
        """How many bytes a read from ``offset`` can bring at most, counted without a look at the disk; and whether it ends
        with a segment that others follow, so that another read would bring more. ``end_offset`` as for ``read``.

        The number is exact for a read that begins where an earlier one did, or ended, and ends at the high watermark or
        where an earlier one did; of others the sparse index knows where to look for their beginning and end. Bytes of
        aborted batches count.
        """
        end = self.readable_end(committed) if end_offset is None else end_offset
        if not self.start_offset <= offset < end:
            return 0, False
        return self._reader.bytes_from(offset, end)

    async def offset_for_timestamp(self, timestamp_ms: int, committed: bool = False) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after ``timestamp_ms`` below the high watermark, or ``None``.

        With ``committed`` it lies below the last stable offset and belongs to no aborted transaction.
        Raises ``LogDamagedError`` for a damaged batch on the way, ``LogClosedError`` and ``OSError``.
        """
        self._check_open()
        end = self.readable_end(committed)
        while True:
            start = self.start_offset
            try:
                return await self._reader.offset_for_timestamp(timestamp_ms, start, end, committed)
            except OffsetNotInLogError:
                if self.start_offset == start:
                    raise
                # Retention has overtaken the search: it begins anew where the log does.

    @property
    def damage(self) -> LogDamagedError | None:
        """What a read or a compaction found that is not what was written, since the files were opened; None without."""
        return self._reader.damage

    async def check_bodies(self, records: bytes) -> None:
        """Raises ``LogDamagedError`` for what was read, when the body of a batch is not what was written."""
        await self._reader.check_bodies(records)

    def damaged(self, offset: int, why: str) -> LogDamagedError:
        """The error for a record at ``offset`` that is not what was written; it names the segment's file."""
        path = self._segments.covering(max(offset, self._segments.start_offset)).path
        return LogDamagedError(self.directory, f"{path}, offset {offset}", why)

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(f"the log {self.directory} is closed")
        if self._unreadable is not None:
            raise self._unreadable

    # Maintenance

    async def compact(self, now_ms: int) -> CompactionResult | None:
        """Compacts closed segments by key if enough of them is dirty; ``None`` when it is not worth it or cannot be done.

        Whether the topic is one to compact is the caller's business. Reads and appends go on meanwhile. See
        ``coordinator.log.cleaner``. Raises ``LogDamagedError`` when a segment is damaged, ``LogClosedError``.
        """
        self._check_open()
        try:
            return await self._cleaner.compact(now_ms)
        except LogDamagedError as error:
            self._reader.damage = error
            raise

    def configure(self, config: LogConfig) -> None:
        """Gives the log other settings. What is queued keeps its segments; ``index_interval_bytes`` stays as it is."""
        self.config = config
        self._appender.queue.config = config
        self._cleaner.configure(config)

    async def delete_before(self, offset: int) -> int:
        """Makes the log begin at ``offset``, durably, if it does not begin there or later already; returns where it begins.

        Raises ``OffsetNotInLogError`` behind the last stable offset, ``LogWriteError`` and ``LogClosedError``.
        """
        self._check_open()
        if offset > (end := self.last_stable_offset):
            raise OffsetNotInLogError(offset, self.start_offset, end)
        await self.begin_at(offset)
        return self.start_offset

    async def retain(self, now_ms: int | None, *, leads: bool = True) -> int:
        """Deletes what has expired (``coordinator.log.retention``); returns by how much the start has moved.

        Closes the active segment when its time has come, and that is all unless this node ``leads``: followers begin where
        their leader does. ``now_ms`` is wall time, None when the clock is not believed. Raises ``LogWriteError``,
        ``LogClosedError``.
        """
        self._check_open()
        if now_ms is not None:
            self._segments.stamp(now_ms)
        before = self.start_offset
        if is_due_to_close(self._segments.active, self.config, before, now_ms):
            frees_room = goes_when_closed(self._segments.all, self.config, before, self.last_stable_offset, now_ms)
            await self._appender.roll(frees_room)
        segments, start = self._segments.all, before
        if leads:
            start = start_after_retention(segments, self.config, before, self.last_stable_offset, now_ms)
        await self.begin_at(start)
        return self.start_offset - before

    async def note_end(self) -> None:
        """Writes down, durably, how far the log is on disk now; does nothing when it has not grown since the last time.

        A recovery refuses a log that has less. Raises ``LogWriteError``, ``LogClosedError`` and ``OSError``.
        """
        self._check_open()
        if self._appender.refusal is None:
            try:
                await self._start.note_end()
            except WriteInDoubtError as error:
                raise self._appender.sync_failed(error) from error

    async def begin_at(self, offset: int) -> None:
        """As ``delete_before`` for a follower, whose leader has looked whether ``offset`` may be: it has to be on disk."""
        self._check_open()
        before = self.start_offset
        self.commit_to(offset)
        try:
            await self._start.raise_to(offset)
        except WriteInDoubtError as error:
            raise self._appender.sync_failed(error) from error
        self.epochs.raise_start(self.start_offset)
        await self._start.give_back()
        if self.start_offset > before:
            self.committed.tell_listeners()

    async def flush(self) -> None:
        """Returns once everything appended so far is on disk, whatever ``config.flush`` says.

        Raises ``LogWriteError`` when it could not be written.
        """
        self._check_open()
        await self._appender.flush()

    async def close(self) -> None:
        """Makes durable what is queued, notes the end and closes the files. Closing twice is fine.

        Appends are refused from the beginning; running reads finish; a compaction ends at its next step.
        """
        if not await self._stop():
            return
        if self._unreadable is None:
            try:
                await self._appender.flush()
            except LogError as error:
                log.warning("closed_without_flush", directory=self.directory, reason=str(error))
        await self._appender.wait_idle()  # a roll may come alone
        self.fail_waiters(LogClosedError(f"the log {self.directory} is closed"))
        if self._appender.trusted and self._appender.synced:
            await self._start.note_clean_end(list(self.producers))
        self._segments.close(LogClosedError(f"the log {self.directory} is closed"))

    async def discard(self) -> None:
        """Fails what is queued and closes the files, for a log whose directory is to be removed."""
        if not await self._stop():
            return
        self._appender.trusted = False
        self._appender.refuse_all(LogClosedError(f"the log {self.directory} is being deleted"))
        await self._appender.wait_idle()
        self._segments.close(LogClosedError(f"the log {self.directory} is closed"))

    async def _stop(self) -> bool:
        first, self._closed = not self._closed, True
        async with self._changing:  # what changes the files comes to its end
            pass
        if self._appender.refusal is None:
            self._appender.refusal = LogClosedError(f"the log {self.directory} is closed")
        await self._cleaner.stop()
        await self._start.stop()
        return first
