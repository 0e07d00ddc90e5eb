"""What clients do: one small function each, that puts programs on hosts and waits for the calm."""

from __future__ import annotations

import asyncio
from typing import Final

from client.admin import Admin
from client.consumer import Consumer
from client.errors import CohortError
from client.group.member import Member
from client.producer.producer import Producer
from client.types.records import RecordMetadata
from protocol.subscription import TopicPartition
from tests.simulation.consumers import OTHER, SHARDS, TOPIC, choose, make_topic, read, started, visit
from tests.simulation.history import Acknowledged, Committed, Partition, Sent
from tests.simulation.ownership import WorkingOwner
from tests.simulation.registry import workload
from tests.simulation.world import HostProcess, World, client_options

_ACTS_EVERY_S: Final = 0.1


async def create_topics(world: World, process: HostProcess) -> None:
    """The program that makes the topics of a history."""
    if world.history.nodes == 1:
        async with Admin(world.bootstrap, random=process.random) as admin:
            await admin.create_topics({TOPIC: world.plan.partitions, OTHER: 1})
        return
    for topic, partitions in ((TOPIC, world.plan.partitions), (OTHER, 1)):
        await make_topic(process, topic, partitions)


# Producers


@workload
async def producing(world: World) -> None:
    """Producers of unique values, acknowledged by all."""
    for number in range(world.plan.producers):
        world.add_host(f"producer{number}", produce)
    await world.calm.wait()


async def produce(world: World, process: HostProcess, *, idempotent: bool = True) -> None:
    """Sends its values at its own pace, through every fault, and goes on to the end of its list."""
    random = process.random
    if idempotent:
        world.history.records.numbered[process.name] = None
    producer = Producer(
        world.bootstrap, process.host, linger_ms=random.choice((0, 0, 20)), batch_size=random.choice((200, 1000, 65536)),
        request_timeout_ms=random.choice((800, 3000)), delivery_timeout_ms=12_000, clock=world.wall_ms, random=random,
        compression=random.choice((None, None, "gzip")), enable_idempotence=idempotent,
    )  # fmt: skip
    await started(world, producer.start)
    pause_s = world.plan.fault_s / world.plan.records
    for number in range(world.plan.records):
        if number and world.calm.is_set():
            break
        topic = TOPIC if random.random() < 0.8 else OTHER
        partition = (topic, int(random.random() * (world.plan.partitions if topic == TOPIC else 1)))
        await send(world, process, producer, number, partition)
        if random.random() < 0.5:
            await asyncio.sleep(2 * pause_s * random.random())
    await producer.stop()


async def send(world: World, process: HostProcess, producer: Producer, number: int, partition: Partition) -> None:
    """Sends one value, and notes what becomes of it."""
    value = new_value(world, process, number, partition)
    try:
        future = await producer.send(partition[0], value.encode(), partition=partition[1])
    except CohortError as error:
        world.history.say(process.name, f"cannot send {value!r}: {error}")
        return
    note_outcome(world, process, value, partition, future)


def new_value(world: World, process: HostProcess, number: int, partition: Partition) -> str:
    """A value that nobody else sends, entered as sent."""
    value = f"{process.name}/{number}" + ("" if number % 5 else " " * 100)
    world.history.sent[value] = Sent(process.name, number, partition)
    return value


def note_outcome(
    world: World, process: HostProcess, value: str, partition: Partition, future: asyncio.Future[RecordMetadata]
) -> None:
    """Notes what becomes of a record."""
    history = world.history

    def done(future: asyncio.Future[RecordMetadata]) -> None:
        if not future.cancelled() and future.exception() is None:
            history.acknowledged[value] = Acknowledged(partition, future.result().offset, world.loop.time())

    future.add_done_callback(done)


# Consumers


@workload
async def consuming(world: World) -> None:
    """A group of consumers that stay for the whole history, whatever happens to them."""
    world.history.must_read["readers"] = (TOPIC,)
    for number in range(world.plan.consumers):
        world.add_host(f"reader{number}", read)
    await world.calm.wait()


@workload
async def coming_and_going(world: World) -> None:
    """Members of the same group that join, work for a while and leave."""
    world.history.must_read["readers"] = (TOPIC,)
    if "reader0" not in world.hosts:
        world.add_host("reader0", read)
    random = world.stream("coming_and_going")
    number = 0
    while not world.calm.is_set():
        world.add_host(f"visitor{number}", visit)
        number += 1
        await asyncio.sleep(1.0 + random.random() * 4)


