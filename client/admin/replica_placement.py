"""Where replicas are to be when their number changes or a node is drained. Pure.

What is there already stays: a new replica is a copy over the network. New ones go to racks that have none of the partition
yet, then to the nodes with the fewest replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from client.errors import InvalidReplicationFactorError
from protocol.subscription import TopicPartition

Placement = Mapping[TopicPartition, Sequence[int]]
"""The replicas of partitions, the preferred leader first."""


def with_replication_factor(
    placement: Placement, factor: int, nodes: Mapping[int, str | None], load: Counter[int]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Those partitions that have another number of replicas, with as many as asked for.

    ``nodes`` has the rack of each node that lives, ``load`` how many replicas each has; it counts on. Of too many, those on
    nodes that do not live go first, then the last. Raises ``InvalidReplicationFactorError`` when there are too few nodes.
    """
    changed: dict[TopicPartition, tuple[int, ...]] = {}
    for partition, before in placement.items():
        replicas = list(before)
        while len(replicas) > factor:
            gone = [node for node in replicas if node not in nodes]
            replicas.remove(gone[-1] if gone else replicas[-1])
        while len(replicas) < factor:
            added = _best(replicas, nodes, load, but=())
            if added is None:
                raise InvalidReplicationFactorError(
                    f"{partition.topic}-{partition.partition} cannot have {factor} replicas: {_shown(nodes)} live"
                )
            replicas.append(added)
            load[added] += 1
        if replicas != list(before):
            changed[partition] = tuple(replicas)
    return changed


def without_node(
    placement: Placement, drained: int, nodes: Mapping[int, str | None], load: Counter[int]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that have a replica on ``drained``, with another node in its place; otherwise as above."""
    changed: dict[TopicPartition, tuple[int, ...]] = {}
    for partition, before in placement.items():
        if drained not in before:
            continue
        others = [node for node in before if node != drained]
        other = _best(others, nodes, load, but=(drained,))
        if other is None:
            raise InvalidReplicationFactorError(
                f"{partition.topic}-{partition.partition} has its {len(before)} replicas on {_shown(before)}, and no other "
                f"node is there for the one on node {drained}: {_shown(nodes)} live. Add a node, or give the topic fewer "
                "replicas"
            )
        load[other] += 1
        changed[partition] = tuple(other if node == drained else node for node in before)
    return changed


def _best(
    replicas: Sequence[int], nodes: Mapping[int, str | None], load: Counter[int], but: Sequence[int]
) -> int | None:
    racks = Counter(nodes[node] for node in replicas if nodes.get(node) is not None)
    free = (node for node in nodes if node not in replicas and node not in but)
    return min(free, key=lambda node: (racks[nodes[node]], load[node], node), default=None)


def _shown(nodes: Iterable[int]) -> str:
    named = [str(node) for node in sorted(nodes)]
    return f"{'node' if len(named) == 1 else 'nodes'} {', '.join(named) or 'none'}"
