"""The port for nodes: greetings, who is refused by name, what is unknown there, and hostile bytes."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.replication.partition import Incarnation
from coordinator.server.peers.client import PeerLostError, PeerRefusedError, Peers
from coordinator.server.peers.listener import PeerListener
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, ResponseFrame, decode_response, encode_frame, encode_request
from protocol.messages import ApiKey, Request
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from protocol.messages.replication import (
    PeerErrorCode,
    PeerHandshakeRequest,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from tests.coordinator.server.peers.nodes import CLUSTER, ME, OTHER, Directory, Member, NoReplicas, Registered, peers_of

FETCH = ReplicaFetchRequest(1, 0, 1_000, ())
GREETING = PeerHandshakeRequest(CLUSTER, *ME)


class Port:
    """Node 2's port for other nodes; node 1 is registered."""

    def __init__(self, frame_timeout_ms: int = 300, max_idle_ms: int = 10_000) -> None:
        self.registered = Directory({1: Registered(ME.broker_epoch)})
        self.replicas = NoReplicas()
        self.address = ("", 0)
        self.listener = PeerListener(
            self.replicas.serving(),
            {},
            Member(OTHER),
            self.registered,
            CLUSTER,
            frame_timeout_ms=frame_timeout_ms,
            max_idle_ms=max_idle_ms,
        )

    @property
    def asked(self) -> list[Incarnation]:
        """Who has fetched."""
        return self.replicas.asked

    @property
    def directory(self) -> Directory:
        """What node 1 knows of it."""
        return Directory({2: Registered(OTHER.broker_epoch, *self.address)})


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    port = Port()
    port.address = await port.listener.start("127.0.0.1", 0)
    yield port
    await port.listener.close(1)


