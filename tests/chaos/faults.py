"""What can go wrong with members, daemon, network and disk; what is done to whole groups stands in ``group_faults.py``."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from client import Admin, CohortError
from tests.chaos.registry import fault
from tests.chaos.world import MAX_PARTITIONS, TOPICS, World

STOP_LOW_S: Final = 3.8
"""Longer than a session, by so much that the group has noticed."""


@fault(breaks=False)
async def kill_member(world: World, pick: float, duration_s: float) -> str:
    """SIGKILL; another member comes in its place later."""
    member = world.picked(pick)
    if member is None:
        return "nobody"
    await member.kill()
    await asyncio.sleep(duration_s)
    await world.add_member(world.group_of(member))
    return member.name


@fault(breaks=False, low_s=1.0, high_s=3.0)
async def kill_at_commit(world: World, pick: float, duration_s: float) -> str:
    """SIGKILL while a commit of the member is under way; another member comes in its place."""
    member = world.picked(pick, running=True)
    if member is None:
        return "nobody"
    await member.die("die-at-commit", duration_s)
    await world.add_member(world.group_of(member))
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
    await world.add_member(world.group_of(member))
    return member.name


@fault(breaks=False)
async def scale_up(world: World, pick: float, duration_s: float) -> str:
    """One more member, up to the limit of the run."""
    if len(world.living()) >= world.high:
        return "nobody"
    return (await world.add_member(list(world.groups.values())[int(pick * len(world.groups))])).name


@fault(breaks=False)
async def scale_down(world: World, pick: float, duration_s: float) -> str:
    """One member less, as long as its group keeps one and the run its minimum."""
    member = world.picked(pick, running=True)
    if member is None or len(world.living()) <= world.low or len(world.living(world.group_of(member).id)) < 2:
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


@fault(breaks=True, low_s=0.2, high_s=2.0)
async def lose_answers(world: World, pick: float, duration_s: float) -> str:
    """Requests are taken and done, and their answers never arrive: everybody has to ask again without knowing."""
    world.proxy.stall("down")
    try:
        await asyncio.sleep(duration_s)
        return f"of {world.proxy.reset(1.0)} connections"
    finally:
        world.proxy.release()


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
