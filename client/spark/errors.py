"""What can go wrong between Spark and Cohort, beyond what any client meets; and what a failed query says in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from client.errors import CohortError

_OURS: Final = re.compile(r"^client(?:\.\w+)*\.(\w+): (.*)$")
"""The last line of a Python traceback that ends with an error of this package: its class and its text."""
_ANY: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (.*)$")
_PROXIES: Final = frozenset({"PythonException", "Py4JJavaError", "Py4JError", "SparkException"})
"""Errors that only say that there was another one."""
_NOTES_END: Final = re.compile(r"^(?:\s|===|SQLSTATE|Traceback|During handling|The above exception|JVM stacktrace|$)")
_MOST_CHARS: Final = 2000


class OptionsError(ValueError):
    """Options of ``format("cohort")`` that make no sense; the text names every one of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__('options of format("cohort"): ' + "; ".join(faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type[OptionsError], tuple[tuple[str, ...]]]:
        return OptionsError, (self.faults,)


class CheckpointError(ValueError):
    """Offsets in a checkpoint that this source did not write, or that a later release wrote."""


class DataLossError(CohortError):
    """Records that a query was to read are gone, and ``failOnDataLoss`` is true."""


class QueryFencedError(CohortError):
    """Another source or query has taken over the group of this one, which must not go on."""


def failure_reason(error: BaseException) -> str:
    """Why a query failed, in one line of at most 2,000 characters: for programs that show it to people.

    Spark wraps what its Python workers raise in the text of its own exceptions, traceback, plan and offsets included:
    a hundred lines and more. This is the innermost error in that text, those of this package before others, with its
    notes; and for an exception without such a text its first line.
    """
    lines = str(error).splitlines()
    for pattern in (_OURS, _ANY):
        found = [index for index, line in enumerate(lines) if _is_error(pattern, line)]
        if found:
            return _with_notes(lines, found[-1], pattern)[:_MOST_CHARS]
    first = next((line.strip() for line in lines if line.strip()), "")
    return (first or type(error).__name__)[:_MOST_CHARS]


def _is_error(pattern: re.Pattern[str], line: str) -> bool:
    match = pattern.match(line)
    return match is not None and match[1] not in _PROXIES


def _with_notes(lines: Sequence[str], index: int, pattern: re.Pattern[str]) -> str:
    """The text of the error at ``index`` and the notes behind it; with its class if it is not one of ours."""
    match = pattern.match(lines[index])
    assert match is not None, "only lines that match are chosen"
    said = [match[2] if pattern is _OURS else f"{match[1]}: {match[2]}"]
    for line in lines[index + 1 :]:
        if _NOTES_END.match(line):
            break
        said.append(line.strip())
    return "; ".join(part for part in said if part)
