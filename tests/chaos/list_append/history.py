"""A run as the checks read it: transactions with what they sent, read and were told, and what is in the log at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tests.chaos.ledger import Entry, read

UNKNOWN: Final = float("inf")

Outcome = Literal["committed", "aborted", ""]
Reads = dict[str, list[tuple[int, str]]]
"""Offsets and values by partition, in the order they were handed out."""


@dataclass(slots=True)
class Poll:
    """What one poll of a transaction returned, and when. ``reader`` is new after each start of a consumer."""

    reader: str
    at: float
    reads: Reads


@dataclass(slots=True)
class Attempt:
    """One transaction as its worker saw it.

    ``sent`` has each value with its partition, ``stored`` the offset of those acknowledged. ``ending`` is when commit or
    abort was called, ``told`` what came of it, "" when the worker was not told.
    """

    name: str
    sent: dict[str, str] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    ending: float = UNKNOWN
    wanted: Outcome = ""
    told: Outcome = ""


@dataclass(slots=True)
class History:
    """All that happened. ``log`` is what a reader of committed records finds at the end; ``open_ends`` the partitions whose
    last stable offset is not their end although every timeout is over: partition, last stable offset, end."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    log: Reads = field(default_factory=dict)
    open_ends: list[tuple[str, int, int]] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    errors: list[tuple[str, str, str]] = field(default_factory=list)
    fenced: int = 0
    faults: list[str] = field(default_factory=list)

    def writer_of(self) -> dict[str, Attempt]:
        """The transaction of each value that was sent."""
        return {value: attempt for attempt in self.attempts.values() for value in attempt.sent}

    def seen(self) -> dict[str, list[tuple[str, str, int]]]:
        """By value: who found it, in which partition, at which offset; the reader at the end is ""."""
        found: dict[str, list[tuple[str, str, int]]] = {}
        for reader, reads in self.all_reads():
            for tp, rows in reads.items():
                for offset, value in rows:
                    found.setdefault(value, []).append((reader, tp, offset))
        return found

    def all_reads(self) -> Iterable[tuple[str, Reads]]:
        """Each poll's reads with the name of its reader, and the log's as those of reader ""."""
        for attempt in self.attempts.values():
            for poll in attempt.polls:
                yield poll.reader, poll.reads
        yield "", self.log


def read_history(directory: Path) -> History:
    """The history of the ledgers in ``directory``: ``run.jsonl`` and one of each worker."""
    history = History()
    for entry in read(directory / "run.jsonl"):
        if entry["e"] == "log":
            history.log[entry["tp"]] = list(zip(entry["offsets"], entry["values"], strict=True))
        elif entry["e"] == "open-end":
            history.open_ends.append((entry["tp"], entry["stable"], entry["end"]))
        elif entry["e"] == "crash":
            history.crashes.append(f"{entry['name']}: {entry['text']}")
        elif entry["e"] == "fault":
            history.faults.append(entry["kind"])
    for path in sorted(directory.glob("*.jsonl")):
        if path.stem != "run":
            read_worker(history, path.stem, read(path))
    return history


def read_worker(history: History, worker: str, entries: list[Entry]) -> None:
    """Adds the transactions of one worker's ledger."""
    for entry in entries:
        event = entry["e"]
        if event == "error":
            history.errors.append((worker, entry["error"], entry["text"]))
            history.fenced += entry["error"] == "ProducerFencedError"
            continue
        if "n" not in entry:
            continue
        attempt = history.attempts.setdefault(f"{worker}:{entry['n']}", Attempt(f"{worker}:{entry['n']}"))
        if event == "send":
            attempt.sent[entry["value"]] = entry["tp"]
        elif event == "acknowledged":
            if entry["offset"] >= 0:  # else the commit was answered, and the record itself was not
                attempt.stored[entry["value"]] = entry["offset"]
        elif event == "poll":
            reads = {tp: [(offset, value) for offset, value in rows] for tp, rows in entry["reads"].items()}
            attempt.polls.append(Poll(entry["reader"], entry["t"], reads))
        elif event in ("commit", "abort"):
            attempt.ending = entry["t"]
            attempt.wanted = "committed" if event == "commit" else "aborted"
        elif event == "told":
            attempt.told = entry["outcome"]
