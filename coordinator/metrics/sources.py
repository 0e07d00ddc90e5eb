"""What metrics are collected from: the parts of a running daemon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import SyncTimes
from coordinator.group_coordinator import GroupCoordinator
from coordinator.logs.log_manager import LogManager
from coordinator.logs.maintenance import MaintenanceCounts
from coordinator.metadata.catalog import Catalog
from coordinator.metrics.loop_lag import LoopLag
from coordinator.server.listener import Listener
from coordinator.server.request_meter import RequestMeter
from coordinator.transaction_coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of one node."""

    version: str
    node_id: int
    max_series: int
    catalog: Catalog
    logs: LogManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    listener: Listener
    meters: Sequence[RequestMeter]
    disk: Disk
    syncs: SyncTimes | None
    """None for a disk that does not measure them, such as a simulated one."""
    maintenance: MaintenanceCounts
    loop_lag: LoopLag
    is_clustered: bool
