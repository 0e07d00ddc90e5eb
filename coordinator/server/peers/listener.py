"""The port for other nodes: a listener with bounds of its own, so that clients cannot starve replication.

A connection begins with a greeting, which says of which cluster and which registered node it is. Before that nothing else is
taken, and what clients ask for is unknown here except for what transactions need of other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, cast

from coordinator.nodes.membership import Membership
from coordinator.replication.partition import Incarnation
from coordinator.replication.serving import ReplicaServing
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import Dispatcher
from coordinator.server.handlers import add_partitions_to_txn, write_txn_markers
from coordinator.server.listener import ConnectionLimits, Listener, native_port
from coordinator.server.native_codec import Spoken
from coordinator.server.node import Node
from coordinator.server.peers import open_transactions, replica_ends
from coordinator.server.peers.client import MAX_UNDER_WAY, PeerDirectory
from protocol.errors import ErrorCode
from protocol.limits import MAX_SMALL_REQUEST_BYTES
from protocol.messages import ApiKey, Request
from protocol.messages.replication import (
    PeerErrorCode,
    PeerHandshakeRequest,
    PeerHandshakeResponse,
    ReplicaEndRequest,
    ReplicaFetchRequest,
)
from protocol.messages.transactions import AddPartitionsToTxnRequest, OpenTransactionsRequest, WriteTxnMarkersRequest

MAX_CONNECTIONS: Final = 1_024
GREETING_MS: Final = 5_000
"""So long a connection has for its greeting, and a node for any request: strangers who say nothing, or half of something,
must not keep nodes out for longer. Nodes give up their greetings earlier."""
MAX_MEMORY_BYTES: Final = 128 * 1024 * 1024
"""Of requests, and as much again of answers that other nodes have not read."""


def peer_handlers(node: Node) -> dict[type[Request], Handler]:
    """What nodes ask each other beside replication, two of it by the handlers that serve clients, too."""
    return {
        AddPartitionsToTxnRequest: add_partitions_to_txn.handler(node),
        OpenTransactionsRequest: open_transactions.handler(node),
        ReplicaEndRequest: replica_ends.handler(node),
        WriteTxnMarkersRequest: write_txn_markers.handler(node),
    }


class PeerListener:
    """See the module text. ``serving`` answers followers, ``handlers`` what else is asked behind the greeting."""

    def __init__(
        self,
        serving: ReplicaServing,
        handlers: Mapping[type[Request], Handler],
        membership: Membership,
        directory: PeerDirectory,
        cluster_id: str,
        *,
        frame_timeout_ms: int,
        max_idle_ms: int,
    ) -> None:
        self._serving = serving
        self._membership = membership
        self._directory = directory
        self._cluster_id = cluster_id
        self._peers: dict[int, Incarnation] = {}
        handlers = {ReplicaFetchRequest: self._fetch, **handlers}
        requests: dict[int, type[Request]] = {request.api_key: request for request in handlers}
        self._dispatcher = Dispatcher(handlers, requests)
        limits = ConnectionLimits(
            max_connections=MAX_CONNECTIONS,
            max_frame_bytes=MAX_SMALL_REQUEST_BYTES,
            max_in_flight=2 * MAX_UNDER_WAY,  # those that a node gave up on may be under way still
            max_request_memory_bytes=MAX_MEMORY_BYTES,
            frame_timeout_ms=min(frame_timeout_ms, GREETING_MS),
            max_idle_ms=max_idle_ms,
            first_answer_ms=min(max_idle_ms, GREETING_MS),
        )
        spoken = Spoken({ApiKey.PEER_HANDSHAKE: PeerHandshakeRequest, **requests})
        self._listener = Listener(limits, self._closed)
        self._port = native_port(self._handle, limits.max_frame_bytes, spoken)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens; returns the host and port taken. Raises ``OSError`` when the address cannot be had."""
        return await self._listener.start(self._port, host, port)

    def stop_accepting(self) -> None:
        """Takes no further connections and no further requests."""
        self._listener.stop_accepting()

    async def close(self, timeout_s: float) -> None:
        """Closes every connection once its answers are sent, or after ``timeout_s`` seconds in any case."""
        await self._listener.close(timeout_s)

    def abort(self) -> None:
        """Drops every connection at once."""
        self._listener.abort()

    def _handle(self, call: Call) -> Iterator[asyncio.Future[None] | None] | None:
        connection = call.connection
        greeted = connection.number in self._peers
        if greeted and type(call.request) is not PeerHandshakeRequest:
            return self._dispatcher.handle(call)
        if greeted or type(call.request) is not PeerHandshakeRequest:
            text = "a connection between nodes begins with one PeerHandshake"
            call.refuse(ErrorCode.INVALID_REQUEST, text)
            connection.close_with(f"{type(call.request).__name__}: {text}")
            return None
        self._greet(call)
        return None

    def _greet(self, call: Call) -> None:
        request = cast("PeerHandshakeRequest", call.request)
        peer, me = Incarnation(request.node_id, request.broker_epoch), self._membership.me
        code, reason = self._refusal(peer, request.cluster_id)
        if code == PeerErrorCode.NONE:
            self._peers[call.connection.number] = peer
        call.answer(PeerHandshakeResponse(code, me.node, me.broker_epoch, reason))
        if code != PeerErrorCode.NONE:
            call.connection.close_with(reason)

    def _refusal(self, peer: Incarnation, cluster_id: str) -> tuple[PeerErrorCode, str]:
        if cluster_id != self._cluster_id:
            return (
                PeerErrorCode.INCONSISTENT_CLUSTER_ID,
                f"node {peer.node} is of cluster {cluster_id[:60]!r}, node {self._membership.me.node} of "
                f"{self._cluster_id!r}: another cluster's node has this address now",
            )
        known = self._directory.nodes.get(peer.node)
        if known is None or known.broker_epoch < peer.broker_epoch:
            text = f"node {peer.node} is not registered with broker epoch {peer.broker_epoch}, as far as node "
            return PeerErrorCode.BROKER_ID_NOT_REGISTERED, f"{text}{self._membership.me.node} knows yet"
        if known.broker_epoch > peer.broker_epoch:
            text = f"node {peer.node} has registered again since: its broker epoch is {known.broker_epoch}"
            return PeerErrorCode.STALE_BROKER_EPOCH, f"{text}, not {peer.broker_epoch}"
        return PeerErrorCode.NONE, ""

    def _fetch(self, call: Call) -> Iterator[None]:
        number = call.connection.number
        return self._serving.fetch(self._peers[number], number, cast("ReplicaFetchRequest", call.request), call)

    def _closed(self, number: int) -> None:
        self._peers.pop(number, None)
        self._serving.closed(number)
