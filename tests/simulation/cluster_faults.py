"""What goes wrong with one of several nodes, between them, and with the etcd that they share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import deepcopy
from typing import Final

from coordinator.log.errors import LogError
from coordinator.replication.replica import PATIENCE_MS
from coordinator.runtime.shard import ShardState
from protocol.record_batch import HEADER_BYTES, iter_batches
from tests.simulation.cluster_facts import PREFIX
from tests.simulation.cluster_probes import all_in_sync, is_noted, logs_of, node_id, state_of
from tests.simulation.consumers import OTHER, TOPIC
from tests.simulation.disk import Directory
from tests.simulation.etcd import CALM, Troubles
from tests.simulation.etcd_members import MEMBERS
from tests.simulation.faults import a_node, flipped_batch, is_segment, restart, within
from tests.simulation.history import Partition, name_of
from tests.simulation.inspection import Led, group_shards_of, led, transaction_shards_of
from tests.simulation.registry import CLUSTER_FAULTS, FAULTS, cluster_fault
from tests.simulation.world import Node, World

_SHARED: Final = (
    "client_stalls", "client_loses_power", "client_is_killed", "partition", "one_way_cut", "connections_reset",
    "slow_network", "write_errors", "sync_errors", "read_errors", "wall_clock_steps",
)  # fmt: skip
"""Faults of single nodes and their clients that come here too."""
CLUSTER_FAULTS.update({name: FAULTS[name] for name in _SHARED})
SETTLED_S: Final = 15.0
"""Within so many seconds of a start a node is in sync again, if nothing else is wrong."""

_HANDED_OVER_S: Final = 6.0
"""Within so long a leader that cannot serve has handed over: it looks once a second, and etcd may elect for two."""

_DAEMONS: Final = (
    "loses_power", "is_killed", "loses_power_while_it_writes", "is_killed_while_it_writes", "is_restarted",
    "ends_while_it_compacts",
)  # fmt: skip
for _name in _DAEMONS:
    CLUSTER_FAULTS[f"node_{_name}"] = FAULTS[f"daemon_{_name}"]


def _draw(world: World, most: int) -> int:
    return int(world.fault_random.random() * most)


# Nodes


@cluster_fault
async def node_is_paused(world: World) -> None:
    """SIGSTOP for up to several sessions of a node, and SIGCONT: it wakes up and believes what it knew."""
    node = a_node(world)
    process = world.hosts[node.name].process
    if process.dead or process.held is not None:
        return
    process.held = []
    pause_s = within(world, 0.3, 7.0)
    world.history.say(node.name, f"is paused for {pause_s:.2f} s")
    await asyncio.sleep(pause_s)
    world.loop.go_on(process)
    world.history.say(node.name, "runs again")


@cluster_fault
async def all_nodes_lose_power(world: World) -> None:
    """The whole room goes dark, and the machines come back one after the other."""
    for node in world.nodes:
        world.power_cut(node.name)
    for node in sorted(world.nodes, key=lambda _: world.fault_random.random()):
        await asyncio.sleep(within(world, 0.05, 1.5))
        world.start(node.name)


@cluster_fault
async def rolling_restart(world: World) -> None:
    """One node after the other is told to stop and starts again, each when the one before is in sync."""
    for node in world.nodes:
        await restart(world, node)
        end_s = world.loop.time() + SETTLED_S
        while not all_in_sync(world) and world.loop.time() < end_s:
            await asyncio.sleep(0.2)


@cluster_fault
async def replica_is_slow(world: World) -> None:
    """Disk or network of one node take long, or both: it may leave the replicas in sync."""
    node, what = a_node(world), _draw(world, 3)
    node.disk.slow_s = within(world, 0.05, 1.0) if what != 1 else 0.0
    world.network.slow[node.name] = within(world, 0.0, 0.5) if what else 0.0
    slow_s = node.disk.slow_s, world.network.slow[node.name]
    world.history.say(node.name, f"is slow: {slow_s[0]:.2f} s a call of its disk, {slow_s[1]:.2f} s a message")
    await asyncio.sleep(within(world, 0.5, 5.0))
    node.disk.slow_s = 0.0
    world.network.slow.pop(node.name, None)


@cluster_fault
async def leaders_fall_in_turn(world: World) -> None:
    """Two nodes end, one soon after the other, while neither the first nor the second has the third as its follower."""
    first, second, last = sorted(world.nodes, key=lambda _: world.fault_random.random())[:3]
    ways = [(one.name, other.name) for one, other in ((first, last), (second, last))]
    ways += [(other, one) for one, other in ways]
    for way in ways:
        world.network.cut(*way)
    world.history.say(last.name, f"is cut off from {first.name} and {second.name}")
    await asyncio.sleep(within(world, 0.1, 1.0))
    world.kill(first.name)
    await asyncio.sleep(within(world, 0.2, 2.5))
    world.kill(second.name)
    for way in ways:
        world.network.heal(*way)
    await asyncio.sleep(within(world, 0.5, 4.0))
    world.start(first.name)
    world.start(second.name)


@cluster_fault
async def followers_are_lost(world: World) -> None:
    """Both followers of a leader lag, and end while producers wait for them: it stays, and is too few."""
    leader = a_node(world)
    others = [node for node in world.nodes if node is not leader]
    end = world.kill if _draw(world, 2) else world.power_cut
    for other in others:
        world.network.cut(leader.name, other.name)
    world.history.say(leader.name, "is not heard by the other nodes")
    await asyncio.sleep(within(world, 0.0, 1.0))
    for other in others:
        end(other.name)
        world.network.heal(leader.name, other.name)
    await asyncio.sleep(within(world, 2.0, 7.0))
    for other in others:
        world.start(other.name)


# Disks


@cluster_fault
async def disk_is_replaced(world: World) -> None:
    """A machine comes back with an empty disk. Only while all replicas are in sync: others have what it had."""
    node = a_node(world)
    if _others_have_all(world, node):
        await _returns_with(world, node, Directory(), "an empty disk")


@cluster_fault
async def old_disk_image_returns(world: World) -> None:
    """A machine comes back with the disk that it had before its last start."""
    node = a_node(world)
    image = await _old_image(world, node)
    if image is not None and _others_have_all(world, node):
        await _returns_with(world, node, image, "an old image of its disk")


def _others_have_all(world: World, node: Node) -> bool:
    """Whether a node's disk may go bad: all replicas are in sync, and the other nodes have theirs and can prove it."""
    if not all(is_noted(other) for other in world.nodes if other is not node):
        return False
    return all_in_sync(world) and all(name == node.name for name in world.history.cluster.flipped.values())


