"""How the demonstration speaks: a time line for people, or one JSON object an event."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from client.cli.output import Output, number_ranges

_WIDTH: Final = 92
_INDENT: Final = 10
_STYLES: Final = {"bold": "1", "red": "1;31", "green": "1;32", "dim": "2"}


class Narrator:
    """Tells what happens, each event with the seconds since the beginning. ``clock`` gives seconds."""

    def __init__(self, output: Output, clock: Callable[[], float]) -> None:
        self._output = output
        self._clock = clock
        self._began = clock()
        self._styled = not output.as_json and sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    def tell(self, event: str, text: str, /, style: str = "", **details: Any) -> None:
        """One event: ``text`` for people, ``details`` for programs."""
        if self._output.as_json:
            self._output.object({"event": event, "at_s": round(self.seconds(), 3), **details})
            return
        lines = textwrap.wrap(text, _WIDTH - _INDENT, break_on_hyphens=False, break_long_words=False)
        stamp = f"{self.seconds():6.2f} s"
        for number, line in enumerate(lines):
            self._output.line(f"{stamp if number == 0 else '':{_INDENT - 2}}  {self._style(line, style)}")

    def ownership(self, owners: Mapping[str, Sequence[int]], partitions: int) -> None:
        """The partitions of each member, a line a member and a cell a partition; programs have it in the event's details."""
        if self._output.as_json:
            return
        width = max(map(len, owners), default=0)
        for name, owned in owners.items():
            cells = "".join("#" if number in owned else "." for number in range(partitions))
            self._output.line(f"{'':{_INDENT}}{name:<{width}}  {cells}  {number_ranges(owned)}")

    def figures(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """The final table: a name, a figure and a remark in each row."""
        if self._output.as_json:
            return
        names = max(len(row[0]) for row in rows)
        figures = max(len(row[1]) for row in rows)
        for name, figure, remark in rows:
            self._output.line(f"  {name:<{names}}  {figure:>{figures}}  {self._style(remark, 'dim')}".rstrip())

    def blank(self) -> None:
        """An empty line, for people only."""
        if not self._output.as_json:
            self._output.line()

    def _style(self, text: str, style: str) -> str:
        return f"\033[{_STYLES[style]}m{text}\033[0m" if style and self._styled and text else text
