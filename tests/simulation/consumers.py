"""The programs of consumers: they read through every fault, come back when they are thrown out, and note what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from client.admin import Admin
from client.assignors import Assignor, CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor, StickyAssignor
from client.consumer import Consumer
from client.consumer.config import OffsetReset
from client.errors import (
    CohortError,
    CorruptMessageError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    MaxPollIntervalExceededError,
    RequestTimedOutError,
    StorageError,
    TopicAlreadyExistsError,
)
from client.types.records import ConsumerRecord
from protocol.subscription import TopicPartition
from tests.simulation.history import Committed, Partition
from tests.simulation.ownership import ConsumingOwner
from tests.simulation.world import HostProcess, World, client_options

TOPIC: Final = "orders"
OTHER: Final = "events"
SHARDS: Final = 4

Assignors = Sequence[type[Assignor]]

UPGRADING: Final[Assignors] = (RangeAssignor, CooperativeStickyAssignor)
UPGRADED: Final[Assignors] = (CooperativeStickyAssignor,)

_OFFERS: Final[dict[str, Assignors]] = {
    "range": (RangeAssignor, RoundRobinAssignor),
    "roundrobin": (RoundRobinAssignor,),
    "sticky": (StickyAssignor,),
    "cooperative-sticky": UPGRADED,
}
_MIXED: Final[tuple[Assignors, ...]] = (
    (RangeAssignor,),
    (RoundRobinAssignor, RangeAssignor),
    (StickyAssignor, RangeAssignor, RoundRobinAssignor),
    (CooperativeStickyAssignor, StickyAssignor, RangeAssignor),
    (RangeAssignor, CooperativeStickyAssignor),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a consumer's program does. ``stay_s`` is how long, None for the whole history; ``other`` is a topic that it adds
    and drops, ``instance`` the instance id of a static member. ``alone``: without a group, whatever ``group`` says."""

    group: str
    topics: tuple[str, ...] = (TOPIC,)
    stay_s: float | None = None
    other: str | None = None
    pattern: str | None = None
    instance: str | None = None
    assignors: Assignors = ()
    auto_offset_reset: OffsetReset = "earliest"
    alone: bool = False


def assignors_of(process: HostProcess) -> Assignors:
    """What this process offers its group."""
    offer = process.world.plan.assignor
    if offer == "upgrade":
        return UPGRADING if process.number == 1 else UPGRADED
    if offer == "mixed":
        return process.random.choice(_MIXED)
    return _OFFERS[offer]


def static_id(process: HostProcess) -> str | None:
    """The instance id of a member that stays, in histories that have static members."""
    return process.host if process.world.plan.static else None


async def started(world: World, start: object) -> None:
    """Starts a client, however long it takes."""
    while True:
        try:
            await start()  # type: ignore[operator]
        except CohortError:
            await asyncio.sleep(0.2)
        else:
            return


async def make_topic(process: HostProcess, topic: str, partitions: int) -> None:
    """Creates a topic if it is not there, however long it takes."""
    admin = Admin(process.world.bootstrap, random=process.random)
    while True:
        try:
            await admin.start(timeout_ms=3_000)  # a connection to a machine that lost its power stays silent
            await admin.create_topics({topic: partitions}, timeout_ms=3_000)
        except TopicAlreadyExistsError:
            break
        except CohortError:
            await asyncio.sleep(0.2)
        else:
            break
    await admin.stop()


async def read(world: World, process: HostProcess) -> None:
    """Reads until the end of the history."""
    await consume(world, process, Reading("readers", instance=static_id(process)))


async def visit(world: World, process: HostProcess) -> None:
    """Reads for some seconds and leaves; a static member stays in the group until its session ends."""
    stay_s = 0.5 + process.random.random() * 6
    static = world.plan.static and process.random.random() < 0.3
    await consume(world, process, Reading("readers", stay_s=stay_s, instance=process.host if static else None))


async def choose(world: World, process: HostProcess) -> None:
    """Reads one topic always and another now and then."""
    await consume(world, process, Reading("choosers", other=OTHER, instance=static_id(process)))


