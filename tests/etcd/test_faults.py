"""Real members that are killed and stopped, connections that lose answers, a past that is forgotten or comes back.

Bounds are those of a machine that has other things to do; what is compared is what this test wrote.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("grpc", reason="the extra etcd is not installed")

from coordinator.metadata.authority import MAX_OPERATIONS, Compare, Delta, Operation, Put
from coordinator.metadata.etcd import watching
from coordinator.metadata.etcd.calls import GrpcEtcd
from coordinator.metadata.etcd.rpc import Access, EtcdRefusedError, Pace, Page, StreamBrokenError, end_of_prefix
from coordinator.metadata.etcd.store import EtcdStore
from coordinator.metadata.store import MetadataUnavailableError
from tests.etcd.conftest import running
from tests.etcd.members import Member, Members
from tests.etcd.stores import LONG_MS, PATIENT, EtcdCluster, new_name, opened

Result = TypeVar("Result")

_BRISK = Pace(call=1_000, silence=3_000, progress=300)
"""Gives a member up soon, as nodes do."""


@pytest.fixture
def hurt(three_members: Members) -> Iterator[Members]:
    """Three members that a test may hurt: they are healed afterwards."""
    try:
        yield three_members
    finally:
        three_members.heal()


async def until(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    """Waits for it, generously."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None


async def answered(ask: Callable[[], Awaitable[Result]], seconds: float = 90) -> Result:
    """An answer of a store that may be without one for a while."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await ask()
            except MetadataUnavailableError:
                await asyncio.sleep(0.05)


class Counting:
    """Counts up one key by conditional transactions, and leaves a note of each: what is lost or comes twice shows."""

    def __init__(self, store: EtcdStore, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._attempts = 0
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.unknown: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is stopped."""
        while not stop.is_set():
            self._attempts += 1
            note = f"note/{self._worker}/{self._attempts}"
            known = self._store.get("counter")
            compare = Compare("counter", "mod", 0 if known is None else known.mod_revision)
            puts: list[Operation] = [Put("counter", 1 if known is None else known.value + 1), Put(note, self._attempts)]
            try:
                revision = await self._store.transaction([compare], puts)
            except MetadataUnavailableError as error:
                (self.unknown if error.outcome == "unknown" else self.refused).append(note)
            else:
                (self.refused if revision is None else self.acknowledged).append(note)
            await asyncio.sleep(0.01)


async def hurt_once(members: Members, member: Member, how: str, progress: Callable[[], int]) -> None:
    """Kills or stops a member, waits until transactions go on without it, and heals it."""
    await asyncio.to_thread(member.kill if how == "kill" else member.stop)
    before = progress()
    await until(lambda: progress() >= before + 10, f"transactions go on without {member.name}")
    await asyncio.to_thread(members.heal)
    before = progress()
    await until(lambda: progress() >= before + 10, f"transactions go on with {member.name}")


@pytest.mark.timeout(400)
async def test_members_are_killed_and_stopped_amid_transactions_and_nothing_is_lost_or_done_twice(
    hurt: Members,
) -> None:
    name = new_name()
    writers = [await opened(hurt.addresses[turn:] + hurt.addresses[:turn], name, _BRISK) for turn in range(2)]
    watcher = await opened(list(reversed(hurt.addresses)), name, _BRISK)
    heard: list[Delta] = []
    watcher.watch("counter", heard.append)
    workers = [Counting(store, number) for number, store in enumerate(writers)]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(worker.run(stop)) for worker in workers]

    def done() -> int:
        return sum(len(worker.acknowledged) for worker in workers)

    await until(lambda: done() >= 10, "transactions begin")
    for who, how in (("leader", "kill"), ("follower", "stop"), ("leader", "stop")):
        member = await asyncio.to_thread(hurt.leader if who == "leader" else lambda: hurt.followers()[0])
        await hurt_once(hurt, member, how, done)
    stop.set()
    await asyncio.gather(*tasks)

    # What timed out is settled by reading, once nothing can land any more: the counter has moved on.
    last = writers[0]
    await answered(lambda: last.transaction([], [Put("counter", -1)]))
    await answered(last.catch_up)
    notes = {known.key for known in last.range("note/")}
    acknowledged = {note for worker in workers for note in worker.acknowledged}
    unknown = {note for worker in workers for note in worker.unknown}
    refused = {note for worker in workers for note in worker.refused}
    assert acknowledged <= notes
    assert not refused & notes
    assert notes <= acknowledged | unknown
    revision = await answered(watcher.catch_up)
    assert revision >= last.revision
    counted = [delta.changes[0].after.value for delta in heard if delta.changes[0].after is not None]
    assert counted.pop() == -1
    while counted[-1] == -1:  # the last one may have been written twice
        counted.pop()
    assert counted == list(range(1, len(notes) + 1))
    for store in (*writers, watcher):
        await store.close()


