"""Requests of one port as numbers: how many of each API key, how long they took, which errors they were answered with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from coordinator.histogram import Histogram
from protocol.errors import ErrorCode

_UNTIMED: Final = frozenset({"Heartbeat"})
"""Counted, not timed: there are most of them, they cost least, and how long one is held is what its member asks for."""


class ApiCounts:
    """The requests of one API key."""

    __slots__ = ("errors", "requests", "seconds")

    def __init__(self, name: str) -> None:
        self.requests = 0
        self.seconds = None if name in _UNTIMED else Histogram()
        """From the handler's start to the answer, the wait of long polls included; None of those that are not timed."""
        self.errors: Counter[int] = Counter()
        """Error codes of answers as a whole. Errors of single partitions or members inside an answer do not count."""


class _ByKind(dict[type, ApiCounts]):
    def __missing__(self, kind: type) -> ApiCounts:
        counts = self[kind] = ApiCounts(_api_name(kind))
        return counts


class RequestMeter:
    """Counts the requests that were answered on a port. ``now`` is a clock in seconds, ``port`` a name for the port."""

    def __init__(self, port: str, now: Callable[[], float]) -> None:
        self.port = port
        self.now = now
        self._counts = _ByKind()

    def answered(self, request: Any, begun_s: float, response: Any) -> None:
        """A request has its answer."""
        counts = self._counts[type(request)]  # not by _count: heartbeats come this way
        counts.requests += 1
        seconds = counts.seconds
        if seconds is not None:
            seconds.observe(self.now() - begun_s)
        if getattr(response, "error_code", 0):
            counts.errors[response.error_code] += 1

    def ended(self, request: Any, begun_s: float, code: ErrorCode = ErrorCode.NONE) -> None:
        """A request was refused as a whole with ``code``; or it has no answer, or one that was packed before."""
        self._count(type(request), begun_s, code)

    def by_api(self) -> dict[str, ApiCounts]:
        """The counts by the name of the API key, as Kafka writes it: ``JoinGroup``."""
        return {_api_name(kind): counts for kind, counts in self._counts.items()}

    def _count(self, kind: type, begun_s: float, code: int) -> None:
        counts = self._counts[kind]
        counts.requests += 1
        if counts.seconds is not None:
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


def _api_name(kind: type) -> str:
    return kind.__name__.removesuffix("Request")
