"""The parser of commands: argparse with help that fits the terminal and suggestions for what was mistyped."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

_MAX_COLUMNS: Final = 100
"""Longer lines are hard to read, however wide the terminal is."""
_MIN_COLUMNS: Final = 40


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Folds text between words: options, names and paths stay whole so that they can be copied.

    A line of a description that begins with blanks (a table, an example) is folded under its own last column; other lines of
    a paragraph are filled. Examples stay as they are.
    """

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, width=max(_MIN_COLUMNS, min(_MAX_COLUMNS, columns)) - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _fold(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return "\n\n".join(_paragraph(part, width) for part in text.split("\n\n"))


def _paragraph(text: str, width: int) -> str:
    lines: list[str] = []
    words: list[str] = []
    for line in [*text.splitlines(), " "]:
        if not line.startswith(" "):
            words.append(line)
            continue
        lines += _fold(" ".join(words), width)
        words = []
        lines += _table_row(line, width) if line.strip() else []
    return "\n".join(lines)


def _table_row(line: str, width: int) -> list[str]:
    """A row of blanks, a name, blanks and a text: what does not fit goes below the text."""
    name, gap, text = line.strip().partition("  ")
    left = len(line) - len(line.lstrip())
    column = left + len(name) + len(gap) + len(text) - len(text.lstrip())
    folded = _fold(text.strip(), max(20, width - column))
    return [f"{' ' * left}{name}".ljust(column) + (folded[0] if folded else "")] + [
        " " * column + row for row in folded[1:]
    ]


def _fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class CommandParser(argparse.ArgumentParser):
    """Names what was probably meant where a command or an option is not known. Ends with exit status 2, as argparse does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **settings})
        self.set_defaults(parser=self)

    def parse_command(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """The options in ``arguments`` (default: those of the process). Ends the program when there are others."""
        options, left = self.parse_known_args(arguments)
        if left:
            options.parser.refuse(left)
        return options

    def refuse(self, left: Sequence[str]) -> NoReturn:
        """Ends with what is wrong with the arguments in ``left``, which no part of this command takes."""
        option = next((each for each in left if each.startswith("-")), None)
        if option is None:
            self.error(f"{left[0]} is one argument too many")
        name = option.partition("=")[0]
        close = _closest(name, self._option_string_actions)
        self.error(f"{name} is no option here" + (f"; did you mean {close}?" if close else ""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            close = _closest(value, action.choices)
            meant = f"; did you mean {close!r}?" if close else "."
            raise argparse.ArgumentError(None, f"{value!r} is no command{meant} There are {', '.join(action.choices)}")
        super()._check_value(action, value)


def _closest(text: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(text, list(known), 1)), None)
