"""What compaction decides: when, how far, and which records stay, in which batches. Pure.

A pass reads the *dirty* segments, those behind the point up to which the log is clean, into a map from key to last offset,
then rewrites all closed segments up to there. A record stays if the map knows no later one of its key. A tombstone stays
until its delete horizon: the time of its first cleaning plus the retention; then nothing before it is left of its key.
Records without a key have no place in a compacted log and are dropped.

The map is bounded. A pass that fills it stops there: records behind the end of the map stay as they are.

Offsets never change, and what is written covers the same offsets without a gap: a batch's last delta reaches up to the next
batch, and an empty batch stands where that is not possible. So readers, recovery and the end of the log need not know what
compaction removed.

Transactions are decided wherever a pass comes, as it cleans closed segments below the last stable offset only. Records of
aborted ones go, and no key counts for being in one. Those of committed ones become like any others: their batches lose flag
and producer, and so no longer need a marker. Markers go in the same pass, as their transactions lie before them.

What is rewritten becomes columns, also of a Kafka client's batch; one that loses nothing is copied as it came.

Small batches are joined into larger ones, as the time to load a log depends on their number. Not so those by which an
idempotent producer is remembered, the last few of each: they keep their offsets, sequence and last delta, and stay even
when they are empty. Older ones, and those of producers that have been forgotten, are like any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from coordinator.log.aborted import NOTHING_ABORTED, AbortedBatches
from coordinator.log.config import UNLIMITED, LogConfig
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.retention import appended_ms, is_as_old_as
from coordinator.log.segment import Segment
from protocol.checksum import crc32
from protocol.columns import ColumnFlags, Columns, Headers, encode_columns
from protocol.compression import Compression, compressed
from protocol.errors import ProtocolError
from protocol.record_batch import (
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    Attributes,
    BatchHeader,
    body_attributes,
    check_body,
    compression_of_columns,
    decode_columns,
    empty_batch,
    encode_batch,
    read_header,
    sequence_after,
)

MAP_BYTES: Final = 128 * 1024 * 1024
"""About how much memory the map of a pass may use: some 700,000 keys of 20 bytes."""
_ENTRY_BYTES: Final = 170
"""What CPython needs for a dict entry, a bytes object and an int, the key's own bytes aside."""
_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
_CONTROL: Final = int(Attributes.CONTROL)
_BODY: Final = int(
    Attributes.KEYS
    | Attributes.NULL_KEYS
    | Attributes.NULL_VALUES
    | Attributes.HEADERS
    | Attributes.OFFSET_DELTAS
    | Attributes.KAFKA_BODY
    | Attributes.COMPRESSION_MASK
)
"""What the attributes say of how the body is to be read."""
JOINED_BYTES: Final = 64 * 1024
JOINED_RECORDS: Final = 4096
"""A joined batch is closed when it reaches either."""
_WHOLE_BYTES: Final = JOINED_BYTES // 2
"""A batch of this size that loses nothing is copied as it is."""
_MAX_DELTA: Final = 2**31 - 1
_NO_HORIZON: Final = -1


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a pass has done. Bytes and segments are those of the closed segments it rewrote."""

    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    keyless_dropped: int
    clean_until: int
    unreadable_kept: int = 0
    """Batches that are what their producer wrote but do not decode, such as a broken gzip stream."""


def dirty_ratio(closed: Sequence[Segment], clean_until: int) -> float:
    """The share of closed bytes in segments that are not wholly clean, 0 to 1."""
    total = sum(segment.size for segment in closed)
    dirty = sum(segment.size for segment in closed if segment.next_offset > clean_until)
    return dirty / total if total else 0.0


def cleanable(closed: Sequence[Segment], config: LogConfig, last_stable_offset: int, now_ms: int) -> list[Segment]:
    """The closed segments that a pass may rewrite: those before the first that is younger than the lag allows, or that has
    something undecided."""
    lag_ms = config.min_compaction_lag_ms

    def may_be_cleaned(segment: Segment) -> bool:
        decided = segment.next_offset <= last_stable_offset
        return decided and (lag_ms <= 0 or is_as_old_as(segment, lag_ms, now_ms))

    return list(takewhile(may_be_cleaned, closed))


def is_worth_cleaning(cleanable: Sequence[Segment], clean_until: int, config: LogConfig, now_ms: int) -> bool:
    """Whether enough is dirty, or something has waited for as long as it may.

    Half of ``max_compaction_lag_ms`` may pass before the active segment is closed (``retention.is_due_to_close``), so the
    other half is what a closed one may wait.
    """
    dirty = [segment for segment in cleanable if segment.next_offset > clean_until]
    if not dirty:
        return False
    if dirty_ratio(cleanable, clean_until) > config.min_cleanable_dirty_ratio:
        return True
    lag_ms = config.max_compaction_lag_ms
    if lag_ms == UNLIMITED:
        return False
    since_ms = appended_ms(dirty[0], now_ms)  # a timestamp may be earlier, but nothing waits since before its append
    if dirty[0].max_timestamp >= 0:
        since_ms = min(dirty[0].max_timestamp, since_ms)
    return now_ms - since_ms >= lag_ms // 2


def readable(header: BatchHeader, batch: memoryview) -> Columns | None:
    """The columns of a batch, or None when it is what its producer wrote but does not decode.

    The daemon inflates what it takes, but not the headers of records within, and an older one inflated nothing: such a
    batch must not stop compaction, it stays as it is. Raises ``ProtocolError`` for a batch that the disk has damaged.
    """
    check_body(batch, 0, header)
    try:
        columns = decode_columns(batch, 0, header)
        columns.check()
        columns.headers()
    except ProtocolError:
        return None
    return columns


def goes(header: BatchHeader, aborted: AbortedBatches) -> bool:
    """Whether nothing of a batch below the last stable offset stays: an end marker, or records that were aborted."""
    return bool(header.attributes & _CONTROL) or aborted.has(header.attributes, header.producer_id, header.base_offset)


class OffsetMap:
    """The last offset of every key from ``start_offset`` on, in one pass over the batches, in order."""

    def __init__(self, start_offset: int, limit_bytes: int = MAP_BYTES) -> None:
        self.end_offset = start_offset
        self.complete = False
        """Whether no further batch may be added: the map is full."""
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._last_offsets: dict[bytes | None, int] = {}

    def add(self, header: BatchHeader, batch: memoryview, aborted: AbortedBatches = NOTHING_ABORTED) -> None:
        """Takes in the next batch, unless the map is complete. Raises ``ProtocolError`` for a damaged batch."""
        if self.complete:
            return
        columns = None if goes(header, aborted) else readable(header, batch)
        self.end_offset = header.next_offset
        if columns is None:
            return
        base, known = header.base_offset, len(self._last_offsets)
        if columns.flags.keys and columns.count:
            offsets = [base + delta for delta in columns.offset_deltas()]
            keys = columns.keys()
            self._last_offsets.update(zip(keys, offsets, strict=True))
            new, key_bytes = len(self._last_offsets) - known, columns.key_range[1] - columns.key_range[0]
            # Which ones are new would cost more to find out: they are no longer than the longest, and than all.
            if new:
                longest = max(len(key) for key in keys if key is not None)
                self._bytes += new * _ENTRY_BYTES + min(new * longest, key_bytes)
            self._last_offsets.pop(None, None)
        self.complete = self._bytes >= self._limit_bytes

    def superseded(self, key: bytes, offset: int) -> bool:
        """Whether a later record of this key is in the map."""
        return self._last_offsets.get(key, -1) > offset


Record = tuple[int, bytes | None, bytes | None, int, Headers]
"""Offset, key, value, timestamp in ms, headers."""


@dataclass(slots=True)
class _Run:
    """Records that will be one batch. They share what a batch has only once."""

    leader_epoch: int = -1
    compression: Compression | None = None
    horizon: int = _NO_HORIZON
    size: int = 0
    records: list[Record] = field(default_factory=list)


class BatchRewriter:
    """Rewrites the batches of one output segment, which begins at ``base_offset``.

    ``feed`` the batches in order, then ``finish``; both yield header and body of the batches to write, and
    ``body`` is valid until the next step. ``remembered`` holds the base offsets of batches that keep their producer's
    numbers. ``delete_horizon_ms`` is the time until which tombstones cleaned for the first time now are kept.
    """

    def __init__(
        self, base_offset: int, offsets: OffsetMap, remembered: frozenset[int], now_ms: int, delete_horizon_ms: int
    ) -> None:
        self._offsets = offsets
        self._remembered = remembered
        self._now_ms = now_ms
        self._delete_horizon_ms = delete_horizon_ms
        self._covered = base_offset
        self._held: tuple[BatchHeader, bytes] | None = None
        self._run = _Run()
        self.aborted = NOTHING_ABORTED
        """The aborted transactions that overlap what is fed."""
        self.records_in = 0
        self.records_out = 0
        self.keyless_dropped = 0
        self.unreadable_kept = 0

    @property
    def pending_bytes(self) -> int:
        """About how much has been fed and not yet come out."""
        return self._run.size + (self._held[0].length if self._held else 0)

    def feed(self, header: BatchHeader, batch: memoryview) -> Iterator[tuple[BatchHeader, bytes]]:
        """Takes the next batch. Raises ``ProtocolError`` when it is damaged."""
        self.records_in += header.record_count
        if header.base_offset >= self._offsets.end_offset:
            yield from self._end_run()
            yield from self._copy(header, batch)
            return
        if goes(header, self.aborted):
            check_body(batch, 0, header)
            return
        columns = readable(header, batch)
        if header.attributes & _TRANSACTIONAL:  # committed: from here on like any other
            header = _without_producer(header)
        if columns is None:
            self.unreadable_kept += 1
            yield from self._end_run()
            yield from self._copy(header, batch)
            return
        records, horizon = self._kept(header, columns)
        if header.producer_id >= 0 and header.base_offset in self._remembered:
            yield from self._end_run()
            yield from self._producer_batch(header, batch, records, horizon)
        elif len(records) == header.record_count and header.length >= _WHOLE_BYTES:
            yield from self._end_run()
            yield from self._copy(_with_horizon(_without_producer(header), horizon), batch)
        else:
            yield from self._join(header, batch, records, horizon)

    def finish(self, next_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """The rest, up to the end of the segment at ``next_offset``."""
        yield from self._end_run()
        yield from self._cover(next_offset)
        if self._held is not None:
            yield self._held
            self._held = None

    def _kept(self, header: BatchHeader, columns: Columns) -> tuple[list[Record], int]:
        """The records that stay, and the horizon of the tombstones among them."""
        cleaned_before = bool(header.attributes & Attributes.DELETE_HORIZON)
        horizon = header.base_timestamp if cleaned_before else self._delete_horizon_ms
        expired = cleaned_before and self._now_ms >= horizon
        timestamps: list[int] = columns.timestamps_ms().tolist()
        if header.attributes & Attributes.LOG_APPEND_TIME:
            timestamps = [header.max_timestamp] * columns.count
        kept: list[Record] = []
        tombstones = False
        base, superseded = header.base_offset, self._offsets.superseded
        for delta, key, value, timestamp, headers in zip(
            columns.offset_deltas(), columns.keys(), columns.values(), timestamps, columns.headers(), strict=True
        ):
            if key is None:
                self.keyless_dropped += 1
            elif not superseded(key, base + delta):
                if value is None:
                    if expired:
                        continue
                    tombstones = True
                kept.append((base + delta, key, value, timestamp, headers))
        return kept, horizon if tombstones else _NO_HORIZON

    def _join(
        self, header: BatchHeader, batch: memoryview, records: list[Record], horizon: int
    ) -> Iterator[tuple[BatchHeader, bytes]]:
        if not records:
            return
        run, compression = self._run, compression_of_columns(batch, 0, header)
        apart = (run.leader_epoch, run.compression) != (header.leader_epoch, compression)
        if run.records and (apart or (_NO_HORIZON not in (run.horizon, horizon) and run.horizon != horizon)):
            yield from self._end_run()
        run = self._run
        run.leader_epoch, run.compression = header.leader_epoch, compression
        for record in records:
            size = len(record[1] or b"") + len(record[2] or b"") + 20
            full = len(run.records) >= JOINED_RECORDS or run.size + size > JOINED_BYTES
            if run.records and (full or self._too_far(record[0])):
                yield from self._end_run()
                run = self._run
                run.leader_epoch, run.compression = header.leader_epoch, compression
            if horizon != _NO_HORIZON:
                run.horizon = horizon
            run.records.append(record)
            run.size += size

    def _too_far(self, offset: int) -> bool:
        return offset - self._run.records[0][0] > _MAX_DELTA

    def _end_run(self) -> Iterator[tuple[BatchHeader, bytes]]:
        run, self._run = self._run, _Run()
        if not run.records:
            return
        offsets, keys, values, timestamps, headers = zip(*run.records, strict=True)
        batch = encode_batch(
            values, keys, timestamps_ms=timestamps, headers=headers, offsets=offsets, compression=run.compression
        )
        header = replace(read_header(batch), leader_epoch=run.leader_epoch)
        yield from self._place(_with_horizon(header, run.horizon), batch[HEADER_BYTES:])

    def _producer_batch(
        self, header: BatchHeader, batch: memoryview, records: list[Record], horizon: int
    ) -> Iterator[tuple[BatchHeader, bytes]]:
        if len(records) < header.record_count:
            flags, body = _thinned(header.base_offset, records)
            compression = compression_of_columns(batch, 0, header)
            body_length, body = len(body), compressed(body, compression)
            if max(len(body), body_length) + HEADER_BYTES <= MAX_BATCH_BYTES:
                timestamps = [record[3] for record in records]
                header = replace(
                    header,
                    length=HEADER_BYTES + len(body),
                    body_crc=crc32(body),
                    attributes=body_attributes(flags, compression),
                    base_timestamp=min(timestamps, default=NO_TIMESTAMP),
                    max_timestamp=max(timestamps, default=NO_TIMESTAMP),
                    record_count=len(records),
                    body_length=body_length,
                )
                yield from self._place(_with_horizon(header, horizon), body)
                return
        yield from self._copy(_with_horizon(header, horizon), batch)

    def _copy(self, header: BatchHeader, batch: memoryview) -> Iterator[tuple[BatchHeader, bytes]]:
        yield from self._place(header, bytes(batch[HEADER_BYTES:]))

    def _place(self, header: BatchHeader, body: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yields the batch before this one, which now knows how far it has to reach, and keeps this one."""
        self.records_out += header.record_count
        yield from self._cover(header.base_offset)
        if self._held is not None:
            yield self._held
        self._held = header, body
        self._covered = header.next_offset

    def _cover(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Covers what was removed between the last batch and ``offset``."""
        while self._covered < offset:
            if self._held is not None:
                header, body = self._held
                if header.producer_id < 0 and offset - 1 - header.base_offset <= _MAX_DELTA:
                    self._held = replace(header, last_offset_delta=offset - 1 - header.base_offset), body
                    self._covered = offset
                    return
                yield self._held
            self._held = empty_batch(self._covered, min(offset - 1 - self._covered, _MAX_DELTA))
            self._covered = self._held[0].next_offset


def tail_of(batch: bytes, offset: int) -> bytes:
    """What a batch has from ``offset`` on, which it covers: for a follower that ends within a batch that compaction joined,
    or begins where the log does, within a batch of which records were deleted.

    It keeps epoch, attributes and timestamps; its records, end markers too, keep their offsets. Raises ``ProtocolError``
    when the batch is damaged, and ``ModuleNotFoundError`` without its compression.
    """
    header = read_header(batch)
    check_body(batch, 0, header)
    skipped = offset - header.base_offset
    if not 0 < skipped <= header.last_offset_delta:
        raise ValueError(
            f"offset {offset} is not within the batch of offsets {header.base_offset} to {header.last_offset}"
        )
    columns = decode_columns(batch, 0, header)
    timestamps: list[int] = columns.timestamps_ms().tolist()
    records: list[Record] = [
        (header.base_offset + delta, key, value, timestamp, headers)
        for delta, key, value, timestamp, headers in zip(
            columns.offset_deltas(), columns.keys(), columns.values(), timestamps, columns.headers(), strict=True
        )
        if delta >= skipped
    ]
    if not records:
        empty, nothing = empty_batch(offset, header.last_offset_delta - skipped)
        return replace(empty, leader_epoch=header.leader_epoch).pack() + nothing
    flags, encoded = _thinned(offset, records)
    compression = compression_of_columns(batch, 0, header)
    body = compressed(encoded, compression)
    sequence = header.base_sequence
    tail = replace(
        header,
        length=HEADER_BYTES + len(body),
        body_crc=crc32(body),
        base_offset=offset,
        attributes=body_attributes(flags, compression) | header.attributes & ~_BODY,
        base_sequence=sequence_after(sequence, skipped) if sequence >= 0 else sequence,
        record_count=len(records),
        last_offset_delta=header.last_offset_delta - skipped,
        body_length=len(encoded),
    )
    return tail.pack() + body


def _thinned(base_offset: int, records: list[Record]) -> tuple[ColumnFlags, bytes]:
    return encode_columns(
        [record[2] for record in records],
        [record[1] for record in records],
        [record[3] for record in records],
        [record[4] for record in records],
        [record[0] - base_offset for record in records],
    )


def _without_producer(header: BatchHeader) -> BatchHeader:
    """The same batch without a producer, its sequence and its transaction."""
    attributes = header.attributes & ~_TRANSACTIONAL
    return replace(header, attributes=attributes, producer_id=-1, producer_epoch=-1, base_sequence=-1, kept_epoch=-1)


def _with_horizon(header: BatchHeader, horizon: int) -> BatchHeader:
    """The same batch, which keeps its tombstones until ``horizon`` if it has any."""
    if horizon == _NO_HORIZON:
        return header
    return replace(header, attributes=header.attributes | Attributes.DELETE_HORIZON, base_timestamp=horizon)