@cluster_fault
async def bit_flips_on_a_replica(world: World) -> None:
    """A bit of one copy is not what was written, where the others have it and what follows proves that it was on disk.

    That copy may be refused or made anew; what it had is on the others, and none of its readers gets anything else.
    """
    node = a_node(world)
    if not _others_have_all(world, node):
        return
    found = [
        (path, inode, partition, end)
        for path, inode in node.disk.files()
        if is_segment(path) and not path.startswith("__")
        if _partition_of(path) not in world.history.cluster.flipped
        if (end := _committed_bytes(world, partition := _partition_of(path), bytes(inode.live))) > 0
    ]
    if found:
        path, inode, partition, end = found[_draw(world, len(found))]
        last = not any(other > path for other, _ in node.disk.files() if is_segment(other) and _is_beside(other, path))
        position = _draw(world, end)
        flip = flipped_batch(partition, path, bytes(inode.live[:end]), position, last)
        if flip.proven:
            node.disk.flip_bit_at(inode, position)
            world.history.damaged[partition] = None
            world.history.cluster.flipped[partition] = node.name
            world.history.flips.append(flip)
            world.history.say(node.name, f"has a flipped bit in {path} at {position}, offset {flip.offset}")


@cluster_fault
async def leader_reads_damage(world: World) -> None:
    """The header of a batch in a closed segment of a leader is not what was written, and somebody reads it there."""
    node = a_node(world)
    if not _others_have_all(world, node):
        return
    for partition, there in sorted(led(world).items(), key=lambda found: found[0]):
        files = sorted((file for file in node.disk.files() if _is_of(file[0], partition)), key=lambda file: file[0])
        if there.node is not node or partition[0].startswith("__") or partition in world.history.damaged:
            continue
        path, inode = files[0]
        content = bytes(inode.live)
        if len(files) == 1 or not content or _committed_bytes(world, partition, content) < len(content):
            continue
        position = _draw(world, HEADER_BYTES)
        node.disk.flip_bit_at(inode, position)
        world.history.damaged[partition] = None
        world.history.cluster.flipped[partition] = node.name
        world.history.flips.append(flipped_batch(partition, path, content, position, last_segment=False))
        world.history.say(node.name, f"has a flipped bit in {path} at {position}, which is read")
        with suppress(LogError, OSError):
            await there.log.read(there.log.start_offset, 1)
        await _look_for_hand_over(world, {partition: there})
        return


