"""Which request waits for which answer.

The core knows a request by a number only. Here the number leads back to the call that asked; each gets exactly one answer.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.groups.effects import ReplyToken
from protocol.messages import Request, Response


class Asker(Protocol):
    """A request that waits: what was asked, and the way back for its answer."""

    request: Request

    def answer(self, response: Response) -> None:
        """Sends the answer. Nothing happens when the connection is gone."""


class Replies:
    """All requests to the group core that wait for an answer."""

    def __init__(self) -> None:
        self._pending: dict[ReplyToken, Asker] = {}
        self._next_token = 1

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, asker: Asker) -> ReplyToken:
        """Gives a request its number."""
        token = self._next_token
        self._next_token = token + 1
        self._pending[token] = asker
        return token

    def send(self, token: ReplyToken, response: Response) -> None:
        """Answers a request. Nothing happens when its connection is gone."""
        asker = self._pending.pop(token, None)
        if asker is not None:
            asker.answer(response)

    def request(self, token: ReplyToken) -> Request | None:
        """What was asked, if it still waits."""
        asker = self._pending.get(token)
        return asker.request if asker is not None else None

    def forget(self, token: ReplyToken) -> bool:
        """Drops a request whose connection closed; returns whether it was still waiting."""
        return self._pending.pop(token, None) is not None
