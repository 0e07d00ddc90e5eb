"""``cohort topics``: create, list, describe, delete, add partitions."""

from __future__ import annotations

import argparse
from typing import Any, Final

from client.admin import Admin
from client.cli.options import Subparsers, add_command, positive, setting
from client.cli.output import Output
from client.cli.session import require_daemon

_EXAMPLES: Final = """\
  cohort topics create lines --partitions 12
  cohort topics create small --config segment.bytes=1048576
  cohort topics describe lines
  cohort topics add-partitions lines 24"""


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``topics`` and its subcommands."""
    group = add_command(subparsers, "topics", "create, list, describe, delete and grow topics", examples=_EXAMPLES)
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    create_parser = add_command(
        commands,
        "create",
        "create a topic",
        examples="  cohort topics create lines --partitions 12 --config segment.bytes=1048576",
    )
    create_parser.add_argument("name", metavar="NAME")
    create_parser.add_argument(
        "--partitions", metavar="N", type=positive, help="how many partitions (default: the daemon's setting)"
    )
    create_parser.add_argument(
        "--config", metavar="NAME=VALUE", type=setting, action="append", default=[], help="a setting; may be repeated"
    )
    create_parser.set_defaults(handler=create)

    list_parser = add_command(commands, "list", "list all topics", examples="  cohort topics list --json")
    list_parser.set_defaults(handler=list_topics)

    describe_parser = add_command(
        commands, "describe", "show the partitions of a topic", examples="  cohort topics describe lines"
    )
    describe_parser.add_argument("name", metavar="NAME")
    describe_parser.set_defaults(handler=describe)

    delete_parser = add_command(
        commands,
        "delete",
        "delete a topic with all its records",
        description="Deletes a topic with all its records, at once and for good.",
        examples="  cohort topics delete lines",
    )
    delete_parser.add_argument("name", metavar="NAME")
    delete_parser.set_defaults(handler=delete)

    add_parser = add_command(
        commands,
        "add-partitions",
        "grow a topic to a number of partitions",
        description="Grows a topic to N partitions in all. Records stay where they are; keys map to other partitions\n"
        "from then on.",
        examples="  cohort topics add-partitions lines 24",
    )
    add_parser.add_argument("name", metavar="NAME")
    add_parser.add_argument("partitions", metavar="N", type=positive, help="how many partitions there shall be in all")
    add_parser.set_defaults(handler=add_partitions)


async def create(options: argparse.Namespace, output: Output) -> int:
    """Creates one topic."""
    async with await _admin(options) as admin:
        await admin.create_topics({options.name: options.partitions or -1}, config=dict(options.config) or None)
        described = (await admin.describe_topics(options.name))[options.name]
    count = len(described.partitions)
    output.result(
        {"topic": options.name, "partitions": count},
        f"topic {options.name} created with {count} {'partition' if count == 1 else 'partitions'}",
    )
    return 0


async def list_topics(options: argparse.Namespace, output: Output) -> int:
    """Lists topics with their number of partitions."""
    async with await _admin(options) as admin:
        names = await admin.list_topics()
        described = await admin.describe_topics(*names) if names else {}
    output.rows(
        ("topic", "partitions"),
        [{"topic": name, "partitions": len(described[name].partitions)} for name in names],
        empty="there are no topics; create one with: cohort topics create NAME",
    )
    return 0


async def describe(options: argparse.Namespace, output: Output) -> int:
    """Shows who leads each partition."""
    async with await _admin(options) as admin:
        topic = (await admin.describe_topics(options.name))[options.name]
    rows = [
        {
            "partition": each.partition,
            "leader": each.leader,
            "leader_epoch": each.leader_epoch,
            "replicas": list(each.replicas),
            "in_sync_replicas": list(each.in_sync_replicas),
        }
        for each in topic.partitions
    ]
    if output.as_json:
        output.object({"topic": topic.name, "topic_id": topic.topic_id, "internal": topic.internal, "partitions": rows})
        return 0
    output.line(
        f"topic {topic.name}, {len(rows)} {'partition' if len(rows) == 1 else 'partitions'}, id {topic.topic_id}\n"
    )
    output.rows(("partition", "leader", "leader_epoch", "replicas", "in_sync_replicas"), rows, empty="no partitions")
    return 0


async def delete(options: argparse.Namespace, output: Output) -> int:
    """Deletes one topic."""
    async with await _admin(options) as admin:
        await admin.delete_topics(options.name)
    output.result({"topic": options.name, "deleted": True}, f"topic {options.name} deleted")
    return 0


async def add_partitions(options: argparse.Namespace, output: Output) -> int:
    """Grows one topic."""
    async with await _admin(options) as admin:
        await admin.create_partitions({options.name: options.partitions})
    output.result(
        {"topic": options.name, "partitions": options.partitions},
        f"topic {options.name} has {options.partitions} partitions now",
    )
    return 0


async def _admin(options: argparse.Namespace) -> Admin:
    await require_daemon(options.bootstrap)
    return Admin(bootstrap_servers=options.bootstrap)
