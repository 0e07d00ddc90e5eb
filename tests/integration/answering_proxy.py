"""A proxy that says of Produce requests what the test wants, whatever the daemon said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import msgpack

from client.admin import Admin
from coordinator import Coordinator
from protocol.codec import decode_message, encode_message
from protocol.messages import ApiKey
from protocol.messages.cluster import MetadataResponse
from protocol.messages.records import PartitionProduceResponse, ProduceResponse
from tests.integration.hostile_proxy import HostileProxy, Malice, frames, send

Rewrite = Callable[[PartitionProduceResponse], PartitionProduceResponse]


class AnsweringProxy(HostileProxy):
    """Passes frames on; ``rewrite`` makes of each partition's answer to a Produce request what the client gets to read.

    ``unanswered`` names the kinds of requests that never get an answer, ``unheard`` those that never arrive. ``black_hole``
    turns every connection that there is
    into one on which nothing arrives any more in either direction; new ones work. ``connections`` counts all there were,
    ``topics_described`` what Metadata answers had to say of topics.
    """

    def __init__(self, rewrite: Rewrite = lambda answer: answer) -> None:
        super().__init__(Malice(), Random(0))
        self.rewrite = rewrite
        self.unanswered: set[ApiKey] = set()
        self.unheard: set[ApiKey] = set()
        self.topics_described = 0
        self._kinds: list[dict[int, int]] = []  # of each connection: kind of request by correlation id
        self._dead = 0

    @property
    def connections(self) -> int:
        """How many connections there were."""
        return len(self._kinds)

    def black_hole(self) -> None:
        """Nothing comes through the connections of now any more."""
        self._dead = len(self._kinds)

    async def _pump(
        self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, number: int, kinds: dict[int, int]
    ) -> None:
        async for frame in frames(reader):
            fields = msgpack.unpackb(frame)
            kinds[fields[2]] = fields[0]
            if number >= self._dead and fields[0] not in self.unheard:
                send(upstream, frame)

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, produces: set[int]) -> None:
        await self._pump(reader, upstream, len(self._kinds) - 1, self._kinds[-1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._kinds.append({})
        await super()._serve(reader, writer)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, produces: set[int]) -> None:
        number, kinds = len(self._kinds) - 1, self._kinds[-1]
        async for frame in frames(reader):
            fields: list[Any] = msgpack.unpackb(frame)
            kind = kinds.pop(fields[0], None)
            if number < self._dead or kind in self.unanswered:
                continue
            if kind == ApiKey.METADATA and len(fields) == 2:
                self.topics_described += len(decode_message(MetadataResponse, fields[1]).topics)
            if kind == ApiKey.PRODUCE and len(fields) == 2:
                answer = self._rewritten(decode_message(ProduceResponse, fields[1]))
                frame = msgpack.packb([fields[0], encode_message(answer)])
            send(writer, frame)

    def _rewritten(self, answer: ProduceResponse) -> ProduceResponse:
        return ProduceResponse(
            tuple(
                replace(topic, partition_responses=tuple(map(self.rewrite, topic.partition_responses)))
                for topic in answer.responses
            )
        )


@asynccontextmanager
async def answered() -> AsyncIterator[AnsweringProxy]:
    """A daemon with topic "t" of two partitions; clients reach it through the proxy only."""
    async with (
        AnsweringProxy() as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 2})
        yield proxy


def address(proxy: AnsweringProxy) -> str:
    """Where clients connect to."""
    return f"127.0.0.1:{proxy.port}"
