"""``cohort groups reset-offsets``, ``export-offsets`` and ``delete-offsets``."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any, Final

from client.admin import Admin
from client.cli import offsets_file
from client.cli.failure import CommandError
from client.cli.group_tables import plan_object, plan_text, terminal_width
from client.cli.options import Subparsers, add_command, duration_ms, partition_numbers, point_in_time
from client.cli.output import Output, number_ranges
from client.cli.session import require_daemon
from client.types.records import TopicPartition
from protocol.subscription import group_by_topic

_RESET: Final = """\
Says where a group is to go on reading. Without --execute it only shows what would change.

Offsets are kept within the log as it is; a note says where that changes what was asked for. The group must have no
members: while it has some, --execute is refused and names them. A time without an offset from UTC is in the time zone
of this machine; 2026-11-21T08:00:00Z and 2026-11-21T08:00:00+01:00 say their own."""

_RESET_EXAMPLES: Final = """\
  cohort groups reset-offsets readers --topic lines --to-earliest
  cohort groups reset-offsets readers --topic lines:0,3-5 --to-offset 1200 --execute
  cohort groups reset-offsets readers --all-topics --to-datetime 2026-11-21T08:00:00Z --execute
  cohort groups reset-offsets readers --topic lines --topic errors --shift-by -100 --execute
  cohort groups reset-offsets readers --all-topics --by-duration 2h
  cohort groups reset-offsets readers --from-file readers.csv --execute"""


def add_commands(commands: Subparsers[Any]) -> None:
    """Adds all of them to the subcommands of ``groups``."""
    _add_reset(commands)

    export_parser = add_command(
        commands,
        "export-offsets",
        "print what a group has committed, for reset-offsets --from-file",
        description="Prints what a group has committed as lines of topic,partition,offset: the form that\n"
        "kafka-consumer-groups --export has, and that reset-offsets --from-file takes.",
        examples="  cohort groups export-offsets readers > readers.csv\n"
        "  cohort groups reset-offsets readers --from-file readers.csv --execute",
    )
    export_parser.add_argument("group", metavar="GROUP")
    export_parser.set_defaults(handler=export_offsets)

    delete_parser = add_command(
        commands,
        "delete-offsets",
        "forget what a group has committed in a topic",
        description="Forgets what a group has committed in a topic or some of its partitions. The group may have members,\n"
        "as long as none of them subscribes to the topic.",
        examples="  cohort groups delete-offsets readers --topic lines\n"
        "  cohort groups delete-offsets readers --topic lines:0,3-5",
    )
    delete_parser.add_argument("group", metavar="GROUP")
    _add_topic(delete_parser, "a topic, or only some of its partitions; may be repeated", required=True)
    delete_parser.set_defaults(handler=delete_offsets)


def _add_reset(commands: Subparsers[Any]) -> None:
    reset_parser = add_command(
        commands,
        "reset-offsets",
        "say where a group is to go on reading",
        description=_RESET,
        examples=_RESET_EXAMPLES,
    )
    reset_parser.usage = (
        "%(prog)s [-h] GROUP (--topic TOPIC[:0,2-5] | --all-topics | --from-file FILE) [WHERE] [--execute]"
    )
    reset_parser.add_argument("group", metavar="GROUP")
    where = reset_parser.add_mutually_exclusive_group()
    _add_topic(where, "a topic, or only some of its partitions; may be repeated")
    where.add_argument(
        "--all-topics", action="store_true", help="every topic in which the group has committed something"
    )
    to = reset_parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_const", const="earliest", dest="to", help="the beginning of the log")
    to.add_argument("--to-latest", action="store_const", const="latest", dest="to", help="the end of the log")
    to.add_argument("--to-offset", metavar="N", type=_offset, dest="to", help="an offset")
    to.add_argument(
        "--to-datetime",
        metavar="TIME",
        type=point_in_time,
        dest="to",
        help="the first record at or after an ISO 8601 time",
    )
    to.add_argument(
        "--by-duration",
        metavar="TIME",
        type=_ago,
        dest="to",
        help="the first record of the last so long, such as 90s, 15m, 2h or 1d",
    )
    to.add_argument(
        "--from-file", metavar="FILE", help="the offsets in a file of topic,partition,offset, as export-offsets prints"
    )
    to.add_argument("--shift-by", metavar="N", type=_shift, help="so many records on, or back when negative")
    reset_parser.add_argument("--execute", action="store_true", help="do it (default: only show what would change)")
    reset_parser.set_defaults(handler=reset_offsets)


async def reset_offsets(options: argparse.Namespace, output: Output) -> int:
    """Shows what a reset does, and with ``--execute`` does it."""
    targets = [target for listed in options.topic for target in listed]
    to = options.to
    if options.from_file is not None:
        if targets or options.all_topics:
            options.parser.error("--from-file names the partitions: leave out --topic and --all-topics")
        to = offsets_file.read(options.from_file)
    elif not targets and not options.all_topics:
        options.parser.error("say which offsets are to be reset: --topic TOPIC or --all-topics")
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        plan = await admin.reset_offsets(
            options.group, *targets, to=to, shift_by=options.shift_by, dry_run=not options.execute
        )
    if not plan.partitions:
        raise CommandError(f"group {options.group!r} has committed nothing; name topics with --topic")
    if isinstance(options.to, datetime):
        output.note(f"first records at or after {options.to.isoformat()}")
    if output.as_json:
        output.object(plan_object(plan))
    else:
        output.line(plan_text(plan, terminal_width()))
    if plan.state == "Dead" and plan.offsets and not plan.executed:
        output.note(f"group {options.group!r} does not exist yet; --execute creates it with these offsets")
    if not plan.offsets:
        raise CommandError(f"nothing to reset in group {options.group!r}; the notes say why")
    if plan.executed:
        output.note(f"done: group {options.group!r} goes on from the new offsets")
    elif plan.blocked:
        output.note(f"dry run, nothing was changed; --execute would be refused: {plan.blocked}")
    else:
        output.note("dry run, nothing was changed; add --execute to do it")
    return 0


async def export_offsets(options: argparse.Namespace, output: Output) -> int:
    """Prints committed offsets."""
    await require_daemon(options.bootstrap)
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        offsets = await admin.list_offsets(options.group)
    if not offsets:
        raise CommandError(
            f"group {options.group!r} has committed nothing; 'cohort groups list' shows those that exist"
        )
    if output.as_json:
        output.object([{**tp._asdict(), "offset": offset.offset} for tp, offset in sorted(offsets.items())])
    else:
        output.line(offsets_file.as_lines(offsets))
    return 0


async def delete_offsets(options: argparse.Namespace, output: Output) -> int:
    """Forgets committed offsets."""
    await require_daemon(options.bootstrap)
    targets = [target for listed in options.topic for target in listed]
    async with Admin(bootstrap_servers=options.bootstrap) as admin:
        deleted = await admin.delete_offsets(options.group, *targets)
    if not deleted:
        topics = ", ".join(sorted({str(target) for target in targets}))
        raise CommandError(
            f"group {options.group!r} has committed nothing in {topics}; 'cohort groups describe' shows all"
        )
    by_topic = group_by_topic(deleted)
    output.result(
        {"group": options.group, "deleted": [partition._asdict() for partition in deleted]},
        "\n".join(
            f"group {options.group} has no offset any more in {topic} {number_ranges(partitions)}"
            for topic, partitions in by_topic.items()
        ),
    )
    return 0


def _add_topic(parser: argparse._ActionsContainer, text: str, **settings: Any) -> None:
    parser.add_argument(
        "--topic", metavar="TOPIC[:0,2-5]", type=topic_partitions, action="append", default=[], help=text, **settings
    )


def topic_partitions(text: str) -> list[TopicPartition | str]:
    """``lines`` is all of a topic, ``lines:0,3-5`` some of its partitions."""
    topic, separator, numbers = text.partition(":")
    if not topic:
        raise argparse.ArgumentTypeError(f"{text!r} names no topic; write TOPIC or TOPIC:0,2-5")
    if not separator:
        return [topic]
    try:
        return [TopicPartition(topic, number) for number in partition_numbers(numbers)]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _offset(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no offset; it is a whole number from 0 and below 2**63")
    return int(text)


def _shift(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of records, such as 100 or -100") from error


def _ago(text: str) -> datetime:
    """The time so long ago."""
    duration_ms(text)
    return point_in_time(text)
