"""The suite of librdkafka, which the crate ``rdkafka-sys`` carries: one runner in C, each of whose tests is a case here."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kafka.suites.suite import SAID_CHARS, Case, Outcome, cache, call, tool, unpacked

_BUILD_SECONDS: Final = 2_700.0  # minutes alone; other work on the machine makes many of them
_CASE_SECONDS: Final = 240.0
_AT_ONCE: Final = 3
_PATIENCE: Final = 2
"""The suite's own bounds are multiplied by this: they are for a machine that does nothing else."""
_RESULT: Final = re.compile(
    r"\|\s*(?P<name>\d{4}_\w+)\s*\|\s*(?P<state>PASSED|FAILED|SKIPPED|RUNNING|DID_NOT_RUN)\s*\|"
)
_OUTCOMES: Final[dict[str, Outcome]] = {"PASSED": "passed", "SKIPPED": "skipped"}
_BY_SUBTESTS: Final = {"0081": ("0081-admin.c", "do_test_apis")}
"""Tests that end at the first of their sub-tests that fails: of these each sub-test is a case, "number/sub-test". By number
the source file, and the function in it that calls them."""
_SUBTEST: Final = re.compile(r"\bdo_test_\w+(?=\()")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class LibrdkafkaSuite:
    """``test-runner`` of one release; see ``Suite``. Each case has a process of its own, which is killed when it hangs."""

    name: str = "librdkafka"
    version: str = "4.10.0+2.12.1"
    sha256: str = "e234cf318915c1059d4921ef7f75616b5219b10b46e9f3a511a15eb4b56a3f77"
    kafka_version: str = "3.4.0"
    daemon_options: tuple[str, ...] = ("--default-partitions", "4")
    nodes: int = 1
    cases: str = "."
    """A regular expression of the numbers of those that are run."""

    @property
    def is_built(self) -> bool:
        """Whether ``prepare`` has nothing to do: it takes minutes."""
        return any(cache().glob(f"librdkafka-{self.version}/*/librdkafka/tests/test-runner"))

    def prepare(self) -> Path:
        """See ``Suite``."""
        for program, package in (("make", "make"), ("cc", "a C compiler"), ("c++", "a C++ compiler")):
            tool(program, package)
        url = f"https://static.crates.io/crates/rdkafka-sys/rdkafka-sys-{self.version}.crate"
        directory = unpacked(url, self.sha256, cache() / f"librdkafka-{self.version}") / "librdkafka"
        if not (directory / "tests" / "test-runner").exists():
            without = ("--disable-ssl", "--disable-gssapi", "--disable-curl")
            call(["./configure", *without], directory, _BUILD_SECONDS)
            call(["make", f"-j{os.cpu_count()}", "libs"], directory, _BUILD_SECONDS)
            call(["make", f"-j{os.cpu_count()}", "-C", "tests", "test-runner"], directory, _BUILD_SECONDS)
        return directory / "tests"

    def run(self, directory: Path, bootstrap: str, only: str | None) -> Iterator[Case]:
        """See ``Suite``. Those that need no broker ("local") are run too: they take seconds."""
        conf = directory / "test.conf"
        settings = {"bootstrap.servers": bootstrap, "test.topic.random": "true", "test.timeout.multiplier": _PATIENCE}
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        numbers = sorted({path.name[:4] for path in directory.glob("0*-*.c*")})  # from 8000 on are tools for people
        wanted = [number for number in numbers if re.search(self.cases, number) and re.search(only or ".", number)]
        parts = [(number, part) for number in wanted for part in _subtests(directory, number)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for cases in pool.map(lambda part: self._case(directory, *part), parts):
                yield from cases

    def _case(self, directory: Path, number: str, subtest: str) -> list[Case]:
        """Runs a test, or where ``subtest`` is not empty that part of it."""
        name = f"{number}/{subtest}" if subtest else number
        variables = {
            "TESTS": number,
            **({"SUBTESTS": f"{subtest}:"} if subtest else {}),
            "TEST_KAFKA_VERSION": self.kafka_version,
            "LD_LIBRARY_PATH": f"{directory.parent / 'src'}:{directory.parent / 'src-cpp'}",
        }
        try:
            done = subprocess.run(
                ["./test-runner", "-Q", "-p1"],
                cwd=directory,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                errors="replace",
                text=True,
                timeout=_CASE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else str(error.stdout)
            return [Case(name, "failed", f"{said[-SAID_CHARS:]}\nit did not end within {_CASE_SECONDS:.0f} s")]
        said = _COLOURS.sub("", done.stdout)
        found = [
            Case(name if subtest else match["name"], _OUTCOMES.get(match["state"], "failed"), said[-SAID_CHARS:])
            for match in _RESULT.finditer(said)
            if match["name"].startswith(number)
        ]
        if not found:
            return [Case(name, "failed" if done.returncode else "skipped", said[-SAID_CHARS:])]
        return found


def _subtests(directory: Path, number: str) -> list[str]:
    """The names of the parts that a test is run in; one without a name where it is run as a whole."""
    if number not in _BY_SUBTESTS:
        return [""]
    file, function = _BY_SUBTESTS[number]
    source = (directory / file).read_text(encoding="utf-8")
    begin = source.index(f"static void {function}(")
    return list(
        dict.fromkeys(_SUBTEST.findall(source, begin + len(f"static void {function}("), source.index("\n}", begin)))
    )


LIBRDKAFKA: Final = LibrdkafkaSuite()
LIBRDKAFKA_CLUSTER: Final = LibrdkafkaSuite(name="librdkafka-cluster", nodes=3, cases="^0103$")
"""Its transactions, whose topics have three replicas."""
