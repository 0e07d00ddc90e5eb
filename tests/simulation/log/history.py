"""One history of a log: transactional producers, plain ones, both of Kafka's clients and of ours, end markers, readers of
both kinds, deletion and compaction, other leaders that it follows and that have it give up its end, on a disk that refuses
writes and a host that ends at any call. A seed replays it exactly.

The log is the real one. Beside it stands a plain list (``book``) of what was appended. After each step, each move of the
high watermark and each start the log has to be what follows from the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final

import structlog

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log import LogConfig, LogDamagedError, LogError, LogWriteError, OffsetNotInLogError, PartitionLog
from coordinator.log.directories import make_logs, sync_logs
from coordinator.log.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    LogTruncatedError,
    OutOfOrderSequenceError,
    ProducerStateError,
)
from coordinator.log.following import replicated_batches
from coordinator.log.producers import REMEMBERED_BATCHES
from coordinator.server.handlers.produced_batches import ALLOWED_IN_TRANSACTIONS
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.kafka.batch import HEADER_BYTES as KAFKA_HEADER_BYTES
from protocol.kafka.batch import KafkaAttributes, KafkaBatchHeader, only_batch, read_batch_header
from protocol.kafka.compression import inflated
from protocol.kafka.conversion import for_kafka, in_columns
from protocol.kafka.records import read_records
from protocol.record_batch import (
    HEADER_BYTES,
    Attributes,
    BatchHeader,
    decode_columns,
    encode_batch,
    iter_batches,
    read_header,
    restamped,
)
from tests.coordinator.kafka.admission import Run
from tests.protocol.kafka.written import CODECS, Record, written
from tests.simulation.disk import HostEnded, SimDisk, SimStorage
from tests.simulation.log.book import Book, Entry, key_of, last_of_each_key
from tests.simulation.loop import Process, SimLoop

DIRECTORY: Final = "t-0"
TRANSACTIONAL: Final = (1, 2, 3, 4)
"""Ids of transactional producers."""
KEEPING: Final = (5, 6)
"""Of those that keep an epoch from transaction to transaction, and number on."""
PLAIN: Final = 9
"""An idempotent producer without transactions."""
STEPS: Final = 200
_EXPIRED_MS: Final = 2**53

CONFIGS: Final = (
    LogConfig(segment_bytes=700, index_interval_bytes=150),
    LogConfig(segment_bytes=500, index_interval_bytes=150, retention_bytes=900),
    LogConfig(segment_bytes=400, index_interval_bytes=150, retention_ms=300, segment_ms=200),
    LogConfig(segment_bytes=500, index_interval_bytes=150, compact=True, delete=False, min_cleanable_dirty_ratio=0.0),
    LogConfig(segment_bytes=600, index_interval_bytes=150, compact=True, retention_bytes=2_000, flush="os"),
    LogConfig(segment_bytes=100_000, index_interval_bytes=150),
)

STEP_KINDS: Final = (
    *("write",) * 8, *("end",) * 4, *("plain",) * 2, "numbered", "intrude", "end_none",
    *("wait",) * 3, "pause", "forget", "retain", "delete", "compact", "refuse_writes", "break_sync",
    "lead", *("follow",) * 2, "truncate",
)  # fmt: skip


class LogHistory:
    """See the module text. ``broken`` has what each invariant that does not hold says."""

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.broken: dict[str, list[str]] = {}
        self.lives = 0
        self.book = Book()
        self._random = Random(f"log {seed}")
        self._writers = Random(f"writers {seed}")
        self._config = self._random.choice(CONFIGS)
        self._disk = SimDisk(Random(f"disk {seed}"))
        self._loop = SimLoop(Random(f"loop {seed}"))  # type: ignore[abstract]
        self._loop.disk_calls = self
        self._processes: list[Process] = []
        self._left = steps
        self._serial = 0
        self._epochs = dict.fromkeys((*TRANSACTIONAL, *KEEPING), 0)
        self._kept_epochs = dict.fromkeys(KEEPING, 0)
        self._verdicts: dict[tuple[int, int], bool] = {}
        """What the coordinator has decided: for good, whatever becomes of the markers."""
        self._plain_epoch = 0
        self._compacted = False
        self._leader_epoch = 0
        self._following = False
        """Whether what is appended comes from another leader."""
        self._floor = 0
        """Below it retention, deletion or compaction relied on what was acknowledged: no leader truncates that."""
        self._truncations = 0
        self._truncating = False
        self._highest = [0, 0, 0]
        """Log start offset, last stable offset and high watermark, as they were last seen."""
        self._seen: dict[int, tuple[bytes, bool]] = {}
        """What readers got by offset, and whether one that reads committed records did."""

    @property
    def trace_hash(self) -> str:
        """Equal histories have equal ones."""
        return self._loop.trace_hash

    # What the loop asks

    def latency_s(self) -> tuple[float, float]:
        """See ``loop.DiskCalls``."""
        return self._disk.latency_s()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any, BaseException | None]:
        """See ``loop.DiskCalls``."""
        try:
            return True, function(*args), None
        except HostEnded:
            return False, None, None
        except Exception as error:
            return True, None, error

    # Lives

    def run(self) -> None:
        """The whole history."""
        try:
            with structlog.testing.capture_logs():
                self._loop.run_until_complete(self._main())
            for failure in self._loop.failures:
                self._break("nothing_fails_unexpectedly", failure)
        finally:
            self._loop.dispose(self._processes)

    async def _main(self) -> None:
        maker = SimStorage(self._disk, Process("maker"))
        make_logs(maker, [DIRECTORY])
        sync_logs(maker, [DIRECTORY])
        while self._left > 0 and self.lives < 40:
            await self._life(self._live)
        self._disk.fail_writes = self._disk.fail_syncs = 0
        self._disk.end_after = None
        await self._life(self._end_all)
        await self._life(self._judge)

    async def _life(self, work: Callable[[PartitionLog], Any]) -> None:
        """One process: opens the log, does its ``work``, and ends by itself or as the disk says."""
        self.lives += 1
        process, random = Process(f"life {self.lives}"), self._random
        self._processes.append(process)
        ended: asyncio.Future[None] = self._loop.create_future()
        power = self._config.flush == "ack" and random.random() < 0.5

        def end() -> None:
            process.dead = True
            if power:
                self._disk.power_cut()
            else:
                self._disk.process_ended()
            if not ended.done():
                ended.set_result(None)

        self._disk.on_end = end
        self._following = self._truncating = False
        self._leader_epoch += 1
        if work == self._live and random.random() < 0.6:
            self._disk.end_after = 1 + int(random.random() ** 2 * 250)
        opening = self._loop.spawn(process, self._opened(process, work, end))
        await asyncio.wait((opening, ended), return_when=asyncio.FIRST_COMPLETED)
        if not process.dead:
            opening.result()
        process.dead = True
        self._disk.end_after = None
        self._disk.lock_holder = None

    async def _opened(self, process: Process, work: Callable[[PartitionLog], Any], end: Callable[[], None]) -> None:
        disk = Disk(SimStorage(self._disk, process), threads=1)
        try:
            log = await PartitionLog.open(
                disk, DIRECTORY, self._config, leader_epoch=self._leader_epoch, on_fatal=lambda reason: end()
            )
        except LogDamagedError as error:
            self._break("the_log_is_never_damaged", str(error))
            self._left = 0
            return
        except OSError:
            return
        self._check_recovered(log)
        log.on_advance(lambda: None if process.dead else self._check(log))
        readers = [asyncio.ensure_future(self._read(log, committed)) for committed in (True, True, False)]
        with suppress(LogError, WriteInDoubtError):
            await work(log)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        if self._random.random() < 0.6 or work != self._live:
            await log.close()
        else:
            end()

    async def _live(self, log: PartitionLog) -> None:
        for _ in range(5 + int(self._random.random() * 60)):
            if self._left <= 0:
                return
            self._left -= 1
            await getattr(self, "_" + self._random.choice(STEP_KINDS))(log)
            self._check(log)

    # Steps

    def _now(self) -> int:
        return int(self._loop.time() * 1000)

    def _batch(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> tuple[bytes, BatchHeader]:
        count = 1 + int(self._random.random() * 3)
        values = []
        for _ in range(count):
            self._serial += 1
            values.append(b"%d" % self._serial)
        packed = self._random.random() < 0.1
        if self._writers.random() < 0.4 and (producer_id < 0 or epoch >= 0):  # by the port for Kafka's clients
            records = [Record(key_of(value), value, self._now()) for value in values]
            codec = self._writers.choice(CODECS) if packed else "none"
            numbers = producer_id, epoch, sequence
            batch = written(records, codec=codec, producer=numbers, transactional=transactional)
            content, header = Run()(batch, self._config, allowed=ALLOWED_IN_TRANSACTIONS)
            header = replace(header, kept_epoch=self._kept_epochs.get(producer_id, -1))
            return header.pack() + content[HEADER_BYTES:], header
        content = encode_batch(
            values,
            [key_of(value) for value in values],
            timestamps_ms=[self._now()] * count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            compression="gzip" if packed else None,
        )
        header = read_header(content)
        if transactional:
            header = replace(header, attributes=header.attributes | Attributes.TRANSACTIONAL)
        header = replace(header, kept_epoch=self._kept_epochs.get(producer_id, -1))
        return header.pack() + content[HEADER_BYTES:], header

    def _append(self, log: PartitionLog, producer_id: int, epoch: int, transactional: bool, batches: int = 1) -> None:
        self.book.cut(log.end_offset)
        kept_epoch = self._kept_epochs.get(producer_id, -1)
        sequence = self.book.next_sequence(producer_id, epoch, kept_epoch) if producer_id >= 0 else -1
        made = []
        for _ in range(batches):
            made.append(self._batch(producer_id, epoch, sequence, transactional))
            sequence += made[-1][1].record_count if producer_id >= 0 else 0
        offsets = self._placed(log, made)
        for (content, header), offset in zip(made, offsets, strict=True):
            values = tuple(value or b"" for value in decode_columns(content, 0, header).values())
            sequence = header.base_sequence
            self.book.add(
                Entry(offset, producer_id, epoch, sequence, transactional, values, (), self._leader_epoch, kept_epoch)
            )

    def _placed(self, log: PartitionLog, made: list[tuple[bytes, BatchHeader]]) -> list[int]:
        """Appends as this log is led, or follows; returns base offsets."""
        if not self._following:
            results = log.append_all(made, self._now())
            assert not any(result.duplicate for result in results)
            return [result.base_offset for result in results]
        offsets, records = [], b""
        end = log.end_offset
        for content, header in made:
            offsets.append(end)
            end += header.record_count
            records += restamped(content, offsets[-1], self._leader_epoch, 0) + content[HEADER_BYTES:]
        log.append_as_follower(replicated_batches(records), [(self._leader_epoch, offsets[0])], self._now())
        return offsets

    async def _write(self, log: PartitionLog) -> None:
        """A producer goes on in its transaction, or begins the next."""
        self.book.cut(log.end_offset)
        producer_id = self._random.choice((*TRANSACTIONAL, *KEEPING))
        known = log.open_transaction(producer_id)
        if (
            known is not None and known.epoch != self._epochs[producer_id]
        ):  # its marker was lost with what came behind it
            self._append_ends(log, [producer_id])
            return
        if (producer_id, self._epochs[producer_id]) in self._verdicts:
            if log.open_transaction(producer_id) is not None:  # its marker was lost: it comes first
                self._append_ends(log, [producer_id])
                return
            self._epochs[producer_id] += 1
            if producer_id in KEEPING and self._random.random() < 0.1:  # it is another one, or was given another epoch
                self._kept_epochs[producer_id] = self._epochs[producer_id]
        self._append(log, producer_id, self._epochs[producer_id], True, 1 + (self._random.random() < 0.2))

    async def _plain(self, log: PartitionLog) -> None:
        self._append(log, -1, -1, False)

    async def _numbered(self, log: PartitionLog) -> None:
        self.book.cut(log.end_offset)
        if log.producers.get(PLAIN) is None:
            self._plain_epoch += 1
        self._append(log, PLAIN, self._plain_epoch, False)

    async def _end(self, log: PartitionLog) -> None:
        """The markers of some decisions; also of producers that have nothing open."""
        self.book.cut(log.end_offset)
        chosen = [producer_id for producer_id in (*TRANSACTIONAL, *KEEPING) if self._random.random() < 0.5]
        self._append_ends(log, chosen)

    def _append_ends(self, log: PartitionLog, chosen: list[int]) -> None:
        opened = {producer_id: (epoch, first) for producer_id, epoch, first in self.book.open()}
        asked, expected = [], []
        for producer_id in chosen:
            epoch, first = opened.get(producer_id, (self._epochs[producer_id], -1))
            committed = self._verdicts.setdefault((producer_id, epoch), self._random.random() < 0.6)
            asked.append((producer_id, epoch, committed))
            if first >= 0:
                expected.append(TransactionEnd(7, producer_id, epoch, committed, first))
        before = log.end_offset
        if self._following:
            if expected:
                encoded = encode_control_batch(expected, self._now())
                self._placed(log, [(b"".join(encoded.pieces()), encoded.header)])
            end = log.end_offset
        else:
            end = log.end_transactions(asked, 7, self._now())
        if end != log.end_offset or end - before != len(expected):
            self._break("markers_are_written_for_what_is_open", f"{asked} took {end - before} offsets, not {expected}")
        if expected:
            self.book.add(Entry(before, ends=tuple(expected), leader_epoch=self._leader_epoch))
            for producer_id in {end.producer_id for end in expected}.intersection(KEEPING):
                self._check_numbered_on(log, producer_id, at_least=1)

    async def _end_none(self, log: PartitionLog) -> None:
        """Markers of other epochs than the open one end nothing."""
        before = log.end_offset
        for known in log.open_transactions():
            log.end_transactions([(known.producer_id, known.epoch + shift, True) for shift in (-1, 1)], 7, self._now())
        if log.end_offset != before:
            self._break("markers_are_written_for_what_is_open", "a marker of another epoch was appended")

    async def _intrude(self, log: PartitionLog) -> None:
        """Batches that are not of the open transaction are refused, each for its own reason."""
        self.book.cut(log.end_offset)
        for producer_id, epoch, _ in self.book.open():
            sequence = self.book.next_sequence(producer_id, epoch)
            for wrong, number, transactional, error in (
                (epoch - 1, sequence, True, InvalidProducerEpochError),
                (epoch + 1, 0, True, ConcurrentTransactionsError),
                (epoch, sequence, False, InvalidTransactionStateError),
                (epoch, sequence + 1, True, OutOfOrderSequenceError),
            ):
                try:
                    log.append(*self._batch(producer_id, wrong, number, transactional), self._now())
                except ProducerStateError as refusal:
                    if type(refusal) is error:
                        continue
                self._break("what_is_not_of_the_open_transaction_is_refused", f"{producer_id}, {wrong}, {number}")
        for producer_id, kept_epoch in self._kept_epochs.items():
            known = log.producers.get(producer_id)
            if known is None or known.transaction is not None or known.kept_epoch != kept_epoch:
                continue
            sequence = self.book.next_sequence(producer_id, -1, kept_epoch)
            try:
                log.append(*self._batch(producer_id, known.epoch + 1, sequence + 1, True), self._now())
            except OutOfOrderSequenceError:
                continue
            self._break("who_keeps_an_epoch_numbers_on", f"{producer_id} began with {sequence + 1}, not {sequence}")

    async def _wait(self, log: PartitionLog) -> None:
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        log.when_durable(log.end_offset, told.set_result)
        await told

    async def _lead(self, log: PartitionLog) -> None:
        """The next leader is this one again."""
        self._leader_epoch += 1
        with suppress(LogWriteError):
            await log.begin_epoch(self._leader_epoch)
            return
        self._leader_epoch -= 1

    async def _follow(self, log: PartitionLog) -> None:
        """Another leads for a while, or two, one after the other."""
        with suppress(LogWriteError):
            await log.flush()
            self._following = True
            for _ in range(1 + int(self._random.random() * 2)):
                self._leader_epoch += 1
                for _ in range(1 + int(self._random.random() * 3)):
                    await getattr(self, "_" + self._random.choice(("write", "write", "plain", "numbered", "end")))(log)
                    self._check(log)
                    if self._random.random() < 0.3:
                        await self._wait(log)
        with suppress(LogWriteError):  # the next one may go: there is nothing left to write
            await log.flush()
        self._leader_epoch += 1
        await log.begin_epoch(self._leader_epoch)
        self._following = False
        self._check_epochs(log)

    async def _truncate(self, log: PartitionLog) -> None:
        """Another leader never had the end of the log."""
        with suppress(LogWriteError):
            await log.flush()
        places = [entry.offset for entry in self.book.entries if entry.offset >= max(self._floor, log.start_offset)]
        if not places:
            return
        offset = places[int(self._random.random() ** 0.5 * len(places))]
        self._truncations += 1
        self._truncating = True
        self._highest[1:] = 0, min(self._highest[2], offset)  # transactions whose markers are cut off are open again
        self._seen = {at: seen for at, seen in self._seen.items() if at < offset}
        await log.truncate_to(offset)
        self._truncating = False
        if log.end_offset != offset:
            self._break("a_log_ends_where_it_was_cut", f"at {log.end_offset}, not {offset}")
        self._check_recovered(log)
        self._leader_epoch += 1
        await log.begin_epoch(self._leader_epoch)

    async def _pause(self, log: PartitionLog) -> None:
        await asyncio.sleep(self._random.random() * 0.2)

    async def _forget(self, log: PartitionLog) -> None:
        """Too many producers, or silent ones."""
        if self._random.random() < 0.5:
            log.producers.forget(100)
        else:
            log.producers.expire(_EXPIRED_MS, 0)

    async def _relied(self, log: PartitionLog, work: Callable[[PartitionLog], Awaitable[bool]]) -> None:
        """Does what relies on the high watermark, and returns whether it did anything."""
        before, self._floor = self._floor, log.high_watermark
        self._floor = log.high_watermark if await work(log) else before

    async def _retain(self, log: PartitionLog) -> None:
        async def retain(log: PartitionLog) -> bool:
            return bool(await log.retain(self._now()))

        await self._relied(log, retain)

    async def _delete(self, log: PartitionLog) -> None:
        await self._relied(log, self._deleted)

    async def _deleted(self, log: PartitionLog) -> bool:
        stable, span = log.last_stable_offset, self._random.random()
        with suppress(OffsetNotInLogError):
            await log.delete_before(stable + 1)
            self._break("deletion_stops_at_the_stable_end", f"deleted below {stable + 1}")
        start = log.start_offset
        if self._random.random() < 0.4:
            await log.delete_before(start + int(span * (log.last_stable_offset - start + 1)))
        return log.start_offset > start

    async def _compact(self, log: PartitionLog) -> None:
        async def compact(log: PartitionLog) -> bool:
            return await log.compact(self._now()) is not None

        if self._config.compact:
            self._compacted = True
            await self._relied(log, compact)

    async def _refuse_writes(self, log: PartitionLog) -> None:
        self._disk.fail_writes = 1

    async def _break_sync(self, log: PartitionLog) -> None:
        if self._random.random() < 0.2 and self._config.flush == "ack":
            self._disk.fail_syncs = 1

    # The end

    async def _end_all(self, log: PartitionLog) -> None:
        self.book.cut(log.end_offset)
        self._append_ends(log, [producer_id for producer_id, _, _ in self.book.open()])
        await self._wait(log)
        self._check(log)
        if log.last_stable_offset != log.end_offset:
            self._break("no_transaction_hangs", f"{log.open_transactions()} stay open")

    async def _judge(self, log: PartitionLog) -> None:
        """Everything is decided: what is read now is what was committed, and all that was read before is among it."""
        left: dict[int, bytes] = {}
        position = log.start_offset
        while data := await log.read(position, 300, committed=True):
            for at, header in iter_batches(data):
                left |= _records(data, at, header)
                position = header.next_offset
        expected = self.book.decided(log.start_offset)
        left = {offset: value for offset, value in left.items() if offset >= log.start_offset}
        wrong = left.items() - expected.items() if self._compacted else left.items() ^ expected.items()
        if wrong:
            self._break("transactions_are_whole", f"{sorted(wrong)} differ from what was committed")
        if last_of_each_key(left) != last_of_each_key(expected):
            keys = set(last_of_each_key(left).items()) ^ set(last_of_each_key(expected).items())
            self._break("aborts_supersede_nothing", f"{sorted(keys)} are, or should be, the last of their keys")
        committed = self.book.decided(0)
        for offset, (value, as_committed) in self._seen.items():
            entry = self.book.at(offset)
            there = entry is not None and entry.values[offset - entry.offset : offset - entry.offset + 1] == (value,)
            if not there or (as_committed and offset not in committed):
                self._break("what_was_read_stays", f"{value!r} was read at {offset}, and does not count in the end")

    # Readers

    async def _read(self, log: PartitionLog, committed: bool) -> None:
        position = log.start_offset
        while True:
            truncations = self._truncations
            try:
                data = await log.read(position, 1 + int(self._random.random() * 600), committed=committed)
            except LogTruncatedError:
                await asyncio.sleep(0.01)
                continue
            except OffsetNotInLogError:
                position = log.start_offset
                continue
            except LogDamagedError as error:
                if truncations != self._truncations:
                    continue
                self._break("the_log_is_never_damaged", f"read at {position}: {error}")
                return
            except (LogError, OSError):
                return
            if truncations != self._truncations:  # a leader that is one no more answers no readers
                continue
            read: dict[int, bytes] = {}
            before = position
            for at, header in iter_batches(data):
                read |= _records(data, at, header)
                position = header.next_offset
            for offset, value in read.items():
                if offset >= before:
                    self._judge_read(log, offset, value, committed)
            self._judge_told(data, read)
            await asyncio.sleep(0.0005 if data else 0.01)
            if self._random.random() < 0.05:
                position = log.start_offset

    def _judge_told(self, data: bytes, read: dict[int, bytes]) -> None:
        """Kafka's clients, and ours that do not read Kafka's batches, are told the same records and all offsets."""
        columns = in_columns(data)
        for _, header in iter_batches(columns):
            if header.attributes & Attributes.KAFKA_BODY:
                self._break("older_clients_get_columns", f"a batch of Kafka at offset {header.base_offset}")
        told, position, found = for_kafka(data), -1, dict[int, bytes]()
        while told:
            batch = told[: read_batch_header(told).size]
            outer = only_batch(batch)
            if -1 < position < outer.base_offset:  # it may begin earlier, where compaction has joined meanwhile
                self._break("kafka_clients_are_told_all_offsets", f"{outer.base_offset} follows {position}")
            position = outer.base_offset + outer.last_offset_delta + 1
            if not outer.attributes & KafkaAttributes.CONTROL:
                found |= _records_of_kafka(batch, outer)
            told = told[len(batch) :]
        *_, (_, last) = iter_batches(data) if data else [(0, None)]
        if last is not None and position != last.next_offset:
            self._break("kafka_clients_are_told_all_offsets", f"{position} of {last.next_offset}")
        older = {
            offset: value
            for at, header in iter_batches(columns)
            for offset, value in _records(columns, at, header).items()
        }
        if not found == older == read:
            self._break(
                "all_readers_are_told_the_same", f"{found} by Kafka's batches, {older} as columns, {read} as stored"
            )

    def _judge_read(self, log: PartitionLog, offset: int, value: bytes, committed: bool) -> None:
        entry = self.book.at(offset)
        if entry is None or value not in entry.values:
            self._break("what_was_read_stays", f"{value!r} at {offset} was never written there")
            return
        if committed and entry.transactional:
            fate = self.book.fates(log.high_watermark).get((entry.producer_id, entry.epoch))
            if fate is None:
                self._break("undecided_records_are_never_read", f"{value!r} at {offset}")
            elif not fate:
                self._break("aborted_records_are_never_read", f"{value!r} at {offset}")
        known = self._seen.setdefault(offset, (value, committed))
        if known[0] != value:
            self._break("what_was_read_stays", f"offset {offset} was {known[0]!r} and is {value!r}")
        self._seen[offset] = (value, committed or known[1])

    # What must hold

    def _check(self, log: PartitionLog) -> None:
        self.book.cut(log.end_offset)
        now = [log.start_offset, log.last_stable_offset, log.high_watermark]
        if now != sorted(now) or log.high_watermark > log.end_offset:
            self._break("offsets_keep_their_order", f"start, stable end, high watermark: {now}, end {log.end_offset}")
        if self._truncating:
            return
        for name, before, value in zip(("start", "stable_end", "high_watermark"), self._highest, now, strict=True):
            if value < before:
                self._break(f"the_{name}_never_falls", f"from {before} to {value}")
        self._highest = now
        if log.last_stable_offset != self.book.stable(log.high_watermark):
            self._break(
                "the_stable_end_is_that_of_the_list", f"{now} where {self.book.stable(log.high_watermark)} is due"
            )
        known = [transaction[:3] for transaction in log.open_transactions()]
        if known != self.book.open():
            self._break("logs_know_their_open_transactions", f"{known} where {self.book.open()} are open")

    def _check_recovered(self, log: PartitionLog) -> None:
        if log.end_offset < self._highest[2]:
            self._break("acknowledged_records_survive", f"{self._highest[2]} were, the log ends at {log.end_offset}")
        self.book.cut(log.end_offset)
        known = [transaction[:3] for transaction in log.open_transactions()]
        batches = {
            producer_id: [(batch.first_sequence, batch.base_offset) for batch in state.batches]
            for producer_id, state in log.producers
            if producer_id in TRANSACTIONAL
        }
        remembered = {key: value for key, value in self.book.remembered().items() if key in TRANSACTIONAL}
        if known != self.book.open() or batches != remembered:
            self._break(
                "recovered_logs_know_the_same_transactions",
                f"{known}, {batches} where {self.book.open()}, {remembered} were written",
            )
        for producer_id in KEEPING:
            self._check_numbered_on(log, producer_id, at_least=self.book.in_transaction(producer_id))
        self._check(log)
        self._check_epochs(log)

    def _check_numbered_on(self, log: PartitionLog, producer_id: int, at_least: int) -> None:
        """What is remembered of a producer that keeps its epoch are its last batches, and no fewer than so many."""
        state = log.producers.get(producer_id)
        if state is None and not at_least:  # it may be forgotten while it has nothing open
            return
        kept_epoch, written = self.book.numbered_on(producer_id)
        known = [] if state is None else [(batch.first_sequence, batch.base_offset) for batch in state.batches]
        is_end = known == written[-len(known) :] and len(known) >= min(at_least, REMEMBERED_BATCHES)
        if state is None or state.kept_epoch != kept_epoch or not is_end:
            self._break("who_keeps_an_epoch_numbers_on", f"{state} where {written} are written under {kept_epoch}")

    def _check_epochs(self, log: PartitionLog) -> None:
        self.book.cut(log.end_offset)
        for entry in self.book.entries:
            known = log.epochs.at(entry.offset)
            if entry.offset >= log.start_offset and known != entry.leader_epoch:
                self._break(
                    "epochs_are_those_of_the_records",
                    f"{log.epochs.entries} where offset {entry.offset} is of epoch {entry.leader_epoch}",
                )

    def _break(self, invariant: str, text: str) -> None:
        self.broken.setdefault(invariant, []).append(f"at {self._loop.time():.3f} s in life {self.lives}: {text}")


def _records_of_kafka(batch: bytes, header: KafkaBatchHeader) -> dict[int, bytes]:
    content = inflated(header.codec, batch[KAFKA_HEADER_BYTES:], 1 << 20)
    fields = read_records(content, header.record_count)
    offsets = (header.base_offset + delta for delta in fields.offset_deltas)
    return {offset: value or b"" for offset, value in zip(offsets, fields.values, strict=True)}


def _records(data: bytes, at: int, header: BatchHeader) -> dict[int, bytes]:
    if header.attributes & Attributes.CONTROL or not header.record_count:
        return {}
    columns = decode_columns(data, at, header)
    offsets = (header.base_offset + delta for delta in columns.offset_deltas())
    return {offset: value or b"" for offset, value in zip(offsets, columns.values(), strict=True)}
