"""The group coordinator of this node: ``GroupCore`` on the runtime, one for each partition of ``__consumer_offsets``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from coordinator.groups.config import GroupConfig, GroupStep, Topics
from coordinator.groups.core import GroupCore
from coordinator.groups.rebalance_counts import RebalanceCounts
from coordinator.groups.rebalance_history import RebalanceHistory
from coordinator.groups.refusals import error_response, group_id_fault
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.effects import Effects
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.leadership_proof import LeadershipProof
from coordinator.runtime.markers import End, MarkerReport
from coordinator.runtime.runtime import CoordinatorRuntime, Names
from coordinator.runtime.shard import CoordinatorShard, ShardState
from coordinator.runtime.timers import CoordinatorTimers
from protocol.hashing import GROUP_PARTITIONS, partition_for_group

GroupShard = CoordinatorShard[GroupCore]

_ERASING: Final = "offsets of deleted topics"
"""What the erasing of these is about (see ``Core.request_is_about``): requests about groups do not wait for it."""


class DeletedTopics:
    """Erases the committed offsets of topics that are gone, as Kafka does when a topic is deleted.

    They are erased in slices, now or when their shard has loaded them. No request waits for it: they belong to another topic
    id, and no answer shows them.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._names: defaultdict[int, dict[str, None]] = defaultdict(dict)
        """By partition: topics that were deleted since its shard began to erase offsets the last time."""
        self._erasing: dict[int, tuple[str, ...]] = {}
        """By partition: the topics of that time."""
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        """By partition: the end of the pause before a shard begins to erase offsets."""

    def erase_all(self, shard: GroupShard) -> None:
        """A shard serves: topics may have been deleted while its log was not loaded.

        One that could not write a moment ago serves without erasing anything, and tries again later.
        """
        pause = self._pauses.pop(shard.partition, None)
        if pause is not None:
            pause.cancel()  # of an earlier load
        if shard.retry_pause_s:
            loop = asyncio.get_running_loop()
            self._pauses[shard.partition] = loop.call_later(shard.retry_pause_s, self._end_pause, shard)
        else:
            shard.decide(_ERASING, partial(self._erase, shard, everything=True))

    def erase(self, shard: GroupShard, topic: str) -> None:
        """A topic was deleted."""
        names = self._names[shard.partition]
        waits = bool(names) or shard.partition in self._pauses
        names[topic] = None
        if not waits:
            shard.decide(_ERASING, partial(self._erase, shard))

    def resigned(self, partition: int) -> None:
        """A shard has lost its partition: the next one begins with ``erase_all``."""
        pause = self._pauses.pop(partition, None)
        if pause is not None:
            pause.cancel()
        self._names.pop(partition, None)
        self._erasing.pop(partition, None)

    def _end_pause(self, shard: GroupShard) -> None:
        del self._pauses[shard.partition]
        shard.decide(_ERASING, partial(self._erase, shard, everything=True))

    def _erase(self, shard: GroupShard, core: GroupCore, step: GroupStep, everything: bool = False) -> Effects:
        deleted = self._names[shard.partition]
        if everything:
            deleted.update(dict.fromkeys(self._erasing.get(shard.partition, ())))
        names = self._erasing[shard.partition] = tuple(deleted)
        deleted.clear()
        slices = core.forget_topics(partial(self._was_deleted, names), None if everything else names)
        step.effects.rest = _ERASING, slices
        return step.effects

    def _was_deleted(self, names: Collection[str], topic: str, topic_id: str) -> bool:
        # Offsets that version 0.1 wrote have no topic id. Their topic is gone if its name was free at some time since.
        return self._topics.is_gone(topic, topic_id) or (not topic_id and topic in names)


class _Ending:
    """Ends of transactions in one shard, and who is told when they are on disk: the order that the shard carries out."""

    __slots__ = ("changes", "ends", "report")

    def __init__(self, ends: Sequence[End], report: MarkerReport) -> None:
        self.ends = ends
        self.report = report
        self.changes = True
        """Whether one of them was open: else nothing is written."""


