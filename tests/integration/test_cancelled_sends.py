"""Calls to a producer are cancelled at any moment, behind a network that misbehaves: what is said of each record holds."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from client.admin import Admin
from client.errors import CohortError
from client.producer.acknowledgements import RecordFuture
from client.producer.producer import Producer
from client.types.records import RecordMetadata
from coordinator import Coordinator
from tests.integration.fetched import values
from tests.integration.hostile_proxy import HostileProxy, Malice

PARTITIONS = 3
RECORDS = 600


class Calls:
    """Sends numbered records in every way there is; some calls are cancelled, and it knows what became of the others."""

    def __init__(self, producer: Producer, random: Random) -> None:
        self.producer = producer
        self.random = random
        self.queued: list[tuple[int, RecordFuture]] = []
        self.stored: list[tuple[int, RecordMetadata]] = []
        self.failed: list[tuple[int, BaseException]] = []

    async def send(self, number: int) -> None:
        value, partition = b"%d" % number, number % PARTITIONS
        way = self.random.random()
        try:
            if way < 0.6:
                self.queued.append((number, await self.producer.send("t", value, partition=partition)))
            elif way < 0.8:
                self.stored.append((number, await self.producer.send_and_wait("t", value, partition=partition)))
            else:
                self.stored += [(number, (await self.producer.send_many("t", [value], partition=partition))[0])]
        except CohortError as error:
            self.failed.append((number, error))

    async def all(self) -> None:
        loop, random = asyncio.get_running_loop(), self.random
        calls: list[asyncio.Task[None]] = []
        for number in range(RECORDS):
            calls.append(asyncio.create_task(self.send(number)))
            if random.random() < 0.02:
                calls.append(asyncio.create_task(self.producer.flush()))
            if random.random() < 0.1:
                loop.call_later(random.random() * 0.05, calls[-1].cancel)
            if random.random() < 0.1:
                await asyncio.sleep(random.random() * 0.01)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        await asyncio.gather(self.producer.stop(), self.producer.stop(timeout=30))
        for number, future in self.queued:
            assert future.done()
            if (error := future.exception()) is None:
                self.stored.append((number, future.result()))
            else:
                self.failed.append((number, error))


@pytest.mark.parametrize("delivery_timeout_ms", [400, 20_000])
@pytest.mark.parametrize(
    "promise",
    [{}, {"enable_idempotence": False}, {"acks": 1}, {"acks": 0}],
    ids=["once", "all", "leader", "none"],
)
async def test_each_outcome_is_true(promise: dict[str, Any], delivery_timeout_ms: int) -> None:
    random = Random(f"{promise} {delivery_timeout_ms}")
    async with (
        HostileProxy(Malice(answer_lost=0.03, never=0.02, broken=0.01), random) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        producer = Producer(
            f"127.0.0.1:{proxy.port}", batch_size=600, buffer_bytes=6000, request_timeout_ms=200,
            delivery_timeout_ms=delivery_timeout_ms, random=random, **promise,
        )  # fmt: skip
        await producer.start()
        calls = Calls(producer, random)
        async with asyncio.timeout(60):
            await calls.all()
        assert producer._pool.used == 0
        proxy.malice = Malice()  # what is in the log is read in peace
        found = await values(coordinator.address, "t")
    for number, entry in calls.stored:
        assert entry.partition == number % PARTITIONS
        assert entry.offset == -1 or found[entry.partition][entry.offset] == b"%d" % number
    for number, error in calls.failed:
        text = str(error)
        assert "in the log" in text or "buffer had no room" in text
        if "may or may not" not in text:
            assert b"%d" % number not in found[number % PARTITIONS]
    if not promise:
        assert all(len(set(own)) == len(own) for own in found.values()), "none is there twice"