@cluster_fault
async def disk_of_a_leader_is_full(world: World) -> None:
    """A disk takes nothing any more: others lead what is written to."""
    node = a_node(world)
    node.disk.capacity = node.disk.used()
    world.history.say(node.name, "has a full disk")
    await _look_for_hand_over(
        world, {partition: found for partition, found in led(world).items() if found.node is node}
    )
    node.disk.capacity = None
    world.history.say(node.name, "has room on its disk again")


@cluster_fault
async def coordinators_cannot_read_their_logs(world: World) -> None:
    """The disk of a node reads nothing of the logs of coordinators, when another ends and it is to take over from that."""
    node, other = sorted(world.nodes, key=lambda _: world.fault_random.random())[:2]
    node.disk.unreadable = "__"
    world.history.say(node.name, "cannot read the logs of coordinators")
    world.kill(other.name)
    end_s = world.loop.time() + within(world, 6.0, 12.0)
    await asyncio.sleep(within(world, 0.1, 2.0))
    world.start(other.name)
    there: dict[Partition, Led] = {}
    while not there and world.loop.time() < end_s:
        await asyncio.sleep(0.25)
        there = {
            partition: found
            for partition, found in led(world).items()
            if found.node is node and _cannot_load(found, partition) and not _has_handed_on(found, partition)
        }
    await _look_for_hand_over(world, there)
    node.disk.unreadable = None
    world.history.say(node.name, "can read the logs of coordinators again")


def _cannot_load(found: Led, partition: Partition) -> bool:
    """Whether a coordinator at a node cannot read its log."""
    states = {(shard.topic, shard.partition): shard.state for shard in group_shards_of(found.node)}
    states |= {(shard.topic, shard.partition): shard.state for shard in transaction_shards_of(found.node)}
    return states.get(partition) is ShardState.LOADING and found.node.disk.unreadable is not None


def _has_handed_on(found: Led, partition: Partition) -> bool:
    """Whether a replica has given up for this reason before: it goes round once, and stays then."""
    member = found.node.daemon._member if found.node.daemon is not None else None
    replica = None if member is None else member.replicas.get(*partition)
    return replica is not None and replica._unreadable_ms is not None


async def _look_for_hand_over(world: World, there: dict[Partition, Led]) -> None:
    """Notes leaders that lead on for too long while they cannot serve, and nothing keeps them from handing over."""
    end_s, since_s = world.loop.time() + 1.5 * _HANDED_OVER_S, dict[Partition, float]()
    while there and world.loop.time() < end_s:
        await asyncio.sleep(0.25)
        leading, quiet = led(world), _is_quiet(world)
        for partition, found in sorted(there.items(), key=lambda one: one[0]):
            now = leading.get(partition)
            if now is None or now.log is not found.log:
                del there[partition]
            elif not quiet or not _cannot_serve(found, partition) or not _others_are_enough(world, found):
                since_s.pop(partition, None)
            elif world.loop.time() - since_s.setdefault(partition, world.loop.time()) > _HANDED_OVER_S:
                del there[partition]
                world.history.cluster.leading_on.append(
                    f"at {world.loop.time():.3f} s {found.node.name} leads {name_of(partition)}, although it could "
                    f"not serve it since {since_s[partition]:.3f} s"
                )


def _cannot_serve(found: Led, partition: Partition) -> bool:
    log = found.log
    return log.damage is not None or log.refused_for_s * 1000 >= PATIENCE_MS or _cannot_load(found, partition)


def _others_are_enough(world: World, found: Led) -> bool:
    state = state_of(world, found)
    return (
        state is not None and sum(node_id(node) in state.isr for node in world.serving() if node is not found.node) > 1
    )


