"""What goes wrong: one small function each. A fault that lasts mends itself; at the end the driver mends all."""

from __future__ import annotations

import asyncio
from typing import Final

from protocol.errors import ProtocolError
from protocol.record_batch import UNKNOWN_GAP, iter_batches
from tests.simulation.daemons import stop_daemon
from tests.simulation.disk import Inode
from tests.simulation.history import Cut, Flip, Partition
from tests.simulation.registry import fault
from tests.simulation.world import Node, World

STOP_S: Final = 8.0
"""Within so many seconds of SIGTERM a daemon that is alone has ended."""
MEMBER_STOP_S: Final = 11.0
"""The same of one of several: it hands over for 4 s at most, and gives its lease back in the end, if etcd has a quorum."""


def is_segment(path: str) -> bool:
    """Whether a file is a segment of a log that is neither being deleted nor set aside as damaged."""
    return path.endswith(".log") and path.partition("/")[0].rpartition("-")[2].isdecimal()


def within(world: World, low: float, high: float) -> float:
    """A number between two."""
    return low + world.fault_random.random() * (high - low)


def _client(world: World) -> str | None:
    names = world.clients()
    return names[int(world.fault_random.random() * len(names))] if names else None


def a_node(world: World) -> Node:
    """One of the nodes; nothing is drawn where there is one."""
    nodes = world.nodes
    return nodes[0] if len(nodes) == 1 else nodes[int(world.fault_random.random() * len(nodes))]


@fault
async def daemon_loses_power(world: World) -> None:
    """The machine of a daemon is off for a while."""
    node = a_node(world)
    world.power_cut(node.name)
    await asyncio.sleep(within(world, 0.05, 2.0))
    world.start(node.name)


@fault
async def daemon_is_killed(world: World) -> None:
    """SIGKILL, and a supervisor."""
    node = a_node(world)
    world.kill(node.name)
    await asyncio.sleep(within(world, 0.05, 1.0))
    world.start(node.name)


@fault
async def daemon_loses_power_while_it_writes(world: World) -> None:
    """Between any two calls to the disk, or half-way in one."""
    node = a_node(world)
    node.disk.on_end = lambda: world.power_cut(node.name)
    await _ends_while_it_writes(world, node)


@fault
async def daemon_is_killed_while_it_writes(world: World) -> None:
    """Between any two calls to the disk, or half-way in one; what was written stays."""
    node = a_node(world)
    node.disk.on_end = lambda: world.kill(node.name)
    await _ends_while_it_writes(world, node)


async def _ends_while_it_writes(world: World, node: Node) -> None:
    node.disk.end_after = 1 + int(world.fault_random.random() ** 2 * 60)
    await asyncio.sleep(within(world, 0.5, 2.0))
    node.disk.end_after = None
    if not world.alive(node.name):
        world.start(node.name)


@fault
async def daemon_ends_while_it_compacts(world: World) -> None:
    """Power or process gone in the middle of the next exchange of compacted segments, whenever that is."""
    node = a_node(world)
    end = world.power_cut if world.fault_random.random() < 0.5 else world.kill
    node.disk.on_end = lambda: end(node.name)
    node.disk.end_in_exchange = True
    await asyncio.sleep(within(world, 1.0, 4.0))
    node.disk.end_in_exchange, node.disk.end_after = False, None
    if not world.alive(node.name):
        world.start(node.name)


@fault
async def daemon_is_restarted(world: World) -> None:
    """SIGTERM, a drain, and a new start."""
    await restart(world, a_node(world))


async def restart(world: World, node: Node) -> None:
    """Stops a daemon that serves, and starts it again."""
    daemon = node.daemon
    if daemon is None or not world.alive(node.name):
        return
    process = world.hosts[node.name].process
    node.daemon = None
    stopping = world.loop.spawn(process, stop_daemon(world, process, daemon))
    told_s, stop_s = world.loop.time(), STOP_S if len(world.nodes) == 1 else MEMBER_STOP_S
    while (left_s := max(told_s, process.went_on_s) + stop_s - world.loop.time()) > 0 or process.held is not None:
        await asyncio.wait([stopping], timeout=max(left_s, 0.1))  # one that is suspended cannot stop
        if stopping.done():
            break
    if not stopping.done() and not process.dead:
        world.history.not_live.append(f"{node.name} did not stop within {stop_s:.0f} s of SIGTERM")
        world.kill(node.name)
    world.start(node.name)


