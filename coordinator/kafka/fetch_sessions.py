"""Fetch sessions (KIP-227): what readers ask for is remembered, so that requests and answers say only what changed.

A full request names all its partitions and may begin a session; the answer has its id. An incremental one names the session
and its epoch, which grows with each request, and of the partitions only those that are new, ask for something else or are
forgotten. Its answer leaves out partitions without news: what has records, an error, or another high watermark, last stable
offset or log start than the client was told. A partition that had an error is told again once it has none.

Sessions are kept in memory, and are gone with the daemon. They have bounds, as Kafka's (``FetchSession.scala``): a new one
takes the place of one that was not used for ``EVICTION_MS``, or of the smallest that is older than that and has fewer
partitions; else the client gets none (id 0) and sends full requests. Beside Kafka's bound of their number, partitions of one
session and the memory of all have bounds.

Everything here is a decision: the time comes as an argument, in ms.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coordinator.kafka.codes import KafkaCode
from protocol.messages.records import FetchedPartition, FetchPartition

NO_SESSION: Final = 0
BEGINS: Final = 0
"""The epoch of a full request that is to begin a session."""
IN_NONE: Final = -1
"""The epoch of a full request that wants none."""
FIRST_EPOCH: Final = 1
_LAST_EPOCH: Final = 2**31 - 1

MAX_SESSIONS: Final = 1000
"""Kafka's max.incremental.fetch.session.cache.slots."""
EVICTION_MS: Final = 120_000
"""Kafka's min.incremental.fetch.session.eviction.ms."""
MAX_PARTITIONS: Final = 16_384
"""Of one session: as many as a full request can name, each with a topic of its own."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all sessions, as ``_cost`` counts them."""
_PARTITION_BYTES: Final = 480
"""Memory of a remembered partition, its topic aside."""

Key = tuple[str | bytes, int]
"""A partition as a client names it: topic, by name or, since version 13, by id; and index."""


@dataclass(slots=True)
class _Partition:
    """What the client asks for, and what it was told; -1 where it was told nothing that holds."""

    ask: FetchPartition
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1

    def has_news(self, data: FetchedPartition) -> bool:
        """Whether the client is to be told ``data``; what it is told is noted."""
        told = self.high_watermark, self.last_stable_offset, self.log_start_offset
        self.high_watermark = data.high_watermark
        self.last_stable_offset = data.last_stable_offset
        self.log_start_offset = data.log_start_offset
        if data.error_code or data.diverging_epoch >= 0:
            self.high_watermark = -1  # so that the client hears of the partition when the error is over
            return True
        return bool(data.records) or told != (data.high_watermark, data.last_stable_offset, data.log_start_offset)


@dataclass(slots=True)
class _Session:
    """``partitions`` are in the order in which they are read: those that had records go to the end."""

    number: int
    by_id: bool
    created_ms: int
    used_ms: int
    epoch: int = FIRST_EPOCH
    """That of the next request."""
    partitions: dict[Key, _Partition] = field(default_factory=dict)
    cost: int = 0
    evictable: tuple[int, int] | None = None
    """Its size and number, where it is old enough to make room for a larger one."""


class SessionAnswer(NamedTuple):
    """What a client is told; ``partitions`` in the order in which they were read."""

    error_code: int
    session_id: int
    partitions: Mapping[Key, FetchedPartition]


class FetchContext(NamedTuple):
    """A request that may be answered: what it reads, and to which session it belongs."""

    partitions: Mapping[Key, FetchPartition]
    answer: Callable[[dict[Key, FetchedPartition], int], SessionAnswer]
    """Given what was read of the partitions, and the time, what the client is told."""


