"""Nodes for tests of connections between them: who is registered, and a node whose answers a test writes itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, cast

from coordinator.replication.partition import Incarnation
from coordinator.replication.replica import Replica
from coordinator.replication.replicas import Replicas
from coordinator.replication.serving import ReplicaServing
from coordinator.server.peers.client import Peers
from protocol.codec import encode_message
from protocol.framing import FrameReader, RequestFrame, decode_request, encode_response
from protocol.messages import ApiKey
from protocol.messages.replication import PeerHandshakeResponse

CLUSTER = "cluster-1"
ME: Final = Incarnation(1, 10)
OTHER: Final = Incarnation(2, 20)


@dataclass
class Registered:
    """A live node."""

    broker_epoch: int
    peer_host: str = "127.0.0.1"
    peer_port: int = 1


@dataclass
class Directory:
    """The live nodes."""

    nodes: dict[int, Registered] = field(default_factory=dict)


@dataclass
class Member:
    """This node's registration."""

    me: Incarnation
    lease_id: int = 0

    def valid(self) -> bool:
        """It is."""
        return True

    def on_invalid(self, listener: Callable[[], None]) -> Callable[[], None]:
        """It stays valid."""
        return lambda: None


@dataclass
class NoReplicas:
    """The replicas of a node that has none."""

    by_id: dict[tuple[str, int], Replica] = field(default_factory=dict)
    asked: list[Incarnation] = field(default_factory=list)

    def heard(self, follower: Incarnation) -> None:
        """Notes who fetches."""
        self.asked.append(follower)

    def serving(self) -> ReplicaServing:
        """What answers its followers."""
        return ReplicaServing(cast("Replicas", self), max_bytes=1_000, max_wait_ms=10)


Answer = Callable[[RequestFrame, asyncio.StreamWriter], Awaitable[None]]


async def greets(frame: RequestFrame, writer: asyncio.StreamWriter, node: Incarnation = OTHER) -> None:
    """Answers a greeting as that node, and nothing else."""
    if frame.api_key == ApiKey.PEER_HANDSHAKE:
        answer = PeerHandshakeResponse(0, node.node, node.broker_epoch)
        writer.write(encode_response(frame.correlation_id, encode_message(answer)))


@asynccontextmanager
async def peers_of(directory: Directory, me: Incarnation = ME) -> AsyncIterator[Peers]:
    """The connections of a node."""
    peers = Peers(directory, Member(me), CLUSTER)
    try:
        yield peers
    finally:
        peers.close()


@asynccontextmanager
async def node_that(answer: Answer) -> AsyncIterator[Registered]:
    """A node that answers each request as ``answer`` does."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        frames = FrameReader()
        while data := await reader.read(65536):
            for payload in frames.feed(data):
                await answer(decode_request(payload), writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Registered(20, *server.sockets[0].getsockname())
    finally:
        server.close()
        for writer in connections:
            writer.transport.abort()
