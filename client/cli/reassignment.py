"""``cohort topics reassign`` and ``elect-leaders``: where partitions are, and who leads them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.options import Subparsers, add_command, positive, whole
from client.cli.output import Output, counted
from client.cli.session import require_daemon
from protocol.subscription import TopicPartition

_EXAMPLES: Final = """\
  cohort topics reassign lines --replication-factor 3
  cohort topics reassign lines --replicas 1,2,4 --partition 0
  cohort topics reassign --status
  cohort topics reassign lines --cancel
  cohort topics reassign --drain-node 2"""


def add_commands(commands: Subparsers[Any]) -> None:
    """Adds both to the commands of ``cohort topics``."""
    reassign_parser = add_command(
        commands,
        "reassign",
        "move partitions to other nodes",
        description="Moves partitions to other nodes, while they are in use. What is there already stays where it may; new\n"
        "copies are made in the background, and --status tells which are under way.",
        examples=_EXAMPLES,
    )
    reassign_parser.add_argument("name", metavar="NAME", nargs="?", help="the topic; not with --drain-node")
    what = reassign_parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--replication-factor", metavar="N", type=positive, help="keep each partition on so many nodes")
    what.add_argument("--replicas", metavar="N,N,...", type=_node_ids, help="these nodes, the preferred leader first")
    what.add_argument("--status", action="store_true", help="show what moves at the moment")
    what.add_argument("--cancel", action="store_true", help="end what is under way; replicas stay where they were")
    what.add_argument("--drain-node", metavar="N", type=whole, help="move all that this node has to other nodes")
    reassign_parser.add_argument("--partition", metavar="P", type=whole, help="only this partition (default: all)")
    reassign_parser.set_defaults(handler=reassign)

    elect_parser = add_command(
        commands,
        "elect-leaders",
        "give partitions their preferred leader, or one that is not in sync",
        description="Gives partitions their preferred leader, which is the first of their replicas. --unclean elects a\n"
        "live replica that is not in sync where no other is alive: acknowledged records that it lacks are lost for good.",
        examples="  cohort topics elect-leaders\n  cohort topics elect-leaders lines --unclean --partition 3",
    )
    elect_parser.add_argument("name", metavar="NAME", nargs="?", help="the topic (default: all)")
    kind = elect_parser.add_mutually_exclusive_group()
    kind.add_argument("--preferred", action="store_true", help="the first of the replicas (the default)")
    kind.add_argument("--unclean", action="store_true", help="any live replica; needs NAME and --partition")
    elect_parser.add_argument("--partition", metavar="P", type=whole, help="only this partition (default: all)")
    elect_parser.set_defaults(handler=elect_leaders)


def _node_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ids of nodes, such as 1,2,4") from None


async def reassign(options: argparse.Namespace, output: Output) -> int:
    """Moves partitions, or tells of those that move."""
    draining = options.drain_node is not None
    if draining and (options.name is not None or options.partition is not None):
        raise CommandError("--drain-node moves all that a node has: give neither a topic nor --partition with it")
    if options.name is None and not (draining or options.status):
        raise CommandError("which topic? 'cohort topics reassign NAME ...', or --drain-node N for all that a node has")
    if options.replication_factor is not None and options.partition is not None:
        raise CommandError("--replication-factor is for a whole topic: give --replicas with --partition")
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        if options.status:
            return await _show(admin, options, output)
        if options.cancel:
            return await _cancel(admin, options, output)
        wanted: Mapping[TopicPartition, Sequence[int]]
        if draining:
            wanted = await admin.drain_node(options.drain_node)
        elif options.replication_factor is not None:
            wanted = await admin.set_replication_factor(options.name, options.replication_factor)
        else:
            wanted = dict.fromkeys(await _chosen(admin, options), options.replicas)
            await admin.reassign_partitions(wanted)
    rows = [
        {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
        for partition, replicas in wanted.items()
    ]
    output.rows(("topic", "partition", "replicas"), rows, empty="nothing has to be moved")
    return 0


async def _chosen(admin: Admin, options: argparse.Namespace) -> list[TopicPartition]:
    """The partition that is named, or all of the topic."""
    if options.partition is not None:
        return [TopicPartition(options.name, options.partition)]
    described = (await admin.describe_topics(options.name))[options.name]
    return [TopicPartition(options.name, each.partition) for each in described.partitions]


async def _moving(admin: Admin, options: argparse.Namespace) -> dict[TopicPartition, Any]:
    moving = await admin.list_reassignments()
    return {
        partition: each
        for partition, each in moving.items()
        if options.name in (None, partition.topic) and options.partition in (None, partition.partition)
    }


async def _show(admin: Admin, options: argparse.Namespace, output: Output) -> int:
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(each.replicas),
            "adding": list(each.adding),
            "removing": list(each.removing),
        }
        for partition, each in (await _moving(admin, options)).items()
    ]
    output.rows(("topic", "partition", "replicas", "adding", "removing"), rows, empty="nothing is being moved")
    return 0


async def _cancel(admin: Admin, options: argparse.Namespace, output: Output) -> int:
    moving = await _moving(admin, options)
    await admin.reassign_partitions(dict.fromkeys(moving))
    output.result(
        {"topic": options.name, "cancelled": [partition.partition for partition in moving]},
        f"{counted(len(moving), 'reassignment')} of topic {options.name} cancelled",
    )
    return 0


async def elect_leaders(options: argparse.Namespace, output: Output) -> int:
    """Elects leaders of one partition, of one topic, or of all."""
    if options.unclean and (options.name is None or options.partition is None):
        raise CommandError("--unclean may lose records: name the topic, and the partition with --partition")
    if options.partition is not None and options.name is None:
        raise CommandError("--partition is of a topic: name it")
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        chosen = None if options.name is None else await _chosen(admin, options)
        elected = await admin.elect_leaders(chosen, unclean=options.unclean)
    rows = [{"topic": partition.topic, "partition": partition.partition} for partition in elected]
    output.rows(("topic", "partition"), rows, empty="every partition has the right leader already")
    return 0
