"""``python -m coordinator.inspection``: ``dump`` tells what files of a log say, ``check`` whether a data directory is whole.

Exit status 0 done, 1 damaged or not to be read (the reason is on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from coordinator.filesystem.files import ReadOnlyStorage, place_of
from coordinator.filesystem.storage import DataDirectoryLockedError
from coordinator.inspection.data_directory import DirectoryCheck
from coordinator.inspection.file_dump import UnknownFileError, dump_file
from coordinator.inspection.findings import Report
from coordinator.inspection.output import Output, Progress
from coordinator.inspection.partition_check import Depth
from coordinator.inspection.roots import LOCK, NotADataDirectoryError, bytes_in, locked, roots_in
from coordinator.inspection.segment_dump import VALUE_BYTES, Wanted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    for number in (signal.SIGINT, signal.SIGPIPE):  # who reads the lines has enough: no reason for a traceback
        signal.signal(number, signal.SIG_DFL)
    options = _parser().parse_args(arguments)
    status: int = options.handler(options)
    sys.stdout.flush()
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m coordinator.inspection", description=__doc__)
    commands = parser.add_subparsers(required=True)
    dump = commands.add_parser("dump")
    dump.add_argument("files", nargs="+")
    dump.add_argument("--json", action="store_true")
    dump.add_argument("--values", action="store_true")
    dump.add_argument("--value-bytes", type=int, default=VALUE_BYTES)
    dump.add_argument("--from", dest="first", type=int, default=0)
    dump.add_argument("--until", type=int, default=2**63)
    dump.add_argument("--max-batches", type=int, default=2**63)
    dump.add_argument("--contents", choices=("records", "groups", "transactions"))
    dump.set_defaults(handler=_dump)
    check = commands.add_parser("check")
    check.add_argument("directory")
    check.add_argument("partitions", nargs="*")
    check.add_argument("--json", action="store_true")
    check.add_argument("--records", action="store_true")
    check.add_argument("--running", action="store_true")
    check.set_defaults(handler=_check)
    return parser


def _dump(options: argparse.Namespace) -> int:
    output = Output(sys.stdout, as_json=options.json)
    wanted = Wanted(options.first, options.until, options.max_batches, options.values, options.value_bytes)
    whole = True
    for file in options.files:
        root, directory, name = place_of(file)
        try:
            whole &= dump_file(ReadOnlyStorage(root), directory, name, output, wanted, options.contents)
        except (UnknownFileError, OSError) as error:
            whole = False
            sys.stdout.flush()
            print(f"cohort: {error}", file=sys.stderr)
    return 0 if whole else 1


def _check(options: argparse.Namespace) -> int:
    output = Output(sys.stdout, as_json=options.json)
    try:
        roots = roots_in(options.directory, options.partitions)
        with nullcontext() if options.running else locked(roots):
            progress = Progress(sys.stderr, bytes_in(roots))
            report = Report(output, progress)
            for root in roots:
                DirectoryCheck(root, report, progress, Depth(options.records, options.running)).run()
            return 0 if report.verdict(options.directory) else 1
    except DataDirectoryLockedError as error:
        why = (
            f"{error.path.removesuffix(f'/{LOCK}')} is used by {error.holder}, and what is being written looks damaged: "
            "stop it, look at a copy of the directory, or give --running, which tells only what cannot come from that"
        )
        print(f"cohort: {why}", file=sys.stderr)
    except (NotADataDirectoryError, OSError) as error:
        print(f"cohort: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
