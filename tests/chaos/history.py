"""A run as its ledgers tell it, in the form that checks read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import ledger
from tests.chaos.ledger import Entry

UNKNOWN = float("inf")


@dataclass(slots=True)
class Send:
    """One value given to a producer. ``tp`` and ``offset`` are there once it was acknowledged."""

    producer: str
    sequence: int
    value: str
    started: float
    answered: float = UNKNOWN
    tp: str = ""
    offset: int = -1
    error: str = ""

    @property
    def acknowledged(self) -> bool:
        """Whether the daemon said that it is safe."""
        return self.offset >= 0


@dataclass(slots=True)
class Period:
    """One member's ownership of one partition. ``how`` it ended: revoked, lost, killed, left, or "" when it did not.

    ``deliveries``: when, offset, value, in the order they were handed out.
    """

    group: str
    member: str
    tp: str
    generation: int
    start: float
    end: float = UNKNOWN
    how: str = ""
    deliveries: list[tuple[float, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Commit:
    """One commit a member asked for. ``acknowledged`` is when it was told that it is safe, if it was."""

    group: str
    member: str
    started: float
    offsets: dict[str, int]
    acknowledged: float = UNKNOWN
    error: str = ""


@dataclass(slots=True)
class Observation:
    """What the daemon said a group has committed, asked for at ``asked`` and answered at ``answered``."""

    group: str
    asked: float
    answered: float
    offsets: dict[str, int]


@dataclass(slots=True)
class Hit:
    """One fault as it happened. ``breaks``: requests may have failed meanwhile."""

    kind: str
    start: float
    end: float
    target: str
    breaks: bool


@dataclass(slots=True)
class History:
    """All that happened."""

    sends: list[Send] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    log: dict[str, dict[int, str]] = field(default_factory=dict)
    stopped: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    alive: dict[str, tuple[float, float]] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    auto: set[str] = field(default_factory=set)
    unsettled: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    errors: list[tuple[str, str, str]] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    @property
    def groups(self) -> list[str]:
        """The groups that had members, sorted."""
        return sorted(set(self.group_of.values()))

    def hit_between(self, start: float, end: float) -> bool:
        """Whether a fault that breaks requests was going on at any time from ``start`` to ``end``."""
        return any(hit.breaks and hit.start <= end and start <= hit.end for hit in self.hits)


def read_history(directory: Path) -> History:
    """The history in a run's directory."""
    history = History()
    ends: dict[str, float] = {}
    for entry in ledger.read(directory / "run.jsonl"):
        _read_run_entry(history, ends, entry)
    for name in list(history.alive):
        entries = ledger.read(directory / f"{name}.jsonl")
        start, _ = history.alive[name]
        last = max((entry["t"] for entry in entries), default=start)
        if name in history.group_of:
            read_member(history, name, entries, ends.get(name))
        else:
            read_producer(history, name, entries)
        history.alive[name] = (start, ends.get(name, last))
    return history


def _read_run_entry(history: History, ends: dict[str, float], entry: Entry) -> None:
    at: float = entry["t"]
    match entry["e"]:
        case "process":
            history.alive[entry["name"]] = (at, UNKNOWN)
            if entry["group"] is not None:
                history.group_of[entry["name"]] = entry["group"]
            if entry["commits"] == "auto":
                history.auto.add(entry["name"])
        case "killed":
            ends[entry["name"]] = at
        case "stopped":
            history.stopped.setdefault(entry["name"], []).append((at, UNKNOWN))
        case "resumed":
            intervals = history.stopped[entry["name"]]
            intervals[-1] = (intervals[-1][0], at)
        case "fault":
            history.hits.append(Hit(entry["kind"], entry["start"], at, entry["target"], entry["breaks"]))
        case "offsets":
            history.observations.append(Observation(entry["group"], entry["asked"], at, entry["offsets"]))
        case "unsettled":
            history.unsettled.append(f"{entry['group']}: {entry['text']}")
        case "crash":
            history.crashes.append(f"{entry['name']}: {entry['text']}")
        case "log":
            history.log[entry["tp"]] = dict(zip(entry["offsets"], entry["values"], strict=True))
        case _:
            return


def read_producer(history: History, name: str, entries: list[Entry]) -> None:
    """Adds a producer's ledger."""
    by_sequence: dict[int, Send] = {}
    for entry in entries:
        match entry["e"]:
            case "send":
                send = Send(name, entry["sequence"], entry["value"], entry["t"])
                by_sequence[send.sequence] = send
            case "acknowledged":
                send = by_sequence[entry["sequence"]]
                send.answered, send.tp, send.offset = entry["t"], entry["tp"], entry["offset"]
            case "failed":
                send = by_sequence[entry["sequence"]]
                send.answered, send.error = entry["t"], entry["error"]
            case "error":
                history.errors.append((name, entry["error"], entry["text"]))
            case _:
                continue
    history.sends.extend(by_sequence.values())


def read_member(history: History, name: str, entries: list[Entry], killed: float | None) -> None:
    """Adds a member's ledger; ``killed`` is when it was killed, if it was."""
    group = history.group_of[name]
    owned: dict[str, Period] = {}
    commits: dict[int, Commit] = {}
    for entry in entries:
        at: float = entry["t"]
        match entry["e"]:
            case "assigned":
                for tp in entry["tps"]:
                    owned[tp] = Period(group, name, tp, entry["generation"], at)
                    history.periods.append(owned[tp])
            case "revoked" | "lost":
                for tp in entry["tps"]:
                    if tp in owned:
                        _end(owned.pop(tp), at, entry["e"])
            case "delivered":
                if entry["tp"] not in owned:
                    history.outside.append(f"{name} was given {entry['tp']}@{entry['offsets'][0]} without owning it")
                    continue
                rows = zip(entry["offsets"], entry["values"], strict=True)
                owned[entry["tp"]].deliveries.extend((at, offset, value) for offset, value in rows)
            case "commit":
                commits[entry["number"]] = Commit(group, name, at, entry["offsets"])
            case "committed":
                commits[entry["number"]].acknowledged = at
            case "commit-failed":
                commits[entry["number"]].error = entry["error"]
            case "left":
                for period in owned.values():
                    _end(period, at, "left")
                owned.clear()
            case "blocking":
                history.stopped.setdefault(name, []).append((at, at + entry["seconds"]))
            case "error":
                history.errors.append((name, entry["error"], entry["text"]))
            case _:
                continue
    if killed is not None:
        for period in owned.values():
            _end(period, killed, "killed")
    history.commits.extend(commits.values())


def _end(period: Period, at: float, how: str) -> None:
    period.end, period.how = at, how
