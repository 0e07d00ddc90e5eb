"""A client's metadata of the cluster, its connections, and its requests with their retries.

A ``Cluster`` keeps one connection a node, a picture of topics and leaders that the daemon pushes as it changes (Metadata is
a long poll), and the coordinators of groups and of transactional ids. ``call`` and ``call_coordinator`` are the only places
that retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from random import Random
from typing import Final, TypeVar

from client.errors import (
    ClosedError,
    CohortError,
    ConnectionLostError,
    LeaderNotAvailableError,
    NotADaemonError,
    error_for,
)
from client.log import get_logger
from client.transport.connection import Connection
from client.transport.deadline import Deadline
from client.transport.metadata import Address, Topology, parse_bootstrap_servers
from client.transport.request_limits import joined, pieces_of
from client.transport.retry import Backoff, retrying
from protocol.errors import ErrorCode
from protocol.messages import ApiKey, Request, Response
from protocol.messages.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from protocol.messages.groups import DeleteGroupsResponse, DescribeGroupsResponse
from protocol.messages.offsets import OffsetCommitResponse
from protocol.messages.transactions import DescribeTransactionsResponse, TxnOffsetCommitResponse
from protocol.subscription import TopicPartition

ResponseT = TypeVar("ResponseT", bound=Response)

_WATCH_MS: Final = 30_000
_ANSWER_MARGIN_S: Final = 5.0
_GATHER_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 10.0
GREETING_TIMEOUT_S: Final = 4.0
"""How long a new connection may be without an answer before it is given up."""
_NOTICE_S: Final = 4.5
"""A client that starts says after so long that no daemon has answered yet."""
COORDINATOR_MOVED: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""The error codes of a node that does not coordinate what was asked for, or not yet."""

log = get_logger()


class CoordinatorKey(IntEnum):
    """What a coordinator is asked for by."""

    GROUP = 0
    TRANSACTIONAL_ID = 1

    def names(self, key: str) -> str:
        """A key with its kind, for people."""
        return f"{'group' if self is CoordinatorKey.GROUP else 'transactional id'} {key!r}"


