"""Connections to other nodes: answers in any order, every wait bounded, and errors that name node and address."""

from __future__ import annotations

import asyncio
import socket

import pytest

from coordinator.replication.partition import Incarnation
from coordinator.server.peers import client
from coordinator.server.peers.client import MAX_UNDER_WAY, PeerLostError, PeerRefusedError, Peers
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import RequestFrame, encode_refusal, encode_response
from protocol.messages import ApiKey
from protocol.messages.replication import PeerHandshakeResponse, ReplicaFetchRequest, ReplicaFetchResponse
from tests.coordinator.server.peers.nodes import Directory, Registered, greets, node_that, peers_of

FETCH = ReplicaFetchRequest(1, 500, 1_000, ())


def reply(frame: RequestFrame, number: int) -> bytes:
    return encode_response(frame.correlation_id, encode_message(ReplicaFetchResponse(number)))


async def fetch(peers: Peers, timeout_s: float = 5.0) -> int:
    connection = await peers.connect(2, "replication")
    return (await connection.request(FETCH, ReplicaFetchResponse, timeout_s=timeout_s)).error_code


async def test_answers_come_in_any_order() -> None:
    held: list[RequestFrame] = []

    async def backwards(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        await greets(frame, writer)
        if frame.api_key == ApiKey.REPLICA_FETCH:
            held.append(frame)
            if len(held) == 3:
                writer.write(b"".join(reply(one, number) for number, one in reversed(list(enumerate(held)))))

    async with node_that(backwards) as node, peers_of(Directory({2: node})) as peers:
        assert await asyncio.gather(*(fetch(peers) for _ in range(3))) == [0, 1, 2]


async def test_a_connection_is_shared_by_those_that_ask_for_it_at_once_and_made_anew_when_it_broke() -> None:
    writers: dict[asyncio.StreamWriter, None] = {}

    async def answer(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        writers[writer] = None
        await greets(frame, writer)

    async with node_that(answer) as node, peers_of(Directory({2: node})) as peers:
        first, second = await asyncio.gather(peers.connect(2, "replication"), peers.connect(2, "replication"))
        assert first is second
        assert await peers.connect(2, "transactions") is not first
        assert len(writers) == 2
        first.close()
        third = await peers.connect(2, "replication")
        assert third is not first
        assert not third.closed


async def test_a_node_that_registered_again_is_connected_to_anew() -> None:
    async with node_that(greets) as node:
        directory = Directory({2: node})
        async with peers_of(directory) as peers:
            first = await peers.connect(2, "replication")
            node.broker_epoch = 21
            with pytest.raises(PeerRefusedError, match="node 2 with broker epoch 20 answers there"):
                await peers.connect(2, "replication")
            assert first.closed
            assert peers.incarnation(2) == Incarnation(2, 21)


async def test_a_request_fails_when_the_connection_breaks_and_says_which_node_it_was() -> None:
    async def hang_up(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        await greets(frame, writer)
        if frame.api_key == ApiKey.REPLICA_FETCH:
            writer.transport.abort()

    async with node_that(hang_up) as node, peers_of(Directory({2: node})) as peers:
        with pytest.raises(PeerLostError, match=rf"node 2 at 127.0.0.1:{node.peer_port} did not answer Repl"):
            await fetch(peers)


async def test_a_silent_node_is_given_up_and_a_late_answer_is_dropped() -> None:
    late: list[tuple[RequestFrame, asyncio.StreamWriter]] = []

    async def first_late(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        await greets(frame, writer)
        if frame.api_key == ApiKey.REPLICA_FETCH:
            late.append((frame, writer))
            if len(late) > 1:
                for number, (one, _) in enumerate(late):
                    writer.write(reply(one, number))

    async with node_that(first_late) as node, peers_of(Directory({2: node})) as peers:
        with pytest.raises(PeerLostError, match="did not answer ReplicaFetchRequest within 50 ms"):
            await fetch(peers, 0.05)
        assert await fetch(peers) == 1


async def test_silence_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_S", 0.05)
    async with node_that(greets) as node, peers_of(Directory({2: node})) as peers:
        connection = await peers.connect(2, "replication")
        other = asyncio.create_task(connection.request(FETCH, ReplicaFetchResponse, timeout_s=5))
        lost = asyncio.Event()
        connection.on_lost = lost.set
        with pytest.raises(PeerLostError):
            await connection.request(FETCH, ReplicaFetchResponse, timeout_s=0.1)
        with pytest.raises(PeerLostError, match="it was silent for 100 ms"):
            await other
        assert lost.is_set()


async def test_a_node_that_takes_connections_and_says_nothing_costs_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        directory = Directory({2: Registered(20, *silent.getsockname())})
        async with asyncio.timeout(5), peers_of(directory) as peers:
            with pytest.raises(PeerLostError, match="did not answer PeerHandshakeRequest"):
                await peers.connect(2, "replication")


async def test_a_node_that_is_not_registered_or_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
    async with peers_of(Directory({2: Registered(20, *address)})) as peers:
        with pytest.raises(PeerLostError, match=f"node 2 at 127.0.0.1:{address[1]} cannot be reached"):
            await peers.connect(2, "replication")
        with pytest.raises(PeerLostError, match="node 3 is not registered"):
            await peers.connect(3, "replication")


async def test_a_greeting_that_is_refused_says_why() -> None:
    async def refuse(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        answer = PeerHandshakeResponse(104, error_message="another cluster")
        writer.write(encode_response(frame.correlation_id, encode_message(answer)))

    async with node_that(refuse) as node, peers_of(Directory({2: node})) as peers:
        with pytest.raises(PeerRefusedError, match="refused PeerHandshake: another cluster") as refused:
            await peers.connect(2, "replication")
        assert refused.value.code == 104


async def test_a_request_that_is_refused_as_a_whole_leaves_the_connection() -> None:
    async def refuse(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        await greets(frame, writer)
        if frame.api_key == ApiKey.REPLICA_FETCH:
            writer.write(encode_refusal(frame.correlation_id, ErrorCode.INVALID_REQUEST, "no"))

    async with node_that(refuse) as node, peers_of(Directory({2: node})) as peers:
        with pytest.raises(PeerRefusedError, match="refused ReplicaFetchRequest: no"):
            await fetch(peers)
        assert not (await peers.connect(2, "replication")).closed


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x00", b"HTTP/1.1 400", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1"]
)
async def test_bytes_that_are_no_answer_end_the_connection(garbage: bytes) -> None:
    async def babble(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        await greets(frame, writer)
        if frame.api_key == ApiKey.REPLICA_FETCH:
            writer.write(garbage)

    async with node_that(babble) as node, peers_of(Directory({2: node})) as peers:
        with pytest.raises(PeerLostError, match="no valid answer"):
            await fetch(peers)


async def test_an_answer_that_does_not_parse_ends_the_connection_and_the_request() -> None:
    async def babble(frame: RequestFrame, writer: asyncio.StreamWriter) -> None:
        await greets(frame, writer)
        if frame.api_key == ApiKey.REPLICA_FETCH:
            writer.write(encode_response(frame.correlation_id, ["no number"]))

    async with node_that(babble) as node, peers_of(Directory({2: node})) as peers:
        with pytest.raises(PeerLostError, match="error_code: expected an integer"):
            await fetch(peers)


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with node_that(greets) as node, peers_of(Directory({2: node})) as peers:
        connection = await peers.connect(2, "replication")
        for _ in range(2 * MAX_UNDER_WAY):
            task = asyncio.create_task(connection.request(FETCH, ReplicaFetchResponse, timeout_s=5))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not connection.closed


async def test_so_many_requests_are_under_way_and_no_more() -> None:
    async with node_that(greets) as node, peers_of(Directory({2: node})) as peers:
        connection = await peers.connect(2, "replication")
        for _ in range(MAX_UNDER_WAY):
            connection.begin(FETCH, lambda outcome: None, timeout_s=5)
        with pytest.raises(PeerLostError, match="64 requests have no answer yet"):
            connection.begin(FETCH, lambda outcome: None, timeout_s=5)


async def test_closing_ends_what_waits_and_what_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        directory = Directory({3: Registered(30, *silent.getsockname())})
        async with asyncio.timeout(5), node_that(greets) as node, peers_of(directory) as peers:
            directory.nodes[2] = node
            waiting = [asyncio.create_task(fetch(peers)), asyncio.create_task(peers.connect(3, "replication"))]
            await asyncio.sleep(0.1)
            peers.close()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [PeerLostError, PeerLostError]
            with pytest.raises(PeerLostError, match="this node stops"):
                await peers.connect(2, "replication")


async def test_who_is_cancelled_while_it_connects_does_not_take_the_connection_from_others() -> None:
    async with node_that(greets) as node, peers_of(Directory({2: node})) as peers:
        first = asyncio.create_task(peers.connect(2, "replication"))
        second = asyncio.create_task(peers.connect(2, "replication"))
        await asyncio.sleep(0)
        first.cancel()
        assert not (await second).closed
        with pytest.raises(asyncio.CancelledError):
            await first
