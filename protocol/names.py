"""Names as both sides see them: what a topic may be called, and how any text is shown to people. Pure."""

from __future__ import annotations

import re
from typing import Final

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows it: 1 to 249 ASCII letters, digits, '.', '_' or '-', and not '.' or '..'."""
    return _TOPIC.fullmatch(name) is not None


def printable(text: str, keep: str = "") -> str:
    """``text`` with what a terminal would obey instead of showing it spelled out, save the characters in ``keep``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)
