"""What coordinators have of the cluster that their node is part of. A seam: a node that is alone has none of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coordinator.nodes.membership import Membership
from protocol.messages import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)


class PeerConnection(Protocol):
    """See ``coordinator.server.peers.client``."""

    async def request(self, request: Request, response_type: type[ResponseT], *, timeout_s: float) -> ResponseT:
        """Asks a node. Raises ``PeerLostError``."""


class Peers(Protocol):
    """The way to other nodes, see ``coordinator.server.peers.client``."""

    async def connect(self, node: int, purpose: str) -> PeerConnection:
        """The connection to a node. Raises ``PeerLostError``."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """``catch_up`` returns once the catalog shows all that was written to the metadata before it was called.

    It raises ``MetadataUnavailableError`` when the store does not answer.
    """

    membership: Membership
    peers: Peers
    catch_up: Callable[[], Awaitable[object]]
    readable: Callable[[str, int, int, str], None] = lambda topic, partition, leader_epoch, why_not: None
    """Told why a log that is led here cannot be read by its coordinator, with the leader epoch; "" once it can."""
