"""Kafka's command-line tools, and what each of them has to say of a broker; ``java.py`` makes a suite of them.

They are those of ``$KAFKA_HOME``, or of a Kafka whose scripts are in PATH; else Maven gets their jars. What runs is the
class that a script runs, without the script.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.kafka.java_programs import collected
from tests.kafka.suites.suite import MissingError, tool

_SECONDS: Final = 120.0
_PACKAGE: Final = "org.apache.kafka.tools"
CLASSES: Final[Mapping[str, str]] = {
    "kafka-topics": f"{_PACKAGE}.TopicCommand",
    "kafka-console-producer": f"{_PACKAGE}.ConsoleProducer",
    "kafka-console-consumer": f"{_PACKAGE}.consumer.ConsoleConsumer",
    "kafka-consumer-groups": f"{_PACKAGE}.consumer.group.ConsumerGroupCommand",
    "kafka-groups": f"{_PACKAGE}.GroupsCommand",
    "kafka-get-offsets": f"{_PACKAGE}.GetOffsetShell",
    "kafka-delete-records": f"{_PACKAGE}.DeleteRecordsCommand",
    "kafka-log-dirs": f"{_PACKAGE}.LogDirsCommand",
    "kafka-transactions": f"{_PACKAGE}.TransactionsCommand",
    "kafka-broker-api-versions": f"{_PACKAGE}.BrokerApiVersionsCommand",
    "kafka-producer-perf-test": f"{_PACKAGE}.ProducerPerformance",
    "kafka-consumer-perf-test": f"{_PACKAGE}.ConsumerPerformance",
    "kafka-verifiable-producer": f"{_PACKAGE}.VerifiableProducer",
    "kafka-verifiable-consumer": f"{_PACKAGE}.VerifiableConsumer",
}
"""What the scripts run, by their names without ``.sh``."""


@dataclass(frozen=True)
class Tools:
    """The tools of one Kafka, for a broker, in a directory."""

    jars: Path
    bootstrap: str = ""
    directory: Path = Path()

    def at(self, bootstrap: str, directory: Path) -> Tools:
        """The same for this broker."""
        return replace(self, bootstrap=bootstrap, directory=directory)

    def command(self, name: str, *arguments: str) -> list[str]:
        """What starts a tool, as its script would."""
        options = ("-XX:TieredStopAtLevel=1", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        server = ("--bootstrap-server", self.bootstrap)
        return [tool("java", "Java 17 or newer"), *options, "-cp", f"{self.jars}/*", CLASSES[name], *server, *arguments]

    def run(self, name: str, *arguments: str, sent: str = "") -> str:
        """What a tool prints; ``sent`` is its standard input. Raises ``AssertionError`` when it fails or does not end."""
        try:
            done = subprocess.run(
                self.command(name, *arguments),
                input=sent,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
                cwd=self.directory,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{name} did not end within {_SECONDS:.0f} s: {error.stdout!r}") from error
        assert done.returncode == 0, f"{name} ended with {done.returncode}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def create(self, topic: str, partitions: int = 1) -> None:
        """Makes a topic by kafka-topics."""
        said = self.run("kafka-topics", "--create", "--topic", topic, "--partitions", str(partitions))
        _holds(f"Created topic {topic}." in said, said)


def find() -> Tools:
    """Those of ``$KAFKA_HOME``, of PATH or of Maven. Raises ``MissingError``, which says what to do."""
    tool("java", "Java 17 or newer")
    home = os.environ.get("KAFKA_HOME")
    script = next(filter(None, (shutil.which(f"kafka-topics{end}") for end in ("", ".sh"))), None)
    if home:
        jars = Path(home) / "libs"
        if not jars.is_dir():
            raise MissingError(f"KAFKA_HOME is {home}, where there is no directory libs; unset it, or name a Kafka's")
        return Tools(jars)
    if script is not None:
        beside = Path(script).resolve().parents[1]
        for jars in (beside / "libs", beside / "libexec" / "libs"):
            if jars.is_dir():
                return Tools(jars)
    try:
        return Tools(collected("pom-tools.xml", "kafka-tools"))
    except MissingError as error:
        raise MissingError(
            f"there is no Kafka by KAFKA_HOME, and no kafka-topics in PATH with its jars in ../libs; {error}"
        ) from error


def _holds(holds: bool, said: object) -> None:
    if not holds:
        raise AssertionError(f"a tool said other things than of a Kafka: {said}")


def topics(tools: Tools) -> None:
    """Makes one, lists it, tells its partitions, adds to them, and deletes it."""
    said = tools.run(
        "kafka-topics", "--create", "--topic", "tools-topic", "--partitions", "3", "--config", "retention.ms=60000"
    )
    _holds("Created topic tools-topic." in said, said)
    _holds("tools-topic" in tools.run("kafka-topics", "--list").split(), "its topic is not listed")
    told = tools.run("kafka-topics", "--describe", "--topic", "tools-topic")
    _holds("PartitionCount: 3" in told and "retention.ms=60000" in told, told)
    tools.run("kafka-topics", "--alter", "--topic", "tools-topic", "--partitions", "5")
    told = tools.run("kafka-topics", "--describe", "--topic", "tools-topic")
    _holds("PartitionCount: 5" in told, told)
    tools.run("kafka-topics", "--delete", "--topic", "tools-topic")
    _holds("tools-topic" not in tools.run("kafka-topics", "--list").split(), "its topic is listed still")


def console(tools: Tools) -> None:
    """Lines with keys go in and come out, from the beginning and from an offset."""
    tools.create("tools-console")
    lines = "".join(f"k{number}:v{number}\n" for number in range(50))
    reader = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools.run("kafka-console-producer", "--topic", "tools-console", *reader, sent=lines)
    shown = (
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "key.separator=:",
        "--timeout-ms",
        "20000",
    )
    read = tools.run(
        "kafka-console-consumer", "--topic", "tools-console", "--from-beginning", "--max-messages", "50", *shown
    )
    _holds(read == lines, read)
    place = ("--partition", "0", "--offset", "48", "--max-messages", "2")
    read = tools.run("kafka-console-consumer", "--topic", "tools-console", *place, *shown)
    _holds(read == "k48:v48\nk49:v49\n", read)


def performance(tools: Tools) -> None:
    """ProducerPerformance writes records, which ConsumerPerformance reads, all of them."""
    tools.create("tools-load", 2)
    size = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    said = tools.run("kafka-producer-perf-test", "--topic", "tools-load", *size)
    _holds("20000 records sent" in said, said)
    said = tools.run(
        "kafka-consumer-perf-test", "--topic", "tools-load", "--num-records", "20000", "--timeout", "30000"
    )
    head, figures = (line.split(", ") for line in said.splitlines() if ", " in line and "WARN" not in line)
    _holds(dict(zip(head, figures, strict=False))["data.consumed.in.nMsg"] == "20000", said)


def verifiable(tools: Tools) -> None:
    """VerifiableProducer has each record acknowledged; VerifiableConsumer reads and commits them all, in a group."""
    tools.create("tools-verified", 3)
    said = events(tools.run("kafka-verifiable-producer", "--topic", "tools-verified", "--max-messages", "3000"))
    _holds(sum(each["name"] == "producer_send_success" for each in said) == 3_000, said[-5:])
    group = ("--group-id", "tools-verifying", "--max-messages", "3000", "--reset-policy", "earliest")
    said = events(tools.run("kafka-verifiable-consumer", "--topic", "tools-verified", *group))
    _holds(sum(each["count"] for each in said if each["name"] == "records_consumed") == 3_000, said[-5:])
    committed = [each for each in said if each["name"] == "offsets_committed"]
    _holds(bool(committed) and all(each["success"] for each in committed), committed[-5:])


def events(said: str) -> list[dict[str, Any]]:
    """What a verifiable tool tells, an object a line."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def groups(tools: Tools) -> None:
    """A group is listed and described, its offsets are set back, and it is deleted."""
    tools.create("tools-read")
    tools.run("kafka-console-producer", "--topic", "tools-read", sent="1\n2\n3\n")
    read = ("--topic", "tools-read", "--group", "tools-group", "--from-beginning", "--max-messages", "3")
    tools.run("kafka-console-consumer", *read, "--timeout-ms", "30000")
    group = ("--group", "tools-group")
    _holds("tools-group" in tools.run("kafka-consumer-groups", "--list").split(), "its group is not listed")
    _holds("tools-group" in tools.run("kafka-groups", "--list"), "its group is not among the groups")
    told = tools.run("kafka-consumer-groups", "--describe", *group)
    (row,) = (line.split() for line in told.splitlines() if line.startswith("tools-group"))
    _holds(row[1:6] == ["tools-read", "0", "3", "3", "0"], told)
    told = tools.run("kafka-consumer-groups", "--describe", "--state", *group)
    _holds("Empty" in told, told)
    told = tools.run(
        "kafka-consumer-groups", "--reset-offsets", *group, "--topic", "tools-read", "--to-earliest", "--execute"
    )
    told = tools.run("kafka-consumer-groups", "--describe", *group)
    (row,) = (line.split() for line in told.splitlines() if line.startswith("tools-group"))
    _holds(row[3:6] == ["0", "3", "3"], told)
    told = tools.run("kafka-consumer-groups", "--delete", *group)
    _holds("successful" in told, told)
    _holds("tools-group" not in tools.run("kafka-consumer-groups", "--list").split(), "its group is listed still")