class FetchSessions:
    """The sessions of one daemon.

    ``new_number`` draws the id of a session, from 1 to 2^31 - 1; the others are the bounds, see the module text.
    """

    def __init__(
        self,
        new_number: Callable[[], int],
        *,
        max_sessions: int = MAX_SESSIONS,
        eviction_ms: int = EVICTION_MS,
        max_partitions: int = MAX_PARTITIONS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._new_number = new_number
        self._max_sessions = max_sessions
        self._eviction_ms = eviction_ms
        self._max_partitions = max_partitions
        self._max_bytes = max_bytes
        self._sessions: dict[int, _Session] = {}  # that which was not used for longest first
        self._evictable: list[tuple[int, int]] = []  # sizes and numbers of those that are old enough, sorted
        self._cost = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._sessions)

    @property
    def memory(self) -> int:
        """Bytes that they take, about."""
        return self._cost

    def open(
        self,
        number: int,
        epoch: int,
        by_id: bool,
        asked: Mapping[Key, FetchPartition],
        forgotten: Iterable[Key],
        now_ms: int,
    ) -> FetchContext | KafkaCode:
        """What a request of the session ``number`` and ``epoch`` reads, or why it cannot be answered.

        ``by_id``: whether it names topics by id. Errors are FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, and
        FETCH_SESSION_TOPIC_ID_ERROR where the session names topics in the other way (KIP-516).
        """
        if epoch in (BEGINS, IN_NONE):
            self._remove(number)
            if epoch == IN_NONE or not asked:
                return FetchContext(asked, _of_no_session)
            return FetchContext(asked, lambda told, now_ms: self._begin(by_id, asked, told, now_ms))
        session = self._sessions.get(number)
        if session is None:
            return KafkaCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return KafkaCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR
        return self._go_on(session, asked, forgotten, now_ms)

    def _go_on(
        self, session: _Session, asked: Mapping[Key, FetchPartition], forgotten: Iterable[Key], now_ms: int
    ) -> FetchContext | KafkaCode:
        cost = session.cost
        for key, ask in asked.items():
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = _Partition(ask)
                session.cost += _cost(key)
            else:
                known.ask = ask
        for key in forgotten:
            if session.partitions.pop(key, None) is not None:
                session.cost -= _cost(key)
        self._cost += session.cost - cost
        if not session.partitions:
            self._remove(session.number)
            return FetchContext({}, _of_no_session)
        if len(session.partitions) > self._max_partitions or self._cost > self._max_bytes:
            self._remove(session.number)
            return KafkaCode.FETCH_SESSION_ID_NOT_FOUND  # upon which the client names all that it wants
        self._touch(session, now_ms)
        session.epoch = expected = next_epoch(session.epoch)
        reads = {key: partition.ask for key, partition in session.partitions.items()}
        return FetchContext(reads, lambda told, now_ms: _go_on_with(session, expected, told))

    def _begin(
        self, by_id: bool, asked: Mapping[Key, FetchPartition], told: dict[Key, FetchedPartition], now_ms: int
    ) -> SessionAnswer:
        cost = sum(map(_cost, asked))
        if not self._make_room(len(asked), cost, now_ms):
            return SessionAnswer(0, NO_SESSION, told)
        number = self._new_number()
        while number in self._sessions:
            number = self._new_number()
        session = _Session(number, by_id, now_ms, now_ms, cost=cost)
        for key, ask in asked.items():
            session.partitions[key] = partition = _Partition(ask)
            if key in told:
                partition.has_news(told[key])
        self._sessions[number] = session
        self._cost += cost
        return SessionAnswer(0, number, told)

    def _make_room(self, size: int, cost: int, now_ms: int) -> bool:
        """Whether a session of so many partitions fits; others may have to go for it."""
        if size > self._max_partitions or cost > self._max_bytes:
            return False
        while len(self._sessions) >= self._max_sessions or self._cost + cost > self._max_bytes:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None:
                return False
            if now_ms - oldest.used_ms > self._eviction_ms:
                self._remove(oldest.number)
            elif self._evictable and self._evictable[0][0] < size:
                self._remove(self._evictable[0][1])
            else:
                return False
        return True

    def _touch(self, session: _Session, now_ms: int) -> None:
        del self._sessions[session.number]
        self._sessions[session.number] = session
        session.used_ms = now_ms
        if now_ms - session.created_ms > self._eviction_ms:
            self._keep_from_eviction(session)
            session.evictable = len(session.partitions), session.number
            insort(self._evictable, session.evictable)

    def _remove(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            self._cost -= session.cost
            self._keep_from_eviction(session)

    def _keep_from_eviction(self, session: _Session) -> None:
        if session.evictable is not None:
            del self._evictable[bisect_left(self._evictable, session.evictable)]
            session.evictable = None


def next_epoch(epoch: int) -> int:
    """The epoch of the request after one with ``epoch``; behind the last comes the first again."""
    return FIRST_EPOCH if epoch == _LAST_EPOCH else epoch + 1


def _of_no_session(told: dict[Key, FetchedPartition], now_ms: int) -> SessionAnswer:
    return SessionAnswer(0, NO_SESSION, told)


def _go_on_with(session: _Session, expected: int, told: dict[Key, FetchedPartition]) -> SessionAnswer:
    """The news of ``told``. Another request of the session may have come while this one waited: that is answered."""
    if session.epoch != expected:
        return SessionAnswer(KafkaCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION, {})
    news = {}
    for key, data in told.items():
        partition = session.partitions.get(key)
        if partition is not None and partition.has_news(data):
            news[key] = data
            if data.records:
                del session.partitions[key]
                session.partitions[key] = partition
    return SessionAnswer(0, session.number, news)


def _cost(key: Key) -> int:
    return _PARTITION_BYTES + sys.getsizeof(key[0])
