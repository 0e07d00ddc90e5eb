"""Random histories of three nodes with real logs: they are cut off, killed and started, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from coordinator.log.partition import PartitionLog
from protocol.record_batch import fingerprint, iter_batches
from tests.coordinator.log.logs import append_value, records_in
from tests.coordinator.replication.replica_nodes import ReplicaCluster, ReplicaNode

STEPS = 60
STEP_KINDS = ("append", "cut", "heal", "kill", "start", "expire", "control", "delete")


class History:
    """One history. ``acknowledged`` has the values whose producers were told that they are committed."""

    def __init__(self, cluster: ReplicaCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.acknowledged: dict[int, bytes] = {}
        self.refused = 0
        self._sent = 0
        self._writing: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        first = self.cluster.nodes[1]
        await self.cluster.until(lambda: first.replica().serves)
        await self._append(first.log())  # on a busy machine a kill may come before anything else is acknowledged
        for _ in range(STEPS):
            match self.random.choice((*STEP_KINDS, "append", "append")):
                case "append":
                    self.append()
                case "cut":
                    pair = self.random.sample(list(self.cluster.nodes), 2)
                    self.cluster.cut.add((pair[0], pair[1]))
                case "heal":
                    self.cluster.cut.clear()
                case "kill" if sum(node.up for node in self.cluster.nodes.values()) > 1:
                    node = self.random.choice([node for node in self.cluster.nodes.values() if node.up])
                    await node.kill()
                    await node.lease.revoke()
                case "start":
                    await self.start()
                case "expire":
                    await self.expire()
                case "delete":
                    await self.delete()
                case _:
                    await self.cluster.control()
            await asyncio.sleep(self.random.random() * 0.02)
            self.agree_below_the_high_watermark()
        await self.settle()

    def append(self) -> None:
        for node in self.cluster.nodes.values():
            if node.up and node.replicas.get("letters", 0) is not None and node.replica().serves:
                self._writing.append(asyncio.create_task(self._append(node.log())))

    async def _append(self, log: PartitionLog) -> None:
        future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        sent = []
        for _ in range(self.random.randint(1, 4)):
            self._sent += 1
            value = b"%d" % self._sent * self.random.randint(1, 30)
            sent.append((append_value(log, value), value))
        log.when_committed(log.end_offset, lambda error: None if future.done() else future.set_result(error))
        if await future is None:
            for offset, value in sent:
                assert self.acknowledged.setdefault(offset, value) == value, f"offset {offset} is acknowledged twice"
        else:
            self.refused += 1

    async def delete(self) -> None:
        """A leader deletes its first records, as retention does."""
        for node in self.cluster.nodes.values():
            if node.up and node.replica().serves:
                log = node.log()
                start = log.start_offset + int(self.random.random() * (log.last_stable_offset - log.start_offset))
                await log.delete_before(start)

    async def start(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.up:
                await node.start()

    async def expire(self) -> None:
        """A node loses its lease and registers anew."""
        node = self.random.choice([node for node in self.cluster.nodes.values() if node.up])
        await node.lease.revoke()
        node.replicas.lost()
        await node.register()

    def agree_below_the_high_watermark(self) -> None:
        known = [node for node in self.cluster.nodes.values() if node.up and node.replica().log is not None]
        for node in known:
            log = node.log()
            assert log.start_offset <= log.high_watermark <= log.flushed_offset <= log.written_offset <= log.end_offset
        leaders = [node.replica().leader_epoch for node in known if node.replica().serves]
        assert len(leaders) == len(set(leaders)), "two lead in one epoch"

    async def settle(self) -> None:
        self.cluster.cut.clear()
        await self.start()
        await self.cluster.control()
        nodes = list(self.cluster.nodes.values())
        await self.cluster.until(lambda: any(node.replica().serves for node in nodes), "one leads")
        await self.cluster.until(lambda: len(self.cluster.state()["isr"]) == 3, "all are in sync")
        leader = next(node for node in nodes if node.replica().serves)
        await self.cluster.until(
            lambda: all(node.log().high_watermark == leader.log().end_offset for node in nodes), "all have all"
        )
        for task in self._writing:
            await asyncio.wait_for(task, 20)
        # Followers begin where their leader does, or later: there a former leader had deleted, and nobody else yet.
        least = leader.log().start_offset
        await self.cluster.until(lambda: all(node.log().start_offset >= least for node in nodes), "all begin there")
        start = max(node.log().start_offset for node in nodes)
        first, *others = [await batches(node, start) for node in nodes]
        assert others == [first, first]
        found = {offset: value for offset, (_, value, _) in (await records_in(leader.log())).items()}
        kept = {offset: value for offset, value in self.acknowledged.items() if offset >= start}
        assert {offset: found.get(offset) for offset in kept} == kept


async def batches(node: ReplicaNode, offset: int) -> list[tuple[int, int, bytes]]:
    """Offset, epoch and what copies have in common of each batch from ``offset`` on."""
    found, log = [], node.log()
    while data := await log.read(offset, 1 << 20):
        for position, header in iter_batches(data):
            offset = header.next_offset
            batch = data[position : position + header.length]
            found.append((header.base_offset, header.leader_epoch, fingerprint(batch)))
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_acknowledged_is_lost_and_the_logs_agree(tmp_path: Path, seed: int) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        history = History(cluster, seed)
        await history.run()
        assert history.acknowledged
