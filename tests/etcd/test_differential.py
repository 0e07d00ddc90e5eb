"""Random operations on a real etcd and on the authority that stands for it in stores and simulations: equal answers, equal
revisions counted from the beginning, equal leases, and the same told to watchers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Final, Literal

import pytest

pytest.importorskip("grpc", reason="the extra etcd is not installed")

from coordinator.metadata.authority import (
    MIN_TTL_MS,
    Authority,
    CompactedError,
    Compare,
    Delete,
    DeletePrefix,
    Delta,
    KeyValue,
    Operation,
    Put,
    TransactionError,
)
from coordinator.metadata.etcd.calls import GrpcEtcd
from coordinator.metadata.etcd.rpc import (
    Access,
    EtcdRefusedError,
    Happening,
    LeaseOverError,
    RevisionsForgottenError,
    end_of_prefix,
)
from coordinator.metadata.etcd.store import EtcdStore
from coordinator.metadata.store import Lease
from tests.etcd.conftest import running
from tests.etcd.members import Members
from tests.etcd.stores import LONG_MS, PATIENT, new_name, opened

_KEYS: Final = ("a", "a/b", "b", "p/1", "p/2", "p/2/3", "p0", "pé", "\U0001f600")
_PREFIXES: Final = ("", "a", "p", "p/", "pé", "nothing")
_STEPS: Final = 250


@pytest.fixture(scope="module")
def alone(etcd_binary: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """An etcd in which nothing else is written: revisions are counted."""
    yield from running(Members(tmp_path_factory.mktemp("alone"), 1, "--unsafe-no-fsync"))


class Twins:
    """A store on etcd and an authority, which are asked the same."""

    def __init__(self, store: EtcdStore, etcd: GrpcEtcd, prefix: str, seed: int) -> None:
        self.random = Random(seed)
        self.store = store
        self.etcd = etcd
        self.prefix = prefix
        self.authority = Authority()
        self.offset = store.revision - self.authority.revision
        self.leases: list[tuple[int, Lease]] = []
        self.heard: list[Delta] = []
        self.expected: list[Delta] = []
        self.refused = 0
        store.watch("", self.heard.append)

    # What is drawn

    def _condition(self) -> Compare:
        key = self.random.choice(_KEYS)
        kinds: tuple[Literal["mod", "create", "version"], ...] = ("mod", "create", "version")
        what = self.random.choice(kinds)
        known = self.authority.get(key)
        if known is None or self.random.random() < 0.2:
            return Compare(key, what, self.random.choice((0, 0, 0, 1, self.authority.revision)))
        right = {"mod": known.mod_revision, "create": known.create_revision, "version": known.version}[what]
        return Compare(key, what, right)

    def _operation(self) -> Operation:
        drawn = self.random.random()
        if drawn < 0.7:
            lease = self.random.choice(self.leases)[0] if self.leases and self.random.random() < 0.4 else 0
            return Put(self.random.choice(_KEYS), {"n": self.random.randrange(9)}, lease)
        if drawn < 0.85:
            return Delete(self.random.choice(_KEYS))
        return DeletePrefix(self.random.choice(_PREFIXES))

    # What is compared

    def theirs(self, known: KeyValue | None) -> KeyValue | None:
        """A key of the authority, with etcd's revisions and leases."""
        if known is None:
            return None
        lease = {mine: given.id for mine, given in self.leases}.get(known.lease, 0)
        return known._replace(
            create_revision=known.create_revision + self.offset,
            mod_revision=known.mod_revision + self.offset,
            lease=lease,
        )

    def told(self, delta: Delta) -> Delta:
        """As a watcher of etcd is to be told it."""
        changes = (
            change._replace(before=self.theirs(change.before), after=self.theirs(change.after))
            for change in delta.changes
        )
        return Delta(delta.revision + self.offset, tuple(changes))

    def expect(self, delta: Delta | None) -> None:
        """This happened."""
        if delta is not None and delta.changes:
            self.expected.append(self.told(delta))

    async def agree(self) -> None:
        """Keys, revisions and what was told."""
        assert await self.store.catch_up(timeout_ms=LONG_MS) == self.authority.revision + self.offset
        assert self.store.range("") == [self.theirs(known) for known in self.authority.range("")]
        assert self.heard == self.expected

    # Steps

    async def transact(self) -> None:
        compare = [self._condition() for _ in range(self.random.choice((0, 0, 1, 1, 2)))]
        operations = [self._operation() for _ in range(self.random.choice((0, 1, 1, 2, 3)))]
        try:
            delta = self.authority.transaction(compare, operations)
        except TransactionError as error:
            self.refused += 1
            await self._refused(compare, operations, str(error))
            return
        revision = await self.store.transaction(
            compare=[self._shifted(condition) for condition in compare],
            operations=[self._leased(operation) for operation in operations],
            timeout_ms=LONG_MS,
        )
        assert revision == (None if delta is None else delta.revision + self.offset)
        self.expect(delta)

    async def _refused(self, compare: list[Compare], operations: list[Operation], reason: str) -> None:
        """The store says the same, and etcd itself refuses for the same reason."""
        theirs = [self._shifted(condition) for condition in compare], [self._leased(each) for each in operations]
        about_lease = "which is over" in reason
        with pytest.raises(TransactionError, match="which is over" if about_lease else "two operations"):
            await self.store.transaction(*theirs, timeout_ms=LONG_MS)
        with pytest.raises(LeaseOverError if about_lease else EtcdRefusedError, match=r"lease not found|duplicate key"):
            await self.etcd.txn(
                [condition._replace(key=self.prefix + condition.key) for condition in theirs[0]],
                [self._whole(operation) for operation in theirs[1]],
                timeout_ms=LONG_MS,
            )

    def _shifted(self, condition: Compare) -> Compare:
        if condition.what == "version" or condition.revision == 0:
            return condition
        return condition._replace(revision=condition.revision + self.offset)

    def _leased(self, operation: Operation) -> Operation:
        if isinstance(operation, Put) and operation.lease:
            return operation._replace(lease=dict(self.leases)[operation.lease].id)
        return operation

    def _whole(self, operation: Operation) -> Operation:
        if isinstance(operation, DeletePrefix):
            return DeletePrefix(self.prefix + operation.prefix)
        if isinstance(operation, Put):
            return operation._replace(key=self.prefix + operation.key, value=b"1")
        return Delete(self.prefix + operation.key)

    async def grant(self) -> None:
        self.leases.append((self.authority.grant(60_000, 0), await self.store.grant(60_000)))

    async def revoke(self) -> None:
        """Also of one that is over."""
        if self.leases:
            mine, given = self.random.choice(self.leases)
            self.expect(self.authority.revoke(mine))
            await given.revoke()

    async def renew(self) -> None:
        """Also of one that is over."""
        if self.leases:
            mine, given = self.random.choice(self.leases)
            assert await given.renew() == self.authority.renew(mine, 0)

    async def replay(self, revision: int) -> list[Happening]:
        """What a watch from ``revision`` on tells, up to now."""
        watch = await self.etcd.watch(self.prefix, end_of_prefix(self.prefix), revision=revision, timeout_ms=LONG_MS)
        found: list[Happening] = []
        try:
            while True:
                watch.ask_progress()
                news = await watch.next()
                found += news.happenings
                if news.progress >= self.authority.revision + self.offset:
                    return found
        finally:
            await watch.close()

    def happened(self, revision: int) -> list[Happening]:
        """The same, of the authority."""
        return [
            Happening(delta.revision, self.prefix + key, after and after._replace(key=self.prefix + key))
            for delta in map(self.told, self.authority.since(revision - self.offset - 1))
            for key, _, after in delta.changes
        ]


