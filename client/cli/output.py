"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

from client.cli.progress import BesideProgress
from protocol.names import printable

_UNITS: Final = ((86_400, 10**9, "d"), (3600, 24, "h"), (60, 60, "min"), (1, 60, "s"))


def local_time(ms: int, timespec: str = "seconds") -> str:
    """A record's time with its offset from UTC; of one that no calendar has, its milliseconds as they are."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", timespec)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


class Output:
    """Where results go. Results are written to ``stream`` (default stdout), notes for people to stderr."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        self.as_json = as_json
        self._stream = stream or sys.stdout

    def object(self, value: Any) -> None:
        """One JSON value on one line, flushed so that the reader of a pipe sees it at once."""
        print(json.dumps(value, ensure_ascii=False), file=self._stream, flush=True)

    def line(self, text: str = "") -> None:
        """One line of text, or several, flushed. Names are any text: what a terminal would obey is spelled out."""
        print(printable(text, keep="\n"), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """One line for people, on stderr: it does not mix with results that are piped on."""
        print(printable(text, keep="\n"), file=BesideProgress(), flush=True)

    def result(self, value: Mapping[str, Any], text: str) -> None:
        """The result of a command: ``value`` as JSON, or ``text`` for people."""
        if self.as_json:
            self.object(value)
        else:
            self.line(text)

    def rows(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str) -> None:
        """A JSON array of ``rows``, or a table of their ``columns``; ``empty`` is what people read when there are none."""
        listed = list(rows)
        if self.as_json:
            self.object(listed)
        elif listed:
            self.line(table(columns, [[row[column] for column in columns] for row in listed]))
        else:
            self.line(empty)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with a heading: numbers to the right, all else to the left, ``None`` as a dash."""
    shown = [[_shown(cell) for cell in row] for row in rows]
    heading = [column.upper().replace("_", " ") for column in columns]
    widths = [max(map(len, column)) for column in zip(heading, *shown, strict=True)]
    numeric = [all(isinstance(cell, int | float | None) for cell in column) for column in zip(*rows, strict=True)]
    numeric = numeric or [False] * len(columns)

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(heading), *map(line, shown)])


def counted(number: int, what: str) -> str:
    """A number with its noun: ``1 record``, ``1,200 records``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def age_text(age_ms: int) -> str:
    """A length of time for people, in its two largest units: ``42 s``, ``3 min 5 s``, ``2 h 4 min``, ``3 d 1 h``."""
    seconds = max(0, age_ms) // 1000
    parts = [f"{seconds // size % most} {unit}" for size, most, unit in _UNITS if seconds >= size]
    return " ".join(parts[:2]) or "0 s"


def number_ranges(numbers: Iterable[int]) -> str:
    """Numbers for people: ``0-3 7`` for 0, 1, 2, 3 and 7; a dash for none."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts) or "-"


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return printable(str(cell))