@fault
async def daemon_stalls(world: World) -> None:
    """SIGSTOP and SIGCONT, a frozen container, a paused machine: what arrives meanwhile waits in the kernel."""
    await stall(world, a_node(world).name)


@fault
async def client_stalls(world: World) -> None:
    """The same for a member or a producer, for longer than a session often."""
    name = _client(world)
    if name is not None:
        await stall(world, name)


async def stall(world: World, name: str) -> None:
    """Stops a process for up to one and a half sessions."""
    process = world.hosts[name].process
    if process.dead or process.held is not None:
        return
    process.held = []
    stall_s = within(world, 0.3, 1.5 * world.plan.session_ms / 1000)
    world.history.say(name, f"stalls for {stall_s:.2f} s")
    await asyncio.sleep(stall_s)
    world.loop.go_on(process)
    world.history.say(name, "runs again")


@fault
async def client_loses_power(world: World) -> None:
    """A machine with a member or a producer is off for a while; nobody tells the daemon."""
    name = _client(world)
    if name is not None:
        world.power_cut(name)
        await asyncio.sleep(within(world, 0.1, 6.0))
        world.start(name)


@fault
async def client_is_killed(world: World) -> None:
    """SIGKILL of a member or a producer."""
    name = _client(world)
    if name is not None:
        world.kill(name)
        await asyncio.sleep(within(world, 0.1, 3.0))
        world.start(name)


@fault
async def partition(world: World) -> None:
    """Nothing travels between a client and a daemon."""
    name = _client(world)
    if name is not None:
        node = a_node(world).name
        await cut(world, [(name, node), (node, name)])


@fault
async def one_way_cut(world: World) -> None:
    """One side hears the other, but not the other way round."""
    name = _client(world)
    if name is not None:
        node = a_node(world).name
        await cut(world, [(name, node) if world.fault_random.random() < 0.5 else (node, name)])


async def cut(world: World, pairs: list[tuple[str, str]]) -> None:
    """Nothing travels these ways for a while."""
    for source, target in pairs:
        world.history.say(source, f"is cut off from {target}")
        world.network.cut(source, target)
    await asyncio.sleep(within(world, 0.1, 8.0))
    for source, target in pairs:
        world.network.heal(source, target)
        world.history.say(source, f"reaches {target} again")
    if world.fault_random.random() < 0.3:
        world.network.reset(*pairs[0])


@fault
async def connections_reset(world: World) -> None:
    """All connections of one client to a daemon break."""
    name = _client(world)
    if name is not None and world.network.reset(name, a_node(world).name):
        world.history.say(name, "loses its connections")


@fault
async def slow_network(world: World) -> None:
    """Everything of one client takes longer."""
    name = _client(world)
    if name is not None:
        world.network.slow[name] = within(world, 0.05, 1.0)
        world.history.say(name, f"has a slow network: {world.network.slow[name]:.2f} s")
        await asyncio.sleep(within(world, 0.5, 4.0))
        world.network.slow.pop(name, None)


@fault
async def slow_disk(world: World) -> None:
    """Every call to the disk takes up to seconds."""
    node = a_node(world)
    node.disk.slow_s = within(world, 0.05, 1.5)
    world.history.say(node.name, f"has a slow disk: up to {node.disk.slow_s:.2f} s a call")
    await asyncio.sleep(within(world, 0.5, 3.0))
    node.disk.slow_s = 0.0


@fault
async def write_errors(world: World) -> None:
    """The next writes fail with EIO, half done."""
    node = a_node(world)
    node.disk.fail_writes = 1 + int(world.fault_random.random() * 3)
    world.history.say(node.name, f"will see {node.disk.fail_writes} failed writes")
    await asyncio.sleep(within(world, 0.2, 1.0))
    node.disk.fail_writes = 0


@fault
async def sync_errors(world: World) -> None:
    """The next sync fails with EIO; what it covered may be gone."""
    node = a_node(world)
    node.disk.fail_syncs = 1
    world.history.say(node.name, "will see a failed sync")
    await asyncio.sleep(within(world, 0.2, 1.0))
    node.disk.fail_syncs = 0


@fault
async def read_errors(world: World) -> None:
    """The next reads fail with EIO."""
    node = a_node(world)
    node.disk.fail_reads = 1 + int(world.fault_random.random() * 3)
    world.history.say(node.name, f"will see {node.disk.fail_reads} failed reads")
    await asyncio.sleep(within(world, 0.2, 1.0))
    node.disk.fail_reads = 0


