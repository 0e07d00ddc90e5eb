"""Kafka's Java clients, Streams and Connect as a suite, whose cases are the programs of ``tests/kafka/java``, and Kafka's
command-line tools as another.

Several programs make topics of the same names, so that what one has made is deleted before the next begins.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka.admin

from tests.kafka import java_programs
from tests.kafka.java_programs import KAFKA_VERSION
from tests.kafka.suites import kafka_tools
from tests.kafka.suites.suite import SAID_CHARS, Case

BEFORE_KIP_890: Final = "3.9.1"
"""A release whose producers keep one epoch from transaction to transaction."""
PROGRAMS: Final = (
    ("Clients", "groups", KAFKA_VERSION),
    ("Clients", "transactions", KAFKA_VERSION),
    ("Clients", "administration", KAFKA_VERSION),
    ("Clients", "consumer-protocol", KAFKA_VERSION),
    ("WordCount", "exactly_once_v2", KAFKA_VERSION),
    ("Connect", "files", KAFKA_VERSION),
    ("Clients", "transactions", BEFORE_KIP_890),
    ("WordCount", "exactly_once_v2", BEFORE_KIP_890),
)
"""Program, task, release of Kafka."""
_SECONDS: Final = 30.0


@dataclass(frozen=True)
class JavaSuite:
    """Programs that pass or raise ``AssertionError``, one after the other; see ``Suite``.

    ``programs`` gives their names, and what runs one on jars, against a broker, in a directory of its own.
    """

    name: str
    programs: Callable[[], Iterator[tuple[str, Callable[[str, Path], str]]]]
    daemon_options: tuple[str, ...] = ()
    nodes: int = 1

    def prepare(self) -> Path:
        """See ``Suite``."""
        for _ in self.programs():
            pass  # each has looked for its jars
        return Path(__file__).parent

    def run(self, directory: Path, bootstrap: str, only: str | None) -> Iterator[Case]:
        """See ``Suite``."""
        for name, program in self.programs():
            if re.search(only or ".", name) is None:
                continue
            with topics_taken_back(bootstrap), tempfile.TemporaryDirectory(prefix="cohort-java-") as own:
                try:
                    said = program(bootstrap, Path(own))
                except AssertionError as error:
                    yield Case(name, "failed", str(error)[-SAID_CHARS:])
                else:
                    yield Case(name, "passed", said[-SAID_CHARS:])


@contextmanager
def topics_taken_back(bootstrap: str) -> Iterator[None]:
    """Deletes the topics that there were not before, whatever comes of the block."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    before = _topics(admin)
    try:
        yield
    finally:
        made = [topic for topic in _topics(admin) if topic not in before]
        if made:
            for deleted in admin.delete_topics(made, operation_timeout=_SECONDS).values():
                deleted.result(_SECONDS)


def _topics(admin: confluent_kafka.admin.AdminClient) -> Sequence[str]:
    return [name for name in admin.list_topics(timeout=_SECONDS).topics if not name.startswith("__")]


def _java_programs() -> Iterator[tuple[str, Callable[[str, Path], str]]]:
    for program, task, version in PROGRAMS:
        jars = java_programs.prepare(version)

        def run(bootstrap: str, directory: Path, jars: Path = jars, program: str = program, task: str = task) -> str:
            return java_programs.run(jars, program, task, bootstrap, directory)

        yield f"{program} {task} {version}", run


def _tools() -> Iterator[tuple[str, Callable[[str, Path], str]]]:
    tools = kafka_tools.find()
    for name, case in kafka_tools.CASES.items():

        def run(bootstrap: str, directory: Path, case: Callable[[kafka_tools.Tools], None] = case) -> str:
            case(tools.at(bootstrap, directory))
            return ""

        yield name, run


JAVA: Final = JavaSuite("java", _java_programs)
KAFKA_TOOLS: Final = JavaSuite("kafka-tools", _tools)
