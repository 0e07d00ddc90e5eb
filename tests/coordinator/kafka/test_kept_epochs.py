"""Transactions of Kafka's producers from before KIP-890, which keep one epoch and name partitions by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from coordinator.embedded import Coordinator
from protocol.errors import ErrorCode
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from tests.coordinator.kafka.transacting import TransactionalProducer, committed_offset, made_topic, values_read
from tests.coordinator.kafka.wire import KafkaWire, connected

PATIENCE_S: Final = 10


class Versions(NamedTuple):
    """What a client sends of each key."""

    produce: int
    add: int
    add_offsets: int
    end: int
    commit_offset: int

    @property
    def fenced(self) -> int:
        """How clients of these versions are told that another one has the id (KIP-588)."""
        return int(ErrorCode.PRODUCER_FENCED if self.end >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH)


FIRST: Final = Versions(3, 0, 0, 0, 0)
LAST: Final = Versions(11, 3, 4, 4, 4)
every_version = pytest.mark.parametrize("versions", [FIRST, Versions(7, 1, 1, 1, 2), LAST])


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as running:
        yield running


@pytest.fixture
async def wire(coordinator: Coordinator) -> AsyncIterator[KafkaWire]:
    async with connected(coordinator.kafka_address) as connection:
        for topic in ("t", "u"):
            await made_topic(connection, topic)
        yield connection


async def transacted(
    producer: TransactionalProducer, versions: Versions, *values: bytes, committed: bool, topic: str = "t"
) -> None:
    """A whole transaction."""
    assert await producer.add(topic, version=versions.add) == ErrorCode.NONE
    assert await producer.write(topic, *values, version=versions.produce) == ErrorCode.NONE
    assert await producer.end(committed=committed, version=versions.end) == ErrorCode.NONE


@every_version
async def test_transactions_follow_one_another_in_one_epoch(wire: KafkaWire, versions: Versions) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    kept = producer.producer_id, producer.epoch
    await transacted(producer, versions, b"a", b"b", committed=True)
    await transacted(producer, versions, b"dropped", committed=False)
    assert await producer.add("t", "u", version=versions.add) == ErrorCode.NONE
    assert await producer.write("t", b"c", version=versions.produce) == ErrorCode.NONE
    assert await producer.write("u", b"x", version=versions.produce) == ErrorCode.NONE
    assert await producer.write("t", b"d", version=versions.produce) == ErrorCode.NONE
    assert await values_read(wire, "u", committed=True) == []
    assert await producer.end(committed=True, version=versions.end) == ErrorCode.NONE
    assert (producer.producer_id, producer.epoch) == kept
    assert producer.sequences == {"t": 5, "u": 1}
    assert await values_read(wire, "t", committed=True, until=b"d") == [b"a", b"b", b"c", b"d"]
    assert await values_read(wire, "u", committed=True, until=b"x") == [b"x"]
    assert await values_read(wire, "t", committed=False) == [b"a", b"b", b"dropped", b"c", b"d"]


@every_version
async def test_what_comes_twice_counts_once(wire: KafkaWire, versions: Versions) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    for number in range(2):
        value = b"%d" % number
        for _ in range(2):
            assert await producer.add("t", version=versions.add) == ErrorCode.NONE
        for _ in range(2):
            assert await producer.write("t", value, version=versions.produce, sequence=number) == ErrorCode.NONE
        for _ in range(2):
            assert await producer.end(committed=True, version=versions.end) == ErrorCode.NONE
        assert await producer.end(committed=False, version=versions.end) == ErrorCode.INVALID_TXN_STATE
    assert await values_read(wire, "t", committed=True, until=b"1") == [b"0", b"1"]


async def test_an_end_of_nothing_aborts_nothing_and_commits_nothing(wire: KafkaWire) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    assert await producer.end(committed=True, version=4) == ErrorCode.INVALID_TXN_STATE
    assert await producer.end(committed=False, version=4) == ErrorCode.NONE
    await transacted(producer, LAST, b"a", committed=True)
    assert await values_read(wire, "t", committed=True, until=b"a") == [b"a"]


@every_version
async def test_sequences_go_on_past_the_end_of_a_transaction(wire: KafkaWire, versions: Versions) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    await transacted(producer, versions, b"a", b"b", committed=True)
    assert await producer.add("t", version=versions.add) == ErrorCode.NONE
    for sequence in (3, 4):
        code = await producer.write("t", b"too early", version=versions.produce, sequence=sequence)
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await producer.write("t", b"c", version=versions.produce, sequence=2) == ErrorCode.NONE


@every_version
async def test_partitions_are_written_to_once_they_are_added(wire: KafkaWire, versions: Versions) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    assert await producer.write("t", b"lost", version=versions.produce) == ErrorCode.INVALID_TXN_STATE
    await transacted(producer, versions, b"a", committed=True)
    assert await producer.write("t", b"lost", version=versions.produce) == ErrorCode.INVALID_TXN_STATE
    assert await producer.add("u", version=versions.add) == ErrorCode.NONE
    assert await producer.write("t", b"lost", version=versions.produce) == ErrorCode.INVALID_TXN_STATE
    assert await producer.add("missing", version=versions.add) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.end(committed=True, version=versions.end) == ErrorCode.NONE
    assert await values_read(wire, "t", committed=True, until=b"a") == [b"a"]


@every_version
async def test_a_producer_whose_id_another_has_is_fenced(wire: KafkaWire, versions: Versions) -> None:
    old = await TransactionalProducer.begun(wire, "id")
    await transacted(old, versions, b"a", committed=True)
    assert await old.add("t", version=versions.add) == ErrorCode.NONE
    assert await old.write("t", b"lost", version=versions.produce) == ErrorCode.NONE
    new = await TransactionalProducer.begun(wire, "id")
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch
    assert await old.write("t", b"late", version=versions.produce) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await old.add("t", version=versions.add) == versions.fenced
    assert await old.add_offsets("g", version=versions.add_offsets) == versions.fenced
    assert await old.end(committed=True, version=versions.end) == versions.fenced
    await transacted(new, versions, b"b", committed=True)
    assert await old.write("t", b"late", version=versions.produce) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await values_read(wire, "t", committed=True, until=b"b") == [b"a", b"b"]


async def test_a_transaction_that_timed_out_ends_the_epoch_and_its_producer_gets_another(wire: KafkaWire) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    assert await producer.init(timeout_ms=200) == ErrorCode.NONE
    await transacted(producer, LAST, b"a", committed=True)
    before = producer.epoch
    assert await producer.add("t", version=3) == ErrorCode.NONE
    assert await producer.write("t", b"lost", version=11) == ErrorCode.NONE
    async with asyncio.timeout(PATIENCE_S):
        while await producer.add("u", version=3) == ErrorCode.NONE:
            await asyncio.sleep(0.05)
    for committed in (True, False):
        assert await producer.end(committed=committed, version=4) == ErrorCode.PRODUCER_FENCED
    assert await producer.write("t", b"late", version=11) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await producer.init() == ErrorCode.NONE
    assert producer.epoch > before
    await transacted(producer, LAST, b"b", committed=True)
    assert await values_read(wire, "t", committed=True, until=b"b") == [b"a", b"b"]


@every_version
async def test_offsets_count_when_the_transaction_commits(wire: KafkaWire, versions: Versions) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    for offset, committed in ((7, False), (8, True), (9, False), (10, True)):
        before = await committed_offset(wire, "g", "t", settled=True)
        refused = await producer.commit_offset("g", "t", offset, version=versions.commit_offset)
        assert refused == ErrorCode.INVALID_TXN_STATE
        assert await producer.add_offsets("g", version=versions.add_offsets) == ErrorCode.NONE
        assert await producer.commit_offset("g", "t", offset, version=versions.commit_offset) == ErrorCode.NONE
        assert await committed_offset(wire, "g", "t") == -1000 - ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await producer.end(committed=committed, version=versions.end) == ErrorCode.NONE
        expected = offset if committed else before
        assert await committed_offset(wire, "g", "t", settled=True) == expected


async def test_a_restart_forgets_neither_the_kept_epoch_nor_what_was_numbered(tmp_path: Path) -> None:
    def daemon() -> Coordinator:
        return Coordinator(kafka_port=-1, node_id=1, data_dir=str(tmp_path / "data"))

    async def found(wire: KafkaWire) -> None:
        await wire.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["id"]), 4)

    async with daemon() as running, connected(running.kafka_address) as wire:
        await made_topic(wire, "t")
        producer = await TransactionalProducer.begun(wire, "id")
        await transacted(producer, LAST, b"a", b"b", committed=True)
    async with daemon() as running, connected(running.kafka_address) as wire:
        producer.wire = wire
        await found(wire)
        assert await producer.end(committed=True, version=4) == ErrorCode.NONE, "its answer was lost"
        assert await producer.add("t", version=3) == ErrorCode.NONE
        assert await producer.write("t", b"gap", version=11, sequence=3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await producer.write("t", b"c", version=11) == ErrorCode.NONE
    async with daemon() as running, connected(running.kafka_address) as wire:
        producer.wire = wire
        await found(wire)
        assert await producer.write("t", b"d", version=11) == ErrorCode.NONE
        assert await producer.end(committed=True, version=4) == ErrorCode.NONE
        assert await values_read(wire, "t", committed=True, until=b"d") == [b"a", b"b", b"c", b"d"]
