"""What clients do: one small function each, that puts programs on hosts and waits for the calm."""

from __future__ import annotations

import asyncio

from client.admin import Admin
from client.assignors import RangeAssignor, RoundRobinAssignor
from client.consumer import Consumer
from client.errors import CohortError, CorruptMessageError, MaxPollIntervalExceededError
from client.member import Member
from client.producer import Producer
from client.records import RecordMetadata
from protocol.subscription import TopicPartition
from tests.simulation.history import Acknowledged, Committed, Partition, Sent
from tests.simulation.ownership import ConsumingOwner, WorkingOwner, look_for_another_owner
from tests.simulation.registry import workload
from tests.simulation.world import BOOTSTRAP, HostProcess, World, client_options

TOPIC = "orders"
OTHER = "events"
SHARDS = 4


async def create_topics(world: World, process: HostProcess) -> None:
    """The program that makes the topics of a history."""
    async with Admin(BOOTSTRAP, random=process.random) as admin:
        await admin.create_topics({TOPIC: world.plan.partitions, OTHER: 1})


# Producers


@workload
async def producing(world: World) -> None:
    """Producers of unique values, acknowledged by all."""
    for number in range(world.plan.producers):
        world.add_host(f"producer{number}", produce)
    await world.calm.wait()


async def produce(world: World, process: HostProcess) -> None:
    """Sends its values at its own pace, through every fault, and goes on to the end of its list."""
    random = process.random
    producer = Producer(
        BOOTSTRAP, process.host, linger_ms=random.choice((0, 0, 20)), batch_size=random.choice((200, 1000, 65536)),
        request_timeout_ms=random.choice((800, 3000)), delivery_timeout_ms=12_000, clock=world.wall_ms, random=random,
        compression=random.choice((None, None, "gzip")),
    )  # fmt: skip
    await _started(world, producer.start)
    pause_s = world.plan.fault_s / world.plan.records
    for number in range(world.plan.records):
        if number and world.calm.is_set():
            break
        topic = TOPIC if random.random() < 0.8 else OTHER
        partition = (topic, int(random.random() * (world.plan.partitions if topic == TOPIC else 1)))
        await _send(world, process, producer, number, partition)
        if random.random() < 0.5:
            await asyncio.sleep(2 * pause_s * random.random())
    await producer.stop()


async def _send(world: World, process: HostProcess, producer: Producer, number: int, partition: Partition) -> None:
    value = f"{process.name}/{number}"
    history = world.history
    history.sent[value] = Sent(process.name, number, partition)
    padding = b"" if number % 5 else b" " * 100
    history.sent[value + padding.decode()] = history.sent[value]
    full = value + padding.decode()

    def done(future: asyncio.Future[RecordMetadata]) -> None:
        if not future.cancelled() and future.exception() is None:
            history.acknowledged[full] = Acknowledged(partition, future.result().offset, world.loop.time())

    try:
        future = await producer.send(partition[0], full.encode(), partition=partition[1])
    except CohortError as error:
        history.say(process.name, f"cannot send {value!r}: {error}")
        return
    future.add_done_callback(done)


async def _started(world: World, start: object) -> None:
    while True:
        try:
            await start()  # type: ignore[operator]
        except CohortError:
            await asyncio.sleep(0.2)
        else:
            return


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


async def read(world: World, process: HostProcess) -> None:
    """Reads until the end of the history."""
    await _consume(world, process, "readers", (TOPIC,), stay_s=None)


async def visit(world: World, process: HostProcess) -> None:
    """Reads for some seconds and leaves."""
    await _consume(world, process, "readers", (TOPIC,), stay_s=0.5 + process.random.random() * 6)


async def choose(world: World, process: HostProcess) -> None:
    """Reads one topic always and another now and then."""
    await _consume(world, process, "choosers", (TOPIC,), stay_s=None, other=OTHER)


