"""Every message of the protocol: frozen dataclasses with Kafka's field names in snake_case.

They know nothing of msgpack, so that another codec can carry them one day. Importing this package fills ``REQUESTS``
and ``PEER_REQUESTS``, which map API keys to request classes; the messages themselves are imported from their own modules.
"""

from protocol.messages import (
    cluster,
    configs,
    groups,
    offsets,
    producers,
    reassignment,
    records,
    replication,
    topics,
    transactions,
)
from protocol.messages.api import PEER_REQUESTS, REQUESTS, ApiKey, NodeAddress, Request, Response

__all__ = [
    "PEER_REQUESTS",
    "REQUESTS",
    "ApiKey",
    "NodeAddress",
    "Request",
    "Response",
    "cluster",
    "configs",
    "groups",
    "offsets",
    "producers",
    "reassignment",
    "records",
    "replication",
    "topics",
    "transactions",
]
