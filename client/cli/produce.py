"""``cohort produce``: one line, one record."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, get_args

from client.cli.failure import CommandError
from client.cli.lines import LineSource
from client.cli.options import Subparsers, add_command, duration_ms, whole
from client.cli.output import Output, counted
from client.cli.progress import Progress
from client.cli.record_text import InputRecord, json_record, keyed_record
from client.cli.session import require_daemon
from client.errors import CohortError
from client.producer.config import MAX_TRANSACTIONAL_ID_BYTES
from client.transport.request_limits import text_fault
from client.types.records import Headers
from protocol.compression import Compression

if TYPE_CHECKING:
    from client.transactions.transaction import Transaction

_STOP_TIMEOUT_S: Final = 5.0

_DESCRIPTION: Final = """\
Sends each line of FILE, or of standard input, as one record. The line feed is not part of it. Lines are sent in order,
and one piece of the input is acknowledged (it is on the daemon's disk) before the next is read, so the acknowledged
records are always the first ones of the input. Prints how many were acknowledged, also after Ctrl-C.

With --transactional-id the whole input is one transaction: all its records take effect together, or none does."""
_EXAMPLES: Final = """\
  cohort produce lines README.md
  journalctl -f | cohort produce journal
  cohort produce users users.tsv --key-separator $'\\t' --header source=crm
  cohort consume users --offset beginning --until-end --json | cohort produce copy --json-lines
  cohort produce users users.tsv --transactional-id nightly-users --transaction-timeout 10m"""
_DEFAULT_TIMEOUT_MS: Final = 60_000


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``produce``."""
    parser = add_command(
        subparsers, "produce", "send each line of a file as one record", description=_DESCRIPTION, examples=_EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="what to send; - is standard input (default)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json-lines",
        action="store_true",
        help="each line is a JSON object with value and, if wanted, key, headers, partition and timestamp_ms: what "
        "'cohort consume --json' prints, of which topic and offset are passed over",
    )
    form.add_argument(
        "--key-separator",
        metavar="SEP",
        type=_separator,
        help="the text before the first SEP in a line is its key (default: no keys)",
    )
    parser.add_argument(
        "--header",
        metavar="NAME=VALUE",
        type=_header,
        action="append",
        default=[],
        help="a header of every record; may be repeated",
    )
    parser.add_argument(
        "--partition", metavar="P", type=whole, help="the partition of every record (default: chosen by the key)"
    )
    parser.add_argument(
        "--compression", choices=get_args(Compression), help="compress what is sent and stored (default: not)"
    )
    parser.add_argument(
        "--transactional-id",
        metavar="ID",
        type=_transactional_id,
        help="send all of it in one transaction; a producer that has this id already is fenced",
    )
    parser.add_argument(
        "--transaction-timeout",
        metavar="TIME",
        type=_timeout_ms,
        default=_DEFAULT_TIMEOUT_MS,
        help="the transaction is aborted after so long (default: 60s)",
    )
    parser.set_defaults(handler=produce)


def _separator(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("the separator is empty; leave it out to send records without keys")
    return os.fsencode(text)


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, such as source=crm")
    return name, os.fsencode(value)


def _transactional_id(text: str) -> str:
    if not 0 < len(os.fsencode(text)) <= MAX_TRANSACTIONAL_ID_BYTES:
        raise argparse.ArgumentTypeError(f"a transactional id has 1 to {MAX_TRANSACTIONAL_ID_BYTES} bytes")
    if text_fault(text):
        raise argparse.ArgumentTypeError(text_fault(text))
    return text


def _timeout_ms(text: str) -> int:
    timeout_ms = duration_ms(text)
    if not 1 <= timeout_ms < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no timeout: it must be from 1ms and below 24d")
    return timeout_ms


async def produce(options: argparse.Namespace, output: Output) -> int:
    """Sends the input and says how much of it was acknowledged, whatever ends it."""
    source = LineSource.open(options.file)
    sending = _Sending(options, source)
    try:
        await require_daemon(options.bootstrap)
        await sending.run()
    except (CommandError, CohortError, ValueError) as error:  # ValueError: such as a partition that is not there
        sending.report(output, complete=False)
        raise CommandError(
            f"not all of {source.name} was sent: {error}" if sending.acknowledged else str(error)
        ) from error
    except asyncio.CancelledError:
        sending.report(output, complete=False)
        raise
    finally:  # what was acknowledged is said by now: stopping waits for a daemon that may not answer
        source.close()
        await sending.stop()
    sending.report(output, complete=True)
    return 0


class _Sending:
    def __init__(self, options: argparse.Namespace, source: LineSource) -> None:
        from client.producer.producer import Producer  # no other command waits for this

        self.acknowledged = 0
        self._topic: str = options.topic
        self._separator: bytes | None = options.key_separator
        self._json_lines: bool = options.json_lines
        self._headers: Headers = tuple(options.header)
        self._partition: int | None = options.partition
        self._source = source
        self._transactional_id: str | None = options.transactional_id
        self._committing: Transaction | None = None
        self._producer = Producer(
            bootstrap_servers=options.bootstrap,
            client_id="cohort-produce",
            compression=options.compression,
            transactional_id=options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout,
        )

    async def run(self) -> None:
        await self._producer.start()
        # A missing topic is known before the first line is read, which may take long on a terminal.
        await self._producer.partitions_for(self._topic)
        if self._transactional_id is None:
            await self._send()
            return
        async with self._producer.transaction() as transaction:
            await self._send()
            self._committing = transaction

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        with Progress("producing", self._source.size, clock=loop.time) as progress:
            async for lines in self._source.batches():
                await self._send_lines(lines)
                self.acknowledged += len(lines)
                progress.update(self._source.read_bytes, f"{counted(self.acknowledged, 'record')} acknowledged")

    async def stop(self) -> None:
        await self._producer.stop(timeout=_STOP_TIMEOUT_S)

    def report(self, output: Output, *, complete: bool) -> None:
        if self._transactional_id is not None:
            self._report_transaction(output, self._transactional_id, complete=complete)
            return
        text = f"{counted(self.acknowledged, 'record')} acknowledged"
        output.result(
            {"topic": self._topic, "acknowledged": self.acknowledged, "complete": complete},
            f"{text} by topic {self._topic}" + ("" if complete else ": the first ones of the input"),
        )

    def _report_transaction(self, output: Output, transactional_id: str, *, complete: bool) -> None:
        # What has not begun to commit never will: the producer aborts it, or else its timeout.
        outcome = "aborted" if self._committing is None else self._committing.outcome
        records = counted(self.acknowledged, "record")
        texts = {
            "committed": f"{records} committed to topic {self._topic}",
            "aborted": f"the transaction is aborted: no record of it takes effect in topic {self._topic}",
            None: f"it is not known whether the {records} are committed; 'cohort transactions describe {transactional_id}' "
            "tells the outcome of the last transaction",
        }
        result = {"topic": self._topic, "acknowledged": self.acknowledged if outcome == "committed" else 0}
        output.result({**result, "complete": complete, "transaction": outcome}, texts[outcome])

    async def _send_lines(self, lines: list[bytes]) -> None:
        """Sends some lines, and waits until all are acknowledged."""
        if self._separator is None and not self._json_lines:
            headers = repeat(self._headers, len(lines)) if self._headers else None
            await self._producer.send_many(self._topic, lines, partition=self._partition, headers=headers)
            return
        by_partition: dict[int | None, list[InputRecord]] = {}
        for number, line in enumerate(lines, self.acknowledged + 1):
            record = (
                json_record(line, number) if self._separator is None else keyed_record(line, number, self._separator)
            )
            chosen = self._partition if record.partition is None else record.partition
            by_partition.setdefault(chosen, []).append(record)
        await asyncio.gather(*(self._send_records(records, chosen) for chosen, records in by_partition.items()))

    async def _send_records(self, records: list[InputRecord], partition: int | None) -> None:
        now_ms = time.time_ns() // 1_000_000
        await self._producer.send_many(
            self._topic,
            [record.value for record in records],
            [record.key for record in records],
            partition=partition,
            timestamp_ms=[now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records],
            headers=[(*record.headers, *self._headers) for record in records],
        )