@workload
async def changing_subscriptions(world: World) -> None:
    """A group of members that add and drop a topic."""
    world.history.must_read["choosers"] = (TOPIC,)
    for number in range(2):
        world.add_host(f"chooser{number}", choose)
    await world.calm.wait()


@workload
async def committing_alone(world: World) -> None:
    """A program that keeps offsets in a group without members."""
    world.add_host("bookkeeper", keep_books)
    await world.calm.wait()


async def keep_books(world: World, process: HostProcess, group: str = "books") -> None:
    """Commits growing offsets; a restarted one goes on above what the one before can have tried."""
    options = client_options(process)
    consumer = Consumer(group_id=group, request_timeout_ms=2_000, enable_auto_commit=False, **options)
    await started(world, consumer.start)
    tp = TopicPartition(TOPIC, 0)
    consumer.assign([tp])
    offset = process.number * 1_000_000
    while not world.calm.is_set():
        offset += 1
        try:
            await consumer.commit({tp: offset})
        except CohortError as error:
            world.history.say(process.name, f"could not commit: {error}")
        else:
            world.history.commits.append(Committed(world.loop.time(), 0, group, (TOPIC, 0), offset))
        await asyncio.sleep(process.random.random() * 0.3)
    await consumer.stop(timeout=10.0)


# Topics


@workload
async def growing_topics(world: World) -> None:
    """Topics get more partitions and new topics appear while members read."""
    world.add_host("admin", administer)
    await world.calm.wait()


async def administer(world: World, process: HostProcess) -> None:
    """Grows one topic, creates others."""
    admin = Admin(world.bootstrap, random=process.random)
    await started(world, admin.start)
    partitions, number = world.plan.partitions, 0
    while not world.calm.is_set():
        await asyncio.sleep(1.0 + process.random.random() * 3)
        try:
            if process.random.random() < 0.5 and partitions < 6:
                partitions += 1
                await admin.create_partitions({TOPIC: partitions}, timeout_ms=3_000)
                world.history.say(process.name, f"{TOPIC} has {partitions} partitions")
            else:
                number += 1
                await admin.create_topics({f"extra{process.number}-{number}": 1}, timeout_ms=3_000)
                world.history.say(process.name, f"made topic extra{process.number}-{number}")
        except CohortError as error:
            world.history.say(process.name, f"could not change topics: {error}")
    await admin.stop()


# Members


@workload
async def sharing_work(world: World) -> None:
    """Plain members that share out shards of work."""
    for number in range(max(2, world.plan.consumers)):
        world.add_host(f"worker{number}", work)
    await world.calm.wait()


def share_out(members: list[tuple[str, bytes]]) -> dict[str, bytes]:
    """Shards in turn."""
    shares: dict[str, list[str]] = {member_id: [] for member_id, _ in members}
    for shard in range(SHARDS):
        shares[members[shard % len(members)][0]].append(str(shard))
    return {member_id: " ".join(numbers).encode() for member_id, numbers in shares.items()}


async def work(world: World, process: HostProcess) -> None:
    """Takes each share it is given; acts on it at once, and again and again."""
    session_ms = world.plan.session_ms
    owner = WorkingOwner("workers", process)
    owner.member = member = Member(
        "workers", assign=share_out, on_revoked=owner.give_up, session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 4, rebalance_timeout_ms=2 * session_ms, request_timeout_ms=3_000,
        **client_options(process),
    )  # fmt: skip
    world.members.append(owner)
    async with member:
        finished = asyncio.create_task(_stop_when_finished(world, member))
        acting = asyncio.create_task(_act_again(owner))
        async for assignment in member:
            owner.shards = frozenset(("shard", int(number)) for number in assignment.assignment.decode().split())
            owner.act()
            await asyncio.sleep(process.random.random() * 0.5)
        await finished
        acting.cancel()


async def _act_again(owner: WorkingOwner) -> None:
    while True:
        await asyncio.sleep(_ACTS_EVERY_S)
        owner.act()


async def _stop_when_finished(world: World, member: Member) -> None:
    await world.finished.wait()
    await member.stop(timeout=10.0)
