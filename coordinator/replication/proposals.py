"""How a change of in-sync replicas is written: a conditional transaction on the metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.metadata.authority import Compare, Put
from coordinator.replication.leader import Proposal


def conditions(proposal: Proposal, partition_key: str, live_key: Callable[[int], str]) -> list[Compare]:
    """What has to hold still: the partition as it was, its leader alive, those that join alive and not about to stop."""
    found = [
        Compare(partition_key, "mod", proposal.partition_epoch),
        Compare(live_key(proposal.leader.node), "create", proposal.leader.broker_epoch),
    ]
    for node, broker_epoch in proposal.joining:
        found += (Compare(live_key(node), "create", broker_epoch), Compare(live_key(node), "version", 1))
    return found


def write(proposal: Proposal, partition_key: str, encode: Callable[..., Any]) -> Put:
    """The new value of the partition's key."""
    return Put(partition_key, encode(proposal.registration))
