"""What the daemon has in memory while gigabytes pass through it: from a producer to its disk and out to a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.records import PARTITIONS, TOPIC, values
from client.cli.processes import daemon
from client.consumer import Consumer
from client.producer.producer import Producer

_VALUE_BYTES: Final = 1024
_RECORDS_AT_ONCE: Final = 20_000
_CALLS_AT_ONCE: Final = 4
_TOPIC_SETTINGS: Final = {"retention.bytes": "134217728", "segment.bytes": "33554432"}


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Ten gigabytes; the topic keeps 128 MiB a partition. The growth counts from when a tenth has passed."""
    portions = 1 if setting.quick else 10_000_000_000 // (_VALUE_BYTES * _RECORDS_AT_ONCE)
    content = values(200 if setting.quick else _RECORDS_AT_ONCE, _VALUE_BYTES)
    options = ("--log-level", "error", "--retention-check-interval-ms", "2000")
    async with daemon(setting.directory / "data", *options) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: PARTITIONS}, config=_TOPIC_SETTINGS)
        reading = asyncio.create_task(_read(server.address))
        early = 0
        began = perf_counter()
        async with Producer(bootstrap_servers=server.address) as producer:
            for start in range(0, portions, _CALLS_AT_ONCE):
                calls = range(start, min(portions, start + _CALLS_AT_ONCE))
                await asyncio.gather(*(producer.send_many(TOPIC, content) for _ in calls))
                if not early and start >= portions // 10:
                    early = server.resident_bytes("VmRSS")
        took = perf_counter() - began
        late, peak = server.resident_bytes("VmRSS"), server.resident_bytes("VmHWM")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    passed = portions * len(content) * _VALUE_BYTES / 1e6
    params = {"value_bytes": _VALUE_BYTES, "megabytes": round(passed), "partitions": PARTITIONS}
    yield Figure("flat_memory", "rss_after_a_tenth_mb", early / 1e6, "MB", params=params)
    yield Figure("flat_memory", "rss_at_the_end_mb", late / 1e6, "MB", params=params)
    yield Figure("flat_memory", "peak_rss_mb", peak / 1e6, "MB", params=params)
    yield Figure("flat_memory", "passed_mb_per_s", passed / took, "MB/s", params=params)


async def _read(address: str) -> None:
    """Reads along, until it is cancelled; what retention removes before it comes is skipped."""
    async with Consumer(TOPIC, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        while True:
            await consumer.getmany_columns(timeout_ms=1000)
