"""Stores on real members, each test in a cluster of its own name, with proxies in between where a store is to be cut off."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from coordinator.metadata.etcd.calls import GrpcEtcd
from coordinator.metadata.etcd.rpc import Access, Pace
from coordinator.metadata.etcd.store import EtcdStore
from tests.chaos.proxy import Proxy
from tests.coordinator.metadata.contract import Cluster
from tests.etcd.members import Members, free_ports

PATIENT: Final = Pace(call=10_000, silence=10_000, progress=200)
"""For tests that are not about members that do not answer: a busy machine may take its time."""
LONG_MS: Final = 60_000

_names = itertools.count(1)


def new_name() -> str:
    """A cluster that no test had."""
    return f"c{next(_names)}"


def fatal(reason: str) -> None:
    """For stores that are not expected to end their node."""
    raise AssertionError(reason)


async def opened(
    addresses: Sequence[tuple[str, int]], name: str, pace: Pace = PATIENT, access: Access | None = None
) -> EtcdStore:
    """A store on these members."""
    etcd = GrpcEtcd(addresses, access or Access(), pace)
    try:
        return await EtcdStore.open(etcd, name, lambda: f"id-{name}", fatal, timeout_ms=LONG_MS)
    except BaseException:
        await etcd.close()
        raise


class EtcdCluster(Cluster):
    """Two stores on one etcd, the second behind proxies."""

    ttl_ms = 5_000
    """Quarters of it are waited for: seconds to spare for a busy machine."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self.proxies = [Proxy(free_ports(1)[0], port) for _, port in members.addresses]
        self.name = new_name()

    async def open(self) -> None:
        """Opens both."""
        for proxy in self.proxies:
            await proxy.accept()
        self.one = await opened(self._members.addresses, self.name)
        self.other = await opened([("127.0.0.1", proxy.port) for proxy in self.proxies], self.name)

    async def close(self) -> None:
        """Closes both."""
        for store in (getattr(self, "one", None), getattr(self, "other", None)):
            if store is not None:
                await store.close()
        for proxy in self.proxies:
            await proxy.close()

    async def pass_time(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def compact(self) -> None:
        await asyncio.to_thread(self._members.compact)

    @asynccontextmanager
    async def other_is_behind(self) -> AsyncIterator[None]:
        for proxy in self.proxies:
            await proxy.refuse()
        yield
        for proxy in self.proxies:
            await proxy.accept()
