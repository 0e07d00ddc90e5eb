"""How many records ``getmany`` hands out, next to making the same objects in memory and to a bare socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from statistics import median
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.records import PARTITIONS, TOPIC, VALUE_SIZES, slice_seconds, socket_seconds, values
from client.cli.failure import CommandError
from client.cli.processes import daemon
from client.consumer import Consumer
from client.producer import Producer

_BULK_RECORDS: Final = 20_000
_WAIT_MS: Final = 5000


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Floor and consumer take turns; the medians count. A new consumer reads everything each time."""
    rounds = 1 if setting.quick else 3
    for size in VALUE_SIZES:
        count = 2_000 if setting.quick else 100_000_000 // size
        content = values(count, size)
        reads: list[float] = []
        slices: list[float] = []
        copies: list[float] = []
        async with daemon(setting.directory / f"data-{size}", "--log-level", "error") as server:
            async with Admin(bootstrap_servers=server.address) as admin:
                await admin.create_topics({TOPIC: PARTITIONS})
            async with Producer(bootstrap_servers=server.address) as producer:
                for start in range(0, count, _BULK_RECORDS):
                    await producer.send_many(TOPIC, content[start : start + _BULK_RECORDS])
            for _ in range(rounds):
                slices.append(await asyncio.to_thread(slice_seconds, content, size))
                copies.append(await asyncio.to_thread(socket_seconds, count * size))
                reads.append(await _read(server.address, count))
        params = {"value_bytes": size, "records": count, "partitions": PARTITIONS, "rounds": rounds}
        yield Figure(
            "consume",
            f"getmany_{size}_records_per_s",
            count / median(reads),
            "1/s",
            count / median(slices),
            "the same bytes cut into ConsumerRecord objects in memory",
            params,
        )
        megabytes = count * size / 1e6
        yield Figure(
            "consume",
            f"getmany_{size}_mb_per_s",
            megabytes / median(reads),
            "MB/s",
            megabytes / median(copies),
            "the same bytes over TCP on the loopback",
            params,
        )


async def _read(address: str, count: int) -> float:
    """Seconds from the first call of ``getmany`` until every record was handed out."""
    async with Consumer(TOPIC, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        began = perf_counter()
        read = 0
        while read < count:
            batches = await consumer.getmany(timeout_ms=_WAIT_MS)
            got = sum(map(len, batches.values()))
            if not got:
                raise CommandError(f"consume: {read:,} of {count:,} records came, then nothing for {_WAIT_MS} ms")
            read += got
        return perf_counter() - began
