"""``cohort bench``: the arguments of the benchmarks, which are in ``client.bench``."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from client.bench.figures import LIKELY_KAFKAS, Kafka
from client.bench.registry import SUMMARIES
from client.cli.failure import CommandError
from client.cli.options import Subparsers, add_command
from client.cli.output import Output

_DESCRIPTION: Final = """\
Measures this machine with daemons of its own in temporary directories. Each figure is printed next to its floor: what the
machine can do at most for such work, measured in the same run. A benchmark:

{benchmarks}"""
_EXAMPLES: Final = """\
  cohort bench
  cohort bench heartbeats commits
  cohort bench --quick --json
  cohort bench assign --full --json
  cohort bench commits --dir /mnt/fast-disk
  cohort bench --against kafka --kafka-bootstrap 127.0.0.1:9092
  cohort bench spark_kafka --kafka-bootstrap 127.0.0.1:9092 \\
      --kafka-package org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"""


def add_commands(subparsers: Subparsers[Any]) -> None:
    """Adds ``bench``."""
    width = max(map(len, SUMMARIES)) + 2
    listed = "\n".join(f"  {name:<{width}}{summary}" for name, summary in SUMMARIES.items())
    parser = add_command(
        subparsers,
        "bench",
        "measure this machine, each figure next to its floor",
        description=_DESCRIPTION.format(benchmarks=listed),
        examples=_EXAMPLES,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", type=_known, help="which benchmarks (default: all)")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="tiny runs that only show that everything works")
    extent.add_argument(
        "--full", action="store_true", help="whole grids, not only the sizes that matter most (assign: half an hour)"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the daemons keep their data (default: $TMPDIR)")
    kafka = parser.add_argument_group("benchmarks that need a Kafka")
    kafka.add_argument(
        "--against",
        choices=["kafka"],
        help=f"runs against_kafka only; looks for a Kafka at {' and '.join(LIKELY_KAFKAS)} when none is named",
    )
    kafka.add_argument("--kafka-bootstrap", metavar="HOST:PORT", default="", help="a Kafka that runs")
    kafka.add_argument(
        "--kafka-pid", metavar="PID", type=int, default=0, help="its process, for kafka_memory; jcmd asks its heap"
    )
    kafka.add_argument("--kafka-jars", metavar="FILE,...", default="", help="the files of Spark's connector for Kafka")
    kafka.add_argument("--kafka-package", metavar="GROUP:NAME:VERSION", default="", help="or where Maven has it")
    kafka.add_argument(
        "--against-kafka-source",
        action="store_true",
        help="spark: Spark's own Kafka source and sink beside Cohort's on the same topic; no Kafka is needed",
    )
    parser.set_defaults(handler=bench)


async def bench(options: argparse.Namespace, output: Output) -> int:
    """Runs the benchmarks."""
    from client.bench.runner import (
        run_benchmarks,  # only who measures waits for the import of clients and daemons' tools
    )

    names = options.names or [name for name in SUMMARIES if name != "spark" or find_spec("pyspark")]
    bootstrap = options.kafka_bootstrap
    if options.against:
        if options.names:
            raise CommandError("--against kafka is a benchmark of its own: leave the names out")
        names, bootstrap = ["against_kafka"], bootstrap or ",".join(LIKELY_KAFKAS)
    kafka = Kafka(bootstrap, options.kafka_jars, options.kafka_package, options.against_kafka_source, options.kafka_pid)
    return await run_benchmarks(
        names, output, quick=options.quick, full=options.full, directory=options.dir, kafka=kafka
    )


def _known(name: str) -> str:
    if name not in SUMMARIES:
        raise argparse.ArgumentTypeError(f"there is no benchmark {name!r}; there are {', '.join(SUMMARIES)}")
    return name