@pytest.mark.timeout(300)
async def test_with_all_members_down_errors_are_bounded_and_name_them_and_the_mirror_can_be_read(hurt: Members) -> None:
    store = await opened(hurt.addresses, new_name(), _BRISK)
    lease = await store.grant(60_000)
    first = await store.transaction([], [Put("a", 1)], timeout_ms=LONG_MS)
    for member in hurt.members:
        await asyncio.to_thread(member.kill)
    loop = asyncio.get_running_loop()
    asked: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: store.transaction([], [Put("b", 1)], timeout_ms=1_500),
        lambda: store.catch_up(timeout_ms=1_500),
        lambda: store.grant(2_000, timeout_ms=1_500),
        lambda: store.renew(lease.id, timeout_ms=1_500),
        lambda: store.revoke(lease.id, timeout_ms=1_500),
    )
    for ask in asked:
        began = loop.time()
        with pytest.raises(MetadataUnavailableError) as caught:
            await ask()
        assert loop.time() - began < 60
        for member in hurt.members:
            assert f"127.0.0.1:{member.port}" in str(caught.value)
    found = store.get("a")
    assert found is not None
    assert found.mod_revision == first
    await asyncio.to_thread(hurt.heal)
    assert await answered(store.catch_up) >= (first or 0)
    assert await answered(lease.renew)
    assert await answered(lambda: store.transaction([], [Put("a", 2)])) is not None
    await store.close()


@pytest.mark.timeout(300)
async def test_a_watch_on_a_member_that_stops_goes_on_at_another(hurt: Members) -> None:
    name = new_name()
    member = (await asyncio.to_thread(hurt.followers))[0]
    rest = [address for address in hurt.addresses if address != member.address]
    store = await opened([member.address, *rest], name, _BRISK)
    other = await opened(rest, name)
    heard: list[Delta] = []
    store.watch("", heard.append)
    await asyncio.to_thread(member.stop)
    written = [await other.transaction([], [Put("a", number)], timeout_ms=LONG_MS) for number in range(5)]
    await until(lambda: len(heard) == 5, "the watch goes on")
    assert [delta.revision for delta in heard] == written
    await store.close()
    await other.close()


@pytest.mark.timeout(300)
async def test_a_new_leader_gives_every_lease_its_whole_time_again(hurt: Members) -> None:
    store = await opened(hurt.addresses, new_name(), _BRISK)
    lease = await store.grant(10_000)
    await answered(lambda: store.transaction([], [Put("live", 1, lease.id)]))
    leader = await asyncio.to_thread(hurt.leader)
    await asyncio.sleep(4)
    loop = asyncio.get_running_loop()
    killed = loop.time()
    await asyncio.to_thread(leader.kill)
    await until(lambda: store.get("live") is None, "the lease ends")
    assert loop.time() - killed > 9  # six seconds were left of it
    assert not await answered(lease.renew)
    await store.close()


