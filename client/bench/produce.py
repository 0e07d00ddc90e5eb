"""How many records a producer gets acknowledged, one by one with ``send`` and in bulk with ``send_many``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.disk import write_seconds
from client.bench.figures import Figure, Setting
from client.bench.records import PARTITIONS, TOPIC, VALUE_SIZES, future_seconds, pieces, values
from client.cli.processes import daemon
from client.producer.acknowledgements import RecordFuture
from client.producer.producer import Producer

_BULK_RECORDS: Final = 20_000
_BULK_TIMES: Final = 5
"""``send_many`` gets so many times what ``send`` gets, or it would be done before anything can be said."""

UNDER_WAY: Final = 100_000
"""Records that were sent and whose acknowledgement was not looked at, at most: what librdkafka's queue holds by default
(``queue.buffering.max.messages``). A program that keeps the futures of a million has Python's collector walk them all."""


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Floor and producer take turns; the medians count. Every record is acknowledged after it is on disk."""
    rounds = 1 if setting.quick else 3
    for size in VALUE_SIZES:
        count = 2_000 if setting.quick else 100_000_000 // size // 5
        content = values(count, size)
        bulk = content if setting.quick else content * _BULK_TIMES
        data = setting.directory / f"data-{size}"
        sends: list[float] = []
        bulks: list[float] = []
        promises: list[float] = []
        writes: list[float] = []
        async with daemon(data, "--log-level", "error") as server:
            async with Admin(bootstrap_servers=server.address) as admin:
                await admin.create_topics({TOPIC: PARTITIONS})
            async with Producer(bootstrap_servers=server.address) as producer:
                await producer.send_many(TOPIC, content[:1000])
                for _ in range(rounds):
                    promises.append(await future_seconds(count))
                    sends.append(await send_seconds(producer, content))
                    writes.append(await _write(setting.directory, bulk, size))
                    bulks.append(await send_many_seconds(producer, bulk))
        params = {"value_bytes": size, "partitions": PARTITIONS, "acks": "all", "rounds": rounds}
        promise = "one asyncio future a record, made, settled and awaited"
        write = "the same values joined and written to a file, fdatasync every MiB"
        for name, number, took, floor, floor_name in (
            ("send", count, sends, promises, promise),
            ("send_many", len(bulk), bulks, writes, write),
        ):
            for figure in _figures(f"{name}_{size}", number, size, median(took), median(floor)):
                yield Figure("produce", *figure, floor_name, {**params, "records": number})


def _figures(name: str, count: int, size: int, took_s: float, floor_s: float) -> list[tuple[str, float, str, float]]:
    megabytes = count * size / 1e6
    return [
        (f"{name}_records_per_s", count / took_s, "1/s", count / floor_s),
        (f"{name}_mb_per_s", megabytes / took_s, "MB/s", megabytes / floor_s),
    ]


async def send_seconds(producer: Producer, content: list[bytes]) -> float:
    """Seconds until every record, sent by itself, is acknowledged; each acknowledgement is looked at."""
    began = perf_counter()
    under_way: deque[RecordFuture] = deque()
    for value in content:
        if len(under_way) >= UNDER_WAY:
            await under_way.popleft()
        under_way.append(await producer.send(TOPIC, value))
    for acknowledgement in under_way:
        await acknowledgement
    return perf_counter() - began


async def send_many_seconds(producer: Producer, content: list[bytes]) -> float:
    """Seconds until all records, handed over in lists, are acknowledged; four lists are under way at any time."""
    lists = iter([content[start : start + _BULK_RECORDS] for start in range(0, len(content), _BULK_RECORDS)])

    async def send_next() -> None:
        for each in lists:
            await producer.send_many(TOPIC, each)

    began = perf_counter()
    await asyncio.gather(*(send_next() for _ in range(4)))
    return perf_counter() - began


async def _write(directory: Path, content: list[bytes], size: int) -> float:
    return await asyncio.to_thread(write_seconds, directory, pieces(content, size))
