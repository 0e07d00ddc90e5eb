"""The follower's side of ReplicaFetch: one task and one connection for each node that leads something followed here.

A fetch names the partitions that have something to say: where they are, which acknowledges what is below. Each is named
again when what the last answer brought is on disk, and none waits for another. While one request is held by the leader
another one may name what is ready meanwhile; the leader then answers the older at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count, islice
from typing import Final, Protocol

from coordinator.log_output import get_logger
from coordinator.replication.fetch import FetchAnswer, FetchError, FetchPartition
from coordinator.replication.partition import Incarnation
from coordinator.replication.replica import Replica
from coordinator.replication.replicas import Replicas
from coordinator.replication.throttle import Throttle
from protocol.messages import Request
from protocol.messages.replication import (
    FetchedReplica,
    ForgottenReplicas,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchTopic,
)

log = get_logger()

PURPOSE: Final = "replication"
ANSWER_TIMEOUT_S: Final = 5.0
"""How long an answer may take beyond the time that a fetch is held."""
MAX_NAMED: Final = 1_000
"""Partitions that one request names, and those that it has forgotten."""
MAX_UNDER_WAY: Final = 2
"""Requests without an answer: one that is held, and a newer one."""
POLL_DELAY_S: Final = 0.005
"""How long a request that would name nothing waits for an answer that is being carried out, to name what that was about."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
"""Pauses before a node is connected to again, and before a partition is named again of which an answer changed nothing."""

Key = tuple[str, int]
"""A partition by topic id and index."""


class PeerConnection(Protocol):
    """A connection to a leader's node; see ``server.peers.client``."""

    me: Incarnation
    peer: Incarnation
    on_lost: Callable[[], None] | None

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""

    def begin(self, request: Request, tell: Callable[[object], None], *, timeout_s: float) -> Callable[[], None]:
        """Sends a request and tells its answer."""

    def close(self) -> None:
        """Closes it."""


class Peers(Protocol):
    """Connections to other nodes; see ``server.peers.client``."""

    @property
    def me(self) -> Incarnation:
        """This node."""

    def incarnation(self, node: int) -> Incarnation | None:
        """A node as the metadata has it."""

    async def connect(self, node: int, purpose: str) -> PeerConnection:
        """A connection to a node."""


