"""High watermarks on disk: hints, which save a new leader from not knowing what is committed. Pure.

A hint may be old, or missing: it is only ever believed to be too low. With it goes when the replica last had everything that
was committed, which tells whether it may have missed tombstones.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

PATH: Final = "high-watermarks"
FORMAT: Final = 1


class Hint(NamedTuple):
    """What is noted of a replica. ``caught_up_ms`` is wall time, None when it is not known."""

    high_watermark: int
    caught_up_ms: int | None = None


Hints = Mapping[tuple[str, int], Hint]
"""By topic id and number of the partition."""


class HintsError(ValueError):
    """The content is not that of a file of hints, or not all of it."""


def encode(hints: Hints) -> bytes:
    """The file: a line with format and checksum, and one line a partition."""
    lines = [
        json.dumps([topic_id, index, hint.high_watermark, hint.caught_up_ms])
        for (topic_id, index), hint in sorted(hints.items())
    ]
    body = "".join(f"{line}\n" for line in lines).encode()
    return f"{FORMAT} {zlib.crc32(body)}\n".encode() + body


def decode(content: bytes) -> dict[tuple[str, int], Hint]:
    """Reads the file. Raises ``HintsError``."""
    first, _, body = content.partition(b"\n")
    if first != f"{FORMAT} {zlib.crc32(body)}".encode():
        raise HintsError(f"{PATH} is damaged, or of another version: the hints in it are not used")
    hints: dict[tuple[str, int], Hint] = {}
    for line in body.decode().splitlines():
        topic_id, index, high_watermark, caught_up_ms = json.loads(line)
        hints[topic_id, index] = Hint(high_watermark, caught_up_ms)
    return hints
