"""The store in memory keeps the contract."""

from __future__ import annotations

import pytest

from coordinator.metadata.authority import Authority
from coordinator.metadata.memory import MemoryStore
from tests.coordinator.metadata.contract import Cluster, SharedStoreContract


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
