"""The served store keeps the contract over real sockets, and through connections that are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.authority import Authority, Compare, Delta, KeyValue, Put, TransactionError
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.served import messages, server
from coordinator.metadata.served.server import MetadataServer
from coordinator.metadata.served.store import Pace, ServedStore
from coordinator.metadata.store import MetadataUnavailableError
from protocol.errors import ProtocolError
from tests.coordinator.log.logs import end_of_process
from tests.coordinator.metadata.contract import SharedStoreContract, seen
from tests.coordinator.metadata.served import PATIENT, ServedCluster, fatal

QUICK = Pace(connect=1_000, silence=600, ping=100)


async def local_store(directory: Path) -> LocalMetadataStore:
    """In real files."""
    return await LocalMetadataStore.open(Disk(FileStorage(str(directory)), threads=1), lambda: "c", end_of_process)


class TestServedLocalStore(SharedStoreContract):
    """All of it; leases end by time though those of the store behind do not."""

    @pytest.fixture
    async def cluster(self, tmp_path: Path) -> AsyncIterator[ServedCluster]:
        served = ServedCluster(await local_store(tmp_path))
        try:
            await served.open()
            yield served
        finally:
            await served.close()


class TestServedMemoryStore(SharedStoreContract):
    """All of it, over a store that ends leases itself and forgets what happened."""

    @pytest.fixture
    async def cluster(self) -> AsyncIterator[ServedCluster]:
        authority = Authority()
        store = MemoryStore(authority, "c", asyncio.get_running_loop().time)
        served = ServedCluster(store, lambda: authority.compact(authority.revision))
        try:
            await served.open()
            yield served
        finally:
            await served.close()


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[ServedCluster]:
    """One that notices silence soon."""
    served = ServedCluster(await local_store(tmp_path), pace=QUICK)
    try:
        await served.open()
        yield served
    finally:
        await served.close()


async def test_a_transaction_whose_connection_ends_before_the_answer_is_unknown(quick: ServedCluster) -> None:
    quick.proxy.stall("down")
    under_way = asyncio.create_task(quick.other.transaction([], [Put("a", 1)]))
    while quick.one.get("a") is None:
        await asyncio.sleep(0.01)
    await quick.proxy.refuse()
    with pytest.raises(MetadataUnavailableError, match="ended before the answer") as caught:
        await under_way
    assert caught.value.outcome == "unknown"
    await quick.proxy.accept()
    await quick.other.catch_up()
    found = quick.other.get("a")
    assert found is not None
    assert found.value == 1


async def test_without_a_connection_nothing_is_sent(quick: ServedCluster) -> None:
    await quick.proxy.refuse()
    await asyncio.sleep(0.2)
    with pytest.raises(
        MetadataUnavailableError, match=r"no connection to the metadata store at 127\.0\.0\.1"
    ) as caught:
        await quick.other.transaction([], [Put("a", 1)], timeout_ms=300)
    assert caught.value.outcome == "none"
    await quick.proxy.accept()
    await quick.other.catch_up()
    assert quick.other.get("a") is None


async def test_a_connection_that_falls_silent_is_given_up_and_the_difference_told_as_one(quick: ServedCluster) -> None:
    deltas: list[Delta] = []
    quick.other.watch("", deltas.append)
    quick.proxy.stall("up", "down")
    await quick.one.transaction([], [Put("a", 1), Put("b", 1)])
    await quick.one.transaction([], [Put("a", 2)])
    await asyncio.sleep(1.0)
    quick.proxy.reset(1.0)
    quick.proxy.release()
    await quick.other.catch_up()
    assert seen(deltas) == [(quick.one.revision, [("a", 2), ("b", 1)])]
    assert quick.other.range("") == quick.one.range("")


async def test_a_lease_is_renewed_through_a_cut_and_ends_when_nothing_comes_through(quick: ServedCluster) -> None:
    lease = await quick.other.grant(2_000)
    await quick.other.transaction([], [Put("live/1", 1, lease.id)])
    found = quick.one.get("live/1")
    assert found is not None
    assert found.lease == lease.id
    quick.proxy.reset(1.0)
    assert await lease.renew()
    await quick.proxy.refuse()
    deleted: list[Delta] = []
    quick.one.watch("live/", deleted.append)
    await asyncio.sleep(1.5)
    assert not deleted
    await asyncio.sleep(1.5)
    assert [keys for _, keys in seen(deleted)] == [[("live/1", None)]]
    await quick.proxy.accept()
    assert not await lease.renew()
    with pytest.raises(TransactionError, match="which is over"):
        await quick.other.transaction([], [Put("live/1", 1, lease.id)])


async def test_a_lease_of_a_server_that_was_there_before_is_over(tmp_path: Path) -> None:
    store = await local_store(tmp_path)
    before = MetadataServer(store, lambda: "before")
    host, port = await before.start("127.0.0.1", 0)
    node = await ServedStore.open(host, port, "", fatal, pace=PATIENT)
    lease = await node.grant(60_000)
    await before.close()
    after = MetadataServer(store, lambda: "after")
    await after.start(host, port)
    other = await ServedStore.open(host, port, "", fatal, pace=PATIENT)
    assert (await other.grant(60_000)).id != lease.id
    assert not await lease.renew()
    await node.close()
    await other.close()
    await after.close()
    await store.close()


async def test_a_stall_of_the_server_ends_no_lease(quick: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    lease = await quick.one.grant(2_000)
    await quick.one.transaction([], [Put("live/1", 1, lease.id)])
    jump = [0.0]
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + jump[0])
    jump[0] = 5.0  # as after SIGSTOP and SIGCONT
    await asyncio.sleep(0.3)
    assert await lease.renew(), "its renewals could not be heard"


async def test_a_cluster_of_another_name_is_refused_and_an_older_backup_ends_the_node(tmp_path: Path) -> None:
    authority = Authority([KeyValue("a", 1, 5, 5, 1)], 5)
    serving = MetadataServer(MemoryStore(authority, "c", asyncio.get_running_loop().time), lambda: "id", "orders")
    host, port = await serving.start("127.0.0.1", 0)
    with pytest.raises(MetadataUnavailableError, match="is of the cluster orders, not of lines"):
        await ServedStore.open(host, port, "lines", fatal)
    reasons: list[str] = []
    store = await ServedStore.open(host, port, "orders", reasons.append, pace=QUICK)
    assert (store.cluster_id, store.revision, [known.key for known in store.range("")]) == ("c", 5, ["a"])
    await serving.close()
    older = MetadataServer(MemoryStore(Authority([], 4), "c", asyncio.get_running_loop().time), lambda: "id")
    await older.start(host, port)
    while not reasons:
        await asyncio.sleep(0.01)
    assert "it is at revision 4, this node has seen 5: it was restored from an older backup" in reasons[0]
    with pytest.raises(MetadataUnavailableError, match="older backup"):
        await store.catch_up()
    await store.close()
    await older.close()


async def test_what_a_store_refuses_is_said(quick: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransactionError, match="two operations"):
        await quick.one.transaction([], [Put("a", 1), Put("a", 2)])
    monkeypatch.setattr(server, "MAX_LEASES", 1)
    await quick.one.grant(60_000)
    with pytest.raises(MetadataUnavailableError, match="1 leases are granted already") as caught:
        await quick.other.grant(60_000)
    assert caught.value.outcome == "none"


async def test_many_keys_come_in_pages_and_many_requests_at_once(quick: ServedCluster) -> None:
    await quick.proxy.refuse()
    for first in range(0, 2_400, 120):
        await quick.one.transaction([], [Put(f"k/{number:05}", {"n": number}) for number in range(first, first + 120)])
    await quick.proxy.accept()
    await quick.other.catch_up()
    assert quick.other.range("") == quick.one.range("")
    assert len(quick.other.range("k/")) == 2_400
    counted = await asyncio.gather(
        *(quick.other.transaction([Compare("n", "create", 0)], [Put("n", number)]) for number in range(300))
    )
    assert sum(revision is not None for revision in counted) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x01\x90",
        messages.encode(messages.Ping(), 1),
        messages.encode(messages.Hello(messages.MAGIC, 1, "", "", 0))
        + messages.encode(messages.Welcome("", 0, False, "")),
    ],
)
async def test_a_stranger_is_cut_off_and_others_are_served(quick: ServedCluster, sent: bytes) -> None:
    host, _, port = quick.one.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    async with asyncio.timeout(5):
        while await reader.read(65536):
            pass
    writer.close()
    assert await quick.one.transaction([], [Put("a", 1)]) is not None


def test_it_serves_on_uvloop_as_daemons_do(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop", reason="the extra uvloop is not installed")

    async def written() -> object:
        served = ServedCluster(await local_store(tmp_path))
        await served.open()
        await served.one.transaction([], [Put("a", 1)])
        await served.other.catch_up()
        found = served.other.get("a")
        await served.close()
        return found and found.value

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(written()) == 1


def test_a_message_that_is_none_is_refused() -> None:
    for payload in (b"\x93\x63\x00\x90", b"\x93\x00\x00\x91\x01", b"\x01", b"\x93\xa1a\x00\x90"):
        with pytest.raises(ProtocolError):
            messages.decode(payload)
    step = messages.Step("a", b"{", 0, False)
    with pytest.raises(ProtocolError, match="no JSON"):
        messages.operations_of(messages.Transaction((), (step,), 1))
    with pytest.raises(ProtocolError, match="a condition about"):
        messages.conditions_of(messages.Transaction((messages.Condition("a", "value", 1),), (), 1))
