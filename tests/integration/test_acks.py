"""acks 0 and 1: what they promise holds through lost answers, broken connections and daemons that do not read."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from client.admin import Admin
from client.errors import RequestTimedOutError
from client.producer.acknowledgements import RecordFuture
from client.producer.producer import Producer
from coordinator import Coordinator
from coordinator.cluster import Cluster
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.messages.records import PartitionProduceResponse, ProduceResponse
from tests.daemon_process import DaemonProcess
from tests.integration.fetched import values
from tests.integration.hostile_proxy import HostileProxy, Malice
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import ask, produce

RECORDS = 600


async def sent(producer: Producer, proxy: HostileProxy) -> list[RecordFuture]:
    """Numbered records in many requests.

    How many depends on the machine, as records wait for each other while it is busy. So when the network has done nothing
    wrong until the last of them, others follow, each in a request of its own, until it has.
    """
    futures: list[RecordFuture] = []
    async with asyncio.timeout(60):
        while len(futures) < RECORDS or not proxy.done:
            futures.append(await producer.send("t", b"%d" % len(futures)))
            if len(futures) > RECORDS:
                await futures[-1]
            elif len(futures) % 10 == 1:
                await asyncio.sleep(0.002)
    return futures


def first_copies(found: list[bytes | None]) -> list[bytes | None]:
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("acks", ["all", 1])
@pytest.mark.parametrize(
    "malice",
    [Malice(answer_lost=0.1), Malice(never=0.1), Malice(broken=0.02)],
    ids=["answers", "requests", "connections"],
)
async def test_without_idempotence_records_come_twice_but_never_out_of_turn(
    malice: Malice, acks: Literal["all", 1]
) -> None:
    async with (
        HostileProxy(malice, Random(5)) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 1})
        async with Producer(
            f"127.0.0.1:{proxy.port}", acks=acks, enable_idempotence=False, batch_size=600, request_timeout_ms=200
        ) as producer:
            entries = await asyncio.gather(*await sent(producer, proxy))
        assert proxy.done, "the network did nothing wrong"
        proxy.malice = Malice()
        found = (await values(coordinator.address, "t"))[0]
    expected = [b"%d" % number for number in range(len(entries))]
    assert len(expected) >= RECORDS
    assert first_copies(found) == expected
    assert [found[entry.offset] for entry in entries] == expected


async def test_without_acks_a_broken_connection_costs_records_and_doubles_none() -> None:
    async with (
        HostileProxy(Malice(broken=0.05), Random(5)) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 1})
        async with Producer(f"127.0.0.1:{proxy.port}", acks=0, batch_size=600) as producer:
            entries = await asyncio.gather(*await sent(producer, proxy))
        assert {entry.offset for entry in entries} == {-1}
        assert proxy.done["broken"]
        proxy.malice = Malice()
        found: list[bytes | None] = []
        async with asyncio.timeout(20):
            while not found:  # what is on its way may still come
                await asyncio.sleep(0.2)
                found = (await values(coordinator.address, "t"))[0]
    numbers = [int(value or b"-1") for value in found]
    assert numbers == sorted(set(numbers)), "in order, none twice"


async def test_a_stop_leaves_nothing_behind_that_was_sent_without_acks(tmp_path: Path) -> None:
    """The daemon reads slowly: more than the operating system takes waits in the client when ``stop`` is called."""
    with DaemonProcess(tmp_path / "data") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": 1}, {"max.message.bytes": 4_000_000})
        producer = Producer(daemon.address, acks=0, max_request_bytes=3_000_000)
        await producer.start()
        await producer.send_and_wait("t", b"0")
        daemon.send(signal.SIGSTOP)
        futures = [await producer.send("t", b"x" * 2_000_000) for _ in range(8)]
        await asyncio.sleep(0.3)
        assert not all(future.done() for future in futures), "what is still here is not written"
        stopping = asyncio.create_task(producer.stop())
        await asyncio.sleep(0.3)
        assert not stopping.done()
        daemon.send(signal.SIGCONT)
        async with asyncio.timeout(20):
            await stopping
            while len((await values(daemon.address, "t"))[0]) < 9:
                await asyncio.sleep(0.05)
        assert all(future.result().offset == -1 for future in futures)


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_daemon_that_does_not_read_costs_no_more_than_the_delivery_timeout(
    tmp_path: Path, acks: Literal[0, 1]
) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": 1})
        async with Producer(daemon.address, acks=acks, request_timeout_ms=400, delivery_timeout_ms=900) as producer:
            await producer.send_and_wait("t", b"0")
            daemon.send(signal.SIGSTOP)
            futures = [await producer.send("t", b"x" * 3_000_000) for _ in range(8)]
            async with asyncio.timeout(20):  # by the defaults it would be 30 s or more
                done = await asyncio.gather(*futures, return_exceptions=True)
            daemon.send(signal.SIGCONT)
            failed = [outcome for outcome in done if isinstance(outcome, BaseException)]
            assert failed
            assert all(isinstance(outcome, RequestTimedOutError) for outcome in failed)
            assert producer._pool.used == 0


@pytest.mark.parametrize("acks", [0, 1])
async def test_records_outlive_a_restart_of_the_daemon_within_their_time(tmp_path: Path, acks: Literal[0, 1]) -> None:
    coordinator = Coordinator(str(tmp_path / "data"))
    await coordinator.__aenter__()
    port = int(coordinator.address.rpartition(":")[2])
    async with Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 1})
    async with Producer(coordinator.address, acks=acks) as producer:
        await producer.send_and_wait("t", b"0")
        await asyncio.sleep(0.1)
        await coordinator.__aexit__(None, None, None)
        futures = [await producer.send("t", b"%d" % number) for number in range(1, 50)]
        await asyncio.sleep(0.1)
        assert not any(future.done() for future in futures)
        async with Coordinator(str(tmp_path / "data"), port=port) as again:
            async with asyncio.timeout(30):
                await asyncio.gather(*futures)
            found: list[bytes | None] = []
            async with asyncio.timeout(30):
                while len(found) < 50:
                    found = (await values(again.address, "t"))[0]
    assert found == [b"%d" % number for number in range(50)]


async def test_a_write_that_waits_for_replicas_is_told_as_soon_as_too_few_are_in_sync() -> None:
    """Long before its own time is over; and it is in the log, so it comes back when the replicas do."""
    async with Cluster(nodes=3, log_level="error") as cluster, asyncio.timeout(60):
        async with Admin(cluster.address) as admin:
            await admin.create_topics({"t": 1})
            leader = (await admin.describe_topics("t"))["t"].partitions[0].leader
        others = [node for node in range(3) if node != leader]
        async with Producer(cluster.address) as producer:
            await producer.send_and_wait("t", b"first")
        async with raw(cluster.addresses[leader]) as client:

            async def written(value: bytes) -> PartitionProduceResponse:
                answer = decode_message(ProduceResponse, await ask(client, produce("t", value)))
                return answer.responses[0].partition_responses[0]

            killing = [asyncio.create_task(cluster.kill(node)) for node in others]
            await asyncio.sleep(0)
            async with asyncio.timeout(10):  # a request waits for 30 s
                while (told := await written(b"waits")).error_code == ErrorCode.NONE:
                    pass
            assert told.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert "The records are in the leader's log" in told.error_message
            assert (await written(b"refused")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            await asyncio.gather(*killing)
        await cluster.start(others[0])
        async with Producer(cluster.address) as producer:
            await producer.send_and_wait("t", b"last")
        found = (await values(cluster.addresses[leader], "t"))[0]
        assert (found[0], *found[-2:]) == (b"first", b"waits", b"last")
