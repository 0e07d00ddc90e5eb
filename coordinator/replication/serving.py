"""The leader's side of ReplicaFetch: what each follower has named is served when there is something new about it.

A follower has one session, which is one connection, and one request that is held. What is new is noted by partition and
answered once a turn of the loop, so that many appends in a turn make one answer. A high watermark that has moved waits a
little for records to travel with: nothing hurries that only knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from coordinator.log_output import get_logger
from coordinator.replication.fetch import FetchAnswer, FetchError, FetchPartition
from coordinator.replication.partition import Incarnation
from coordinator.replication.replica import Replica
from coordinator.replication.replicas import Replicas
from coordinator.replication.sessions import ReplicaSession, ReplicaSessions
from protocol.errors import ErrorCode
from protocol.messages import Response
from protocol.messages.replication import (
    FetchedReplica,
    FetchedReplicaTopic,
    PeerErrorCode,
    ReplicaEpoch,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)

log = get_logger()

PARTITION_BYTES: Final = 1024 * 1024
"""Of records of one partition in one answer, so that one that is far behind does not keep the others waiting."""
HIGH_WATERMARK_DELAY_S: Final = 0.1
"""How long a high watermark that moved waits for records to travel with, at most twice that."""
MAX_ENTRIES: Final = 1_000
"""Partitions in one answer, and those that one turn of the loop looks at."""
STEP: Final = 64
"""Partitions that are named in one step of a request."""

Key = tuple[str, int]
"""A partition by topic id and index."""

Epochs = tuple[tuple[int, int], ...]
_Entry = tuple[Key, FetchAnswer, bytes, Epochs]
"""What is told of a partition, its records, and their epochs."""

_NOTHING: Final = ReplicaFetchResponse(PeerErrorCode.NONE)


class FetchCall(Protocol):
    """A request under way, and the way back for its answer."""

    def answer(self, response: Response) -> None:
        """Sends the answer; does nothing when the connection is gone."""


class ReplicaServing:
    """Serves the followers of what this node leads."""

    def __init__(self, replicas: Replicas, *, max_bytes: int, max_wait_ms: int) -> None:
        self._replicas = replicas
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._sessions: ReplicaSessions[Key] = ReplicaSessions()
        self._served: dict[int, _FollowerSession] = {}

    def fetch(
        self, follower: Incarnation, connection: int, request: ReplicaFetchRequest, call: FetchCall
    ) -> Iterator[None]:
        """Takes a follower's request in steps; it is answered when there is something new, or its time is over."""
        served = self._session(follower, connection, request.session)
        over = f"session {request.session} of node {follower.node} is over: it has begun another one since"
        if served is None:
            call.answer(ReplicaFetchResponse(PeerErrorCode.INVALID_FETCH_SESSION_EPOCH, error_message=over))
            return
        self._replicas.heard(follower)
        for topic in request.forgotten:
            served.forget([(topic.topic_id, index) for index in topic.partitions])
        named = 0
        for asked in request.topics:
            for partition in asked.partitions:
                served.name((asked.topic_id, partition.partition), FetchPartition(follower, *_fields(partition)))
                named += 1
                if named % STEP == 0:
                    yield
                    if served.session.ended:
                        call.answer(ReplicaFetchResponse(PeerErrorCode.INVALID_FETCH_SESSION_EPOCH, error_message=over))
                        return
        wait_ms = min(max(request.max_wait_ms, 0), self._max_wait_ms)
        served.hold(call, wait_ms / 1000, min(max(request.max_bytes, 0), self._max_bytes))

    def _session(self, follower: Incarnation, connection: int, number: int) -> _FollowerSession | None:
        session = self._sessions.open(follower, number)
        if session is None:
            return None
        served = self._served.get(follower.node)
        if served is None or served.session is not session:
            if served is not None:
                served.end()
            served = self._served[follower.node] = _FollowerSession(self._replicas.by_id, session, connection)
        return served if served.connection == connection else None

    def closed(self, connection: int) -> None:
        """A connection is gone, and with it the session that it was."""
        for node, served in self._served.items():
            if served.connection == connection:
                served.end()
                del self._served[node]
                return


class _Held(NamedTuple):
    """The request that waits for news."""

    call: FetchCall
    max_bytes: int
    timer: asyncio.TimerHandle


