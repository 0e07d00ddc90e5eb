"""``cohort topics``: create, list, describe, peek, alter, delete, add partitions, delete records."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any, Final

from client.admin import Admin
from client.cli import reassignment
from client.cli.failure import CommandError
from client.cli.held_back import held_back, held_back_text
from client.cli.options import Subparsers, add_command, positive, setting, whole
from client.cli.output import Output, counted, local_time
from client.cli.reading_range import END, Position, ReadingRange
from client.cli.record_text import as_object
from client.cli.session import require_daemon
from client.errors import CohortError
from client.types.descriptions import LogDescription
from client.types.records import ConsumerRecord
from protocol.subscription import TopicPartition

_PEEK_POLL_MS: Final = 500
_PEEK_TIMEOUT_S: Final = 60.0

_EXAMPLES: Final = """\
  cohort topics create lines --partitions 12
  cohort topics create small --config segment.bytes=1048576
  cohort topics describe lines
  cohort topics alter lines --config retention.ms=86400000
  cohort topics add-partitions lines 24"""


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``topics`` and its subcommands."""
    group = add_command(
        subparsers,
        "topics",
        "create, list, describe, alter and delete topics, add partitions to them",
        examples=_EXAMPLES,
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    _add_create(commands)

    _add_views(commands)
    _add_changes(commands)
    reassignment.add_commands(commands)

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
        "add partitions to a topic",
        description="Adds partitions to a topic until it has N in all. Records stay where they are; keys map\n"
        "to other partitions from then on.",
        examples="  cohort topics add-partitions lines 24",
    )
    add_parser.add_argument("name", metavar="NAME")
    add_parser.add_argument("partitions", metavar="N", type=positive, help="how many partitions there shall be in all")
    add_parser.set_defaults(handler=add_partitions)


def _add_views(commands: Subparsers[Any]) -> None:
    list_parser = add_command(
        commands,
        "list",
        "list all topics with what they hold",
        description="Lists all topics with their number of partitions, the offsets between the beginning and the end of\n"
        "their logs (RECORDS: what compaction removed and end markers of transactions count too) and their bytes on disk.",
        examples="  cohort topics list\n  cohort topics list --json",
    )
    list_parser.set_defaults(handler=list_topics)

    describe_parser = add_command(
        commands, "describe", "show the partitions and settings of a topic", examples="  cohort topics describe lines"
    )
    describe_parser.add_argument("name", metavar="NAME")
    describe_parser.set_defaults(handler=describe)

    peek_parser = add_command(
        commands,
        "peek",
        "show the last records of a topic",
        description="Shows the last records of each partition. Nothing is committed, no group is needed.",
        examples="  cohort topics peek lines\n  cohort topics peek lines --records 1 --json",
    )
    peek_parser.add_argument("name", metavar="NAME")
    peek_parser.add_argument(
        "--records", metavar="N", type=positive, default=5, help="so many offsets before each end (default: 5)"
    )
    peek_parser.set_defaults(handler=peek)


def _add_create(commands: Subparsers[Any]) -> None:
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
        "--replication-factor",
        metavar="N",
        type=positive,
        help="on how many nodes each partition is kept (default: the daemon's setting)",
    )
    create_parser.add_argument(
        "--config", metavar="NAME=VALUE", type=setting, action="append", default=[], help="a setting; may be repeated"
    )
    create_parser.set_defaults(handler=create)


