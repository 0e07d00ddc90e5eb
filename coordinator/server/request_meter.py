"""Requests of one port as numbers: how many of each API key, how long they took, which errors they were answered with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from coordinator.histogram import Histogram
from protocol.errors import ErrorCode


class ApiCounts:
    """The requests of one API key."""

    __slots__ = ("errors", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram()
        """From the handler's start to the answer; of long polls the wait is in it."""
        self.errors: Counter[int] = Counter()
        """Error codes of answers as a whole. Errors of single partitions or members inside an answer do not count."""


class RequestMeter:
    """Counts the requests that were answered on a port. ``now`` is a clock in seconds, ``port`` a name for the port.

    One request costs a look into a table, a search among fifteen bounds, two additions.
    """

    def __init__(self, port: str, now: Callable[[], float]) -> None:
        self.port = port
        self.now = now
        self._counts: dict[type, ApiCounts] = {}

    def answered(self, request: Any, begun_s: float, response: Any) -> None:
        """A request has its answer."""
        self._count(type(request), begun_s, getattr(response, "error_code", 0))

    def ended(self, request: Any, begun_s: float, code: ErrorCode = ErrorCode.NONE) -> None:
        """A request was refused as a whole with ``code``; or it has no answer, or one that was packed before."""
        self._count(type(request), begun_s, code)

    def by_api(self) -> dict[str, ApiCounts]:
        """The counts by the name of the API key, as Kafka writes it: ``JoinGroup``."""
        return {kind.__name__.removesuffix("Request"): counts for kind, counts in self._counts.items()}

    def _count(self, kind: type, begun_s: float, code: int) -> None:
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = ApiCounts()
        counts.seconds.observe(self.now() - begun_s)
        if code:
            counts.errors[code] += 1


class KafkaRequestMeter(RequestMeter):
    """The same for requests and answers that hold a message of Kafka's."""

    def answered(self, request: Any, begun_s: float, response: Any) -> None:
        """See ``RequestMeter``."""
        self._count(type(request.message), begun_s, getattr(response.message, "error_code", 0) or 0)

    def ended(self, request: Any, begun_s: float, code: ErrorCode = ErrorCode.NONE) -> None:
        """See ``RequestMeter``."""
        self._count(type(request.message), begun_s, code)
