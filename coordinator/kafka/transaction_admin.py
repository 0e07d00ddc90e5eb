"""What administrators with Kafka's clients see of transactions and do about those that hang (KIP-664): DescribeProducers,
DescribeTransactions, ListTransactions, WriteTxnMarkers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.metadata.catalog import TopicError
from coordinator.server.call import Steps, StepsLeft
from coordinator.server.dispatch import STEP
from coordinator.server.handlers.led_partitions import LedPartitions
from protocol.errors import ErrorCode
from protocol.kafka.messages.describe_producers_request import DescribeProducersRequest
from protocol.kafka.messages.describe_producers_response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from protocol.kafka.messages.describe_transactions_request import DescribeTransactionsRequest
from protocol.kafka.messages.describe_transactions_response import (
    DescribeTransactionsResponse,
    TopicData,
)
from protocol.kafka.messages.describe_transactions_response import TransactionState as DescribedState
from protocol.kafka.messages.list_transactions_request import ListTransactionsRequest
from protocol.kafka.messages.list_transactions_response import ListTransactionsResponse, TransactionState
from protocol.kafka.messages.write_txn_markers_request import WritableTxnMarker, WriteTxnMarkersRequest
from protocol.kafka.messages.write_txn_markers_response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from protocol.messages import transactions as native

_EPOCH_FOLLOWS: Final = 2
"""The transaction version whose markers have the epoch that follows the one of what they end (KIP-1228)."""


def describe_producers(node: KafkaNode) -> Translator:
    """The producers that partitions remember."""
    handler = node.handlers[native.DescribeProducersRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: DescribeProducersRequest = call.message
        asked = native.DescribeProducersRequest(
            tuple(native.DescribeProducersTopic(topic.name, tuple(topic.partition_indexes)) for topic in request.topics)
        )
        return call.ask(handler, asked, lambda response: call.reply(_described_producers(response)))

    def refusal(
        request: DescribeProducersRequest, version: int, code: ErrorCode, text: str
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(topic.name, [PartitionResponse(index, code, text) for index in topic.partition_indexes])
                for topic in request.topics
            ]
        )

    return Translator(DescribeProducersRequest, handle, refusal)


def _described_producers(response: native.DescribeProducersResponse) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                topic.name,
                [
                    PartitionResponse(
                        each.partition_index,
                        each.error_code,
                        (each.error_message or None) if each.error_code else None,
                        [
                            ProducerState(
                                one.producer_id,
                                one.producer_epoch,
                                one.last_sequence,
                                one.last_timestamp_ms,
                                one.coordinator_epoch,
                                one.current_txn_start_offset,
                            )
                            for one in each.active_producers
                        ],
                    )
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


def describe_transactions(node: KafkaNode) -> Translator:
    """Everything about some transactional ids."""
    handler = node.handlers[native.DescribeTransactionsRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: DescribeTransactionsRequest = call.message
        asked = native.DescribeTransactionsRequest(tuple(request.transactional_ids))
        return call.ask(handler, asked, lambda response: call.reply(_described(response)))

    def refusal(
        request: DescribeTransactionsRequest, version: int, code: ErrorCode, text: str
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[DescribedState(code, name) for name in request.transactional_ids]
        )

    return Translator(DescribeTransactionsRequest, handle, refusal)


def _described(response: native.DescribeTransactionsResponse) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribedState(
                state.error_code,
                state.transactional_id,
                state.state,
                state.transaction_timeout_ms,
                state.transaction_start_ms,
                state.producer_id,
                state.producer_epoch,
                _topics(state),
            )
            for state in response.transaction_states
        ]
    )


def _topics(state: native.DescribedTransaction) -> list[TopicData]:
    """Where any of the members writes."""
    partitions: dict[str, set[int]] = {}
    for member in state.members:
        for topic in member.topics:
            partitions.setdefault(topic.name, set()).update(topic.partitions)
    return [TopicData(name, sorted(indexes)) for name, indexes in sorted(partitions.items())]


def list_transactions(node: KafkaNode) -> Translator:
    """The transactional ids of this node. Version 2 is not served: the time that its pattern takes has no bound."""
    handler = node.handlers[native.ListTransactionsRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: ListTransactionsRequest = call.message
        asked = native.ListTransactionsRequest(
            tuple(request.state_filters), tuple(request.producer_id_filters), request.duration_filter
        )
        return call.ask(handler, asked, lambda response: call.reply(_listed(response)))

    def refusal(request: ListTransactionsRequest, version: int, code: ErrorCode, text: str) -> ListTransactionsResponse:
        return ListTransactionsResponse(error_code=code)

    return Translator(ListTransactionsRequest, handle, refusal)


def _listed(response: native.ListTransactionsResponse) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        0,
        response.error_code,
        list(response.unknown_state_filters),
        [
            TransactionState(state.transactional_id, state.producer_id, state.transaction_state)
            for state in response.transaction_states
        ],
    )


class _Markers:
    """WriteTxnMarkers.

    Markers are those of an administrator, which no coordinator fences. As in Kafka one ends what its producer has open in a
    partition, if it has that epoch or an earlier one, and is refused where the producer is known with a later one. Cohort's
    own markers name the epoch that they end, so each partition has its own here.
    """

    def __init__(self, node: KafkaNode) -> None:
        inner = node.node
        self._catalog = inner.catalog
        self._led = LedPartitions(inner.catalog, inner.logs, inner.membership)
        self._handler = node.handlers[native.WriteTxnMarkersRequest]

    def handle(self, call: KafkaCall) -> Steps:
        """Answers when every marker is on disk, or it is known why not."""
        request: WriteTxnMarkersRequest = call.message
        written, refused, done = list[native.TransactionMarker](), dict[int, int](), 0
        for marker in request.markers:
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    try:
                        written.append(self._of_partition(marker, topic.name, index))
                    except TopicError as error:
                        refused[done] = error.code
                    done += 1
                    if done % STEP == 0:
                        yield None

        def told(response: native.WriteTxnMarkersResponse) -> None:
            codes = (each.topics[0].partitions[0].error_code for each in response.markers)
            call.reply(_marked(request, (refused[at] if at in refused else next(codes) for at in range(done))))

        yield from call.ask(self._handler, native.WriteTxnMarkersRequest(tuple(written)), told) or ()

    def _of_partition(self, marker: WritableTxnMarker, name: str, index: int) -> native.TransactionMarker:
        """The marker for one partition. Raises ``TopicError``."""
        topic, epoch = self._catalog.topic(name), marker.producer_epoch
        if not topic.internal:  # groups know epochs of transactions, and not of producers
            opened, _ = self._led.find(name, index, -1)
            known = opened.producers.get(marker.producer_id)
            if known is not None:
                if epoch < known.epoch + (marker.transaction_version >= _EPOCH_FOLLOWS):
                    text = f"producer {marker.producer_id} is known in {name}-{index} with epoch {known.epoch}"
                    raise TopicError(ErrorCode.INVALID_PRODUCER_EPOCH, text)
                epoch = known.epoch
        return native.TransactionMarker(
            marker.producer_id,
            epoch,
            marker.transaction_result,
            marker.coordinator_epoch,
            (native.MarkerTopic(topic.topic_id, (index,)),),
        )


def _marked(request: WriteTxnMarkersRequest, codes: Iterator[int]) -> WriteTxnMarkersResponse:
    """The answer with these codes, one for each partition in the order of the request."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                marker.producer_id,
                [
                    WritableTxnMarkerTopicResult(
                        topic.name,
                        [WritableTxnMarkerPartitionResult(index, next(codes)) for index in topic.partition_indexes],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def write_txn_markers(node: KafkaNode) -> Translator:
    """See ``_Markers``."""

    def refusal(request: WriteTxnMarkersRequest, version: int, code: ErrorCode, text: str) -> WriteTxnMarkersResponse:
        return _marked(request, repeat(code))

    return Translator(WriteTxnMarkersRequest, _Markers(node).handle, refusal)
