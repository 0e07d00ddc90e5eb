"""What can go wrong: each fault is one function, registered here, that hurts the world and heals it after ``duration_s``.

``pick`` is a number from 0 to 1 that chooses the victim. ``breaks`` says that requests may fail while the fault lasts, so
that a producer may have sent a record twice.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from client import Admin, CohortError
from tests.chaos.world import MAX_PARTITIONS, TOPICS, World

Act = Callable[[World, float, float], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind: what it does, and between how many seconds it is drawn to last."""

    name: str
    act: Act
    breaks: bool
    low_s: float
    high_s: float


FAULTS: Final[dict[str, Fault]] = {}
STOP_LOW_S: Final = 3.8
"""Longer than a session, by so much that the group has noticed."""


def fault(*, breaks: bool, low_s: float = 0.5, high_s: float = 3.0) -> Callable[[Act], Act]:
    """Registers a fault under its function's name. The function returns whom it hit."""

    def register(act: Act) -> Act:
        name = act.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, act, breaks, low_s, high_s)
        return act

    return register


@fault(breaks=False)
async def kill_member(world: World, pick: float, duration_s: float) -> str:
    """SIGKILL; another member comes in its place later."""
    member = world.picked(pick)
    if member is None:
        return "nobody"
    await member.kill()
    await asyncio.sleep(duration_s)
    await world.add_member(str(member.options["group"]))
    return member.name


@fault(breaks=False, low_s=STOP_LOW_S, high_s=8.0)
async def stop_member(world: World, pick: float, duration_s: float) -> str:
    """SIGSTOP for longer than the session, then SIGCONT: a member that does not know what it missed."""
    member = world.picked(pick, running=True)
    if member is None:
        return "nobody"
    member.stop()
    try:
        await asyncio.sleep(duration_s)
    finally:
        member.resume()
    return member.name


@fault(breaks=False, low_s=STOP_LOW_S, high_s=8.0)
async def block_member(world: World, pick: float, duration_s: float) -> str:
    """A handler that computes for longer than the session: that costs no membership."""
    member = world.picked(pick, running=True)
    if member is None:
        return "nobody"
    member.command(f"block {duration_s:.1f}")
    await asyncio.sleep(duration_s)
    return member.name


@fault(breaks=False)
async def leave_member(world: World, pick: float, duration_s: float) -> str:
    """A graceful goodbye; another member comes in its place later."""
    member = world.picked(pick, running=True)
    if member is None:
        return "nobody"
    await member.leave()
    await asyncio.sleep(duration_s)
    await world.add_member(str(member.options["group"]))
    return member.name


@fault(breaks=False)
async def scale_up(world: World, pick: float, duration_s: float) -> str:
    """One more member, up to the limit of the run."""
    if len(world.living()) >= world.high:
        return "nobody"
    return (await world.add_member(world.groups[int(pick * len(world.groups))])).name


@fault(breaks=False)
async def scale_down(world: World, pick: float, duration_s: float) -> str:
    """One member less, as long as its group keeps one and the run its minimum."""
    member = world.picked(pick, running=True)
    if member is None or len(world.living()) <= world.low or len(world.living(str(member.options["group"]))) < 2:
        return "nobody"
    await member.leave()
    return member.name


@fault(breaks=False)
async def grow_topic(world: World, pick: float, duration_s: float) -> str:
    """One or two more partitions for a topic."""
    topic = list(TOPICS)[int(pick * len(TOPICS))]
    try:
        async with Admin(world.address) as admin:
            there = len((await admin.describe_topics(topic, timeout_ms=3_000))[topic].partitions)
            if there < MAX_PARTITIONS:
                await admin.create_partitions({topic: there + 1 + int(duration_s > 1.5)}, timeout_ms=3_000)
    except CohortError as error:
        return f"{topic} (failed: {type(error).__name__})"
    return topic


@fault(breaks=False)
async def change_subscription(world: World, pick: float, duration_s: float) -> str:
    """A member wants other topics: one, both, or all that match a pattern."""
    member = world.picked(pick)
    if member is None:
        return "nobody"
    lines = ("subscribe orders", "subscribe returns", "subscribe orders returns", "pattern .*", "pattern ord.*")
    line = lines[int(pick * 997) % len(lines)]
    member.command(line)
    return f"{member.name}: {line}"


