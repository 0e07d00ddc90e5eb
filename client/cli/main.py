"""Entry point of ``cohort``: reads the command line, runs one command, turns its end into an exit status.

Exit status: 0 done, 1 failed (the reason is on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final, NoReturn

from client.cli import bench, cluster, completion, consume, demo, groups, inspection, produce, topics, transactions
from client.cli.command_parser import CommandParser
from client.cli.failure import CommandError
from client.cli.options import BOOTSTRAP_VARIABLE, add_global_options, fill_in
from client.cli.output import Output
from client.cli.session import configure_logging, run
from client.errors import CohortError

_EXAMPLES: Final = """\
examples:
  cohort demo                                   see a group survive the death of a member
  cohort topics create lines --partitions 12
  cohort produce lines README.md
  cohort consume lines --group readers --from-beginning
  cohort -b 10.0.0.5:7337 groups describe readers --json

'cohort COMMAND --help' explains a command.
exit status: 0 done, 1 failed with the reason on stderr, 2 wrong usage."""


def build_parser() -> CommandParser:
    """The parser of the whole command line; each command leaves its coroutine function in ``handler``."""
    parser = CommandParser(
        prog="cohort",
        description="Talks to a Cohort daemon: topics, groups, transactions, records, and a demonstration of it all.",
        epilog=_EXAMPLES,
    )
    add_global_options(parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (topics, groups, transactions, cluster, produce, consume, inspection, demo, bench, completion):
        module.add_commands(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command in ``arguments`` (default: those of the process) and returns the exit status.

    Raises ``SystemExit`` with status 2 for wrong usage and 0 for ``--help``, as argparse does.
    """
    parser = build_parser()
    completion.complete(parser)
    options = parser.parse_command(arguments)
    configure_logging()
    try:
        _complete(parser, options)
        status = run(options.handler(options, Output(as_json=options.json)))
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
        return 0
    except (CommandError, CohortError, OSError) as error:
        print(f"cohort: {_reason(error)}", file=sys.stderr)
        return 1
    return status


class _Version(argparse.Action):
    """The version is looked up when it is asked for: reading an installation's metadata takes a moment."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"cohort {version('aiocohort')}")
        parser.exit()


def _complete(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    try:
        fill_in(options, os.environ)
    except argparse.ArgumentTypeError as error:
        parser.error(f"{BOOTSTRAP_VARIABLE}: {error}")


def _reason(error: Exception) -> str:
    return str(error) or ("a wait took too long" if isinstance(error, TimeoutError) else type(error).__name__)


def _abandon_stdout() -> None:
    """The reader of our output has enough (``| head``): what is still buffered must not fail again at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
