"""An idempotent producer behind a network that loses, doubles, delays and reorders: each record once, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from client.admin import Admin
from client.producer.producer import Producer
from coordinator import Coordinator
from tests.daemon_process import DaemonProcess
from tests.integration.fetched import values
from tests.integration.hostile_proxy import HostileProxy, Malice

PARTITIONS = 3
RECORDS = 1500

KINDS = {
    "answers are lost": Malice(answer_lost=0.1),
    "requests come twice": Malice(twice=0.5),
    "requests come late, behind others": Malice(late=0.3),
    "requests never come": Malice(never=0.1),
    "connections break": Malice(broken=0.02),
    "all of it": Malice(twice=0.2, late=0.1, never=0.05, answer_lost=0.05, broken=0.01),
}


async def send_all(address: str, random: Random) -> list[list[int]]:
    """Sends numbered records to every partition in small batches; the offsets each was acknowledged with."""
    async with Producer(
        address, batch_size=600, request_timeout_ms=300, delivery_timeout_ms=90_000, random=random
    ) as producer:
        futures = []
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                futures.append(await producer.send("t", b"%d" % number, partition=partition))
            if random.random() < 0.05:
                await asyncio.sleep(0.002)
        entries = await asyncio.gather(*futures)
    return [[entry.offset for entry in entries[partition::PARTITIONS]] for partition in range(PARTITIONS)]


def assert_exactly_once(found: dict[int, list[bytes | None]], offsets: list[list[int]]) -> None:
    expected = [b"%d" % number for number in range(RECORDS)]
    for partition in range(PARTITIONS):
        assert found[partition] == expected
        assert offsets[partition] == list(range(RECORDS)), "each future tells where its record is"


@pytest.mark.parametrize("kind", KINDS)
async def test_each_record_is_stored_once_and_in_order(kind: str) -> None:
    random = Random(kind)
    async with (
        HostileProxy(KINDS[kind], random) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": PARTITIONS})
        offsets = await send_all(f"127.0.0.1:{proxy.port}", random)
        assert proxy.done, "the network did nothing wrong"
        proxy.malice = Malice()
        assert_exactly_once(await values(coordinator.address, "t"), offsets)


async def test_also_when_the_daemon_is_killed_meanwhile(tmp_path: Path) -> None:
    random = Random("killed")
    async with HostileProxy(Malice(twice=0.1, answer_lost=0.05, late=0.05), random) as proxy:
        advertised = ("--advertised-host", "127.0.0.1", "--advertised-port", str(proxy.port))
        with DaemonProcess(tmp_path, *advertised) as daemon:
            proxy.upstream_port = daemon.port
            async with Admin(daemon.address) as admin:
                await admin.create_topics({"t": PARTITIONS}, config={"segment.bytes": 4096})
            sending = asyncio.create_task(send_all(f"127.0.0.1:{proxy.port}", random))
            kills = 0
            while not sending.done() and kills < 4:
                await asyncio.wait([sending], timeout=0.5)
                await asyncio.to_thread(daemon.kill)
                await asyncio.to_thread(daemon.start)
                kills += 1
            offsets = await sending
            assert kills
            proxy.malice = Malice()
            assert_exactly_once(await values(daemon.address, "t"), offsets)