@fault(breaks=True, low_s=0.0, high_s=3.0)
async def kill_daemon(world: World, pick: float, duration_s: float) -> str:
    """SIGKILL, and a new start on the same directory."""
    async with world.having_daemon() as daemon:
        await asyncio.to_thread(daemon.kill)
        await asyncio.sleep(duration_s)
        await world.start_daemon()
    return "daemon"


@fault(breaks=True, low_s=0.0, high_s=3.0)
async def restart_daemon(world: World, pick: float, duration_s: float) -> str:
    """SIGTERM, and a new start."""
    async with world.having_daemon() as daemon:
        status = await asyncio.to_thread(daemon.terminate)
        if status != 0:
            world.ledger.write("crash", name="daemon", text=f"ended with {status} after SIGTERM: {daemon.output[-8:]}")
        await asyncio.sleep(duration_s)
        await world.start_daemon()
    return "daemon"


@fault(breaks=True, low_s=0.5, high_s=5.0)
async def stop_daemon(world: World, pick: float, duration_s: float) -> str:
    """SIGSTOP, SIGCONT: sessions may have run out while the daemon could not look."""
    async with world.having_daemon() as daemon:
        daemon.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(duration_s)
        finally:
            daemon.send(signal.SIGCONT)
    return "daemon"


@fault(breaks=True)
async def reset_connections(world: World, pick: float, duration_s: float) -> str:
    """RST to some or all connections."""
    return f"{world.proxy.reset(pick)} connections"


@fault(breaks=True, low_s=1.0, high_s=6.0)
async def delay_traffic(world: World, pick: float, duration_s: float) -> str:
    """Every chunk takes up to half a second longer."""
    world.proxy.delay_s = 0.02 + 0.5 * pick
    try:
        await asyncio.sleep(duration_s)
    finally:
        world.proxy.delay_s = 0.0
    return f"{0.02 + 0.5 * pick:.2f} s"


@fault(breaks=True, low_s=1.0, high_s=6.0)
async def stall_one_way(world: World, pick: float, duration_s: float) -> str:
    """Requests or answers hang in the network, the other way is open; all arrive later."""
    direction = "up" if pick < 0.5 else "down"
    if direction == "up":
        world.proxy.stall("up")
    else:
        world.proxy.stall("down")
    try:
        await asyncio.sleep(duration_s)
    finally:
        world.proxy.release()
    return direction


@fault(breaks=True, low_s=1.0, high_s=6.0)
async def cut_off(world: World, pick: float, duration_s: float) -> str:
    """Nobody reaches the daemon: connections are refused, or swallowed without a word."""
    try:
        if pick < 0.5:
            await world.proxy.refuse()
        else:
            world.proxy.stall("up", "down")
        await asyncio.sleep(duration_s)
    finally:
        await world.proxy.accept()
    return "refused" if pick < 0.5 else "silent"


@fault(breaks=True, low_s=1.0, high_s=5.0)
async def fill_disk(world: World, pick: float, duration_s: float) -> str:
    """No file may grow beyond a limit that some have reached."""
    size = 2_000 + int(pick * 60_000)
    async with world.daemon_turn:
        pid = world.limit_files(size)
    await asyncio.sleep(duration_s)  # other faults may hit the daemon meanwhile; a new process has no limit
    async with world.daemon_turn:
        if world.daemon.pid == pid and not world.daemon_down:
            world.limit_files(-1)
    return f"{size} bytes"


@dataclass(frozen=True, slots=True)
class Step:
    """One fault of a schedule: when, which, whom (0 to 1), for how long."""

    at_s: float
    kind: str
    pick: float
    duration_s: float


def schedule(random: Random, length_s: float, kinds: Sequence[str] = ()) -> list[Step]:
    """A seeded schedule of ``kinds``.

    Without them each run draws which kinds exist in it, so that rare combinations of few kinds come up too.
    """
    names = list(FAULTS)
    kinds = kinds or random.sample(names, random.randint(4, len(names)))
    steps: list[Step] = []
    at_s = 4.0
    while at_s < length_s - 2.0:
        kind = FAULTS[random.choice(kinds)]
        steps.append(Step(at_s, kind.name, random.random(), random.uniform(kind.low_s, kind.high_s)))
        at_s += random.choice((0.2, 1.0, 1.0, 1.0)) * random.uniform(1.0, 6.0)
    return steps
