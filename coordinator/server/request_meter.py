"""Requests of one port as numbers: how many of each API key, how long they took, which errors they were answered with.

There are more heartbeats than of all other requests together, and each takes some ten microseconds: so their good answer,
which is one object for all of them, is counted in a plain number where it is sent, and no clock is read for it.

Some answers have an error code for each partition (``_PARTITIONS``). Each that is one counts, as in Kafka's ErrorsPerSec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from coordinator.histogram import Histogram
from coordinator.server.call import Handler, StepsLeft
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.groups import HeartbeatRequest

_UNTIMED: Final = frozenset({"Heartbeat"})
"""Counted, not timed: there are most of them, they cost least, and how long one is held is what its member asks for."""

_PARTITIONS: Final[Mapping[str, tuple[str, str]]] = {
    "Produce": ("responses", "partition_responses"),
    "Fetch": ("responses", "partitions"),
    "ListOffsets": ("topics", "partitions"),
    "OffsetCommit": ("topics", "partitions"),
    "TxnOffsetCommit": ("topics", "partitions"),
    "OffsetDelete": ("topics", "partitions"),
    "OffsetForLeaderEpoch": ("topics", "partitions"),
    "DeleteRecords": ("topics", "partitions"),
}
"""Where an answer has its topics, and these their partitions, by API key: the same names in Kafka's messages."""


class ApiCounts:
    """The requests of one API key."""

    __slots__ = ("_within", "errors", "requests", "seconds")

    def __init__(self, name: str) -> None:
        self.requests = 0
        self.seconds = None if name in _UNTIMED else Histogram()
        """From the handler's start to the answer, the wait of long polls included; None of those that are not timed."""
        self.errors: Counter[int] = Counter()
        """By error code, of answers as a whole and of partitions in an answer (``_PARTITIONS``)."""
        self._within = tuple(map(attrgetter, _PARTITIONS.get(name, ())))

    def note_errors(self, answer: Any) -> None:
        """Counts what an answer says of single partitions."""
        if self._within:
            topics_of, partitions_of = self._within
            for topic in topics_of(answer):
                for partition in partitions_of(topic):
                    if partition.error_code:
                        self.errors[partition.error_code] += 1


class _ByKind(dict[type, ApiCounts]):
    def __missing__(self, kind: type) -> ApiCounts:
        counts = self[kind] = ApiCounts(_api_name(kind))
        return counts


class RequestMeter:
    """Counts the requests that were answered on a port. ``now`` is a clock in seconds, ``port`` a name for the port."""

    __slots__ = ("_counts", "carried_on", "names", "now", "port")

    def __init__(self, port: str, now: Callable[[], float]) -> None:
        self.port = port
        self.now = now
        self.names: Mapping[int, str] = {}
        """Of error codes that only this port tells, and ``ErrorCode`` does not have."""
        self.carried_on = 0
        """Heartbeats that were answered with ``CARRY_ON``; counted where it is sent, in place of ``answered``."""
        self._counts = _ByKind()

    def timing(self, handlers: Mapping[type[Request], Handler]) -> dict[type[Request], Handler]:
        """The handlers, which note in each call when they got it; those of requests that are not timed as they are."""
        return {
            kind: handle if _api_name(kind) in _UNTIMED else _noting(self.now, handle)
            for kind, handle in handlers.items()
        }

    def answered(self, call: Any, response: Any) -> None:
        """A call has its answer."""
        code = getattr(response, "error_code", 0) or 0
        self._count(type(call.request), call, code, response)

    def ended(self, call: Any, code: ErrorCode = ErrorCode.NONE) -> None:
        """A call was refused as a whole with ``code``; or it has no answer, or one that was packed before."""
        self._count(type(call.request), call, code)

    def by_api(self) -> dict[str, ApiCounts]:
        """The counts by the name of the API key, as Kafka writes it: ``JoinGroup``."""
        carried_on, self.carried_on = self.carried_on, 0
        if carried_on:
            self._counts[HeartbeatRequest].requests += carried_on
        return {_api_name(kind): counts for kind, counts in self._counts.items()}

    def _count(self, kind: type, call: Any, code: int, answer: Any = None) -> None:
        counts = self._counts[kind]
        counts.requests += 1
        if counts.seconds is not None:
            counts.seconds.observe(self.now() - call.begun_s)
        if code:
            counts.errors[code] += 1
        elif answer is not None:
            counts.note_errors(answer)


class KafkaRequestMeter(RequestMeter):
    """The same for requests and answers that hold a message of Kafka's."""

    __slots__ = ()

    def answered(self, call: Any, response: Any) -> None:
        """See ``RequestMeter``."""
        message = response.message
        code = response.refused or getattr(message, "error_code", 0) or 0
        self._count(type(call.message), call, code, message)

    def ended(self, call: Any, code: ErrorCode = ErrorCode.NONE) -> None:
        """See ``RequestMeter``."""
        self._count(type(call.message), call, code)


def _api_name(kind: type) -> str:
    return kind.__name__.removesuffix("Request")


def _noting(now: Callable[[], float], handle: Handler) -> Handler:
    def begin(call: Any) -> StepsLeft:
        call.begun_s = now()
        return handle(call)

    return begin
