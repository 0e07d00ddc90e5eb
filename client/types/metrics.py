"""What clients tell of themselves in numbers: snapshots of one moment, with units in their names. Counters begin at 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.subscription import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberMetrics:
    """A member of a group, at one moment."""

    state: str
    """As ``Member.state`` and ``Consumer.state``."""
    generation: int
    """The generation it is in, -1 before the first."""
    generations_joined: int
    """How often it was given a share: the first time, and at each rebalance since."""
    shares_lost: int
    """How often it lost its share without being asked for it: its session had ended, or it polled too seldom."""


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """A consumer, at one moment."""

    member: MemberMetrics | None
    """Its membership; None for one that reads without."""
    assigned_partitions: int
    paused_partitions: int
    fetched_batches: int
    """Batches that were fetched and buffered."""
    fetched_bytes: int
    """Their bytes, as they came."""
    buffered_bytes: int
    """Bytes of batches that were fetched and not handed out in full."""
    lag_records: Mapping[TopicPartition, int]
    """How many offsets the position of each assigned partition was behind what may be read, as the last fetch of it told;
    partitions that were not fetched yet are missing. ``Consumer.lag`` asks the leaders."""


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """A producer, at one moment."""

    records_acknowledged: int
    """Records whose ``send`` has succeeded; with acks=0 those that were sent."""
    records_failed: int
    batches_acknowledged: int
    retries: int
    """How often the first batches of a partition were refused or not answered, and are sent again."""
    buffered_bytes: int
    """Bytes of records that are neither acknowledged nor failed."""
    buffer_capacity_bytes: int
    """The setting ``buffer_bytes``."""
    sends_waiting: int
    """Calls of ``send`` that wait for room in the buffer."""
