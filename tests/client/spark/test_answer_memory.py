"""Memory of an answer is used again for the next one only when there are no views of it left."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from random import Random
from threading import Thread
from typing import Any

import pyarrow
import pytest

from client.spark.tasks.blocking_connection import BlockingConnection, Until
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import LENGTH_BYTES, decode_request, encode_response
from protocol.messages.records import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse

SIZES = (70_000, 300_000, 66_000, 1_000_000, 300_000, 200, 70_001, 999_999)


class Daemon:
    """The other end of a connection, which answers each fetch with bytes of its own."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connection = BlockingConnection(("127.0.0.1", self._listener.getsockname()[1]), "t", Until(5_000))
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(5)
        self._answers = 0

    def answer(self, size: int) -> tuple[Any, bytes]:
        """The records as the wire gives them, and what was sent."""
        self._answers += 1
        sent = Random(self._answers).randbytes(size)
        correlation_id = self.connection.send(FetchRequest(0, 1, size, ()), Until(5_000))
        length = int.from_bytes(self._socket.recv(LENGTH_BYTES, socket.MSG_WAITALL), "big")
        request = decode_request(self._socket.recv(length, socket.MSG_WAITALL))
        partition = FetchedPartition(0, ErrorCode.NONE, 9, 9, 0, sent)
        response = FetchResponse(ErrorCode.NONE, (FetchedTopic("t" * (1 + 7 * self._answers), (partition,)),))
        frame = encode_response(request.correlation_id, encode_message(response))
        sender = Thread(target=self._socket.sendall, args=(frame,))
        sender.start()
        received = self.connection.receive(correlation_id, FetchResponse, Until(5_000))
        sender.join()
        return received.responses[0].partitions[0].records, sent

    def close(self) -> None:
        self.connection.close()
        self._socket.close()
        self._listener.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.close()


@pytest.mark.parametrize("held_as", ["view", "part", "buffer", "array", "sliced array", "batch"])
def test_what_is_held_of_an_answer_stays_as_it_was(daemon: Daemon, held_as: str) -> None:
    def hold(records: Any) -> Any:
        view = memoryview(records)
        if held_as == "view":
            return view
        if held_as == "part":
            return view[10:100]
        buffer = pyarrow.py_buffer(view[:64])
        if held_as == "buffer":
            return buffer
        array = pyarrow.Array.from_buffers(pyarrow.uint8(), 64, [None, buffer])
        if held_as == "array":
            return array
        return array[3:50] if held_as == "sliced array" else pyarrow.record_batch({"v": array[8:]})

    def content(held: Any) -> Any:
        return bytes(held) if isinstance(held, memoryview | pyarrow.Buffer) else held.to_pylist()

    held: list[tuple[Any, Any]] = []
    for size in SIZES * 2:
        records, sent = daemon.answer(size)
        assert bytes(records) == sent
        kept = hold(records)
        held.append((kept, content(kept)))
        del records, kept
        gc.collect()
    assert all(content(kept) == before for kept, before in held)


def test_memory_without_views_is_used_again_without_a_trace_of_what_was_there(daemon: Daemon) -> None:
    daemon.answer(max(SIZES))
    room = daemon.connection._room
    for size in SIZES * 3:
        records, sent = daemon.answer(size)
        assert bytes(records) == sent
        del records
    assert daemon.connection._room is room
