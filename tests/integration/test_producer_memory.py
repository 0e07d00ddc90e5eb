"""``buffer_bytes`` bounds memory: what records take is charged, not only what they carry."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from client import Admin, Producer
from coordinator import Coordinator

Sending = Callable[[Producer, int], Coroutine[Any, Any, object]]


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with Coordinator() as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 4})
        yield coordinator.address


SENT_ONE_BY_ONE: dict[str, Sending] = {
    "tiny values": lambda p, n: p.send("t", b"%08d" % n),
    "nothing": lambda p, n: p.send("t"),
    "keys and values": lambda p, n: p.send("t", b"%0100d" % n, b"%08d" % (n % 50)),
    "a kilobyte": lambda p, n: p.send("t", b"%01000d" % n),
    "headers": lambda p, n: p.send("t", b"%08d" % n, headers=[(f"name {n}", b"%08d" % n), ("b", b"%07d" % n)]),
}


@pytest.mark.parametrize("sending", SENT_ONE_BY_ONE.values(), ids=SENT_ONE_BY_ONE.keys())
async def test_records_sent_one_by_one_take_no_more_memory_than_is_charged(address: str, sending: Sending) -> None:
    async with Producer(address, linger_ms=100_000, batch_size=16_000_000, max_request_bytes=32_000_000) as producer:
        await sending(producer, 0)
        gc.collect()
        tracemalloc.start()
        try:
            before, used = tracemalloc.get_traced_memory()[0], producer._pool.used
            for number in range(10_000):
                await sending(producer, number)
            taken, charged = tracemalloc.get_traced_memory()[0] - before, producer._pool.used - used
        finally:
            tracemalloc.stop()
        assert taken <= charged <= 2 * taken
        await producer.flush()
        assert producer._pool.used == 0


async def test_many_records_at_once_fill_no_more_than_the_buffer(address: str) -> None:
    """The values are the program's own, and so is the list of them: what the queues add to it is bounded."""
    async with Producer(address, buffer_bytes=1_000_000) as producer:
        values = [b"%08d" % number for number in range(200_000)]
        await producer.send_and_wait("t", b"first")
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, producer._pool.used)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        sent = await producer.send_many("t", values)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        assert len(sent) == len(values)
        assert 100_000 < most <= 1_000_000
        assert producer._pool.used == 0


@pytest.mark.parametrize("size", [0, 1, 300, 700])
async def test_the_smallest_buffer_takes_one_record_after_the_other(address: str, size: int) -> None:
    async with Producer(address, buffer_bytes=1024) as producer:
        futures = [await producer.send("t", b"x" * size, b"k") for _ in range(20)]
        many = await producer.send_many("t", [b"x" * size] * 20, [b"k"] * 20)
        await producer.flush()
        assert sorted(entry.offset for entry in [*(future.result() for future in futures), *many]) == list(range(40))
        assert producer._pool.used == 0
