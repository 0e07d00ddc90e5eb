"""What is printed: lines for people, or the same as JSON objects, one a line; and a progress line on a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, TextIO

from protocol.names import printable

_REDRAW_S: Final = 0.2
_CELLS: Final = 30
_UTF8_BYTES: Final = 4
"""Of the longest character."""
_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


class Output:
    """Where results go; ``stream`` is the standard output."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    def tell(self, kind: str, text: str, fields: Mapping[str, Any]) -> None:
        """One line: ``text`` for people, with what a terminal would obey spelled out, or an object with ``fields``."""
        if self._as_json:
            print(json.dumps({"kind": kind, **plain(fields)}, ensure_ascii=False), file=self._stream)
        else:
            print(printable(text, keep="\n"), file=self._stream)


class Progress:
    """How many of ``total`` bytes are read: a line that is drawn anew, and only on a terminal."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream = stream
        self._total = total
        self._done = 0
        self._label = ""
        self._drawn_s: float | None = None
        self.enabled = stream.isatty()

    def label(self, text: str) -> None:
        """What is read from now on."""
        self._label = printable(text)

    def advance(self, length: int) -> None:
        """So many bytes more are read."""
        self._done += length
        if not self.enabled:
            return
        now = time.perf_counter()
        if self._drawn_s is None or now >= self._drawn_s + _REDRAW_S:
            self._drawn_s = now
            share = min(1.0, self._done / self._total) if self._total else 1.0
            bar = "=" * int(share * _CELLS)
            self._stream.write(f"\r\033[K[{bar:<{_CELLS}}] {share:4.0%} of {size_text(self._total)} {self._label}")
            self._stream.flush()

    def clear(self) -> None:
        """Takes the line away, so that something else can be printed there."""
        if self._drawn_s is not None:
            self._drawn_s = None
            self._stream.write("\r\033[K")
            self._stream.flush()


def plain(value: Any) -> Any:
    """A value as JSON has it: records as objects, bytes as text or, where they are no UTF-8, as ``{"hex": ...}``."""
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain(content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [plain(content) for content in value]
    if isinstance(value, bytes | memoryview):
        return _text(bytes(value))
    return value


def _text(content: bytes) -> Any:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}


def time_text(ms: int) -> str:
    """A time in milliseconds since 1970 for people, UTC; a dash for none."""
    if ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def size_text(size: int) -> str:
    """A number of bytes for people."""
    for unit, factor in _SIZES:
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,} bytes"


def counted(number: int, what: str, many: str = "") -> str:
    """A number with its noun: ``1 record``, ``1,200 records``."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def content_text(content: bytes | None, max_bytes: int) -> str:
    """Bytes of a record for people: text in quotes, else hexadecimal digits; cut behind ``max_bytes``, 0 for never."""
    if content is None:
        return "null"
    shown = content[:max_bytes] if max_bytes else content
    try:
        text = json.dumps(shown.decode(), ensure_ascii=False)
    except UnicodeDecodeError as error:
        if len(shown) < len(content) and len(shown) - error.start < _UTF8_BYTES:
            shown = shown[: error.start]  # the cut goes through a character
            text = json.dumps(shown.decode(), ensure_ascii=False)
        else:
            text = f"0x{shown.hex()}"
    left = len(content) - len(shown)
    return f"{text} and {counted(left, 'byte')} more" if left else text