class GroupCoordinator(CoordinatorRuntime[GroupCore]):
    """Finds the shard of a group, and tells all shards what happened to topics and connections."""

    def __init__(
        self,
        catalog: Catalog,
        logs: LogManager,
        config: GroupConfig,
        timers: CoordinatorTimers,
        fair_queue: FairQueue,
        *,
        new_member_id: Callable[[str], str],
        wall_ms: Callable[[], int],
        cluster: Cluster | None = None,
        history: RebalanceHistory | None = None,
    ) -> None:
        """``history`` is where rebalances are noted, None when nothing asks for it."""
        self.proof = None if cluster is None else LeadershipProof(cluster, catalog)
        """In a cluster: that this node leads a partition, where nothing is written that would show it."""
        self._config = config
        self.rebalance_counts = counts = RebalanceCounts(history)
        """Rebalances that this node has coordinated since it started."""
        self._deleted = DeletedTopics(catalog)
        self._topic_ids = {name: topic.topic_id for name, topic in catalog.topics.items()}
        self._stop_watching = catalog.on_change(self._changed)
        self._ending: dict[int, dict[_Ending, None]] = {}
        """By partition: the ends of transactions that are not on disk yet."""
        super().__init__(
            OFFSETS_TOPIC,
            GroupCore,
            Names(
                "group",
                partition_for_group,
                config.max_group_id_bytes,
                lambda group_id: group_id_fault(group_id, config),
                error_response,
            ),
            lambda partition: GroupCore(config, new_member_id, catalog, counts),
            catalog,
            logs,
            timers,
            fair_queue,
            wall_ms=wall_ms,
            on_active=self._began,
            on_resigned=self._resigned,
            carry_out=self._ended,
            cluster=cluster,
        )

    async def close(self) -> None:
        """Answers all pending requests and brings every shard to rest."""
        self._stop_watching()
        if self.proof is not None:
            self.proof.close()
        await super().close()

    def close_connection(self, number: int) -> None:
        """A client's connection closed; its requests have been abandoned."""
        for shard in self.shards():
            if shard.state is ShardState.ACTIVE and shard.core.gave_ids_over(number):
                shard.decide("", lambda core, step: core.close_connection(number, step))

    def _changed(self, names: Sequence[str]) -> None:
        """Topics changed: the committed offsets of those that were deleted go. They count no more from now on."""
        for name in names:
            before, topic = self._topic_ids.pop(name, None), self._catalog.topics.get(name)
            if topic is not None:
                self._topic_ids[name] = topic.topic_id
            if before is not None and (topic is None or topic.topic_id != before):
                for shard in self.shards():
                    self._deleted.erase(shard, name)

    def end_transactions(self, partition: int, ends: Sequence[End], report: MarkerReport) -> None:
        """Ends transactions in the shard of a partition, see ``GroupParticipants``.

        Refused while the shard does not serve; one that could not be opened is, when a client asks for a group of it.
        """
        shard = self.opened.get(partition)
        if shard is not None and shard.state is ShardState.ACTIVE:
            ending = _Ending(ends, report)
            self._ending.setdefault(partition, {})[ending] = None
            self._end(shard, ending, "")
        elif shard is not None:
            report.refused(f"the coordinator of {OFFSETS_TOPIC}-{partition} is {shard.state.value}")
        elif self._cluster is not None:
            report.refused(self.why_not_here(partition))
        elif self.is_created(partition):
            report.refused(f"{OFFSETS_TOPIC}-{partition} could not be opened; the daemon's log has the reason")
        else:
            report.written()  # no group of it has ever had an offset

    def has_open(self, partition: int, producer_id: int, producer_epoch: int) -> bool | None:
        """Whether a transaction is open in the shard of a partition; None while that cannot be said."""
        shard = self.opened.get(partition)
        if shard is None:
            return None if self._cluster is not None or self.is_created(partition) else False
        if shard.state is not ShardState.ACTIVE or shard.has_unfinished:
            return None  # what it has admitted may not be decided yet
        return shard.core.open_epoch(producer_id) == producer_epoch

    def _end(self, shard: GroupShard, ending: _Ending, about: str) -> None:
        """Decides the ends when no decision about a group that has such a transaction open is carried out in slices."""

        def decide(core: GroupCore, step: GroupStep) -> Effects:
            for producer_id, _, _ in ending.ends:
                for group_id in core.groups.open_transactions.get(producer_id, ()):
                    if shard.is_unfinished(group_id):
                        self._end(shard, ending, group_id)
                        return step.effects
            ending.changes = any(core.open_epoch(producer_id) == epoch for producer_id, epoch, _ in ending.ends)
            effects = core.end_transactions(ending.ends, step)
            effects.order(ending)
            ending.report.taken()
            return effects

        shard.decide(about, decide)

    def _ended(self, shard: GroupShard, ending: _Ending) -> None:
        """Ends of transactions are on disk and applied."""
        if self.proof is None or ending.changes:
            self._reported(shard.partition, ending, "")
        else:
            self.proof.confirm(OFFSETS_TOPIC, shard.partition, partial(self._reported, shard.partition, ending))

    def _reported(self, partition: int, ending: _Ending, doubt: str) -> None:
        waiting = self._ending.get(partition, {})
        if ending not in waiting:
            return  # refused meanwhile
        del waiting[ending]
        if doubt:
            ending.report.refused(doubt)
        else:
            ending.report.written()

    def _began(self, shard: GroupShard) -> None:
        for ending in self._ending.pop(shard.partition, ()):  # of the time before: void
            ending.report.refused("the coordinator has read its log again")
        delay_ms = self._first_expiry_ms(shard.partition)
        shard.decide("", lambda core, step: core.start_expiry(step, delay_ms))
        self._deleted.erase_all(shard)

    def _resigned(self, shard: GroupShard) -> None:
        for ending in self._ending.pop(shard.partition, ()):
            ending.report.refused(f"{OFFSETS_TOPIC}-{shard.partition} is not led here any more")
        self._deleted.resigned(shard.partition)

    def _first_expiry_ms(self, partition: int) -> int:
        """Time until the first look for expired offsets: members have an interval to come back, and the shards that a daemon
        loads at its start do not all look at once."""
        interval_ms = self._config.offsets_retention_check_interval_ms
        return interval_ms + interval_ms * partition // GROUP_PARTITIONS