class Fetchers:
    """One fetcher a node that leads something followed here; it ends when nothing is.

    ``throttle`` is for what is not in sync.
    """

    def __init__(
        self,
        replicas: Replicas,
        peers: Peers,
        throttle: Throttle,
        *,
        max_bytes: int,
        wait_max_ms: int,
    ) -> None:
        self._new = partial(LeaderFetcher, replicas, peers, throttle, count(1).__next__, max_bytes, wait_max_ms)
        self._replicas = replicas
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._closed = False
        self._stop = replicas.on_followed(self._on_followed)

    def _on_followed(self, node: int) -> None:
        fetcher = self._fetchers.get(node)
        if fetcher is not None:
            fetcher.changed()
        elif not self._closed and self._replicas.followed(node):
            fetcher = self._fetchers[node] = self._new(node)
            fetcher.task.add_done_callback(partial(self._ended, node))

    def _ended(self, node: int, task: asyncio.Task[None]) -> None:
        del self._fetchers[node]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("replica_fetcher_failed", leader=node, exc_info=error)
            return
        self._on_followed(node)  # it may have ended a moment before there was something to follow again

    async def close(self) -> None:
        """Ends all fetchers, and what they carry out. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._stop()
        await asyncio.gather(*(fetcher.close() for fetcher in tuple(self._fetchers.values())))


class LeaderFetcher:
    """Fetches from one node until nothing follows it. ``task`` is the whole of it."""

    def __init__(
        self,
        replicas: Replicas,
        peers: Peers,
        throttle: Throttle,
        next_session: Callable[[], int],
        max_bytes: int,
        wait_max_ms: int,
        node: int,
    ) -> None:
        self.node = node
        self._replicas = replicas
        self._peers = peers
        self._throttle = throttle
        self._next_session = next_session
        self._max_bytes = max_bytes
        self._wait_max_ms = wait_max_ms
        self._loop = asyncio.get_running_loop()
        self._followed: Mapping[Key, Replica] = {}
        self._epochs: dict[Key, int] = {}
        """What is followed, and the leader epoch that it was named in last or is to be."""
        self._to_name: dict[Key, None] = {}
        """What is to be named, in the order in which it became ready."""
        self._unasked: dict[Key, None] = {}
        """What had nothing to ask when it was to be named."""
        self._named: dict[Key, FetchPartition] = {}
        """What the leader has not delivered yet."""
        self._forgotten: dict[Key, None] = {}
        """What the leader is to be told that it is not followed any more, before it is named again."""
        self._taking: dict[Key, asyncio.Task[None]] = {}
        self._taken: dict[Key, FetchPartition] = {}
        """With what was asked for that which was carried out last: to ask the same again means it changed nothing."""
        self._pauses: dict[Key, tuple[float, asyncio.TimerHandle]] = {}
        self._throttled: dict[Key, None] = {}
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._is_poll_due = False
        self._held_bytes = 0
        """Of answers that are being carried out."""
        self._asked_bytes = 0
        """Of answers that may come."""
        self._under_way = 0
        self._connection: PeerConnection | None = None
        self._session = 0
        self._over: asyncio.Future[str] | None = None
        self._is_scheduled = False
        self._woken = asyncio.Event()
        self.task = self._loop.create_task(self._run(), name=f"cohort-fetch-from-{node}")

    def changed(self) -> None:
        """What is followed has changed, or something has to be asked."""
        self._woken.set()
        self._pump_soon()

    async def close(self) -> None:
        """Ends it, and what it carries out."""
        self.task.cancel()
        taking = tuple(self._taking.values())
        for task in taking:
            task.cancel()
        await asyncio.gather(self.task, *taking, return_exceptions=True)

    async def _run(self) -> None:
        pause_s, told = _FIRST_PAUSE_S, ""
        try:
            while self._replicas.followed(self.node):
                self._woken.clear()
                peer, began_s = self._peers.incarnation(self.node), self._loop.time()
                try:
                    reason = await self._follow()
                except Exception as error:
                    log.exception("replica_fetcher_failed", leader=self.node)
                    reason = repr(error)
                if self._loop.time() - began_s > ANSWER_TIMEOUT_S:
                    pause_s, told = _FIRST_PAUSE_S, ""
                if reason != told:
                    log.info("replica_fetch_ended", leader=self.node, reason=reason)
                    told = reason
                await self._pause(pause_s, peer)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._forget_timers()

    async def _pause(self, pause_s: float, peer: Incarnation | None) -> None:
        """Waits before the next connection, unless the node has registered again meanwhile."""
        end_s = self._loop.time() + pause_s
        while self._peers.incarnation(self.node) == peer and self._replicas.followed(self.node):
            try:
                async with asyncio.timeout_at(end_s):
                    await self._woken.wait()
            except TimeoutError:
                return
            self._woken.clear()

    async def _follow(self) -> str:
        """Follows by one connection; returns why it ended."""
        try:
            connection = await self._peers.connect(self.node, PURPOSE)
        except ConnectionError as error:
            return str(error)
        self._connection, self._session = connection, self._next_session()
        over: asyncio.Future[str] = self._loop.create_future()
        self._over = over
        connection.on_lost = partial(self._end, "the connection is lost")
        self._woken.set()
        self._to_name = dict.fromkeys(key for key in self._epochs if key not in self._taking)
        self._pump()
        try:
            return await over
        finally:
            connection.on_lost = None
            connection.close()  # what is under way is told that it was lost
            self._connection = self._over = None
            self._under_way = self._asked_bytes = 0
            self._named.clear()
            self._forgotten.clear()

    def _end(self, reason: str) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(reason)

    def _forget_timers(self) -> None:
        pauses = [timer for _, timer in self._pauses.values()]
        for timer in (*pauses, self._throttle_timer, self._poll_timer):
            if timer is not None:
                timer.cancel()

    # Asking

    def _pump_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Looks at what is followed and names what is ready, as far as requests may be under way."""
        self._is_scheduled = False
        connection = self._connection
        if connection is None or self._over is None or self._over.done():
            return
        try:
            self._ask_all(connection)
        except Exception as error:
            self._over.set_exception(error)

    def _ask_all(self, connection: PeerConnection) -> None:
        if (connection.me, connection.peer) != (self._peers.me, self._peers.incarnation(self.node)):
            self._end("one of the two nodes has registered again")
            return
        if self._woken.is_set():
            self._woken.clear()
            self._compare()
            if not self._followed:
                self._end("nothing follows it any more")
                return
        while self._under_way < MAX_UNDER_WAY and self._ask(connection):
            pass

    def _compare(self) -> None:
        """Takes over what is followed now."""
        followed = self._followed = self._replicas.followed(self.node)
        epochs, unasked = self._epochs, self._unasked
        for key in [key for key in epochs if key not in followed]:
            del epochs[key]
            self._to_name.pop(key, None)
            self._taken.pop(key, None)
            self._end_pause(key)
            if self._named.pop(key, None) is not None:
                self._forgotten[key] = None
        for key, replica in followed.items():
            if epochs.get(key) != replica.leader_epoch or key in unasked:
                epochs[key] = replica.leader_epoch
                self._named.pop(key, None)
                self._end_pause(key)
                self._ready(key)
        unasked.clear()

    def _ready(self, key: Key) -> None:
        if key in self._epochs and key not in self._taking and key not in self._named:
            self._to_name[key] = None

    def _ask(self, connection: PeerConnection) -> bool:
        """Sends a request if there is something to say; returns whether there may be more."""
        room = 2 * self._max_bytes - self._held_bytes - self._asked_bytes
        max_bytes = min(self._max_bytes, room) if room >= self._max_bytes // 4 else 0
        forgotten = self._some_forgotten()
        topics = self._names()
        if not topics and not forgotten:
            if not self._named or not max_bytes or self._asked_bytes:
                return bool(self._to_name)
            if self._taking and not self._is_poll_due:
                self._poll_soon()
                return bool(self._to_name)
        request = ReplicaFetchRequest(
            self._session,
            self._wait_max_ms,
            max_bytes,
            tuple(ReplicaFetchTopic(topic_id, tuple(named)) for topic_id, named in topics.items()),
            tuple(ForgottenReplicas(topic_id, (index,)) for topic_id, index in forgotten),
        )
        tell = partial(self._answered, connection, max_bytes)
        try:
            connection.begin(request, tell, timeout_s=self._wait_max_ms / 1000 + ANSWER_TIMEOUT_S)
        except ConnectionError as error:
            self._end(str(error))
            return False
        self._under_way += 1
        self._asked_bytes += max_bytes
        return bool(self._to_name or self._forgotten)

    def _some_forgotten(self) -> list[Key]:
        """As many as one request has room for, beside those that it names."""
        some = list(islice(self._forgotten, MAX_NAMED))
        for key in some:
            del self._forgotten[key]
        return some

    def _poll_soon(self) -> None:
        if self._poll_timer is None:
            self._poll_timer = self._loop.call_later(POLL_DELAY_S, self._on_poll)

    def _on_poll(self) -> None:
        self._poll_timer, self._is_poll_due = None, True
        self._pump()
        self._is_poll_due = False

    def _names(self) -> dict[str, list[ReplicaFetchPartition]]:
        """What is ready to be named, by topic id."""
        topics: dict[str, list[ReplicaFetchPartition]] = {}
        for key in tuple(islice(self._to_name, MAX_NAMED)):
            if key in self._forgotten:
                continue  # it is named in the request that has it forgotten, or later
            del self._to_name[key]
            replica = self._followed.get(key)
            if replica is None or self._is_throttled(key, replica):
                continue
            request = replica.ask()
            before = self._taken.pop(key, None)
            if request is None:
                self._unasked[key] = None
            elif request == before:
                self._pause_partition(key)
            else:
                if before is not None:
                    self._end_pause(key)
                self._named[key] = request
                named = ReplicaFetchPartition(key[1], *request[1:])
                topics.setdefault(key[0], []).append(named)
        return topics

    def _is_throttled(self, key: Key, replica: Replica) -> bool:
        if not self._throttle.is_on or self._in_sync(replica):
            return False
        wait_s = self._throttle.wait_s(self._loop.time())
        if wait_s <= 0:
            return False
        self._throttled[key] = None
        if self._throttle_timer is None:
            self._throttle_timer = self._loop.call_later(wait_s, self._on_throttle)
        return True

    def _in_sync(self, replica: Replica) -> bool:
        node, broker_epoch = self._peers.me
        known = replica.registration
        return known is not None and known.isr.get(node) == broker_epoch

    def _on_throttle(self) -> None:
        self._throttle_timer = None
        throttled, self._throttled = self._throttled, {}
        for key in throttled:
            self._ready(key)
        self._pump_soon()

    def _pause_partition(self, key: Key) -> None:
        """Names a partition again after a while: what the leader said of it is of no use yet, and would be the same."""
        pause_s, _ = self._pauses.get(key, (_FIRST_PAUSE_S / 2, None))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._pauses[key] = (pause_s, self._loop.call_later(pause_s, self._on_paused, key))

    def _on_paused(self, key: Key) -> None:
        self._ready(key)
        self._pump_soon()

    def _end_pause(self, key: Key) -> None:
        pause = self._pauses.pop(key, None)
        if pause is not None:
            pause[1].cancel()

    # Answers

    def _answered(self, connection: PeerConnection, asked_bytes: int, outcome: object) -> None:
        if connection is not self._connection:
            return
        self._under_way -= 1
        self._asked_bytes -= asked_bytes
        if not isinstance(outcome, ReplicaFetchResponse):
            self._end(str(outcome))
            return
        if outcome.error_code:
            self._end(outcome.error_message)
            return
        for topic in outcome.responses:
            for fetched in topic.partitions:
                key = (topic.topic_id, fetched.partition)
                request = self._named.pop(key, None)
                replica = self._followed.get(key)
                if request is not None and replica is not None:
                    self._take(key, replica, request, _answer_of(fetched, request.follower))
        self._pump_soon()

    def _take(self, key: Key, replica: Replica, request: FetchPartition, answer: FetchAnswer) -> None:
        """Has an answer carried out."""
        if answer.error_code not in (FetchError.NONE, FetchError.OFFSET_OUT_OF_RANGE):
            self._pause_partition(key)
            return
        size = len(answer.records)
        if size or answer.error_code or answer.diverging_end >= 0:
            self._taken[key] = request
        else:
            self._end_pause(key)
        self._held_bytes += size
        if size and self._throttle.is_on and not self._in_sync(replica):
            self._throttle.spend(size, self._loop.time())
        task = self._loop.create_task(replica.take(answer), name="cohort-replica-take")
        self._taking[key] = task
        task.add_done_callback(partial(self._on_taken, key, size))

    def _on_taken(self, key: Key, size: int, task: asyncio.Task[None]) -> None:
        del self._taking[key]
        self._held_bytes -= size
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("replica_answer_not_taken", topic_id=key[0], partition=key[1], exc_info=error)
        self._ready(key)
        self._pump_soon()


def _answer_of(fetched: FetchedReplica, me: Incarnation) -> FetchAnswer:
    return FetchAnswer(
        fetched.leader_epoch,
        me.broker_epoch,
        fetched.fetch_offset,
        fetched.last_fetched_epoch,
        FetchError(fetched.error_code),
        fetched.diverging_epoch,
        fetched.diverging_end_offset,
        fetched.high_watermark,
        fetched.log_start_offset,
        fetched.clean_until,
        tuple((epoch.leader_epoch, epoch.start_offset) for epoch in fetched.epochs),
        fetched.records,
        fetched.producers,
    )
