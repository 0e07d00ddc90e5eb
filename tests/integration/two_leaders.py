"""Two nodes where there is one daemon: two doors to it, one of which can be made slow or be shut.

The Metadata answers that come through either door are rewritten: they name two nodes, the quick door and the slow one, and
the slow one leads every partition from ``slow_from`` on. So a producer has to do with two leaders of different speed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final, Self

import msgpack

from protocol.codec import decode_message, encode_message
from protocol.messages import ApiKey
from protocol.messages.cluster import BrokerMetadata, MetadataResponse, TopicMetadata
from tests.integration.hostile_proxy import frames, send

_QUICK: Final = 0
_SLOW: Final = 1


class TwoLeaders:
    """Listens twice on 127.0.0.1 and passes frames on to ``upstream_port``.

    Through the slow door go the Produce requests of a connection one after the other, ``pause_s`` seconds apart, and none at
    all between ``shut`` and ``open``. ``produced`` counts those that came, by door: quick, slow.
    """

    def __init__(self, upstream_port: int, slow_from: int, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self._open = asyncio.Event()
        self._open.set()
        self.produced = [0, 0]
        self._upstream_port = upstream_port
        self._slow_from = slow_from
        self._doors: list[asyncio.Server] = []
        self._closing = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where the quick door is."""
        return f"127.0.0.1:{self._port(_QUICK)}"

    def shut(self) -> None:
        """From now on nothing that is produced gets through the slow door."""
        self._open.clear()

    def open(self) -> None:
        """What waits before the slow door, and what comes, gets through again."""
        self._open.set()

    async def __aenter__(self) -> Self:
        for door in (_QUICK, _SLOW):

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: int = door) -> None:
                await self._serve(door, reader, writer)

            self._doors.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        for door in self._doors:
            door.close()
        self._closing.set()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _port(self, door: int) -> int:
        return int(self._doors[door].sockets[0].getsockname()[1])

    async def _serve(self, door: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        described: set[int] = set()
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        pumps = (
            asyncio.create_task(self._requests(door, reader, upstream, described)),
            asyncio.create_task(self._answers(upstream_reader, writer, described)),
            asyncio.create_task(self._closing.wait()),
        )
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._connections.discard(task)
            writer.transport.abort()
            upstream.transport.abort()

    async def _requests(
        self, door: int, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, described: set[int]
    ) -> None:
        async for frame in frames(reader):
            fields = msgpack.unpackb(frame)
            if fields[0] == ApiKey.METADATA:
                described.add(fields[2])
            if fields[0] == ApiKey.PRODUCE:
                self.produced[door] += 1
                if door == _SLOW:
                    await asyncio.sleep(self.pause_s)
                    await self._open.wait()
            send(upstream, frame)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, described: set[int]) -> None:
        async for frame in frames(reader):
            fields: list[Any] = msgpack.unpackb(frame)
            if fields[0] in described and len(fields) == 2:
                described.discard(fields[0])
                answer = self._with_two_nodes(decode_message(MetadataResponse, fields[1]))
                frame = msgpack.packb([fields[0], encode_message(answer)])
            send(writer, frame)

    def _with_two_nodes(self, answer: MetadataResponse) -> MetadataResponse:
        nodes = tuple(BrokerMetadata(door, "127.0.0.1", self._port(door)) for door in (_QUICK, _SLOW))
        return replace(answer, brokers=nodes, topics=tuple(self._led(topic) for topic in answer.topics))

    def _led(self, topic: TopicMetadata) -> TopicMetadata:
        partitions = tuple(
            replace(partition, leader_id=_QUICK if partition.partition_index < self._slow_from else _SLOW)
            for partition in topic.partitions
        )
        return replace(topic, partitions=partitions)
