"""Who leads what, as a task asks for it: metadata over a blocking connection, found again when it has moved."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import sleep
from typing import TypeVar

from client.errors import CohortError, ConnectionLostError, LeaderNotAvailableError, error_for
from client.spark.options import ConnectionOptions
from client.spark.wire import WIRES, Until, Wire
from client.transport.metadata import Address, Topology, parse_bootstrap_servers
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
from protocol.subscription import TopicPartition

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Response)


class Leaders:
    """The connections of one task, one to each node it needs."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._bootstrap = parse_bootstrap_servers(options.bootstrap_servers)
        self._wires: dict[Address, Wire] = {}
        self._topics: tuple[str, ...] = ()
        self._backoff = Backoff(Random())
        self.topology = Topology.unknown()

    def look_up(self, topics: tuple[str, ...], until: Until) -> Topology:
        """Asks who leads these topics, from any node that answers; they are what ``refresh`` asks for again."""
        self._topics = topics
        self.topology = Topology.of(self._anybody(MetadataRequest(topics), MetadataResponse, until))
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

    def wire_to(self, partition: TopicPartition, until: Until) -> Wire:
        """A connection to a partition's leader. Raises what is wrong at the moment."""
        leader = self.topology.leader(partition)
        if leader is None:
            self.topology.partitions(partition.topic)  # says that the topic does not exist, if so
            raise LeaderNotAvailableError(f"{partition.topic}-{partition.partition} has no leader at the moment")
        return self._wire(leader, until)

    def wire_to_coordinator(self, group_id: str, until: Until) -> Wire:
        """A connection to the coordinator of a group. Raises what is wrong at the moment."""
        answer = self._anybody(FindCoordinatorRequest(group_id), FindCoordinatorResponse, until)
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"group {group_id!r}: {answer.error_message}")
        return self._wire((answer.host, answer.port), until)

    def max_request_bytes(self, api_key: ApiKey, until: Until) -> int:
        """The largest payload of a frame with such a request that a node says it takes; 0 when it says nothing of it."""
        answer = self._anybody(ApiVersionsRequest("aiocohort"), ApiVersionsResponse, until)
        return next((each.max_request_bytes for each in answer.api_keys if each.api_key == api_key), 0)

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
        for address, wire in self._wires.items():
            WIRES.give_back(address, wire)
        self._wires.clear()

    def _anybody(self, request: Request, response_type: type[ResponseT], until: Until) -> ResponseT:
        """The answer of the first node that gives one."""
        failures: list[str] = []
        for address in dict.fromkeys([*self.topology.addresses(), *self._bootstrap]):
            try:
                return self._wire(address, until).call(request, response_type, until)
            except CohortError as error:
                if not error.retriable:
                    raise
                failures.append(str(error))
        raise ConnectionLostError("; ".join(failures))

    def _wire(self, address: Address, until: Until) -> Wire:
        wire = self._wires.get(address)
        if wire is None or wire.closed:
            wire = self._wires[address] = WIRES.take(address, self._options.client_id, until)
        return wire
