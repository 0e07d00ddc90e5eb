"""What clients do with groups in particular: static members, handlers, patterns, upgrades, administrators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from client.admin import Admin
from client.consumer import DeadLetter, Retry
from client.consumer.error_policy import Policy
from client.consumer.rebalance_listener import RebalanceListener
from client.errors import CohortError, HandlerError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from client.producer.producer import Producer
from client.transport.connection import Connection
from client.types.records import ConsumerRecord
from protocol.errors import ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.subscription import TopicPartition
from tests.simulation.consumers import (
    OTHER,
    TOPIC,
    UPGRADED,
    UPGRADING,
    Reading,
    consume,
    live,
    make_topic,
    started,
    static_id,
)
from tests.simulation.history import LETTERS, Committed, name_of
from tests.simulation.ownership import ConsumingOwner
from tests.simulation.registry import workload
from tests.simulation.workloads import send
from tests.simulation.world import PORT, Host, HostProcess, World

Result = TypeVar("Result")

STATICS: Final = "statics"
ROLLING: Final = "rolling"


# Static members


@workload
async def restarting_static_members(world: World) -> None:
    """A group of static members, one after another started again: in time or too late, before or after the old one ends."""
    world.history.must_read[STATICS] = (TOPIC,)
    random = world.stream("restarting_static_members")
    hosts = [add_static(world, f"static{number}") for number in range(max(2, world.plan.consumers))]
    number = 0
    while not world.calm.is_set():
        await asyncio.sleep(0.5 + random.random() * 4)
        place = int(random.random() * len(hosts))
        old, number = hosts[place], number + 1
        if random.random() < 0.6:
            world.told_to_stop[old.name] = None
            await asyncio.sleep(random.random() ** 2 * 1.5 * world.plan.session_ms / 1000)
        hosts[place] = add_static(world, f"static{place}.{number}")


@workload
async def rolling_restart(world: World) -> None:
    """Static members that are stopped and started again one after the other, as when a new version is rolled out."""
    world.history.must_read[ROLLING] = (TOPIC,)
    hosts = [add_static(world, f"static-rolling{number}", ROLLING) for number in range(3)]
    await asyncio.sleep(world.plan.fault_s / 4)
    for host in hosts:
        world.told_to_stop[host.name] = None
        while not host.ended and not world.calm.is_set():
            await asyncio.sleep(0.05)
        add_static(world, f"{host.name}.new", ROLLING)
        await asyncio.sleep(0.5)
    await world.calm.wait()


def add_static(world: World, name: str, group: str = STATICS) -> Host:
    """A host whose program is a static member; what stands before the dot is its instance id."""
    instance = name.partition(".")[0]
    world.instances.setdefault(instance, []).append(name)
    return world.add_host(name, lambda world, process: consume(world, process, Reading(group, instance=instance)))


# Handlers


@workload
async def handling(world: World) -> None:
    """A group whose members have their records handled by ``process``."""
    world.history.must_read["handlers"] = (TOPIC,)
    world.history.handled["handlers"] = world.history.must_finish["handlers"] = None
    world.add_host("letterbox", make_letterbox)
    for number in range(max(2, world.plan.consumers)):
        world.add_host(f"handler{number}", handle)
    await world.calm.wait()


async def make_letterbox(world: World, process: HostProcess) -> None:
    """Creates the topic of dead letters, a while after the first handler may want to write one."""
    await make_topic(process, LETTERS, 1)


async def handle(world: World, process: HostProcess) -> None:
    """Handles records until the end of the history."""
    await handle_as(world, process, Reading("handlers", instance=static_id(process)))


async def handle_as(world: World, process: HostProcess, reading: Reading) -> None:
    """Handles records. Some handlers are slow, and some fail. Every second host does so by key, of records without one:
    several of a partition beside each other."""
    options: dict[str, Any] = {"concurrency": process.random.choice((None, None, 1, 2))}
    by_key = process.host.endswith(("1", "3", "5", "7", "9"))
    if by_key:
        options = {"concurrency": 5, "order": "key"}

    async def process_records(owner: ConsumingOwner) -> None:
        handlers = Handlers(world, owner, process.random, in_order=not by_key)
        owner.consumer._coordinator.participant.listener = handlers
        finished = asyncio.create_task(_stop_when_finished(world, owner))
        try:
            await owner.consumer.process(handlers.handle, on_error=handlers.on_error, **options)
        except HandlerError as error:
            world.history.say(process.name, f"{error}")
        finally:
            finished.cancel()

    await live(world, process, reading, process_records)


async def _stop_when_finished(world: World, owner: ConsumingOwner) -> None:
    await world.finished.wait()
    await asyncio.shield(owner.consumer.stop(timeout=8.0))


_POLICIES: Final[tuple[Policy, ...]] = (
    "skip",
    "retry",
    "raise",
    DeadLetter(LETTERS),
    Retry(attempts=3, then=DeadLetter(LETTERS)),
)


class Handlers(RebalanceListener):
    """The handlers of one consumer: what they work on, and what they may not touch any more."""

    def __init__(self, world: World, owner: ConsumingOwner, random: Random, *, in_order: bool) -> None:
        self._world = world
        self._owner = owner
        self._random = random
        self._in_order = in_order
        self._gone: set[TopicPartition] = set()

    async def handle(self, record: ConsumerRecord) -> None:
        """Takes a while; now and then fails, or longer than a rebalance waits for."""
        random = self._random
        self._owner.hand_out([record], in_order=self._in_order)
        self._check(record, "is begun")
        draw = random.random()
        if draw < 0.7:
            await asyncio.sleep(random.random() * (0.02 if draw < 0.6 else 0.8))
        self._check(record, "is finished")
        if random.random() < 0.03:
            raise RuntimeError("a handler failed")
        self._finished(record)

    def on_error(self, record: ConsumerRecord, error: Exception) -> Policy:
        """Skips, tries again, puts aside or gives up."""
        policy = self._random.choice(_POLICIES)
        if policy == "skip":
            self._finished(record)
        elif isinstance(policy, DeadLetter | Retry):
            key = (self._owner.group, (record.topic, record.partition), record.offset)
            self._world.history.put_aside[key] = record.value.decode()
        return policy

    def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """See ``RebalanceListener``."""
        self._gone.update(tps)

    on_partitions_lost = on_partitions_revoked

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """See ``RebalanceListener``."""
        self._gone.difference_update(tps)

    def _check(self, record: ConsumerRecord, what: str) -> None:
        partition = (record.topic, record.partition)
        if partition in self._gone:
            self._world.history.overrun.append(
                f"at {self._world.loop.time():.3f} s {record.offset} of {name_of(partition)} {what} by "
                f"{self._owner.process.name}, who has given up its partition"
            )

    def _finished(self, record: ConsumerRecord) -> None:
        key = (self._owner.group, (record.topic, record.partition), record.offset)
        self._world.history.finished.setdefault(key, self._world.loop.time())


# Heartbeats


@workload
async def beating(world: World) -> None:
    """A member that sends heartbeats at a steady pace, whether or not the ones before were answered."""
    world.add_host("beater", beat)
    await world.calm.wait()


_HARMLESS: Final = frozenset({"daemon_stalls", "slow_disk", "wall_clock_steps", "weeks_pass"})
"""Faults through which whatever the member sends arrives."""


async def beat(world: World, process: HostProcess) -> None:
    """One membership after the other, each until it is lost."""
    judged = _HARMLESS.issuperset(world.plan.faults)
    while not world.calm.is_set():
        connection = None
        try:
            connection = await Connection.open(world.nodes[0].name, PORT, client_id=process.host, timeout_s=2.0)
            lost = await _beat_until_lost(world, connection)
            if lost and judged:
                world.history.evicted.append(f"at {world.loop.time():.3f} s the member {process.name} is told: {lost}")
        except CohortError as error:
            world.history.say(process.name, f"joins again: {error}")
        finally:
            if connection is not None:
                connection.close()
        await asyncio.sleep(0.1)


async def _beat_until_lost(world: World, connection: Connection) -> str:
    """Joins and beats; what a heartbeat was told that ended it, "" at the end of the history."""
    session_ms = world.plan.session_ms
    await connection.request(FindCoordinatorRequest("beaters", 0), FindCoordinatorResponse, timeout_s=5.0)
    protocols = (JoinGroupProtocol("any", b""),)
    joined = JoinGroupResponse(0)
    for _ in range(2):
        join = JoinGroupRequest("beaters", session_ms, 60_000, joined.member_id, None, "test", protocols)
        joined = await connection.request(join, JoinGroupResponse, timeout_s=20.0)
    member, generation = joined.member_id, joined.generation_id
    shares = (SyncGroupAssignment(member, b""),)
    sync = SyncGroupRequest("beaters", generation, member, None, "test", "any", shares)
    if (await connection.request(sync, SyncGroupResponse, timeout_s=20.0)).error_code:
        return ""
    codes: asyncio.Queue[HeartbeatResponse | BaseException] = asyncio.Queue()
    beat = HeartbeatRequest("beaters", generation, member)
    answers: set[asyncio.Task[HeartbeatResponse]] = set()
    try:
        while not world.calm.is_set():
            answer = asyncio.create_task(connection.request(beat, HeartbeatResponse, timeout_s=30.0))
            answers.add(answer)
            answer.add_done_callback(answers.discard)
            answer.add_done_callback(lambda done: None if done.cancelled() else codes.put_nowait(_outcome(done)))
            await asyncio.sleep(session_ms / 5000)
            while not codes.empty():
                said = codes.get_nowait()
                if isinstance(said, BaseException):
                    raise said
                if said.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    return said.message
    finally:
        for answer in tuple(answers):
            answer.cancel()
    return ""


def _outcome(done: asyncio.Task[HeartbeatResponse]) -> HeartbeatResponse | BaseException:
    return done.exception() or done.result()


# Subscriptions and strategies


@workload
async def matching_topics(world: World) -> None:
    """A group that subscribes to a pattern, while topics appear that match it."""
    world.history.must_read["matchers"] = (TOPIC,)
    for number in range(2):
        world.add_host(f"matcher{number}", match)
    await world.calm.wait()


async def match(world: World, process: HostProcess) -> None:
    """Reads every topic of some names."""
    await consume(world, process, Reading("matchers", pattern=f"{TOPIC}|extra.*[02468]$"))


@workload
async def following_new_topics(world: World) -> None:
    """Consumers that begin at the end of what there is, while topics and partitions appear and are filled at once."""
    world.add_host("follower-alone", follow)
    world.add_host("follower-grouped", follow)
    world.add_host("pioneer", open_up)
    await world.calm.wait()


async def follow(world: World, process: HostProcess) -> None:
    """Reads every topic of some names, alone or as the only member of a group."""

    async def step(owner: ConsumingOwner) -> None:
        known = world.history.following.get(process.host)
        if known is None or known[0] != process.name:
            world.history.following[process.host] = (process.name, world.loop.time())
        found = await owner.consumer.getmany(timeout_ms=400)
        owner.hand_out([record for records in found.values() for record in records])

    alone = process.host == "follower-alone"
    reading = Reading(process.host, pattern=r"new\d+-\d+", auto_offset_reset="latest", alone=alone)
    await live(world, process, reading, step)


async def open_up(world: World, process: HostProcess) -> None:
    """Makes topics, adds partitions to them, and sends a few records there before anybody can have noticed."""
    random, admin = process.random, Admin(world.bootstrap, random=process.random)
    producer = Producer(world.bootstrap, process.host, delivery_timeout_ms=12_000, clock=world.wall_ms, random=random)
    await started(world, admin.start)
    await started(world, producer.start)
    sizes: dict[str, int] = {}
    number = 0
    while not world.calm.is_set():
        grow = bool(sizes) and random.random() < 0.5
        topic = random.choice(list(sizes)) if grow else f"new{process.number}-{len(sizes)}"
        partition = (topic, sizes.get(topic, 0))
        sizes[topic] = partition[1] + 1  # also when it fails: it may have been done
        world.history.appeared[partition] = world.loop.time()
        try:
            if grow:
                await admin.create_partitions({topic: sizes[topic]}, timeout_ms=3_000)
            else:
                await admin.create_topics({topic: 1}, timeout_ms=3_000)
        except CohortError as error:
            world.history.say(process.name, f"could not make {name_of(partition)}: {error}")
            continue
        for _ in range(3):
            number += 1
            await send(world, process, producer, number, partition)
            await asyncio.sleep(random.random() * 0.1)
        await asyncio.sleep(random.random() * 2)
    await producer.stop()
    await admin.stop()


@workload
async def upgrading(world: World) -> None:
    """A group whose members go over to cooperative rebalancing, one after the other."""
    world.history.must_read["upgraders"] = (TOPIC,)
    for number in range(max(2, world.plan.consumers)):
        world.add_host(f"upgrader{number}", upgrade)
    await world.calm.wait()


async def upgrade(world: World, process: HostProcess) -> None:
    """Offers both for some seconds, then leaves and comes back with the new one alone."""
    reading = Reading("upgraders", instance=process.host if world.plan.static else None)
    if process.number == 1:
        stay_s = 0.5 + process.random.random() * 8
        await consume(world, process, replace(reading, assignors=UPGRADING, stay_s=stay_s))
    await consume(world, process, replace(reading, assignors=UPGRADED))


@workload
async def pausing(world: World) -> None:
    """A group whose members pause their partitions now and then and resume them once, rebalance or no rebalance."""
    world.history.must_read["pausers"] = (TOPIC,)
    for number in range(max(2, world.plan.consumers)):
        world.add_host(f"pauser{number}", pause_and_resume)
    await world.calm.wait()


async def pause_and_resume(world: World, process: HostProcess) -> None:
    """Reads until the end of the history; while all is paused it polls on, as a program does whose queue is full."""
    random = process.random
    resume_s: dict[ConsumingOwner, float] = {}  # the one whose program has paused, and when it will go on

    async def step(owner: ConsumingOwner) -> None:
        consumer, now_s = owner.consumer, world.loop.time()
        if owner in resume_s and (now_s >= resume_s[owner] or world.calm.is_set()):
            del resume_s[owner]
            consumer.resume(*consumer.paused())
        elif owner not in resume_s and random.random() < 0.1 and not world.calm.is_set():
            resume_s[owner] = now_s + random.random() * 3
            consumer.pause(*consumer.assignment())
        found = await consumer.getmany(timeout_ms=100)
        owner.hand_out([record for records in found.values() for record in records])

    reading = Reading("pausers", instance=process.host if world.plan.static else None)
    await live(world, process, reading, step)


# Administrators


@workload
async def administering_groups(world: World) -> None:
    """Somebody who removes members, erases offsets and deletes groups, whoever is at work in them."""
    world.add_host("overseer", oversee)
    await world.calm.wait()


async def oversee(world: World, process: HostProcess) -> None:
    """One deed after the other; what is refused is said."""
    admin = Admin(world.bootstrap, random=process.random)
    await started(world, admin.start)
    deeds = (_remove_somebody, _remove_somebody, _erase, _commit_for_somebody, _delete, _delete, _look)
    number = process.number * 1_000_000
    while not world.calm.is_set():
        await asyncio.sleep(0.3 + process.random.random() * 2)
        number += 1
        try:
            await process.random.choice(deeds)(world, process, admin, number)
        except CohortError as error:
            world.history.say(process.name, f"could not: {error}")
    await admin.stop()


_GROUPS: Final = ("readers", "choosers", STATICS, ROLLING, "handlers", "upgraders", "workers")
_OWN: Final = ("passing-0", "passing-1", "passing-2")


async def _remove_somebody(world: World, process: HostProcess, admin: Admin, number: int) -> None:
    group = process.random.choice(_GROUPS)
    members = (await admin.describe_groups(group, timeout_ms=2_000))[group].members
    if members:
        member = process.random.choice(members)
        if process.random.random() < 0.1:
            await admin.remove_members(group, all_members=True, reason="for a change", timeout_ms=2_000)
        elif member.group_instance_id is not None:
            await admin.remove_members(group, group_instance_ids=[member.group_instance_id], timeout_ms=2_000)
        else:
            await admin.remove_members(group, member.member_id, timeout_ms=2_000)
        world.history.say(process.name, f"removed {member.member_id} or all from {group}")


async def _erase(world: World, process: HostProcess, admin: Admin, number: int) -> None:
    group = process.random.choice((*_GROUPS, *_OWN, "books"))
    topic = process.random.choice((TOPIC, OTHER))
    await admin.delete_offsets(group, TopicPartition(topic, 0), timeout_ms=2_000)
    world.history.say(process.name, f"erased the offset of {topic}-0 in {group}")


async def _commit_for_somebody(world: World, process: HostProcess, admin: Admin, number: int) -> None:
    group = process.random.choice(_OWN)
    await admin.alter_offsets(group, {TopicPartition(OTHER, 0): number}, timeout_ms=2_000)
    world.history.commits.append(Committed(world.loop.time(), 0, group, (OTHER, 0), number))


async def _delete(world: World, process: HostProcess, admin: Admin, number: int) -> None:
    group = process.random.choice((*_GROUPS, *_OWN, "books"))
    await admin.delete_groups(group, timeout_ms=2_000)
    world.history.say(process.name, f"deleted {group}")


@workload
async def recreating_topics(world: World) -> None:
    """A topic that is deleted and created again and again, and a group that keeps offsets in it."""
    world.add_host("recreator", recreate)
    await world.calm.wait()


async def recreate(world: World, process: HostProcess) -> None:
    """Creates the topic, looks what the group has in it, commits greater and greater offsets, deletes the topic."""
    admin = Admin(world.bootstrap, random=process.random)
    await started(world, admin.start)
    topic, group = f"brief{process.number}", f"brief{process.number}"
    tp = TopicPartition(topic, 0)
    offset = before = 0
    try:
        while not world.calm.is_set():
            await _until_done(world, lambda: admin.create_topics({topic: 1}, timeout_ms=2_000), TopicAlreadyExistsError)
            lag = await _until_done(world, lambda: admin.group_lag(group, timeout_ms=2_000))
            shown = next((one.committed for one in lag or () if (one.topic, one.partition) == tp), None)
            if shown is not None and shown <= before:
                world.history.outlived.append(
                    f"at {world.loop.time():.3f} s {group} has offset {shown} of {topic}, which was committed before the "
                    f"topic was deleted and created again"
                )
            for _ in range(int(process.random.random() * 4)):
                offset += 1
                commit = partial(admin.alter_offsets, group, {tp: offset}, timeout_ms=2_000)
                await _until_done(world, commit)
                await asyncio.sleep(process.random.random() * 0.2)
            before = offset
            await _until_done(world, lambda: admin.delete_topics(topic, timeout_ms=2_000), UnknownTopicOrPartitionError)
            world.history.say(process.name, f"deleted {topic}, offsets up to {before}")
            await asyncio.sleep(process.random.random() ** 3)
    finally:
        await admin.stop()


async def _until_done(
    world: World, attempt: Callable[[], Awaitable[Result]], done_before: type[CohortError] | None = None
) -> Result | None:
    """Tries until it succeeds, or until ``done_before`` says that an attempt whose answer was lost had succeeded."""
    while not world.calm.is_set():
        try:
            return await attempt()
        except CohortError as error:
            if done_before is not None and isinstance(error, done_before):
                return None
            await asyncio.sleep(0.1)
    return None


async def _look(world: World, process: HostProcess, admin: Admin, number: int) -> None:
    await admin.list_groups(timeout_ms=2_000)
    await admin.group_lag(process.random.choice(_GROUPS), timeout_ms=2_000)
