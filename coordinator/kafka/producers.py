"""What Kafka's producers and readers ask of partitions: Produce, InitProducerId, Fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode
from protocol.errors import ErrorCode
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.init_producer_id_response import InitProducerIdResponse
from protocol.messages import producers as native


def init_producer_id(node: KafkaNode) -> Translator:
    """A producer gets its id and epoch."""
    handler = node.handlers[native.InitProducerIdRequest]

    def handle(call: KafkaCall) -> Iterator[asyncio.Future[None] | None] | None:
        request: InitProducerIdRequest = call.message
        if request.transactional_id is not None:
            text = "transactional ids are not served on the port for Kafka's clients"
            call.reply(refusal(request, call.version, ErrorCode.INVALID_REQUEST, text))
            return None
        asked = native.InitProducerIdRequest(
            None, producer_id=request.producer_id, producer_epoch=request.producer_epoch
        )
        return call.ask(handler, asked, lambda response: call.reply(_given(response)))

    def refusal(request: InitProducerIdRequest, version: int, code: ErrorCode, text: str) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=code)

    return Translator(InitProducerIdRequest, handle, refusal)


def _given(response: native.InitProducerIdResponse) -> InitProducerIdResponse:
    return InitProducerIdResponse(0, response.error_code, response.producer_id, response.producer_epoch)
