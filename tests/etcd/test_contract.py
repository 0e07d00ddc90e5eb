"""The store on etcd keeps the contract, with one member and with three."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("grpc", reason="the extra etcd is not installed")

from tests.coordinator.metadata.contract import SharedStoreContract
from tests.etcd.members import Members
from tests.etcd.stores import EtcdCluster


async def running(members: Members) -> AsyncIterator[EtcdCluster]:
    """Opens and closes the stores."""
    cluster = EtcdCluster(members)
    try:
        await cluster.open()
        yield cluster
    finally:
        await cluster.close()


class TestOneMember(SharedStoreContract):
    """All of it."""

    @pytest.fixture
    async def cluster(self, one_member: Members) -> AsyncIterator[EtcdCluster]:
        async for cluster in running(one_member):
            yield cluster


class TestThreeMembers(SharedStoreContract):
    """All of it."""

    @pytest.fixture
    async def cluster(self, three_members: Members) -> AsyncIterator[EtcdCluster]:
        async for cluster in running(three_members):
            yield cluster