class _FollowerSession:
    """One follower's session: what it has named, what is new of that, and its request that is held."""

    def __init__(self, replicas: Mapping[Key, Replica], session: ReplicaSession[Key], connection: int) -> None:
        self.session = session
        self.connection = connection
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._watched: dict[Key, tuple[Replica, Callable[[], object]]] = {}
        self._told: dict[Key, FetchAnswer] = {}
        """What the follower was told last of a partition, without records."""
        self._errors: dict[Key, FetchAnswer] = {}
        """What hurries: errors, and logs that differ."""
        self._ready: dict[Key, None] = {}
        """Where something may be new, in the order in which it came."""
        self._quiet: dict[Key, None] = {}
        """Where nothing but the high watermark has moved lately; the others, where that was so a while ago, are due soon."""
        self._long_quiet: dict[Key, None] = {}
        self._due: dict[Key, None] = {}
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._held: _Held | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_scheduled = False

    def name(self, key: Key, request: FetchPartition) -> None:
        """The follower asks for what comes next in a partition, and acknowledges what it has."""
        self._errors.pop(key, None)
        replica = self._replicas.get(key)
        if replica is None:
            self._put_error(key, _unknown(request))
            return
        refusal = replica.acknowledged(request)
        if refusal is not None:
            self._put_error(key, refusal)
            return
        watched = self._watched.get(key)
        if watched is None or watched[0] is not replica:
            self._unwatch(key)
            self._watched[key] = (replica, replica.on_news(partial(self._has_news, key)))
        self.session.arm(key, request)
        told = self._told.get(key)
        if replica.has_news(request, told):
            if self._may_wait(replica, request, told):
                self._wait_quietly(key)
            else:
                self._ready[key] = None

    def forget(self, keys: Sequence[Key]) -> None:
        """The follower does not follow these any more."""
        self.session.forget(keys)
        for key in keys:
            self._not_told(key)
            self._errors.pop(key, None)
            self._ready.pop(key, None)

    def hold(self, call: FetchCall, wait_s: float, max_bytes: int) -> None:
        """The request of now; an older one is answered at once."""
        self._release(_NOTHING)
        timer = self._loop.call_later(wait_s, self._release, _NOTHING)
        self._held = _Held(call, max_bytes, timer)
        if self._ready or self._errors:
            self._serve()

    def end(self) -> None:
        """The connection is gone, or another one has taken its place."""
        self.session.end()
        self._release(_NOTHING)
        for key in tuple(self._watched):
            self._unwatch(key)
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    def _release(self, response: ReplicaFetchResponse) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.timer.cancel()
            held.call.answer(response)

    def _unwatch(self, key: Key) -> None:
        watched = self._watched.pop(key, None)
        if watched is not None:
            watched[1]()

    def _put_error(self, key: Key, answer: FetchAnswer) -> None:
        self.session.forget((key,))
        self._not_told(key)
        self._ready.pop(key, None)
        self._errors[key] = answer

    def _not_told(self, key: Key) -> None:
        """The follower gets an error: it names the partition again, or never, as it says of none that is gone."""
        self._told.pop(key, None)
        self._unwatch(key)

    def _has_news(self, key: Key) -> None:
        request = self.session.armed(key)
        if request is None:
            return
        if self._may_wait(self._watched[key][0], request, self._told.get(key)):
            self._wait_quietly(key)
        else:
            self._ready[key] = None
            self._serve_soon()

    def _may_wait(self, replica: Replica, request: FetchPartition, told: FetchAnswer | None) -> bool:
        """Whether nothing but the high watermark, or what is compacted, can be news: those travel with records."""
        leading = replica.leading
        return (
            leading is not None
            and told is not None
            and request.leader_epoch == leading.core.leader_epoch
            and request.fetch_offset >= leading.core.readable_end
            and told.log_start_offset == leading.log.start_offset
        )

    def _serve_soon(self) -> None:
        if self._held is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._is_scheduled = False
        self._serve()

    def _serve(self) -> None:
        """Answers the request that is held if there is something to say."""
        held = self._held
        if held is None or self._reading is not None:
            return
        if len(self._ready) == 1 and not self._errors and (entry := self._only_entry(held.max_bytes)) is not None:
            self._release(_response((entry,)))
            return
        looked_at = len(self._ready) > MAX_ENTRIES
        found, taken = self._look(held.max_bytes)
        found |= self._errors
        self._errors.clear()
        entries, left = self._without_records(found, held.max_bytes)
        while taken and (entry := self._at_hand(*taken[0], min(left, PARTITION_BYTES))) is not None:
            del taken[0]
            left -= len(entry[2])
            entries.append(entry)
        if taken:
            self._held = None
            held.timer.cancel()
            self._reading = self._loop.create_task(self._read(held, left, entries, taken), name="cohort-replica-read")
        elif entries:
            self._release(_response(entries))
        elif looked_at and held.max_bytes > 0:
            self._serve_soon()  # at the others

    def _without_records(self, found: Mapping[Key, FetchAnswer], left: int) -> tuple[list[_Entry], int]:
        """Answers without records, and how many bytes more there may be.

        A follower that is to begin anew is told with them which producers wrote below: that takes room, and without any it
        has to wait for the next answer.
        """
        entries: list[_Entry] = []
        for key, answer in found.items():
            if answer.error_code is FetchError.OFFSET_OUT_OF_RANGE and (replica := self._replicas.get(key)) is not None:
                if left <= 0:
                    self._errors[key] = answer
                    continue
                told = answer._replace(
                    producers=replica.producers_below(answer.log_start_offset, min(left, PARTITION_BYTES))
                )
                left -= len(told.producers)
                entries.append((key, told, b"", ()))
            else:
                entries.append((key, answer, b"", ()))
        return entries, left

    def _only_entry(self, max_bytes: int) -> _Entry | None:
        """The whole answer where one partition alone has news and its records are at hand; takes it then."""
        (key,) = self._ready
        request = self.session.armed(key)
        if request is None:
            return None
        entry = self._at_hand(key, request, min(max_bytes, PARTITION_BYTES))
        if entry is not None:
            self.session.forget((key,))
            del self._ready[key]
            self._due.pop(key, None)
        return entry

    def _look(self, max_bytes: int) -> tuple[dict[Key, FetchAnswer], list[tuple[Key, FetchPartition]]]:
        """Where there is something to tell without records, and what is to be read."""
        found: dict[Key, FetchAnswer] = {}
        look = partial(self._look_at, found, min(PARTITION_BYTES, max_bytes) or PARTITION_BYTES)
        looked_at = tuple(islice(self._ready, MAX_ENTRIES))
        if max_bytes > 0:
            taken = self.session.take(look, max_bytes, PARTITION_BYTES, looked_at)
        else:
            taken = []
            for key in looked_at:
                request = self.session.armed(key)
                if request is not None:
                    look(key, request, 0)
        for key in looked_at:
            if self.session.armed(key) is None:
                self._ready.pop(key, None)
        self.session.forget(found)
        return found, taken

    def _look_at(self, found: dict[Key, FetchAnswer], most: int, key: Key, request: FetchPartition, room: int) -> int:
        """How many bytes there are to read, up to ``most``; notes what there is to tell without any.

        Whatever the ``room``: where not all of it fits in not even a first batch may, so that it has to wait its turn.
        """
        replica = self._replicas.get(key)
        answer = self._answer(replica, request)
        if replica is None or answer.error_code is not FetchError.NONE:
            self._not_told(key)
            found[key] = answer
            return 0
        is_due = key in self._due
        self._due.pop(key, None)
        size = replica.readable_bytes(request.fetch_offset, most)
        if size > 0:
            return size
        self._ready.pop(key, None)
        told = self._told.get(key)
        if replica.has_news(request, told):
            if is_due or told is None or told.log_start_offset != answer.log_start_offset:
                self._tell(key, answer)
                found[key] = answer
            else:
                self._wait_quietly(key)
        return 0

    def _wait_quietly(self, key: Key) -> None:
        if key not in self._long_quiet:
            self._quiet[key] = None
        if self._quiet_timer is None:
            self._quiet_timer = self._loop.call_later(HIGH_WATERMARK_DELAY_S, self._on_quiet)

    def _on_quiet(self) -> None:
        self._quiet_timer = None
        due, self._long_quiet, self._quiet = self._long_quiet, self._quiet, {}
        if self._long_quiet:
            self._quiet_timer = self._loop.call_later(HIGH_WATERMARK_DELAY_S, self._on_quiet)
        for key in due:
            if self.session.armed(key) is not None:
                self._due[key] = self._ready[key] = None
        self._serve()

    def _tell(self, key: Key, answer: FetchAnswer) -> None:
        """The follower is told this of a partition, and its high watermark."""
        self._told[key] = answer
        self._quiet.pop(key, None)
        self._long_quiet.pop(key, None)

    def _answer(self, replica: Replica | None, request: FetchPartition) -> FetchAnswer:
        """What there is to tell now to a request that was taken, without records."""
        if replica is None:
            return _unknown(request)
        leader = replica.leader
        if leader is None or leader.leader_epoch != request.leader_epoch:
            refusal = replica.acknowledged(request)
            assert refusal is not None, "a request of another epoch is refused"
            return refusal
        return leader.answer(request)

    def _at_hand(self, key: Key, request: FetchPartition, max_bytes: int) -> _Entry | None:
        """What is told of a partition whose records are being synced; None when they have to be read."""
        replica = self._replicas.get(key)
        found = (b"", Epochs()) if replica is None else replica.just_written(request.fetch_offset, max_bytes)
        if not found[0]:
            return None
        answer = self._answer(replica, request)
        if answer.error_code is not FetchError.NONE:
            return None
        self._tell(key, answer)
        return key, answer, *found

    async def _read(
        self, held: _Held, left: int, entries: list[_Entry], taken: Sequence[tuple[Key, FetchPartition]]
    ) -> None:
        """Answers a request with records from the disk; ``left`` is how many bytes more it may have."""
        response = _NOTHING
        try:
            for key, request in taken:
                entry = await self._read_partition(key, request, max(0, min(left, PARTITION_BYTES)))
                if key in self._errors:
                    continue  # told with the next answer
                if entry is None or (len(entry[2]) > left and left < held.max_bytes):
                    self._arm_again(key, request, is_ready=entry is not None)
                else:
                    left -= len(entry[2])
                    entries.append(entry)
            response = _response(entries)
        except Exception:
            log.exception("replica_fetch_failed", follower=self.session.follower.node)
            text = "the leader failed unexpectedly; its log has the cause"
            response = ReplicaFetchResponse(ErrorCode.UNKNOWN_SERVER_ERROR, error_message=text)
        finally:
            self._reading = None
            held.call.answer(response)
        self._serve()

    def _arm_again(self, key: Key, request: FetchPartition, is_ready: bool) -> None:
        """What was to be served is not: there is nothing after all, or a batch is larger than all and has to come alone."""
        if self.session.armed(key) is None:  # else the follower has named it again meanwhile
            self.session.arm(key, request)
        if is_ready:
            self._ready[key] = None

    async def _read_partition(self, key: Key, request: FetchPartition, max_bytes: int) -> _Entry | None:
        """What is told of a partition; None when there is nothing after all."""
        replica = self._replicas.get(key)
        records, epochs = b"", Epochs()
        if replica is not None:
            told = self._told.get(key)
            again = told is not None and told.fetch_offset == request.fetch_offset
            records, epochs = await replica.read_for_follower(request.fetch_offset, max_bytes, checks_bodies=again)
        answer = self._answer(self._replicas.get(key), request)  # it may have changed meanwhile
        if answer.error_code is not FetchError.NONE:
            self._put_error(key, answer)
            return None
        if not records:
            return None
        self._tell(key, answer)
        return key, answer, records, epochs


