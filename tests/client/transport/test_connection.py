"""One connection: answers in any order, deadlines, and what happens when the other side falls silent or talks nonsense."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from client.errors import ConnectionLostError, InvalidRequestError, RequestTimedOutError
from client.transport import connection as connection_module
from client.transport.cluster import Cluster
from client.transport.connection import Connection, ToldExchange
from client.transport.deadline import Deadline
from client.transport.metadata import Topology
from client.transport.request_limits import checked_frame
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, decode_request, encode_refusal, encode_response
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, MetadataResponse

Answer = Callable[[asyncio.StreamWriter, list[int]], Awaitable[None]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[str, int]]:
    """A daemon that says whatever a test wants; ``answer`` gets the writer and the correlation ids so far."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        ids: list[int] = []
        writers.append(writer)
        while data := await reader.read(65536):
            ids += [decode_request(payload).correlation_id for payload in frames.feed(data)]
            await answer(writer, ids)

    writers: list[asyncio.StreamWriter] = []
    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[:2]
    finally:
        running.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # both ends learn that it is over


def hello(correlation_id: int, name: str = "") -> bytes:
    return encode_response(correlation_id, encode_message(ApiVersionsResponse(0, (), name)))


async def opened(address: tuple[str, int]) -> Connection:
    return await Connection.open(*address, client_id="test", timeout_s=5)


async def ask(connection: Connection, timeout_s: float = 5) -> ApiVersionsResponse:
    return await connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=timeout_s)


