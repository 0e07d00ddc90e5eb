"""The store in memory keeps the contract."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.metadata.authority import Authority, Delta, Put
from coordinator.metadata.memory import MemoryStore, SharedMemory
from coordinator.metadata.store import MetadataUnavailableError
from tests.coordinator.metadata.contract import Cluster, SharedStoreContract, seen


class _InMemory(Cluster):
    def __init__(self) -> None:
        self._authority = Authority()
        self._now_ms = 0
        self.one, self.other = (MemoryStore(self._authority, "c", lambda: self._now_ms / 1000) for _ in range(2))

    async def pass_time(self, ms: int) -> None:
        self._now_ms += ms

    async def compact(self) -> None:
        self._authority.compact(self._authority.revision)


@pytest.fixture
def cluster() -> Cluster:
    return _InMemory()


class TestMemoryStore(SharedStoreContract):
    """All of it."""


async def test_nodes_on_one_loop_are_told_at_once_and_leases_end_by_its_time() -> None:
    async with SharedMemory("c") as shared:
        one, other = shared.open(), shared.open()
        deltas: list[Delta] = []
        other.watch("", deltas.append)
        lease = await one.grant(2_000)
        revision = await one.transaction([], [Put("live/1", 1, lease.id)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen(deltas) == [(revision, [("live/1", 1)])]
        await asyncio.sleep(2.3)
        assert seen(deltas)[1:] == [(other.revision, [("live/1", None)])]
        assert not await lease.renew()


async def test_a_node_that_is_cut_off_hears_nothing_and_changes_nothing() -> None:
    async with SharedMemory("c") as shared:
        one, other = shared.open(), shared.open()
        lease = await one.grant(2_000)
        one.cut_off()
        await other.transaction([], [Put("a", 1)])
        await asyncio.sleep(0.01)
        assert one.get("a") is None
        for call in (
            one.transaction([], [Put("b", 1)]),
            one.catch_up(),
            one.grant(2_000),
            lease.renew(),
            lease.revoke(),
        ):
            with pytest.raises(MetadataUnavailableError, match="cut off") as caught:
                await call
            assert caught.value.outcome == "none"
        assert [known.key for known in other.range("")] == ["a"]
