"""What a decision of the core asks the shell to do, and in what order.

The shell takes an ``Effects`` and, without yielding in between, (1) calls ``apply`` for each record, the one function that
changes durable state, and queues the records for the log; (2) sets and cancels timers; (3) sends each reply once
everything queued so far is on disk. A reply without records waits for earlier records too, or it would leak state that a
crash can still take back.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.groups.records import CoordinatorRecord
from protocol.messages.api import Response

ReplyToken = int
"""Names one request that waits for its answer; the shell knows which connection it belongs to. Each gets exactly one."""

TimerName = tuple[str, ...]
"""Names a timer: its kind ("session", "rebalance", "sync", "heartbeat") and whom it is about; ("expiry",) is about all."""


class Instant(NamedTuple):
    """A reading of both clocks: deadlines compare with ``ms``, which never steps; what is stored carries ``wall_ms``."""

    ms: int
    wall_ms: int


class Reply(NamedTuple):
    """The answer to one request."""

    token: ReplyToken
    response: Response


class RequestContext(NamedTuple):
    """Who asks: what the shell knows of a request beside its body."""

    token: ReplyToken
    client_id: str
    client_host: str


class Effects:
    """The outcome of one decision.

    ``timers`` maps a name to its deadline in ms, or to None to cancel it. ``notes`` are sentences for the log: a rebalance
    and its reason, a member that was removed and why. No dataclass: every request makes one, at half the cost.
    """

    __slots__ = ("notes", "records", "replies", "timers")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.replies: list[Reply] = []
        self.timers: dict[TimerName, int | None] = {}
        self.notes: list[str] = []

    def reply(self, token: ReplyToken, response: Response) -> None:
        """Answers one request."""
        self.replies.append(Reply(token, response))
