"""``cohort log dump`` of a segment: its batches, and on request their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from coordinator.filesystem.storage import File
from coordinator.inspection.batches import Batch, Damage, batches
from coordinator.inspection.coordinator_records import Contents, in_words
from coordinator.inspection.output import Output, content_text, counted, plain, size_text, time_text
from coordinator.log.scan import Hole, proof_of_damage
from protocol.control_batch import decode_control_batch
from protocol.errors import ProtocolError
from protocol.kafka.batch import read_batch_header
from protocol.record_batch import UNKNOWN_GAP, Attributes, BatchHeader, decode_columns, kafka_batch_in, what_to_install

VALUE_BYTES: Final = 100
"""So much of a key or a value is shown if nothing else is asked for."""
_CONTROL: Final = int(Attributes.CONTROL)
_FLAGS: Final = (
    (int(Attributes.TRANSACTIONAL), "transactional"),
    (_CONTROL, "control"),
    (int(Attributes.LOG_APPEND_TIME), "append times"),
    (int(Attributes.DELETE_HORIZON), "delete horizon"),
    (int(Attributes.KAFKA_BODY), "of a Kafka client"),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be shown: offsets from ``first`` to below ``until``; of a key or value ``value_bytes`` bytes, 0 for all."""

    first: int = 0
    until: int = 2**63
    max_batches: int = 2**63
    values: bool = False
    value_bytes: int = VALUE_BYTES


class _Record(NamedTuple):
    offset: int
    text: str
    fields: dict[str, Any]


@dataclass(slots=True)
class _Counts:
    batches: int = 0
    records: int = 0
    first: int | None = None
    last: int | None = None
    damage: list[Damage] = field(default_factory=list)
    undecodable: int = 0


class SegmentDump:
    """Prints one segment. ``contents`` says what its records are."""

    def __init__(self, output: Output, wanted: Wanted, contents: Contents) -> None:
        self._output = output
        self._wanted = wanted
        self._contents = contents
        self._counts = _Counts()

    def run(self, file: File, path: str, base_offset: int | None) -> bool:
        """Prints it; returns False when something in it is damaged. Raises ``OSError``."""
        size = file.size()
        for found in batches(file, size, base_offset):
            if isinstance(found, Damage):
                self._damage(found)
                continue
            if found.header.base_offset >= self._wanted.until or self._counts.batches >= self._wanted.max_batches:
                break
            if found.header.next_offset > self._wanted.first:
                self._batch(found)
        torn = self._is_torn_tail(file, size)
        self._end(path, size, torn)
        return (not self._counts.damage or torn) and not self._counts.undecodable

    def _is_torn_tail(self, file: File, size: int) -> bool:
        """Whether all that is not whole is one end that a crash may have left, or that is being written."""
        if not self._counts.batches or len(self._counts.damage) != 1 or self._counts.damage[0].end < size:
            return False
        (only,) = self._counts.damage
        hole = Hole(only.position, only.offset or 0, only.why, only.position + 8)
        return only.offset is not None and proof_of_damage(file, hole, size) is None

    def _damage(self, found: Damage) -> None:
        self._counts.damage.append(found)
        belongs = "" if found.offset is None else f", where offset {found.offset} belongs"
        length = f"{found.end - found.position:,} bytes are no whole batch: " if found.end > found.position else ""
        self._output.tell("damage", f"position {found.position}{belongs}: {length}{found.why}", found._asdict())

    def _batch(self, batch: Batch) -> None:
        counts, header = self._counts, batch.header
        counts.batches += 1
        counts.records += header.record_count
        counts.first = header.base_offset if counts.first is None else counts.first
        counts.last = header.last_offset
        self._output.tell("batch", _headline(batch), _fields_of(batch))
        if not (self._wanted.values or self._contents != "records" or header.attributes & _CONTROL):
            return
        try:
            for record in self._records(batch):
                if self._wanted.first <= record.offset < self._wanted.until:
                    self._output.tell("record", f"  {record.offset}  {record.text}", record.fields)
        except ProtocolError as error:
            counts.undecodable += 1
            text = f"  the records of the batch at offset {header.base_offset} do not decode: {error}"
            self._output.tell("undecodable", text, {"base_offset": header.base_offset, "why": str(error)})
        except ModuleNotFoundError as error:
            why = what_to_install(error)
            text = f"  the records of the batch at offset {header.base_offset} are not shown: {why}"
            self._output.tell("not_shown", text, {"base_offset": header.base_offset, "why": why})

    def _records(self, batch: Batch) -> Iterator[_Record]:
        header, content = batch.header, batch.content
        if header.attributes & _CONTROL:
            for offset, end in enumerate(decode_control_batch(content, 0, header), header.base_offset):
                text = (
                    f"end marker: the transaction of producer {end.producer_id}, epoch {end.producer_epoch}, which began at "
                    f"offset {end.first_offset}, is {'committed' if end.committed else 'aborted'}"
                )
                yield _Record(offset, text, {"offset": offset, "end": plain(end)})
            return
        columns = decode_columns(content, 0, header)
        columns.check()
        rows = zip(
            columns.offset_deltas(), columns.timestamps_ms(), columns.keys(), columns.values(), columns.headers(),
            strict=True,
        )  # fmt: skip
        for delta, timestamp_ms, key, value, headers in rows:
            offset = header.base_offset + delta
            if self._contents == "records":
                yield self._record(offset, timestamp_ms, key, value, headers)
            else:
                text, fields = in_words(self._contents, key, value)
                yield _Record(offset, text, {"offset": offset, "record": fields})

    def _record(
        self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: tuple[Any, ...]
    ) -> _Record:
        limit = self._wanted.value_bytes
        shown = [f"{name}={content_text(content, limit)}" for name, content in headers]
        text = (
            f"{time_text(timestamp_ms)}  key {content_text(key, limit)}  value {content_text(value, limit)}"
            f"{'  headers ' + ', '.join(shown) if shown else ''}"
        )
        fields = {
            "offset": offset,
            "timestamp_ms": timestamp_ms,
            **_cut("key", key, limit),
            **_cut("value", value, limit),
            "headers": [{"name": name, **_cut("value", content, limit)} for name, content in headers],
        }
        return _Record(offset, text, fields)

    def _end(self, path: str, size: int, torn: bool) -> None:
        counts = self._counts
        offsets = "no offset" if counts.first is None else f"offsets {counts.first} to {counts.last}"
        damage = ""
        if torn:
            damage = (
                f"; the last {size - counts.damage[0].position:,} bytes are being written, or were when the daemon ended, "
                "and were never acknowledged: its next start cuts them off"
            )
        elif counts.damage:
            damage = f"; damaged at {counted(len(counts.damage), 'place')}"
        text = (
            f"{path}: {counted(counts.batches, 'batch', 'batches')} with {counted(counts.records, 'record')}, {offsets}, "
            f"in a file of {size_text(size)}{damage}"
        )
        self._output.tell(
            "segment",
            text,
            {
                "file": path,
                "size": size,
                "batches": counts.batches,
                "records": counts.records,
                "first_offset": counts.first,
                "last_offset": counts.last,
                "damaged_places": 0 if torn else len(counts.damage),
                "torn_tail_bytes": size - counts.damage[0].position if torn else 0,
            },
        )


