"""Which transactions hold back readers with ``read_committed``, for ``cohort topics describe``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from client.admin import Admin
from client.cli.output import counted
from client.errors import CohortError
from client.types.descriptions import PartitionProducers
from client.types.records import TopicPartition

_NAMED: Final = 100
"""Transactions whose transactional ids are looked up: those that hold back most."""


async def held_back(admin: Admin, partitions: Collection[TopicPartition]) -> dict[TopicPartition, dict[str, Any]]:
    """For each partition its last stable offset, and the transactions that are open in it, the oldest first."""
    if not partitions:
        return {}
    told = await admin.describe_producers(*partitions, transactions_only=True)
    names = await _names(admin, told)
    return {
        partition: {
            "last_stable_offset": producers.last_stable_offset,
            "transactions": [
                {
                    "transactional_id": names.get(start[1]),
                    "producer_id": start[1],
                    "producer_epoch": start[2],
                    "start_offset": start[0],
                }
                for start in _starts(producers)
            ],
        }
        for partition, producers in told.items()
    }


def held_back_text(transactions: Sequence[Mapping[str, Any]]) -> str:
    """The oldest of at least one open transaction for people, and how many there are beside it."""
    oldest = transactions[0]
    producer = f"producer id {oldest['producer_id']}, epoch {oldest['producer_epoch']}"
    name = oldest["transactional_id"]
    who = f"transactional id {name} ({producer})" if name is not None else producer
    beside = f"; open are {counted(len(transactions), 'transaction')}" if len(transactions) > 1 else ""
    return f"read_committed waits at offset {oldest['start_offset']} for the transaction of {who}{beside}"


async def _names(admin: Admin, told: Mapping[TopicPartition, PartitionProducers]) -> dict[int, str]:
    """Transactional ids by producer id, as far as coordinators say them."""
    by_age = sorted((place, start) for producers in told.values() for place, start in enumerate(_starts(producers)))
    producer_ids = list(dict.fromkeys(producer_id for _, (_, producer_id, _) in by_age))[:_NAMED]
    if not producer_ids:
        return {}
    try:
        listed = await admin.list_transactions(producer_ids=producer_ids)
        if len(producer_ids) == len(listed) == 1:
            return {producer_ids[0]: listed[0].transactional_id}
        described = await admin.describe_transactions(*(each.transactional_id for each in listed))
    except CohortError:
        return {}  # the topic is shown all the same, without the names
    names = {each.producer_id: each.transactional_id for each in listed}
    for transactional_id, transaction in described.items():
        names.update((member.producer_id, transactional_id) for member in transaction.members)
    return names


def _starts(producers: PartitionProducers) -> list[tuple[int, int, int]]:
    """First offset, producer id and epoch of each open transaction, in order."""
    return sorted(
        (each.transaction_start, each.producer_id, each.producer_epoch)
        for each in producers.producers
        if each.transaction_start is not None
    )
