"""``cohort transactions``: list, describe, abort, hanging."""

from __future__ import annotations

import argparse
import time
from typing import Any, Final

from client.admin import Admin
from client.cli.failure import CommandError
from client.cli.group_tables import assignment_text, facts_text, folding_table, terminal_width
from client.cli.options import Subparsers, add_command, duration_ms
from client.cli.output import Output, age_text, counted, local_time
from client.cli.session import require_daemon
from client.errors import CohortError
from client.types.descriptions import TRANSACTION_STATES, HangingTransaction, TransactionDescription

_EXAMPLES: Final = """\
  cohort transactions list --state ongoing --older-than 60s
  cohort transactions describe billing
  cohort transactions abort billing
  cohort transactions hanging"""
_LABEL_WIDTH: Final = 20


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``transactions`` and its subcommands."""
    group = add_command(
        subparsers, "transactions", "list, describe and abort transactions, find hanging ones", examples=_EXAMPLES
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    list_parser = add_command(
        commands,
        "list",
        "list transactional ids",
        examples="  cohort transactions list\n  cohort transactions list --state ongoing --older-than 5m --json",
    )
    list_parser.add_argument(
        "--state",
        metavar="STATE",
        type=_state,
        action="append",
        default=[],
        help=f"only ids in this state ({', '.join(TRANSACTION_STATES)}); may be repeated",
    )
    list_parser.add_argument(
        "--older-than",
        metavar="TIME",
        type=duration_ms,
        help="only ids whose transaction has been open for longer, such as 60s or 5m",
    )
    list_parser.set_defaults(handler=list_transactions)

    describe_parser = add_command(
        commands,
        "describe",
        "show the transaction of a transactional id: who writes where, since when, and what it waits for",
        examples="  cohort transactions describe billing",
    )
    describe_parser.add_argument("id", metavar="ID")
    describe_parser.set_defaults(handler=describe)

    _add_endings(commands)


def _add_endings(commands: Subparsers[Any]) -> None:
    abort_parser = add_command(
        commands,
        "abort",
        "abort the open transaction of a transactional id",
        description="Aborts the open transaction of a transactional id. Its producer is told, and goes on with the next\n"
        "transaction; with --fence it has to be started anew.",
        examples="  cohort transactions abort billing\n  cohort transactions abort billing --fence",
    )
    abort_parser.add_argument("id", metavar="ID")
    abort_parser.add_argument("--fence", action="store_true", help="its producer must not go on")
    abort_parser.set_defaults(handler=abort)

    hanging_parser = add_command(
        commands,
        "hanging",
        "find transactions that no coordinator knows, and abort them",
        description="Finds transactions that are open in a partition though no coordinator knows of them. There are\n"
        "none unless a coordinator's log is damaged or was lost. Readers with read_committed wait for them. Without\n"
        "--execute it only shows them. With it they are aborted where they are open, also if the lost log had a commit\n"
        "of them.",
        examples="  cohort transactions hanging\n  cohort transactions hanging --execute",
    )
    hanging_parser.add_argument("--execute", action="store_true", help="abort them (default: only show them)")
    hanging_parser.set_defaults(handler=hanging)


async def list_transactions(options: argparse.Namespace, output: Output) -> int:
    """Lists transactional ids with state and age."""
    async with await _admin(options) as admin:
        listed = await admin.list_transactions(options.state or None, options.older_than)
    now_ms = _now_ms()
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "started_ms": each.started_ms,
            "open_for": None if each.started_ms is None else age_text(now_ms - each.started_ms),
        }
        for each in listed
    ]
    if output.as_json:
        for row in rows:
            del row["open_for"]
    filtered = options.state or options.older_than is not None
    output.rows(
        ("transactional_id", "state", "producer_id", "producer_epoch", "open_for"),
        rows,
        empty="no transactional id matches" if filtered else "there are no transactional ids",
    )
    return 0


async def describe(options: argparse.Namespace, output: Output) -> int:
    """Shows one transactional id."""
    async with await _admin(options) as admin:
        described = (await admin.describe_transactions(options.id))[options.id]
    if output.as_json:
        output.object(as_object(described))
    else:
        output.line(as_text(described, _now_ms(), terminal_width()))
    return 0


async def abort(options: argparse.Namespace, output: Output) -> int:
    """Aborts the transaction of one id."""
    async with await _admin(options) as admin:
        aborted = await admin.abort_transaction(options.id, fence=options.fence)
    done = f"the transaction of {options.id} is aborted" if aborted else f"{options.id} has no transaction open"
    output.result(
        {"transactional_id": options.id, "aborted": aborted, "fenced": options.fence},
        done + (", and its producer is fenced" if options.fence else ""),
    )
    return 0


async def hanging(options: argparse.Namespace, output: Output) -> int:
    """Shows hanging transactions, and with ``--execute`` aborts them; those it can, also when others fail."""
    failures: dict[HangingTransaction, CohortError] = {}
    async with await _admin(options) as admin:
        found = await admin.hanging_transactions()
        for each in found if options.execute else ():
            try:
                await admin.abort_transaction(each)
            except CohortError as error:
                failures[each] = error
    rows = [
        {
            **each._asdict(),
            "last_record": local_time(each.last_timestamp_ms),
            "aborted": options.execute and each not in failures,
        }
        for each in found
    ]
    if output.as_json:
        for row in rows:
            del row["last_record"]
    columns = ("topic", "partition", "producer_id", "producer_epoch", "start_offset", "last_record", "aborted")
    output.rows(columns, rows, empty="no transaction hangs")
    if found and not options.execute:
        output.note("dry run, nothing was changed; add --execute to abort them")
    if failures:
        first = next(iter(failures.values()))
        raise CommandError(f"{len(failures)} of {counted(len(found), 'transaction')} not aborted: {first}")
    return 0


def as_object(described: TransactionDescription) -> dict[str, Any]:
    """A transactional id for JSON."""
    return {
        "transactional_id": described.transactional_id,
        "state": described.state,
        "coordinator": described.coordinator,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "timeout_ms": described.timeout_ms,
        "started_ms": described.started_ms,
        "members": [
            {
                "producer_id": member.producer_id,
                "name": member.name,
                "started_ms": member.started_ms,
                "partitions": [partition._asdict() for partition in member.partitions],
            }
            for member in described.members
        ],
        "committed_version": described.committed_version,
        "version": described.version,
        "scope": described.scope,
        "previous_outcome": described.previous_outcome or None,
        "waits_for": list(described.waits_for),
    }


def as_text(described: TransactionDescription, now_ms: int, width: int | None) -> str:
    """A transactional id for people, on a terminal of ``width`` columns; ``None`` folds nothing."""
    timeout = age_text(described.timeout_ms) if described.timeout_ms >= 1000 else f"{described.timeout_ms} ms"
    facts = {
        "transactional id": described.transactional_id,
        "state": described.state,
        "coordinator": described.coordinator,
        "producer": f"id {described.producer_id}, epoch {described.producer_epoch}",
        "open for": "-"
        if described.started_ms is None
        else f"{age_text(now_ms - described.started_ms)} of at most {timeout}",
        "last transaction": described.previous_outcome or "-",
    }
    if described.version is not None:
        facts["version"] = str(described.version)
    if described.committed_version is not None:
        facts["committed version"] = str(described.committed_version)
    if described.scope:
        facts["scope"] = described.scope
    lines = facts_text(facts, width, _LABEL_WIDTH)
    for text in described.waits_for:
        lines += facts_text({"waits for": text}, width, _LABEL_WIDTH)
    if not described.members:
        return "\n".join(lines)
    rows = [
        (
            member.producer_id,
            member.name or None,
            age_text(now_ms - member.started_ms),
            assignment_text(member.partitions) or None,
        )
        for member in described.members
    ]
    return "\n".join([*lines, "", folding_table(("producer_id", "name", "open_for", "partitions"), rows, width)])


async def _admin(options: argparse.Namespace) -> Admin:
    await require_daemon(options.bootstrap)
    return Admin(bootstrap_servers=options.bootstrap)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _state(text: str) -> str:
    for state in TRANSACTION_STATES:
        if state.lower() == text.lower():
            return state
    raise argparse.ArgumentTypeError(f"{text!r} is no state; there are {', '.join(TRANSACTION_STATES)}")