def _is_quiet(world: World) -> bool:
    """Whether all nodes run, and reach one another and etcd."""
    etcd = world.etcd
    running = len(world.serving()) == len(world.nodes) and not any(node.disk.slow_s for node in world.nodes)
    held = any(host.process.held is not None for host in world.hosts.values())
    return running and not held and not etcd.down and etcd.troubles == CALM and world.network.is_whole


def _is_of(path: str, partition: Partition) -> bool:
    return is_segment(path) and _partition_of(path) == partition


def _partition_of(path: str) -> Partition:
    topic, _, number = path.partition("/")[0].rpartition("-")
    return topic, int(number)


def _is_beside(other: str, path: str) -> bool:
    return other.partition("/")[0] == path.partition("/")[0]


def _committed_bytes(world: World, partition: Partition, content: bytes) -> int:
    """How much of a segment lies below the high watermark, and is on the disks of all replicas."""
    there = led(world).get(partition)
    copies = [log for node in world.serving() if (log := logs_of(node).get(partition)) is not None]
    state = None if there is None else state_of(world, there)
    if there is None or state is None or len(copies) != len(state.isr) or set(state.isr) != set(state.replicas):
        return 0
    end = min(there.log.high_watermark, *(log.flushed_offset for log in copies))
    batches = [(at + header.length, header.next_offset) for at, header in iter_batches(content)]
    return max((until for until, next_offset in batches if next_offset <= end), default=0)


async def _old_image(world: World, node: Node) -> Directory | None:
    """Of the disk before a start that is registered: by that it is told from what a power cut leaves. None if none came."""
    image, started = _durable(node.disk.root), world.hosts[node.name].started
    await restart(world, node)
    await asyncio.sleep(within(world, 1.0, 6.0))
    came = node.daemon is not None and world.hosts[node.name].started > started
    return image if came and image.live else None


@cluster_fault
async def power_takes_a_disk_with_it(world: World) -> None:
    """All machines lose their power. One is back first, with an empty disk or an old image; it must wait for the others."""
    node = a_node(world)
    image = await _old_image(world, node) if _draw(world, 2) else Directory()
    if image is None or not _others_have_all(world, node):
        return
    others = [other for other in world.nodes if other is not node]
    for other in others:
        world.power_cut(other.name)
    await _returns_with(world, node, image, "what is left of its disk")
    for other in others:
        await asyncio.sleep(within(world, 0.0, 4.0))
        world.start(other.name)


@cluster_fault
async def power_takes_a_log_with_it(world: World) -> None:
    """All machines lose their power. One is back first, without one of its logs; it must wait for the others."""
    node = a_node(world)
    logs = sorted(log.directory for (topic, _), log in logs_of(node).items() if topic in (TOPIC, OTHER))
    if not logs or not _others_have_all(world, node):
        return
    world.history.cluster.lost_disks[node_id(node)] = world.etcd.authority.revision
    lost, others = logs[_draw(world, len(logs))], [other for other in world.nodes if other is not node]
    for machine in world.nodes:
        world.power_cut(machine.name)
    node.disk.root.live.pop(lost, None)
    node.disk.root.durable.pop(lost, None)
    node.has_served = False
    world.history.say(node.name, f"has lost {lost}")
    await asyncio.sleep(within(world, 0.05, 1.0))
    world.start(node.name)
    for other in others:
        await asyncio.sleep(within(world, 0.0, 4.0))
        world.start(other.name)


async def _returns_with(world: World, node: Node, root: Directory, what: str) -> None:
    world.history.cluster.lost_disks[node_id(node)] = world.etcd.authority.revision
    world.power_cut(node.name)
    node.disk.root = root
    node.has_served = False
    world.history.say(node.name, f"gets {what}")
    await asyncio.sleep(within(world, 0.05, 4.0))
    world.start(node.name)


def _durable(directory: Directory) -> Directory:
    """What a power cut would leave at least."""
    copy = Directory()
    for name, node in directory.durable.items():
        if isinstance(node, Directory):
            copy.live[name] = _durable(node)
        else:
            file = deepcopy(node)
            file.live = bytearray(file.durable)
            copy.live[name] = file
    copy.durable = dict(copy.live)
    return copy


# Between nodes


@cluster_fault
async def node_is_cut_from_nodes(world: World) -> None:
    """The others do not hear it, nor it them; all reach etcd and clients."""
    node = a_node(world).name
    others = [other.name for other in world.nodes if other.name != node]
    await _cut(world, [*((node, other) for other in others), *((other, node) for other in others)])


