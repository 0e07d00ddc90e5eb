"""Transactions that are open in a partition though no coordinator knows of them, as when a coordinator's log is damaged.

Each transaction that is open in a partition is known to its coordinator, so there are none unless a log was lost. What is
found is looked at twice, because transactions begin and end meanwhile: a partition is asked before the coordinators and
again after them.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from client.admin.producers import describe_producers
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.types.descriptions import HangingTransaction, PartitionProducers, TransactionDescription
from protocol.subscription import TopicPartition

_MARKERS_TAKE_S: Final = 1.0
"""What was decided a moment ago has its end markers after so long, unless a partition refuses them: then it is named."""

_PARTITION: Final = re.compile(r"(?P<topic>[\w.-]+)-(?P<partition>\d+)\b")
"""How a text begins that says which partition an end marker waits for."""


async def open_in_logs(
    cluster: Cluster, partitions: Collection[TopicPartition], deadline: Deadline
) -> list[HangingTransaction]:
    """Every transaction that is open in a partition, sorted."""
    if not partitions:
        return []
    found = await describe_producers(cluster, list(partitions), deadline, transactions_only=True)
    return sorted(_open(found))


def _open(found: Mapping[TopicPartition, PartitionProducers]) -> Iterable[HangingTransaction]:
    for partition, told in found.items():
        for producer in told.producers:
            if producer.transaction_start is not None:
                yield HangingTransaction(
                    partition.topic,
                    partition.partition,
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.transaction_start,
                    producer.last_timestamp_ms,
                )


class KnownTransactions:
    """What coordinators know of transactions that are open in partitions."""

    def __init__(self, described: Iterable[TransactionDescription]) -> None:
        self._members: dict[tuple[int, int], set[TopicPartition]] = defaultdict(set)
        """Where producers write, by producer id and epoch."""
        self._waits_for: set[TopicPartition] = set()
        """Where end markers are still to be written."""
        self._waits_elsewhere = False
        """Whether they are to be written in more partitions than a coordinator names."""
        for each in described:
            for member in each.members:
                self._members[member.producer_id, each.producer_epoch].update(member.partitions)
            for text in each.waits_for:
                named = _PARTITION.match(text)
                if named is not None:
                    self._waits_for.add(TopicPartition(named["topic"], int(named["partition"])))
                else:
                    self._waits_elsewhere = True

    def __contains__(self, transaction: HangingTransaction) -> bool:
        partition = TopicPartition(transaction.topic, transaction.partition)
        name = (transaction.producer_id, transaction.producer_epoch)
        if self._waits_elsewhere:
            return True  # it may be one of those, and must not be ended by hand
        return partition in self._waits_for or partition in self._members.get(name, ())


async def still_open(
    cluster: Cluster, candidates: Collection[HangingTransaction], deadline: Deadline
) -> list[HangingTransaction]:
    """Those that are open in their partitions after a pause in which end markers that are due have been written."""
    if not candidates:
        return []
    await asyncio.sleep(min(_MARKERS_TAKE_S, deadline.remaining_s()))
    partitions = dict.fromkeys(TopicPartition(each.topic, each.partition) for each in candidates)
    names = {each[:5] for each in candidates}
    return [each for each in await open_in_logs(cluster, partitions, deadline) if each[:5] in names]