@pytest.mark.parametrize("seed", range(4))
async def test_etcd_and_the_authority_agree(alone: Members, seed: int) -> None:
    name = new_name()
    store = await opened(alone.addresses, name)
    etcd = GrpcEtcd(alone.addresses, Access(), PATIENT)
    await store.catch_up(timeout_ms=LONG_MS)
    twins = Twins(store, etcd, f"/cohort/{name}/", seed)
    begin = store.revision
    for step in range(_STEPS):
        drawn = twins.random.random()
        if drawn < 0.85:
            await twins.transact()
        elif drawn < 0.9:
            await twins.grant()
        elif drawn < 0.95:
            await twins.revoke()
        else:
            await twins.renew()
        if step % 10 == 0:
            await twins.agree()
    await twins.agree()
    assert twins.refused
    assert len(twins.expected) > _STEPS / 4

    for revision in (begin + 1, (begin + store.revision) // 2, store.revision):
        told = [each._replace(after=None) for each in await twins.replay(revision)]
        assert sorted(told) == [each._replace(after=None) for each in twins.happened(revision)]
    await asyncio.to_thread(alone.compact)
    twins.authority.compact(twins.authority.revision)
    with pytest.raises(CompactedError):
        twins.authority.since(begin - twins.offset)
    with pytest.raises(RevisionsForgottenError):
        await twins.replay(begin + 1)
    with pytest.raises(RevisionsForgottenError):
        await etcd.range(twins.prefix, end_of_prefix(twins.prefix), limit=1, revision=begin, timeout_ms=LONG_MS)
    # Where a store begins: the newest revision, although it is compacted. Behind it no member would tell its progress.
    assert len(await twins.replay(store.revision)) <= 1 + len(twins.expected[-1].changes)
    await etcd.close()
    await store.close()


async def test_leases_that_end_by_time_take_their_keys_at_one_revision_each(alone: Members) -> None:
    name = new_name()
    store = await opened(alone.addresses, name)
    etcd = GrpcEtcd(alone.addresses, Access(), PATIENT)
    await store.catch_up(timeout_ms=LONG_MS)
    twins = Twins(store, etcd, f"/cohort/{name}/", 0)
    for ttl_ms in (0, 1, 2_000, 2_001):
        _, ttl_s = await etcd.grant(-(-ttl_ms // 1000), timeout_ms=LONG_MS)
        assert ttl_s * 1000 == max(MIN_TTL_MS, -(-ttl_ms // 1000) * 1000)
    for _ in range(2):
        mine, given = twins.authority.grant(6_000, 0), await store.grant(6_000)
        twins.leases.append((mine, given))
        keys = [f"{mine}/{place}" for place in range(3)]
        await store.transaction([], [Put(key, 1, given.id) for key in keys], timeout_ms=LONG_MS)
        twins.expect(twins.authority.transaction([], [Put(key, 1, mine) for key in keys]))
    ended = twins.authority.expire(10_000)
    async with asyncio.timeout(60):
        while store.range(""):
            await asyncio.sleep(0.05)
    # Leases that are due together end in any order.
    assert sorted([change.key for change in delta.changes] for delta in twins.heard[-2:]) == sorted(
        [change.key for change in delta.changes] for delta in ended
    )
    assert [delta.revision for delta in twins.heard] == [
        delta.revision + twins.offset for delta in twins.authority.since(1)
    ]
    for mine, given in twins.leases:
        assert not twins.authority.renew(mine, 10_000)
        assert not await given.renew()
    await etcd.close()
    await store.close()
