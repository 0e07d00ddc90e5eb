"""Unmodified Kafka clients against a daemon: they make a topic, write, read in a group, commit, go on where they were."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import aiokafka
import pytest

from client.consumer.consumer import Consumer
from client.producer.producer import Producer
from coordinator.embedded import Coordinator
from coordinator.kafka.calls import KafkaCall
from coordinator.kafka.offsets import _OffsetFetch
from protocol.errors import ErrorCode

RECORDS: Final = 300
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CASES: Final = (
    *(("aiokafka", compression) for compression in COMPRESSIONS),
    *(("confluent-kafka", compression) for compression in COMPRESSIONS),
    *(("kafka-python", compression) for compression in ("none", "gzip", "zstd")),  # of others it needs more libraries
)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as running:
        yield running


def values(prefix: str) -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(RECORDS)]


@pytest.mark.parametrize(("client", "compression"), CASES)
async def test_a_client_writes_and_a_group_reads_and_commits(
    coordinator: Coordinator, client: str, compression: str
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.integration.kafka_programs", client, coordinator.kafka_address, compression),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(90):
            said, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0, said.decode()


async def test_a_coordinator_that_is_not_ready_sets_no_reader_of_aiokafka_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks again where its group is, and does not begin anew as one without offsets does."""
    place, refused = aiokafka.TopicPartition("t", 0), list[ErrorCode]()
    handle = _OffsetFetch.handle

    def refuse_at_first(translator: _OffsetFetch, call: KafkaCall) -> Any:
        return call.refuse(refused.pop(), "not yet") if refused else handle(translator, call)

    monkeypatch.setattr(_OffsetFetch, "handle", refuse_at_first)
    async with asyncio.timeout(60), Coordinator(kafka_port=-1, flush="os", node_id=1) as coordinator:
        settings: dict[str, Any] = {
            "bootstrap_servers": coordinator.kafka_address, "group_id": "g", "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }  # fmt: skip
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=coordinator.kafka_address) as producer:
            for value in values("v"):
                await producer.send_and_wait("t", value, partition=0)
        async with aiokafka.AIOKafkaConsumer("t", **settings) as reader:
            await reader.getone()
            await reader.commit({place: 200})
        refused += [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        async with aiokafka.AIOKafkaConsumer("t", **settings) as reader:
            assert (await reader.getone()).offset == 200
        assert not refused


async def test_both_kinds_of_clients_read_what_both_kinds_wrote(coordinator: Coordinator) -> None:
    async with asyncio.timeout(60):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=coordinator.kafka_address) as theirs:
            for sent in [await theirs.send("t", value) for value in values("theirs")]:
                await sent
        async with Producer(bootstrap_servers=coordinator.address) as ours:
            for value in values("ours"):
                await ours.send("t", value)
        both = values("theirs") + values("ours")
        async with Consumer(
            "t", bootstrap_servers=coordinator.address, group_id="a", auto_offset_reset="earliest"
        ) as reader:
            read: list[bytes | None] = []
            while len(read) < len(both):
                for records in (await reader.getmany(timeout_ms=5_000)).values():
                    read += [record.value for record in records]
        assert read == both
        read = []
        async with aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=coordinator.kafka_address, group_id="b", auto_offset_reset="earliest"
        ) as other:
            while len(read) < len(both):
                for found in (await other.getmany(timeout_ms=5_000)).values():
                    read += [record.value for record in found]
        assert read == both
