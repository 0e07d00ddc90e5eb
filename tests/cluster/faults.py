"""What can go wrong with nodes, the network between them and their metadata; members' faults are those of the chaos runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from tests.chaos.registry import FAULTS as OF_ONE_NODE
from tests.chaos.registry import LEFT_OUT, Act, Fault
from tests.chaos.schedule import MODULES
from tests.chaos.world import World
from tests.cluster.processes import Node
from tests.cluster.world import OnCluster

assert MODULES, "the faults of members are registered"

OF_MEMBERS: Final = (
    *("kill-member", "kill-at-commit", "stop-member", "leave-member", "scale-up", "scale-down", "kill-producer"),
    *("grow-topic", "change-subscription"),
)
"""The faults of the chaos runs that have nothing to do with the daemon."""
FAULTS: Final[dict[str, Fault]] = {name: OF_ONE_NODE[name] for name in OF_MEMBERS}


def fault(*, low_s: float = 0.5, high_s: float = 3.0) -> Callable[[Callable[..., Awaitable[str]]], Act]:
    """Registers a fault of a cluster under its function's name; requests may fail meanwhile."""

    def register(act: Callable[[Any, float, float], Awaitable[str]]) -> Act:
        async def on_cluster(world: World, pick: float, duration_s: float) -> str:
            assert isinstance(world, OnCluster)
            return await act(world, pick, duration_s)

        name = act.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, on_cluster, True, low_s, high_s)
        return on_cluster

    return register


def _picked(world: OnCluster, pick: float) -> Node:
    return world.nodes.nodes[int(pick * len(world.nodes.nodes))]


@contextmanager
def _alone(nodes: Sequence[Node]) -> Iterator[bool]:
    """Gives whether no fault of these nodes is under way; then none begins before the end."""
    if any(node.in_fault for node in nodes):
        yield False
        return
    for node in nodes:
        node.in_fault = True
    try:
        yield True
    finally:
        for node in nodes:
            node.in_fault = False


def node_fault(*, low_s: float, high_s: float) -> Callable[[Callable[..., Awaitable[None]]], Act]:
    """Registers a fault of one node that runs. It is left out where another is under way: on a machine where starts take
    long, faults that wait for their turn would last beyond the end of the run."""

    def register(act: Callable[[OnCluster, Node, float], Awaitable[None]]) -> Act:
        @wraps(act)
        async def at_node(world: OnCluster, pick: float, duration_s: float) -> str:
            node = _picked(world, pick)
            with _alone([node]) as alone:
                if not alone:
                    return LEFT_OUT
                async with node.turn:
                    if not node.running:
                        return LEFT_OUT
                    await act(world, node, duration_s)
            return f"node {node.number}"

        return fault(low_s=low_s, high_s=high_s)(at_node)

    return register


@node_fault(low_s=0.0, high_s=8.0)
async def kill_node(world: OnCluster, node: Node, duration_s: float) -> None:
    """SIGKILL, and a new start on the same directory."""
    await world.nodes.kill(node)
    await asyncio.sleep(duration_s)
    await world.nodes.start_node(node)


@node_fault(low_s=0.0, high_s=3.0)
async def restart_node(world: OnCluster, node: Node, duration_s: float) -> None:
    """SIGTERM, and a new start."""
    status = await world.nodes.terminate(node)
    if status != 0:
        text = f"ended with {status} after SIGTERM: {node.output[-8:]}"
        world.ledger.write("crash", name=f"node {node.number}", text=text)
    await asyncio.sleep(duration_s)
    await world.nodes.start_node(node)


@node_fault(low_s=1.0, high_s=8.0)
async def stop_node(world: OnCluster, node: Node, duration_s: float) -> None:
    """SIGSTOP, SIGCONT: a node that does not know what it missed, and may think that it leads."""
    world.nodes.pause(node)
    try:
        await asyncio.sleep(duration_s)
    finally:
        world.nodes.resume(node)


