"""What Kafka's producers ask of partitions: Produce, InitProducerId.

Batches are checked as Kafka checks them (``coordinator.kafka.batches``) and then appended as any others, by a handler of the
same class as that of Cohort's own producers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.kafka.batches import BatchAdmission
from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.kafka.refused_batches import RefusedBatches
from coordinator.kafka.transactions import keeps_epoch, told_code
from coordinator.server.call import Handler, StepsLeft
from coordinator.server.dispatch import ErrorTexts
from coordinator.server.handlers.led_partitions import LedPartitions
from coordinator.server.handlers.produce import ProduceHandler
from protocol.errors import ErrorCode
from protocol.kafka.batch import HEADER_BYTES
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.init_producer_id_response import InitProducerIdResponse
from protocol.kafka.messages.produce_request import ProduceRequest, TopicProduceData
from protocol.kafka.messages.produce_response import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.messages import producers as native
from protocol.messages import records as native_records

_BY_ID_SINCE: Final = 13
"""The version of Produce that names topics by id (KIP-516)."""
_LEADERS_SINCE: Final = 10
"""The version of Produce whose answer names leaders (KIP-951)."""


class _Produce:
    """Batches are appended."""

    def __init__(self, node: KafkaNode, refused: RefusedBatches) -> None:
        inner = node.node
        led = LedPartitions(inner.catalog, inner.logs, inner.membership)
        transactions, admission = inner.transactions, BatchAdmission(inner.metadata)
        self._node, self._refused = node, refused

        def handler(*, keeps_epoch: bool) -> Handler:
            return ProduceHandler(
                inner.catalog,
                led,
                transactions.admission,
                transactions.held_commits,
                inner.wall_ms,
                admission,
                keeps_epoch=keeps_epoch,
                in_order=refused.in_order,
            ).handle

        self._handle, self._handle_under_kept_epoch = handler(keeps_epoch=False), handler(keeps_epoch=True)

    def handle(self, call: KafkaCall) -> StepsLeft:
        """Answers when the batches are where ``acks`` wants them; with acks=0 there is no answer."""
        request: ProduceRequest = call.message
        known, unknown = self._found(request, call.version)
        for topic in unknown:
            self._refuse(call.connection.number, topic)
        asked = native_records.ProduceRequest(
            request.transactional_id,
            request.acks,
            request.timeout_ms,
            tuple(
                native_records.TopicProduceData(
                    name,
                    tuple(
                        native_records.PartitionProduceData(each.index, each.records or b"")
                        for each in topic.partition_data
                    ),
                    topic_id,
                )
                for topic, name, topic_id in known
            ),
        )
        ids = {name: topic.topic_id for topic, name, _ in known}

        def told(response: native_records.ProduceResponse) -> None:
            call.reply(self._produced(call, response, ids, unknown))

        steps = call.ask(self._handle_under_kept_epoch if keeps_epoch(0, call.version) else self._handle, asked, told)
        if unknown and request.acks == 0:  # there is no answer that could say so
            call.connection.close_with(f"records with acks=0 were refused: {_no_such_id(unknown[0])}")
        return steps

    def _refuse(self, connection: int, topic: TopicProduceData) -> None:
        """What is under way behind these batches comes behind refused ones, as the topic may be known by then."""
        for each in topic.partition_data:
            if each.records is None or len(each.records) < HEADER_BYTES:
                continue  # no batch
            refusal = native_records.PartitionProduceResponse(each.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._refused.looked_at(connection, topic.topic_id.hex(), each.records, refusal)

    def _found(
        self, request: ProduceRequest, version: int
    ) -> tuple[list[tuple[TopicProduceData, str, str]], list[TopicProduceData]]:
        """The topics with their names and, since they are named by them, their ids; and those that are not there."""
        if version < _BY_ID_SINCE:
            return [(topic, topic.name, "") for topic in request.topic_data], []
        known, unknown = list[tuple[TopicProduceData, str, str]](), list[TopicProduceData]()
        for topic in request.topic_data:
            found = self._node.topic_of(topic.topic_id)
            if found is None:
                unknown.append(topic)
            else:
                known.append((topic, found.name, found.topic_id))
        return known, unknown

    def _produced(
        self,
        call: KafkaCall,
        response: native_records.ProduceResponse,
        ids: Mapping[str, bytes],
        unknown: Sequence[TopicProduceData],
    ) -> ProduceResponse:
        topics = []
        for topic in response.responses:
            topic_id = ids[topic.name]
            partitions = [_produced(each, call.version) for each in topic.partition_responses]
            if call.version >= _BY_ID_SINCE and self._node.topic_of(topic_id) is None:  # it was deleted meanwhile
                for each in partitions:
                    if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        each.error_code = KafkaCode.UNKNOWN_TOPIC_ID
            topics.append(TopicProduceResponse(topic.name, topic_id, partitions))
        topics += [
            _topic_not(topic, KafkaCode.UNKNOWN_TOPIC_ID, text)
            for topic, text in zip(unknown, map(ErrorTexts(), map(_no_such_id, unknown)), strict=True)
        ]
        if call.version < _LEADERS_SINCE or not response.node_endpoints:
            return ProduceResponse(topics)
        named = self._node.named(call, response.node_endpoints)
        return ProduceResponse(topics, 0, [NodeEndpoint(*broker) for broker in named])


def _no_such_id(topic: TopicProduceData) -> str:
    return f"there is no topic with the id {topic.topic_id.hex()}"


def produce(node: KafkaNode, refused: RefusedBatches) -> Translator:
    """See ``_Produce``."""
    return Translator(ProduceRequest, _Produce(node, refused).handle, _produced_not)


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
        [BatchIndexAndErrorMessage(place) for place in told.record_errors],  # what is wrong says error_message
        told.error_message or None,
        leader,
    )


def _produced_not(request: ProduceRequest, version: int, code: ErrorCode, text: str) -> ProduceResponse:
    return ProduceResponse([_topic_not(topic, told_code(code, 0, version), text) for topic in request.topic_data])


def _topic_not(topic: TopicProduceData, code: int, text: str) -> TopicProduceResponse:
    return TopicProduceResponse(
        topic.name,
        topic.topic_id,
        [PartitionProduceResponse(each.index, code, -1, error_message=text) for each in topic.partition_data],
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
