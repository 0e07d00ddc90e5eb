"""Records of one partition: the newest, from an offset or from a time on, once or as they come.

Batches are read and decoded as for a consumer, in a thread. What an answer has is bounded by records and by bytes; of a long
key or value it has the beginning. Bytes travel as base64: the page shows them as text, JSON or hex. Records of transactions
that are open, or were aborted, are shown as well: this is what the log has.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import dataclass
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
_MAX_READS: Final = 30
_FAR_BEHIND: Final = 1_000
"""A page that follows and is so many records behind goes on near the end."""


@dataclass(slots=True)
class _Reading:
    """What is still to be read: up to ``end``, with so much room."""

    offset: int
    end: int
    limit: int
    room: int
    value_bytes: int


async def records(sources: PageSources, query: Query, pace: Pace) -> dict[str, Any]:
    """Records of ``partition`` of ``topic``: ``from`` newest, offset (``offset``) or time (``time_ms``), up to ``limit``."""
    log = _find_log(sources, query)
    limit = query.number("limit", 50, 1, MAX_ROWS)
    origin, note = query.choice("from", "newest", "offset", "time"), ""
    first, end = log.start_offset, log.high_watermark
    offset = max(first, end - limit)
    try:
        if origin == "offset":
            wanted = query.number("offset", 0)
            offset = min(max(wanted, first), end)
            note = "" if wanted == offset else f"offset {wanted} is not there: the partition has {first} to {end}"
        elif origin == "time":
            found = await pace.rest(log.offset_for_timestamp(query.number("time_ms", 0)))
            offset = end if found is None else found[0]
            note = "no record is that new" if found is None else ""
        whole = query.choice("whole", "no", "yes") == "yes"
        reading = _Reading(offset, end, 1 if whole else limit, MAX_BYTES, MAX_WHOLE_BYTES if whole else MAX_VALUE_BYTES)
        rows = await pace.rest(_read(sources, log, reading))
    except (LogError, OSError, ProtocolError) as error:
        raise ViewError(409, f"the records cannot be read: {clipped(str(error), 500)}") from error
    return {
        "records": rows,
        "first": exact(first),
        "end": exact(end),
        "next": exact(reading.offset),
        "note": note,
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
        end, skipped = log.high_watermark, 0
        if not log.start_offset <= self._offset <= end:
            self._offset = end  # the log was cut, or this is the beginning
        if end - self._offset > _FAR_BEHIND:
            skipped = end - MAX_ROWS - self._offset
            self._offset = end - MAX_ROWS
        if self._offset == end:
            return None
        reading = _Reading(self._offset, end, MAX_ROWS, MAX_BYTES, MAX_VALUE_BYTES)
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


async def _read(sources: PageSources, log: PartitionLog, reading: _Reading) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with sources.decoding:
        for _ in range(_MAX_READS):
            if reading.offset >= reading.end or reading.limit <= 0 or reading.room <= 0:
                break
            batches = await log.read(reading.offset, _READ_BYTES, end_offset=reading.end)
            if not batches:
                break
            rows += await asyncio.to_thread(_decoded, batches, reading)
    return rows


def _decoded(batches: bytes, reading: _Reading) -> list[dict[str, Any]]:
    """The records of these batches as far as there is room; ``reading`` goes on behind them."""
    rows: list[dict[str, Any]] = []
    for position, header in iter_batches(batches):
        if header.attributes & Attributes.CONTROL:
            found = _markers(batches, position, header)
        else:
            found = _rows(batches, position, header, reading)
        for row in found:
            if row["offset"] < reading.offset or row["offset"] >= reading.end:
                continue
            if reading.limit <= 0 or reading.room <= 0:
                return rows
            reading.offset = row["offset"] + 1
            reading.limit -= 1
            reading.room -= row.pop("room")
            rows.append(row)
        if reading.limit <= 0 or reading.room <= 0:
            break  # perhaps in the middle of a batch
        reading.offset = max(reading.offset, min(header.next_offset, reading.end))
    return rows


def _markers(batches: bytes, position: int, header: BatchHeader) -> list[dict[str, Any]]:
    return [
        {
            "offset": header.base_offset + delta,
            "time_ms": header.max_timestamp,
            "marker": "commit" if end.committed else "abort",
            "producer_id": exact(end.producer_id),
            "room": 100,
        }
        for delta, end in enumerate(decode_control_batch(batches, position, header))
    ]


def _rows(batches: bytes, position: int, header: BatchHeader, reading: _Reading) -> list[dict[str, Any]]:
    try:
        columns = decode_columns(batches, position, header)
    except ModuleNotFoundError as error:
        raise ProtocolError(what_to_install(error)) from error
    deltas = columns.offset_deltas()
    low = next((at for at, delta in enumerate(deltas) if header.base_offset + delta >= reading.offset), columns.count)
    high = min(columns.count, low + reading.limit)
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
