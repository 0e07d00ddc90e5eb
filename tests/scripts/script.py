"""The text of a script: reading it, comparing it with what happened, writing it anew. README.md describes the format."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent

_STEP: Final = re.compile(r"([\d+smhd]*\d[\d+smhd]*)\s+(\S.*)")
_EXPECTATION: Final = re.compile(r"\s+(->|\+\+|==|=>)\s+(.*?)(?:\s+because\s+\"(.*)\")?")
_INDENT: Final = " " * 7
_UNITS_MS: Final = {"": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class ScriptError(Exception):
    """A script that cannot be read, or that does not say what happens. The text names file and line."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One line below a step: ``kind`` is "->" (answer), "++" (written to the log) or "==" (the group's state afterwards)."""

    kind: str
    text: str
    because: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Step:
    """What is done at a time, and what is expected of it."""

    line: int
    time_ms: int
    words: tuple[str, ...]
    source: str
    expected: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing a step brought about, and the reason that was given for it."""

    kind: str
    text: str
    reason: str = ""


@dataclass(slots=True)
class Script:
    """A whole script. ``config`` and ``given`` are the words of the lines of that name."""

    path: Path
    lines: list[str]
    steps: list[Step] = field(default_factory=list)
    config: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``area/what``: how the README and tests call it."""
        return name_of(self.path)

    @property
    def settings(self) -> dict[str, int]:
        """The configuration it asks for."""
        return {name: int(value) for name, _, value in (word.partition("=") for word in self.config)}

    @property
    def expectations(self) -> list[Expectation]:
        """All lines that can be wrong."""
        return [expectation for step in self.steps for expectation in step.expected]

    def without(self, line: int) -> Script:
        """The same script with one expectation left out."""
        steps = [
            replace(step, expected=tuple(expected for expected in step.expected if expected.line != line))
            for step in self.steps
        ]
        return replace(self, steps=steps)


def name_of(path: Path) -> str:
    """``area/what`` of a script."""
    return f"{path.parent.name}/{path.stem}"


def _time_ms(text: str) -> int:
    """Milliseconds in ``6000``, ``6s``, ``7d+10``."""
    parts = [re.fullmatch(r"(\d+)([smhd]?)", part) for part in text.split("+")]
    if None in parts:
        raise ScriptError(f"{text} is no time")
    return sum(int(part[1]) * _UNITS_MS[part[2]] for part in parts if part is not None)


def parse(path: Path) -> Script:
    """Reads a script. Raises ``ScriptError`` for a line that means nothing."""
    script = Script(path, path.read_text(encoding="utf-8").splitlines())
    for number, line in enumerate(script.lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if match := _STEP.fullmatch(line):
            step = Step(number, _time_ms(match[1]), tuple(shlex.split(match[2])), line)
            if script.steps and step.time_ms < script.steps[-1].time_ms:
                raise ScriptError(f"{script.name}:{number}: time goes back to {step.time_ms}")
            script.steps.append(step)
        elif (match := _EXPECTATION.fullmatch(line)) and script.steps:
            expectation = Expectation(match[1], " ".join(match[2].split()), match[3], number)
            last = script.steps[-1]
            script.steps[-1] = replace(last, expected=(*last.expected, expectation))
        elif line.startswith("config "):
            script.config += shlex.split(line)[1:]
        elif line.startswith("given "):
            script.given += shlex.split(line)[1:]
        else:
            raise ScriptError(f"{script.name}:{number}: neither a step nor an expectation: {line!r}")
    return script


def compare(script: Script, step: Step, happened: list[Happened]) -> None:
    """Raises ``ScriptError`` unless exactly what was expected happened, in that order."""
    where = f"{script.name}:{step.line}: {step.source.strip()}"
    told = "\n".join(f"    {one.kind} {one.text} because {one.reason!r}" for one in happened) or "    nothing"
    for expected, actual in zip(step.expected, happened, strict=False):
        if (expected.kind, expected.text) != (actual.kind, " ".join(actual.text.split())):
            raise ScriptError(
                f"{where}\n  line {expected.line} expects\n    {expected.kind} {expected.text}\n  happened\n{told}"
            )
        if expected.because is not None and expected.because not in actual.reason:
            raise ScriptError(
                f"{where}\n  line {expected.line} expects the reason {expected.because!r}\n  happened\n{told}"
            )
    if len(step.expected) != len(happened):
        raise ScriptError(f"{where}\n  expected are {len(step.expected)} lines\n  happened\n{told}")


def rewritten(script: Script, outcomes: list[list[Happened]]) -> str:
    """The script with what happened in place of what was expected; reasons that hold stay, at the first line they fit."""
    dropped = {expectation.line for expectation in script.expectations}
    by_line = {step.line: (step, happened) for step, happened in zip(script.steps, outcomes, strict=True)}
    text: list[str] = []
    for number, line in enumerate(script.lines, start=1):
        if number not in dropped:
            text.append(line)
        if number in by_line:
            step, happened = by_line[number]
            reasons = [expected.because for expected in step.expected if expected.because]
            for one in happened:
                kept = next((reason for reason in reasons if reason in one.reason), None)
                if kept:
                    reasons.remove(kept)
                text.append(f"{_INDENT}{one.kind} {one.text}" + (f' because "{kept}"' if kept else ""))
    return "\n".join(text) + "\n"