def _headline(batch: Batch) -> str:
    header = batch.header
    parts = [
        f"offset {header.base_offset}" + (f" to {header.last_offset}" if header.last_offset_delta else ""),
        f"position {batch.position}",
        f"{counted(header.record_count, 'record')} in {header.length:,} bytes",
    ]
    if not header.record_count:
        parts.append("nothing is left of these offsets")
    else:
        first, last = time_text(header.base_timestamp), time_text(header.max_timestamp)
        parts.append(first if first == last else f"{first} to {last}")
    if header.producer_id >= 0:
        parts.append(f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}")
    parts += [_compression(batch), *(name for bit, name in _FLAGS if header.attributes & bit)]
    return "  ".join(filter(None, [*parts, f"leader epoch {header.leader_epoch}"]))


def _compression(batch: Batch) -> str:
    header = batch.header
    try:
        if header.attributes & int(Attributes.KAFKA_BODY):
            codec = read_batch_header(kafka_batch_in(batch.content, 0, header)).codec
            return "" if codec == "none" else codec
        return header.compression or ""
    except ProtocolError as error:
        return str(error)


def _fields_of(batch: Batch) -> dict[str, Any]:
    header: BatchHeader = batch.header
    return {
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.length,
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "leader_epoch": header.leader_epoch,
        "compression": _compression(batch),
        "attributes": [name for bit, name in _FLAGS if header.attributes & bit],
        "durable_below": None if header.durable_gap == UNKNOWN_GAP else header.base_offset - header.durable_gap,
    }


def _cut(name: str, content: bytes | None, limit: int) -> dict[str, Any]:
    """A key or a value for JSON; what is cut says how long it is."""
    if content is None or not limit or len(content) <= limit:
        return {name: plain(content)}
    return {name: plain(content[:limit]), f"{name}_bytes": len(content)}
