"""``cohort cluster``: describe the nodes and what is wrong with replicas, forget a node."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.admin import Admin
from client.cli.options import Subparsers, add_command, whole
from client.cli.output import Output, counted
from client.cli.session import require_daemon
from client.types.descriptions import ClusterDescription, NodeDescription, PartitionDescription
from protocol.subscription import TopicPartition

_EXAMPLES: Final = """\
  cohort cluster describe
  cohort cluster describe --json
  cohort cluster remove-node 4"""
_NAMED: Final = 10

Partitions = Mapping[TopicPartition, PartitionDescription]


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``cluster`` and its subcommands."""
    group = add_command(subparsers, "cluster", "describe the nodes of a cluster, forget one", examples=_EXAMPLES)
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    describe_parser = add_command(
        commands,
        "describe",
        "show the nodes, the controller, and partitions that lack replicas or a leader",
        description="Shows the nodes, which of them is the controller, how many partitions each leads and keeps, how far\n"
        "replicas are behind, and whether the next node of a rolling restart may be stopped.",
        examples="  cohort cluster describe",
    )
    describe_parser.set_defaults(handler=describe)

    remove_parser = add_command(
        commands,
        "remove-node",
        "forget a node that will not come back",
        description="Forgets a node that does not live and has no replicas: it will not come back.\n"
        "'cohort topics reassign --drain-node N' moves its replicas first.",
        examples="  cohort topics reassign --drain-node 4\n  cohort cluster remove-node 4",
    )
    remove_parser.add_argument("node", metavar="NODE", type=whole, help="the id of the node")
    remove_parser.set_defaults(handler=remove_node)


async def describe(options: argparse.Namespace, output: Output) -> int:
    """Shows the nodes and what is wrong with replicas."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        cluster = await admin.describe_cluster()
        names = await admin.list_topics(include_internal=True)
        topics = await admin.describe_topics(*names) if names else {}
        partitions = {TopicPartition(name, each.partition): each for name in topics for each in topics[name].partitions}
        under = [partition for partition, each in partitions.items() if len(each.in_sync_replicas) < len(each.replicas)]
        lags = await _lags(admin, under)
        moving = await admin.list_reassignments()
    offline = [partition for partition, each in partitions.items() if each.leader < 0]
    obstacles = _obstacles(cluster, under, offline)
    rows = [_row(node, cluster, partitions, lags) for node in (*cluster.nodes, *cluster.absent_nodes)]
    if output.as_json:
        output.object(
            {
                "cluster_id": cluster.cluster_id,
                "controller": cluster.controller_id,
                "metadata_store": cluster.metadata_store,
                "nodes": rows,
                "under_replicated": [_under(partition, partitions[partition], lags) for partition in under],
                "offline": [_name(partition) for partition in offline],
                "reassigning": [_name(partition) for partition in moving],
                "may_restart_next": not obstacles,
                "obstacles": obstacles,
            }
        )
        return 0
    kept = f", metadata in {cluster.metadata_store}" if cluster.metadata_store else ""
    controller = f"controller {cluster.controller_id}" if cluster.controller_id >= 0 else "no controller"
    output.line(f"cluster {cluster.cluster_id}, {controller}{kept}\n")
    output.rows(("node", "address", "rack", "state", "leads", "replicas", "room", "lag"), rows, empty="no nodes")
    output.line()
    for title, named in (
        ("without a leader", offline),
        ("under-replicated", under),
        ("being reassigned", list(moving)),
    ):
        if named:
            shown = ", ".join(map(_name, named[:_NAMED])) + (", ..." if len(named) > _NAMED else "")
            output.line(f"{counted(len(named), 'partition')} {title}: {shown}")
    if obstacles:
        output.line(f"do not stop a node now: {'; '.join(obstacles)}")
    else:
        output.line("every replica is in sync: a node may be restarted")
    return 0


async def _lags(admin: Admin, under: Sequence[TopicPartition]) -> dict[TopicPartition, dict[int, int]]:
    """How many records each replica lacks, of partitions that have replicas out of sync."""
    if not under:
        return {}
    described = await admin.describe_replicas(*dict.fromkeys(partition.topic for partition in under))
    return {
        partition: {replica.node_id: replica.lag for replica in described.get(partition, ())} for partition in under
    }


def _row(
    node: NodeDescription, cluster: ClusterDescription, partitions: Partitions, lags: Mapping[TopicPartition, Any]
) -> dict[str, Any]:
    state = "absent" if not node.alive else "draining" if node.draining else "alive"
    known = Counter(each.leader for each in partitions.values())
    return {
        "node": node.node_id,
        "address": f"{node.host}:{node.port}" if node.alive else None,
        "rack": node.rack,
        "state": state,
        "controller": node.node_id == cluster.controller_id,
        "leads": known[node.node_id],
        "replicas": sum(node.node_id in each.replicas for each in partitions.values()),
        "room": node.room,
        "lag": max((lag.get(node.node_id, 0) for lag in lags.values()), default=0) if node.alive else None,
    }


def _under(partition: TopicPartition, told: PartitionDescription, lags: Mapping[TopicPartition, Any]) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "replicas": list(told.replicas),
        "in_sync_replicas": list(told.in_sync_replicas),
        "lag": lags.get(partition, {}),
    }


def _obstacles(
    cluster: ClusterDescription, under: Sequence[TopicPartition], offline: Sequence[TopicPartition]
) -> list[str]:
    """Why no node should be stopped at the moment."""
    found = [f"node {node.node_id} is absent" for node in cluster.absent_nodes]
    found += [f"node {node.node_id} is about to stop" for node in cluster.nodes if node.draining]
    if offline:
        found.append(f"{counted(len(offline), 'partition')} without a leader")
    if under:
        found.append(f"{counted(len(under), 'partition')} with replicas that are not in sync")
    return found


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


async def remove_node(options: argparse.Namespace, output: Output) -> int:
    """Forgets one node."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        await admin.remove_node(options.node)
    output.result({"node": options.node, "removed": True}, f"node {options.node} is forgotten")
    return 0
