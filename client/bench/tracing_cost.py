"""What tracing costs: this process's time for a record sent, a record processed and a commit, traced and not, alternately.

A ``TracedProducer`` and a ``TracedConsumer`` take turns with a ``Producer`` and a ``Consumer``: once with a tracer provider
that records nothing, as a program has that sets none, and once with the SDK's, whose spans are made and exported nowhere.
What an exporter takes comes on top, and is its own. All of them send and read the same records, which bring a context.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from client.admin import Admin
from client.bench.figures import Figure, Setting, Skipped
from client.bench.metrics_cost import Pair, cost_figure
from client.bench.records import TOPIC, values
from client.cli.processes import daemon
from client.consumer import Consumer
from client.producer.producer import Producer
from client.types.records import ConsumerRecord, TopicPartition

_READ: Final = "read"
_PARTITIONS: Final = 4
_VALUE_BYTES: Final = 100
_CONTEXT: Final = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
_FLOOR: Final = "the same without tracing"
_PLAIN: Final = "plain"

Work = Callable[[], Awaitable[int]]
"""One round; gives how many records or commits it was."""


class _Size(NamedTuple):
    """How much is done in a round, and how many rounds there are; the first one warms up, unless it is the only one."""

    records: int
    commits: int
    rounds: int


_FULL: Final = _Size(10_000, 100, 12)
_QUICK: Final = _Size(200, 5, 1)


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Raises ``Skipped`` where OpenTelemetry is not installed."""
    providers = _providers()
    size = _QUICK if setting.quick else _FULL
    measured: dict[str, list[Pair]] = {}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(daemon(setting.directory / "data", "--log-level", "error"))
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics({TOPIC: _PARTITIONS, _READ: _PARTITIONS})
        async with Producer(bootstrap_servers=server.address) as producer:
            headers = [_CONTEXT] * size.records
            await producer.send_many(_READ, values(size.records, _VALUE_BYTES), headers=headers)
        works = {way: await _works(server.address, way, provider, size, stack) for way, provider in providers.items()}
        for at in range(size.rounds):
            for name in works[_PLAIN]:
                order = list(works) if at % 2 else list(reversed(works))
                spent = {way: await _cost_us(works[way][name]) for way in order}
                if at or size.rounds == 1:
                    for way in works.keys() - {_PLAIN}:
                        pair = Pair(spent[_PLAIN], spent[way])
                        measured.setdefault(f"{name}_{way}_us", []).append(pair)
    for metric, pairs in sorted(measured.items()):
        yield cost_figure("tracing_cost", metric, pairs, _FLOOR, {"value_bytes": _VALUE_BYTES})


def _providers() -> dict[str, Any]:
    """The tracer provider of each way, None of the one that has no tracing."""
    try:
        from opentelemetry.trace import NoOpTracerProvider
    except ImportError as error:
        raise Skipped("tracing needs the extra otel: pip install 'aiocohort[otel]'") from error
    providers: dict[str, Any] = {_PLAIN: None, "unrecorded": NoOpTracerProvider()}
    if find_spec("opentelemetry.sdk") is not None:
        from opentelemetry.sdk.trace import TracerProvider

        providers["recorded"] = TracerProvider()
    return providers


async def _works(address: str, way: str, provider: Any, size: _Size, stack: AsyncExitStack) -> Mapping[str, Work]:
    """What a producer and a consumer of their own do, traced by ``provider`` if it is one."""
    made: dict[str, Any] = {"bootstrap_servers": address}
    read: dict[str, Any] = {"group_id": way, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    producer: Producer[bytes, bytes]
    consumer: Consumer[bytes, bytes]
    if provider is None:
        producer, consumer = Producer(**made), Consumer(_READ, **made, **read)
    else:
        from client.tracing import TracedConsumer, TracedProducer

        producer = TracedProducer(**made, tracer_provider=provider)
        consumer = TracedConsumer(_READ, **made, **read, tracer_provider=provider)
    await stack.enter_async_context(producer)
    await stack.enter_async_context(consumer)
    content = values(size.records, _VALUE_BYTES)

    async def send() -> int:
        for value in content:
            await producer.send(TOPIC, value)
        await producer.flush()
        return len(content)

    async def process() -> int:
        await consumer.seek_to_beginning()
        await _process(consumer, size.records)
        return size.records

    async def commit() -> int:
        for offset in range(size.commits):
            await consumer.commit({TopicPartition(_READ, 0): offset})
        return size.commits

    return {"process": process, "send": send, "commit": commit}


async def _process(consumer: Consumer[bytes, bytes], count: int) -> None:
    """Handles so many records with a function that does nothing; what that takes is ``process`` itself, commits included."""
    left, handled = count, asyncio.Event()

    def handle(record: ConsumerRecord[bytes, bytes]) -> None:
        nonlocal left
        left -= 1
        if not left:
            handled.set()

    processing = asyncio.create_task(consumer.process(handle))
    waiting = asyncio.create_task(handled.wait())
    try:
        await asyncio.wait((processing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if processing.done():
            processing.result()  # what it was ended by
    finally:
        for task in (processing, waiting):
            task.cancel()
        await asyncio.gather(processing, waiting, return_exceptions=True)


async def _cost_us(work: Work) -> float:
    """Microseconds of processor time of all threads of this process, for one record or commit."""
    before = time.process_time()
    items = await work()
    return (time.process_time() - before) / items * 1e6