@fault(low_s=0.5, high_s=3.0)
async def kill_all_nodes(world: OnCluster, pick: float, duration_s: float) -> str:
    """SIGKILL to all at once; they come back one after the other, in any order."""
    nodes = list(world.nodes.nodes)
    with _alone(nodes) as alone:
        if not alone:
            return LEFT_OUT
        async with nodes[0].turn, nodes[1].turn, nodes[2].turn:
            living = [node for node in nodes if node.running]
            await asyncio.gather(*(world.nodes.kill(node) for node in living))
            await asyncio.sleep(duration_s)
            for node in sorted(living, key=lambda node: (node.number * (1 + int(pick * 5))) % 7):
                await world.nodes.start_node(node)
    return f"{len(living)} nodes"


@fault(low_s=1.0, high_s=8.0)
async def cut_from_metadata(world: OnCluster, pick: float, duration_s: float) -> str:
    """A node does not reach the metadata, silently; clients and nodes reach it."""
    node = _picked(world, pick)
    world.nodes.cut_from_metadata(node)
    await _healed_after(world, duration_s)
    return f"node {node.number}"


@fault(low_s=1.0, high_s=12.0)
async def cut_from_nodes(world: OnCluster, pick: float, duration_s: float) -> str:
    """A node and the others do not reach each other; clients and metadata do."""
    node = _picked(world, pick)
    world.nodes.cut_from_nodes(node)
    await _healed_after(world, duration_s)
    return f"node {node.number}"


@fault(low_s=1.0, high_s=8.0)
async def cut_one_way(world: OnCluster, pick: float, duration_s: float) -> str:
    """What one node sends does not reach another; the other way is open."""
    source, target = _picked(world, pick), _picked(world, (pick * 7 + 0.4) % 1)
    if source is target:
        target = world.nodes[(source.number + 1) % len(world.nodes.nodes)]
    world.nodes.cut(source, target)
    await _healed_after(world, duration_s)
    return f"from node {source.number} to {target.number}"


@fault(low_s=1.0, high_s=8.0)
async def cut_off_node(world: OnCluster, pick: float, duration_s: float) -> str:
    """Nothing reaches a node, and nothing that it says reaches anything; half of the time what waited is lost."""
    node = _picked(world, pick)
    world.nodes.cut_from_metadata(node)
    world.nodes.cut_from_nodes(node)
    world.nodes.cut_from_clients(node)
    try:
        await asyncio.sleep(duration_s)
        if pick * 10 % 1 < 0.5:
            world.nodes.drop_waiting(node)
    finally:
        await world.nodes.heal()
    return f"node {node.number}"


@fault(low_s=1.0, high_s=6.0)
async def slow_replica(world: OnCluster, pick: float, duration_s: float) -> str:
    """What a node fetches takes up to half a second longer."""
    node = _picked(world, pick)
    for proxy in node.to_nodes.values():
        proxy.delay_s = 0.02 + 0.5 * pick
    await _healed_after(world, duration_s)
    return f"node {node.number}"


@fault()
async def reset_node_connections(world: OnCluster, pick: float, duration_s: float) -> str:
    """RST to connections of a node, to others or to clients."""
    node = _picked(world, pick)
    proxies = list(node.to_nodes.values()) if pick * 10 % 1 < 0.5 else node.for_clients
    return f"node {node.number}: {sum(proxy.reset(1.0) for proxy in proxies)} connections"


@fault(low_s=0.5, high_s=4.0)
async def stop_metadata(world: OnCluster, pick: float, duration_s: float) -> str:
    """A member of etcd is stopped, which with one member is all of it; without etcd every node is cut from the metadata."""
    members = world.nodes.metadata.members
    if members is None:
        for node in world.nodes.nodes:
            world.nodes.cut_from_metadata(node)
        await _healed_after(world, duration_s)
        return "all nodes"
    member = members.members[int(pick * len(members.members))]
    member.stop()
    try:
        await asyncio.sleep(duration_s)
    finally:
        member.cont()
    return member.name


@fault()
async def compact_metadata(world: OnCluster, pick: float, duration_s: float) -> str:
    """etcd forgets what is past."""
    members = world.nodes.metadata.members
    if members is None:
        return "no etcd"
    try:
        await asyncio.to_thread(members.compact)
    except OSError as error:
        return f"failed: {error}"
    return "etcd"


async def _healed_after(world: OnCluster, seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:
        await world.nodes.heal()
