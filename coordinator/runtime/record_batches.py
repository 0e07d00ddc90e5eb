"""The records of a core as batches of its log, and back: slice by slice, so that others have their turn of the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from coordinator.log.partition import PartitionLog
from coordinator.runtime.core import Core, Encoded
from protocol.errors import ProtocolError
from protocol.record_batch import BatchHeader, decode_columns, iter_batches

MAX_BATCH_RECORDS: Final = 4096
"""Records that one batch of the log may hold; more in one loop iteration begin another batch."""

MAX_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of keys and values after which a batch is closed; a single larger record gets a batch of its own."""

RECORDS_PER_TURN: Final = 512
"""Records that a load applies in one turn of the loop: about 2 ms."""

_RECORDS_PER_BATCH: Final = 8
"""What opening a batch costs, counted in records."""

_LOAD_BYTES: Final = 4 * 1024 * 1024


def batches_of(encoded: Iterable[Encoded | None]) -> Iterator[tuple[list[bytes], list[bytes | None]] | None]:
    """Keys and values of the records in their order, cut into batches; None where others should have their turn."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    total = 0
    for record in encoded:
        if record is None:
            yield None
            continue
        key, value = record
        size = len(key) + len(value or b"")
        if len(keys) >= MAX_BATCH_RECORDS or (keys and total + size > MAX_BATCH_BYTES):
            yield keys, values
            keys, values, total = [], [], 0
        keys.append(key)
        values.append(value)
        total += size
    yield keys, values


def replay(core: Core, content: bytes, position: int, header: BatchHeader) -> Iterator[int]:
    """Applies the records of one batch, slice by slice; gives how many there were in each, 0 after a part of a large one.

    Raises ``ProtocolError`` when the batch is damaged.
    """
    columns = decode_columns(content, position, header)
    keys, apply = columns.keys(), core.apply
    if None in keys:
        raise ProtocolError(f"a record without key in the batch at offset {header.base_offset}")
    applied = 0
    for record in core.decode(zip(keys, columns.values(), strict=True)):  # type: ignore[arg-type]
        if record is None:
            yield 0
            continue
        apply(record)
        applied += 1
        if applied == RECORDS_PER_TURN:
            yield applied
            applied = 0
    yield applied or 1


async def replay_log(core: Core, log: PartitionLog, turn: Callable[[], Awaitable[None]]) -> int:
    """Applies all records of a log that are on disk; returns how many. ``turn`` waits for the next turn of the loop.

    Raises ``LogDamagedError``, ``OSError``, and ``LogError`` when the log is closed or truncated meanwhile.
    """
    records, offset, work = 0, log.start_offset, 0
    while offset < (end := log.flushed_offset):
        content = await log.read(offset, _LOAD_BYTES, end_offset=end)
        if not content:
            break  # compaction took the records up to the end
        await turn()
        for position, header in iter_batches(content):
            try:
                for applied in replay(core, content, position, header):
                    records += applied
                    work += applied + _RECORDS_PER_BATCH if applied else RECORDS_PER_TURN
                    if work >= RECORDS_PER_TURN:
                        work = 0
                        await turn()
            except ProtocolError as error:
                raise log.damaged(header.base_offset, str(error)) from error
            offset = header.next_offset
    return records
