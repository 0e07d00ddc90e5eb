"""Batches that cannot be read: the program is told which and how to pass over them, and gets everything else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client import Admin, Consumer, CorruptMessageError, Producer, TopicPartition, UnsupportedCompressionTypeError
from coordinator import Coordinator
from protocol.record_batch import iter_batches

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COUNT = 100


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    """A daemon with numbers in two partitions, in batches of a few."""
    async with Coordinator(data_dir=str(tmp_path / "data")) as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 2})
        async with Producer(coordinator.address, batch_size=1_000) as producer:
            for partition in range(2):
                for number in range(COUNT):
                    await producer.send("t", b"%050d" % number, partition=partition, timestamp_ms=number)
                await producer.flush()
        yield coordinator.address


def damage(data: Path, byte: int) -> range:
    """Turns around a byte of the third batch of T0, ``byte`` bytes behind its beginning; returns its offsets."""
    (log,) = (data / "t-0").glob("*.log")
    stored = bytearray(log.read_bytes())
    position, header = list(iter_batches(bytes(stored)))[2]
    stored[position + byte] ^= 0xFF
    log.write_bytes(stored)
    return range(header.base_offset, header.next_offset)


async def read(
    consumer: Consumer, how: str, count: int, failures: int = 0
) -> tuple[dict[TopicPartition, list[int]], list[Exception]]:
    """Polls until so many records and errors have come; what came of each partition, and the errors."""
    numbers: dict[TopicPartition, list[int]] = {T0: [], T1: []}
    errors: list[Exception] = []
    async with asyncio.timeout(20):
        while sum(map(len, numbers.values())) < count or len(errors) < failures:
            try:
                if how == "columns":
                    columns = await consumer.getmany_columns(timeout_ms=500)
                    for tp, parts in columns.items():
                        numbers[tp] += [int(value or b"") for part in parts for value in part.values()]
                else:
                    for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                        numbers[tp] += [int(record.value) for record in records]
            except CorruptMessageError as error:
                errors.append(error)
    return numbers, errors


@pytest.mark.parametrize("how", ["records", "columns"])
@pytest.mark.parametrize("byte", [30, 100], ids=["header", "body"])
async def test_a_damaged_batch_names_itself_and_the_way_past_it_and_holds_up_nothing_else(
    address: str, tmp_path: Path, byte: int, how: str
) -> None:
    lost = damage(tmp_path / "data", byte)
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0, T1])
        numbers, errors = await read(consumer, how, COUNT + lost.start, failures=2)
        assert numbers == {T0: list(range(lost.start)), T1: list(range(COUNT))}
        for error in errors:
            assert "t-0" in str(error)
            assert f"offset {lost.start}" in str(error)
            assert str(lost.stop) in str(error)
            assert "seek" in str(error)
        assert await consumer.position(T0) == lost.start
        consumer.seek(T0, lost.stop)
        numbers, errors = await read(consumer, how, COUNT - lost.stop)
        assert numbers[T0] == list(range(lost.stop, COUNT))


async def test_a_search_by_time_in_a_damaged_log_is_answered_at_once(address: str, tmp_path: Path) -> None:
    lost = damage(tmp_path / "data", 30)
    async with Consumer(bootstrap_servers=address) as consumer, asyncio.timeout(20):
        found = await consumer.offsets_for_times({T1: COUNT - 1})
        assert found == {T1: (COUNT - 1, COUNT - 1)}
        with pytest.raises(CorruptMessageError, match=r"^CORRUPT_MESSAGE: t-0 is damaged at .* header is damaged"):
            await consumer.offsets_for_times({T0: lost.start, T1: 0})


async def test_what_this_program_cannot_inflate_names_what_is_missing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(address, compression="zstd") as producer:
        await producer.send_many("t", [b"%d" % number for number in range(COUNT, COUNT + 10)], partition=0)
        await producer.send_many("t", [b"%d" % number for number in range(COUNT + 10, COUNT + 11)], partition=1)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, COUNT)
        for poll in (consumer.getmany, consumer.getmany_columns):
            with pytest.raises(
                UnsupportedCompressionTypeError,
                match=rf"batch at offset {COUNT} of t-0 .* pip install 'aiocohort\[zstd\]'\. seek\(tp, {COUNT + 10}\)",
            ):
                await poll(timeout_ms=5_000)
