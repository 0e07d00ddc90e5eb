"""``python -m tests.kafka.java_programs PROGRAM TASK``: Kafka's Java clients against a ``cohortd``, by ``java/*.java``.

``Clients groups|transactions|administration|consumer-protocol`` are producer, consumer and administrator, ``WordCount
at_least_once|exactly_once_v2`` is Kafka Streams, ``Connect files`` is the file connector of Kafka Connect, killed midway.
Maven gets the jars of a release once. Exit 0 when the program passed, 1 when it did not, 2 when it cannot be run here.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.daemon_process import DaemonProcess
from tests.etcd.members import free_ports
from tests.kafka.suites.suite import MissingError, cache, call, tool

SOURCES: Final = Path(__file__).with_name("java")
KAFKA_VERSION: Final = "4.3.1"
_DOWNLOAD_SECONDS: Final = 600.0
_SECONDS: Final = 240.0
_POLL_SECONDS: Final = 0.2
_LINES: Final = 200
_OPTIONS: Final = (
    *("-XX:TieredStopAtLevel=1", "-Xmx512m"),  # they start twice as fast, and beside other tests
    *("-Dorg.slf4j.simpleLogger.defaultLogLevel=error",),
)
_WORKER: Final = """
bootstrap.servers={servers}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={directory}/offsets
offset.flush.interval.ms=500
listeners=http://127.0.0.1:{port}
plugin.discovery=service_load
"""
_SOURCE: Final = """
name=source
connector.class=org.apache.kafka.connect.file.FileStreamSourceConnector
tasks.max=1
file={directory}/in.txt
topic=lines
"""
_SINK: Final = """
name=sink
connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector
tasks.max=1
file={directory}/out.txt
topics=lines
consumer.override.session.timeout.ms=6000
"""


def prepare(version: str = KAFKA_VERSION) -> Path:
    """The directory with the jars of a release. Raises ``MissingError`` where there is no Java, no Maven or no network."""
    tool("java", "a JDK of Java 17 or newer")
    return collected("pom.xml", "kafka-jars", version)


def collected(pom: str, name: str, version: str = KAFKA_VERSION) -> Path:
    """The directory ``name-version`` with the jars that a project of ``java/`` names, which Maven collects once.

    Raises ``MissingError`` where there is no Maven or no network.
    """
    jars = cache() / f"{name}-{version}"
    if not jars.exists():
        maven = tool("mvn", "Maven")
        fresh = Path(tempfile.mkdtemp(prefix=f"{jars.name}.", dir=jars.parent))
        collect = ("dependency:copy-dependencies", f"-DoutputDirectory={fresh}", f"-Dkafka.version={version}")
        try:
            call([maven, "--batch-mode", "--quiet", "--file", str(SOURCES / pom), *collect], SOURCES, _DOWNLOAD_SECONDS)
            fresh.rename(jars)
        except OSError:
            if not jars.exists():  # another process was not quicker
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return jars


def run(jars: Path, program: str, task: str, bootstrap: str, directory: Path) -> str:
    """What a program printed that passed; ``directory`` is its own. Raises ``AssertionError`` with what else it said."""
    if program == "Connect":
        return copied_by_connect(jars, bootstrap, directory)
    command = _java(jars, directory, str(SOURCES / f"{program}.java"), task, bootstrap)
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else str(error.stdout)
        raise AssertionError(f"{program} {task} did not end within {_SECONDS:.0f} s: {said}") from error
    assert done.returncode == 0, f"{program} {task} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def copied_by_connect(jars: Path, bootstrap: str, directory: Path) -> str:
    """Connect's source writes the lines of a file to a topic, and its sink writes them to another file.

    Its worker is killed halfway. Each line has to arrive, in its order; after a kill lines may come again.
    """
    fill = {"servers": bootstrap, "directory": directory, "port": free_ports(1)[0]}
    files = {"worker": _WORKER, "source": _SOURCE, "sink": _SINK}
    for name, text in files.items():
        (directory / f"{name}.properties").write_text(text.format(**fill), encoding="utf-8")
    lines: list[str] = []
    for life in range(2):
        new = [f"line {life} {number}" for number in range(_LINES)]
        with _connect_worker(jars, directory, [f"{directory}/{name}.properties" for name in files]) as worker:
            for half in (new[: _LINES // 2], new[_LINES // 2 :]):
                with (directory / "in.txt").open("a", encoding="utf-8") as growing:
                    growing.writelines(f"{line}\n" for line in half)
                lines += half
                _await_lines(worker, directory, lines)
    return f"Connect copied {len(lines)} lines\n"


@contextmanager
def _connect_worker(jars: Path, directory: Path, properties: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A standalone worker, which is killed at the end; what it says goes to ``connect.log``."""
    with (directory / "connect.log").open("ab") as log:
        worker = subprocess.Popen(
            _java(jars, directory, "org.apache.kafka.connect.cli.ConnectStandalone", *properties),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def _await_lines(worker: subprocess.Popen[bytes], directory: Path, expected: Sequence[str]) -> None:
    """Waits until the sink has written all of them. Raises ``AssertionError`` when it did not, or in another order."""
    out, deadline = directory / "out.txt", time.monotonic() + _SECONDS / 2
    found: list[str] = []
    while set(found) != set(expected):
        said = (directory / "connect.log").read_text(errors="replace")[-4_000:]
        assert worker.poll() is None, f"Connect ended with {worker.returncode}: {said}"
        assert time.monotonic() < deadline, f"{len(set(found))} of {len(expected)} lines were copied: {said}"
        time.sleep(_POLL_SECONDS)
        found = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    assert list(dict.fromkeys(found)) == list(expected), "lines came in another order"


def _java(jars: Path, directory: Path, *arguments: str) -> list[str]:
    return [tool("java", "a JDK"), *_OPTIONS, f"-Djava.io.tmpdir={directory}", "-cp", f"{jars}/*", *arguments]


def main() -> int:
    """Runs the command line; returns the exit status."""
    command = argparse.ArgumentParser(prog="python -m tests.kafka.java_programs", description=__doc__)
    command.add_argument("program", choices=["Clients", "WordCount", "Connect"])
    command.add_argument("task")
    command.add_argument("--kafka", default=KAFKA_VERSION, metavar="VERSION", help="the release of Kafka's jars")
    options = command.parse_args()
    with tempfile.TemporaryDirectory(prefix="cohort-java-") as name:
        directory = Path(name)
        try:
            jars = prepare(options.kafka)
            with DaemonProcess(directory / "data", "--kafka-port", "-1") as daemon:
                print(run(jars, options.program, options.task, daemon.kafka_address, directory), end="")
        except MissingError as error:
            print(f"Kafka's Java clients cannot be run here: {error}", file=sys.stderr)
            return 2
        except AssertionError as error:
            print(error, *daemon.output[-20:], sep="\n", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
