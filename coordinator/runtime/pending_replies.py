"""Requests to a coordinator that have no answer yet, by their tokens.

A core knows a request by its token only. Here the token leads back to the call that asked; each gets exactly one answer.
Answers about the same thing, such as a group, leave in the order they were given; when ten thousand are given at once,
others are answered in between (see ``fair_queue``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Final, Protocol

from coordinator.log_output import get_logger
from coordinator.runtime.effects import Given, Outgoing, Reply, ReplyToken
from coordinator.runtime.fair_queue import FairQueue
from protocol.messages import Request, Response

_AT_ONCE: Final = 16
"""Answers of one decision that are looked at one by one; more of them are queued as a whole."""


log = get_logger()


class Asker(Protocol):
    """A request that waits: what was asked, and the way back for its answer."""

    request: Request

    def answer(self, response: Response) -> None:
        """Sends the answer. Nothing happens when the connection is gone."""


class PendingReplies:
    """All requests to one coordinator that wait for an answer; ``is_about(request)`` tells what each is about."""

    def __init__(self, is_about: Callable[[Request], Hashable]) -> None:
        self._is_about = is_about
        self._pending: dict[ReplyToken, Asker] = {}
        self._next_token = 1
        self._fair_queue = FairQueue()

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, asker: Asker) -> ReplyToken:
        """Gives a request its token."""
        token = self._next_token
        self._next_token = token + 1
        self._pending[token] = asker
        return token

    def send(self, token: ReplyToken, response: Response) -> None:
        """Answers a request, now or when it is its turn. Nothing happens when its connection is gone."""
        asker = self._pending.get(token)
        if asker is None:
            return
        key = self._is_about(asker.request)
        if self._fair_queue.try_acquire(key):
            self._answer(token, response)
        else:
            self._fair_queue.put(key, partial(self._answer, token, response))

    def answer(self, asker: Asker, response: Response) -> None:
        """Answers a request that has no token, now or when it is its turn."""
        if self._fair_queue.try_acquire(self._is_about(asker.request)):
            asker.answer(response)
        else:
            self.send(self.open(asker), response)

    def may_answer(self, about: Hashable) -> bool:
        """Whether a request about this may be answered at once without a token; if so it counts as answered."""
        return self._fair_queue.try_acquire(about)

    def send_all(self, given: list[Given]) -> None:
        """Sends the answers of one decision, which are about one thing, in their order; many are made as they leave."""
        if len(given) <= _AT_ONCE:
            for token, about, make in given:
                self.send(token, about if make is None else make(about))
            return
        askers = (self._pending.get(token) for token, _, _ in given)
        key = next((self._is_about(asker.request) for asker in askers if asker is not None), None)
        self._fair_queue.put(key, partial(self._answer_next, iter(Outgoing(given))))

    def drain(self) -> None:
        """Sends at once what waits for its turn: the daemon stops."""
        self._fair_queue.drain()

    def _answer_next(self, replies: Iterator[Reply]) -> bool:
        reply = next(replies, None)
        if reply is not None:
            self._answer(*reply)
        return reply is not None

    def _answer(self, token: ReplyToken, response: Response) -> None:
        asker = self._pending.pop(token, None)
        if asker is None:
            return
        try:
            asker.answer(response)
        except Exception:  # of ours; it must not keep others from the answers of the same decision
            request = type(asker.request).__name__
            log.exception("answer_failed", request=request)  # its client waits until its deadline

    def request(self, token: ReplyToken) -> Request | None:
        """What was asked, if it still waits."""
        asker = self._pending.get(token)
        return asker.request if asker is not None else None

    def forget(self, token: ReplyToken) -> bool:
        """Drops a request whose connection closed; returns whether it was still waiting."""
        return self._pending.pop(token, None) is not None
