"""Requests of one port as numbers: how many of each API key, how long they took, which errors they were answered with.

There are more heartbeats than of all other requests together, and each takes some ten microseconds: so their good answer,
which is one object for all of them, is counted in a plain number where it is sent, and a clock is read for every
``SAMPLED``-th one only.

Each error code of an answer counts, the one of the answer as a whole or else those within it, as in Kafka's ErrorsPerSec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.histogram import Histogram
from coordinator.server.call import NO_ERRORS, Handler, StepsLeft
from coordinator.server.errors_within import NOTES
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.groups import HeartbeatRequest

SAMPLED: Final = 64
"""One heartbeat of so many is timed, beginning with the first: there are most of them, and they cost least."""


class ApiCounts:
    """The requests of one API key."""

    __slots__ = ("errors", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = Histogram()
        """From the handler's start to the answer, the wait of long polls included; of heartbeats, those that are timed."""
        self.errors: Counter[int] = Counter()
        """By error code, of answers as a whole and of what is in them."""


class _ByKind(dict[type, ApiCounts]):
    def __missing__(self, kind: type) -> ApiCounts:
        counts = self[kind] = ApiCounts()
        return counts


class RequestMeter:
    """Counts the requests that were answered on a port. ``now`` is a clock in seconds, ``port`` a name for the port."""

    __slots__ = ("_counts", "carried_on", "names", "now", "port", "sampled", "until_sample")

    def __init__(self, port: str, now: Callable[[], float]) -> None:
        self.port = port
        self.now = now
        self.names: Mapping[int, str] = {}
        """Of error codes that only this port tells, and ``ErrorCode`` does not have."""
        self.carried_on = 0
        """Heartbeats that were answered with ``CARRY_ON``; counted where it is sent, in place of ``answered``."""
        self.until_sample = 1
        """How many heartbeats there are up to the next that is timed, that one included."""
        self.sampled: Any = None
        """The heartbeat under way that is timed; where it is answered with ``CARRY_ON``, ``end_sample`` is called."""
        self._counts = _ByKind()

    def timing(self, handlers: Mapping[type[Request], Handler]) -> dict[type[Request], Handler]:
        """The handlers, which note in each call when they got it; that of heartbeats in some."""
        return {
            kind: self._sampling(handle) if kind is HeartbeatRequest else _noting(self.now, handle)
            for kind, handle in handlers.items()
        }

    def answered(self, call: Any, response: Any) -> None:
        """A call has its answer."""
        self._count(type(call.request), call, getattr(response, "error_code", 0) or 0, response)

    def ended(self, call: Any, errors: Mapping[int, int] = NO_ERRORS) -> None:
        """A call was refused as a whole, or has no answer, or one that was packed before; ``errors`` are its codes."""
        self._count(type(call.request), call, ErrorCode.NONE, errors=errors)

    def end_sample(self) -> None:
        """The heartbeat that is timed has its answer."""
        self._counts[HeartbeatRequest].seconds.observe(self.now() - self.sampled.begun_s)
        self.sampled = None

    def by_api(self) -> dict[str, ApiCounts]:
        """The counts by the name of the API key, as Kafka writes it: ``JoinGroup``."""
        carried_on, self.carried_on = self.carried_on, 0
        if carried_on:
            self._counts[HeartbeatRequest].requests += carried_on
        return {_api_name(kind): counts for kind, counts in self._counts.items()}

    def _count(
        self, kind: type, call: Any, code: int, answer: Any = None, errors: Mapping[int, int] = NO_ERRORS
    ) -> None:
        counts = self._counts[kind]
        counts.requests += 1
        if kind is not HeartbeatRequest:
            counts.seconds.observe(self.now() - call.begun_s)
        elif call is self.sampled:
            self.end_sample()
        if code:
            counts.errors[code] += 1
        elif answer is not None:
            note = NOTES[type(answer)]
            if note is not None:
                note(answer, counts.errors)
        elif errors:
            for each, count in errors.items():
                counts.errors[each] += count

    def _sampling(self, handle: Handler) -> Handler:
        def begin(call: Any) -> StepsLeft:
            self.until_sample -= 1
            if not self.until_sample:
                self.until_sample = SAMPLED
                # One at a time; one whose client has gone has no answer, and is given up.
                if self.sampled is None or not self.sampled.open:
                    call.begun_s = self.now()
                    self.sampled = call
            return handle(call)

        return begin


class KafkaRequestMeter(RequestMeter):
    """The same for requests and answers that hold a message of Kafka's. All are timed, heartbeats too."""

    __slots__ = ()

    def answered(self, call: Any, response: Any) -> None:
        """See ``RequestMeter``."""
        message = response.message
        code = response.refused or getattr(message, "error_code", 0) or 0
        self._count(type(call.message), call, code, message)

    def ended(self, call: Any, errors: Mapping[int, int] = NO_ERRORS) -> None:
        """See ``RequestMeter``."""
        self._count(type(call.message), call, ErrorCode.NONE, errors=errors)


def _api_name(kind: type) -> str:
    return kind.__name__.removesuffix("Request")


def _noting(now: Callable[[], float], handle: Handler) -> Handler:
    def begin(call: Any) -> StepsLeft:
        call.begun_s = now()
        return handle(call)

    return begin
