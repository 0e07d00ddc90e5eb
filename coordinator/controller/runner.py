"""The controller at work: what its core decides about partitions, written by fenced transactions.

It runs on every node, and does something on the one that is elected. Only partitions are looked at that changed, or that a
node has a replica of that came, changed or went; all of them once after an election. What a transaction could not write is
decided anew from what holds then: it was refused as something moved, or its outcome is unknown, and if it lands later the
partition epochs it compares tell whether it still holds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from coordinator.controller.core import PartitionUpdate, PartitionView, decide, prefer, with_minimum
from coordinator.controller.election import ControllerElection
from coordinator.controller.quick_failover import Connect, QuickFailover
from coordinator.controller.writes import conditions, operations
from coordinator.log_output import get_logger
from coordinator.metadata.authority import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    DeletePrefix,
    Operation,
    Put,
    TransactionError,
)
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.keys import (
    CLUSTER_FORMAT,
    CREATING,
    LIVE,
    creating_key,
    encode_partition,
    live_key,
    partition_key,
    partitions_prefix,
    reassignment_key,
)
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError, Stop
from coordinator.nodes.registration import Registration
from coordinator.replication.partition import LiveNode

log = get_logger()

Partition = tuple[str, int]
"""Topic id and number."""

MAX_UNDER_WAY: Final = 4
"""Transactions at once."""
MAX_REASSIGNING: Final = 100
"""Partitions that have replicas which are being added, at once."""
_LOOKED_AT: Final = 500
"""Partitions in a turn of the loop, so that others have theirs."""
_GIVEN_BACK: Final = 10
"""So many leaderships are given back in a pass, or so large a part of all."""
_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What the controller does in its own time."""

    leader_rebalance: bool = True
    """Whether the first of its replicas leads a partition again once it may."""
    rebalance_interval_s: float = 30.0
    stable_s: float = 60.0
    """How long a node has been there before it is given leaderships back."""


DEFAULTS: Final = ControllerConfig()


@dataclass(slots=True)
class _Batch:
    """A transaction as it is put together: its conditions, without doubles, and what it writes."""

    compare: dict[Compare, None]
    operations: list[Operation] = field(default_factory=list)
    reasons: dict[Partition, str] = field(default_factory=dict)

    def take(self, update: PartitionUpdate[Any], compare: Sequence[Compare], written: Sequence[Operation]) -> bool:
        """Takes a partition too, unless the transaction became too large."""
        fresh = [condition for condition in compare if condition not in self.compare]
        if max(len(self.compare) + len(fresh), len(self.operations) + len(written)) > MAX_OPERATIONS:
            return False
        self.compare.update(dict.fromkeys(fresh))
        self.operations.extend(written)
        self.reasons[update.partition] = update.reason
        return True