def _add_changes(commands: Subparsers[Any]) -> None:
    alter_parser = add_command(
        commands,
        "alter",
        "change settings of a topic",
        description="Changes settings of a topic while it is in use. All changes are made, or none.",
        examples="  cohort topics alter lines --config retention.ms=86400000 --config cleanup.policy=compact\n"
        "  cohort topics alter lines --reset retention.ms",
    )
    alter_parser.add_argument("name", metavar="NAME")
    alter_parser.add_argument(
        "--config", metavar="NAME=VALUE", type=setting, action="append", default=[], help="a setting; may be repeated"
    )
    alter_parser.add_argument(
        "--reset",
        metavar="NAME",
        action="append",
        default=[],
        help="a setting that goes back to the daemon's default; may be repeated",
    )
    alter_parser.set_defaults(handler=alter)

    records_parser = add_command(
        commands,
        "delete-records",
        "delete the oldest records of a topic",
        description="Deletes the records below an offset, at once and for good, in one partition or in all.\n"
        "Later records keep their offsets. A partition that ends before the offset is left as it is, and named.",
        examples="  cohort topics delete-records lines --partition 3 --before 1500\n"
        "  cohort topics delete-records lines --all",
    )
    records_parser.add_argument("name", metavar="NAME")
    records_parser.add_argument("--partition", metavar="P", type=whole, help="only in this partition (default: in all)")
    bound = records_parser.add_mutually_exclusive_group(required=True)
    bound.add_argument("--before", metavar="OFFSET", type=whole, help="delete what lies below this offset")
    bound.add_argument("--all", action="store_true", help="delete all records that are there now")
    records_parser.set_defaults(handler=delete_records)


async def create(options: argparse.Namespace, output: Output) -> int:
    """Creates one topic."""
    async with await _admin(options) as admin:
        await admin.create_topics(
            {options.name: options.partitions or -1},
            config=dict(options.config) or None,
            replication_factor=options.replication_factor or -1,
        )
        described = (await admin.describe_topics(options.name))[options.name]
    count = len(described.partitions)
    output.result(
        {"topic": options.name, "partitions": count},
        f"topic {options.name} created with {counted(count, 'partition')}",
    )
    return 0


async def list_topics(options: argparse.Namespace, output: Output) -> int:
    """Lists topics with their partitions, the offsets between start and end of their logs, and the bytes on disk."""
    async with await _admin(options) as admin:
        names = await admin.list_topics()
        logs = await admin.describe_logs(*names) if names else {}
    by_topic: dict[str, list[LogDescription]] = {name: [] for name in names}
    for partition, found in logs.items():
        by_topic[partition.topic].append(found)
    output.rows(
        ("topic", "partitions", "records", "bytes"),
        [{"topic": name, "partitions": len(found), **_contents(found)} for name, found in by_topic.items()],
        empty="there are no topics; create one with: cohort topics create NAME",
    )
    return 0


def _contents(found: Sequence[LogDescription]) -> dict[str, int | None]:
    """What the logs of a topic hold; None while one of them is not known."""
    if any(log.size < 0 for log in found):
        return {"records": None, "bytes": None}
    return {"records": sum(log.end - log.start for log in found), "bytes": sum(log.size for log in found)}


async def peek(options: argparse.Namespace, output: Output) -> int:
    """Prints the last records of each partition. No other command on topics waits for the import here."""
    from client.consumer import Consumer

    async with await _admin(options) as admin:
        count = len((await admin.describe_topics(options.name))[options.name].partitions)
    last = ReadingRange(None, Position(-options.records), Position(END))
    consumer = Consumer(bootstrap_servers=options.bootstrap, client_id="cohort-peek")
    async with asyncio.timeout(_PEEK_TIMEOUT_S), consumer:
        ends = await last.apply(consumer, {options.name: count})
        assert ends is not None, "this range has an end"
        found: list[ConsumerRecord] = []
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for tp, records in (await consumer.getmany(timeout_ms=_PEEK_POLL_MS)).items():
                found += [record for record in records if record.offset < ends[tp]]
    found.sort(key=lambda record: (record.partition, record.offset))
    rows = [as_object(record) for record in found]
    shown = ("partition", "offset", "time", "key", "value")
    for row in rows:
        row["time"] = local_time(row["timestamp_ms"], "milliseconds")
    output.rows(shown, rows, empty=f"topic {options.name} has no records")
    return 0


