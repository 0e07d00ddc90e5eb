"""What leaders know of the producers of their partitions, and of the transactions that are open there (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from client.admin.failures import raise_failures
from client.admin.leaders import by_leader
from client.errors import error_for
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.request_limits import pieces_of
from client.transport.retry import retrying
from client.types.descriptions import HangingTransaction, PartitionProducers, ProducerDescription
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    DescribedProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    MarkerTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.subscription import TopicPartition

_BY_AN_ADMINISTRATOR: Final = -1
"""The coordinator's epoch in a marker that no coordinator has ordered."""


async def describe_producers(
    cluster: Cluster, partitions: Sequence[TopicPartition], deadline: Deadline, *, transactions_only: bool = False
) -> dict[TopicPartition, PartitionProducers]:
    """The producers of partitions, from the leader of each. Raises one error for all partitions that failed."""

    async def once() -> dict[TopicPartition, PartitionProducers]:
        leaders = await by_leader(cluster, partitions, deadline)
        asked = (_ask(cluster, some, transactions_only, deadline) for some in leaders.values())
        found = {partition: told for answer in await asyncio.gather(*asked) for partition, told in answer.items()}
        raise_failures(
            {
                partition: error_for(told.error_code, told.error_message or f"{partition.topic}-{partition.partition}")
                for partition, told in found.items()
                if told.error_code != ErrorCode.NONE
            }
        )
        return {partition: _described(found[partition]) for partition in partitions}

    return await retrying(once, deadline=deadline, backoff=cluster.backoff, what="DescribeProducersRequest")


async def abort_in_partition(cluster: Cluster, transaction: HangingTransaction, deadline: Deadline) -> None:
    """Has the leader write an end marker into one partition, whatever a coordinator knows of the transaction."""
    partition = TopicPartition(transaction.topic, transaction.partition)
    what = f"aborting a transaction in {transaction.topic}-{transaction.partition}"

    async def once() -> None:
        await by_leader(cluster, [partition], deadline)
        topic = MarkerTopic(cluster.topology.topics[partition.topic].topic_id, (partition.partition,))
        name = (transaction.producer_id, transaction.producer_epoch)
        request = WriteTxnMarkersRequest((TransactionMarker(*name, False, _BY_AN_ADMINISTRATOR, (topic,)),))
        connection = await cluster.connection_to_leader(partition)
        response = await connection.request(
            request, WriteTxnMarkersResponse, timeout_s=max(0.001, deadline.remaining_s())
        )
        for written in (each for marker in response.markers for found in marker.topics for each in found.partitions):
            if written.error_code != ErrorCode.NONE:
                raise error_for(written.error_code, f"{what}: {written.error_message}")

    await retrying(once, deadline=deadline, backoff=cluster.backoff, what=what)


async def _ask(
    cluster: Cluster, partitions: Sequence[TopicPartition], transactions_only: bool, deadline: Deadline
) -> dict[TopicPartition, DescribedProducersPartition]:
    """Asks the one node that leads all these partitions."""
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    topics = tuple(DescribeProducersTopic(topic, tuple(indexes)) for topic, indexes in by_topic.items())
    connection = await cluster.connection_to_leader(partitions[0])
    answers = [
        await connection.request(piece, DescribeProducersResponse, timeout_s=max(0.001, deadline.remaining_s()))
        for piece in pieces_of(DescribeProducersRequest(topics, transactions_only))
    ]
    return {
        TopicPartition(topic.name, told.partition_index): told
        for response in answers
        for topic in response.topics
        for told in topic.partitions
    }


def _described(told: DescribedProducersPartition) -> PartitionProducers:
    producers = tuple(
        ProducerDescription(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp_ms,
            producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else None,
        )
        for producer in told.active_producers
    )
    return PartitionProducers(producers, told.last_stable_offset, told.high_watermark)
