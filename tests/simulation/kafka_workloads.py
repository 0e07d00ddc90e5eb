"""What Kafka's clients do, by Kafka's own wire: they produce, share a group, and share one with Cohort's consumers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from client.assignors import RangeAssignor
from tests.simulation.consumers import TOPIC, Reading, consume, static_id
from tests.simulation.group_workloads import handle_as, make_letterbox
from tests.simulation.kafka_members import KafkaMember
from tests.simulation.kafka_producers import kafka_produce
from tests.simulation.registry import workload
from tests.simulation.world import HostProcess, World

READERS: Final = "kafka-readers"
MIXED: Final = "mixed"


@workload
async def kafka_producing(world: World) -> None:
    """Idempotent producers with several batches of a partition under way."""
    for number in range(world.plan.producers):
        world.add_host(f"kafka-producer{number}", kafka_produce)
    await world.calm.wait()


@workload
async def kafka_consuming(world: World) -> None:
    """A group of Kafka's members that stay; one of them comes and goes."""
    world.history.must_read[READERS] = (TOPIC,)
    for number in range(world.plan.consumers):
        world.add_host(f"kafka-reader{number}", partial(kafka_read, READERS))
    random = world.stream("kafka_consuming")
    number = 0
    while not world.calm.is_set():
        await asyncio.sleep(2.0 + random.random() * 6)
        world.add_host(f"kafka-visitor{number}", partial(kafka_visit, READERS))
        number += 1


@workload
async def kafka_sharing(world: World) -> None:
    """A group of members of both kinds, that have a strategy in common. Of Cohort's some have handlers at work, which hold
    on to their partitions while a generation forms."""
    world.history.must_read[MIXED] = (TOPIC,)
    world.history.handled[MIXED] = None
    world.add_host("letterbox-mixed", make_letterbox)
    world.add_host("kafka-reader-mixed", partial(kafka_read, MIXED))
    for number in range(max(1, world.plan.consumers - 1)):
        world.add_host(f"reader-mixed{number}", read_with_kafka)
    await world.calm.wait()


async def kafka_read(group: str, world: World, process: HostProcess) -> None:
    """Reads until the end of the history."""
    member = KafkaMember(world, process, group, (TOPIC,))
    world.members.append(member)
    await member.run(world.finished.is_set)
    world.members = [other for other in world.members if other is not member]


async def kafka_visit(group: str, world: World, process: HostProcess) -> None:
    """Reads for some seconds and leaves."""
    end_s = world.loop.time() + 0.5 + process.random.random() * 4
    member = KafkaMember(world, process, group, (TOPIC,), static=False)
    world.members.append(member)
    await member.run(lambda: world.finished.is_set() or world.loop.time() >= end_s)
    world.members = [other for other in world.members if other is not member]


async def read_with_kafka(world: World, process: HostProcess) -> None:
    """Reads as Cohort's consumer in the group of both, or has its records handled."""
    reading = Reading(MIXED, instance=static_id(process), assignors=(RangeAssignor,))
    read = handle_as if process.random.random() < 0.5 else consume
    await read(world, process, reading)
