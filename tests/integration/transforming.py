"""What tests of ``process(handler, producer=...)`` share: a pipeline from topic to topic, and what readers see of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from client import Admin, Consumer, ConsumerRecord, Output, Producer
from client.types.records import IsolationLevel
from tests.integration.consuming import QUICK

GROUP: Final = "transformers"
SOURCE: Final = "numbers"
TARGET: Final = "answers"


def answers(record: ConsumerRecord) -> list[Output]:
    """Two outputs of a number, to one partition of the target and to another."""
    number = int(record.value)
    return [
        Output(TARGET, b"%d a" % number, partition=number % 2),
        Output(TARGET, b"%d b" % number, key=b"%d" % number),
    ]


def expected(numbers: Iterable[int]) -> Counter[bytes]:
    """What is to be in the target of these numbers: each answer once."""
    return Counter(b"%d %s" % (number, name) for number in numbers for name in (b"a", b"b"))


def member(address: str, **settings: Any) -> Consumer:
    """A consumer of the source."""
    return Consumer(SOURCE, bootstrap_servers=address, group_id=GROUP, **{**QUICK, **settings})


def producer(address: str, name: str, **settings: Any) -> Producer:
    """A producer with transactions."""
    return Producer(address, transactional_id=name, **{"transaction_timeout_ms": 3_000, **settings})


async def _markers_written(address: str, topic: str, seconds: float = 2.0) -> None:
    """Waits until everything is decided; not for long, as a transaction may be meant to be open."""
    readers = [
        Consumer(topic, bootstrap_servers=address, isolation_level=level)
        for level in ("read_committed", "read_uncommitted")
    ]
    async with readers[0] as committed_only, readers[1] as all_of_it:
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            tps = all_of_it.assignment()
            if tps and await committed_only.end_offsets(tps) == await all_of_it.end_offsets(tps):
                return
            await asyncio.sleep(0.02)


async def seen(address: str, isolation_level: IsolationLevel = "read_committed", topic: str = TARGET) -> Counter[bytes]:
    """Everything that a reader of a topic sees, once the markers of what is committed have had time to come."""
    async with Admin(address) as admin:
        described = await admin.describe_topics(topic)
    await _markers_written(address, topic)
    found: Counter[bytes] = Counter()
    async with Consumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", isolation_level=isolation_level
    ) as reader:
        while len(reader.assignment()) < len(described[topic].partitions):
            await asyncio.sleep(0.01)
        while any((await reader.lag()).values()):
            for records in (await reader.getmany(timeout_ms=500)).values():
                found.update(record.value for record in records)
    return found


async def committed(address: str) -> dict[int, int]:
    """The offsets of the group."""
    async with Admin(address) as admin:
        return {tp.partition: stored.offset for tp, stored in (await admin.list_offsets(GROUP)).items()}


async def until_done(address: str, offsets: dict[int, int], seconds: float = 30) -> None:
    """Waits until the group has committed these offsets."""
    found: dict[int, int] = {}
    try:
        async with asyncio.timeout(seconds):
            while (found := await committed(address)) != offsets:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"the group has committed {found}, not {offsets}") from None


async def end(task: asyncio.Task[None]) -> None:
    """Cancels ``process`` and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
