"""Opening logs, filling them and reading them back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import Storage
from coordinator.log import LogConfig, PartitionLog
from coordinator.log.directories import make_logs, sync_logs
from protocol.record_batch import BatchHeader, decode_columns, encode_batch, iter_batches, read_header

DIRECTORY = "orders-0"

Record = tuple[bytes | None, bytes | None, int]
"""Key, value, timestamp."""


def end_of_process(reason: str) -> None:
    """The ``on_fatal`` of tests in which nothing fatal may happen."""
    raise AssertionError(reason)


def made(storage: Storage, directory: str = DIRECTORY) -> None:
    """Makes an empty log, if there is no directory of the name."""
    if not storage.exists(directory):
        make_logs(storage, [directory])
        sync_logs(storage, [directory])


@asynccontextmanager
async def opened(
    storage: Storage, config: LogConfig | None = None, *, leader_epoch: int | None = 0, close: bool = True
) -> AsyncIterator[PartitionLog]:
    """The log in ``DIRECTORY``, made if there is none; closed at the end, or left as a crash leaves it."""
    disk = Disk(storage, threads=2)
    try:
        made(storage)
        log = await PartitionLog.open(
            disk, DIRECTORY, config or LogConfig(), leader_epoch=leader_epoch, on_fatal=end_of_process
        )
        yield log
        if close:
            await log.close()
    finally:
        disk.close()


def batch_of(*records: Record, producer_id: int = -1, base_sequence: int = -1) -> bytes:
    keys, values, timestamps = zip(*records, strict=True)
    return encode_batch(
        values, keys, timestamps_ms=timestamps, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence
    )


def append(log: PartitionLog, *records: Record) -> int:
    """Appends the records as one batch and returns its base offset."""
    batch = batch_of(*records)
    return log.append(batch, read_header(batch)).base_offset


def append_value(log: PartitionLog, value: bytes, timestamp_ms: int = 0) -> int:
    return append(log, (None, value, timestamp_ms))


async def outcome(log: PartitionLog) -> Exception | None:
    """What becomes of everything appended so far, as the callback is told."""
    future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    log.when_durable(log.end_offset, future.set_result)
    return await future


async def batches_in(log: PartitionLog, max_bytes: int = 1 << 20) -> list[tuple[BatchHeader, bytes]]:
    """Every batch below the high watermark, in order, with the bytes it has on disk."""
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.start_offset
    while data := await log.read(offset, max_bytes):
        for position, header in iter_batches(data):
            found.append((header, data[position : position + header.length]))
            offset = header.next_offset
    return found


def records_of(batches: Sequence[tuple[BatchHeader, bytes]]) -> dict[int, Record]:
    """The records by offset. Raises ``ProtocolError`` when one is not what was written."""
    records: dict[int, Record] = {}
    for header, batch in batches:
        columns = decode_columns(batch, 0, header)
        for delta, key, value, timestamp in zip(
            columns.offset_deltas(), columns.keys(), columns.values(), columns.timestamps_ms(), strict=True
        ):
            assert header.base_offset <= header.base_offset + delta <= header.last_offset
            records[header.base_offset + delta] = (key, value, timestamp)
    return records


async def records_in(log: PartitionLog, max_bytes: int = 1 << 20) -> dict[int, Record]:
    return records_of(await batches_in(log, max_bytes))


def replay(records: dict[int, Record]) -> dict[bytes | None, bytes]:
    """What a reader of the whole log knows in the end: the last value of each key that has one."""
    state: dict[bytes | None, bytes] = {}
    for offset in sorted(records):
        key, value, _ = records[offset]
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state