class Raw:
    """A connection that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()

    async def ask(self, request: Request, number: int = 1) -> ResponseFrame | None:
        """The answer to a request; None when the connection closes instead."""
        self.send(encode_request(request.api_key, 0, number, "raw", encode_message(request)))
        return await self.answer()

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        self._writer.write(data)

    async def answer(self) -> ResponseFrame | None:
        """The next answer; None when the connection closes instead."""
        async with asyncio.timeout(10):
            while data := await self._reader.read(65536):
                for payload in self._frames.feed(data):
                    return decode_response(payload)
        return None


@asynccontextmanager
async def raw(port: Port) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection(*port.address)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


async def fetch(peers: Peers) -> int:
    connection = await peers.connect(2, "replication")
    return (await connection.request(FETCH, ReplicaFetchResponse, timeout_s=5)).error_code


async def test_a_registered_node_of_the_cluster_is_served_and_known(port: Port) -> None:
    async with peers_of(port.directory) as peers:
        assert await fetch(peers) == 0
        assert port.asked == [ME]


async def test_strangers_who_say_nothing_or_half_of_it_keep_nodes_out_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.server.peers.listener.MAX_CONNECTIONS", 4)
    monkeypatch.setattr("coordinator.server.peers.listener.GREETING_MS", 400)
    node_2 = Port(frame_timeout_ms=60_000, max_idle_ms=600_000)
    node_2.address = await node_2.listener.start("127.0.0.1", 0)
    async with raw(node_2), raw(node_2), raw(node_2) as half, peers_of(node_2.directory) as peers:
        half.send(encode_request(GREETING.api_key, 0, 1, "raw", encode_message(GREETING))[:-1])
        connection = await peers.connect(2, "replication")
        async with raw(node_2):
            async with peers_of(node_2.directory) as others:
                with pytest.raises(PeerLostError):
                    await others.connect(2, "transactions")
            await asyncio.sleep(1.5)
            async with peers_of(node_2.directory) as others:
                assert await fetch(others) == 0
        assert not connection.closed, "a node may be idle for as long as it likes"
    await node_2.listener.close(1)


@pytest.mark.parametrize(
    ("registered", "code", "why"),
    [
        (None, PeerErrorCode.BROKER_ID_NOT_REGISTERED, "node 1 is not registered with broker epoch 10"),
        (9, PeerErrorCode.BROKER_ID_NOT_REGISTERED, "node 1 is not registered with broker epoch 10"),
        (11, PeerErrorCode.STALE_BROKER_EPOCH, "registered again since: its broker epoch is 11, not 10"),
    ],
)
async def test_who_is_not_registered_so_is_refused_by_name(
    port: Port, registered: int | None, code: int, why: str
) -> None:
    port.registered.nodes = {} if registered is None else {1: Registered(registered)}
    async with peers_of(port.directory) as peers:
        with pytest.raises(PeerRefusedError, match=why) as refused:
            await peers.connect(2, "replication")
        assert refused.value.code == code
        port.registered.nodes = {1: Registered(ME.broker_epoch)}
        assert await fetch(peers) == 0


async def test_a_node_of_another_cluster_is_refused_by_name(port: Port) -> None:
    stranger = Peers(port.directory, Member(ME), "cluster-2")
    try:
        with pytest.raises(
            PeerRefusedError, match="node 1 is of cluster 'cluster-2', node 2 of 'cluster-1'"
        ) as refused:
            await stranger.connect(2, "replication")
        assert refused.value.code == PeerErrorCode.INCONSISTENT_CLUSTER_ID
    finally:
        stranger.close()


async def test_an_address_that_another_node_has_now_is_not_taken_for_the_node(port: Port) -> None:
    directory = Directory({3: Registered(30, *port.address)})
    async with peers_of(directory) as peers:
        with pytest.raises(
            PeerRefusedError, match=r"node 3 at .* was expected, but node 2 with broker epoch 20 answers"
        ):
            await peers.connect(3, "replication")


async def test_nothing_is_served_before_a_greeting_and_no_second_greeting_is_taken(port: Port) -> None:
    async with raw(port) as client:
        refused = await client.ask(FETCH)
        assert refused is not None
        assert (refused.error_code, port.asked) == (ErrorCode.INVALID_REQUEST, [])
        assert await client.answer() is None
    async with raw(port) as client:
        assert await client.ask(GREETING) is not None
        refused = await client.ask(GREETING, 2)
        assert refused is not None
        assert "begins with one PeerHandshake" in refused.error_message
        assert await client.answer() is None


async def test_what_clients_ask_is_unknown_there(port: Port) -> None:
    async with peers_of(port.directory) as peers:
        connection = await peers.connect(2, "replication")
        with pytest.raises(PeerRefusedError, match="api key 12 is unknown here; known are 1100 PEER_HANDSHAKE, 1101"):
            await connection.request(HeartbeatRequest("g", 1, "m", None), HeartbeatResponse, timeout_s=5)
        assert await fetch(peers) == 0


@pytest.mark.parametrize("greeted", [False, True])
async def test_hostile_bytes_end_their_connection_and_no_other(port: Port, greeted: bool) -> None:
    dice = random.Random(5)
    frames = [encode_frame([ApiKey.REPLICA_FETCH, 0, 1, "x", body]) for body in ([], [1], ["s", 1, 1, []], None)]
    frames += [encode_frame([ApiKey.PEER_HANDSHAKE, 0, 1, "x", ["c" * 40_000, 1, 1]])]
    garbage = [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"]
    garbage += [(size := dice.randrange(1, 99)).to_bytes(4) + os.urandom(size) for _ in range(20)]
    async with peers_of(port.directory) as peers:
        for data in frames + garbage:
            async with raw(port) as client:
                if greeted:
                    assert await client.ask(GREETING, 0) is not None
                client.send(data)
                while (answer := await client.answer()) is not None:
                    assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert await fetch(peers) == 0


async def test_a_frame_that_is_not_completed_ends_its_connection(port: Port) -> None:
    async with raw(port) as client, asyncio.timeout(10):
        client.send(b"\x00\x00\x01")
        assert await client.answer() is None


async def test_an_answer_to_a_node_that_is_stopped_fails_its_requests(port: Port) -> None:
    async with peers_of(port.directory) as peers:
        connection = await peers.connect(2, "replication")
        port.listener.abort()
        with pytest.raises(PeerLostError):
            await connection.request(FETCH, ReplicaFetchResponse, timeout_s=5)
