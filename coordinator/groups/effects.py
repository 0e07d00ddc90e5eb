"""What a decision of the core asks the shell to do, and in what order.

The shell takes an ``Effects`` and, without yielding in between, (1) calls ``apply`` for each record, the one function that
changes durable state, and queues the records for the log; (2) sets and cancels timers; (3) sends each reply once
everything queued so far is on disk. A reply without records waits for earlier records too, or it would leak state that a
crash can still take back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from coordinator.groups.records import CoordinatorRecord
from protocol.messages.api import Response

ReplyToken = int
"""Names one request that waits for its answer; the shell knows which connection it belongs to. Each gets exactly one."""

TimerName = tuple[str, ...]
"""Names a timer: its kind ("session", "rebalance", "sync", "heartbeat") and whom it is about; ("expiry",) is about all."""


WAITS_FOR_MEMBERS: Final = frozenset({"session", "rebalance", "sync", "pending"})
"""The kinds of timers that end the group's patience with a member: it must have had its time to be heard."""


class Instant(NamedTuple):
    """A reading of both clocks: deadlines compare with ``ms``, which never steps; what is stored carries ``wall_ms``."""

    ms: int
    wall_ms: int


class Reply(NamedTuple):
    """The answer to one request."""

    token: ReplyToken
    response: Response


Given = tuple[ReplyToken, Any, Callable[[Any], Response] | None]
"""An answer as it is kept: the token and the response, or the token, what it is about and what makes the response of it."""


class Outgoing:
    """The answers of one decision, in their order. One that is made of something is made whenever it is looked at."""

    __slots__ = ("_given",)

    def __init__(self, given: list[Given]) -> None:
        self._given = given

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Reply]:
        return map(_made, self._given)

    def __getitem__(self, index: int) -> Reply:
        return _made(self._given[index])

    def tokens(self) -> Iterator[ReplyToken]:
        """Who is answered, in the same order; no answer is made."""
        return (given[0] for given in self._given)

    def clear(self) -> None:
        """Nothing is answered."""
        self._given.clear()


def _made(given: Given) -> Reply:
    token, about, make = given
    return Reply(token, about if make is None else make(about))


class RequestContext(NamedTuple):
    """Who asks: what the shell knows of a request beside its body."""

    token: ReplyToken
    client_id: str
    client_host: str
    connection: int = 0
    """The number of the connection, which no other has; 0 for none that could close."""


class Effects:
    """The outcome of one decision.

    ``timers`` maps a name to its deadline in ms, or to None to cancel it. ``notes`` are sentences for the log: a rebalance
    and its reason, a member that was removed and why. No dataclass: every request makes one, at half the cost.
    """

    __slots__ = ("given", "notes", "records", "timers")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.given: list[Given] = []
        self.timers: dict[TimerName, int | None] = {}
        self.notes: list[str] = []

    def reply(self, token: ReplyToken, response: Response) -> None:
        """Answers one request."""
        self.given.append((token, response, None))

    def reply_with(self, token: ReplyToken, make: Callable[[Any], Response], about: Any) -> None:
        """Answers one request with ``make(about)``, called when it is sent, as making ten thousand takes long.

        So ``make`` must not look at anything that may change.
        """
        self.given.append((token, about, make))

    @property
    def replies(self) -> Outgoing:
        """All answers, in the order they were given."""
        return Outgoing(self.given)
