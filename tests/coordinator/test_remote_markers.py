"""What goes to leaders on other nodes about transactions is no more than a request may hold, however much it is together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.open_lookup import OpenLookup
from coordinator.remote_markers import RemoteMarkers
from coordinator.runtime.cluster import Cluster
from coordinator.transactions.carrying import MAX_CARRIED
from coordinator.transactions.orders import FindOpen, MarkerPartition
from protocol.limits import max_request_elements
from protocol.messages import ApiKey
from tests.coordinator.transaction_cluster import ClusterNode, transaction_cluster


class Report:
    """What became of the ends in one partition."""

    def __init__(self) -> None:
        self.told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def taken(self) -> None:
        raise AssertionError("the disk of this node takes it not")

    def gone(self) -> None:
        raise AssertionError("it is there")

    def written(self) -> None:
        self.told.set_result("")

    def refused(self, reason: str) -> None:
        self.told.set_result(reason)


def cluster_of(node: ClusterNode) -> Cluster:
    return Cluster(node.member, node.peers, node.store.catch_up)


@pytest.mark.parametrize(("partitions", "members"), [(100, 20), (2, 2_000)], ids=["of many", "of one"])
async def test_many_ends_take_requests_that_are_taken(tmp_path: Path, partitions: int, members: int) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1] * partitions)
        markers = RemoteMarkers(cluster_of(cluster[0]), cluster[0].catalog)
        reports = [Report() for _ in range(partitions)]
        for index, report in enumerate(reports):
            ends = [(100_000 * index + number, 0, True) for number in range(members)]
            markers.write(MarkerPartition("far", "id-far", index), ends, (0, 0), report)
        async with asyncio.timeout(60):
            assert set(await asyncio.gather(*(report.told for report in reports))) == {""}
        markers.close()


async def test_many_transactions_that_may_be_open_in_many_partitions_are_looked_for(tmp_path: Path) -> None:
    partitions = MAX_CARRIED - 28  # as one transaction of the metadata makes
    count = 2 * max_request_elements(ApiKey.OPEN_TRANSACTIONS) // partitions
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1] * partitions)
        identity = await cluster[0].init()
        await cluster[1].wrote(identity, "far", 5)
        places = tuple(MarkerPartition("far", "id-far", index) for index in range(partitions))
        orders = [FindOpen(f"t{number}", 100_000 + number, 0, places) for number in range(count)]
        orders[count - 2] = FindOpen("t", *identity, places)
        there = cluster_of(cluster[0])
        lookup = OpenLookup(cluster[0].transactions.open_here, cluster[0].catalog, there)
        found = await lookup._found(there, orders)
        assert found == [number == count - 2 for number in range(count)]
        lookup.close()
