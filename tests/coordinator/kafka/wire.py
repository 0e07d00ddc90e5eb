"""A Kafka client that sends what a test wants, and no more: frames, headers and messages of any version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from itertools import count
from typing import Any

from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.kafka.messages import APIS
from protocol.kafka.schema import Message


def request_kind(api_key: int) -> type[Message]:
    """The class of the requests of a key."""
    return _kind(api_key, "Request")


def response_kind(api_key: int) -> type[Message]:
    """The class of the answers to requests of a key."""
    return _kind(api_key, "Response")


def _kind(api_key: int, direction: str) -> type[Message]:
    name = f"{APIS[api_key].name}{direction}"
    module = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
    kind: type[Message] = getattr(import_module(f"protocol.kafka.messages.{module}"), name)
    return kind


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4) + payload


def request_frame(request: Message, version: int, correlation_id: int, client_id: str | None = "test") -> bytes:
    header = encode_request_header(RequestHeader(request.API_KEY, version, correlation_id, client_id))
    return framed(header + b"".join(encode(request, version)))


class KafkaWire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._numbers = count(1)

    async def ask(self, request: Message, version: int) -> Any:
        """Sends a request and returns the answer to it."""
        number = next(self._numbers)
        self.writer.write(request_frame(request, version, number))
        told, response = await self.answer(request.API_KEY, version)
        assert told == number
        return response

    async def ask_behind(self, earlier: asyncio.Task[Any], request: Message, version: int) -> Any:
        """Sends a request while ``earlier`` waits for its answer, which has to come first."""
        number = next(self._numbers)
        self.writer.write(request_frame(request, version, number))
        await asyncio.wait((earlier,))
        told, response = await self.answer(request.API_KEY, version)
        assert told == number
        return response

    async def answer(self, api_key: int, version: int) -> tuple[int, Any]:
        """The next answer, which is to a request of this key and version, and its correlation id."""
        data = await self.frame()
        number, at = decode_response_header(api_key, version, data)
        return number, decode(response_kind(api_key), version, data, at)

    async def frame(self) -> bytes:
        """The next frame."""
        async with asyncio.timeout(20):
            return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4)))

    async def is_closed(self) -> bool:
        """Whether the daemon closes the connection, without a further byte."""
        async with asyncio.timeout(20):
            return await self.reader.read(1) == b""


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[KafkaWire]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield KafkaWire(reader, writer)
    finally:
        writer.close()
