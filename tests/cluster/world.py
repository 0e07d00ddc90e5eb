"""The chaos runs' world on a cluster: nodes in place of the daemon, and at the end a reading of every replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from client import Admin, CohortError
from tests.chaos.exactly_once.run import Transformers
from tests.chaos.kafka.world import KafkaWorld
from tests.chaos.ledger import now
from tests.chaos.world import LOOKING_FOR_EXPIRED_OFFSETS, TOPICS, World
from tests.cluster.processes import Node, Nodes
from tests.cluster.replicas import INTERNAL, ReplicaLog, disagreements, read_node

IN_SYNC_S: Final = 45.0
"""So long after everything has been healed each partition has a leader, and all of its replicas are in sync."""


class OnCluster(World):
    """What serves is three nodes. Mix it in before the world that it is to change."""

    kafka: ClassVar[bool] = False
    """Whether nodes have a port for Kafka's clients."""
    nodes: Nodes

    def prepare_daemon(self) -> None:
        """Nodes and metadata, not started yet."""
        self.nodes = Nodes(
            self.directory,
            *("--segment-bytes", "65536", "--offsets-segment-bytes", "65536", "--compaction-interval-ms", "4000"),
            *LOOKING_FOR_EXPIRED_OFFSETS,
            kafka=self.kafka,
        )

    @property
    def address(self) -> str:
        """Where clients connect: all nodes' proxies."""
        return self.nodes.address

    async def serve(self) -> None:
        """Starts all, and waits until internal topics are there, which takes all nodes."""
        await self.nodes.start()
        async with asyncio.timeout(IN_SYNC_S), Admin(self.address) as admin:
            while True:
                try:
                    await admin.list_offsets("a group that is not there")
                    return
                except CohortError:
                    await asyncio.sleep(0.2)

    async def heal_network(self) -> None:
        """Takes back every cut; every node runs."""
        await self.nodes.heal()
        for node in self.nodes.nodes:
            async with node.turn:
                self.nodes.resume(node)
                if not node.running:
                    await self.nodes.start_node(node)

    async def watch_daemon(self) -> None:
        """Notes when a node ends unasked, and starts it again."""
        while True:
            await asyncio.sleep(0.5)
            for node in self.nodes.nodes:
                async with node.turn:
                    if node.running and not await asyncio.to_thread(_runs, node):
                        text = "ended unasked: " + "".join(node.output[-15:])
                        self.ledger.write("crash", name=f"node {node.number}", text=text)
                        await self.nodes.kill(node)
                        await self.nodes.start_node(node)

    async def stop_serving(self) -> None:
        """Ends everything, and writes down what was wrong with it, and in what replicas differ."""
        try:
            text = await self._not_in_sync()
        except CohortError as error:
            text = repr(error)
        if text:
            self.ledger.write("crash", name="the cluster", text=f"{IN_SYNC_S:.0f} s after it was healed: {text}")
        for wrong in await self.nodes.stop():
            self.ledger.write("crash", name="the cluster", text=wrong)
        for node in self.nodes.nodes:
            (self.directory / f"node-{node.number}.stderr").write_text("".join(node.output))
        for text in compared(self.nodes):
            self.ledger.write("crash", name="replicas", text=text)

    async def _not_in_sync(self) -> str:
        """Why not every partition has all of its replicas in sync within the stated time; empty when it has."""
        limit = now() + IN_SYNC_S
        why = "no node answers"
        async with Admin(self.address) as admin:
            names = [name for name in await admin.list_topics() if name not in INTERNAL]
            while now() < limit:
                with contextlib.suppress(CohortError):
                    described = await admin.describe_topics(*names, timeout_ms=5_000)
                    why = "; ".join(
                        f"{name}-{each.partition} is led by {each.leader}, in sync are {each.in_sync_replicas} of "
                        f"{each.replicas}"
                        for name, topic in described.items()
                        for each in topic.partitions
                        if each.leader < 0 or sorted(each.in_sync_replicas) != sorted(each.replicas)
                    )
                    if not why:
                        return ""
                await asyncio.sleep(0.3)
        return why


class ClusterWorld(OnCluster):
    """Producers and groups of every kind."""


class ClusterKafka(OnCluster, KafkaWorld):
    """Producers and members of Kafka's clients, in groups that they share with Cohort's."""

    kafka = True

    @property
    def kafka_address(self) -> str:
        """Where Kafka's clients connect: the proxies of all nodes for them."""
        return self.nodes.kafka_address


class ClusterTransformers(OnCluster, Transformers):
    """Groups that answer in transactions."""

    def __init__(self, directory: Path, random: Random) -> None:
        Transformers.__init__(self, directory, random)


def compared(nodes: Nodes) -> list[str]:
    """What replicas differ in, of nodes that were stopped."""
    logs: dict[str, list[ReplicaLog]] = defaultdict(list)
    for node in nodes.nodes:
        for name, log in read_node(node.data_dir, node.number, with_records=True).items():
            logs[name].append(log)
    found = []
    for name, copies in sorted(logs.items()):
        # Coordinators write to internal topics while nodes stop one after the other.
        to_the_end = not name.startswith(INTERNAL)
        found += [f"{name}: {text}" for text in disagreements(copies, to_the_end=to_the_end)]
    if not any(name.rpartition("-")[0] in TOPICS and len(copies) > 1 for name, copies in logs.items()):
        found.append(f"no partition has two replicas: {sorted(logs)}")
    return found


def _runs(node: Node) -> bool:
    try:
        with open(f"/proc/{node.pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
