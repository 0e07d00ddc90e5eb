"""A producer whose daemon goes away: nothing acknowledged is lost, order holds, every wait ends."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from client.admin import Admin
from client.errors import ClosedError, CohortError, RequestTimedOutError
from client.producer.producer import Producer
from coordinator import Coordinator
from tests.daemon_process import DaemonProcess
from tests.integration.fetched import values


async def a_daemon_with_topic(tmp_path: Path, partitions: int = 1) -> tuple[Coordinator, int]:
    """A running daemon that can be started again on the same data and port."""
    coordinator = Coordinator(str(tmp_path / "data"))
    await coordinator.__aenter__()
    async with Admin(coordinator.address) as admin:
        await admin.create_topics({"t": partitions})
    return coordinator, int(coordinator.address.rpartition(":")[2])


async def stop(coordinator: Coordinator) -> None:
    await coordinator.__aexit__(None, None, None)


async def test_a_daemon_that_restarts_costs_no_record_and_no_order(tmp_path: Path) -> None:
    coordinator, port = await a_daemon_with_topic(tmp_path, 3)
    async with Producer(coordinator.address, batch_size=500) as producer:

        async def sender(partition: int) -> list[int]:
            offsets = []
            for number in range(400):
                entry = await producer.send_and_wait("t", b"%d" % number, partition=partition)
                offsets.append(entry.offset)
                await asyncio.sleep(0.001)
            return offsets

        senders = [asyncio.create_task(sender(partition)) for partition in range(3)]
        for _ in range(2):
            await asyncio.sleep(0.15)
            await stop(coordinator)
            await asyncio.sleep(0.05)
            coordinator = Coordinator(str(tmp_path / "data"), port=port)
            await coordinator.__aenter__()
        acknowledged = await asyncio.gather(*senders)
    found = await values(f"127.0.0.1:{port}", "t")
    for partition, offsets in enumerate(acknowledged):
        own = found[partition]
        assert [own[offset] for offset in offsets] == [b"%d" % number for number in range(400)]
        assert offsets == sorted(offsets)
        first_seen = list(dict.fromkeys(own))  # a retry may store a record twice, never out of turn
        assert first_seen == [b"%d" % number for number in range(400)]
    await stop(coordinator)


async def test_a_killed_daemon_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": 2})
        async with Producer(daemon.address, batch_size=2000) as producer:
            results = [asyncio.create_task(producer.send_many("t", [b"%d" % n] * 50, [b"k"] * 50)) for n in range(100)]
            await asyncio.sleep(0.02)
            daemon.kill()
            await asyncio.sleep(0.05)
            daemon.start()
            acknowledged = [entry for result in await asyncio.gather(*results) for entry in result]
        found = await values(daemon.address, "t")
        expected = [b"%d" % number for number in range(100) for _ in range(50)]
        assert [found[entry.partition][entry.offset] for entry in acknowledged] == expected


async def test_records_wait_for_a_daemon_that_is_away_and_keep_their_order(tmp_path: Path) -> None:
    coordinator, port = await a_daemon_with_topic(tmp_path)
    async with Producer(coordinator.address, buffer_bytes=4000, batch_size=1000) as producer:
        await producer.send_and_wait("t", b"0")
        await stop(coordinator)
        sending = asyncio.create_task(producer.send_many("t", [b"%d" % number for number in range(1, 1000)]))
        async with asyncio.timeout(30):
            while producer._pool.used <= 3000:  # then the buffer is full and the caller waits
                await asyncio.sleep(0.01)
        late = asyncio.create_task(producer.send("t", b"cancelled"))
        await asyncio.sleep(0.01)
        late.cancel()
        async with Coordinator(str(tmp_path / "data"), port=port) as again:
            assert len(await sending) == 999
            assert (await values(again.address, "t"))[0] == [b"%d" % number for number in range(1000)]
            assert producer._pool.used == 0


async def test_the_first_record_of_a_topic_waits_for_a_daemon_that_is_away(tmp_path: Path) -> None:
    coordinator, port = await a_daemon_with_topic(tmp_path)
    async with Producer(coordinator.address, request_timeout_ms=200) as producer:
        await stop(coordinator)
        sending = asyncio.create_task(producer.send_and_wait("t", b"0"))
        await asyncio.sleep(1.0)  # longer than a request may take
        assert not sending.done()
        async with Coordinator(str(tmp_path / "data"), port=port):
            assert (await sending).offset == 0


async def test_the_first_record_of_a_topic_is_out_of_time_like_any_other(tmp_path: Path) -> None:
    coordinator, _ = await a_daemon_with_topic(tmp_path)
    producer = Producer(coordinator.address, delivery_timeout_ms=300)
    await producer.start()
    await stop(coordinator)
    async with asyncio.timeout(20):
        with pytest.raises(RequestTimedOutError, match=r"within 300 ms"):
            await producer.send("t", b"0")
        await producer.stop()


async def test_a_record_that_is_out_of_time_fails_and_says_why(tmp_path: Path) -> None:
    coordinator, _ = await a_daemon_with_topic(tmp_path)
    producer = Producer(coordinator.address, delivery_timeout_ms=1500)
    await producer.start()
    await producer.send_and_wait("t", b"0")
    await stop(coordinator)
    futures = [await producer.send("t", b"%d" % number) for number in range(5)]
    many = asyncio.create_task(producer.send_many("t", [b"x"] * 5))
    async with asyncio.timeout(20):
        await asyncio.gather(*futures, many, return_exceptions=True)
    for future in futures:
        error = future.exception()
        assert isinstance(error, RequestTimedOutError)
        assert "records for t-0 were not acknowledged in" in str(error)
        assert "delivery_timeout_ms=1500" in str(error)
        assert "ConnectionLostError" in str(error)
        assert error.__cause__ is not None
    failure = many.exception()
    assert isinstance(failure, RequestTimedOutError)
    assert failure.__notes__ == ["5 of the 5 records of this send_many were not acknowledged"]
    assert producer._pool.used == 0
    await producer.stop()


async def test_retries_can_be_counted_instead(tmp_path: Path) -> None:
    coordinator, _ = await a_daemon_with_topic(tmp_path)
    async with Producer(coordinator.address, retries=2) as producer:
        await producer.send_and_wait("t", b"0")
        await stop(coordinator)
        with pytest.raises(RequestTimedOutError, match="and 3 attempts"):
            await producer.send_and_wait("t", b"1")


async def test_stop_with_the_daemon_gone_is_bounded_and_resolves_every_future(tmp_path: Path) -> None:
    coordinator, _ = await a_daemon_with_topic(tmp_path)
    producer = Producer(coordinator.address, buffer_bytes=7600)
    await producer.start()
    await producer.send_and_wait("t", b"0")
    await stop(coordinator)
    futures = [await producer.send("t", b"x" * 450) for _ in range(10)]
    waiting = asyncio.create_task(producer.send("t", b"y" * 1000))
    many = asyncio.create_task(producer.send_many("t", [b"z" * 1000] * 3))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        await producer.stop(timeout=0.2)
    for future in futures:
        with pytest.raises(ClosedError, match=r"10 records for t-0 were not .* was stopped. They are not in the log"):
            future.result()
    for call in (waiting, many):
        with pytest.raises(ClosedError):
            await call
    with pytest.raises(ClosedError):
        await producer.send("t", b"late")


async def test_a_cancelled_stop_still_closes(tmp_path: Path) -> None:
    coordinator, _ = await a_daemon_with_topic(tmp_path)
    producer = Producer(coordinator.address)
    await producer.start()
    await producer.send_and_wait("t", b"0")
    await stop(coordinator)
    future = await producer.send("t", b"1")
    stopping = asyncio.create_task(producer.stop())
    await asyncio.sleep(0.05)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert isinstance(future.exception(), ClosedError)


async def test_a_daemon_that_hangs_costs_one_request_timeout(tmp_path: Path) -> None:
    """The daemon reads nothing for a while: the request times out, is sent again, and both copies are stored in turn."""
    with DaemonProcess(tmp_path / "data") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": 1})
        async with Producer(daemon.address, request_timeout_ms=300) as producer:
            await producer.send_and_wait("t", b"0")
            daemon.send(signal.SIGSTOP)
            futures = [await producer.send("t", b"%d" % number) for number in range(1, 20)]
            await asyncio.sleep(0.5)
            assert not any(future.done() for future in futures)
            daemon.send(signal.SIGCONT)
            for future in futures:
                await future
        found = (await values(daemon.address, "t"))[0]
        assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(20)]


async def test_the_delivery_timeout_also_bounds_the_wait_for_a_producer_id(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": 1})
        async with Producer(daemon.address, delivery_timeout_ms=300) as producer:
            await producer.partitions_for("t")
            daemon.send(signal.SIGSTOP)
            async with asyncio.timeout(20):
                with pytest.raises(RequestTimedOutError, match=r"in \d+ ms and 0 attempts.*[Ii]t is not in the log"):
                    await producer.send_and_wait("t", b"0")
            daemon.send(signal.SIGCONT)


async def test_no_daemon_at_all_is_told_within_the_request_timeout() -> None:
    producer = Producer("127.0.0.1:1", request_timeout_ms=200)
    with pytest.raises(CohortError, match=r"cannot connect to 127.0.0.1:1"):
        await producer.start()
    await producer.stop()