def _unknown(request: FetchPartition) -> FetchAnswer:
    return FetchAnswer(
        request.leader_epoch,
        request.follower.broker_epoch,
        request.fetch_offset,
        request.last_epoch,
        FetchError.UNKNOWN_TOPIC_OR_PARTITION,
    )


def _fields(asked: ReplicaFetchPartition) -> tuple[int, int, int, int]:
    return asked.leader_epoch, asked.fetch_offset, asked.last_fetched_epoch, asked.log_start_offset


def _response(entries: Iterable[_Entry]) -> ReplicaFetchResponse:
    topics: dict[str, list[FetchedReplica]] = {}
    for (topic_id, index), answer, records, epochs in entries:
        fetched = FetchedReplica(
            index,
            answer.error_code,
            answer.leader_epoch,
            answer.fetch_offset,
            answer.last_epoch,
            answer.diverging_epoch,
            answer.diverging_end,
            answer.high_watermark,
            answer.log_start_offset,
            answer.clean_until,
            tuple(ReplicaEpoch(*epoch) for epoch in epochs),
            records,
            answer.producers,
        )
        topics.setdefault(topic_id, []).append(fetched)
    responses = tuple(FetchedReplicaTopic(topic_id, tuple(fetched)) for topic_id, fetched in topics.items())
    return ReplicaFetchResponse(PeerErrorCode.NONE, responses)