def logs(tools: Tools) -> None:
    """Where partitions end, what they take on disk, and records that are deleted."""
    tools.create("tools-log", 2)
    tools.run("kafka-console-producer", "--topic", "tools-log", sent="1\n2\n3\n4\n")
    ends = dict(line.rsplit(":", 1) for line in tools.run("kafka-get-offsets", "--topic", "tools-log").split())
    _holds(sum(map(int, ends.values())) == 4 and len(ends) == 2, ends)
    full = next(int(place[-1]) for place, end in ends.items() if int(end))
    asked = {"partitions": [{"topic": "tools-log", "partition": full, "offset": 1}], "version": 1}
    (tools.directory / "deleted.json").write_text(json.dumps(asked), encoding="utf-8")
    told = tools.run("kafka-delete-records", "--offset-json-file", "deleted.json")
    _holds("low_watermark: 1" in told, told)
    told = tools.run("kafka-get-offsets", "--topic-partitions", f"tools-log:{full}", "--time", "earliest")
    _holds(told.split()[-1] == f"tools-log:{full}:1", told)
    told = tools.run("kafka-log-dirs", "--describe", "--topic-list", "tools-log")
    _holds(f'"partition":"tools-log-{full}"' in told, told)


def brokers(tools: Tools) -> None:
    """What the broker serves, and its transactions."""
    told = tools.run("kafka-broker-api-versions")
    _holds("Produce(0):" in told and "TxnOffsetCommit(28):" in told, told)
    _holds("TransactionalId" in tools.run("kafka-transactions", "list"), "transactions are not listed")


CASES: Final[Mapping[str, Callable[[Tools], None]]] = {
    "kafka-topics": topics,
    "kafka-console-producer, kafka-console-consumer": console,
    "kafka-producer-perf-test, kafka-consumer-perf-test": performance,
    "kafka-verifiable-producer, kafka-verifiable-consumer": verifiable,
    "kafka-consumer-groups, kafka-groups": groups,
    "kafka-get-offsets, kafka-delete-records, kafka-log-dirs": logs,
    "kafka-broker-api-versions, kafka-transactions": brokers,
}
"""By the scripts that they are."""
