"""``cohort groups``: list, describe, delete, remove-member; the commands about offsets are in ``group_offsets``."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from client.admin import Admin
from client.cli import group_offsets
from client.cli.failure import CommandError
from client.cli.group_tables import as_object, as_text, terminal_width
from client.cli.options import Subparsers, add_command, seconds
from client.cli.output import Output
from client.cli.session import require_daemon
from client.cli.watching import DEFAULT_INTERVAL_S, watch
from client.errors import CohortError
from client.types.descriptions import GROUP_STATES

_EXAMPLES: Final = """\
  cohort groups list --state stable
  cohort groups describe readers
  cohort groups remove-member readers worker-3 --instance
  cohort groups reset-offsets readers --topic lines --to-earliest
  cohort groups delete readers"""
_UNKNOWN_STATE: Final = "Dead"
_DEFAULT_REASON: Final = "removed by an administrator"


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``groups`` and its subcommands."""
    group = add_command(subparsers, "groups", "list, describe, delete groups, move their offsets", examples=_EXAMPLES)
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    list_parser = add_command(
        commands,
        "list",
        "list groups",
        examples="  cohort groups list\n  cohort groups list --state stable --state empty --type consumer --json",
    )
    list_parser.add_argument(
        "--state",
        metavar="STATE",
        type=_state,
        action="append",
        default=[],
        help=f"only groups in this state ({', '.join(GROUP_STATES[:-1])}); may be repeated",
    )
    list_parser.add_argument(
        "--type",
        metavar="TYPE",
        action="append",
        default=[],
        help="only groups of this protocol type, such as consumer; '' for those that never had a member; may be repeated",
    )
    list_parser.set_defaults(handler=list_groups)

    _add_describe(commands)

    delete_parser = add_command(
        commands,
        "delete",
        "delete groups with all they have committed",
        description="Deletes groups with all they have committed, at once and for good. A group with members is refused.",
        examples="  cohort groups delete readers\n  cohort groups delete readers writers",
    )
    delete_parser.add_argument("groups", metavar="GROUP", nargs="+")
    delete_parser.set_defaults(handler=delete)

    _add_remove_member(commands)
    group_offsets.add_commands(commands)


def _add_describe(commands: Subparsers[Any]) -> None:
    parser = add_command(
        commands,
        "describe",
        "show members, assignment, lag and the last rebalance of a group, or of all",
        examples="  cohort groups describe readers\n  cohort groups describe readers --watch\n"
        "  cohort groups describe --all\n"
        "  cohort groups describe readers --json | jq '[.offsets[].lag] | add'",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("group", metavar="GROUP", nargs="?")
    which.add_argument("--all", action="store_true", help="all groups there are; with --json an object a line")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=seconds,
        const=DEFAULT_INTERVAL_S,
        help=f"show it again every so often (default: {DEFAULT_INTERVAL_S:g} s) until Ctrl-C",
    )
    parser.set_defaults(handler=describe)


def _add_remove_member(commands: Subparsers[Any]) -> None:
    parser = add_command(
        commands,
        "remove-member",
        "take members out of a group",
        description="Takes members out of a group, which shares their partitions out among the others. A program that\n"
        "still runs joins again by itself: stop it first if it is to stay out.",
        examples="  cohort groups remove-member readers reader-1-9f3c\n"
        "  cohort groups remove-member readers worker-3 --instance --reason 'its machine is gone'\n"
        "  cohort groups remove-member readers --all",
    )
    parser.add_argument("group", metavar="GROUP")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument(
        "members", metavar="MEMBER", nargs="*", default=[], help="ids of members, as 'groups describe' shows them"
    )
    who.add_argument("--all", action="store_true", help="every member")
    parser.add_argument("--instance", action="store_true", help="the ids given are group instance ids")
    parser.add_argument("--reason", metavar="TEXT", default=_DEFAULT_REASON, help="shown to the other members")
    parser.set_defaults(handler=remove_member)


async def list_groups(options: argparse.Namespace, output: Output) -> int:
    """Lists groups with type and state."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        groups = await admin.list_groups(options.state or None, options.type or None)
    output.rows(
        ("group", "protocol_type", "state"),
        [{"group": each.group_id, "protocol_type": each.protocol_type, "state": each.state} for each in groups],
        empty="no group matches" if options.state or options.type else "there are no groups",
    )
    return 0


async def describe(options: argparse.Namespace, output: Output) -> int:
    """Shows one group or all, once or again and again."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:

        async def show(output: Output) -> None:
            if options.all:
                await _show_all(admin, output)
            else:
                await _show(admin, options.group, output)

        if options.watch is not None:
            return await watch(show, output, options.watch)
        await show(output)
    return 0


async def _show(admin: Admin, group_id: str, output: Output) -> None:
    if not await _told(admin, group_id, output):
        raise CommandError(f"group {group_id!r} does not exist; 'cohort groups list' shows those that do")


async def _show_all(admin: Admin, output: Output) -> None:
    """One that ends meanwhile is left out."""
    group_ids = sorted(each.group_id for each in await admin.list_groups())
    if not group_ids and not output.as_json:
        output.line("there are no groups")
    for number, group_id in enumerate(group_ids):
        if number and not output.as_json:
            output.line()
        await _told(admin, group_id, output)


async def _told(admin: Admin, group_id: str, output: Output) -> bool:
    """Whether there is such a group; it is shown."""
    described, offsets = await asyncio.gather(admin.describe_groups(group_id), admin.group_lag(group_id))
    group = described[group_id]
    if group.state == _UNKNOWN_STATE and not offsets:
        return False
    if output.as_json:
        output.object(as_object(group, offsets))
    else:
        output.line(as_text(group, offsets, terminal_width()))
    return True


async def delete(options: argparse.Namespace, output: Output) -> int:
    """Deletes groups; those that can go do, also when others cannot."""
    await require_daemon(options.bootstrap)
    names = list(dict.fromkeys(options.groups))
    error: CohortError | None = None
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        try:
            await admin.delete_groups(*names)
        except CohortError as raised:
            if not raised.failures:
                raise
            error = raised
    failures = error.failures if error is not None else {}
    deleted = [name for name in names if name not in failures]
    if output.as_json:
        output.object({"deleted": deleted, "failed": {name: str(failure) for name, failure in failures.items()}})
    else:
        for name in deleted:
            output.line(f"group {name} deleted")
    if error is not None:
        raise error
    return 0


async def remove_member(options: argparse.Namespace, output: Output) -> int:
    """Takes members out of a group."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        removed = await admin.remove_members(
            options.group,
            *(() if options.instance else options.members),
            group_instance_ids=options.members if options.instance else (),
            all_members=options.all,
            reason=options.reason,
        )
    members = [member._asdict() for member in removed]
    lines = [f"{member.text} removed from group {options.group}" for member in removed]
    output.result(
        {"group": options.group, "removed": members}, "\n".join(lines) or f"group {options.group} has no members"
    )
    return 0


def _state(text: str) -> str:
    for state in GROUP_STATES:
        if state.lower() == text.lower():
            return state
    raise argparse.ArgumentTypeError(f"{text!r} is no state; there are {', '.join(GROUP_STATES)}")
