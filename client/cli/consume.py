"""``cohort consume``: prints records as they come."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.admin import Admin
from client.cli.options import Subparsers, add_command, positive, seconds
from client.cli.output import Output, counted
from client.cli.session import require_daemon
from client.cli.writing import LineWriter
from client.consumer import Consumer
from client.consumer.rebalance_listener import RebalanceListener
from client.errors import CohortError, CommitFailedError
from client.types.records import ISOLATION_LEVELS, ConsumerRecord, TopicPartition

_POLL_MS: Final = 500
_MAX_RECORDS: Final = 5000
_COMMIT_INTERVAL_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 10.0

_DESCRIPTION: Final = """\
Prints the value of each record as a line; with --json one object a record. With --group the partitions are shared with
the other members of the group, and offsets are committed once records are written out: a restart goes on where this
command stopped. Without a group it reads every partition by itself and commits nothing. Records of transactions are
printed once these are committed, unless --isolation-level says otherwise. Ctrl-C and SIGTERM leave the group."""
_EXAMPLES: Final = """\
  cohort consume lines --from-beginning
  cohort consume lines --group readers --from-beginning --max-messages 10
  cohort consume lines errors --json | jq .value"""


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``consume``."""
    parser = add_command(
        subparsers, "consume", "print records as they come", description=_DESCRIPTION, examples=_EXAMPLES
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="+")
    parser.add_argument("--group", metavar="G", help="read as a member of this group and commit what was printed")
    parser.add_argument(
        "--from-beginning",
        action="store_true",
        help="begin at the first record (with a group: where it has no offset yet) instead of after the last one",
    )
    parser.add_argument("--max-messages", metavar="N", type=positive, help="stop after N records")
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="stop after so long without a record")
    parser.add_argument(
        "--isolation-level",
        choices=list(ISOLATION_LEVELS),
        default="read_committed",
        help="read_uncommitted prints records of open and of aborted transactions too (default: read_committed)",
    )
    parser.set_defaults(handler=consume)


async def consume(options: argparse.Namespace, output: Output) -> int:
    """Prints until there was enough, nothing came for too long, or Ctrl-C."""
    await require_daemon(options.bootstrap)
    await _check_topics(options.bootstrap, options.topics)
    consumer = Consumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        client_id="cohort-consume",
        auto_offset_reset="earliest" if options.from_beginning else "latest",
        enable_auto_commit=False,
        isolation_level=options.isolation_level,
    )
    printing = _Printing(options, output, consumer)
    consumer.subscribe(options.topics, listener=_Rebalances(printing) if options.group is not None else None)
    how = "done"
    try:
        await consumer.start()
        await printing.run()
    except asyncio.CancelledError:
        how = "interrupted"  # the usual way to end this command, so it is no failure
    finally:
        await printing.commit()
        await consumer.stop(timeout=_STOP_TIMEOUT_S)
    printing.note(how)
    return 0


async def _check_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Raises the daemon's error for a topic that does not exist: a consumer would wait until it is created."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.describe_topics(*topics)


class _Printing:
    """Prints, and commits what was printed: a record is committed only after the reader of our output could have it."""

    def __init__(self, options: argparse.Namespace, output: Output, consumer: Consumer) -> None:
        self._grouped = options.group is not None
        self._left: int | None = options.max_messages
        self._idle_s: float | None = options.timeout
        self._output = output
        self._consumer = consumer
        self._writer = LineWriter(sys.stdout.fileno())
        self._uncommitted: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        last_record_at = last_commit_at = clock()
        while self._left != 0:
            wait_ms: float = _POLL_MS
            if self._idle_s is not None:
                wait_ms = min(wait_ms, 1000 * (last_record_at + self._idle_s - clock()))
                if wait_ms <= 0:
                    return
            batches = await self._consumer.getmany(
                timeout_ms=max(1, int(wait_ms)), max_records=min(self._left or _MAX_RECORDS, _MAX_RECORDS)
            )
            if any(batches.values()):
                last_record_at = clock()
                await self._print(batches)
            else:
                self._writer.require_reader()  # ``| head`` that has enough: there may never be a write that fails
            if self._uncommitted and clock() >= last_commit_at + _COMMIT_INTERVAL_S:
                await self.commit()
                last_commit_at = clock()

    async def _print(self, batches: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        for partition, records in batches.items():
            before = self._writer.written
            try:
                await self._writer.write(self._lines(records))
            finally:  # an interrupted write has written some of them, and these count
                printed = self._writer.written - before
                if self._left is not None:
                    self._left -= printed
                if printed:
                    self._uncommitted[partition] = records[printed - 1].offset + 1

    def _lines(self, records: Sequence[ConsumerRecord]) -> list[bytes]:
        if self._output.as_json:
            return [json.dumps(as_object(record), ensure_ascii=False).encode() + b"\n" for record in records]
        return [(record.value or b"") + b"\n" for record in records]

    async def commit(self) -> None:
        """Commits what was printed. A group that has moved on is no failure: the next owner prints these records again."""
        if not self._grouped or not self._uncommitted:
            return
        offsets = dict(self._uncommitted)  # records may be printed while these are on their way
        try:
            await self._consumer.commit(offsets)
        except CommitFailedError as error:
            self._output.note(f"cohort: some records will be delivered again: {error}")
        except CohortError as error:
            self._output.note(f"cohort: not committed: {error}")
        # Not after a cancellation: the end of this command commits them again.
        self._uncommitted = {tp: offset for tp, offset in self._uncommitted.items() if offsets.get(tp) != offset}

    def forget(self, tps: frozenset[TopicPartition]) -> None:
        """Others own these already: their records come again there, whatever was printed here."""
        for tp in tps:
            self._uncommitted.pop(tp, None)

    def note(self, how: str) -> None:
        """Says on a terminal how it ended."""
        if sys.stderr.isatty():
            self._output.note(f"{how}: {counted(self._writer.written, 'record')} printed")


class _Rebalances(RebalanceListener):
    """A member that joins gets partitions with all that was printed committed, and prints none of it again."""

    def __init__(self, printing: _Printing) -> None:
        self._printing = printing

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        await self._printing.commit()

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self._printing.forget(tps)


def as_object(record: ConsumerRecord) -> dict[str, Any]:
    """A record for JSON. Bytes that are no UTF-8 come as base64, and a field ``..._encoding`` beside them says so."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"name": name, **_text("value", value)} for name, value in record.headers],
    }


def _text(field: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {field: None}
    try:
        return {field: content.decode()}
    except UnicodeDecodeError:
        return {field: base64.b64encode(content).decode(), f"{field}_encoding": "base64"}
