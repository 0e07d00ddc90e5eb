"""``cohort consume``: prints records as they come."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from client.admin import Admin
from client.cli.options import Subparsers, add_command, positive, seconds
from client.cli.output import Output, counted
from client.cli.reading_range import ReadingRange, add_range_options
from client.cli.record_text import format_string, json_line, value_line
from client.cli.session import require_daemon
from client.cli.writing import LineWriter
from client.errors import CohortError, CommitFailedError
from client.types.records import ISOLATION_LEVELS, ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from client.consumer import Consumer
    from client.consumer.rebalance_listener import RebalanceListener

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
  cohort consume lines errors --json | jq .value
  cohort consume lines --offset -5 --until-end
  cohort consume lines --partition 0,2-5 --from-time 2h --format '%p:%o %k = %v\\n'"""


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
    add_range_options(parser)
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        type=format_string,
        help="how a record is printed (default: its value and a line feed)",
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
    """Prints until there was enough, nothing came for too long, or Ctrl-C. No other command waits for the import here."""
    from client.consumer import Consumer

    reading_range = ReadingRange.of(options)
    await require_daemon(options.bootstrap)
    counts = await _partition_counts(options.bootstrap, options.topics)
    consumer = Consumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        client_id="cohort-consume",
        auto_offset_reset="earliest" if options.from_beginning else "latest",
        enable_auto_commit=False,
        isolation_level=options.isolation_level,
    )
    printing = _Printing(options, output, consumer)
    if reading_range is None:
        listener = cast("RebalanceListener", _Rebalances(printing)) if options.group is not None else None
        consumer.subscribe(options.topics, listener=listener)
    how = "done"
    try:
        await consumer.start()
        if reading_range is not None:
            printing.ends = await reading_range.apply(consumer, counts)
        await printing.run()
    except asyncio.CancelledError:
        how = "interrupted"  # the usual way to end this command, so it is no failure
    finally:
        await printing.commit()
        await consumer.stop(timeout=_STOP_TIMEOUT_S)
    printing.note(how)
    return 0


async def _partition_counts(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    """The number of partitions of each topic.

    Raises the daemon's error for a topic that does not exist: a consumer would wait until it is created.
    """
    async with Admin(bootstrap_servers=bootstrap) as admin:
        described = await admin.describe_topics(*topics)
    return {name: len(topic.partitions) for name, topic in described.items()}


class _Printing:
    """Prints, and commits what was printed: a record is committed only after the reader of our output could have it."""

    def __init__(self, options: argparse.Namespace, output: Output, consumer: Consumer) -> None:
        self._grouped = options.group is not None
        self._left: int | None = options.max_messages
        self._idle_s: float | None = options.timeout
        self.ends: dict[TopicPartition, int] | None = None
        """Before which offset each partition stops; ``None`` when none does."""
        self._output = output
        self._line = options.format or (json_line if output.as_json else value_line)
        self._consumer = consumer
        self._writer = LineWriter(sys.stdout.fileno())
        self._uncommitted: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        last_record_at = last_commit_at = clock()
        while self._left != 0 and not await self._at_the_ends():
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
            if self.ends is not None:
                records = [record for record in records if record.offset < self.ends[partition]]
            before = self._writer.written
            try:
                await self._writer.write([self._line(record) for record in records])
            finally:  # an interrupted write has written some of them, and these count
                printed = self._writer.written - before
                if self._left is not None:
                    self._left -= printed
                if printed:
                    self._uncommitted[partition] = records[printed - 1].offset + 1

    async def _at_the_ends(self) -> bool:
        """Whether every partition has been read as far as it is to be. Those that are done are not fetched any more."""
        if self.ends is None:
            return False
        done = [tp for tp, end in self.ends.items() if await self._consumer.position(tp) >= end]
        self._consumer.pause(*(set(done) - self._consumer.paused()))
        return len(done) == len(self.ends)

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


class _Rebalances:
    """What a listener is by its methods: a member that joins prints nothing again that was printed and committed before."""

    def __init__(self, printing: _Printing) -> None:
        self._printing = printing

    async def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        await self._printing.commit()

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self._printing.forget(tps)
