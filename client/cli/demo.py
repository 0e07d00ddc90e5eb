"""``cohort demo``: the arguments of the demonstration; the story itself is in ``client.demo``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from client.cli.failure import CommandError
from client.cli.options import Subparsers, add_command
from client.cli.output import Output

_DESCRIPTION: Final = """\
Tells the whole story on real files. Starts a daemon of its own in a temporary directory, produces every line of the
files keyed by file name, lets three member processes count lines and words, kills one of them with SIGKILL in the middle,
starts a fourth, and compares what the group counted with a plain count of the same files. Exit status 1 if anything was
lost. PATH is a file or a directory; the default is every *.py of the running Python's standard library.

With --exactly-once, members send a record for each line instead, in one transaction with the offset of the line, and one
of them is killed in the middle; the same runs at least once beside it. No line is lost or counted twice exactly once.

With --spark, queries of Spark count the lines in windows of time instead, one of them stopped in the middle. With both, a
query of Spark sends a record for each line, and its driver is killed twice.

With --cluster, three nodes serve instead of one daemon, with three replicas of each partition, and the node that leads most
of them is killed in the middle. Their metadata is in an etcd, where one is installed ($COHORT_ETCD or PATH)."""
_EXAMPLES: Final = """\
  cohort demo
  cohort demo ~/projects/mine README.md
  cohort demo --json | tail -1
  cohort demo --exactly-once
  cohort demo --spark
  cohort demo --spark --exactly-once
  cohort demo --cluster"""


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``demo``."""
    parser = add_command(
        subparsers,
        "demo",
        "watch real files flow through a group while a member is killed",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="a file, or a directory of *.py files")
    parser.add_argument(
        "--exactly-once", action="store_true", help="a pipeline in transactions, next to the same at least once"
    )
    parser.add_argument(
        "--spark", action="store_true", help="a pipeline on Spark; needs pip install 'aiocohort[spark]'"
    )
    parser.add_argument("--cluster", action="store_true", help="three nodes, one of which is killed")
    parser.set_defaults(handler=demo)


async def demo(options: argparse.Namespace, output: Output) -> int:
    """Runs the demonstration. The stories are imported here: no other command waits for that."""
    from client.demo.cluster_story import tell_on_cluster
    from client.demo.spark_killed_story import tell_spark_exactly_once
    from client.demo.spark_story import tell_on_spark
    from client.demo.story import tell
    from client.demo.transforming_story import tell_exactly_once

    if options.cluster:
        if options.spark or options.exactly_once:
            raise CommandError("--cluster is a demonstration by itself: leave out --spark and --exactly-once")
        return await tell_on_cluster(options.paths, output)
    if options.spark:
        on_spark = tell_spark_exactly_once if options.exactly_once else tell_on_spark
        return await on_spark(options.paths, output)
    return await (tell_exactly_once if options.exactly_once else tell)(options.paths, output)
