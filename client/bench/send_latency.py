"""How long one record takes from ``send`` to its acknowledgement when each waits for the one before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from statistics import quantiles
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.disk import syncs_per_second
from client.bench.figures import Figure, Setting
from client.bench.records import TOPIC
from client.cli.processes import daemon
from client.producer.producer import Producer

_RECORDS: Final = 3000
_VALUE: Final = b"v" * 100
_FLOOR: Final = "one write of as many bytes with fdatasync"


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """One producer, one partition, acks=all: a round trip and a sync of the disk for each record."""
    count = 100 if setting.quick else _RECORDS
    async with daemon(setting.directory / "data", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: 1})
        seconds = 0.05 if setting.quick else 1.0
        syncs = await asyncio.to_thread(syncs_per_second, setting.directory, len(_VALUE) + 100, seconds)
        async with Producer(bootstrap_servers=server.address) as producer:
            await producer.send_and_wait(TOPIC, _VALUE)
            taken: list[float] = []
            for _ in range(count):
                began = perf_counter()
                await producer.send_and_wait(TOPIC, _VALUE)
                taken.append((perf_counter() - began) * 1000)
    cuts = quantiles(taken, n=100)
    params = {"value_bytes": len(_VALUE), "records": count, "acks": "all"}
    yield Figure("send_latency", "send_and_wait_p50_ms", cuts[49], "ms", 1000 / syncs, _FLOOR, params)
    yield Figure("send_latency", "send_and_wait_p99_ms", cuts[98], "ms", 1000 / syncs, _FLOOR, params)
