"""Which request waits for which answer.

The core knows a request by a number only. Here the number leads back to the connection that asked, and each gets exactly one
answer: the second is a fault in the core and ends in an assertion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.groups.effects import ReplyToken
from protocol.messages import Request, Response


@dataclass(slots=True)
class PendingReply:
    """A request that waits: what was asked, and how its answer reaches whoever asked."""

    request: Request
    respond: Callable[[Response], None]


class Replies:
    """All requests to the group core that wait for an answer."""

    def __init__(self) -> None:
        self._pending: dict[ReplyToken, PendingReply] = {}
        self._next_token = 1

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, request: Request, respond: Callable[[Response], None]) -> ReplyToken:
        """Gives a request its number."""
        token = self._next_token
        self._next_token += 1
        self._pending[token] = PendingReply(request, respond)
        return token

    def send(self, token: ReplyToken, response: Response) -> None:
        """Answers a request. Nothing happens when its connection is gone."""
        pending = self._pending.pop(token, None)
        if pending is not None:
            pending.respond(response)

    def request(self, token: ReplyToken) -> Request | None:
        """What was asked, if it still waits."""
        pending = self._pending.get(token)
        return pending.request if pending is not None else None

    def forget(self, token: ReplyToken) -> bool:
        """Drops a request whose connection closed; returns whether it was still waiting."""
        return self._pending.pop(token, None) is not None
