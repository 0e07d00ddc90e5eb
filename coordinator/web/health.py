"""Whether a node is ready for clients: what was on disk is loaded, the disk takes writes, the cluster knows the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.group_coordinator import GroupCoordinator
from coordinator.nodes.membership import Membership
from coordinator.runtime.shard import ShardState
from coordinator.transaction_coordinator import TransactionCoordinator

PROBE: Final = "writable"
"""The file in the data directory that is written to see whether the disk takes writes."""
_PROBE_VALID_S: Final = 5.0
_PROBE_TIMEOUT_S: Final = 5.0
_MAX_SHARDS: Final = 10
"""So many shards are named that are not ready."""


class Readiness:
    """Asks the parts of one node. ``failed`` is done with a reason when the daemon ends for an error."""

    def __init__(
        self,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        disk: Disk,
        membership: Membership,
        failed: asyncio.Future[str],
        now_s: Callable[[], float],
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._disk = disk
        self._membership = membership
        self._failed = failed
        self._now_s = now_s
        self._probe: asyncio.Task[str] | None = None
        self._probed_s = 0.0

    async def reasons(self) -> list[str]:
        """Why the node is not ready, in sentences; none when it is."""
        if self._failed.done():
            return [f"the daemon ends: {self._failed.result()}"]
        found = (
            [] if self._membership.valid() else ["the node is not registered in its cluster, or its lease is in doubt"]
        )
        found += self._shards()
        fault = await self._disk_fault()
        return [*found, fault] if fault else found

    def close(self) -> None:
        """Asks the disk no more."""
        if self._probe is not None:
            self._probe.cancel()

    def _shards(self) -> list[str]:
        runtimes = self._groups, self._transactions
        not_ready = [damage for runtime in runtimes if (damage := runtime.damage()) is not None]
        not_ready += [
            f"{shard.topic}-{shard.partition} is {shard.state.value}"
            for runtime in runtimes
            for shard in runtime.shards()
            if shard.state in (ShardState.LOADING, ShardState.FAILED)
        ]
        more = len(not_ready) - _MAX_SHARDS
        return [*not_ready[:_MAX_SHARDS], *([f"and {more} more partitions of coordinators"] if more > 0 else [])]

    async def _disk_fault(self) -> str:
        """One write at a time, and one in some seconds however often it is asked; a disk that hangs is waited for once."""
        probe = self._probe
        if probe is None or (probe.done() and self._now_s() - self._probed_s >= _PROBE_VALID_S):
            probe = self._probe = asyncio.create_task(self._write(), name="cohort-disk-probe")
            self._probed_s = self._now_s()
        await asyncio.wait((probe,), timeout=_PROBE_TIMEOUT_S)
        if not probe.done():
            return f"the disk has not taken a small file within {self._now_s() - self._probed_s:.0f} s"
        return "the daemon stops" if probe.cancelled() else probe.result()

    async def _write(self) -> str:
        try:
            await self._disk.tend(self._disk.storage.write_file, PROBE, b"")
        except OSError as error:
            return f"the disk takes no writes: {error}"
        return ""
