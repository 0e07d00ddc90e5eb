"""``cohort groups``: list, describe."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.options import Subparsers, add_command
from client.cli.output import Output, number_ranges, table
from client.cli.session import require_daemon
from client.descriptions import GroupDescription, PartitionLag
from client.records import TopicPartition

_EXAMPLES: Final = """\
  cohort groups list
  cohort groups describe readers"""
_UNKNOWN_STATE: Final = "Dead"


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``groups`` and its subcommands."""
    group = add_command(subparsers, "groups", "list and describe groups", examples=_EXAMPLES)
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    list_parser = add_command(commands, "list", "list all groups", examples="  cohort groups list --json")
    list_parser.set_defaults(handler=list_groups)

    describe_parser = add_command(
        commands,
        "describe",
        "show members, assignment, lag and the last rebalance of a group",
        examples="  cohort groups describe readers\n  cohort groups describe readers --json | jq '[.offsets[].lag] | add'",
    )
    describe_parser.add_argument("group", metavar="GROUP")
    describe_parser.set_defaults(handler=describe)


async def list_groups(options: argparse.Namespace, output: Output) -> int:
    """Lists groups with type and state."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        groups = await admin.list_groups()
    output.rows(
        ("group", "protocol_type", "state"),
        [{"group": each.group_id, "protocol_type": each.protocol_type, "state": each.state} for each in groups],
        empty="there are no groups",
    )
    return 0


async def describe(options: argparse.Namespace, output: Output) -> int:
    """Shows one group."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        described, offsets = await asyncio.gather(admin.describe_groups(options.group), admin.group_lag(options.group))
    group = described[options.group]
    if group.state == _UNKNOWN_STATE and not offsets:
        raise CommandError(f"group {options.group!r} does not exist; 'cohort groups list' shows those that do")
    if output.as_json:
        output.object(as_object(group, offsets))
    else:
        output.line(as_text(group, offsets))
    return 0


def as_object(group: GroupDescription, offsets: Sequence[PartitionLag]) -> dict[str, Any]:
    """A group for JSON; the names are part of the contract in API.md."""
    return {
        "group": group.group_id,
        "state": group.state,
        "generation": group.generation,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "last_rebalance_reason": group.last_rebalance_reason,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "group_instance_id": member.group_instance_id,
                "host": member.host,
                "assignment": [partition._asdict() for partition in member.assignment],
            }
            for member in group.members
        ],
        "offsets": [entry._asdict() for entry in offsets],
    }


def as_text(group: GroupDescription, offsets: Sequence[PartitionLag]) -> str:
    """A group for people."""
    parts = [
        f"group           {group.group_id}",
        f"state           {group.state}",
        f"generation      {group.generation}",
        f"protocol        {group.protocol or '-'}",
        f"coordinator     {group.coordinator}",
        f"last rebalance  {group.last_rebalance_reason or '-'}",
        "",
    ]
    members = [
        (each.member_id, each.client_id, each.host, assignment_text(each.assignment) if each.assignment else "-")
        for each in group.members
    ]
    parts.append(table(("member", "client", "host", "assignment"), members) if members else "no members")
    parts.append("")
    clients: Mapping[str | None, str] = {each.member_id: each.client_id for each in group.members}
    lags = [
        (each.topic, each.partition, each.committed, each.end, each.lag, clients.get(each.member_id))
        for each in offsets
    ]
    columns = ("topic", "partition", "committed", "end", "lag", "owner")
    parts.append(table(columns, lags) if lags else "no committed offsets")
    if lags:
        parts.append(f"\ntotal lag {sum(each.lag or 0 for each in offsets):,}")
    return "\n".join(parts)


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """Partitions for people: ``lines 0-3 7, errors 0``."""
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return ", ".join(f"{topic} {number_ranges(numbers)}" for topic, numbers in by_topic.items())
