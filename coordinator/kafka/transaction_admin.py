"""What administrators with Kafka's clients see of transactions (KIP-664): DescribeProducers, DescribeTransactions,
ListTransactions."""

from __future__ import annotations

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.server.call import StepsLeft
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
from protocol.messages import transactions as native


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
