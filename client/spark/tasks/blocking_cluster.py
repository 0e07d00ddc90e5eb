"""The cluster as a task sees it: metadata over connections that block, leaders found again when they have moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from time import sleep
from typing import Final, TypeVar

from client.errors import CohortError, ConnectionLostError, LeaderNotAvailableError, RequestTimedOutError, error_for
from client.spark.options import ConnectionOptions
from client.spark.tasks.blocking_connection import POOL, BlockingConnection, Until
from client.transport.cluster import CoordinatorKey
from client.transport.metadata import Address, Topology, hints_of, parse_bootstrap_servers
from client.transport.retry import Backoff
from protocol.errors import ErrorCode
from protocol.messages import ApiKey, Request, Response
from protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from protocol.messages.records import FetchResponse, ProduceResponse
from protocol.subscription import TopicPartition

_ONE_NODE_MS: Final = 5_000

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Response)


class BlockingCluster:
    """The connections of one task, one to each node it needs."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.client_id = options.client_id
        self._bootstrap = parse_bootstrap_servers(options.bootstrap_servers)
        self._connections: dict[Address, BlockingConnection] = {}
        self._request_bytes: dict[int, int] = {}
        self._topics: tuple[str, ...] = ()
        self._answered: Address | None = None  # the node that helped last when any could
        self._backoff = Backoff(Random())
        self.topology = Topology.unknown()

    def look_up(self, topics: tuple[str, ...], until: Until) -> Topology:
        """Asks for the leaders of these topics, from any node that answers; they are what ``refresh`` asks for again.

        Of several nodes one may know less than another: what is known already stays.
        """
        found = Topology.of(self.call_any_node(MetadataRequest(topics), MetadataResponse, until))
        known, self._topics = self.topology, topics
        lags = found.cluster_id == known.cluster_id and found.revision < known.revision and len(known.nodes) > 1
        if not lags or not known.asked.issuperset(topics):
            self.topology = found
        return self.topology

    def refresh(self, until: Until) -> Topology:
        """The picture as it is now."""
        return self.look_up(self._topics, until)

    def look_again(self, until: Until) -> None:
        """Refreshes the picture after something went wrong, if that can be had: else the next request says what is wrong."""
        try:
            self.refresh(until)
        except CohortError as error:
            if not error.retriable:
                raise

    def connection_to_leader(self, partition: TopicPartition, until: Until) -> BlockingConnection:
        """A connection to a partition's leader. Raises what is wrong at the moment."""
        leader = self.topology.leader(partition)
        if leader is None:
            self.topology.partitions(partition.topic)  # says that the topic does not exist, if so
            raise LeaderNotAvailableError(f"{partition.topic}-{partition.partition} has no leader at the moment")
        return self.connection(leader, until)

    def connection_to_coordinator(
        self, key: str, until: Until, key_type: CoordinatorKey = CoordinatorKey.GROUP
    ) -> BlockingConnection:
        """A connection to the coordinator of a group or transactional id. Raises what is wrong at the moment."""
        answer = self.call_any_node(FindCoordinatorRequest(key, key_type), FindCoordinatorResponse, until)
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"{key_type.names(key)}: {answer.error_message}")
        return self.connection((answer.host, answer.port), until)

    def learn_limits(self, until: Until) -> None:
        """Asks any node how large a request may be; see ``max_request_bytes``."""
        answer = self.call_any_node(ApiVersionsRequest("aiocohort"), ApiVersionsResponse, until)
        self._request_bytes = {each.api_key: each.max_request_bytes for each in answer.api_keys}

    def max_request_bytes(self, api_key: ApiKey, address: Address | None = None) -> int:
        """The largest payload of a frame with such a request that nodes take; 0 when none has said anything of it."""
        return self._request_bytes.get(api_key, 0)

    def retrying(self, operation: Callable[[], T], until: Until, what: str) -> T:
        """The result of ``operation``, called again after each retriable error until there is no time left."""
        attempt = 0
        while True:
            try:
                return operation()
            except CohortError as error:
                self.pause(error, attempt, until, what)
            attempt += 1

    def pause(self, error: CohortError, attempt: int, until: Until, what: str) -> None:
        """Waits before another attempt; raises ``error`` when there is none to be."""
        delay_s = self._backoff.delay_s(attempt)
        if not error.retriable:
            raise error
        if until.passed or until.left_s(what) <= delay_s:
            error.add_note(f"{what} was tried {attempt + 1} times within {until.timeout_ms:.0f} ms")
            raise error
        sleep(delay_s)

    def close(self) -> None:
        """Keeps the connections that are fit for the next task, and closes the others."""
        for address, connection in self._connections.items():
            POOL.give_back(address, connection)
        self._connections.clear()

    def call_any_node(self, request: Request, response_type: type[ResponseT], until: Until) -> ResponseT:
        """The answer of the first node that gives one; the one that gave the last is asked first.

        Where there are several, one that says nothing gets a part of the time only.
        """
        failures: list[str] = []
        helped = () if self._answered is None else (self._answered,)
        addresses = list(dict.fromkeys([*helped, *self.topology.addresses(), *self._bootstrap]))
        for address in addresses:
            left_ms = until.left_s("asking any node") * 1000
            bound = until if len(addresses) == 1 else Until(min(left_ms, _ONE_NODE_MS))
            try:
                answer = self.connection(address, bound).call(request, response_type, bound)
            except CohortError as error:
                if not error.retriable:
                    raise
                silent = self._connections.pop(address, None) if isinstance(error, RequestTimedOutError) else None
                if silent is not None:
                    silent.close()  # its answer, if it comes, is not waited for
                failures.append(str(error))
            else:
                self._answered = address
                return answer
        raise ConnectionLostError("; ".join(failures))

    def silence_s(self, usual_s: float) -> float:
        """How long a leader may say nothing before another node is asked who leads: for ever where there is no other.

        ``usual_s`` is how long an answer may take where nothing is wrong.
        """
        return usual_s if len(self.topology.nodes) > 1 else math.inf

    def learn_leaders(self, response: ProduceResponse | FetchResponse) -> None:
        """Takes note of the leaders that an answer names for what its node does not lead (KIP-951)."""
        self.topology = self.topology.with_leaders(hints_of(response), response.node_endpoints)

    def connection(self, address: Address, until: Until) -> BlockingConnection:
        """A connection to a node: the one that this task has, or one that its process kept, or a new one."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = POOL.take(address, self.client_id, until)
        return connection
