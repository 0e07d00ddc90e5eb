"""What clients do with logs that lose records by right: retention, compaction, deletion, settings that change meanwhile."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from client.admin import Admin
from client.consumer import Consumer
from client.errors import CohortError, CorruptMessageError, NoOffsetForPartitionError, TopicAlreadyExistsError
from client.producer.producer import Producer
from client.types.records import RecordMetadata
from protocol.subscription import TopicPartition
from tests.simulation.consumers import started
from tests.simulation.record_facts import KEPT, TABLE, Began, RecordFacts, Stored
from tests.simulation.registry import workload
from tests.simulation.world import HostProcess, World, client_options

KEYS: Final = 6
_POLICIES: Final = {
    KEPT: ("delete", "delete", "delete", "compact,delete"),
    TABLE: ("compact", "compact", "compact,delete", "delete"),
}


@workload
async def keeping_little(world: World) -> None:
    """A topic that keeps little, while it is written, read from any place, cut and given other settings."""
    age_ms = world.stream(KEPT).choice((-1, 2_000))
    bound = {"retention.bytes": 2 * world.plan.segment_bytes, "retention.ms": age_ms}
    await _look_after(world, KEPT, {"cleanup.policy": "delete", **bound})


@workload
async def keeping_the_last(world: World) -> None:
    """A topic that keeps the last value of each key, while it is written, read from any place and given other settings."""
    await _look_after(world, TABLE, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.2})


async def _look_after(world: World, topic: str, config: dict[str, object]) -> None:
    made = asyncio.Event()

    async def administer(world: World, process: HostProcess) -> None:
        await _administer(world, process, topic, config, made)

    async def write(world: World, process: HostProcess) -> None:
        await made.wait()
        await _write(world, process, topic)

    async def follow(world: World, process: HostProcess) -> None:
        await made.wait()
        await _follow(world, process, topic)

    if "compact" in str(config["cleanup.policy"]):
        world.history.records.ever_compacted[topic] = None
    world.add_host(f"{topic}-admin", administer)
    for number in range(world.plan.producers):
        world.add_host(f"keeper-{topic}{number}", write)
    for number in range(world.plan.consumers):
        world.add_host(f"{topic}-follower{number}", follow)
    await world.calm.wait()


# Settings and deletion


async def _administer(
    world: World, process: HostProcess, topic: str, config: dict[str, object], made: asyncio.Event
) -> None:
    """Makes the topic; deletes records up to somewhere and changes settings, again and again."""
    random = process.random
    admin = Admin(world.bootstrap, random=random)
    await started(world, admin.start)
    while not made.is_set():
        try:
            await admin.create_topics({topic: 1}, config, timeout_ms=3_000)
        except TopicAlreadyExistsError:
            made.set()
        except CohortError:
            await asyncio.sleep(0.2)
        else:
            made.set()
    while not world.calm.is_set():
        await asyncio.sleep(0.3 + random.random() * 2)
        try:
            if random.random() < 0.4:
                await _delete_some(world, process, admin, topic)
            else:
                changes = _changes(random, topic, world.plan.segment_bytes)
                if "compact" in str(changes.get("cleanup.policy", "")):
                    world.history.records.ever_compacted[topic] = None
                world.history.say(process.name, f"alters {topic}: {changes}")
                await admin.alter_topic_config(topic, changes, timeout_ms=3_000)
        except CohortError as error:
            world.history.say(process.name, f"could not: {error}")
    await admin.stop()


async def _delete_some(world: World, process: HostProcess, admin: Admin, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    written = world.history.records.written.get((topic, 0), {})
    offset = int(process.random.random() * (max(written, default=0) + 1))
    world.history.say(process.name, f"deletes the records of {topic}-0 below {offset}")
    began = await admin.delete_records({tp: offset}, timeout_ms=3_000)
    world.history.records.deleted.append(Began(process.number, world.loop.time(), (topic, 0), began[tp]))


def _changes(random: Random, topic: str, segment_bytes: int) -> dict[str, object | None]:
    choices: dict[str, tuple[object | None, ...]] = {
        "retention.bytes": (-1, segment_bytes, 3 * segment_bytes, 0, None),
        "retention.ms": (-1, 1_000, 4_000, None),
        "segment.bytes": (1024, 2048, None),
        "segment.ms": (1_000, 3_000, None),
        "cleanup.policy": _POLICIES[topic],
        "min.cleanable.dirty.ratio": (0, 0.5),
        "delete.retention.ms": (0, 2_000, None),
        "min.compaction.lag.ms": (0, 1_000),
        "message.timestamp.type": ("CreateTime", "LogAppendTime", None),
    }
    names = list(choices)
    return {name: random.choice(choices[name]) for name in random.sample(names, 1 + int(random.random() * 3))}


# Writing


async def _write(world: World, process: HostProcess, topic: str) -> None:
    """Values of a few keys, and tombstones."""
    random, history = process.random, world.history
    history.records.numbered[process.name] = None
    producer = Producer(
        world.bootstrap, process.host, batch_size=random.choice((200, 600, 4000)), request_timeout_ms=1_000,
        delivery_timeout_ms=12_000, clock=world.wall_ms, random=random, compression=random.choice((None, None, "gzip")),
    )  # fmt: skip
    await started(world, producer.start)
    pause_s = world.plan.fault_s / world.plan.records
    for number in range(3 * world.plan.records):
        if world.calm.is_set():
            break
        key = f"key{int(random.random() * KEYS)}"
        value = None if random.random() < 0.1 else f"{process.name}/{number}" + " " * int(random.random() * 200)
        if value is not None:
            history.records.sent[value] = (process.name, number, (topic, 0), key)
        try:
            encoded = None if value is None else value.encode()
            future = await producer.send(topic, encoded, key.encode(), partition=0)
        except CohortError as error:
            history.say(process.name, f"cannot send {value!r}: {error}")
        else:
            _note(world, process, key, value, future)
        if random.random() < 0.3:
            await asyncio.sleep(2 * pause_s * random.random())
    await producer.stop()


def _note(
    world: World, process: HostProcess, key: str, value: str | None, future: asyncio.Future[RecordMetadata]
) -> None:
    def done(future: asyncio.Future[RecordMetadata]) -> None:
        if not future.cancelled() and future.exception() is None:
            stored = future.result()
            partition = (stored.topic, stored.partition)
            fact = Stored(process.name, world.loop.time(), partition, stored.offset, key, value)
            world.history.records.acknowledged.append(fact)

    future.add_done_callback(done)


# Reading


async def _follow(world: World, process: HostProcess, topic: str) -> None:
    """Reads on, goes back to anywhere now and then, and to the beginning when its place is gone."""
    random, tp, records = process.random, TopicPartition(topic, 0), world.history.records
    consumer = Consumer(
        auto_offset_reset="none", request_timeout_ms=3_000, fetch_max_wait_ms=300, max_poll_records=20,
        max_partition_fetch_bytes=random.choice((300, 1_000, 1024 * 1024)), **client_options(process),
    )  # fmt: skip
    await started(world, consumer.start)
    consumer.assign([tp])
    stint = await _from_the_beginning(world, consumer, tp)
    last_round = False
    while True:
        try:
            found = await consumer.getmany(timeout_ms=400)
            for record in found.get(tp, []):
                value = None if record.value is None else bytes(record.value).decode()
                stored = Stored(
                    process.name, world.loop.time(), (topic, 0), record.offset, bytes(record.key or b"").decode(), value
                )
                stint.append(stored)
            if world.calm.is_set() and not last_round:
                last_round, stint = True, await _from_the_beginning(world, consumer, tp)
            elif last_round and await consumer.position(tp) >= (await consumer.end_offsets([tp]))[tp]:
                break
            elif not last_round and random.random() < 0.15:
                stint = _new_stint(records)
                consumer.seek(tp, int(random.random() * (1 + max(records.written.get((topic, 0), {}), default=0))))
        except NoOffsetForPartitionError as error:
            world.history.say(process.name, f"{error}")
            stint = await _from_the_beginning(world, consumer, tp)
        except CorruptMessageError as error:
            world.history.say(process.name, f"{error}")
            break
        except CohortError as error:
            world.history.say(process.name, f"{error}")
            await asyncio.sleep(0.2)
        if _is_over(world, tp):
            break
    await consumer.stop(timeout=10.0)


async def _from_the_beginning(world: World, consumer: Consumer, tp: TopicPartition) -> list[Stored]:
    while not _is_over(world, tp):
        try:
            await consumer.seek_to_beginning(tp)
        except CohortError:
            await asyncio.sleep(0.2)
        else:
            break
    return _new_stint(world.history.records)


def _is_over(world: World, tp: TopicPartition) -> bool:
    """A damaged partition is not served any more: nobody can read it to its end."""
    return world.calm.is_set() and tp in world.history.damaged


def _new_stint(records: RecordFacts) -> list[Stored]:
    records.read.append([])
    return records.read[-1]
