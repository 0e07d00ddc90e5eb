"""The suites of Python's clients, which only their repositories have: given as a checkout, run by pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from tests.kafka.suites.exceptions import left_out
from tests.kafka.suites.suite import SAID_CHARS, Case, MissingError, Outcome, cache, call

_INSTALL_SECONDS: Final = 600.0
_LINE: Final = re.compile(r"^(?P<state>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?P<name>\S+::\S+)")
_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "PASSED": "passed",
    "XFAIL": "passed",
    "XPASS": "passed",
    "SKIPPED": "skipped",
    "FAILED": "failed",
    "ERROR": "failed",
}


@dataclass(frozen=True)
class CheckoutSuite:
    """pytest in a checkout, in a virtual environment of its own; see ``Suite``.

    Variables may name ``{bootstrap}``, ``{host}`` and ``{port}``. This directory is in the path, for our fixtures.
    """

    name: str
    repository: str
    requirements: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    seconds: float
    checkout: Path | None = None
    daemon_options: tuple[str, ...] = ()
    nodes: int = 1

    def at(self, checkout: Path) -> CheckoutSuite:
        """The same in a directory where the repository was checked out."""
        return replace(self, checkout=checkout.resolve())

    def prepare(self) -> Path:
        """See ``Suite``."""
        if self.checkout is None:
            raise MissingError(
                f"{self.name} has its tests in its repository only; --checkout says where {self.repository} is"
            )
        environment = cache() / f"{self.name}-environment"
        if not (environment / "bin" / "pytest").exists():
            call([sys.executable, "-m", "venv", str(environment)], self.checkout, _INSTALL_SECONDS)
            install = (str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
            call([*install, *self.requirements], self.checkout, _INSTALL_SECONDS)
        return self.checkout

    def run(self, directory: Path, bootstrap: str, only: str | None) -> Iterator[Case]:
        """See ``Suite``."""
        address = urlparse(f"//{bootstrap}")
        names = {"bootstrap": bootstrap, "host": address.hostname, "port": address.port}
        variables = {name: value.format(**names) for name, value in self.environment.items()}
        variables["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), str(directory)))
        chosen = [] if only is None else ["-k", only]
        chosen += [f"--deselect={name.removesuffix('*')}" for name in left_out(self.name)]
        command = [str(cache() / f"{self.name}-environment" / "bin" / "pytest"), *self.arguments, "-rA", "-q", *chosen]
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else str(error.stdout)
            yield Case("the suite", "failed", f"{said[-SAID_CHARS:]}\nit did not end within {self.seconds:.0f} s")
            return
        found = [match for line in done.stdout.splitlines() if (match := _LINE.match(line)) is not None]
        if not found:
            raise MissingError(f"the suite did not start: {done.stdout[-SAID_CHARS:]}")
        outcomes: dict[str, Outcome] = {}
        for match in found:  # a case that failed may be told of twice, as may one whose end failed
            if outcomes.get(match["name"]) != "failed":
                outcomes[match["name"]] = _OUTCOMES[match["state"]]
        told = _told(done.stdout)
        for name, outcome in outcomes.items():
            yield Case(name, outcome, told.get(name.rpartition("::")[2], ""))


_SECTION: Final = re.compile(r"^_+ (?:ERROR at (?:setup|teardown) of )?(?:\w+\.)*(\w+(?:\[\S*\])?) _+$", re.M)
_SECTION_ENDS: Final = re.compile(rf"{_SECTION.pattern}|^=+ ", re.M)


def _told(said: str) -> dict[str, str]:
    """What tests that failed have printed, by their names without class and file; in one pass, as it may be megabytes."""
    told: dict[str, str] = {}
    for match in _SECTION.finditer(said):
        end = _SECTION_ENDS.search(said, match.end())
        text = said[match.end() : len(said) if end is None else end.start()]
        told.setdefault(match[1], text[-SAID_CHARS:])
    return told


_REGISTRY: Final = (
    "authlib",
    "attrs",
    "cachetools",
    "httpx",
    "avro",
    "fastavro",
    "requests",
    "certifi",
    "async-timeout",
)
"""What confluent-kafka-python's fixtures import for its schema registry, which is not asked here."""
KAFKA_PYTHON: Final = CheckoutSuite(
    name="kafka-python",
    repository="github.com/dpkp/kafka-python at 3.0.11",
    requirements=(".", "pytest", "pytest-timeout", "mock", "crc32c", "lz4", "zstandard", "python-snappy"),
    # One case takes the 60 s of the client's own bound; its settings would have a case that hangs end all others.
    arguments=("test/integration", "-p", "no:cacheprovider", "--timeout", "120", "--timeout-method", "signal"),
    environment={"KAFKA_URI": "kafka://{bootstrap}", "KAFKA_VERSION": "4.0.0", "KAFKA_ROOT": "/tmp"},
    seconds=600,
    daemon_options=("--default-partitions", "4", "--kafka-min-session-timeout-ms", "3000"),
)
# Of aiokafka those files whose tests use a broker; the others test the client alone.
AIOKAFKA: Final = CheckoutSuite(
    name="aiokafka",
    repository="github.com/aio-libs/aiokafka at v0.14.0",
    requirements=(
        "aiokafka[lz4,snappy,zstd]==0.14.0",
        "pytest",
        "pytest-asyncio<0.24",
        "pytest-timeout",
        "docker",
        "cython",
    ),
    arguments=(
        *(f"tests/test_{part}.py" for part in ("producer", "consumer", "coordinator", "client", "conn", "fetcher")),
        *(
            f"tests/test_{part}.py"
            for part in ("pep492", "transactional_producer", "transactional_consumer", "admin", "sender", "sasl")
        ),
        *("-p", "aiokafka_fixtures", "--docker-image", "cohort:2.8.1"),
        *("-p", "no:cacheprovider", "--timeout", "60"),
    ),
    environment={"COHORT_KAFKA_HOST": "{host}", "COHORT_KAFKA_PORT": "{port}", "AIOKAFKA_NO_EXTENSIONS": "1"},
    seconds=600,
    daemon_options=("--default-partitions", "2"),
)
CONFLUENT: Final = CheckoutSuite(
    name="confluent-kafka-python",
    repository="github.com/confluentinc/confluent-kafka-python at v2.15.0",
    requirements=("confluent-kafka==2.16.1", "pytest", "pytest-timeout", "pytest-asyncio", "trivup", *_REGISTRY),
    arguments=(
        *(f"tests/integration/{part}" for part in ("admin", "consumer", "producer")),
        *("-p", "no:cacheprovider", "--timeout", "90"),
    ),
    environment={"BROKERS": "{bootstrap}"},
    seconds=600,
    daemon_options=("--default-partitions", "4"),
)
