"""What Kafka's producers ask of partitions: Produce, InitProducerId.

Batches are checked as Kafka checks them (``coordinator.kafka.batches``) and then appended as any others, by a handler of the
same class as that of Cohort's own producers.
"""

from __future__ import annotations

from typing import Final

from coordinator.kafka.batches import BatchAdmission
from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.kafka.transactions import told_code
from coordinator.server.call import StepsLeft
from coordinator.server.handlers.led_partitions import LedPartitions
from coordinator.server.handlers.produce import ProduceHandler
from protocol.errors import ErrorCode
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.init_producer_id_response import InitProducerIdResponse
from protocol.kafka.messages.produce_request import ProduceRequest
from protocol.kafka.messages.produce_response import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.messages import producers as native
from protocol.messages import records as native_records

_LEADERS_SINCE: Final = 10
"""The version of Produce whose answer names leaders (KIP-951)."""


class _Produce:
    """Batches are appended."""

    def __init__(self, node: KafkaNode) -> None:
        inner = node.node
        led = LedPartitions(inner.catalog, inner.logs, inner.membership)
        transactions, admission = inner.transactions, BatchAdmission(inner.metadata)
        self._node = node
        self._handle = ProduceHandler(
            inner.catalog, led, transactions.admission, transactions.held_commits, inner.wall_ms, admission
        ).handle

    def handle(self, call: KafkaCall) -> StepsLeft:
        """Answers when the batches are where ``acks`` wants them; with acks=0 there is no answer."""
        request: ProduceRequest = call.message
        asked = native_records.ProduceRequest(
            request.transactional_id,
            request.acks,
            request.timeout_ms,
            tuple(
                native_records.TopicProduceData(
                    topic.name,
                    tuple(
                        native_records.PartitionProduceData(each.index, each.records or b"")
                        for each in topic.partition_data
                    ),
                )
                for topic in request.topic_data
            ),
        )
        return call.ask(self._handle, asked, lambda response: call.reply(self._produced(call, response)))

    def _produced(self, call: KafkaCall, response: native_records.ProduceResponse) -> ProduceResponse:
        names_leaders = call.version >= _LEADERS_SINCE
        topics = [
            TopicProduceResponse(
                topic.name, partition_responses=[_produced(each, call.version) for each in topic.partition_responses]
            )
            for topic in response.responses
        ]
        if not (names_leaders and response.node_endpoints):
            return ProduceResponse(topics)
        brokers = self._node.brokers(call)
        named = [brokers[each.node_id] for each in response.node_endpoints if each.node_id in brokers]
        return ProduceResponse(topics, 0, [NodeEndpoint(*broker) for broker in named])


def produce(node: KafkaNode) -> Translator:
    """See ``_Produce``."""
    return Translator(ProduceRequest, _Produce(node).handle, _produced_not)


def _produced(told: native_records.PartitionProduceResponse, version: int) -> PartitionProduceResponse:
    leader = None
    if version >= _LEADERS_SINCE and told.current_leader_id >= 0:
        leader = LeaderIdAndEpoch(told.current_leader_id, told.current_leader_epoch)
    return PartitionProduceResponse(
        told.index,
        told_code(told.error_code, 0, version),
        told.base_offset,
        told.log_append_time_ms,
        told.log_start_offset,
        [],
        told.error_message or None,
        leader,
    )


def _produced_not(request: ProduceRequest, version: int, code: ErrorCode, text: str) -> ProduceResponse:
    return ProduceResponse(
        [
            TopicProduceResponse(
                topic.name,
                partition_responses=[
                    PartitionProduceResponse(each.index, told_code(code, 0, version), -1, error_message=text)
                    for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def init_producer_id(node: KafkaNode) -> Translator:
    """A producer gets its id and epoch."""
    handler = node.handlers[native.InitProducerIdRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: InitProducerIdRequest = call.message
        asked = native.InitProducerIdRequest(
            request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
        )
        return call.ask(handler, asked, lambda response: call.reply(_given(response, call.version)))

    def refusal(request: InitProducerIdRequest, version: int, code: ErrorCode, text: str) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=told_code(code, 22, version))

    return Translator(InitProducerIdRequest, handle, refusal)


def _given(response: native.InitProducerIdResponse, version: int) -> InitProducerIdResponse:
    code = told_code(response.error_code, 22, version)
    return InitProducerIdResponse(0, code, response.producer_id, response.producer_epoch)
