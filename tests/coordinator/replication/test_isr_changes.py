"""Changes of in-sync replicas on their way to the store: many in one transaction, and none is lost by another's refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.metadata.authority import Compare, Operation, Put
from coordinator.metadata.keys import partition_key
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.replication.isr_changes import MAX_PARTITIONS, MAX_TRANSACTIONS
from tests.coordinator.replication.replica_nodes import ReplicaCluster, committed

PARTITIONS = 70


@pytest.mark.parametrize("trouble", ["none", "one partition changes meanwhile", "outcomes are unknown"])
async def test_a_node_that_dies_leaves_all_partitions_with_few_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        topic_id = await cluster.create(partitions=PARTITIONS)
        one, three = cluster.nodes[1], cluster.nodes[3]
        original, asked, under_way, most = one.store.transaction, list[tuple[int, bool]](), 0, 0

        async def transaction(
            compare: Sequence[Compare], operations: Sequence[Operation], **options: Any
        ) -> int | None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            if trouble == "one partition changes meanwhile" and not asked:
                key = partition_key(topic_id, 5)
                cluster.authority.transaction([], [Put(key, {**cluster.state(5), "adding": []})])
            found = await original(compare, operations, **options)
            asked.append((len(operations), found is not None))
            under_way -= 1
            if trouble == "outcomes are unknown" and len(asked) <= 2:
                raise MetadataUnavailableError("no answer", "unknown")
            return found

        monkeypatch.setattr(one.store, "transaction", transaction)
        await three.kill()
        await three.lease.revoke()
        await cluster.until(lambda: all(cluster.state(index)["isr"] == [1, 2] for index in range(PARTITIONS)))
        assert max(count for count, _ in asked) <= MAX_PARTITIONS
        assert most <= MAX_TRANSACTIONS
        refused = [count for count, taken in asked if not taken]
        if trouble == "one partition changes meanwhile":
            assert refused[0] == MAX_PARTITIONS
            assert len(asked) < 20  # halves of halves, not one by one
        else:
            assert (sorted(count for count, _ in asked[:2]), refused) == ([10, 60], [])
        assert await committed(one, b"a", index=5) is None
