"""What producers do that the daemon has to number right: many at a time, several a partition, calls that are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

from client.errors import CohortError
from client.producer.producer import Producer
from tests.simulation.consumers import OTHER, TOPIC, Reading, live, started, static_id
from tests.simulation.cutting import cut_short
from tests.simulation.history import Acknowledged, Committed, Partition
from tests.simulation.ownership import ConsumingOwner
from tests.simulation.registry import workload
from tests.simulation.workloads import new_value, note_outcome, produce
from tests.simulation.world import HostProcess, World


@workload
async def producing_without_numbers(world: World) -> None:
    """Producers without idempotence: at least once, and in order."""
    for number in range(world.plan.producers):
        world.add_host(f"plain{number}", lambda world, process: produce(world, process, idempotent=False))
    await world.calm.wait()


@workload
async def producing_in_bursts(world: World) -> None:
    """Idempotent producers that share partitions and have as many batches under way as they may."""
    for number in range(1 + world.plan.producers):
        world.add_host(f"bursting{number}", produce_in_bursts)
    await world.calm.wait()


def _new_producer(world: World, process: HostProcess, **options: Any) -> Producer:
    """An idempotent producer of small batches with short times."""
    random = process.random
    world.history.records.numbered[process.name] = None
    return Producer(
        world.bootstrap, process.host, linger_ms=random.choice((0, 0, 5)), batch_size=random.choice((200, 300, 1000)),
        max_in_flight=random.choice((2, 5, 5, 20)), request_timeout_ms=random.choice((300, 1_000, 3_000)),
        delivery_timeout_ms=random.choice((2_000, 12_000)), retries=random.choice((None, None, None, 3)),
        clock=world.wall_ms, random=random, **options,
    )  # fmt: skip


async def produce_in_bursts(world: World, process: HostProcess) -> None:
    """Sends handfuls of records, one by one or as columns, and rests; now and then it waits for them all."""
    random = process.random
    producer = _new_producer(world, process)
    await started(world, producer.start)
    number, last = 0, 40 + world.plan.records
    pause_s = 10 * world.plan.fault_s / last
    while number < last and not world.calm.is_set():
        partition = (TOPIC, int(random.random() * world.plan.partitions))
        values = [new_value(world, process, number + i, partition) for i in range(1 + int(random.random() * 12))]
        number += len(values)
        try:
            if random.random() < 0.2:
                await _send_many(world, process, producer, values, partition)
            else:
                for value in values:
                    future = await producer.send(partition[0], value.encode(), partition=partition[1])
                    note_outcome(world, process, value, partition, future)
            if random.random() < 0.1:
                await producer.flush(1.0)
        except CohortError as error:
            world.history.say(process.name, f"could not: {error}")
        await asyncio.sleep(pause_s * random.random())
    await producer.stop()


async def _send_many(
    world: World, process: HostProcess, producer: Producer, values: list[str], partition: Partition
) -> None:
    stored = await producer.send_many(partition[0], [value.encode() for value in values], partition=partition[1])
    now_s = world.loop.time()
    for value, metadata in zip(values, stored, strict=True):
        world.history.acknowledged[value] = Acknowledged(partition, metadata.offset, now_s)


# Cancelled calls


@workload
async def cancelling_producers(world: World) -> None:
    """Programs that give up in the middle of sending, at any await there is, and go on."""
    for number in range(world.plan.producers):
        world.add_host(f"cancelling{number}", produce_and_cancel)
    await world.calm.wait()


async def produce_and_cancel(world: World, process: HostProcess) -> None:
    """Has little room, so that calls wait; cancels half of them. A cancelled ``send`` has queued nothing."""
    random, history = process.random, world.history
    producer = _new_producer(world, process, buffer_bytes=1024)
    await started(world, producer.start)
    number, pause_s = 0, 2 * world.plan.fault_s / world.plan.records
    while number < 2 * world.plan.records and not world.calm.is_set():
        topic, partitions = (TOPIC, world.plan.partitions) if random.random() < 0.8 else (OTHER, 1)
        partition = (topic, int(random.random() * partitions))
        values = [new_value(world, process, number + i, partition) for i in range(random.choice((1, 1, 1, 6)))]
        number += len(values)
        try:
            if len(values) > 1:
                await cut_short(random, _send_many(world, process, producer, values, partition))
            else:
                sending = producer.send(topic, values[0].encode(), partition=partition[1])
                finished, future = await cut_short(random, sending)
                if not finished:
                    history.records.never_queued[values[0]] = None
                elif random.random() < 0.1:
                    future.cancel()  # the record is on its way all the same
                else:
                    note_outcome(world, process, values[0], partition, future)
            if random.random() < 0.2:
                await cut_short(random, producer.flush(2.0))
        except CohortError as error:
            history.say(process.name, f"could not: {error}")
        await asyncio.sleep(pause_s * random.random() * len(values))
    await cut_short(random, producer.stop(1.0))
    await producer.stop()


@workload
async def cancelling_consumers(world: World) -> None:
    """A group whose members give up in the middle of polls and commits, and go on."""
    world.history.must_read["cancellers"] = (TOPIC,)
    for number in range(world.plan.consumers):
        world.add_host(f"reader-cancelling{number}", consume_and_cancel)
    await world.calm.wait()


async def consume_and_cancel(world: World, process: HostProcess) -> None:
    """A poll that is cancelled has handed out nothing, so the next one hands out the same records."""
    random = process.random

    async def step(owner: ConsumingOwner) -> None:
        consumer = owner.consumer
        polled, found = await cut_short(random, consumer.getmany(timeout_ms=400))
        records = [record for part in found.values() for record in part] if polled else []
        owner.hand_out(records)
        if not records:
            return
        record = records[int(random.random() * len(records))]
        offsets: dict[Partition, int] = {(record.topic, record.partition): record.offset + 1}
        try:
            committed, _ = await cut_short(random, consumer.commit(record))
        except CohortError as error:
            world.history.say(process.name, f"could not commit: {error}")
            return
        if committed:
            now_s = world.loop.time()
            world.history.commits += [Committed(now_s, 0, owner.group, tp, offset) for tp, offset in offsets.items()]

    await live(world, process, Reading("cancellers", instance=static_id(process)), step)
