"""``python -m tests.kafka.suites NAME``: runs a Kafka client's own test suite against a ``cohortd``.

Exit 0 when every case passed that ``exceptions.toml`` does not name with its reason, and every case named there still fails;
1 otherwise; 2 when the suite cannot be run here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.daemon_process import DaemonProcess
from tests.etcd.members import free_ports
from tests.kafka.suites.checkouts import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, CheckoutSuite
from tests.kafka.suites.crates import RDKAFKA, RSKAFKA
from tests.kafka.suites.exceptions import Judgement, judged, named_for
from tests.kafka.suites.go_modules import FRANZ_GO, KAFKA_GO
from tests.kafka.suites.java import JAVA, KAFKA_TOOLS
from tests.kafka.suites.librdkafka import LIBRDKAFKA, LIBRDKAFKA_CLUSTER
from tests.kafka.suites.suite import Case, MissingError, Suite

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        *(FRANZ_GO, KAFKA_GO, LIBRDKAFKA, LIBRDKAFKA_CLUSTER, RSKAFKA, RDKAFKA),
        *(KAFKA_PYTHON, AIOKAFKA, CONFLUENT, JAVA, KAFKA_TOOLS),
    )
}


def main() -> int:
    """Runs the command line; returns the exit status."""
    command = argparse.ArgumentParser(prog="python -m tests.kafka.suites", description=__doc__)
    command.add_argument("name", choices=[*SUITES])
    command.add_argument("--only", metavar="PATTERN", help="only the cases that match, as the suite understands it")
    command.add_argument("--bootstrap", metavar="HOST:PORT", help="judge this broker instead of a cohortd of its own")
    command.add_argument("--checkout", type=Path, metavar="DIR", help="where the client's repository is checked out")
    options = command.parse_args()
    suite = SUITES[options.name]
    if isinstance(suite, CheckoutSuite) and options.checkout is not None:
        suite = suite.at(options.checkout)
    try:
        directory = suite.prepare()
        with broker(suite, options.bootstrap) as bootstrap:
            judgement = judged(told(suite.run(directory, bootstrap, options.only)), named_for(suite.name))
    except MissingError as error:
        print(f"{suite.name} cannot be run here: {error}", file=sys.stderr)
        return 2
    return report(judgement, complete=options.only is None)


@contextmanager
def broker(suite: Suite, bootstrap: str | None) -> Iterator[str]:
    """A ``cohortd`` for the suite, or the broker that is given; its address for Kafka's clients."""
    if bootstrap is not None:
        yield bootstrap
        return
    options = suite.daemon_options
    if "--kafka-port" not in options:
        options = ("--kafka-port", str(free_ports(1)[0]), *options)
    port = options[options.index("--kafka-port") + 1]
    metadata, *others = free_ports(suite.nodes)
    with tempfile.TemporaryDirectory() as directory:
        serving = () if suite.nodes == 1 else ("--serve-metadata", f"127.0.0.1:{metadata}")
        daemons = [DaemonProcess(Path(directory, "first"), *options, *serving, *SETTINGS)]
        for other in others:
            asked = ("--metadata", f"cohort://127.0.0.1:{metadata}/suites")
            daemons.append(
                DaemonProcess(Path(directory, str(other)), *options, "--kafka-port", str(other), *asked, *SETTINGS)
            )
        try:
            with ExitStack() as stack:
                for daemon in daemons:
                    stack.enter_context(daemon)
                yield f"localhost:{port}"
        finally:
            said = [line for daemon in daemons for line in daemon.output[-SAID_LINES:]]
            print("what cohortd said:", *said, sep="\n  ")


SAID_LINES = 60

SETTINGS = ("--flush", "os")
"""Durability is not what they judge."""


def told(cases: Iterator[Case]) -> Iterator[Case]:
    """The same, a line each."""
    for case in cases:
        print(f"{case.outcome:8} {case.name}", flush=True)
        yield case


def report(judgement: Judgement, *, complete: bool) -> int:
    """Says what is not as it should be; returns the exit status."""
    for case in judgement.unexpected:
        print(f"\n== {case.name} failed, and exceptions.toml does not name it\n{case.said}")
    stale = judgement.stale if complete else ()
    for name in stale:
        print(f"== {name} is named in exceptions.toml and did not fail: take it out")
    counts = judgement.counts
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped by the suite itself")
    return 1 if judgement.unexpected or stale else 0


if __name__ == "__main__":
    sys.exit(main())
