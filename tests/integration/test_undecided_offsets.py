"""Committed offsets that an open transaction may change, and what isolation levels ask for, seen from the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any, Literal

import msgpack
import pytest
import structlog

import client.transport.group_offsets
from client import Admin, Consumer, OffsetAndMetadata, Producer, RequestTimedOutError, TopicPartition
from coordinator import Coordinator
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.messages import REQUESTS, ApiKey
from protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from tests.integration.consuming import QUICK, create, fill, take, until
from tests.integration.hostile_proxy import HostileProxy, Malice, frames, send

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LEVEL_AT = {
    key: list(REQUESTS[key].__annotations__).index("isolation_level") for key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS)
}
"""Where in a request's body its isolation level stands."""


class UndecidedProxy(HostileProxy):
    """Says of ``undecided`` partitions, to those who ask for stable offsets, that a transaction is open.

    ``levels`` has the isolation level of each Fetch and ListOffsets.
    """

    def __init__(self) -> None:
        super().__init__(Malice(), Random(0))
        self.undecided: set[int] = set()
        self.asked = 0
        self.levels: dict[int, set[int]] = {ApiKey.FETCH: set(), ApiKey.LIST_OFFSETS: set()}
        self._stable: set[int] = set()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, produces: set[int]) -> None:
        async for frame in frames(reader):
            key, _, correlation_id, _, body, *_ = msgpack.unpackb(frame)
            if key == ApiKey.OFFSET_FETCH and body[2]:
                self._stable.add(correlation_id)
            elif key in self.levels:
                self.levels[key].add(body[LEVEL_AT[key]])
            send(upstream, frame)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, produces: set[int]) -> None:
        async for frame in frames(reader):
            fields: list[Any] = msgpack.unpackb(frame)
            if fields[0] in self._stable:
                self._stable.discard(fields[0])
                self.asked += 1
                answer = decode_message(OffsetFetchResponse, fields[1])
                frame = msgpack.packb([fields[0], encode_message(self._undecided(answer))])
            send(writer, frame)

    def _undecided(self, answer: OffsetFetchResponse) -> OffsetFetchResponse:
        code = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return replace(
            answer,
            topics=tuple(
                replace(
                    topic,
                    partitions=tuple(
                        replace(found, committed_offset=-1, error_code=code)
                        if found.partition_index in self.undecided
                        else found
                        for found in topic.partitions
                    ),
                )
                for topic in answer.topics
            ),
        )


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[UndecidedProxy, str]]:
    """A daemon behind the proxy, with ten numbers in each partition of topic t: even ones and odd ones."""
    async with (
        UndecidedProxy() as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        await create(coordinator.address, t=2)
        await fill(coordinator.address, "t", range(20))
        async with Admin(coordinator.address) as admin:
            await admin.alter_offsets("g", {T0: 4, T1: 6})
        yield proxy, f"127.0.0.1:{proxy.port}"


async def test_a_partition_with_undecided_offsets_waits_and_the_others_are_read() -> None:
    async with proxied() as (proxy, address):
        proxy.undecided = {1}
        with structlog.testing.capture_logs() as logs:
            async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as consumer:
                assert await take(consumer, 6) == [8, 10, 12, 14, 16, 18]
                await until(
                    lambda: any(line["event"] == "positions_unknown" and "t-1" in line["error"] for line in logs)
                )
                assert consumer.assignment() == {T0, T1}
                proxy.undecided = set()
                assert await take(consumer, 4) == [13, 15, 17, 19]


async def test_asking_for_undecided_offsets_waits_and_ends_with_the_request_timeout() -> None:
    async with proxied() as (proxy, address):
        proxy.undecided = {0}
        consumer = Consumer(bootstrap_servers=address, group_id="g", request_timeout_ms=700, auto_offset_reset="none")
        consumer.assign([T0])
        async with consumer:
            with pytest.raises(RequestTimedOutError, match=r"not decided within 700 ms: .*t-0"):
                await consumer.committed(T0, T1)
            with pytest.raises(RequestTimedOutError, match=r"not decided within 700 ms: .*t-0"):
                await consumer.position(T0)
            asking = asyncio.create_task(consumer.committed(T0, T1))
            asked = proxy.asked
            await until(lambda: proxy.asked > asked + 1)
            proxy.undecided = set()
            assert await asking == {T0: OffsetAndMetadata(4), T1: OffsetAndMetadata(6)}
            assert await consumer.position(T0) == 4


async def test_an_admin_sees_what_is_committed_whatever_is_undecided() -> None:
    async with proxied() as (proxy, address), Admin(address) as admin:
        proxy.undecided = {0, 1}
        assert await admin.list_offsets("g") == {T0: OffsetAndMetadata(4), T1: OffsetAndMetadata(6)}
        assert proxy.asked == 0


@pytest.mark.parametrize(("level", "number"), [("read_committed", 1), ("read_uncommitted", 0)])
async def test_the_isolation_level_goes_with_every_fetch_and_every_look_for_offsets(
    level: Literal["read_committed", "read_uncommitted"], number: int
) -> None:
    async with proxied() as (proxy, address):
        settings: dict[str, Any] = {} if number else {"isolation_level": level}
        async with Consumer("t", bootstrap_servers=address, **settings, **QUICK) as consumer:
            assert len(await take(consumer, 20)) == 20
            assert await consumer.lag() == {T0: 0, T1: 0}
        assert proxy.levels == {ApiKey.FETCH: {number}, ApiKey.LIST_OFFSETS: {number}}


def test_there_are_two_isolation_levels() -> None:
    with pytest.raises(ValueError, match="'serializable'; it can be 'read_committed' or 'read_uncommitted'"):
        Consumer("t", isolation_level="serializable")  # type: ignore[arg-type]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_new_owner_waits_for_what_the_one_before_has_not_decided(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that it handles again what an open transaction then commits as done."""

    def unstable(group_id: str, topics: Any, require_stable: bool = False) -> OffsetFetchRequest:
        return OffsetFetchRequest(group_id, topics)

    if not waits:
        monkeypatch.setattr(client.transport.group_offsets, "OffsetFetchRequest", unstable)
    async with Coordinator(port=0) as coordinator:
        await create(coordinator.address, t=1)
        await fill(coordinator.address, "t", range(10))
        async with Producer(coordinator.address, transactional_id="before") as producer:
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({T0: 5}, "g")
            async with Consumer("t", bootstrap_servers=coordinator.address, group_id="g", **QUICK) as consumer:
                taking = asyncio.create_task(consumer.getone())
                done, _ = await asyncio.wait([taking], timeout=1.0 if waits else 30.0)
                assert bool(done) is not waits
                await producer.commit_transaction()
                assert (await asyncio.wait_for(taking, 30)).offset == (5 if waits else 0)