class Cluster:
    """Connections, metadata and retries of one client on one event loop.

    ``bootstrap_servers`` is ``"host:port"``, several joined by commas, or a sequence of them. ``request_timeout_ms``
    bounds each single request. ``random`` draws the jitter of retries.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        random: Random | None = None,
    ) -> None:
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.backoff = Backoff(random or Random())
        self.topology = Topology.unknown()
        self._bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self._connections: dict[tuple[str, int], Connection] = {}
        self._request_bytes: dict[Address, dict[int, int]] = {}  # what each node takes, by API key
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._coordinators: dict[tuple[CoordinatorKey, str], tuple[str, int]] = {}
        self._tracked: set[str] | None = set()  # None: every topic
        self._listeners: list[Callable[[Topology], None]] = []
        self._watch: asyncio.Task[None] | None = None
        self._watch_again = asyncio.Event()
        self._started = False
        self._unreachable = ""  # why no node could be reached the last time it was tried

    async def start(self, deadline: Deadline | None = None) -> None:
        """Fetches the first metadata. Raises ``RequestTimedOutError`` when no bootstrap server answers in time."""
        self._started = True
        notice = asyncio.get_running_loop().call_later(_NOTICE_S, self._warn_no_answer, self._deadline(deadline))
        try:
            await self.refresh(deadline)
        finally:
            notice.cancel()
        self._watch = asyncio.create_task(self._watch_metadata(), name=f"cohort-metadata-{self.client_id}")

    def _warn_no_answer(self, deadline: Deadline) -> None:
        log.warning(
            "no_daemon_answers",
            servers=", ".join(f"{host}:{port}" for host, port in self._bootstrap),
            reason=self._unreachable or "the connection is not there yet",
            giving_up_in_s=round(deadline.remaining_s()),
        )

    async def close(self) -> None:
        """Closes every connection; requests under way on them fail with ``ConnectionLostError``.

        Connections are closed before anything is waited for: a call that is cancelled leaves none open.
        """
        self._started = False
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None

    def track(self, topics: Iterable[str] | None) -> None:
        """Keeps these topics in the picture from now on, beside those tracked before; ``None`` tracks every topic."""
        if topics is None:
            changed, self._tracked = self._tracked is not None, None
        elif self._tracked is None:
            return
        else:
            fresh = set(topics) - self._tracked
            changed = bool(fresh)
            self._tracked |= fresh
        if changed:
            self._watch_again.set()

    def on_change(self, listener: Callable[[Topology], None]) -> Callable[[], None]:
        """Calls ``listener`` with each new picture of the cluster; returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def refresh(self, deadline: Deadline | None = None) -> Topology:
        """The picture as it is now, fetched from any node that answers."""
        request = self._metadata_request(0, 0)
        self._learn(request, await self.call(request, MetadataResponse, deadline=deadline))
        return self.topology

    async def topic_partitions(self, topic: str, deadline: Deadline | None = None) -> int:
        """How many partitions a topic has. Raises ``UnknownTopicOrPartitionError`` when it does not exist.

        One that exists is in the picture from now on.
        """
        if topic not in self.topology.topics:
            request = MetadataRequest((topic,), 0, 0)
            found = Topology.of(await self.call(request, MetadataResponse, deadline=deadline))
            if found.cluster_id != self.topology.cluster_id or found.revision < self.topology.revision:
                self.track([topic])
                await self.refresh(deadline)  # this answer is of another time than the picture
            else:
                found.partitions(topic)  # raises when there is none
                self.topology = self.topology.with_more(found)
                self.track([topic])
        return self.topology.partitions(topic)

    async def connection_to_leader(self, partition: TopicPartition) -> Connection:
        """A connection to the node that leads ``partition``; no retry: raises what is wrong at the moment."""
        leader = self.topology.leader(partition)
        if leader is None:
            raise LeaderNotAvailableError(f"{partition.topic}-{partition.partition} has no leader at the moment")
        return await self._connection(leader)

    def open_connection(self, address: Address) -> Connection | None:
        """The connection to a node if there is one, now."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed or not self._started else connection

    def connection_to_known(self, key: str, key_type: CoordinatorKey) -> Connection | None:
        """The connection to the coordinator of a group or transactional id, if both are there, now."""
        address = self._coordinators.get((key_type, key))
        return None if address is None else self.open_connection(address)

    def max_request_bytes(self, api_key: ApiKey, address: Address | None = None) -> int:
        """The largest payload of a frame with such a request that a node said it takes; without an address the least of all.

        0 when none has said anything of it.
        """
        if address is not None:
            return self._request_bytes.get(address, {}).get(api_key, 0)
        told = (sizes.get(api_key, 0) for sizes in self._request_bytes.values())
        return min((size for size in told if size), default=0)

    async def call(
        self, request: Request, response_type: type[ResponseT], *, deadline: Deadline | None = None
    ) -> ResponseT:
        """The answer of any node that gives one, tried again on another node until the deadline.

        A request with more entries than a daemon takes is sent as several, one after the other: see ``pieces_of``.
        """
        bound = self._deadline(deadline)
        pieces = pieces_of(request)
        if len(pieces) > 1:
            return joined(request, [await self.call(piece, response_type, deadline=bound) for piece in pieces])

        async def once() -> ResponseT:
            connection = await self._any_connection()
            return await self._request(connection, request, response_type, bound)

        return await retrying(once, deadline=bound, backoff=self.backoff, what=f"{type(request).__name__}")

    async def call_coordinator(
        self,
        key: str,
        request: Request,
        response_type: type[ResponseT],
        *,
        key_type: CoordinatorKey = CoordinatorKey.GROUP,
        deadline: Deadline | None = None,
        wait_ms: int = 0,
        before_attempt: Callable[[], None] | None = None,
    ) -> ResponseT:
        """The answer of the coordinator of a group or transactional id, found again when it has moved or is not ready yet.

        ``wait_ms`` is how long the daemon may rightly hold the request (a join, a long poll); it extends the time
        allowed for a single attempt. ``before_attempt`` may raise to end the trying. Error codes other than those about the
        coordinator itself are left to the caller. A request with too many entries is sent as several, see ``pieces_of``.
        """
        bound = self._deadline(deadline, wait_ms)
        pieces = pieces_of(request)
        if len(pieces) > 1:
            answers = [
                await self.call_coordinator(
                    key,
                    piece,
                    response_type,
                    key_type=key_type,
                    deadline=bound,
                    wait_ms=wait_ms,
                    before_attempt=before_attempt,
                )
                for piece in pieces
            ]
            return joined(request, answers)

        async def once() -> ResponseT:
            address = await self._coordinator(key_type, key, bound)
            try:
                connection = await self._connection(address)
                if before_attempt is not None:
                    before_attempt()
                response = await self._request(connection, request, response_type, bound, wait_ms)
            except ConnectionLostError:
                self._coordinators.pop((key_type, key), None)
                raise
            moved = _coordinator_error(response)
            if moved is not None:
                self._coordinators.pop((key_type, key), None)
                said = getattr(response, "error_message", "") or getattr(response, "message", "")
                raise error_for(moved, f"{key_type.names(key)} at {connection.peer}{': ' if said else ''}{said}")
            return response

        return await retrying(
            once,
            deadline=bound,
            backoff=self.backoff,
            what=f"{type(request).__name__} of {key_type.names(key)}",
        )

    async def coordinator_address(
        self, key: str, deadline: Deadline | None = None, *, key_type: CoordinatorKey = CoordinatorKey.GROUP
    ) -> tuple[str, int]:
        """Host and port of the coordinator of a group or transactional id, retried until there is one."""
        bound = self._deadline(deadline)
        return await retrying(
            lambda: self._coordinator(key_type, key, bound),
            deadline=bound,
            backoff=self.backoff,
            what=f"finding the coordinator of {key_type.names(key)}",
        )

    def _deadline(self, deadline: Deadline | None, wait_ms: int = 0) -> Deadline:
        return deadline or Deadline(self.request_timeout_ms + wait_ms)

    async def _request(
        self,
        connection: Connection,
        request: Request,
        response_type: type[ResponseT],
        deadline: Deadline,
        wait_ms: int = 0,
    ) -> ResponseT:
        timeout_s = min((self.request_timeout_ms + wait_ms) / 1000, deadline.remaining_s())
        return await connection.request(request, response_type, timeout_s=timeout_s)

    async def _coordinator(self, key_type: CoordinatorKey, key: str, deadline: Deadline) -> tuple[str, int]:
        known = self._coordinators.get((key_type, key))
        if known is not None:
            return known
        connection = await self._any_connection()
        request = FindCoordinatorRequest(key, int(key_type))
        response = await self._request(connection, request, FindCoordinatorResponse, deadline)
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, response.error_message)
        self._coordinators[key_type, key] = address = (response.host, response.port)
        return address

    async def _any_connection(self) -> Connection:
        for connection in self._connections.values():
            if not connection.closed:
                return connection
        failures: list[CohortError] = []
        for address in dict.fromkeys([*self.topology.addresses(), *self._bootstrap]):
            try:
                return await self._connection(address)
            except CohortError as error:
                if not error.retriable:
                    raise
                failures.append(error)
        self._unreachable = "; ".join(map(str, failures))
        if self.topology.revision < 0 and all(isinstance(failure, NotADaemonError) for failure in failures):
            failures[0].retriable = False
            raise failures[0]
        raise ConnectionLostError(self._unreachable)

    async def _connection(self, address: tuple[str, int]) -> Connection:
        self._check_started()
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                host, port = address
                limit_s = self.request_timeout_ms / 1000
                connection = await Connection.open(
                    host, port, client_id=self.client_id, timeout_s=min(_CONNECT_TIMEOUT_S, limit_s)
                )
                try:
                    said = await connection.greet(timeout_s=min(GREETING_TIMEOUT_S, limit_s))
                    self._check_started()
                except BaseException:
                    connection.close()
                    raise
                self._connections[address] = connection
                self._request_bytes[address] = {version.api_key: version.max_request_bytes for version in said.api_keys}
        return connection

    def _check_started(self) -> None:
        if not self._started:
            raise ClosedError("this client is not started, or stopped already: use it inside 'async with'")

    def _metadata_request(self, known_revision: int, max_wait_ms: int) -> MetadataRequest:
        topics = None if self._tracked is None else tuple(sorted(self._tracked))
        return MetadataRequest(topics, known_revision, max_wait_ms, known_revision >= 0 and max_wait_ms > 0)

    def _learn(self, request: MetadataRequest, response: MetadataResponse) -> bool:
        """Takes an answer over into the picture; False when it does not fit, and all has to be asked for again."""
        before = self.topology
        if response.revision < request.known_revision:
            before = Topology.unknown()  # no answer that was overtaken: the daemon was restored from a backup
        asked = request.topics if request.topics is not None or self._tracked is None else tuple(self._tracked)
        topology = before.followed_by(response, asked)
        if topology is None or topology is before:
            return topology is before
        if topology.cluster_id == before.cluster_id and self._tracked is not None:
            topology = topology.with_topics_of(before, self._tracked)  # tracked since the question
        self.topology = topology
        for listener in tuple(self._listeners):
            listener(topology)
        return True

    async def _watch_metadata(self) -> None:
        """Keeps one Metadata long poll under way for as long as the client lives."""
        attempt = 0
        everything = False
        while True:
            self._watch_again.clear()
            request = self._watch_request(everything)
            poll = asyncio.create_task(self._poll_metadata(request))
            again = asyncio.create_task(self._watch_again.wait())
            try:
                await asyncio.wait({poll, again}, return_when=asyncio.FIRST_COMPLETED)
                if self._knows_all_tracked():  # a client that needs many topics asks for their changes in one request
                    await asyncio.wait({poll}, timeout=_GATHER_S)
                if poll.done():
                    everything = not self._learn(request, poll.result())
                attempt = 0
            except CohortError as error:
                log.debug("metadata_poll_failed", client_id=self.client_id, error=str(error))
                await asyncio.sleep(self.backoff.delay_s(attempt))
                attempt += 1
            except Exception:  # a fault of ours, or of a listener's: without this task the picture would stay as it is
                log.exception("metadata_watch_broken", client_id=self.client_id)
                await asyncio.sleep(self.backoff.delay_s(attempt))
                attempt += 1
            finally:
                poll.cancel()
                again.cancel()
                await asyncio.gather(poll, again, return_exceptions=True)

    def _knows_all_tracked(self) -> bool:
        return self.topology.whole if self._tracked is None else self._tracked <= self.topology.asked

    def _watch_request(self, everything: bool) -> MetadataRequest:
        if everything or not self._knows_all_tracked():
            request = self._metadata_request(-1, 0)
        else:
            request = self._metadata_request(self.topology.revision, _WATCH_MS)
        return request if len(pieces_of(request)) == 1 else replace(request, topics=None)  # too many names for one

    async def _poll_metadata(self, request: MetadataRequest) -> MetadataResponse:
        connection = await self._any_connection()
        return await connection.request(
            request, MetadataResponse, timeout_s=request.max_wait_ms / 1000 + _ANSWER_MARGIN_S
        )


def _coordinator_error(response: Response) -> int | None:
    """The error code by which a node says that it does not coordinate what was asked for, if it says so."""
    if isinstance(response, OffsetCommitResponse | TxnOffsetCommitResponse):
        codes = [partition.error_code for topic in response.topics for partition in topic.partitions[:1]]
    elif isinstance(response, DescribeGroupsResponse):
        codes = [group.error_code for group in response.groups]
    elif isinstance(response, DeleteGroupsResponse):
        codes = [group.error_code for group in response.results]
    elif isinstance(response, DescribeTransactionsResponse):
        codes = [each.error_code for each in response.transaction_states]
    else:
        codes = [getattr(response, "error_code", 0)]
    return next((code for code in codes if code in COORDINATOR_MOVED), None)
