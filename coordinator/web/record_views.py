"""Records of one partition: the newest, those before an offset, from an offset or from a time on, once or as they come.

Batches are read and decoded as for a consumer, in a thread. What an answer has is bounded by records and by bytes; of a long
key or value it has the beginning. Bytes travel as base64: the page shows them as text, JSON or hex. Records of transactions
that are open, or were aborted, are shown as well: this is what the log has.

An answer says which offsets it has looked through: all records from ``before`` up to ``next`` are in it, however few they
are. What is older is asked for from ``before`` back, what is newer from ``next`` on: none is left out, none comes twice.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.log.errors import LogError, OffsetNotInLogError
from coordinator.log.partition import PartitionLog
from coordinator.metadata.catalog import TopicError
from coordinator.server.handlers.led_partitions import LedPartitions
from coordinator.web.cluster_views import find_topic
from coordinator.web.view import MAX_ROWS, Pace, PageSources, Query, ViewError, exact
from protocol.control_batch import decode_control_batch
from protocol.errors import ProtocolError
from protocol.names import clipped
from protocol.record_batch import Attributes, BatchHeader, decode_columns, iter_batches, what_to_install

MAX_VALUE_BYTES: Final = 4096
"""Bytes of a key or value that a list has."""
MAX_WHOLE_BYTES: Final = 512 * 1024
"""Bytes of the key and of the value of one record that is asked for as a whole."""
MAX_BYTES: Final = 1024 * 1024
"""Bytes of keys, values and headers in one answer."""
_MAX_HEADERS: Final = 30
_READ_BYTES: Final = 256 * 1024
"""Bytes of one read of the log, which has one batch at least."""
_MAX_READS: Final = 100
_MAX_READ_BYTES: Final = 64 * 1024 * 1024
"""Bytes of batches after which no more are read for an answer, which then has fewer records."""
_FAR_BEHIND: Final = 1_000
"""A page that follows and is so many records behind goes on near the end."""


@dataclass(slots=True)
class _Reading:
    """What is still to be looked through: from ``offset`` up to ``end``, with so much room.

    Forwards ``offset`` rises; backwards, from the end on, ``end`` falls.
    """

    offset: int
    end: int
    limit: int
    value_bytes: int
    backwards: bool = False
    room: int = MAX_BYTES
    span: int = field(init=False)
    """Backwards: so many offsets before ``end`` are tried with one read, which may not bring all of them."""

    def __post_init__(self) -> None:
        self.span = self.limit

    @property
    def is_full(self) -> bool:
        """Whether the answer has no room for another record."""
        return self.limit <= 0 or self.room <= 0

    @property
    def start(self) -> int:
        """The offset of the next read."""
        return max(self.offset, self.end - self.span) if self.backwards else self.offset

    def took(self, row: dict[str, Any]) -> None:
        """A record goes into the answer: what has been looked through ends with it."""
        self.limit -= 1
        self.room -= row.pop("room")
        if self.backwards:
            self.end = row["offset"]
        else:
            self.offset = row["offset"] + 1

    def passed(self, header: BatchHeader) -> None:
        """All of a batch has been looked through."""
        if self.backwards:
            self.end = max(self.offset, min(self.end, header.base_offset))
        else:
            self.offset = max(self.offset, min(self.end, header.next_offset))

    def reaches(self, batches_end: int, size: int) -> bool:
        """Backwards: whether batches of ``size`` bytes that end before ``batches_end`` are the last ones; sets ``span``.

        Large batches do not fit one read, and no read goes on into another segment: then fewer offsets are tried, down to
        one, whose batch always reaches the end.
        """
        if batches_end < self.end:
            self.span = max(self.span // 2, 1)
            return False
        if size <= _READ_BYTES // 2:
            self.span *= 2
        return True


async def records(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """Records of ``partition`` of ``topic``, up to ``limit`` and in the log's order.

    ``from`` is newest, before (the last ones below ``offset``), offset (from ``offset`` on), time (from ``time_ms`` on), or
    following: from ``offset`` on as a stream of events goes on, for a page that gets none.
    """
    log = _find_log(sources, query)
    origin, note, skipped = query.choice("from", "newest", "before", "offset", "time", "following"), "", 0
    first, end = log.start_offset, log.high_watermark
    whole = query.choice("whole", "no", "yes") == "yes"
    limit = 1 if whole else query.number("limit", 50, 1, MAX_ROWS)
    reading = _Reading(first, end, limit, MAX_WHOLE_BYTES if whole else MAX_VALUE_BYTES)
    try:
        if origin == "offset" or origin == "before":
            wanted = query.number("offset", 0)
            offset = min(max(wanted, first), end)
            note = "" if wanted == offset else f"offset {wanted} is not there: the partition has {first} to {end}"
        elif origin == "time":
            found = await pace.rest(log.offset_for_timestamp(query.number("time_ms", 0)))
            offset = end if found is None else found[0]
            note = "no record is that new" if found is None else ""
        elif origin == "following":
            offset, skipped = _position(log, query.number("offset", -1, -1))
        else:
            offset = end
        if origin in ("newest", "before"):
            reading.end, reading.backwards = offset, True
        else:
            reading.offset = offset
        rows = await pace.rest(_read(sources, log, reading))
    except (LogError, OSError, ProtocolError) as error:
        raise ViewError(409, f"the records cannot be read: {clipped(str(error), 500)}") from error
    before, behind = (reading.end, offset) if reading.backwards else (offset, reading.offset)
    return {
        "records": rows,
        "first": exact(first),
        "end": exact(end),
        "before": exact(before),
        "next": exact(behind),
        "note": note,
        "skipped": skipped,
    }


class Follower:
    """The records that come to a partition while somebody looks."""

    def __init__(self, sources: PageSources, query: Query) -> None:
        self._sources = sources
        self._query = query
        self._offset = query.number("offset", -1, -1)

    async def look(self, pace: Pace) -> dict[str, Any] | None:
        """The next records, None while there are none. Raises ``ViewError`` when the partition cannot be read."""
        log = _find_log(self._sources, self._query)
        end = log.high_watermark
        self._offset, skipped = _position(log, self._offset)
        if self._offset == end:
            return None
        reading = _Reading(self._offset, end, MAX_ROWS, MAX_VALUE_BYTES)
        try:
            rows = await pace.rest(_read(self._sources, log, reading))
        except OffsetNotInLogError:
            return None  # retention was faster: the next look begins at the end
        except (LogError, OSError, ProtocolError) as error:
            raise ViewError(409, f"the records cannot be read: {clipped(str(error), 500)}") from error
        self._offset = reading.offset
        return {"records": rows, "end": exact(end), "next": exact(self._offset), "skipped": skipped}


def _find_log(sources: PageSources, query: Query) -> PartitionLog:
    topic = find_topic(sources, query.required("topic"))
    node = sources.node
    try:
        led = LedPartitions(node.catalog, node.logs, node.membership)
        return led.find(topic.name, query.number("partition", 0, high=2**31 - 1), -1)[0]
    except TopicError as error:
        raise ViewError(404, str(error)) from error


def _position(log: PartitionLog, offset: int) -> tuple[int, int]:
    """Where a page that has seen all below ``offset`` goes on, and how many records it leaves out."""
    end = log.high_watermark
    if not log.start_offset <= offset <= end:
        return end, 0  # the log was cut, or this is the beginning
    if end - offset > _FAR_BEHIND:
        return end - MAX_ROWS, end - MAX_ROWS - offset
    return offset, 0


async def _read(sources: PageSources, log: PartitionLog, reading: _Reading) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    size = 0
    async with sources.decoding:
        for _ in range(_MAX_READS):
            if reading.offset >= reading.end or reading.is_full or size >= _MAX_READ_BYTES:
                break
            # Backwards also the batch that ``end`` lies in is of use, so the read ends at the high watermark.
            batches = await log.read(reading.start, _READ_BYTES, end_offset=None if reading.backwards else reading.end)
            if not batches:
                break
            size += len(batches)
            rows += await asyncio.to_thread(_decoded, batches, reading)
    return rows[::-1] if reading.backwards else rows


def _decoded(batches: bytes, reading: _Reading) -> list[dict[str, Any]]:
    """The records of these batches as far as there is room, backwards the last first; ``reading`` goes on behind them."""
    found = [(at, header) for at, header in iter_batches(batches) if header.base_offset < reading.end]
    if reading.backwards:
        if not reading.reaches(found[-1][1].next_offset, len(batches)):
            return []
        found.reverse()
    rows: list[dict[str, Any]] = []
    for position, header in found:
        if header.attributes & Attributes.CONTROL:
            of_batch = _markers(batches, position, header, reading)
        else:
            of_batch = _rows(batches, position, header, reading)
        for row in reversed(of_batch) if reading.backwards else of_batch:
            if reading.is_full:
                return rows
            reading.took(row)
            rows.append(row)
        if reading.is_full:
            break  # perhaps in the middle of a batch
        reading.passed(header)
    return rows


def _wanted(base_offset: int, deltas: Sequence[int], reading: _Reading) -> tuple[int, int]:
    """Which records of a batch are to be looked at: from one up to another, as many as are still wanted."""
    low = bisect_left(deltas, reading.offset - base_offset)
    high = bisect_left(deltas, reading.end - base_offset)
    if reading.backwards:
        return max(low, high - reading.limit), high
    return low, min(high, low + reading.limit)


def _markers(batches: bytes, position: int, header: BatchHeader, reading: _Reading) -> list[dict[str, Any]]:
    ends = decode_control_batch(batches, position, header)
    low, high = _wanted(header.base_offset, range(len(ends)), reading)
    return [
        {
            "offset": header.base_offset + delta,
            "time_ms": header.max_timestamp,
            "marker": "commit" if ends[delta].committed else "abort",
            "producer_id": exact(ends[delta].producer_id),
            "room": 100,
        }
        for delta in range(low, high)
    ]


def _rows(batches: bytes, position: int, header: BatchHeader, reading: _Reading) -> list[dict[str, Any]]:
    try:
        columns = decode_columns(batches, position, header)
    except ModuleNotFoundError as error:
        raise ProtocolError(what_to_install(error)) from error
    deltas = columns.offset_deltas()
    low, high = _wanted(header.base_offset, deltas, reading)
    times = columns.timestamps_ms()
    append_time = header.append_time_ms
    key_column = columns.key_column(low, high)
    keys = [None] * (high - low) if key_column is None else key_column.items()
    values = columns.value_column(low, high).items()
    headers = columns.headers(low, high)
    rows = []
    for at, key, value, attached in zip(range(low, high), keys, values, headers, strict=True):
        row: dict[str, Any] = {
            "offset": header.base_offset + deltas[at],
            "time_ms": times[at] if append_time < 0 else append_time,
            **_bytes("key", key, reading.value_bytes),
            **_bytes("value", value, reading.value_bytes),
            "headers": [
                {"name": clipped(name), **_bytes("value", content, reading.value_bytes)}
                for name, content in attached[:_MAX_HEADERS]
            ],
            "headers_total": len(attached),
            "transactional": bool(header.attributes & Attributes.TRANSACTIONAL),
        }
        held = (key, value, *(content for _, content in attached[:_MAX_HEADERS]))
        row["room"] = 100 + sum(min(len(one or b""), reading.value_bytes) for one in held)
        rows.append(row)
    return rows


def _bytes(name: str, content: bytes | None, most: int) -> dict[str, Any]:
    """The beginning of a key or value, and its size; None and -1 for null."""
    if content is None:
        return {name: None, f"{name}_size": -1}
    return {name: b64encode(content[:most]).decode(), f"{name}_size": len(content)}
