"""A progress bar on stderr, drawn only when stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Self, TextIO

_REDRAW_S: Final = 0.1
_BAR_CELLS: Final = 30


_shown: Progress | None = None
"""The line that is on the terminal now."""


class BesideProgress:
    """A stream for log lines, on stderr by default: takes a progress line away before something is written there.

    The progress line comes back with its next update.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def write(self, text: str) -> int:
        """Writes ``text``, on a line of its own."""
        if _shown is not None:
            _shown.clear()
        return self._stream.write(text)

    def flush(self) -> None:
        """Flushes the stream below."""
        self._stream.flush()


class Progress:
    """One line that is redrawn at most ten times a second. Use as a context manager: the line goes away at the end.

    ``total`` is how much there is to do, in whatever unit ``update`` counts (``None`` when that is not known: then there
    is a count and no bar). ``clock`` gives seconds, as the running loop's ``time`` does.
    """

    def __init__(
        self, label: str, total: int | None, *, clock: Callable[[], float], stream: TextIO | None = None
    ) -> None:
        self._label = label
        self._total = total
        self._clock = clock
        self._stream = stream or sys.stderr
        self.enabled = self._stream.isatty()
        self._drawn_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clear()

    def update(self, done: int, note: str = "") -> None:
        """Shows that ``done`` of the total is done, with a few words beside it."""
        now = self._clock()
        if not self.enabled or (self._drawn_at is not None and now < self._drawn_at + _REDRAW_S):
            return
        global _shown
        self._drawn_at = now
        _shown = self
        self._stream.write(f"\r\033[K{self._line(done, note)}")
        self._stream.flush()

    def clear(self) -> None:
        """Takes the line away, so that something else can be printed there."""
        global _shown
        if self._drawn_at is not None:
            self._drawn_at = _shown = None
            self._stream.write("\r\033[K")
            self._stream.flush()

    def _line(self, done: int, note: str) -> str:
        if not self._total:
            return f"{self._label} {note or f'{done:,}'}"
        share = min(1.0, done / self._total)
        bar = "=" * int(share * _BAR_CELLS)
        return f"{self._label} [{bar:<{_BAR_CELLS}}] {share:4.0%} {note}".rstrip()