class Controller:
    """See the module text. ``start`` has this node take part in the election, ``close`` ends both."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        registration: Registration,
        config: ControllerConfig = DEFAULTS,
        connect: Connect | None = None,
    ) -> None:
        """With ``connect`` nodes whose machine refuses connections are not waited for: see ``quick_failover``."""
        self._store = store
        self._catalog = catalog
        self._config = config
        self._election = ControllerElection(store, registration, self._elected)
        self._quick_failover = (
            None if connect is None else QuickFailover(store, catalog, registration, self._election, connect)
        )
        self._dirty: dict[Partition, None] = {}
        """What is to be looked at."""
        self._preferred: set[Partition] = set()
        """Whose leadership goes back to the first replica if nothing else is to be done."""
        self._adding: set[Partition] = set()
        """Of which replicas are being added, those of the controllers before too."""
        self._waiting: dict[Partition, None] = {}
        """Reassignments that begin when others are done."""
        self._under_way: set[Partition] = set()
        self._writing: set[asyncio.Task[None]] = set()
        self._limit = MAX_OPERATIONS
        self._live: dict[int, LiveNode] = {}
        self._since: dict[int, float] = {}
        """Since when each live node is as it is."""
        self._configs: dict[str, object] = {}
        """Settings of topics, by name, as they were looked at last."""
        self._defaults: dict[int, str] = {}
        """Of topics, as a hash, by node."""
        self._stops: list[Stop] = []
        self._turn: asyncio.Handle | None = None
        self._tending: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_active(self) -> bool:
        """Whether this node is the controller."""
        return self._election.fence is not None

    def start(self) -> None:
        """Takes part from now on."""
        self._note_nodes()
        self._stops = [
            self._catalog.on_nodes(self._nodes_changed),
            self._catalog.on_partitions(self._look_at),
            self._catalog.on_change(self._topics_changed),
            self._store.watch(CREATING, lambda _: self._tidy_soon()),
        ]
        self._tending = asyncio.create_task(self._tend(), name="cohort-controller")
        self._election.start()
        if self._quick_failover is not None:
            self._quick_failover.start()

    async def close(self) -> None:
        """Ends everything; what is under way may still be carried out."""
        self._closed = True
        for stop in self._stops:
            stop()
        if self._quick_failover is not None:
            await self._quick_failover.close()
        await self._election.close()
        if self._turn is not None:
            self._turn.cancel()
        tasks = [task for task in (*self._writing, self._tending, self._tidying) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What happened

    def _elected(self) -> None:
        """This node became the controller, or is it no more."""
        self._dirty.clear()
        self._waiting.clear()
        self._preferred.clear()
        self._adding.clear()
        topics = self._catalog.topics
        self._configs = {name: topic.config for name, topic in topics.items()}
        for topic in topics.values():
            self._adding.update((topic.topic_id, index) for index, state in enumerate(topic.partitions) if state.adding)
            self._look_at([(topic.topic_id, index) for index in range(len(topic.partitions))])
        self._tidy_soon()

    def _nodes_changed(self) -> None:
        changed = self._note_nodes()
        for partitions_of in (self._catalog.led_by, self._catalog.partitions_of):  # those without a leader first
            for node in changed:
                self._look_at([(topic.topic_id, index) for topic, index in partitions_of(node)])
        if self.is_active and changed:
            self._compare_defaults()

    def _compare_defaults(self) -> None:
        """Topics have what the node says that is asked: nodes that say different things are worth a line."""
        defaults = {
            node: str(known.value.get("defaults", ""))
            for node in self._live
            if (known := self._store.get(live_key(node))) is not None
        }
        if len(set(defaults.values())) > 1 and defaults != self._defaults:
            log.warning("topic_defaults_differ", nodes=defaults)
        self._defaults = defaults

    def _note_nodes(self) -> list[int]:
        """The nodes that came, changed or went since the last time."""
        before, self._live = self._live, dict(self._catalog.live)
        changed = [node for node in sorted({**before, **self._live}) if before.get(node) != self._live.get(node)]
        for node in changed:
            self._since[node] = asyncio.get_running_loop().time()
        return changed

    def _topics_changed(self, names: Sequence[str]) -> None:
        """Other settings may ask for another minimum of replicas in sync."""
        for name in names if self.is_active else ():
            topic = self._catalog.topics.get(name)
            if topic is None:
                self._configs.pop(name, None)
            elif self._configs.get(name) is not topic.config:
                self._configs[name] = topic.config
                self._look_at([(topic.topic_id, index) for index in range(len(topic.partitions))])

    def _look_at(self, partitions: Sequence[Partition]) -> None:
        if self.is_active:
            self._dirty.update(dict.fromkeys(partitions))
            self._wake()

    # Planning

    def _wake(self, delay_s: float = 0.0) -> None:
        """Plans in the next turn of the loop, or after the delay."""
        if self._turn is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._turn = loop.call_later(delay_s, self._plan) if delay_s else loop.call_soon(self._plan)

    def _plan(self) -> None:
        self._turn = None
        left = _LOOKED_AT
        while self._dirty and left > 0 and len(self._writing) < MAX_UNDER_WAY:
            fence = self._election.fence
            if fence is None:
                self._dirty.clear()
                return
            batch = _Batch({fence: None})
            left -= self._fill(batch, fence, left)
            if batch.reasons:
                self._under_way.update(batch.reasons)
                task = asyncio.create_task(self._write(batch), name="cohort-controller-write")
                self._writing.add(task)
        if self._dirty and left <= 0:
            self._wake()

    def _fill(self, batch: _Batch, fence: Compare, most: int) -> int:
        """Decides about partitions until the transaction is full; returns how many were looked at."""
        looked_at, adding = 0, len(self._adding)
        for partition in tuple(islice(self._dirty, most)):
            if len(batch.reasons) >= self._limit:
                break
            update = (
                None if partition in self._under_way else self._decide(partition)
            )  # looked at again after its write
            if update is not None and not self._take(batch, fence, update):
                break
            del self._dirty[partition]
            looked_at += 1
        if len(self._adding) < adding:  # also as a topic was deleted, of which nothing is written
            self._let_begin(MAX_REASSIGNING - len(self._adding))
        return looked_at

    def _let_begin(self, most: int) -> None:
        """Has some of the reassignments that wait looked at again."""
        released = tuple(islice(self._waiting, max(0, most)))
        for partition in released:
            del self._waiting[partition]
        self._dirty.update(dict.fromkeys(released))

    def _decide(self, partition: Partition) -> PartitionUpdate[Partition] | None:
        topic_id, index = partition
        self._adding.discard(partition)
        topic = self._catalog.with_id(topic_id)
        if topic is None or index >= len(topic.partitions):
            return None
        state, live = topic.partitions[index], self._catalog.live
        target = self._catalog.reassignment(topic_id, index)
        view = PartitionView(state.registration, state.partition_epoch, target)
        update = decide(partition, view, live)
        if update is None:
            update = with_minimum(partition, view, self._catalog.min_isr_of(topic, len(state.replicas)))
        if update is None and partition in self._preferred:
            update = prefer(partition, view, live)
        self._preferred.discard(partition)
        after = view.registration if update is None else update.registration
        if after.adding and not state.adding and len(self._adding) >= MAX_REASSIGNING:
            self._waiting[partition] = None
            return None
        if after.adding:
            self._adding.add(partition)
        return update

    def _take(self, batch: _Batch, fence: Compare, update: PartitionUpdate[Partition]) -> bool:
        key, reassigned = partition_key(*update.partition), reassignment_key(*update.partition)
        compare = conditions(update, key, live_key, fence)
        target = self._store.get(reassigned)
        if target is not None:
            compare.append(Compare(reassigned, "mod", target.mod_revision))
        return batch.take(update, compare, operations(update, key, reassigned, encode_partition))

    # Writing

    async def _write(self, batch: _Batch) -> None:
        delay_s = 0.0
        try:
            if await self._store.transaction(list(batch.compare), batch.operations) is None:
                self._limit = max(1, len(batch.reasons) // 2)  # one partition that moved has refused all the others
            else:
                self._limit = MAX_OPERATIONS
                log.info("partitions_changed", count=len(batch.reasons), reasons=dict(Counter(batch.reasons.values())))
        except (MetadataUnavailableError, TransactionError, OSError) as error:
            log.warning("partitions_not_changed", count=len(batch.reasons), error=str(error))
            delay_s = _RETRY_S
            await self._catch_up()
        finally:
            self._writing.discard(asyncio.current_task())
            self._under_way.difference_update(batch.reasons)
            self._dirty.update(dict.fromkeys(batch.reasons))  # more may follow now
            self._let_begin(MAX_REASSIGNING)
            self._wake(delay_s)

    async def _catch_up(self) -> None:
        """It may be unknown what became of a transaction; what is decided next is decided from what is there."""
        try:
            await self._store.catch_up()
        except MetadataUnavailableError as error:
            log.warning("metadata_not_caught_up", error=str(error))

    # In its own time

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(self._config.rebalance_interval_s)
            if self._config.leader_rebalance:
                self._give_back()
            self._tidy_soon()

    def _give_back(self) -> None:
        """Has the first replicas lead again where they may, some partitions at a time."""
        settled = asyncio.get_running_loop().time() - self._config.stable_s
        topics = self._catalog.topics.values()
        found = [
            (topic.topic_id, index)
            for topic in topics
            for index, state in enumerate(topic.partitions)
            if state.leader != state.replicas[0] in state.isr
            if state.replicas[0] in self._live and self._since[state.replicas[0]] <= settled
        ]
        some = found[: max(_GIVEN_BACK, sum(len(topic.partitions) for topic in topics) // _GIVEN_BACK)]
        self._preferred = set(some)
        self._look_at(some)

    def _tidy_soon(self) -> None:
        if self.is_active and not self._closed and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.create_task(self._tidy(), name="cohort-controller-tidying")

    async def _tidy(self) -> None:
        await self._raise_format()
        await self._tidy_topics()
        await self._tidy_reassignments()

    async def _raise_format(self) -> None:
        """The cluster's format becomes the highest that all nodes read which live: an older one that comes is refused."""
        fence, agreed = self._election.fence, self._store.get(CLUSTER_FORMAT)
        nodes = self._store.range(LIVE)
        if fence is None or agreed is None or not nodes:
            return
        lowest = min(int(known.value["format"]) for known in nodes)
        if lowest <= agreed.value["format"]:
            return
        compare = [fence, Compare(CLUSTER_FORMAT, "mod", agreed.mod_revision)]
        compare += [Compare(known.key, "create", known.create_revision) for known in nodes[: MAX_OPERATIONS - 2]]
        try:
            done = await self._store.transaction(compare, [Put(CLUSTER_FORMAT, {"format": lowest})])
        except (MetadataUnavailableError, OSError) as error:  # once more later
            log.warning("cluster_format_not_raised", format=lowest, error=str(error))
            return
        if done is not None:
            log.info("cluster_format_raised", format=lowest)

    async def _tidy_reassignments(self) -> None:
        """Removes reassignments of partitions that are gone: an id never comes again."""
        gone = [
            (topic_id, index)
            for topic_id, index in self._catalog.reassignments()
            if (topic := self._catalog.with_id(topic_id)) is None or index >= len(topic.partitions)
        ]
        found = [known for partition in gone if (known := self._store.get(reassignment_key(*partition))) is not None]
        for first in range(0, len(found), MAX_OPERATIONS - 1):
            some, fence = found[first : first + MAX_OPERATIONS - 1], self._election.fence
            if fence is None:
                return
            compare = [fence, *(Compare(known.key, "mod", known.mod_revision) for known in some)]
            try:
                done = await self._store.transaction(compare, [Delete(known.key) for known in some])
            except (MetadataUnavailableError, OSError) as error:  # once more later
                log.warning("reassignments_not_tidied", count=len(some), error=str(error))
                return
            if done is not None:
                log.info("reassignments_tidied", count=len(some))

    async def _tidy_topics(self) -> None:
        """Removes the partitions of topics that were never made: the node that began it is gone, and its note with it."""
        for topic_id in self._catalog.half_made():
            fence = self._election.fence
            if fence is None:
                return
            partitions = self._store.range(partitions_prefix(topic_id))
            if self._store.get(creating_key(topic_id)) is not None or not partitions:
                continue
            first = partitions[0]  # who makes the topic after all, with another note, writes it anew
            compare = [
                fence,
                Compare(creating_key(topic_id), "create", 0),
                Compare(first.key, "mod", first.mod_revision),
            ]
            try:
                done = await self._store.transaction(compare, [DeletePrefix(partitions_prefix(topic_id))])
            except (MetadataUnavailableError, OSError) as error:  # once more later
                log.warning("topic_not_tidied", topic_id=topic_id, error=str(error))
                return
            if done is not None:
                log.info("topic_tidied", topic_id=topic_id)