@pytest.mark.timeout(300)
async def test_without_a_quorum_no_lease_ends_and_a_watch_is_broken_off(hurt: Members) -> None:
    store = await opened(hurt.addresses, new_name(), _BRISK)
    left, *others = hurt.members
    etcd = GrpcEtcd([left.address], Access(), PATIENT)
    watch = await etcd.watch("/", end_of_prefix("/"), revision=store.revision, timeout_ms=LONG_MS)
    lease = await store.grant(6_000)
    await answered(lambda: store.transaction([], [Put("live", 1, lease.id)]))
    for member in others:
        await asyncio.to_thread(member.kill)

    async def to_its_end() -> None:
        async with asyncio.timeout(90):
            while True:
                await watch.next()

    with pytest.raises(StreamBrokenError, match="no leader"):
        await to_its_end()
    await watch.close()
    await etcd.close()
    await asyncio.sleep(8)
    assert store.get("live") is not None
    with pytest.raises(MetadataUnavailableError):
        await store.catch_up(timeout_ms=1_000)
    await asyncio.to_thread(hurt.heal)
    await until(lambda: store.get("live") is None, "the lease ends with a quorum")
    await store.close()


@pytest.fixture
async def pair(one_member: Members) -> AsyncIterator[EtcdCluster]:
    """Two stores on one member, the second behind a proxy."""
    cluster = EtcdCluster(one_member)
    try:
        await cluster.open()
        yield cluster
    finally:
        await cluster.close()


async def test_an_answer_that_is_lost_leaves_the_outcome_unknown_and_reading_settles_it(pair: EtcdCluster) -> None:
    first = await pair.one.transaction([], [Put("a", 1)], timeout_ms=LONG_MS) or 0
    await pair.other.catch_up(timeout_ms=LONG_MS)
    for proxy in pair.proxies:
        proxy.stall("down")
    with pytest.raises(MetadataUnavailableError) as caught:
        await pair.other.transaction([Compare("a", "mod", first)], [Put("a", 2)], timeout_ms=3_000)
    assert caught.value.outcome == "unknown"

    async def landed() -> bool:
        await pair.one.catch_up(timeout_ms=LONG_MS)
        found = pair.one.get("a")
        return found is not None and found.value == 2

    async with asyncio.timeout(60):
        while not await landed():
            await asyncio.sleep(0.05)
    for proxy in pair.proxies:
        proxy.release()
    await pair.other.catch_up(timeout_ms=LONG_MS)
    assert pair.other.get("a") == pair.one.get("a")
    assert await pair.other.transaction([Compare("a", "mod", first)], [Put("a", 2)], timeout_ms=LONG_MS) is None


async def test_of_a_transaction_that_comes_late_and_what_was_decided_meanwhile_one_takes_effect(
    pair: EtcdCluster,
) -> None:
    first = await pair.one.transaction([], [Put("a", 1)], timeout_ms=LONG_MS) or 0
    await pair.other.catch_up(timeout_ms=LONG_MS)
    for proxy in pair.proxies:
        proxy.stall("up")
    compare = [Compare("a", "mod", first)]
    with pytest.raises(MetadataUnavailableError) as caught:
        await pair.other.transaction(compare, [Put("a", "late")], timeout_ms=1_000)
    assert caught.value.outcome == "unknown"
    await pair.one.catch_up(timeout_ms=LONG_MS)
    found = pair.one.get("a")
    assert found is not None
    assert found.mod_revision == first  # it may land from here on
    for proxy in pair.proxies:
        proxy.release()
    decided = await pair.one.transaction(compare, [Put("a", "meanwhile")], timeout_ms=LONG_MS)
    await pair.other.catch_up(timeout_ms=LONG_MS)
    found = pair.other.get("a")
    assert found is not None
    assert (found.value, found.version) == ("late" if decided is None else "meanwhile", 2)


async def test_revisions_that_come_in_parts_are_told_whole(pair: EtcdCluster) -> None:
    heard: list[Delta] = []
    pair.other.watch("", heard.append)
    written = []
    async with pair.other_is_behind():
        for turn in range(6):
            puts = [Put(f"{key:03}", [turn, "x" * 9_000]) for key in range(MAX_OPERATIONS)]
            written.append(await pair.one.transaction([], puts, timeout_ms=LONG_MS))
    await pair.other.catch_up(timeout_ms=LONG_MS)
    assert [delta.revision for delta in heard] == written
    assert {len(delta.changes) for delta in heard} == {MAX_OPERATIONS}
    assert pair.other.range("") == pair.one.range("")


