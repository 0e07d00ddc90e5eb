"""What clients do in transactions: list-append workers that share ids, and a group that transforms exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from client.consumer import Consumer
from client.errors import CohortError
from client.producer.producer import Producer
from client.types.records import ConsumerRecord, Output
from protocol.subscription import TopicPartition
from tests.chaos.list_append.program import ListAppend, Setting
from tests.simulation.consumers import TOPIC, assignors_of, make_topic, static_id
from tests.simulation.history import Sent
from tests.simulation.registry import workload
from tests.simulation.transaction_facts import COPIES, LISTS, TRANSFORMERS
from tests.simulation.world import HostProcess, World, client_options


class SimLedger:
    """What a worker writes down stays when its host ends."""

    def __init__(self, world: World, process: HostProcess) -> None:
        self._world = world
        self._process = process
        self._entries = world.history.transactions.ledgers.setdefault(process.name, [])

    def write(self, event: str, **fields: Any) -> None:
        """One entry; what is sent is known to the history as well."""
        self._entries.append({"t": self._world.loop.time(), "e": event, **fields})
        if event == "send":
            topic, _, index = fields["tp"].rpartition("-")
            place = (topic, int(index))
            self._world.history.sent[fields["value"]] = Sent(self._process.name, len(self._entries), place)
        elif event in ("told", "error"):
            self._world.history.say(self._process.name, f"{event}: {fields}")


def transactional_producer(world: World, process: HostProcess, name: str, timeout_ms: int) -> Producer:
    """A producer with short times and small batches."""
    random = process.random
    return Producer(
        world.bootstrap, process.host, transactional_id=name, transaction_timeout_ms=timeout_ms,
        linger_ms=random.choice((0, 0, 5)), batch_size=random.choice((200, 1_000)),
        request_timeout_ms=random.choice((800, 3_000)), delivery_timeout_ms=random.choice((3_000, 8_000)),
        clock=world.wall_ms, random=Random(random.getrandbits(64)),
    )  # fmt: skip


@workload
async def transacting(world: World) -> None:
    """List-append workers, two of which have the same transactional id."""
    for number in range(1 + world.plan.producers):
        world.add_host(f"transactor{number}", partial(transact, f"tx-{number // 2}"))
    await world.calm.wait()


async def transact(name: str, world: World, process: HostProcess) -> None:
    """Transactions until the calm."""
    await make_topic(process, LISTS, world.plan.partitions)
    timeout_ms = process.random.choice((1_500, 4_000))

    def new_consumer() -> Consumer:
        return Consumer(
            auto_offset_reset="earliest", isolation_level="read_committed", request_timeout_ms=3_000,
            clock=world.wall_ms, **client_options(process),
        )  # fmt: skip

    setting = Setting(
        name=process.name,
        tps=[TopicPartition(LISTS, index) for index in range(world.plan.partitions)],
        random=process.random,
        ledger=SimLedger(world, process),
        new_producer=lambda: transactional_producer(world, process, name, timeout_ms),
        new_consumer=new_consumer,
        is_over=world.calm.is_set,
        timeout_s=timeout_ms / 1000,
    )
    await ListAppend(setting).run()


@workload
async def transforming(world: World) -> None:
    """A group that copies every record of a topic into another one, exactly once."""
    world.history.transactions.transforming[TRANSFORMERS] = COPIES
    for number in range(world.plan.consumers):
        world.add_host(f"transformer{number}", transform)
    await world.calm.wait()


async def transform(world: World, process: HostProcess) -> None:
    """Begins again with new clients after each error that ends it."""
    await make_topic(process, COPIES, world.plan.partitions)
    random, session_ms = process.random, world.plan.session_ms

    async def copy(record: ConsumerRecord) -> list[Output]:
        if random.random() < 0.2:
            await asyncio.sleep(random.random() * 0.2)
        value = record.value.decode()
        place = (COPIES, record.partition % world.plan.partitions)
        world.history.sent[value + "'"] = Sent(process.name, record.offset, place)
        return [Output(COPIES, (value + "'").encode(), partition=place[1])]

    while not world.finished.is_set():
        consumer = Consumer(
            TOPIC, group_id=TRANSFORMERS, auto_offset_reset="earliest", enable_auto_commit=False,
            assignors=assignors_of(process), group_instance_id=static_id(process), session_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // 4, rebalance_timeout_ms=2 * session_ms, revoke_grace_ms=300,
            max_poll_interval_ms=20_000, request_timeout_ms=3_000, max_poll_records=20, clock=world.wall_ms,
            **client_options(process),
        )  # fmt: skip
        producer = transactional_producer(world, process, f"tx-{process.host}", random.choice((1_500, 5_000)))
        try:
            async with producer, consumer:
                await _until(world, consumer, copy, producer)
        except CohortError as error:
            world.history.say(process.name, f"ends with {error!r}")
            await asyncio.sleep(0.3 + random.random())


async def _until(world: World, consumer: Consumer, copy: Callable[..., Any], producer: Producer) -> None:
    processing = asyncio.create_task(consumer.process(copy, producer=producer, commit_interval_ms=100))
    finished = asyncio.create_task(world.finished.wait())
    await asyncio.wait({processing, finished}, return_when=asyncio.FIRST_COMPLETED)
    finished.cancel()
    if not processing.done():
        await consumer.stop(timeout=8.0)
    await processing
