"""Connections to several nodes, of which some are mute or of no help: real sockets, nodes that say what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgpack
import pytest

from client.errors import ConnectionLostError
from client.transport import connections as module
from client.transport.cluster import Cluster
from client.transport.connections import Connections
from client.transport.deadline import Deadline
from client.transport.metadata import Address
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import encode_refusal, encode_response
from protocol.messages import ApiKey
from protocol.messages.cluster import ApiVersionsResponse, BrokerMetadata, MetadataRequest, MetadataResponse
from tests.integration.hostile_proxy import frames


class Node:
    """A node that greets, describes itself and ``others`` in Metadata, and can be ``mute`` or have lost the metadata."""

    def __init__(self) -> None:
        self.mute = False
        self.lost_metadata = False
        self.revision = 1
        self.brokers: tuple[BrokerMetadata, ...] = ()
        self.asked: list[int] = []
        self.address: Address = ("", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for frame in frames(reader):
            key, _, correlation_id, _, body = msgpack.unpackb(frame, use_list=False)
            self.asked.append(key)
            if self.mute:
                continue
            if key == ApiKey.API_VERSIONS:
                writer.write(encode_response(correlation_id, encode_message(ApiVersionsResponse(0))))
            elif self.lost_metadata:
                writer.write(encode_refusal(correlation_id, ErrorCode.NETWORK_EXCEPTION, "ask another node"))
            elif len(body) < 3 or not body[2]:
                answer = MetadataResponse(self.revision, "c", 0, self.brokers, ())
                writer.write(encode_response(correlation_id, encode_message(answer)))


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[list[Node]]:
    made = [Node() for _ in range(count)]
    servers = [await asyncio.start_server(node.serve, "127.0.0.1", 0) for node in made]
    for node, server in zip(made, servers, strict=True):
        node.address = ("127.0.0.1", server.sockets[0].getsockname()[1])
    for node in made:
        node.brokers = tuple(BrokerMetadata(index, *each.address) for index, each in enumerate(made))
    try:
        yield made
    finally:
        for server in servers:
            server.close()
        await asyncio.sleep(0.01)  # what is served sees that its clients are gone


@asynccontextmanager
async def connections(**settings: int) -> AsyncIterator[Connections]:
    made = Connections("test", 30_000)
    made.start()
    try:
        yield made
    finally:
        await made.close()


def servers(of: list[Node]) -> str:
    return ",".join(f"{host}:{port}" for host, port in (node.address for node in of))


async def test_a_client_that_meets_a_node_without_the_metadata_asks_the_next() -> None:
    async with nodes(2) as (first, second):
        first.lost_metadata = True
        cluster = Cluster(servers([first, second]), client_id="c")
        try:
            await cluster.start(Deadline(10_000))
            assert set(cluster.topology.nodes.values()) == {first.address, second.address}
            assert first.asked.count(ApiKey.METADATA) == 1
        finally:
            await cluster.close()


async def test_any_node_is_taken_from_the_next_when_the_first_says_nothing() -> None:
    async with nodes(2) as (first, second), connections() as made:
        first.mute = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection = await made.any_of([first.address, second.address])
        assert connection.peer.endswith(str(second.address[1]))
        assert loop.time() - began < module.GREETING_TIMEOUT_S


async def test_who_waits_for_a_connection_is_told_soon_and_the_attempt_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    async with nodes(1) as (node,), connections() as made:
        made.watch_silence()
        node.mute = True
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="has not answered"):
                await made.to(node.address)
        assert node.asked == [ApiKey.API_VERSIONS], "both waited for one attempt"


async def test_a_node_that_owes_an_answer_and_gives_no_sign_of_life_is_suspected_and_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("_LOOK_S", 0.05), ("_DOUBT_S", 0.2), ("_SUSPECT_S", 0.2), ("_SIGN_OF_LIFE_S", 0.6)):
        monkeypatch.setattr(module, name, seconds)
    async with nodes(2) as (first, second), connections() as made:
        made.watch_silence()
        suspected = asyncio.Event()
        made.on_suspect = suspected.set
        connection = await made.to(first.address)
        held = asyncio.create_task(
            connection.request(MetadataRequest((), 1, 30_000), MetadataResponse, timeout_s=30, held_s=30)
        )
        await asyncio.sleep(0.8)
        assert not connection.suspect, "it may hold the request: nothing is due"
        first.mute = True
        owed = asyncio.create_task(connection.request(MetadataRequest(()), MetadataResponse, timeout_s=30))
        async with asyncio.timeout(10):
            await suspected.wait()
            assert (await made.any_of([first.address, second.address])).peer.endswith(str(second.address[1]))
            for task in (held, owed):
                with pytest.raises(ConnectionLostError):
                    await task
        assert connection.closed


async def test_a_node_that_is_slow_and_gives_signs_of_life_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK_S", 0.05), ("_DOUBT_S", 0.1), ("_SUSPECT_S", 0.3), ("_SIGN_OF_LIFE_S", 0.6)):
        monkeypatch.setattr(module, name, seconds)
    async with nodes(1) as (node,), connections() as made:
        made.watch_silence()
        connection = await made.to(node.address)
        slow = asyncio.create_task(
            connection.request(MetadataRequest((), 1, 30_000), MetadataResponse, timeout_s=30)  # is never answered
        )
        await asyncio.sleep(1.5)
        assert not connection.closed
        assert not connection.suspect
        assert node.asked.count(ApiKey.API_VERSIONS) > 2
        slow.cancel()


async def test_news_of_the_cluster_never_go_back_and_come_from_another_node_than_one_that_lags() -> None:
    async with nodes(2) as made:
        first, second = made
        first.revision = second.revision = 7
        cluster = Cluster(servers([first, second]), client_id="c")
        try:
            await cluster.start(Deadline(10_000))
            assert cluster.topology.revision == 7
            first.revision = 5
            await cluster.refresh(Deadline(10_000))
            assert cluster.topology.revision == 7
            second.revision = 8
            async with asyncio.timeout(10):
                first.lost_metadata = True
                while cluster.topology.revision != 8:
                    await cluster.refresh(Deadline(10_000))
        finally:
            await cluster.close()
