"""``cohort log dump`` and ``cohort check``: their arguments. The daemon's package does the work, as a program of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from client.cli.failure import CommandError
from client.cli.options import Subparsers, add_command, positive, whole
from client.cli.output import Output
from client.cli.processes import child_environment

_DUMP: Final = """\
Prints what files of a data directory say. Of a partition's log: a segment (.log) batch by batch, an index (.index), a
snapshot of producers (.producers), checkpoint, leader-epochs, cleaner-point and clean-end. In the logs of groups and
transactions (__consumer_offsets-N, __transaction_state-N) each record is told in words. Of the directory itself: the
metadata (metadata.json, metadata.changes) key by key, node.json, inventory, high-watermarks, lock, reserve and writable.
Every checksum is compared; what is damaged is named, and the rest is shown. It only reads: a daemon may go on using it.

Exit status 1 if something in a file is damaged, or is no file of a data directory."""
_DUMP_EXAMPLES: Final = """\
  cohort log dump cohort-data/lines-0/00000000000000000000.log
  cohort log dump cohort-data/lines-0/00000000000000000000.log --values --from 1200 --until 1210
  cohort log dump cohort-data/__consumer_offsets-7/00000000000000000000.log
  cohort log dump cohort-data/lines-0/checkpoint cohort-data/lines-0/leader-epochs --json
  cohort log dump cohort-data/metadata.json cohort-data/node.json"""
_CHECK: Final = """\
Compares every checksum in a data directory, offline: batches, also those that Kafka's clients have made within them,
indexes, snapshots, checkpoints and metadata, of all workers of cohortd --workers. What is wrong is told with partition,
file and position, and what to do about it. What a crash leaves, and the next start mends, is a note.

It only reads. A directory that a daemon uses is refused; with --running it is looked at all the same, and nothing is told
that may come from what the daemon writes meanwhile. While it looks, no daemon starts there, unless --running is given.

Exit status 0 if nothing is damaged, 1 if something is, or the directory is none of Cohort's."""
_CHECK_EXAMPLES: Final = """\
  cohort check cohort-data
  cohort check cohort-data lines-0 lines-1 --records
  cohort check cohort-data --running --json"""
_LOG_EXAMPLES: Final = """\
  cohort log dump cohort-data/lines-0/00000000000000000000.log --values"""


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``log`` and ``check``."""
    group = add_command(subparsers, "log", "look into files of a data directory", examples=_LOG_EXAMPLES)
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parser = add_command(
        commands, "dump", "print what files of a data directory say", description=_DUMP, examples=_DUMP_EXAMPLES
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a file of a data directory, or a copy of one")
    parser.add_argument(
        "--from", dest="first", metavar="OFFSET", type=whole, help="leave out what is before this offset"
    )
    parser.add_argument("--until", metavar="OFFSET", type=whole, help="stop before this offset")
    parser.add_argument("--max-batches", metavar="N", type=positive, help="stop after so many batches of a segment")
    parser.add_argument("--values", action="store_true", help="show the records, with key, value and headers")
    parser.add_argument(
        "--value-bytes", metavar="N", type=whole, help="show so many bytes of a key or value (default: 100; 0: all)"
    )
    parser.add_argument(
        "--contents",
        choices=("records", "groups", "transactions"),
        help="what the records of a segment are (default: what its directory is called)",
    )
    parser.set_defaults(handler=dump)
    parser = add_command(
        subparsers, "check", "find damage in a data directory", description=_CHECK, examples=_CHECK_EXAMPLES
    )
    parser.add_argument("directory", metavar="DATA_DIR", help="what cohortd was given as --data-dir")
    parser.add_argument("partitions", metavar="PARTITION", nargs="*", help="look at these only, such as lines-0")
    parser.add_argument("--records", action="store_true", help="decode the records as well, which takes longer")
    parser.add_argument("--running", action="store_true", help="look at it while a daemon uses it")
    parser.set_defaults(handler=check)


async def dump(options: argparse.Namespace, output: Output) -> int:
    """Prints the files; returns 1 when something in them is damaged."""
    words = []
    for name in ("first", "until", "max_batches", "value_bytes", "contents"):
        value = getattr(options, name)
        if value is not None:
            words.append(f"--{'from' if name == 'first' else name.replace('_', '-')}={value}")
    words += ["--values"] if options.values else []
    return await _inspect("dump", words, options.files, output)


async def check(options: argparse.Namespace, output: Output) -> int:
    """Looks at the directory; returns 1 when something in it is damaged."""
    words = [word for word in ("--records", "--running") if getattr(options, word.removeprefix("--"))]
    return await _inspect("check", words, [options.directory, *options.partitions], output)


async def _inspect(command: str, words: Sequence[str], paths: Sequence[str], output: Output) -> int:
    """Runs the inspection with this terminal; ends it when this command ends. Returns its exit status."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # a module of the directory we run in is not meant
        *("-m", "coordinator.inspection", command),
        *(["--json"] if output.as_json else []),
        *words,
        "--",
        *paths,
        stdin=asyncio.subprocess.DEVNULL,
        env=child_environment(),
    )
    try:
        status = await process.wait()
    except asyncio.CancelledError:
        if process.returncode is None:
            process.kill()  # it only reads
        await process.wait()
        raise
    if status == -signal.SIGPIPE:
        return 0  # the reader of the lines has enough (``| head``)
    if status not in (0, 1):
        raise CommandError(f"the inspection ended with status {status}")
    return status
