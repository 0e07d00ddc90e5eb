"""Proof that this node leads: by a look at the metadata that begins after the question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from coordinator.metadata.store import MetadataUnavailableError
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.leadership_proof import LeadershipProof
from tests.coordinator.runtime.test_leadership import NoPeers
from tests.coordinator.transaction_cluster import TransactionCluster, transaction_cluster


class Store:
    """A store whose answers a test gives."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[int]] = []

    async def catch_up(self) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        return await answer


class Bench:
    """A proof of node 1, which leads partition 0 of the topic "far"."""

    def __init__(self, cluster: TransactionCluster) -> None:
        self.cluster, self.store, self.told = cluster, Store(), list[str]()
        node = cluster[1]
        self.proof = LeadershipProof(Cluster(node.member, NoPeers(), self.store.catch_up), node.catalog)

    def ask(self, partition: int = 0) -> None:
        self.proof.confirm("far", partition, self.told.append)

    async def asked(self, times: int) -> None:
        await self.cluster[1].until(lambda: len(self.store.asked) == times)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1, 0])
        made = Bench(cluster)
        yield made
        made.proof.close()


async def answered(bench: Bench, *told: str) -> None:
    await bench.cluster[1].until(lambda: len(bench.told) == len(told))
    for text, expected in zip(bench.told, told, strict=True):
        assert expected in text if expected else not text


async def test_those_that_ask_together_share_a_look_and_later_ones_wait_for_the_next(bench: Bench) -> None:
    bench.ask()
    bench.ask(1)
    await bench.asked(1)
    bench.ask()  # the look under way may have read before this was asked
    bench.store.asked[0].set_result(1)
    await answered(bench, "", "does not lead far-1 any more")
    await bench.asked(2)
    bench.store.asked[1].set_result(1)
    await answered(bench, "", "does not lead", "")


async def test_one_that_was_followed_by_another_leader_has_no_proof_even_if_it_leads_again(bench: Bench) -> None:
    bench.ask()
    await bench.asked(1)
    await bench.cluster.elect("far", 0, 0)
    await bench.cluster.elect("far", 0, 1)
    assert bench.cluster[1].catalog.topics["far"].partitions[0].leader == 1
    bench.store.asked[0].set_result(1)
    await answered(bench, "does not lead far-0 any more")


async def test_a_store_that_does_not_answer_proves_nothing(bench: Bench) -> None:
    bench.ask()
    await bench.asked(1)
    bench.store.asked[0].set_exception(MetadataUnavailableError("no quorum", "none"))
    await answered(bench, "no quorum")
    bench.ask()
    await bench.asked(2)
    with structlog.testing.capture_logs() as lines:
        bench.store.asked[1].set_exception(RuntimeError("of ours"))
        await answered(bench, "no quorum", "of ours")
    assert [line["event"] for line in lines] == ["leadership_proof_failed"]
    bench.ask()
    await bench.asked(3)
    bench.store.asked[2].set_result(1)
    await answered(bench, "no quorum", "of ours", "")


async def test_no_one_is_told_after_the_close(bench: Bench) -> None:
    bench.ask()
    await bench.asked(1)
    bench.proof.close()
    await asyncio.sleep(0)
    assert bench.told == []
