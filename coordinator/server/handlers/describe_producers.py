"""DescribeProducers (61): the producers that partitions remember, and what of their transactions is open there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, cast

from coordinator.log.partition import PartitionLog
from coordinator.log.producers import ProducerState
from coordinator.metadata.catalog import OFFSETS_TOPIC, Topic, TopicError
from coordinator.runtime.shard import ShardState
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import STEP, ErrorTexts
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    ActiveProducer,
    DescribedProducersPartition,
    DescribedProducersTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
)

MAX_PRODUCERS: Final = 10_000
"""Producers in one answer, those with an open transaction first; a partition remembers ten times as many."""


def handler(node: Node) -> Handler:
    """Describes what is open in logs; of ``__consumer_offsets``, the transactions with pending offsets."""

    def handle(call: Call) -> Iterator[None]:
        return _describe(node, call)

    return handle


def _describe(node: Node, call: Call) -> Iterator[None]:
    request = cast("DescribeProducersRequest", call.request)
    results, texts, done, left = list[DescribedProducersTopic](), ErrorTexts(), 0, MAX_PRODUCERS
    for asked in request.topics:
        partitions = list[DescribedProducersPartition]()
        for index in dict.fromkeys(asked.partition_indexes):
            try:
                topic = node.catalog.topic(asked.name)
                described = _described(node, topic, index, request.transactions_only, left)
            except TopicError as error:
                described = DescribedProducersPartition(index, error.code, error_message=texts(str(error)))
            partitions.append(described)
            left -= len(described.active_producers)
            done += 1 + len(described.active_producers)
            if done >= STEP:
                done = 0
                yield
        results.append(DescribedProducersTopic(asked.name, tuple(partitions)))
    call.answer(DescribeProducersResponse(tuple(results)))


def _described(node: Node, topic: Topic, index: int, transactions_only: bool, left: int) -> DescribedProducersPartition:
    if topic.internal and 0 <= index < len(topic.partitions) and not node.logs.is_created(topic.name, index):
        return DescribedProducersPartition(index, ErrorCode.NONE, (), "", 0, 0)
    opened = node.logs.find(topic, index)
    if topic.name == OFFSETS_TOPIC:
        producers, count = _with_pending_offsets(node, index, left)
    else:
        producers, count = _producers(opened, transactions_only, left)
    more = count - len(producers)
    return DescribedProducersPartition(
        index,
        ErrorCode.NONE,
        producers,
        f"{more} further producers are left out" if more else "",
        opened.last_stable_offset,
        opened.high_watermark,
    )


def _producers(opened: PartitionLog, transactions_only: bool, left: int) -> tuple[tuple[ActiveProducer, ...], int]:
    """The first of the producers that a log remembers, and how many there are."""
    open_first = iter(opened.producers)
    count = len(opened.producers) - (opened.producers.forgettable if transactions_only else 0)
    return tuple(_active(*found) for found in islice(open_first, min(count, left))), count


def _with_pending_offsets(node: Node, index: int, left: int) -> tuple[tuple[ActiveProducer, ...], int]:
    """The same of a shard of groups, whose transactions have no offset of their own: they begin at 0."""
    shard = next((shard for shard in node.groups.shards() if shard.partition == index), None)
    if shard is None or shard.state is not ShardState.ACTIVE:
        raise TopicError(ErrorCode.LEADER_NOT_AVAILABLE, f"the groups of {OFFSETS_TOPIC}-{index} are not served now")
    groups = shard.core.groups
    producers = []
    for producer_id, epochs in islice(groups.open_transactions.items(), left):
        since_ms = min(groups[group_id].pending_offsets[producer_id].since_wall_ms for group_id in epochs)
        epoch = next(iter(epochs.values()))
        producers.append(ActiveProducer(producer_id, epoch, -1, since_ms, current_txn_start_offset=0))
    return tuple(producers), len(groups.open_transactions)


def _active(producer_id: int, state: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        producer_id,
        state.epoch,
        state.batches[-1].last_sequence if state.batches else -1,
        state.last_heard_ms,
        current_txn_start_offset=-1 if state.transaction is None else state.transaction.first_offset,
    )
