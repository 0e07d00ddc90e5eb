"""The suites of Rust's clients: rskafka and rdkafka, which come with their tests from crates.io."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kafka.suites.suite import SAID_CHARS, Case, MissingError, Outcome, cache, call, tool, unpacked

_BUILD_SECONDS: Final = 2_700.0  # minutes alone; other work on the machine makes many of them
_LINE: Final = re.compile(r"^test (?P<name>\S+)(?: - should panic)? \.\.\. (?P<state>ok|FAILED|ignored)")
_OUTCOMES: Final[Mapping[str, Outcome]] = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}


@dataclass(frozen=True)
class CrateSuite:
    """``cargo test`` of one crate; see ``Suite``. Variables may name ``{bootstrap}``."""

    name: str
    version: str
    sha256: str
    environment: Mapping[str, str]
    seconds: float
    at_once: int
    daemon_options: tuple[str, ...] = ()
    updated: tuple[tuple[str, str], ...] = ()
    """Crates that today's compiler refuses as the suite's lock file names them, and the versions in their place."""
    nodes: int = 1

    def prepare(self) -> Path:
        """See ``Suite``. A toolchain file of the crate's is left out: it would want a compiler of its own."""
        cargo = tool("cargo", "Rust by rustup.rs")
        url = f"https://static.crates.io/crates/{self.name}/{self.name}-{self.version}.crate"
        directory = unpacked(url, self.sha256, cache() / f"{self.name}-{self.version}")
        for left_out in ("rust-toolchain", "rust-toolchain.toml"):
            (directory / left_out).unlink(missing_ok=True)
        for crate, version in self.updated:
            call([cargo, "update", "--package", crate, "--precise", version], directory, _BUILD_SECONDS)
        call([cargo, "test", "--tests", "--no-run"], directory, _BUILD_SECONDS)
        return directory

    def run(self, directory: Path, bootstrap: str, only: str | None) -> Iterator[Case]:
        """See ``Suite``."""
        variables = {name: value.format(bootstrap=bootstrap) for name, value in self.environment.items()}
        filters = [] if only is None else [only]
        try:
            done = subprocess.run(
                ["cargo", "test", "--tests", "--no-fail-fast", "--", f"--test-threads={self.at_once}", *filters],
                cwd=directory,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self.seconds,
                check=False,
            )
            said = done.stdout
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else str(error.stdout)
            yield Case("the suite", "failed", f"it did not end within {self.seconds:.0f} s")
        yield from _cases(said)


def _cases(said: str) -> Iterator[Case]:
    found = False
    for line in said.splitlines():
        match = _LINE.match(line)
        if match is not None:
            found = True
            name = match["name"]
            yield Case(name, _OUTCOMES[match["state"]], _told(said, name))
    if not found:
        raise MissingError(f"the suite did not start: {said[-SAID_CHARS:]}")


def _told(said: str, name: str) -> str:
    """What a test that failed has printed."""
    _, found, behind = said.partition(f"---- {name} stdout ----")
    return re.split(r"\n---- |\n\nfailures:\n", behind, maxsplit=1)[0][-SAID_CHARS:] if found else ""


RSKAFKA: Final = CrateSuite(
    name="rskafka",
    version="0.6.0",
    sha256="849b87417a191e37e16b8893eba8928bbd10e1989e6b57c4f8531549eaa29bdc",
    environment={"TEST_INTEGRATION": "1", "TEST_BROKER_IMPL": "kafka", "KAFKA_CONNECT": "{bootstrap}"},
    seconds=300,
    at_once=4,
    daemon_options=("--kafka-auto-create-topics", "no"),  # as its own brokers are started
    updated=(("rsasl", "2.3.1"),),
)
RDKAFKA: Final = CrateSuite(
    name="rdkafka",
    version="0.39.0",
    sha256="d7956f9ac12b5712e50372d9749a3102f4810a8d42481c5eae3748d36d585bcf",
    environment={"KAFKA_HOST": "{bootstrap}", "RUST_BACKTRACE": "0"},  # what failed, not where, is what is told
    seconds=420,
    at_once=4,
    daemon_options=("--kafka-port", "9092", "--kafka-advertised-host", "localhost", "--default-partitions", "3"),
)
"""Some of its tests dial localhost:9092 whatever they are told."""