@fault
async def full_disk(world: World) -> None:
    """There is room for a few hundred bytes more, then for none."""
    node = a_node(world)
    node.disk.capacity = node.disk.used() + int(world.fault_random.random() * 600)
    world.history.say(node.name, "has an almost full disk")
    await asyncio.sleep(within(world, 0.5, 4.0))
    node.disk.capacity = None
    world.history.say(node.name, "has room on its disk again")


@fault
async def bit_flip(world: World) -> None:
    """A bit of a record log is not what was written; the partition may refuse to serve, but never lie."""
    node = a_node(world)
    files = [
        (path, inode)
        for path, inode in node.disk.files()
        if is_segment(path) and not path.startswith("__") and inode.live
    ]
    if files:
        path, inode = files[int(world.fault_random.random() * len(files))]
        topic, _, number = path.partition("/")[0].rpartition("-")
        partition = (topic, int(number))
        world.history.damaged[partition] = None
        last = not any(other > path for other, _ in files if other.startswith(f"{topic}-{number}/"))
        before = bytes(inode.live)
        position = node.disk.flip_bit(inode)
        world.history.flips.append(flipped_batch(partition, path, before, position, last))
        world.history.say(node.name, f"has a flipped bit in {path} at {position}")


@fault
async def active_segment_loses_its_end(world: World) -> None:
    """The daemon is killed, and when it is back the file of an active segment is shorter than it was."""
    node = a_node(world)
    active: dict[Partition, tuple[str, Inode]] = {}
    for path, inode in node.disk.files():
        if is_segment(path) and not path.startswith(("__", "new")):  # who follows new topics reads all of them
            topic, _, number = path.partition("/")[0].rpartition("-")
            active[topic, int(number)] = path, inode
    filled = [partition for partition, (_, inode) in active.items() if inode.live]
    if filled and node.daemon is not None and world.alive(node.name) and not node.disk.is_troubled():
        partition = filled[int(world.fault_random.random() * len(filled))]
        path, inode = active[partition]
        world.kill(node.name)
        left = bytes(inode.live[: int(world.fault_random.random() * len(inode.live))])
        inode.live, inode.durable = bytearray(left), left
        end_offset = int(path.rpartition("/")[2].removesuffix(".log"))
        try:
            for _, header in iter_batches(left):
                end_offset = header.next_offset
        except ProtocolError:
            world.history.say(node.name, f"has half a batch at the end of {path}")
        world.history.damaged[partition] = None
        world.history.flips = [flip.after_cut(path, len(left)) for flip in world.history.flips]
        world.history.cuts.append(Cut(world.loop.time(), _noted_until_s(world), partition, end_offset))
        world.history.say(node.name, f"has lost the end of {path} from offset {end_offset} on")
    await asyncio.sleep(within(world, 0.05, 1.0))
    world.start(node.name)


def _noted_until_s(world: World) -> float:
    """What was acknowledged before is named by a checkpoint, when nothing is wrong with the disk."""
    return world.loop.time() - 3.0 - 2 * world.plan.checkpoint_ms / 1000


def flipped_batch(partition: Partition, path: str, content: bytes, position: int, last_segment: bool) -> Flip:
    """Which batch of a segment the bit belongs to, and whether anything behind it proves that it was on disk."""
    offset, proven, proof_end = -1, not last_segment, 0
    try:
        for start, header in iter_batches(content):
            if start <= position:
                offset = header.base_offset
            elif not proven and header.durable_gap != UNKNOWN_GAP and header.base_offset - header.durable_gap > offset:
                proven, proof_end = True, start + header.length
    except ProtocolError:
        proven = False  # something else is damaged here already
    return Flip(partition, offset, proven, path, proof_end)


@fault
async def wall_clock_steps(world: World) -> None:
    """The wall clock is set, by up to an hour in either direction."""
    world.clock_skew_ms += int(within(world, -3_600_000, 3_600_000))
    world.history.say("everybody", f"has a wall clock {world.clock_skew_ms / 1000:.0f} s off")


@fault
async def weeks_pass(world: World) -> None:
    """The wall clock leaps, further than offsets are kept."""
    world.clock_skew_ms += 8 * 24 * 3_600_000
    world.history.say("everybody", "has a wall clock that has leapt by eight days")
