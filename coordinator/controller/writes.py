"""How a decision of the controller is written: a transaction that holds only while it is the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.controller.core import PartitionUpdate
from coordinator.metadata.authority import Compare, Delete, Operation, Put


def conditions(
    update: PartitionUpdate[Any], partition_key: str, live_key: Callable[[int], str], controller: Compare
) -> list[Compare]:
    """What has to hold still: who the controller is, the partition as it was, and that its new leader is alive."""
    found = [controller, Compare(partition_key, "mod", update.partition_epoch)]
    if update.elected is not None:
        found.append(Compare(live_key(update.elected.node), "create", update.elected.broker_epoch))
    return found


def operations(
    update: PartitionUpdate[Any], partition_key: str, reassignment_key: str, encode: Callable[..., Any]
) -> list[Operation]:
    """The new value of the partition's key; a reassignment that is done goes with it."""
    written: list[Operation] = [Put(partition_key, encode(update.registration))]
    if update.ends_reassignment:
        written.append(Delete(reassignment_key))
    return written
