"""Messages that move records: Produce, Fetch, ListOffsets, DeleteRecords."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.codec import Int8, Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register

LATEST_TIMESTAMP: Final = -1
"""ListOffsets: the offset after the last record."""
EARLIEST_TIMESTAMP: Final = -2
"""ListOffsets: the first offset still there."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionProduceData:
    """Record batches for one partition, as ``protocol.record_batch`` encodes them."""

    index: Int32
    records: bytes


@dataclass(frozen=True, slots=True)
class TopicProduceData:
    """Record batches for one topic."""

    name: str
    partition_data: tuple[PartitionProduceData, ...]


@dataclass(frozen=True, slots=True)
class PartitionProduceResponse:
    """Where the first record went, or why it went nowhere.

    ``batch_offsets`` has the base offset of each batch when they do not follow one another: then some of them were in the
    log already.
    """

    index: Int32
    error_code: Int16
    base_offset: Int64 = -1
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = -1
    error_message: str = ""
    batch_offsets: tuple[Int64, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicProduceResponse:
    """Results for one topic."""

    name: str
    partition_responses: tuple[PartitionProduceResponse, ...]


@dataclass(frozen=True, slots=True)
class ProduceResponse(Response):
    """One entry a partition sent, in order. Never sent with acks 0."""

    responses: tuple[TopicProduceResponse, ...]


@register
@dataclass(frozen=True, slots=True)
class ProduceRequest(Request):
    """Appends batches. ``acks`` is 0 (no answer), 1 (on the leader's disk) or -1 (on every in-sync replica's disk)."""

    api_key = ApiKey.PRODUCE
    response = ProduceResponse

    transactional_id: str | None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[TopicProduceData, ...]


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """From where to read one partition; ``current_leader_epoch`` -1 when the client does not know it."""

    partition: Int32
    fetch_offset: Int64
    partition_max_bytes: Int32
    current_leader_epoch: Int32 = -1


@dataclass(frozen=True, slots=True)
class FetchTopic:
    """Partitions of one topic to read."""

    topic: str
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """Whole batches of one partition. The first may begin before the offset asked for: skip what is below it."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = -1
    records: bytes = b""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class FetchedTopic:
    """Results for one topic."""

    topic: str
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchResponse(Response):
    """One entry a partition asked for that has news or an error; those without may be left out."""

    error_code: Int16
    responses: tuple[FetchedTopic, ...] = ()


@register
@dataclass(frozen=True, slots=True)
class FetchRequest(Request):
    """A long poll: answered once ``min_bytes`` are there, a partition has an error, or ``max_wait_ms`` are over."""

    api_key = ApiKey.FETCH
    response = FetchResponse

    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    topics: tuple[FetchTopic, ...]
    isolation_level: Int8 = READ_UNCOMMITTED


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """A timestamp in ms, or ``LATEST_TIMESTAMP`` or ``EARLIEST_TIMESTAMP``."""

    partition_index: Int32
    timestamp: Int64
    current_leader_epoch: Int32 = -1


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The first offset whose timestamp is not below the one asked for; offset -1 when there is none."""

    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = -1
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """Results for one topic."""

    name: str
    partitions: tuple[ListedOffset, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse(Response):
    """One entry a partition asked for, in order."""

    topics: tuple[ListedTopic, ...]


@register
@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Request):
    """Finds offsets by time."""

    api_key = ApiKey.LIST_OFFSETS
    response = ListOffsetsResponse

    topics: tuple[ListOffsetsTopic, ...]
    isolation_level: Int8 = READ_UNCOMMITTED


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """Delete what lies below ``offset``, up to the last stable offset; -1 for everything up to there."""

    partition_index: Int32
    offset: Int64


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """Where the partition begins now."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeletedRecordsTopic:
    """Results for one topic."""

    name: str
    partitions: tuple[DeletedRecords, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse(Response):
    """One entry a partition asked for, in order."""

    topics: tuple[DeletedRecordsTopic, ...]


@register
@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest(Request):
    """Deletes the oldest records of partitions (KIP-107). Offsets of the others stay what they are."""

    api_key = ApiKey.DELETE_RECORDS
    response = DeleteRecordsResponse

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32 = 30_000
