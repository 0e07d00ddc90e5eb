"""What histories know of records beside what groups do with them: producers that number theirs, logs that are kept small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Partition = tuple[str, int]

KEPT = "kept"
"""The topic whose old records are deleted."""
TABLE = "table"
"""The topic whose superseded records are compacted away."""
TRIMMED = (KEPT, TABLE)
"""Topics that lose records by right: their logs are judged by what was written, not by what is left."""


class Failed(NamedTuple):
    """A batch that failed, and with what."""

    producer: str
    partition: Partition
    records: int
    at_s: float
    error: str


class Stored(NamedTuple):
    """A record of a trimmed topic, by whoever tells of it: producer, reader or daemon. A tombstone's value is None."""

    who: str
    at_s: float
    partition: Partition
    offset: int
    key: str
    value: str | None


class Began(NamedTuple):
    """Where a log began when somebody looked."""

    daemon: int
    at_s: float
    partition: Partition
    offset: int


class Left(NamedTuple):
    """What a node has left of a log at the end."""

    start: int
    end: int
    records: tuple[Stored, ...]
    node: str


@dataclass(slots=True)
class RecordFacts:
    """The part of a history that is about records."""

    numbered: dict[str, None] = field(default_factory=dict)
    """Idempotent producers: each of their records is in the log once at most."""
    never_queued: dict[str, None] = field(default_factory=dict)
    """Values whose ``send`` was cancelled before it was done: no daemon ever sees them."""
    failed: list[Failed] = field(default_factory=list)
    sent: dict[str, tuple[str, int, Partition, str]] = field(default_factory=dict)
    """Values of trimmed topics: producer, number, partition and key."""
    acknowledged: list[Stored] = field(default_factory=list)
    written: dict[Partition, dict[int, Stored]] = field(default_factory=dict)
    """What the daemon has put on disk; of several nodes, what was committed of that."""
    copies: dict[tuple[str, Partition], dict[int, Stored]] = field(default_factory=dict)
    """What each of several nodes has put on disk and not cut off again, by the node and the partition."""
    committed: dict[Partition, int] = field(default_factory=dict)
    """The highest of the high watermarks of several nodes."""
    appended: dict[tuple[str, Partition], dict[int, tuple[int, int]]] = field(default_factory=dict)
    """When a node appended batches, by their base offset: the life of the daemon, and its wall clock in ms."""
    seen: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """When a node that did not know when a segment was written to looked at it: its life, and its wall clock in ms."""
    read: list[list[Stored]] = field(default_factory=list)
    """What readers got, from one seek to the next."""
    left: dict[Partition, Left] = field(default_factory=dict)
    """At the node that leads."""
    copies_left: dict[Partition, list[Left]] = field(default_factory=dict)
    """At every node, each of which compacts by itself."""
    began: list[Began] = field(default_factory=list)
    deleted: list[Began] = field(default_factory=list)
    """Where logs began by the answers to DeleteRecords."""
    ever_compacted: dict[str, None] = field(default_factory=dict)
    """Topics that compaction may have touched."""
    kept_too_short: list[str] = field(default_factory=list)
    """Segments that retention deleted although the settings keep them."""
    append_calls: dict[str, int] = field(default_factory=dict)
    """How often something was appended to a log, by its directory."""
    kept_on_full_disk: list[str] = field(default_factory=list)
    """Logs of which everything had expired, and that retention could not cut as the disk was full."""
    misled: list[str] = field(default_factory=list)
    """Answers to fetches that are not what was asked for."""
    refused: dict[Partition, str] = field(default_factory=dict)
    """Partitions that a daemon did not serve as it took them for damaged, and why."""
    mistaken: list[str] = field(default_factory=list)
    """Logs that were opened by what a clean stop had noted as something else than a scan finds."""
    broken: list[str] = field(default_factory=list)
    """Logs with a gap on disk."""