async def test_a_transaction_may_have_as_much_as_is_promised(pair: EtcdCluster) -> None:
    keys = [str(key) for key in range(MAX_OPERATIONS)]
    operations: list[Operation] = [Put(key, 1) for key in keys]
    absent = [Compare(key, "create", 0) for key in keys]
    assert await pair.one.transaction(absent, operations, timeout_ms=LONG_MS) is not None
    etcd = GrpcEtcd([("127.0.0.1", pair.proxies[0].port)], Access(), PATIENT)
    with pytest.raises(EtcdRefusedError, match="too many operations"):
        await etcd.txn([Compare(f"/{key}", "mod", 0) for key in range(129)], [], timeout_ms=LONG_MS)
    await etcd.close()


async def test_keys_are_listed_in_pages_of_one_revision_even_if_that_is_compacted_meanwhile(
    one_member: Members, pair: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"{key:03}" for key in range(100)]
    await pair.one.transaction([], [Put(key, 1) for key in keys], timeout_ms=LONG_MS)
    monkeypatch.setattr(watching, "PAGE", 7)

    class Compacting(GrpcEtcd):
        pages = 0

        async def range(self, first: str, end: str, *, limit: int, revision: int = 0, timeout_ms: int) -> Page:
            page = await super().range(first, end, limit=limit, revision=revision, timeout_ms=timeout_ms)
            self.pages += 1
            if self.pages == 5:
                await pair.one.transaction([], [Put(keys[0], 2), Put(keys[-1], 2)], timeout_ms=LONG_MS)
                await asyncio.to_thread(one_member.compact)
            return page

    etcd = Compacting(one_member.addresses, Access(), PATIENT)
    store = await EtcdStore.open(etcd, pair.name, str, print, timeout_ms=LONG_MS)
    assert etcd.pages > 100 / 7 + 5
    assert store.range("") == pair.one.range("")
    await store.close()


async def test_a_key_that_cohort_did_not_write_ends_the_node_by_name(one_member: Members) -> None:
    name = new_name()
    ends: list[str] = []
    etcd = GrpcEtcd(one_member.addresses, Access(), PATIENT)
    store = await EtcdStore.open(etcd, name, str, ends.append, timeout_ms=LONG_MS)
    foreign = {
        "key": base64.b64encode(f"/cohort/{name}/live/1".encode()).decode(),
        "value": base64.b64encode(b"{").decode(),
    }
    await asyncio.to_thread(one_member.members[0].ask, "POST", "/v3/kv/put", foreign)
    await until(lambda: bool(ends), "the node is told to end")
    assert f"the key /cohort/{name}/live/1 in etcd" in ends[0]
    with pytest.raises(MetadataUnavailableError, match="not followed any more"):
        await store.catch_up(timeout_ms=LONG_MS)
    await store.close()


@pytest.fixture
def restored(etcd_binary: None, tmp_path: Path) -> Iterator[Members]:
    """A member of its own, whose directory a test puts back."""
    yield from running(Members(tmp_path, 1, "--unsafe-no-fsync"))


@pytest.mark.timeout(300)
async def test_an_etcd_that_went_back_in_time_ends_the_node(restored: Members, tmp_path: Path) -> None:
    member = restored.members[0]
    data, backup = tmp_path / member.name, tmp_path / "backup"
    ends: list[str] = []
    etcd = GrpcEtcd(restored.addresses, Access(), _BRISK)
    store = await EtcdStore.open(etcd, "past", lambda: "id", ends.append, timeout_ms=LONG_MS)
    await store.transaction([], [Put("a", 1)], timeout_ms=LONG_MS)
    await asyncio.to_thread(member.kill)
    shutil.copytree(data, backup)
    await asyncio.to_thread(restored.heal)
    for _ in range(5):
        await answered(lambda: store.transaction([], [Put("a", 2)]))
    await asyncio.to_thread(member.kill)
    shutil.rmtree(data)
    backup.rename(data)
    await asyncio.to_thread(restored.heal)
    await until(lambda: bool(ends), "the node is told to end")
    assert "it was restored from an older backup" in ends[0]
    with pytest.raises(MetadataUnavailableError, match="older backup"):
        await store.catch_up(timeout_ms=LONG_MS)
    await store.close()
