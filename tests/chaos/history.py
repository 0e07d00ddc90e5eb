"""A run in the form that checks read: sends, ownerships, commits, looks from outside, faults, restarts in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    ``deliveries``: when, offset, value, in the order they were handed out. ``handled``: when the program was through with
    which offset. Of a member that commits by itself that is when it was handed out, of one that leaves it to the consumer
    when it polled again, of a handler when it was about to return; these are in ``returned`` too. ``runs`` is there for a
    member that handles by key: for each call of ``process`` the key and the offset of what was begun.
    """

    group: str
    member: str
    tp: str
    generation: int
    start: float
    end: float = UNKNOWN
    how: str = ""
    deliveries: list[tuple[float, int, str]] = field(default_factory=list)
    handled: list[tuple[float, int]] = field(default_factory=list)
    returned: list[tuple[float, int]] = field(default_factory=list)
    runs: list[list[tuple[str, int]]] = field(default_factory=list)


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
class Reset:
    """An administrator set or deleted what an empty group had committed, between ``start`` and ``end``."""

    group: str
    start: float
    end: float = UNKNOWN


@dataclass(slots=True)
class Roll:
    """A rolling restart of a calm group: its generation before and after, and how long a member was away at most."""

    group: str
    before: int
    after: int
    longest: float
    reason: str


@dataclass(slots=True)
class History:
    """All that happened.

    ``auto``: members that leave commits to the consumer; ``once``: producers that number their batches. By name of a member:
    its instance id, when it was first given a share, when it ended by a signal or in order, when it was fenced and what it
    said then, when an administrator took it out. ``calm``: when all groups had settled after the last fault.
    """

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
    once: set[str] = field(default_factory=set)
    unordered: set[str] = field(default_factory=set)
    """Producers that number nothing and have several requests under way, as librdkafka by itself: order is not promised."""
    instance_of: dict[str, str] = field(default_factory=dict)
    joined: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    fenced: dict[str, tuple[float, str]] = field(default_factory=dict)
    removed: dict[str, list[float]] = field(default_factory=dict)
    resets: list[Reset] = field(default_factory=list)
    rolls: list[Roll] = field(default_factory=list)
    calm: float = UNKNOWN
    reasonless: list[str] = field(default_factory=list)
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
