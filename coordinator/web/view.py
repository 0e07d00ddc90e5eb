"""What the views of the page have in common: the node they look at, what is asked, and turns in which others are served.

A view is a coroutine that looks at the node and gives what becomes JSON. Each bounds what it gives, whatever is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from time import thread_time
from typing import Any, Final, TypeVar

from coordinator.groups.rebalance_history import RebalanceHistory
from coordinator.server.listener import Listener
from coordinator.server.node import Node
from coordinator.web.lag_history import LagHistory

T = TypeVar("T")

MAX_ROWS: Final = 200
"""Rows of a list in one answer."""
MAX_DECODING: Final = 2
"""Batches of records are up to 64 MB each: so many are decoded for pages at once."""
_ROWS: Final = 50
_MAX_TEXT: Final = 1_000
_LARGEST_EXACT: Final = 2**53 - 1
_SLICE: Final = 400
"""Pieces of work of about 2 µs each that are done in one turn of the loop."""
_CHUNK: Final = 250


class ViewError(Exception):
    """What is asked cannot be answered; ``status`` is HTTP's, the text says why and what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class PageSources:
    """What the views look at."""

    node: Node
    listener: Listener
    version: str
    started_wall_ms: int
    history: RebalanceHistory
    lags: LagHistory
    is_clustered: bool
    decoding: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_DECODING))
    """Held while batches of records are decoded."""

    @property
    def node_id(self) -> int:
        """This node's number."""
        return self.node.catalog.node_id


class Pace:
    """Lets others have their turn, and measures what CPU a view takes: uvloop's own clock stands still in a turn."""

    def __init__(self) -> None:
        self._since_s = thread_time()
        self._work = 0
        self._busy_s = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds so far, without the turns of others."""
        return self._busy_s + thread_time() - self._since_s

    async def worked(self, pieces: int = 1) -> None:
        """Says that so much was done; gives others their turn when it was enough for one."""
        self._work += pieces
        if self._work >= _SLICE:
            await self.rest(asyncio.sleep(0))

    async def rest(self, waiting: Awaitable[T]) -> T:
        """What is waited for; the time does not count."""
        self._work = 0
        self._busy_s += thread_time() - self._since_s
        try:
            return await waiting
        finally:
            self._since_s = thread_time()


def chunks(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """The items as they are now, as many at a time as are looked at between two calls of ``Pace.worked``."""
    left = iter(tuple(items))
    while some := tuple(islice(left, _CHUNK)):
        yield some


class Query:
    """The parameters of a request, checked. Raises ``ViewError`` where one is not what it can be."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """Any text, up to 1,000 characters."""
        value = self._values.get(name, default)
        if len(value) > _MAX_TEXT:
            raise ViewError(400, f"{name} has {len(value)} characters, at most {_MAX_TEXT} are taken")
        return value

    def required(self, name: str) -> str:
        """A text that has to be there."""
        value = self.text(name)
        if not value:
            raise ViewError(400, f"the request lacks {name}")
        return value

    def choice(self, name: str, *choices: str) -> str:
        """One of these texts, the first where nothing is said."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise ViewError(400, f"{name} is {value[:60]!r}; it can be {', '.join(choices)}")
        return value

    def number(self, name: str, default: int, low: int = 0, high: int = 2**63 - 1) -> int:
        """A whole number between two bounds."""
        text = self.text(name, str(default))
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and low <= int(text) <= high):
            raise ViewError(400, f"{name} is {text[:60]!r}; it must be a whole number from {low} to {high}")
        return int(text)

    def rows(self) -> slice:
        """The rows of a list that are asked for: ``start`` and ``limit``."""
        start = self.number("start", 0, high=2**31)
        return slice(start, start + self.number("limit", _ROWS, 1, MAX_ROWS))


View = Callable[[PageSources, Query, Pace], Awaitable[dict[str, Any]]]
"""What makes an answer."""


def exact(number: int) -> int | str:
    """The number, as text where JavaScript's numbers would round it."""
    return number if -_LARGEST_EXACT <= number <= _LARGEST_EXACT else str(number)
