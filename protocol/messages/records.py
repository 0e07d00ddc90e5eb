"""Messages that move records: Produce, Fetch, ListOffsets, DeleteRecords."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.codec import Int8, Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register
from protocol.messages.cluster import BrokerMetadata

LATEST_TIMESTAMP: Final = -1
"""ListOffsets: the offset after the last record."""
EARLIEST_TIMESTAMP: Final = -2
"""ListOffsets: the first offset still there."""
MAX_TIMESTAMP: Final = -3
"""ListOffsets: the first record with the largest time (KIP-734)."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionProduceData:
    """Record batches for one partition, as ``protocol.record_batch`` encodes them."""

    index: Int32
    records: bytes


@dataclass(frozen=True, slots=True)
class TopicProduceData:
    """Record batches for one topic. With a ``topic_id`` they are taken only while the topic of that name has it."""

    name: str
    partition_data: tuple[PartitionProduceData, ...]
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionProduceResponse:
    """Where the first record went, or why it went nowhere.

    ``batch_offsets`` has the base offset of each batch when they do not follow one another: then some of them were in the
    log already. With NOT_LEADER_OR_FOLLOWER ``current_leader_id`` and ``current_leader_epoch`` name the leader that the
    node knows (KIP-951), -1 when it knows none. ``record_errors`` are the places in
    their batch of the records for which it was refused, or of some of them, where it was single ones (KIP-467).
    """

    index: Int32
    error_code: Int16
    base_offset: Int64 = -1
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = -1
    error_message: str = ""
    batch_offsets: tuple[Int64, ...] = ()
    current_leader_id: Int32 = -1
    current_leader_epoch: Int32 = -1
    record_errors: tuple[Int32, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicProduceResponse:
    """Results for one topic."""

    name: str
    partition_responses: tuple[PartitionProduceResponse, ...]


@dataclass(frozen=True, slots=True)
class ProduceResponse(Response):
    """One entry a partition sent, in order. Never sent with acks 0.

    ``node_endpoints`` has each node once that an entry names as the leader.
    """

    responses: tuple[TopicProduceResponse, ...]
    node_endpoints: tuple[BrokerMetadata, ...] = ()


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
    """From where to read one partition; ``current_leader_epoch`` -1 when the client does not know it.

    ``last_fetched_epoch`` is the leader epoch of the record before ``fetch_offset``, as the client read or committed it: by
    it a leader tells whether that record is part of its log (KIP-320). -1 when the client does not know it.
    """

    partition: Int32
    fetch_offset: Int64
    partition_max_bytes: Int32
    current_leader_epoch: Int32 = -1
    last_fetched_epoch: Int32 = -1


@dataclass(frozen=True, slots=True)
class FetchTopic:
    """Partitions of one topic to read. With a ``topic_id`` they are read only while the topic of that name has it."""

    topic: str
    partitions: tuple[FetchPartition, ...]
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """Whole batches of one partition. The first may begin before the offset asked for: skip what is below it.

    A ``diverging_epoch`` says that the log was cut before the offset asked for: what the client read in
    ``last_fetched_epoch`` is gone from ``diverging_end`` on, where that epoch, or the largest one below it that the leader
    knows, ends. There are no records then. With NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH ``current_leader_id`` and
    ``current_leader_epoch`` name the leader that the node knows (KIP-951), -1 when it knows none.
    """

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = -1
    records: bytes = b""
    error_message: str = ""
    diverging_epoch: Int32 = -1
    diverging_end: Int64 = -1
    current_leader_id: Int32 = -1
    current_leader_epoch: Int32 = -1


@dataclass(frozen=True, slots=True)
class FetchedTopic:
    """Results for one topic."""

    topic: str
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchResponse(Response):
    """One entry a partition asked for that has news or an error; those without may be left out.

    ``node_endpoints`` has each node once that an entry names as the leader.
    """

    error_code: Int16
    responses: tuple[FetchedTopic, ...] = ()
    node_endpoints: tuple[BrokerMetadata, ...] = ()


@register
@dataclass(frozen=True, slots=True)
class FetchRequest(Request):
    """A long poll: answered once ``min_bytes`` are there, a partition has an error, or ``max_wait_ms`` are over.

    ``kafka_batches`` says that the client reads batches whose body is one of Kafka's; without it they come as columns.
    """

    api_key = ApiKey.FETCH
    response = FetchResponse

    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    topics: tuple[FetchTopic, ...]
    isolation_level: Int8 = READ_UNCOMMITTED
    kafka_batches: bool = False


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """A timestamp in ms, or ``LATEST_TIMESTAMP``, ``EARLIEST_TIMESTAMP`` or ``MAX_TIMESTAMP``."""

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
