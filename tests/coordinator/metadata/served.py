"""A served store in a test: a store, the server before it, and a proxy before that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from coordinator.metadata.served.server import MetadataServer
from coordinator.metadata.served.store import Pace, ServedStore
from coordinator.metadata.store import MetadataStore
from tests.chaos.proxy import Proxy
from tests.coordinator.metadata.contract import Cluster
from tests.etcd.members import free_ports

PATIENT: Final = Pace(connect=10_000, silence=10_000)
"""For tests that are not about silence: a busy machine may take its time."""


def fatal(reason: str) -> None:
    """For stores that are not expected to end their node."""
    raise AssertionError(reason)


class ServedCluster(Cluster):
    """Two stores of one server, the second behind a proxy."""

    def __init__(self, store: MetadataStore, compact: Callable[[], None] = lambda: None, pace: Pace = PATIENT) -> None:
        self.server = MetadataServer(store, lambda: "id")
        self.pace = pace
        self._compact = compact

    async def open(self) -> None:
        """Serves, and opens both."""
        host, port = await self.server.start("127.0.0.1", 0)
        self.proxy = Proxy(free_ports(1)[0], port)
        await self.proxy.accept()
        self.one: ServedStore = await ServedStore.open(host, port, "", fatal, pace=self.pace)
        self.other: ServedStore = await ServedStore.open(host, self.proxy.port, "", fatal, pace=self.pace)

    async def close(self) -> None:
        """Closes all that was opened."""
        for store in (getattr(self, "one", None), getattr(self, "other", None)):
            if store is not None:
                await store.close()
        if hasattr(self, "proxy"):
            await self.proxy.close()
        await self.server.close()
        await self.server.store.close()

    async def pass_time(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def compact(self) -> None:
        self._compact()

    @asynccontextmanager
    async def other_is_behind(self) -> AsyncIterator[None]:
        await self.proxy.refuse()
        yield
        await self.proxy.accept()
