"""Nodes with a controller each, on a simulated etcd in virtual time; every write of a partition's key is judged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from coordinator.config import Settings
from coordinator.controller.runner import Controller, ControllerConfig
from coordinator.metadata.authority import Authority, Compare, Delta, Operation, Put
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.keys import (
    CONTROLLER,
    encode_partition,
    live_key,
    partition_key,
    registration_of,
    topic_key,
)
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.replication.partition import Incarnation, PartitionRegistration
from tests.coordinator.nodes.members import Etcd, Member

PREFIX: Final = "/cohort/sim/"


class Broken(AssertionError):
    """An invariant does not hold."""


class Line:
    """A connection between two nodes."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] | None = None
        self.closed = False

    def lose(self) -> None:
        """It breaks off."""
        self.closed = True
        if self.on_lost is not None:
            self.on_lost()


class Node(Member):
    """A member that has a catalog and a controller, and leads without having logs: it changes who is in sync."""

    config = ControllerConfig(rebalance_interval_s=5, stable_s=5)
    peers: Mapping[int, Node] | None = None
    """The nodes that it connects to, if it does; their machines are there when their processes are not."""
    silent = False
    """Whether its machine does not answer."""

    def __init__(self, etcd: Etcd, number: int) -> None:
        super().__init__(etcd, number)
        self.lines: list[Line] = []

    async def connect(self, number: int) -> Line:
        """A connection to another node."""
        assert self.peers is not None
        await asyncio.sleep(0.001)
        peer = self.peers[number]
        if peer.silent or peer.process.held is not None:
            await asyncio.sleep(2)
            raise TimeoutError
        if peer.process.dead:
            raise ValueError("it cannot be reached") from ConnectionRefusedError(111, "refused")
        peer.lines.append(Line())
        return peer.lines[-1]

    def kill(self) -> None:
        """SIGKILL."""
        super().kill()
        if not self.silent:
            self.drop_lines()

    def drop_lines(self) -> None:
        """Its connections break off."""
        lines, self.lines = self.lines, []
        for line in lines:
            line.lose()

    async def _prepare(self, serve_without_quorum: bool) -> None:
        await super()._prepare(serve_without_quorum)
        settings = Settings()
        self.catalog = Catalog(
            self.store,
            self.number,
            self._etcd.new_id,
            max_partitions=100_000,
            max_partitions_per_topic=100_000,
            config_defaults=settings.topic_defaults,
            cluster=True,
        )
        self.controller = Controller(
            self.store, self.catalog, self.registration, self.config, self.connect if self.peers else None
        )
        self.controller.start()

    async def stop(self) -> None:
        """A stop that gives the lease back."""
        await self.controller.close()
        await super().stop()

    def led(self) -> list[tuple[str, int, PartitionRegistration, int]]:
        """What it leads, as far as it knows: topic id, number, registration, partition epoch."""
        me = self.registration.me
        return [
            (topic.topic_id, index, state.registration, state.partition_epoch)
            for topic, index in self.catalog.led_by(self.number)
            if (state := topic.partitions[index]).leader_broker_epoch == me.broker_epoch
        ]

    async def change_in_sync(self, random: Random, *, joins: bool = True) -> None:
        """As the leader of partitions: has replicas join those in sync, or leave them."""
        for topic_id, index, known, epoch in self.led():
            live = self.catalog.live
            isr, compare = dict(known.isr), list[Compare]()
            for node in (*known.replicas, *known.adding):
                alive = live.get(node)
                if alive is None or not alive.accepting:
                    continue
                if joins and isr.get(node) != alive.broker_epoch:
                    isr[node] = alive.broker_epoch
                    compare.append(Compare(live_key(node), "create", alive.broker_epoch))
                    compare.append(Compare(live_key(node), "version", 1))
                elif not joins and node != self.number and random.random() < 0.3 and len(isr) > known.min_isr:
                    isr.pop(node, None)
            if isr == known.isr:
                continue
            changed = PartitionRegistration(
                known.replicas, known.leader, known.leader_epoch, isr, known.min_isr, known.adding
            )
            key, me = partition_key(topic_id, index), self.registration.me
            compare += [Compare(key, "mod", epoch), Compare(live_key(me.node), "create", me.broker_epoch)]
            try:
                await self.store.transaction(compare, [Put(key, encode_partition(changed))])
            except MetadataUnavailableError:
                continue

    async def make_topic(
        self, name: str, replicas: Sequence[tuple[int, ...]], min_isr: int = 1, config: Mapping[str, Any] | None = None
    ) -> str:
        """A topic of which each partition has these replicas, the first leads, all are in sync. Returns its id."""
        topic_id, nodes = f"id of {name}", self.catalog.nodes
        puts: list[Operation] = []
        for index, those in enumerate(replicas):
            isr = {node: nodes[node].broker_epoch for node in those}
            leader = Incarnation(those[0], isr[those[0]])
            known = PartitionRegistration(those, leader, 0, isr, min_isr)
            puts.append(Put(partition_key(topic_id, index), encode_partition(known)))
        for start in range(0, len(puts), 100):
            assert await self.store.transaction([], puts[start : start + 100]) is not None
        assert await self.store.transaction([], [Put(topic_key(name), {"id": topic_id, "config": config or {}})])
        return topic_id

    def partition(self, topic_id: str, index: int) -> PartitionRegistration:
        """A partition, as this node knows it."""
        topic = self.catalog.with_id(topic_id)
        assert topic is not None
        return topic.partitions[index].registration


