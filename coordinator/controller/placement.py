"""Which nodes get the replicas of new partitions; pure.

Replicas of a partition are on different racks while there are enough, then on the nodes that have the fewest replicas; on
none that has no room for another log. Of those the one that is preferred as leader by the fewest partitions comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


class PlacementError(Exception):
    """There are not enough nodes. The text names those that live, or those that have no room."""


@dataclass(slots=True)
class NodeLoad:
    """A live node that accepts replicas, how many it has, and how many of their partitions prefer it as leader.

    Without a rack a node counts as a rack of its own. ``room`` is how many logs it may still open, None if that is unknown.
    """

    node_id: int
    rack: str = ""
    replicas: int = 0
    leaders: int = 0
    room: int | None = None


def place(nodes: Iterable[NodeLoad], partitions: int, replication_factor: int, start: int) -> list[tuple[int, ...]]:
    """The replicas of each of so many new partitions, the preferred leader first.

    ``start`` says which node is taken first of nodes that have the same load: a random number spreads the topics of few
    partitions. Raises ``PlacementError``.
    """
    loads = [replace(node) for node in sorted(nodes, key=lambda node: node.node_id)]
    if not 1 <= replication_factor <= len(loads):
        known = ", ".join(str(node.node_id) for node in loads) or "none"
        raise PlacementError(
            f"{replication_factor} replicas were asked for, and {len(loads)} nodes live that accept replicas ({known})"
        )
    placed = []
    for index in range(partitions):
        first = (start + index) % len(loads)
        chosen = _choose([*loads[first:], *loads[:first]], replication_factor, replication_factor)
        chosen.sort(key=lambda node: node.leaders)
        chosen[0].leaders += 1
        for node in chosen:
            node.replicas += 1
            if node.room is not None:
                node.room -= 1
        placed.append(tuple(node.node_id for node in chosen))
    return placed


def spread(nodes: Iterable[NodeLoad], present: tuple[int, ...], replication_factor: int) -> tuple[int, ...]:
    """The replicas of a partition that has replicas already, with as many as ``replication_factor`` asks for.

    ``nodes`` are those that may have a replica: one of ``present`` that is not among them is replaced, and the last ones
    go where there are too many. Raises ``PlacementError``.
    """
    loads = {node.node_id: replace(node) for node in sorted(nodes, key=lambda node: node.node_id)}
    kept = [loads[node] for node in present if node in loads][:replication_factor]
    others = [node for node in loads.values() if node not in kept]
    if len(kept) + len(others) < replication_factor or replication_factor < 1:
        known = ", ".join(map(str, loads)) or "none"
        raise PlacementError(
            f"{replication_factor} replicas were asked for, and {len(loads)} nodes live that accept replicas ({known})"
        )
    missing = replication_factor - len(kept)
    chosen = [*kept, *_choose(others, missing, replication_factor, {_rack(node) for node in kept})]
    return tuple(node.node_id for node in chosen)


def _choose(loads: list[NodeLoad], count: int, asked: int, racks: Iterable[object] = ()) -> list[NodeLoad]:
    """So many of the nodes, which have to have room; ``asked`` is the number of replicas, for people."""
    full = sorted(node.node_id for node in loads if node.room == 0)
    if len(loads) - len(full) < count:
        named = ", ".join(map(str, full))
        raise PlacementError(
            f"{asked} replicas were asked for, and {'node' if len(full) == 1 else 'nodes'} {named} may open no more logs "
            "(max_partitions): delete topics, add nodes, or raise the setting and the limit of open files there"
        )
    used = set(racks)
    chosen: list[NodeLoad] = []
    for _ in range(count):
        left = [node for node in loads if node not in chosen and node.room != 0]
        best = min(left, key=lambda node: (_rack(node) in used, node.replicas, node.leaders))
        used.add(_rack(best))
        chosen.append(best)
    return chosen


def _rack(node: NodeLoad) -> object:
    return node.rack or node.node_id
