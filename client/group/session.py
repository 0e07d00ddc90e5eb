"""What the user's loop and the background loop tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Final, Literal, NamedTuple

from client.errors import FencedInstanceIdError
from client.group.config import MembershipSettings

Joiner = Literal["program", "background"]

_CLAIMING: Final = Lock()


class Session:
    """A member's place in one generation, shared between the loops.

    ``ended`` is set in the background the moment the place is known to be gone, and says why. ``expires_s`` is when the
    coordinator may give it away unless a heartbeat is answered, ``rejoin_by_s`` when it may because the member has not
    joined again, both on the background's clock. ``called`` is set when the group calls the member to join again. The
    user's loop looks at all of them before it hands anything out, without waiting for a message: a program that was
    suspended, or that blocked its loop, must not go on with what it held before the membership has had its turn.

    A ``keeps`` session belongs to a member that holds its share while the next generation forms, as cooperative ones do
    (KIP-429) and consumers whose handlers are at work: a call does not end that, and when the member has joined again,
    ``successor`` is where the share is held from then on.

    ``settled`` is set when the program has taken its share. From then on either loop may be the one to join again, whichever
    is the first to ``claim_rejoin``: the background does so for a program that blocks its loop.
    """

    __slots__ = (
        "called",
        "ended",
        "expires_s",
        "generation",
        "is_leader",
        "joiner",
        "keeps",
        "member_id",
        "reason",
        "rejoin_by_s",
        "rejoining",
        "settled",
        "successor",
    )

    def __init__(self, member_id: str, generation: int, is_leader: bool, reason: str, *, keeps: bool = False) -> None:
        self.member_id = member_id
        self.generation = generation
        self.is_leader = is_leader
        self.reason = reason
        self.keeps = keeps
        self.ended: str | None = None
        self.expires_s = self.rejoin_by_s = -inf
        self.called = False
        self.rejoining = False
        self.settled = False
        self.joiner: Joiner | None = None
        self.successor: Session | None = None

    def claim_rejoin(self, joiner: Joiner) -> bool:
        """Whether ``joiner`` is the one to join again from here: the first that asks."""
        with _CLAIMING:
            self.joiner = self.joiner or joiner
        return self.joiner == joiner

    @property
    def latest(self) -> Session:
        """This place, or the one in the last generation joined from here; its assignment may not be known yet."""
        session = self
        while session.successor is not None:
            session = session.successor
        return session

    def renewed(self, at_s: float, settings: MembershipSettings) -> None:
        """At ``at_s`` or after it the coordinator heard of the member and knew it."""
        self.expires_s = max(self.expires_s, at_s + settings.session_timeout_ms / 1000)

    def confirmed(self, at_s: float, settings: MembershipSettings) -> None:
        """At ``at_s`` or after it, moreover, it did not wait for the member to join again."""
        self.renewed(at_s, settings)
        self.rejoin_by_s = max(self.rejoin_by_s, at_s + settings.rebalance_timeout_ms / 1000)

    def holds(self, now_s: float) -> bool:
        """Whether the place is this member's for certain."""
        return not self.is_over(now_s) and (self.keeps or not self.called)

    def is_over(self, now_s: float) -> bool:
        """Whether the place is gone, or may be: by what is known, and by the clock."""
        latest = self.latest
        if self.ended is not None or latest.ended is not None:
            return True
        return now_s >= latest.expires_s or now_s >= latest.rejoin_by_s


@dataclass(frozen=True, slots=True)
class Generation:
    """What a completed join gave: the session, the protocol the group chose, this member's assignment."""

    session: Session
    protocol: str
    assignment: bytes


class RejoinNeeded(NamedTuple):
    """The group, or a change in what this member asks for, calls for a new generation. The member still owns its share."""

    session: Session
    reason: str


class SessionLost(NamedTuple):
    """The member is out; its share belongs to others.

    ``overdue_ms`` is set when it left because the program was stuck, ``fenced`` when another process has its instance id.
    """

    session: Session
    reason: str
    overdue_ms: int | None = None
    fenced: FencedInstanceIdError | None = None


class Reassured(NamedTuple):
    """After a time without certainty the share is known to be this member's still."""

    session: Session
    reason: str


Event = RejoinNeeded | SessionLost | Reassured


class Progress:
    """When the program last came back to poll; written on the user's loop, read in the background.

    While the program waits inside a poll (``polling`` above 0) it is making progress, unless it has begun work meanwhile: of
    several pieces of work the one that has lasted longest counts. ``limit_s`` is how long any may last without a ``lease``;
    ``None`` when nothing is watched.
    """

    __slots__ = ("_begun_s", "_last_s", "_leased_s", "_limit_s", "_oldest_s", "_time", "polling", "restarts")

    def __init__(self, time: Callable[[], float], limit_s: float | None = None) -> None:
        self._time = time
        self._limit_s = limit_s
        self._last_s = time()
        self._begun_s: dict[object, float] = {}
        self._leased_s: dict[
            object, float
        ] = {}  # work under a lease, and when it would have begun to last as long without
        self._oldest_s: float | None = None
        self.polling = 0
        self.restarts = (
            True  # whether the time starts again with the next join: the first, or one the program asked for
        )

    def enter(self) -> None:
        """The program asks for something."""
        self.polling += 1

    def leave(self) -> None:
        """The program got it and goes to work."""
        self._last_s = self._time()
        self.polling -= 1

    def touch(self) -> None:
        """The time starts now, unless a lease is on."""
        self._last_s = max(self._last_s, self._time())

    def lease(self, seconds: float, work: object = None) -> None:
        """``work``, or what the last poll handed out, may go on for ``seconds`` from now, if it may not for longer anyway.

        The lease ends with the work, or with the next poll.
        """
        if self._limit_s is None:
            return
        begun_s = self._time() + seconds - self._limit_s
        if work is None:
            self._last_s = max(self._last_s, begun_s)
        elif work in self._begun_s:
            self._leased_s[work] = max(begun_s, self._begun_s[work], self._leased_s.get(work, begun_s))
            self._find_oldest()

    def begin(self, work: object) -> None:
        """Something begins that is to end in time."""
        self._begun_s.pop(work, None)  # what begins anew goes to the end: the first is the oldest
        self._leased_s.pop(work, None)
        self._begun_s[work] = self._time()
        self._find_oldest()

    def end(self, work: object) -> float:
        """It has ended, or counts no more; returns the seconds that it took."""
        begun_s = self._begun_s.pop(work, None)
        self._leased_s.pop(work, None)
        self._find_oldest()
        return 0.0 if begun_s is None else self._time() - begun_s

    def _find_oldest(self) -> None:
        if self._leased_s:
            self._oldest_s = min(self._leased_s.get(work, begun_s) for work, begun_s in self._begun_s.items())
        else:
            self._oldest_s = next(iter(self._begun_s.values()), None)

    def idle_s(self, now_s: float) -> float:
        """Seconds since the program went to work; 0 while it polls. Of a lease only the last ``limit_s`` count."""
        oldest_s = self._oldest_s
        if oldest_s is not None:
            return max(0.0, now_s - oldest_s)
        return 0.0 if self.polling else max(0.0, now_s - self._last_s)
