"""How many records ``getmany`` and ``getmany_columns`` hand out, and what the machine does with their bytes at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Final

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.records import (
    PARTITIONS,
    TOPIC,
    VALUE_SIZES,
    checksum_seconds,
    slice_seconds,
    socket_seconds,
    values,
)
from client.cli.failure import CommandError
from client.cli.processes import daemon
from client.consumer import Consumer
from client.producer.producer import Producer
from client.types.records import IsolationLevel

_BULK_RECORDS: Final = 20_000
_WAIT_MS: Final = 5000
_IN_MEMORY: Final = "the same bytes cut into ConsumerRecord objects in memory"
_OVER_TCP: Final = "the same bytes over TCP on the loopback"
_OVER_TCP_CHECKED: Final = "the same bytes over TCP on the loopback, then through crc32"


@dataclass(slots=True)
class _Rounds:
    """Seconds of each round."""

    slices: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    checksums: list[float] = field(default_factory=list)
    records: list[float] = field(default_factory=list)
    columns: list[float] = field(default_factory=list)


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Floors and consumers take turns; the medians count. A new consumer reads everything each time."""
    for size in VALUE_SIZES:
        count = 2_000 if setting.quick else 100_000_000 // size
        rounds = await _measure(setting, size, count)
        for figure in _figures(rounds, size, count):
            yield figure


async def _measure(setting: Setting, size: int, count: int) -> _Rounds:
    content, rounds = values(count, size), _Rounds()
    async with daemon(setting.directory / f"data-{size}", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: PARTITIONS})
        async with Producer(bootstrap_servers=server.address) as producer:
            for start in range(0, count, _BULK_RECORDS):
                await producer.send_many(TOPIC, content[start : start + _BULK_RECORDS])
        for _ in range(1 if setting.quick else 3):
            rounds.slices.append(await asyncio.to_thread(slice_seconds, content, size))
            rounds.copies.append(await asyncio.to_thread(socket_seconds, count * size))
            rounds.checksums.append(await asyncio.to_thread(checksum_seconds, content, size))
            rounds.records.append(await read_seconds(server.address, count, one_getmany))
            rounds.columns.append(await read_seconds(server.address, count, one_getmany_columns))
    return rounds


def _figures(rounds: _Rounds, size: int, count: int) -> Iterator[Figure]:
    params = {"value_bytes": size, "records": count, "partitions": PARTITIONS, "rounds": len(rounds.records)}
    megabytes = count * size / 1e6
    records, columns = median(rounds.records), median(rounds.columns)
    copied = median(rounds.copies)
    checked = copied + median(rounds.checksums)

    def figure(metric: str, amount: float, unit: str, seconds: float, floor: float, floor_name: str) -> Figure:
        return Figure("consume", metric, amount / seconds, unit, amount / floor, floor_name, params)

    yield figure(f"getmany_{size}_records_per_s", count, "1/s", records, median(rounds.slices), _IN_MEMORY)
    yield figure(f"getmany_{size}_mb_per_s", megabytes, "MB/s", records, copied, _OVER_TCP)
    yield figure(f"columns_{size}_records_per_s", count, "1/s", columns, checked, _OVER_TCP_CHECKED)
    yield figure(f"columns_{size}_mb_per_s", megabytes, "MB/s", columns, checked, _OVER_TCP_CHECKED)


async def one_getmany(consumer: Consumer) -> int:
    """How many records one poll brings."""
    return sum(map(len, (await consumer.getmany(timeout_ms=_WAIT_MS)).values()))


async def one_getmany_columns(consumer: Consumer) -> int:
    """How many records one poll brings as columns."""
    taken = await consumer.getmany_columns(timeout_ms=_WAIT_MS)
    return sum(len(columns) for parts in taken.values() for columns in parts)


async def read_seconds(
    address: str,
    count: int,
    poll: Callable[[Consumer], Awaitable[int]],
    topic: str = TOPIC,
    isolation_level: IsolationLevel = "read_committed",
) -> float:
    """Seconds from the first poll of a new consumer until all ``count`` records of a topic were handed out."""
    settings: dict[str, Any] = {"bootstrap_servers": address, "auto_offset_reset": "earliest"}
    async with Consumer(topic, isolation_level=isolation_level, **settings) as consumer:
        began = perf_counter()
        read = 0
        while read < count:
            got = await poll(consumer)
            if not got:
                raise CommandError(f"{topic}: {read:,} of {count:,} records came, then nothing for {_WAIT_MS} ms")
            read += got
        return perf_counter() - began
