"""What clients of several nodes do: most of what those of one do, and some that only replicas make a difference to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from client.admin import Admin
from client.consumer import Consumer
from client.errors import CohortError
from client.producer.producer import Producer
from protocol.subscription import TopicPartition
from tests.simulation import (
    group_workloads,
    kafka_transaction_workloads,
    kafka_workloads,
    log_workloads,
    record_workloads,
    transaction_workloads,
    workloads,
)
from tests.simulation.cluster_facts import RENEWED
from tests.simulation.cluster_probes import node_id
from tests.simulation.consumers import OTHER, TOPIC, started
from tests.simulation.registry import CLUSTER_WORKLOADS, WORKLOADS, cluster_workload
from tests.simulation.workloads import keep_books, new_value
from tests.simulation.world import HostProcess, World, client_options

_MODULES: Final = (
    *(group_workloads, log_workloads, record_workloads, transaction_workloads, workloads),
    *(kafka_workloads, kafka_transaction_workloads),
)
"""In the order in which the others are imported: what a seed draws depends on it."""
_SHARED: Final = (
    "producing", "consuming", "coming_and_going", "committing_alone", "growing_topics", "sharing_work",
    "producing_in_bursts", "producing_without_numbers", "handling", "transacting", "transforming", "recreating_topics",
    "restarting_static_members", "administering_groups", "keeping_little", "keeping_the_last",
    "kafka_producing", "kafka_consuming", "kafka_sharing", "kafka_transacting", "kafka_transforming",
)  # fmt: skip
_LEDGERS: Final = 6
MOVED: Final = "moved"
_Step = Callable[[], Awaitable[object]]
CLUSTER_WORKLOADS.update({name: WORKLOADS[name] for name in _SHARED})


@cluster_workload
async def producing_for_the_leader(world: World) -> None:
    """Producers with acks=1: what they sent may be gone with the leader, and is read by nobody before others have it."""
    for number in range(world.plan.producers):
        world.add_host(f"hasty{number}", produce_for_the_leader)
    await world.calm.wait()


async def produce_for_the_leader(world: World, process: HostProcess) -> None:
    """Sends its values at its own pace; what it is told is no promise."""
    random = process.random
    producer = Producer(
        world.bootstrap, process.host, acks=1, enable_idempotence=False, batch_size=random.choice((200, 1000)),
        request_timeout_ms=random.choice((800, 3000)), delivery_timeout_ms=12_000, clock=world.wall_ms, random=random,
    )  # fmt: skip
    await started(world, producer.start)
    for number in range(world.plan.records):
        if world.calm.is_set():
            break
        partition = (TOPIC, int(random.random() * world.plan.partitions)) if random.random() < 0.8 else (OTHER, 0)
        value = new_value(world, process, number, partition)
        try:
            await producer.send(partition[0], value.encode(), partition=partition[1])
        except CohortError as error:
            world.history.say(process.name, f"cannot send {value!r}: {error}")
        await asyncio.sleep(2 * world.plan.fault_s / world.plan.records * random.random())
    await producer.stop()


@cluster_workload
async def asking_for_ends(world: World) -> None:
    """Programs that ask again and again where partitions end: of whoever they take for the leader."""
    for number in range(2):
        world.add_host(f"asker{number}", ask_for_ends)
    await world.calm.wait()


async def ask_for_ends(world: World, process: HostProcess) -> None:
    """Asks until the calm, for all that is committed by replicas: what is not decided yet counts."""
    consumer = Consumer(request_timeout_ms=2_000, isolation_level="read_uncommitted", **client_options(process))
    await started(world, consumer.start)
    while not world.calm.is_set():
        try:
            await consumer.end_offsets([TopicPartition(TOPIC, index) for index in range(world.plan.partitions)])
        except CohortError as error:
            world.history.say(process.name, f"cannot ask for ends: {error}")
        await asyncio.sleep(0.05 + 0.2 * process.random.random())
    await consumer.stop(timeout=10.0)


@cluster_workload
async def asking_for_commits(world: World) -> None:
    """Groups of several coordinators whose offsets grow, and for each a program that asks again and again how far it is."""
    for number in range(_LEDGERS):
        group = f"ledger{number}"
        world.add_host(f"bookkeeper{number}", partial(keep_books, group=group))
        world.add_host(f"auditor{number}", partial(ask_for_commits, group=group))
    await world.calm.wait()


async def ask_for_commits(world: World, process: HostProcess, group: str) -> None:
    """Asks until the calm."""
    consumer = Consumer(group_id=group, request_timeout_ms=2_000, enable_auto_commit=False, **client_options(process))
    await started(world, consumer.start)
    while not world.calm.is_set():
        try:
            await consumer.committed(TopicPartition(TOPIC, 0))
        except CohortError as error:
            world.history.say(process.name, f"cannot ask for the offset of {group}: {error}")
        await asyncio.sleep(0.05 + 0.2 * process.random.random())
    await consumer.stop(timeout=10.0)


@cluster_workload
async def renewing_topics(world: World) -> None:
    """A topic with a few records that is deleted and made again under its name, at once."""
    world.add_host("renewer", renew)
    await world.calm.wait()


async def renew(world: World, process: HostProcess) -> None:
    """What it sends is gone soon: nothing is promised but that copies of one topic are the same."""
    random, number = process.random, 0
    admin = Admin(world.bootstrap, random=random)
    producer = Producer(
        world.bootstrap, process.host, request_timeout_ms=1_000, delivery_timeout_ms=2_000, clock=world.wall_ms,
        random=random,
    )  # fmt: skip
    await started(world, admin.start)
    await started(world, producer.start)
    while not world.calm.is_set():
        number += 1
        value = f"{process.name}/{number}".encode()
        steps: list[_Step] = [partial(admin.create_topics, {RENEWED: 1}, timeout_ms=2_000)]
        steps += [partial(producer.send_and_wait, RENEWED, value, partition=0)] * int(random.random() * 8)
        steps += [partial(admin.delete_topics, RENEWED, timeout_ms=2_000)]
        for step in steps:
            try:
                await step()
            except CohortError as error:
                world.history.say(process.name, f"cannot renew {RENEWED}: {error}")
            await asyncio.sleep(0.5 * random.random() ** 3)
    await producer.stop()
    await admin.stop()


@cluster_workload
async def reassigning(world: World) -> None:
    """An administrator who moves partitions between nodes, and changes how many replicas they have."""
    world.add_host("reassigner", reassign)
    await world.calm.wait()


async def reassign(world: World, process: HostProcess) -> None:
    """Two or three of the nodes that there are, in any order; or an end of what is under way."""
    random, admin = process.random, Admin(world.bootstrap, random=process.random)
    await started(world, admin.start)
    while not world.calm.is_set():
        await asyncio.sleep(0.3 + 2 * random.random())
        nodes = [node_id(node) for node in world.serving()]
        random.shuffle(nodes)
        topic, count = random.choice(((TOPIC, world.plan.partitions), (OTHER, 1)))
        wanted = nodes[: random.choice((2, 3))] if len(nodes) > 1 and random.random() < 0.9 else None
        partition = TopicPartition(topic, int(random.random() * count))
        try:
            await admin.reassign_partitions({partition: wanted}, timeout_ms=3_000)
            world.history.say(process.name, f"reassigns {partition} to {wanted}")
        except CohortError as error:
            world.history.say(process.name, f"cannot reassign {partition}: {error}")
    await admin.stop()


@cluster_workload
async def deleting_what_is_moved(world: World) -> None:
    """A topic of which partitions are reassigned while it is deleted, again and again."""
    world.add_host("remover", move_and_delete)
    await world.calm.wait()


async def move_and_delete(world: World, process: HostProcess) -> None:
    """The deletion comes before what is to be copied is there, or before the reassignment is noted, or with it."""
    random, admin = process.random, Admin(world.bootstrap, random=process.random)
    await started(world, admin.start)
    while not world.calm.is_set():
        nodes = [node_id(node) for node in world.serving()]
        random.shuffle(nodes)
        partitions = {TopicPartition(MOVED, index): nodes[: random.choice((2, 3))] for index in range(2)}
        made = partial(admin.create_topics, {MOVED: 2}, replication_factor=1, timeout_ms=2_000)
        moved = partial(admin.reassign_partitions, partitions, timeout_ms=2_000)
        deleted = partial(admin.delete_topics, MOVED, timeout_ms=2_000)
        for steps in ([made], [moved, deleted] if random.random() < 0.7 else [moved]):
            tasks = []
            for step in steps:
                tasks.append(asyncio.ensure_future(step()))
                await asyncio.sleep(0.2 * random.random() ** 4)
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, CohortError):
                    world.history.say(process.name, f"cannot move or delete {MOVED}: {outcome}")
                elif isinstance(outcome, BaseException):
                    raise outcome
        await asyncio.sleep(0.5 * random.random() ** 3)
    await admin.stop()
