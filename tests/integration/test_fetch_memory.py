"""What records in answers hold of the daemon's memory: bounded, however many ask at once and whoever reads slowly."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from client import Producer
from protocol.messages.records import FetchPartition, FetchRequest, FetchTopic
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import create
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import World, ask, fetch, frame, produce
from tests.integration.test_bounds import create as create_topic

PARTITIONS = 40
MIB = 1 << 20


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonProcess]:
    monkeypatch.setenv("COHORT_MAX_REQUEST_MEMORY_BYTES", str(64 * MIB))
    with DaemonProcess(tmp_path / "data", "--flush", "os") as daemon:
        yield daemon


def peak_mib(daemon: DaemonProcess) -> int:
    """The most memory the daemon has had so far."""
    (line,) = [line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


async def fill(address: str) -> None:
    await create(address, large=PARTITIONS)
    async with Producer(address, batch_size=900_000) as producer:
        for partition in range(PARTITIONS):
            await producer.send_many("large", [b"x" * 100_000] * 8, partition=partition)


def everything(max_wait_ms: int, min_bytes: int) -> FetchRequest:
    asked = tuple(FetchPartition(partition, 0, MIB) for partition in range(PARTITIONS))
    return FetchRequest(max_wait_ms, min_bytes, 32 * MIB, (FetchTopic("large", asked),))


async def test_many_clients_that_ask_at_once_and_do_not_read_share_one_bound(daemon: DaemonProcess) -> None:
    await fill(daemon.address)
    before = peak_mib(daemon)
    async with AsyncExitStack() as deaf:
        clients = [await deaf.enter_async_context(raw(daemon.address)) for _ in range(40)]
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for client in clients:
            await client.send(frame(everything(500, 1), 0))
        await asyncio.sleep(3)
    # The bound, and one batch for each client, which it must be able to get whatever the others do.
    assert peak_mib(daemon) - before < 64 + 40 + 64, "with the copies on the way to the socket"
    async with raw(daemon.address) as client:
        answer: Any = await ask(client, everything(500, 1))
        assert sum(len(partition[5]) for _, partitions in answer[1] for partition in partitions) > 10 * MIB


class SlowReads(World):
    """A daemon whose reads of records wait for a word."""

    def __init__(self, tmp_path: Path) -> None:
        self.reading, self.go_on = threading.Event(), threading.Event()
        super().__init__(tmp_path)

    def _hook(self, operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".log"):
            self.reading.set()
            assert self.go_on.wait(30)


async def test_records_sent_after_other_answers_that_are_not_read_count_too(tmp_path: Path) -> None:
    world = SlowReads(tmp_path)
    async with world, raw(world.address) as client:
        await create_topic(client, "orders")
        for number in range(9):
            await ask(client, produce("orders", b"x" * 1_000_000), number)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(frame(fetch("orders", 0, 0, 1, 8 * MIB), 0))
        assert await asyncio.to_thread(world.reading.wait, 10)
        listener = world.daemon._listener
        assert listener is not None
        (connection,) = [entry for entry in listener._connections if not entry.idle]
        connection.send([b"x" * 8 * MIB])  # what other answers may come to
        held = listener.unread.held
        assert 15 * MIB < held < 17 * MIB, "those answers count, and what is being read"
        world.go_on.set()
        async with asyncio.timeout(30):
            while not connection.idle:
                await asyncio.sleep(0.01)
        assert listener.unread.held > 15 * MIB


async def test_fetches_that_wait_for_more_bytes_hold_none_meanwhile(daemon: DaemonProcess) -> None:
    await create(daemon.address, sparse=1)
    async with Producer(daemon.address, batch_size=900_000) as producer:
        await producer.send_many("sparse", [b"x" * 100_000] * 80, partition=0)
    before = peak_mib(daemon)
    async with raw(daemon.address) as client:
        asked = FetchRequest(3_000, 32 * MIB, 32 * MIB, (FetchTopic("sparse", (FetchPartition(0, 0, 32 * MIB),)),))
        for number in range(60):
            await client.send(frame(asked, number))
        await asyncio.sleep(1.5)
        assert peak_mib(daemon) - before < 64


async def drip(world: World, request: FetchRequest) -> None:
    """Asks again and again over a network with small buffers, and reads a little four times a second until it is cut off."""
    loop, listener = asyncio.get_running_loop(), world.daemon._listener
    assert listener is not None
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.setblocking(False)
        await loop.sock_connect(wire, world.daemon.address)
        name = "{}:{}".format(*wire.getsockname())
        while not (made := [entry for entry in listener._connections if entry.peer == name]):
            await asyncio.sleep(0.01)
        assert made[0].transport is not None
        made[0].transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await loop.sock_sendall(wire, b"".join(frame(request, number) for number in range(20)))
        with suppress(ConnectionError):
            while await loop.sock_recv(wire, 4096):
                await asyncio.sleep(0.25)


async def test_clients_that_read_a_few_bytes_now_and_then_do_not_keep_others_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, max_request_memory_bytes=2 * MIB)
    async with world, raw(world.address) as client, AsyncExitStack() as stack:
        await create_topic(client, "orders")
        for number in range(3):
            await ask(client, produce("orders", b"x" * 900_000), number)
        dripping = [asyncio.create_task(drip(world, fetch("orders", 0, 0, 1, MIB))) for _ in range(6)]
        for task in dripping:
            stack.push_async_callback(asyncio.wait, [task])
            stack.callback(task.cancel)
        await asyncio.sleep(1)
        async with asyncio.timeout(20):
            answer: Any = await ask(client, fetch("orders", 0, 0, 1, MIB))
        assert len(answer[1][0][1][0][5]) > 900_000
        listener = world.daemon._listener
        assert listener is not None
        assert listener.unread.held <= 2 * MIB
    told = [record.getMessage() for record in caplog.records if "slow_reader_closed" in record.getMessage()]
    assert told
    assert all("peer='127.0.0.1:" in line and "client_id='test'" in line for line in told)
