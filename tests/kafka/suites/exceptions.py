"""The cases of peers' suites that do not pass, each with its reason: read from ``exceptions.toml``.

A section is a suite. A key is a case, or with ``*`` at its end all that begin so; its value says why it is out of scope. A
reason that begins with ``sometimes:`` is of a case that may pass as well, one with ``not run:`` of a case that the suite is
told to leave out.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kafka.suites.suite import Case

FILE: Final = Path(__file__).with_name("exceptions.toml")
SOMETIMES: Final = "sometimes:"
NOT_RUN: Final = "not run:"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one run of a suite."""

    unexpected: tuple[Case, ...]
    stale: tuple[str, ...]
    """What is named and did not fail."""
    counts: Mapping[str, int]


def named() -> dict[str, dict[str, str]]:
    """Reasons by suite and case."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def named_for(suite: str) -> dict[str, str]:
    """Reasons by case, of those that are run."""
    return {case: reason for case, reason in named().get(suite, {}).items() if not reason.startswith(NOT_RUN)}


def left_out(suite: str) -> tuple[str, ...]:
    """Those that are not run."""
    return tuple(case for case, reason in named().get(suite, {}).items() if reason.startswith(NOT_RUN))


def judged(cases: Iterable[Case], exceptions: Mapping[str, str]) -> Judgement:
    """What is not as the exceptions say. A parent of a failed subtest fails with it and needs no name of its own."""
    seen = list(cases)
    failed = [case for case in seen if case.outcome == "failed"]
    excused = {case.name: key for case in failed if (key := _excuse(case.name, exceptions)) is not None}
    unexpected = tuple(
        case
        for case in failed
        if case.name not in excused and not any(name.startswith(f"{case.name}/") for name in excused)
    )
    used = set(excused.values())
    stale = tuple(key for key, reason in exceptions.items() if key not in used and not reason.startswith(SOMETIMES))
    return Judgement(
        unexpected, stale, Counter({"passed": 0, "failed": 0, "skipped": 0} | Counter(case.outcome for case in seen))
    )


def _excuse(name: str, exceptions: Mapping[str, str]) -> str | None:
    for key in exceptions:
        if name == key or (key.endswith("*") and name.startswith(key[:-1])):
            return key
    return None