async def describe(options: argparse.Namespace, output: Output) -> int:
    """Shows the leader of each partition, what its log holds and which transactions hold it, and the topic's settings."""
    async with await _admin(options) as admin:
        topic = (await admin.describe_topics(options.name))[options.name]
        logs = await admin.describe_logs(options.name)
        held = await held_back(admin, [partition for partition, found in logs.items() if found.size >= 0])
    rows = []
    for each in topic.partitions:
        partition = TopicPartition(topic.name, each.partition)
        rows.append(
            {
                "partition": each.partition,
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "in_sync_replicas": list(each.in_sync_replicas),
                **_log_columns(logs.get(partition)),
                **held.get(partition, {"last_stable_offset": None, "transactions": []}),
            }
        )
    config = [
        {"setting": name, "value": value, "of": "topic" if name in topic.own_config else "daemon"}
        for name, value in topic.config.items()
    ]
    if output.as_json:
        output.object(
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "internal": topic.internal,
                "config": dict(topic.config),
                "own_config": list(topic.own_config),
                "partitions": rows,
            }
        )
        return 0
    output.line(f"topic {topic.name}, {counted(len(rows), 'partition')}, id {topic.topic_id}\n")
    columns = ("partition", "leader", "leader_epoch", "replicas", "in_sync_replicas", "start", "lso", "end", "bytes")
    output.rows(columns, [{**row, "lso": row["last_stable_offset"]} for row in rows], empty="no partitions")
    for row in rows:
        if row["fault"]:
            output.line(f"\npartition {row['partition']}: {row['fault']}")
        if row["transactions"]:
            output.line(f"\npartition {row['partition']}: {held_back_text(row['transactions'])}")
    output.line()
    output.rows(("setting", "value", "of"), config, empty="no settings")
    return 0


def _log_columns(found: LogDescription | None) -> dict[str, Any]:
    """What a log holds, None for what is not known."""
    if found is None or found.size < 0:
        unknown = dict.fromkeys(("start", "end", "bytes", "segments", "dirty_percent"))
        return {**unknown, "fault": found.fault if found is not None else ""}
    return {
        "start": found.start,
        "end": found.end,
        "bytes": found.size,
        "segments": found.segments,
        "dirty_percent": found.dirty_percent,
        "fault": found.fault,
    }


async def alter(options: argparse.Namespace, output: Output) -> int:
    """Changes settings of one topic."""
    changes: dict[str, str | None] = {**dict(options.config), **dict.fromkeys(options.reset)}
    if not changes:
        raise CommandError("nothing to change: give --config NAME=VALUE or --reset NAME")
    async with await _admin(options) as admin:
        await admin.alter_topic_config(options.name, changes)
        topic = (await admin.describe_topics(options.name))[options.name]
    shown = ", ".join(f"{name}={topic.config[name]}" for name in changes)
    output.result({"topic": options.name, "config": dict(topic.config)}, f"topic {options.name} has {shown} now")
    return 0


async def delete_records(options: argparse.Namespace, output: Output) -> int:
    """Deletes the oldest records of one topic; where it can, also when some partitions refuse."""
    async with await _admin(options) as admin:
        count = len((await admin.describe_topics(options.name))[options.name].partitions)
        chosen = range(count) if options.partition is None else (options.partition,)
        offset = -1 if options.all else options.before
        failed: CohortError | None = None
        try:
            starts = await admin.delete_records({TopicPartition(options.name, index): offset for index in chosen})
        except CohortError as error:
            done = [index for index in chosen if TopicPartition(options.name, index) not in error.failures]
            if not error.failures or not done:
                raise
            failed = error
            logs = await admin.describe_logs(options.name)
            starts = {partition: logs[partition].start for partition in logs if partition.partition in done}
    rows = [{"partition": partition.partition, "start": start} for partition, start in starts.items()]
    output.rows(("partition", "start"), rows, empty="no partitions")
    if failed is not None:
        raise CommandError(f"nothing was deleted in {len(failed.failures)} of {len(chosen)} partitions: {failed}")
    return 0


async def delete(options: argparse.Namespace, output: Output) -> int:
    """Deletes one topic."""
    async with await _admin(options) as admin:
        await admin.delete_topics(options.name)
    output.result({"topic": options.name, "deleted": True}, f"topic {options.name} deleted")
    return 0


async def add_partitions(options: argparse.Namespace, output: Output) -> int:
    """Adds partitions to one topic."""
    async with await _admin(options) as admin:
        await admin.create_partitions({options.name: options.partitions})
    output.result(
        {"topic": options.name, "partitions": options.partitions},
        f"topic {options.name} has {counted(options.partitions, 'partition')} now",
    )
    return 0


async def _admin(options: argparse.Namespace) -> Admin:
    await require_daemon(options.bootstrap)
    return Admin(bootstrap_servers=options.bootstrap)