class Judge:
    """Looks at every transaction: who leads which epoch, who may be elected, what each write compares."""

    def __init__(self, authority: Authority) -> None:
        self.elections = 0
        self.broken: list[str] = []
        self._authority = authority
        self._leaders: dict[tuple[str, int], Incarnation | None] = {}
        self._transaction = authority.transaction
        authority.transaction = self.transaction  # type: ignore[method-assign]

    def check(self) -> None:
        """Raises ``Broken`` when something was wrong."""
        if self.broken:
            raise Broken(self.broken[0])

    def transaction(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> Delta | None:
        """See ``Authority.transaction``."""
        live = {
            int(known.key.removeprefix(f"{PREFIX}live/")): (known.create_revision, json.loads(known.value))
            for known in self._authority.range(f"{PREFIX}live/")
        }
        delta = self._transaction(compare, operations)
        for change in () if delta is None else delta.changes:
            key = change.key.removeprefix(PREFIX)
            if key.startswith("partitions/") and change.after is not None:
                before = None if change.before is None else registration_of(json.loads(change.before.value))
                after = registration_of(json.loads(change.after.value))
                if before is not None:
                    self._fenced(key, compare, before, after)
                    self._elected(key, live, before, after)
                self._judge(key, after)
        return delta

    def _fenced(
        self, key: str, compare: Sequence[Compare], before: PartitionRegistration, after: PartitionRegistration
    ) -> None:
        compared = {(condition.key.removeprefix(PREFIX), condition.what) for condition in compare}
        if (key, "mod") not in compared:
            self.broken.append(f"metadata_is_written_with_a_fence: {key}")
        if after.leader_epoch != before.leader_epoch and (CONTROLLER, "create") not in compared:
            self.broken.append(f"metadata_is_written_with_a_fence: {key} was elected by another than the controller")

    def _elected(
        self,
        key: str,
        live: Mapping[int, tuple[int, Mapping[str, Any]]],
        before: PartitionRegistration,
        after: PartitionRegistration,
    ) -> None:
        if after.leader_epoch < before.leader_epoch:
            self.broken.append(f"one_leader_per_epoch: {key} goes back to {after.leader_epoch}")
        if after.leader_epoch == before.leader_epoch or after.leader is None:
            return
        self.elections += 1
        node, broker_epoch = after.leader
        if node not in live or live[node][0] != broker_epoch:
            self.broken.append(f"the_leader_lives: {key} {after.leader}")
            return
        clean_since = live[node][1]["clean_since"] or broker_epoch
        if len(before.replicas) > 1 and (node not in before.isr or before.isr[node] < clean_since):
            self.broken.append(
                f"the_leader_is_in_sync: {key} elects {after.leader} of {before}, clean since {clean_since}"
            )

    def _judge(self, key: str, after: PartitionRegistration) -> None:
        known = self._leaders.setdefault((key, after.leader_epoch), after.leader)
        if known is None:
            self._leaders[key, after.leader_epoch] = after.leader
        elif after.leader not in (None, known):
            self.broken.append(f"one_leader_per_epoch: {key} {after.leader_epoch} had {known}, has {after.leader}")
        if after.leader is not None and after.leader.node not in after.isr:
            self.broken.append(f"the_leader_is_in_sync: {key} {after}")
        if len(after.isr) < min(after.min_isr, len(after.replicas)):
            self.broken.append(f"the_leader_is_in_sync: {key} {after} has too few in sync")


async def started(etcd: Etcd, count: int, *, connected: bool = False) -> list[Node]:
    """Nodes 1 to ``count``, one after the other; ``connected`` ones notice when a machine refuses connections."""
    nodes = [Node(etcd, number + 1) for number in range(count)]
    for node in nodes:
        if connected:
            node.peers = {other.number: other for other in nodes}
        await node.start()
    return nodes


def controller_of(nodes: Sequence[Node]) -> Node:
    """The one that is the controller."""
    found = [node for node in nodes if not node.process.dead and node.controller.is_active]
    assert len(found) == 1
    return found[0]


async def soon(condition: Any, within_s: float) -> float:
    """Waits until it holds; returns how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < within_s, "not within its time"
        await asyncio.sleep(0.01)
    return loop.time() - began
