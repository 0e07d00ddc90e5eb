"""Fetching ahead: what the program leaves lying does not starve the rest, and no fault ends the fetching."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from client import Consumer, TopicPartition
from client.cluster import Cluster
from client.consumer.fetcher import Fetcher
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import create, fill, take, until

RECORDS = 3000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


def buffered(consumer: Consumer) -> dict[int, int]:
    return {tp.partition: state.buffered_bytes for tp, state in consumer._assignment.states.items()}


async def read_all(consumer: Consumer, *tps: TopicPartition) -> None:
    """Reads ``RECORDS`` records of each partition."""
    left = len(tps) * RECORDS
    async with asyncio.timeout(20):
        while left:
            left -= sum(map(len, (await consumer.getmany(*tps, timeout_ms=1000)).values()))


@pytest.mark.parametrize("paused", [True, False])
async def test_buffers_the_program_does_not_take_leave_the_others_their_share(address: str, paused: bool) -> None:
    topic = f"shares-{paused}".lower()
    await create(address, **{topic: 4})
    partitions = [TopicPartition(topic, partition) for partition in range(4)]
    for tp in partitions:
        await fill(address, topic, range(RECORDS), tp.partition)
    async with Consumer(
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        fetch_max_bytes=20_000,
        max_partition_fetch_bytes=10_000,
    ) as consumer:
        left_lying, others = partitions[:2], partitions[2:]
        consumer.assign(left_lying)
        await until(lambda: all(buffered(consumer).values()) and len(buffered(consumer)) == 2)
        consumer.assign(partitions)
        if paused:
            consumer.pause(*left_lying)
        await read_all(consumer, *others)
        if paused:
            consumer.resume(*left_lying)
        await read_all(consumer, *left_lying)


async def test_a_fault_reaches_the_program_and_the_fetching_goes_on(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create(address, faulty=1)
    await fill(address, "faulty", range(5))
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("faulty", 0)])
        assert await take(consumer, 2) == [0, 1]
        for place, method in ((Fetcher, "_dispatch"), (Cluster, "connection_to_leader")):
            caplog.clear()

            def fail(*_: object, method: str = method) -> None:
                monkeypatch.undo()
                raise KeyError(method)

            async def told(place: type = place, method: str = method, fail: object = fail) -> bool:
                """Whether the poll told the fault; it does not when what it wants was buffered before."""
                monkeypatch.setattr(place, method, fail)
                consumer.seek(TopicPartition("faulty", 0), 2)
                try:
                    await take(consumer, 1)
                except KeyError as error:
                    return method in str(error)
                return False

            async with asyncio.timeout(10):
                while not await told():
                    pass
            monkeypatch.undo()
            consumer.seek(TopicPartition("faulty", 0), 2)
            assert await take(consumer, 3) == [2, 3, 4]
            assert "fetching failed unexpectedly" in caplog.text