def new_consumer(world: World, process: HostProcess, group: str, topics: tuple[str, ...]) -> Consumer:
    """A consumer as histories have them: short times, so that much happens."""
    session_ms = world.plan.session_ms
    assignors = (RangeAssignor, RoundRobinAssignor) if world.plan.assignor == "range" else (RoundRobinAssignor,)
    return Consumer(
        *topics, group_id=group, auto_offset_reset="earliest", enable_auto_commit=world.plan.auto_commit,
        assignors=assignors, auto_commit_interval_ms=400, session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 4, rebalance_timeout_ms=2 * session_ms, max_poll_interval_ms=20_000,
        revoke_grace_ms=300, request_timeout_ms=3_000, max_poll_records=20, fetch_max_wait_ms=500,
        **client_options(process),
    )  # fmt: skip


async def _consume(
    world: World,
    process: HostProcess,
    group: str,
    topics: tuple[str, ...],
    *,
    stay_s: float | None,
    other: str | None = None,
) -> None:
    consumer = new_consumer(world, process, group, topics)
    owner = ConsumingOwner(group, process, consumer)
    world.members.append(owner)
    await _started(world, consumer.start)
    random = process.random
    end_s = world.loop.time() + (stay_s or 1e9)
    while not world.finished.is_set() and world.loop.time() < end_s:
        try:
            found = await consumer.getmany(timeout_ms=400)
            records = [record for records in found.values() for record in records]
            owner.hand_out(records)
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * 0.3)
            if not world.plan.auto_commit or random.random() < 0.1:
                positions = {
                    (tp.topic, tp.partition): state.position
                    for tp, state in consumer._assignment.states.items()
                    if state.position >= 0
                }
                await _commit(world, owner, positions)
            elif records and random.random() < 0.2:  # in the middle of a poll
                record = records[int(random.random() * len(records))]
                await _commit(world, owner, {(record.topic, record.partition): record.offset + 1})
                await asyncio.sleep(random.random() * 0.6)
            if other is not None and random.random() < 0.05:
                consumer.subscribe(topics if random.random() < 0.5 or world.calm.is_set() else (*topics, other))
        except MaxPollIntervalExceededError:
            continue
        except CorruptMessageError as error:
            world.history.say(process.name, f"{error}")
            await asyncio.sleep(0.2)
    await consumer.stop(timeout=10.0)


async def _commit(world: World, owner: ConsumingOwner, offsets: dict[Partition, int]) -> None:
    try:
        await owner.consumer.commit({TopicPartition(*tp): offset for tp, offset in offsets.items()})
    except CohortError as error:
        world.history.say(owner.process.name, f"could not commit: {error}")
    else:
        now_s = world.loop.time()
        world.history.commits += [Committed(now_s, 0, owner.group, tp, offset) for tp, offset in offsets.items()]


@workload
async def committing_alone(world: World) -> None:
    """A program that keeps offsets in a group without members."""
    world.add_host("bookkeeper", keep_books)
    await world.calm.wait()


async def keep_books(world: World, process: HostProcess) -> None:
    """Commits growing offsets; a restarted one goes on above what the one before can have tried."""
    options = client_options(process)
    consumer = Consumer(group_id="books", request_timeout_ms=2_000, enable_auto_commit=False, **options)
    await _started(world, consumer.start)
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
            world.history.commits.append(Committed(world.loop.time(), 0, "books", (TOPIC, 0), offset))
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
    admin = Admin(BOOTSTRAP, random=process.random)
    await _started(world, admin.start)
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
    """Takes each share it is given; acts on it at once."""
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
        async for assignment in member:
            owner.shards = frozenset(("shard", int(number)) for number in assignment.assignment.decode().split())
            for shard in sorted(owner.shards):
                if owner.believes_to_own(shard):
                    look_for_another_owner(world, owner, shard)
            await asyncio.sleep(process.random.random() * 0.5)
        await finished


async def _stop_when_finished(world: World, member: Member) -> None:
    await world.finished.wait()
    await member.stop(timeout=10.0)