@cluster_fault
async def one_way_cut_between_nodes(world: World) -> None:
    """One node does not hear another, which hears it."""
    source, target = a_node(world).name, a_node(world).name
    if source != target:
        await _cut(world, [(source, target)])


@cluster_fault
async def node_is_cut_from_etcd(world: World) -> None:
    """It reaches clients and nodes, and no member of etcd; perhaps only one direction is cut."""
    node, draw = a_node(world).name, _draw(world, 4)
    there = [(node, member) for member in MEMBERS] if draw != 1 else []
    back = [(member, node) for member in MEMBERS] if draw != 2 else []
    await _cut(world, [*there, *back])


@cluster_fault
async def network_splits(world: World) -> None:
    """One node and some of the clients see nothing but each other; the others, and etcd, are on the other side."""
    node = a_node(world).name
    here = [node, *(name for name in world.clients() if _draw(world, 2))]
    there = [name for name in [*MEMBERS, *world.hosts] if name not in here]
    ways = [(one, other) for one in here for other in there]
    await _cut(world, [*ways, *((other, one) for one, other in ways)], f"is on one side with {here[1:]}")


async def _cut(world: World, ways: list[tuple[str, str]], what: str = "") -> None:
    for way in ways:
        world.network.cut(*way)
    ended = ", ".join(f"{source} to {target}" for source, target in ways)
    world.history.say(ways[0][0], what or f"is cut: {ended}")
    await asyncio.sleep(within(world, 0.2, 8.0))
    for way in ways:
        world.network.heal(*way)
    world.history.say(ways[0][0], "is not cut off any more")


# Etcd


@cluster_fault
async def etcd_answers_go_astray(world: World) -> None:
    """Requests are refused, answers lost, transactions take effect late; watches lag, break off, fall silent."""
    random = world.fault_random
    shares = {
        name: random.choice((0.0, 0.0, 0.05, 0.3))
        for name in ("refused", "answer_lost", "late", "lag", "broken", "silent", "parts")
    }
    world.etcd.troubles = Troubles(**shares)
    world.history.say("etcd", f"has troubles: {world.etcd.troubles}")
    await asyncio.sleep(within(world, 0.5, 5.0))
    world.etcd.troubles = CALM


@cluster_fault
async def etcd_member_is_down(world: World) -> None:
    """One of three; the others elect a leader if it was theirs."""
    member = MEMBERS[_draw(world, len(MEMBERS))]
    world.etcd.down[member] = None
    if _draw(world, 2):
        world.etcd.elect(within(world, 0.5, 2.0))
    world.history.say(member, "is down")
    await asyncio.sleep(within(world, 0.5, 6.0))
    world.etcd.down.pop(member, None)
    world.history.say(member, "is up")


@cluster_fault
async def etcd_leader_changes(world: World) -> None:
    """For a second or two nothing is written; every lease has its whole time again."""
    world.history.say("etcd", "elects a leader")
    world.etcd.elect(within(world, 0.3, 2.0))


@cluster_fault
async def etcd_loses_its_quorum(world: World) -> None:
    """Two of three members are down for longer than sessions last."""
    down = [member for member in MEMBERS if member != MEMBERS[_draw(world, len(MEMBERS))]][:2]
    for member in down:
        world.etcd.down[member] = None
    world.history.say("etcd", f"has no quorum: {down}")
    await asyncio.sleep(within(world, 0.5, 8.0))
    for member in down:
        world.etcd.down.pop(member, None)
    world.etcd.elect(within(world, 0.3, 1.5))
    world.history.say("etcd", "has a quorum again")


@cluster_fault
async def etcd_compacts(world: World) -> None:
    """What happened is forgotten, perhaps below a watch that lags."""
    world.etcd.authority.compact(world.etcd.authority.revision - _draw(world, 3))
    world.history.say("etcd", "compacts")


@cluster_fault
async def lease_ends_early(world: World) -> None:
    """The session of a node is over, although it renews it."""
    serving = world.serving()
    if serving:
        node = serving[_draw(world, len(serving))]
        known = world.etcd.authority.get(f"{PREFIX}live/{node_id(node)}")
        if known is not None and known.lease:
            world.history.say(node.name, "loses its lease")
            world.etcd.authority.revoke(known.lease)
            world.etcd.told()