def new_consumer(world: World, process: HostProcess, reading: Reading) -> Consumer:
    """A consumer as histories have them: short times, so that much happens."""
    session_ms = world.plan.session_ms
    consumer = Consumer(
        *(() if reading.pattern else reading.topics), group_id=None if reading.alone else reading.group,
        auto_offset_reset=reading.auto_offset_reset,
        enable_auto_commit=world.plan.auto_commit, assignors=reading.assignors or assignors_of(process),
        group_instance_id=reading.instance, auto_commit_interval_ms=400, session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 4, rebalance_timeout_ms=2 * session_ms, max_poll_interval_ms=20_000,
        revoke_grace_ms=300, request_timeout_ms=3_000, max_poll_records=20, fetch_max_wait_ms=500, clock=world.wall_ms,
        **client_options(process),
    )  # fmt: skip
    if reading.pattern:
        consumer.subscribe(pattern=reading.pattern)
    return consumer


async def consume(world: World, process: HostProcess, reading: Reading) -> None:
    """Polls, commits and changes its mind, for as long as it is to stay."""
    end_s = world.loop.time() + (reading.stay_s or 1e9)

    async def poll(owner: ConsumingOwner) -> None:
        await _poll(world, process, reading, owner)

    await live(world, process, reading, poll, end_s)


async def live(
    world: World,
    process: HostProcess,
    reading: Reading,
    step: Callable[[ConsumingOwner], Coroutine[Any, Any, None]],
    end_s: float = 1e9,
) -> None:
    """Takes steps with a consumer until ``end_s``, the end of the history, or until another process has its instance id.

    A supervisor starts a fenced program again when the one that has fenced it is gone for good.
    """
    fenced = True
    while fenced:
        fenced = False
        consumer = new_consumer(world, process, reading)
        owner = ConsumingOwner(reading.group, process, consumer, reading.instance)
        world.members.append(owner)
        await started(world, consumer.start)
        while not world.finished.is_set() and world.loop.time() < end_s and process.host not in world.told_to_stop:
            try:
                await step(owner)
            except MaxPollIntervalExceededError:
                continue
            except GroupMaxSizeReachedError as error:
                world.history.say(process.name, f"{error}")
                await asyncio.sleep(0.3 + process.random.random())
            except (CorruptMessageError, RequestTimedOutError, StorageError) as error:
                if not isinstance(error, CorruptMessageError) and " is damaged at " not in str(error):
                    raise
                world.history.say(process.name, f"{error}")
                await asyncio.sleep(0.2)
            except FencedInstanceIdError as error:
                world.history.say(process.name, f"is fenced: {error}")
                fenced = not world.has_successor(process.host, reading.instance)
                break
        await consumer.stop(timeout=10.0)
        world.members = [other for other in world.members if other is not owner]
        if fenced:
            await asyncio.sleep(0.5)


async def _poll(world: World, process: HostProcess, reading: Reading, owner: ConsumingOwner) -> None:
    random, consumer = process.random, owner.consumer
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
        await _commit(world, owner, {(record.topic, record.partition): record.offset + 1}, record)
        await asyncio.sleep(random.random() * 0.6)
    if reading.other is not None and random.random() < 0.05:
        more = random.random() >= 0.5 and not world.calm.is_set()
        consumer.subscribe((*reading.topics, reading.other) if more else reading.topics)


async def _commit(
    world: World, owner: ConsumingOwner, offsets: dict[Partition, int], record: ConsumerRecord | None = None
) -> None:
    """Commits, by the record if there is one, and notes what was acknowledged."""
    wanted = record or {TopicPartition(*tp): offset for tp, offset in offsets.items()}
    try:
        await owner.consumer.commit(wanted)
    except CohortError as error:
        world.history.say(owner.process.name, f"could not commit: {error}")
    else:
        now_s = world.loop.time()
        world.history.commits += [Committed(now_s, 0, owner.group, tp, offset) for tp, offset in offsets.items()]
