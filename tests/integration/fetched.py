"""Reads what a partition holds through plain Fetch requests, so that producers are judged by the log alone."""

from __future__ import annotations

from typing import NamedTuple

from client.transport.cluster import Cluster
from protocol.columns import Headers
from protocol.errors import ErrorCode
from protocol.messages.records import READ_UNCOMMITTED, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.record_batch import Attributes, decode_columns, iter_batches
from protocol.subscription import TopicPartition


class Stored(NamedTuple):
    """One record in the log."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


async def stored(address: str, topic: str, isolation_level: int = READ_UNCOMMITTED) -> dict[int, list[Stored]]:
    """Everything in a topic, by partition; with ``READ_COMMITTED`` what is committed up to the last stable offset."""
    cluster = Cluster(address, client_id="reader")
    await cluster.start()
    try:
        partitions = await cluster.topic_partitions(topic)
        return {
            index: await _partition(cluster, TopicPartition(topic, index), isolation_level)
            for index in range(partitions)
        }
    finally:
        await cluster.close()


async def values(address: str, topic: str, isolation_level: int = READ_UNCOMMITTED) -> dict[int, list[bytes | None]]:
    """The values in a topic, by partition; see ``stored``."""
    found = await stored(address, topic, isolation_level)
    return {index: [record.value for record in records] for index, records in found.items()}


async def _partition(cluster: Cluster, partition: TopicPartition, isolation_level: int) -> list[Stored]:
    """Whatever its transactions have come to; markers are no records."""
    records: list[Stored] = []
    offset = 0
    while True:
        wanted = FetchPartition(partition.partition, offset, 8 * 1024 * 1024)
        topics = (FetchTopic(partition.topic, (wanted,)),)
        request = FetchRequest(0, 0, 16 * 1024 * 1024, topics, isolation_level)
        connection = await cluster.connection_to_leader(partition)
        response = await connection.request(request, FetchResponse, timeout_s=10)
        answers = [answer for topic in response.responses for answer in topic.partitions]
        assert all(answer.error_code == ErrorCode.NONE for answer in answers), answers
        data = b"".join(answer.records for answer in answers)
        start = offset
        for position, header in iter_batches(data):
            offset = header.next_offset
            if header.attributes & Attributes.CONTROL:
                continue
            columns = decode_columns(data, position, header)
            offsets = [header.base_offset + delta for delta in columns.offset_deltas()]
            rows = zip(
                offsets, columns.timestamps_ms(), columns.keys(), columns.values(), columns.headers(), strict=True
            )
            records += [Stored(*row) for row in rows if row[0] >= start]
        if offset == start:
            return records
