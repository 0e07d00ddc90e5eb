"""Safeguards of several nodes, each with a way to switch it off; most of them are those of the ring of replicas.

Here they are missed by the whole system: real logs, sessions between nodes, an etcd, clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

import coordinator.replication.isr_changes
import coordinator.replication.proposals
from coordinator.replication.following import Following
from tests.simulation.replicas.ablations import ABLATIONS as OF_REPLICAS
from tests.simulation.rings import switched_off
from tests.simulation.safeguards import safeguard

_LOST: Final = (
    "acknowledged_records_survive",
    "followers_agree_below_the_high_watermark",
    "no_offset_is_acknowledged_twice",
    "the_high_watermark_is_bounded",
)
"""Something that was acknowledged is not what it was."""
_BY_SAFEGUARD: Final = {ablation.safeguard: ablation for ablation in OF_REPLICAS}


def _of_replicas(name: str, what: str, *invariants: str, **changes: Any) -> None:
    """Registers what the ring of replicas switches off too."""

    def off() -> Iterator[None]:
        with switched_off(_BY_SAFEGUARD[what]):
            yield

    off.__name__ = name
    safeguard(
        what, *(invariants or _LOST), **{"nodes": 3, "workloads": ("producing_in_bursts", "producing"), **changes}
    )(off)


_of_replicas(
    "comparison_of_logs", "logs are compared before an offset counts", "logs_match", *_LOST,
    workloads=("producing_for_the_leader", "producing"), faults=("node_is_killed", "node_is_cut_from_nodes"),
)  # fmt: skip
_of_replicas(
    "election_of_those_in_sync", "only in-sync replicas are elected", "the_leader_is_in_sync", *_LOST,
    faults=("node_is_cut_from_nodes", "node_is_killed", "node_is_paused"),
)  # fmt: skip
_of_replicas(
    "election_of_those_that_lost_nothing", "only clean replicas are elected", "only_clean_replicas_lead", *_LOST,
    faults=("power_takes_a_disk_with_it",), fault_pause_s=4.0,
)  # fmt: skip


@safeguard(
    "proposals say what they are compared with",
    "metadata_is_written_with_a_fence",
    nodes=3,
    workloads=("producing",),
    faults=("node_is_killed",),
)
def fence_of_isr_changes() -> Iterator[None]:
    original = coordinator.replication.proposals.conditions

    def only_lives(*args: Any) -> Any:
        return [condition for condition in original(*args) if condition.what != "mod"]

    with patch.object(coordinator.replication.isr_changes, "conditions", only_lives):
        yield


@safeguard(
    "a follower acknowledges what is on its disk",
    *_LOST,
    nodes=3,
    workloads=("producing_in_bursts", "producing"),
    faults=("replica_is_slow", "all_nodes_lose_power"),
    fault_s=15.0,
    fault_pause_s=2.0,
    records=300,
    producers=2,
)
def acknowledgement_of_followers() -> Iterator[None]:
    async def at_once(following: Following) -> None:
        """The next fetch says that it has everything."""

    with (
        switched_off(_BY_SAFEGUARD["a follower acknowledges what is on its disk"]),
        patch.object(Following, "_flushed", at_once),
    ):
        yield
