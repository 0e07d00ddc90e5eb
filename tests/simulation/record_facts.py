"""What histories know of records beside what groups do with them: producers that number theirs, logs that are kept small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Partition = tuple[str, int]


class Failed(NamedTuple):
    """A record whose future failed, and with what."""

    producer: str
    partition: Partition
    value: str
    at_s: float
    error: str


@dataclass(slots=True)
class RecordFacts:
    """The part of a history that is about records."""

    numbered: dict[str, None] = field(default_factory=dict)
    """Idempotent producers: each of their records is in the log once at most."""
    never_queued: dict[str, None] = field(default_factory=dict)
    """Values whose ``send`` was cancelled before it was done: no daemon ever sees them."""
    failed: list[Failed] = field(default_factory=list)
