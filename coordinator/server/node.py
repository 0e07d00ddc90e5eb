"""What the handlers of requests have of their node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.config import Settings
from coordinator.controller.administration import Administration
from coordinator.controller.topics import ClusterTopics
from coordinator.group_coordinator import GroupCoordinator
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.producer_ids import ProducerIds
from coordinator.metadata.store import MetadataStore
from coordinator.nodes.membership import Membership
from coordinator.server.dispatch import Tasks
from coordinator.transaction_coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a daemon that requests are about."""

    settings: Settings
    metadata: MetadataStore
    catalog: Catalog
    logs: LogManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    producer_ids: ProducerIds
    tasks: Tasks
    wall_ms: Callable[[], int]
    membership: Membership
    administration: Administration
    cluster_topics: ClusterTopics | None = None
    """What changes topics in a cluster; None on a single node."""
