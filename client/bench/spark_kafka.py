"""Spark's own Kafka connector next to Cohort's: the same jobs on the same rows, and what a killed driver leaves behind.

The Kafka is one that runs already, and the connector one that Spark can load; without them there is nothing to compare with.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, Self
from uuid import uuid4

from client.admin import Admin
from client.bench.figures import Figure, Kafka, Setting, Skipped
from client.bench.spark_peers import KEY_BYTES, PARTITIONS, SQL, TOPICS, VALUE_BYTES, Peer
from client.cli.failure import CommandError
from client.cli.output import table
from client.cli.processes import child_environment, daemon
from client.transport.metadata import parse_bootstrap_servers

BENCH: Final = "spark_kafka"
_CONNECTOR: Final = "spark-sql-kafka-0-10_2.13"
_ROWS: Final = 1_000_000
_MICRO_BATCHES: Final = 30
_KILLS: Final = 5
_SEED: Final = 14
_CONNECT_S: Final = 5.0
_SILENCE_S: Final = 900.0
_KEPT_LINES: Final = 15
_LEAST, _ONCE = "at least once", "exactly once"
METRICS: Final = {
    "write_rows_per_s": "1/s",
    "read_rows_per_s": "1/s",
    "stream_rows_per_s": "1/s",
    "micro_batch_p50_ms": "ms",
    "rows_twice": "rows",
    "rows_lost": "rows",
}
"""With their units."""


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Each figure of Cohort's next to the same of Kafka's. Raises ``Skipped`` when there is no Kafka or no connector."""
    kafka = await _found(setting.kafka)
    other = Peer("kafka", "kafka", {"kafka.bootstrap.servers": kafka.bootstrap}, f"cohort-bench-{uuid4().hex[:8]}", {})
    params: dict[str, Any] = {"rows": _rows(setting), "key_bytes": KEY_BYTES, "value_bytes": VALUE_BYTES}
    params |= {"partitions": PARTITIONS, "sql": SQL, "kills": _kills(setting), "master": "local[2]"}
    files = ",".join(Path(name).name for name in kafka.jars.split(","))
    params |= {"spark": version("pyspark"), "kafka": kafka.bootstrap}
    params |= {"connector": kafka.package or files or "on Spark's path"}
    async with daemon(setting.directory / "data", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            await admin.create_topics(dict.fromkeys(cohort_topics(), PARTITIONS))
        peers = cohort_peers(server.address)
        async for found in compared([other, *peers], connector_settings(kafka), setting):
            for figure in _figures(found, other, peers, params):
                yield figure


def _figures(
    found: Mapping[str, Mapping[str, float]], other: Peer, peers: Sequence[Peer], params: Mapping[str, Any]
) -> Iterator[Figure]:
    name = 'the same with format("kafka"), same run'
    for peer in peers:
        for metric, value in found[peer.name].items():
            key = f"{peer.name.replace(' ', '_')}_{metric}"
            yield Figure(BENCH, key, value, METRICS[metric], found[other.name][metric], name, params)


def cohort_peers(address: str) -> list[Peer]:
    """Both deliveries of Cohort's sink, the better one with the offsets of a group."""
    connection = {"bootstrap.servers": address}
    return [
        Peer(_LEAST, "cohort", connection, "least", {"delivery": "at-least-once"}),
        Peer(_ONCE, "cohort", connection, "once", {"delivery": "exactly-once"}, "once"),
    ]


def cohort_topics() -> list[str]:
    """The topics of ``cohort_peers``."""
    return [peer.topic(name) for peer in cohort_peers("") for name in TOPICS]


async def compared(
    peers: Sequence[Peer], settings: Mapping[str, str], setting: Setting
) -> AsyncIterator[dict[str, dict[str, float]]]:
    """By peer the median of the rounds of each job, and then what killed drivers have delivered: together ``METRICS``."""
    task = {"rows": _rows(setting), "settings": {"spark.driver.memory": "2g", **settings}}
    directory = setting.directory
    rounds = {"rounds": 1 if setting.quick else 3, "micro_batches": 5 if setting.quick else _MICRO_BATCHES}
    figures: dict[str, dict[str, list[float]]] = {peer.name: {} for peer in peers}
    async with SparkProgram(directory, {**task, **rounds, "work": "measure", "peers": _plain(peers)}) as program:
        async for event in program.events():
            figures[event["peer"]].setdefault(event["metric"], []).append(event["value"])
    yield {name: {metric: median(values) for metric, values in jobs.items()} for name, jobs in figures.items()}
    for peer in peers:
        copying = {**task, "work": "copy", "peers": _plain([peer]), "checkpoint": str(directory / f"copy {peer.name}")}
        await _copied(directory, copying, _kills(setting))
    counts = {}
    async with SparkProgram(directory, {**task, "work": "count", "peers": _plain(peers)}) as program:
        async for event in program.events():
            counts[event["peer"]] = {"rows_twice": event["twice"], "rows_lost": event["lost"]}
    yield counts


async def _copied(directory: Path, task: Mapping[str, Any], kills: int) -> None:
    """Copies all rows. The driver is killed some batches into each of its lives, anywhere in a batch, and started again.

    The instants are drawn from one seed, so that they are the same parts of a batch for every peer.
    """
    drawn = Random(_SEED)
    for _ in range(kills):
        batches, part = drawn.randint(1, 3), drawn.random()
        async with SparkProgram(directory, task) as program:
            async for event in program.events():
                batches -= 1
                if not batches:
                    await asyncio.sleep(part * event["ms"] / 1000)
                    break
    async with SparkProgram(directory, task) as program:
        async for _ in program.events():
            pass


class SparkProgram:
    """``client.bench.spark_program`` with one task. At the end of the block it is killed with its JVM, if it still runs."""

    def __init__(self, directory: Path, task: Mapping[str, Any]) -> None:
        self._directory = directory
        self._task = task
        self._log = directory / "spark.log"
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "client.bench.spark_program", json.dumps(self._task)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._directory,
                env=child_environment(),
                start_new_session=True,
            )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._process is not None, "it was started"
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of it has ended by itself
        await self._process.wait()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What it tells until it is done. Raises ``CommandError`` with its last words when it fails or falls silent."""
        assert self._process is not None, "it was started"
        assert self._process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    line = await self._process.stdout.readline()
            except TimeoutError:
                raise CommandError(f"{BENCH}: Spark told nothing for {_SILENCE_S:.0f} s{self._tail()}") from None
            if not line:
                raise CommandError(f"{BENCH}: Spark ended before it was done{self._tail()}")
            event = json.loads(line)
            if "failed" in event:
                raise CommandError(f"{BENCH}: {event['failed']}")
            if "done" in event:
                return
            yield event

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "".join(f"\n  {line}" for line in lines[-_KEPT_LINES:])


def as_table(figures: Sequence[Figure]) -> str:
    """The figures side by side, a line a job."""
    found: dict[str, dict[str, float | None]] = {}
    for figure in figures:
        delivery, _, metric = figure.metric.partition("_once_")
        row = found.setdefault(metric, {})
        row[f"{delivery}_once".replace("_", " ")] = figure.value
        row["kafka"] = figure.floor
    columns = ("kafka", _LEAST, _ONCE)
    rows = [[metric, *(_whole(row.get(column)) for column in columns)] for metric, row in found.items()]
    return table(("", *columns), rows)


def connector_settings(kafka: Kafka) -> dict[str, str]:
    """What has Spark load the connector."""
    given = {"spark.jars": kafka.jars, "spark.jars.packages": kafka.package}
    return {name: value for name, value in given.items() if value}


async def _found(kafka: Kafka) -> Kafka:
    """``kafka`` when it answers and Spark will find the connector. What was named and is not there is no reason to skip."""
    _check_named(kafka)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(*parse_bootstrap_servers(kafka.bootstrap)[0])
    except ValueError as error:
        raise CommandError(f"{BENCH}: --kafka-bootstrap: {error}") from None
    except OSError as error:
        raise CommandError(f"{BENCH}: no Kafka answers at {kafka.bootstrap}: {error or 'no answer'}") from None
    writer.close()
    return kafka


def _check_named(kafka: Kafka) -> None:
    if not kafka.bootstrap:
        raise Skipped("there is no Kafka to compare with; --kafka-bootstrap HOST:PORT names one that runs")
    if find_spec("pyspark") is None:
        raise Skipped("Spark is not installed: pip install 'aiocohort[spark]'")
    if not (kafka.jars or kafka.package or has_connector()):
        raise Skipped(
            "Spark has no connector for Kafka; --kafka-package "
            f"org.apache.spark:{_CONNECTOR}:{version('pyspark')} has it get one from Maven, and --kafka-jars names its files"
        )
    missing = [name for name in kafka.jars.split(",") if name and not Path(name).is_file()]
    if missing:
        raise CommandError(f"{BENCH}: --kafka-jars names {', '.join(missing)}, which is no file")


def has_connector() -> bool:
    """Whether the connector lies among Spark's own jars."""
    spec = find_spec("pyspark")
    return spec is not None and any((Path(str(spec.origin)).parent / "jars").glob(f"{_CONNECTOR}-*.jar"))


def _plain(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    return [peer._asdict() for peer in peers]


def _rows(setting: Setting) -> int:
    return 20_000 if setting.quick else _ROWS


def _kills(setting: Setting) -> int:
    return 1 if setting.quick else _KILLS


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
