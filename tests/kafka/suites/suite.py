"""What a peer's test suite is to us: a command of another project that judges a Kafka broker, and cases with their outcomes.

The suites come from their registries at pinned versions and are kept outside of the tree; nothing of them is copied here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

Outcome = Literal["passed", "failed", "skipped"]

DOWNLOAD_SECONDS: Final = 120.0
SAID_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a suite; ``said`` is the end of what it printed."""

    name: str
    outcome: Outcome
    said: str = ""


class MissingError(Exception):
    """A suite cannot be run here; the text says what is missing and what to do."""


class Suite(Protocol):
    """A suite that is run by ``python -m tests.kafka.suites NAME``."""

    @property
    def name(self) -> str:
        """Of the command line, and of its section in ``exceptions.toml``."""

    @property
    def daemon_options(self) -> Sequence[str]:
        """What ``cohortd`` is started with for it, beside its Kafka port."""

    @property
    def nodes(self) -> int:
        """How many of them it needs, as one cluster."""

    def prepare(self) -> Path:
        """Downloads and builds it if that was not done before; its directory. Raises ``MissingError``."""

    def run(self, directory: Path, bootstrap: str, only: str | None) -> Iterator[Case]:
        """Runs it against a broker at ``bootstrap`` ("host:port"), or only the cases that match ``only``."""


def cache() -> Path:
    """Where suites are kept: ``~/.cache/aiocohort/suites``, or below ``$XDG_CACHE_HOME``."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = base / "aiocohort" / "suites"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def tool(name: str, package: str) -> str:
    """The path of a program. Raises ``MissingError``."""
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"{name} is not in PATH; install {package}")
    return found


def call(command: Sequence[str], directory: Path, seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """What a command of a preparation prints. Raises ``MissingError`` when it fails or takes longer."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"{' '.join(command)} took longer than {seconds:.0f} s") from error
    if done.returncode:
        raise MissingError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-SAID_CHARS:]}")
    return done.stdout


def unpacked(url: str, sha256: str, directory: Path) -> Path:
    """The one directory that an archive holds, downloaded and unpacked once. Raises ``MissingError``."""
    done = directory / "unpacked"
    if not done.exists():
        directory.mkdir(parents=True, exist_ok=True)
        archive = directory / "archive"
        try:
            with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as answer:
                archive.write_bytes(answer.read())
        except OSError as error:
            raise MissingError(f"{url} cannot be had: {error}") from error
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != sha256:
            raise MissingError(f"{url} has the SHA-256 {found}, expected {sha256}")
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        archive.unlink()
        done.touch()
    inside = [path for path in directory.iterdir() if path.is_dir()]
    if len(inside) != 1:
        raise MissingError(f"{directory} should hold one directory; remove it and try again")
    return inside[0]
