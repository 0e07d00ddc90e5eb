"""The lag of each group in the last quarter of an hour, sampled: a page that is opened has a past to show."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from time import thread_time
from typing import Final, NamedTuple

from coordinator.group_coordinator import GroupCoordinator
from coordinator.groups.group import Group
from coordinator.logs.log_manager import LogManager
from coordinator.runtime.shard import ShardState

SAMPLE_S: Final = 10.0
"""Pause between two samples, at least."""
SAMPLES: Final = 90
"""Samples that are kept of a group."""
MAX_GROUPS: Final = 10_000
"""Groups that are sampled: those that were there first."""
_REST: Final = 500
"""A sample that takes long is followed by so many times its time: all samples take 0.2 % of a core at most."""
_SLICE: Final = 400


class Lag(NamedTuple):
    """The lag of a group: records, in so many partitions; ``elsewhere`` are those of which this node has no replica."""

    records: int
    partitions: int
    elsewhere: int


def lag_of(logs: LogManager, group: Group) -> Lag:
    """From the committed offsets to the high watermarks; partitions without a committed offset do not count.

    A follower's high watermark is what its leader told last: at most a fetch behind, while the two are connected.
    """
    records = partitions = elsewhere = 0
    here = logs.logs
    for topic, offsets in group.offsets.items():
        for partition, committed in offsets.items():
            partitions += 1
            log = here.get((topic, partition))
            if log is None:
                elsewhere += 1
            else:
                records += max(0, log.high_watermark - committed[0])
    return Lag(records, partitions, elsewhere)


class LagHistory:
    """Samples from its start until it is stopped."""

    def __init__(self, groups: GroupCoordinator, logs: LogManager) -> None:
        self.samples = 0
        """How many there have been: a reader knows by it whether there is a new one."""
        self.every_s = SAMPLE_S
        """The pause after the last one."""
        self._groups = groups
        self._logs = logs
        self._lags: dict[str, array[int]] = {}
        self._sampling = asyncio.create_task(self._run(), name="cohort-lag-history")

    async def close(self) -> None:
        """Samples no more."""
        self._sampling.cancel()
        await asyncio.gather(self._sampling, return_exceptions=True)

    def of(self, group_id: str) -> Sequence[int]:
        """The lags of a group, the oldest first; none before its first sample."""
        return self._lags.get(group_id, ())

    def last(self, group_id: str) -> int:
        """The lag at the last sample, -1 before the first."""
        lags = self._lags.get(group_id)
        return lags[-1] if lags else -1

    async def _run(self) -> None:
        while True:
            busy_s = 0.0
            seen, work, began_s = set[str](), 0, thread_time()
            for group in self._all():
                if len(seen) >= MAX_GROUPS:
                    break
                seen.add(group.group_id)
                work += 1 + self._sample(group)
                if work >= _SLICE:
                    busy_s += thread_time() - began_s
                    await asyncio.sleep(0)
                    work, began_s = 0, thread_time()
            for group_id in self._lags.keys() - seen:
                del self._lags[group_id]
            self.samples += 1
            busy_s += thread_time() - began_s
            self.every_s = max(SAMPLE_S, _REST * busy_s)
            await asyncio.sleep(self.every_s)

    def _all(self) -> Sequence[Group]:
        shards = [shard for shard in self._groups.shards() if shard.state is ShardState.ACTIVE]
        return [group for shard in shards for group in shard.core.groups.values()]

    def _sample(self, group: Group) -> int:
        """Adds the lag of a group; returns how many partitions were looked at."""
        lag = lag_of(self._logs, group)
        if lag.partitions:
            lags = self._lags.setdefault(group.group_id, array("q"))
            if len(lags) == SAMPLES:
                lags.pop(0)
            lags.append(min(lag.records, 2**63 - 1))
        return lag.partitions
