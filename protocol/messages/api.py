"""What a message is: API keys, versions, and the table that pairs requests with responses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeVar


class ApiKey(IntEnum):
    """Kafka's API keys; those from 1000 on are Cohort's own, those from 1100 on are for nodes among themselves."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    JOIN_TRANSACTION = 1000
    STAGE_OFFSETS = 1001
    ABORT_TRANSACTION = 1002
    PEER_HANDSHAKE = 1100
    REPLICA_FETCH = 1101
    OPEN_TRANSACTIONS = 1102
    REPLICA_END = 1103


class Response:
    """Base of all responses: a frozen dataclass whose fields are the body, in order."""

    __slots__ = ()


ResponseT = TypeVar("ResponseT", bound=Response)


class Request:
    """Base of all requests: a frozen dataclass whose fields are the body, in order.

    ``versions`` is the closed range of API versions this code speaks; ``response`` is the class of the answer.
    """

    __slots__ = ()

    api_key: ClassVar[ApiKey]
    versions: ClassVar[tuple[int, int]] = (0, 0)
    response: ClassVar[type[Response]]


REQUESTS: dict[int, type[Request]] = {}
"""Every request class by its API key; filled by ``register``."""

PEER_REQUESTS: dict[int, type[Request]] = {}
"""Requests that only nodes send one another, by API key: unknown where clients connect. Filled by ``register_peer``."""

RequestT = TypeVar("RequestT", bound=type[Request])


def register(request: RequestT) -> RequestT:
    """Class decorator: enters a request class into ``REQUESTS``. Raises ``ValueError`` if its key is taken."""
    return _entered(request, REQUESTS)


def register_peer(request: RequestT) -> RequestT:
    """Class decorator: enters a request class into ``PEER_REQUESTS``. Raises ``ValueError`` if its key is taken."""
    return _entered(request, PEER_REQUESTS)


def _entered(request: RequestT, registry: dict[int, type[Request]]) -> RequestT:
    if registry.setdefault(request.api_key, request) is not request:
        raise ValueError(f"api key {request.api_key!r} belongs to {registry[request.api_key].__name__} already")
    return request


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node listens."""

    node_id: int
    host: str
    port: int
