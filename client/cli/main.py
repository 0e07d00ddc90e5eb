"""Entry point of ``cohort``: reads the command line, runs one command, turns its end into an exit status.

Exit status: 0 done, 1 failed (the reason is on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from client.cli import bench, cluster, consume, demo, groups, produce, topics, transactions
from client.cli.command_parser import CommandParser
from client.cli.failure import CommandError
from client.cli.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, add_global_options, bootstrap
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
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (topics, groups, transactions, cluster, produce, consume, demo, bench):
        module.add_commands(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command in ``arguments`` (default: those of the process) and returns the exit status.

    Raises ``SystemExit`` with status 2 for wrong usage and 0 for ``--help``, as argparse does.
    """
    parser = build_parser()
    options = parser.parse_command(arguments)
    _complete(parser, options)
    configure_logging()
    try:
        status = run(options.handler(options, Output(as_json=options.json)))
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
        return 0
    except (CommandError, CohortError, OSError) as error:
        print(f"cohort: {_reason(error)}", file=sys.stderr)
        return 1
    return status


def _complete(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    options.json = getattr(options, "json", False)
    if not hasattr(options, "bootstrap"):
        given: Any = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
        try:
            options.bootstrap = bootstrap(given)
        except argparse.ArgumentTypeError as error:
            parser.error(f"{BOOTSTRAP_VARIABLE}: {error}")


def _reason(error: Exception) -> str:
    return str(error) or ("a wait took too long" if isinstance(error, TimeoutError) else type(error).__name__)


def _abandon_stdout() -> None:
    """The reader of our output has enough (``| head``): what is still buffered must not fail again at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
