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
    CohortError,
    ConnectionLostError,
    LeaderNotAvailableError,
    NetworkExceptionError,
    NotADaemonError,
    UnknownTopicOrPartitionError,
    error_for,
)
from client.log import get_logger
from client.transport.connection import Connection
from client.transport.connections import Connections
from client.transport.deadline import Deadline
from client.transport.metadata import Address, Topology, hints_of, parse_bootstrap_servers
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
from protocol.messages.records import FetchResponse, ProduceResponse
from protocol.messages.transactions import DescribeTransactionsResponse, TxnOffsetCommitResponse
from protocol.subscription import TopicPartition

ResponseT = TypeVar("ResponseT", bound=Response)

_WATCH_MS: Final = 30_000
_ANSWER_MARGIN_S: Final = 5.0
_GATHER_S: Final = 0.5
_BEHIND_S: Final = 10.0
"""Nodes that say for so long that they know less than was known are believed: their metadata was restored from a backup."""
_NOTICE_S: Final = 4.5
"""A client that starts says after so long that no daemon has answered yet."""
_LOOKS_FOR_TOPIC: Final = 4
"""So often a topic is looked for again where there are several nodes."""
_IMPATIENT_S: Final = 2.0
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
        self._nodes = Connections(client_id, request_timeout_ms)
        self._connections = self._nodes.open
        self._coordinators: dict[tuple[CoordinatorKey, str], tuple[str, int]] = {}
        self._tracked: set[str] | None = set()  # None: every topic
        self._listeners: list[Callable[[Topology], None]] = []
        self._watch: asyncio.Task[None] | None = None
        self._watch_again = asyncio.Event()
        self._polled: Connection | None = None  # by which news of the cluster come
        self._behind_since: float | None = None  # all nodes have known less than this client
        self._nodes.on_suspect = self._on_suspect
        self._unreachable = ""  # why no node could be reached the last time it was tried

    async def start(self, deadline: Deadline | None = None) -> None:
        """Fetches the first metadata. Raises ``RequestTimedOutError`` when no bootstrap server answers in time."""
        self._nodes.start()
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
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        try:
            await self._nodes.close()
        finally:
            if watch is not None:
                await asyncio.gather(watch, return_exceptions=True)

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
        attempt = 0
        while True:
            try:
                return await self._look_up(topic, deadline)
            except UnknownTopicOrPartitionError:
                if not self._nodes.several or attempt >= _LOOKS_FOR_TOPIC:
                    raise  # it was made a moment ago perhaps, and not every node knows yet
            await asyncio.sleep(self.backoff.delay_s(attempt))
            attempt += 1

    async def _look_up(self, topic: str, deadline: Deadline | None) -> int:
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
        return await self._nodes.to(leader)

    async def connection_to(self, address: Address) -> Connection:
        """A connection to a node; no retry: raises what is wrong at the moment."""
        return await self._nodes.to(address)

    def open_connection(self, address: Address) -> Connection | None:
        """The connection to a node if there is one, now."""
        return self._nodes.there(address)

    def is_silent(self, address: Address) -> bool:
        """Whether a node is suspected to be gone: it owes an answer and gives no sign of life."""
        return self._nodes.is_silent(address)

    def attempt_s(self, deadline: Deadline, *, patient: bool = True) -> float:
        """Seconds that one attempt may take; without patience few where another node may take over from the one asked."""
        left_s = max(0.001, deadline.remaining_s())
        return left_s if patient or not self._nodes.several else min(left_s, _IMPATIENT_S)

    def is_replicated(self, partition: TopicPartition) -> bool:
        """Whether a partition may get another leader, so that a client tells what it has read by leader epochs (KIP-320)."""
        return self._nodes.several or self.topology.replicas(partition) > 1

    def learn_leaders(self, response: ProduceResponse | FetchResponse) -> None:
        """Takes note of the leaders that an answer names for what its node does not lead (KIP-951)."""
        self._show(self.topology.with_leaders(hints_of(response), response.node_endpoints))

    def connection_to_known(self, key: str, key_type: CoordinatorKey) -> Connection | None:
        """The connection to the coordinator of a group or transactional id, if both are there, now."""
        address = self._coordinators.get((key_type, key))
        return None if address is None else self.open_connection(address)

    def max_request_bytes(self, api_key: ApiKey, address: Address | None = None) -> int:
        """The largest payload of a frame with such a request that a node said it takes; without an address the least of all.

        0 when none has said anything of it.
        """
        if address is not None:
            return self._nodes.request_bytes.get(address, {}).get(api_key, 0)
        told = (sizes.get(api_key, 0) for sizes in self._nodes.request_bytes.values())
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
            return await self._ask_any(request, response_type, bound)

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
                connection = await self._nodes.to(address)
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
        return await connection.request(request, response_type, timeout_s=timeout_s, held_s=wait_ms / 1000)

    async def _ask_any(self, request: Request, response_type: type[ResponseT], deadline: Deadline) -> ResponseT:
        """The answer of any node; one that cannot help is not the next that is asked."""
        connection = await self._any_connection()
        try:
            return await self._request(connection, request, response_type, deadline)
        except CohortError as error:
            if error.retriable:
                self._nodes.avoid(connection, error)
            raise

    async def _coordinator(self, key_type: CoordinatorKey, key: str, deadline: Deadline) -> tuple[str, int]:
        known = self._coordinators.get((key_type, key))
        if known is not None:
            return known
        request = FindCoordinatorRequest(key, int(key_type))
        response = await self._ask_any(request, FindCoordinatorResponse, deadline)
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, response.error_message)
        self._coordinators[key_type, key] = address = (response.host, response.port)
        return address

    async def _any_connection(self) -> Connection:
        try:
            return await self._nodes.any_of([*self.topology.addresses(), *self._bootstrap])
        except ExceptionGroup as failed:
            failures = failed.exceptions
        self._unreachable = "; ".join(map(str, failures))
        if self.topology.revision < 0 and all(isinstance(failure, NotADaemonError) for failure in failures):
            foreign = failures[0]
            assert isinstance(foreign, NotADaemonError)
            foreign.retriable = False
            raise foreign
        raise ConnectionLostError(self._unreachable)

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
        self._show(topology)
        return True

    def _show(self, topology: Topology) -> None:
        """Tells of a new picture, if it is one."""
        if topology is self.topology:
            return
        self.topology = topology
        if len(topology.nodes) > 1:
            self._nodes.watch_silence()
        for listener in tuple(self._listeners):
            listener(topology)

    def _on_suspect(self) -> None:
        """The node by which news of the cluster come may be gone: another is asked for them."""
        if self._polled is not None and self._polled.suspect:
            self._watch_again.set()

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
                suspect = self._polled is not None and self._polled.suspect
                if self._knows_all_tracked() and not suspect:
                    # A client that needs many topics asks for their changes in one request.
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
        self._polled = connection = await self._any_connection()
        held_s = request.max_wait_ms / 1000
        try:
            answer = await connection.request(
                request, MetadataResponse, timeout_s=held_s + _ANSWER_MARGIN_S, held_s=held_s
            )
            self._check_not_behind(request, answer)
        except CohortError as error:
            self._nodes.avoid(connection, error)
            raise
        return answer

    def _check_not_behind(self, request: MetadataRequest, answer: MetadataResponse) -> None:
        """Raises when a node knows less than this client, while another may know more."""
        if answer.revision >= request.known_revision or not self._nodes.several:
            self._behind_since = None
            return
        now_s = asyncio.get_running_loop().time()
        if self._behind_since is None:
            self._behind_since = now_s
        if now_s - self._behind_since < _BEHIND_S:
            raise NetworkExceptionError(
                f"a node knows the cluster as of revision {answer.revision} only, not {request.known_revision}"
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
