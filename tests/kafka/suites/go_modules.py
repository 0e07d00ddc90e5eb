"""The suites of Go's clients: franz-go and kafka-go, which come with their tests from the Go module proxy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kafka.suites.exceptions import left_out
from tests.kafka.suites.suite import SAID_CHARS, Case, MissingError, Outcome, cache, call, tool

_BUILD_SECONDS: Final = 600.0
_OUTCOMES: Final[Mapping[str, Outcome]] = {"pass": "passed", "fail": "failed", "skip": "skipped"}


@dataclass(frozen=True)
class GoSuite:
    """``go test`` of one package of a module; see ``Suite``. Variables may name ``{bootstrap}``."""

    name: str
    module: str
    version: str
    package: str
    environment: Mapping[str, str]
    tests: str
    """A regular expression of the tests that are run: those that need a broker."""
    test_seconds: int
    daemon_options: tuple[str, ...] = ()
    nodes: int = 1

    def prepare(self) -> Path:
        """See ``Suite``. The module cache is read-only, so the module is copied and its tests built there."""
        go = tool("go", "Go 1.23 or newer from https://go.dev/dl")
        directory = cache() / f"{self.name}-{self.version}"
        built = directory / "suite.test"
        if built.exists():
            return directory
        shutil.rmtree(directory, ignore_errors=True)
        told = call([go, "mod", "download", "-json", f"{self.module}@{self.version}"], cache(), _BUILD_SECONDS)
        source = json.loads(told)["Dir"]
        shutil.copytree(source, directory, copy_function=shutil.copyfile)
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        call([go, "test", "-mod=mod", "-c", "-o", str(built), self.package], directory, _BUILD_SECONDS)
        return directory

    def run(self, directory: Path, bootstrap: str, only: str | None) -> Iterator[Case]:
        """See ``Suite``. Subtests count as cases of their own where they have a name of their own."""
        go = tool("go", "Go 1.23 or newer from https://go.dev/dl")
        skipped = pattern(left_out(self.name))
        variables = {name: value.format(bootstrap=bootstrap) for name, value in self.environment.items()}
        binary = [
            *(str(directory / "suite.test"), "-test.v=test2json", f"-test.run={only or self.tests}"),
            f"-test.timeout={self.test_seconds}s",
            *([f"-test.skip={skipped}"] if skipped else []),
        ]
        where = directory / self.package
        process = subprocess.Popen(
            [go, "tool", "test2json", *binary],
            cwd=where,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        with process:
            yield from _cases(process.stdout)


def pattern(names: Sequence[str]) -> str:
    """As Go's ``-test.skip`` takes it: each part of a name, between slashes, is a regular expression."""
    return "|".join(
        "/".join(f"^{re.escape(part).replace(re.escape('*'), '.*')}$" for part in name.split("/")) for name in names
    )


def _cases(lines: Iterator[str]) -> Iterator[Case]:
    """Of the events of ``go tool test2json``. A test that has no end when the suite ends has failed."""
    said: dict[str, str] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError as error:
            raise MissingError(f"the suite did not start: {line[-SAID_CHARS:]}") from error
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "output":
            said[name] = (said.get(name, "") + event["Output"])[-SAID_CHARS:]
        elif event["Action"] in _OUTCOMES:
            yield Case(name, _OUTCOMES[event["Action"]], said.pop(name, ""))
        else:
            said.setdefault(name, "")
    for name, text in said.items():
        yield Case(name, "failed", f"{text}\nit did not end")


FRANZ_GO: Final = GoSuite(
    name="franz-go",
    module="github.com/twmb/franz-go",
    version="v1.22.2",
    package="./pkg/kgo",
    environment={"KGO_SEEDS": "{bootstrap}", "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "20000"},
    tests=".",
    test_seconds=300,
)
FEW_RECORDS: Final = {"KGO_TEST_RECORDS": "1000"}
"""Its tests of groups move so many records in each of their pipelines, 20,000 else."""
KAFKA_GO: Final = GoSuite(
    name="kafka-go",
    module="github.com/segmentio/kafka-go",
    version="v0.4.51",
    package=".",
    environment={"KAFKA_VERSION": "2.8.1"},
    tests=".",
    test_seconds=420,
    daemon_options=("--kafka-port", "9092", "--kafka-advertised-host", "localhost", "--node-id", "1"),
)
"""Its tests dial localhost:9092, expect to be told this name, and take node 0 for none."""
