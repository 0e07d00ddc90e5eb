"""What programs pass to ``Consumer``, checked before anything happens: each error names what to pass instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from operator import index
from typing import SupportsIndex

from client.types.records import ConsumerRecord, OffsetAndMetadata
from protocol.subscription import TopicPartition

Commitable = Mapping[TopicPartition, int | OffsetAndMetadata] | ConsumerRecord | None


def check_offset(what: str, offset: int) -> int:
    """``offset``, or a time, as an ``int``: one of another kind of number, as columns have them, is taken too.

    Raises ``ValueError`` unless it fits a log, 64 bits with a sign and not below 0, and ``TypeError`` when it is no whole
    number.
    """
    if isinstance(offset, bool) or not isinstance(offset, SupportsIndex):
        raise TypeError(f"{what} is {offset!r}; it must be a whole number")
    number = index(offset)
    if not 0 <= number < 2**63:
        raise ValueError(
            f"{what} is {number}; it must be at least 0 and below 2**63. seek_to_beginning, seek_to_end, beginning_offsets "
            "and end_offsets find the ends"
        )
    return number


def offsets_to_commit(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The next offset to read of each partition, as it is committed. Raises as ``check_offset`` and ``partition_of``."""
    checked = {}
    for given, value in offsets.items():
        tp = partition_of(given)
        committed = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        offset = check_offset(f"the offset to commit of {tp.topic}-{tp.partition}", committed.offset)
        checked[tp] = committed._replace(offset=offset)
    return checked


def partition_of(tp: TopicPartition) -> TopicPartition:
    """``tp``, which may be a plain pair. Raises ``TypeError`` when it is no topic's name and a number."""
    if isinstance(tp, tuple) and len(tp) == 2:
        topic, partition = tp
        if isinstance(topic, str) and isinstance(partition, SupportsIndex) and not isinstance(partition, bool):
            return TopicPartition(topic, index(partition))
    raise TypeError(f"{tp!r} is no partition; pass a TopicPartition(topic, partition)")


def partitions_of(tps: Iterable[TopicPartition]) -> list[TopicPartition]:
    """All of ``tps``; see ``partition_of``."""
    return [partition_of(tp) for tp in tps]


def check_poll_timeout(timeout_ms: float) -> None:
    """Raises ``TypeError`` or ``ValueError`` for a time that ``getmany`` cannot wait for."""
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise TypeError(
            f"timeout_ms is {timeout_ms!r}; it must be a number of milliseconds, 0 not to wait. getone() and 'async for' "
            "wait for as long as it takes"
        )
    if not 0 <= timeout_ms < inf:
        raise ValueError(f"timeout_ms is {timeout_ms}; it must be a number of milliseconds from 0 on, and finite")


def check_max_records(max_records: int | None) -> None:
    """Raises ``TypeError`` or ``ValueError`` for what bounds no poll."""
    if max_records is not None and (isinstance(max_records, bool) or not isinstance(max_records, int)):
        raise TypeError(f"max_records is {max_records!r}; it must be a whole number, or None for max_poll_records")
    if max_records is not None and max_records <= 0:
        raise ValueError(f"max_records is {max_records}; it must be above 0")