async def test_answers_may_come_in_any_order() -> None:
    async def backwards(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        if len(ids) == 3:
            for correlation_id in reversed(ids):
                writer.write(hello(correlation_id, str(correlation_id)))

    async with server(backwards) as address:
        connection = await opened(address)
        answers = await asyncio.gather(*(ask(connection) for _ in range(3)))
        assert [answer.software_name for answer in answers] == ["0", "1", "2"]
        connection.close()


async def test_a_late_answer_is_dropped_and_the_connection_goes_on() -> None:
    async def late(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        if len(ids) == 2:
            writer.write(hello(0, "late") + hello(1, "in time"))

    async with server(late) as address:
        connection = await opened(address)
        with pytest.raises(RequestTimedOutError, match="did not answer ApiVersionsRequest within 50 ms"):
            await ask(connection, timeout_s=0.05)
        assert (await ask(connection)).software_name == "in time"
        connection.close()


async def test_a_broken_connection_fails_each_request_that_waits_at_once() -> None:
    async def hang_up(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        if len(ids) == 3:
            writer.transport.abort()

    async with server(hang_up) as address:
        connection = await opened(address)
        results = await asyncio.gather(*(ask(connection) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(result, ConnectionLostError) for result in results)
        assert connection.closed
        with pytest.raises(ConnectionLostError):
            await ask(connection)


@pytest.mark.parametrize("nonsense", [b"\xff\xff\xff\xff", b"\0\0\0\x01\xc1", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_nonsense_ends_the_connection_with_its_reason(nonsense: bytes) -> None:
    async def talk(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        writer.write(nonsense)

    async with server(talk) as address:
        connection = await opened(address)
        with pytest.raises(ConnectionLostError, match="no valid response"):
            await ask(connection)
        assert connection.closed


async def test_an_answer_of_the_wrong_shape_names_the_field() -> None:
    async def wrong(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        writer.write(encode_response(ids[-1], ["zero"]))

    async with server(wrong) as address:
        connection = await opened(address)
        with pytest.raises(ConnectionLostError, match="error_code"):
            await ask(connection)


async def test_a_black_hole_is_left_for_a_fresh_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_S", 0.1)
    connections: list[asyncio.StreamWriter] = []

    async def first_is_a_black_hole(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        if writer not in connections:
            connections.append(writer)
            writer.write(hello(ids[0]))
        elif writer is not connections[0]:
            body = encode_message(MetadataResponse(1, "c", 0, (), ()))
            writer.write(encode_response(ids[-1], body))

    async with server(first_is_a_black_hole) as (host, port):
        cluster = Cluster(f"{host}:{port}", client_id="test", request_timeout_ms=200)
        await cluster.start(Deadline(5000))
        assert cluster.topology.cluster_id == "c"
        assert len(connections) == 2
        await cluster.close()


async def test_the_watch_on_metadata_survives_a_listener_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def news_at_each_question(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        await asyncio.sleep(0.01)
        body = encode_message(MetadataResponse(len(ids), "c", 0, (), ()))
        writer.write(hello(ids[0]) if len(ids) == 1 else encode_response(ids[-1], body))

    seen: list[int] = []
    enough = asyncio.Event()

    def listen(topology: Topology) -> None:
        seen.append(topology.revision)
        if len(seen) == 1:
            raise KeyError("a fault of the listener")
        enough.set()

    async with server(news_at_each_question) as (host, port):
        cluster = Cluster(f"{host}:{port}", client_id="test")
        await cluster.start(Deadline(5000))
        cluster.on_change(listen)
        await asyncio.wait_for(enough.wait(), 20)
        await cluster.close()
    assert "metadata_watch_broken" in caplog.text
    assert "a fault of the listener" in caplog.text


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async def silent(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        """Says nothing."""

    async with server(silent) as address:
        connection = await opened(address)
        task = asyncio.create_task(ask(connection))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection._pending == {}
        connection.close()


@pytest.mark.parametrize("longest_s", [None, 10])
async def test_a_connection_that_breaks_as_a_request_is_cancelled_is_not_complained_of(longest_s: float | None) -> None:
    """As when several requests time out in one turn, and the first of them gives the connection up."""
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def silent(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        """Says nothing."""

    async with server(silent) as address:
        connection = await opened(address)
        request = connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=5, longest_s=longest_s)
        task = asyncio.create_task(request)
        await asyncio.sleep(0.01)
        connection.close()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
    assert complaints == []


async def test_a_port_without_a_listener_is_told() -> None:
    with pytest.raises(ConnectionLostError, match="is a daemon listening there"):
        await Connection.open("127.0.0.1", 1, client_id="test", timeout_s=5)


async def dribble(writer: asyncio.StreamWriter, ids: list[int]) -> None:
    """Sends its answers in small pieces, over half a second."""
    frame = hello(ids[-1], "x" * 50)
    for start in range(0, len(frame), 8):
        writer.write(frame[start : start + 8])
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("longest_s", [None, 0.3, 5.0])
async def test_an_answer_that_goes_on_coming_is_waited_for_if_that_is_wanted(longest_s: float | None) -> None:
    async with server(dribble) as address:
        connection = await opened(address)
        asking = connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=0.2, longest_s=longest_s)
        if longest_s == 5.0:
            assert "x" * 50 in str(await asking)
        else:
            with pytest.raises(RequestTimedOutError, match=r"did not answer ApiVersionsRequest within 200 ms"):
                await asking
        assert connection._pending == {}
        connection.close()


async def test_one_that_has_stopped_coming_is_not_waited_for() -> None:
    async def half(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        writer.write(hello(ids[-1])[:10])

    async with server(half) as address:
        connection = await opened(address)
        with pytest.raises(RequestTimedOutError):
            async with asyncio.timeout(20):
                await connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=0.2, longest_s=60)
        connection.close()


async def test_a_connection_that_breaks_ends_the_waiting_for_a_long_answer() -> None:
    async def hang_up(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        writer.transport.abort()

    async with server(hang_up) as address:
        connection = await opened(address)
        with pytest.raises(ConnectionLostError):
            await connection.request(ApiVersionsRequest(), ApiVersionsResponse, timeout_s=5, longest_s=60)


def begun(connection: Connection, told: list[object], timeout_s: float = 5) -> ToldExchange[ApiVersionsResponse] | None:
    frame = partial(checked_frame, ApiVersionsRequest())
    return connection.begin("ApiVersions", frame, ApiVersionsResponse, told.append, timeout_s=timeout_s)


async def until_told(told: list[object], count: int = 1) -> None:
    async with asyncio.timeout(20):
        while len(told) < count:
            await asyncio.sleep(0.005)


async def test_an_answer_is_told_in_the_turn_that_brings_it_and_so_is_a_refusal() -> None:
    async def talk(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        refusal = encode_refusal(ids[-1], ErrorCode.INVALID_REQUEST, "no")
        writer.write(hello(ids[-1], "told") if len(ids) == 1 else refusal)

    async with server(talk) as address:
        connection, told = await opened(address), list[object]()
        exchange = begun(connection, told)
        assert exchange is not None
        assert not exchange.done()
        connection.data_received(hello(0, "told"))
        assert [answer.software_name for answer in told if isinstance(answer, ApiVersionsResponse)] == ["told"]
        assert exchange.done()
        begun(connection, told)
        await until_told(told, 2)
        assert isinstance(told[1], InvalidRequestError)
        assert connection._pending == {}
        connection.close()


async def test_silence_and_the_end_of_a_connection_are_told_once() -> None:
    async def silent(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        """Says nothing."""

    async with server(silent) as address:
        connection, told = await opened(address), list[object]()
        begun(connection, told, timeout_s=0.02)
        await until_told(told)
        assert isinstance(told[0], RequestTimedOutError)
        begun(connection, told)
        connection.close()
        assert isinstance(told[1], ConnectionLostError)
        assert begun(connection, told) is None
        await asyncio.sleep(0.05)
        assert len(told) == 2


async def test_nothing_is_told_of_a_request_that_was_cancelled() -> None:
    async def late(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        await asyncio.sleep(0.05)
        writer.write(hello(ids[-1]))

    async with server(late) as address:
        connection, told = await opened(address), list[object]()
        for wait_s in (0.02, 5):
            exchange = begun(connection, told, timeout_s=wait_s)
            assert exchange is not None
            exchange.cancel()
        await asyncio.sleep(0.2)
        connection.close()
        assert told == []


async def test_a_connection_that_takes_no_more_begins_nothing() -> None:
    async def silent(writer: asyncio.StreamWriter, ids: list[int]) -> None:
        """Says nothing."""

    async with server(silent) as address:
        connection, told = await opened(address), list[object]()
        connection.pause_writing()
        assert begun(connection, told) is None
        connection.resume_writing()
        assert begun(connection, told) is not None
        connection.close()
