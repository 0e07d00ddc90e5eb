"""Names as both sides see them: what a topic may be called, and how any text is shown to people. Pure."""

from __future__ import annotations

import re
from typing import Final

MAX_NAME_CHARS: Final = 120
"""Names are cut to this many characters in sentences for people."""

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows it: 1 to 249 ASCII letters, digits, '.', '_' or '-', and not '.' or '..'."""
    return _TOPIC.fullmatch(name) is not None


def printable(text: str, keep: str = "") -> str:
    """``text`` with what a terminal would obey instead of showing it spelled out, save the characters in ``keep``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def clipped(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """``text``, cut so that it has at most ``max_chars`` characters.

    Names are any text. What a terminal would obey instead of showing it is spelled out: a sentence stays one line of a log.
    """
    return printable(text if len(text) <= max_chars else text[: max_chars - 3] + "...")
