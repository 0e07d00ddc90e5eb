"""InitProducerId (22): a producer gets its id and epoch."""

from __future__ import annotations

from typing import cast

from coordinator.metadata.producer_ids import ProducerIds
from coordinator.server.dispatch import Call, Handler, Tasks
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.record_batch import LAST_PRODUCER_EPOCH


def handler(node: Node) -> Handler:
    """See ``InitProducerIdHandler``."""
    return InitProducerIdHandler(node.producer_ids, node.tasks).handle


class InitProducerIdHandler:
    """Gives producers their identity."""

    def __init__(self, ids: ProducerIds, tasks: Tasks) -> None:
        self._ids = ids
        self._tasks = tasks

    def handle(self, call: Call) -> None:
        """Answers with a new id, or with the next epoch of the one the producer has."""
        request = cast("InitProducerIdRequest", call.request)
        fault = self._fault(request)
        if fault is not None:
            call.answer(InitProducerIdResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        elif 0 <= request.producer_epoch < LAST_PRODUCER_EPOCH:
            call.answer(InitProducerIdResponse(ErrorCode.NONE, request.producer_id, request.producer_epoch + 1))
        else:
            self._tasks.start(call, self._new_id(call))

    def _fault(self, request: InitProducerIdRequest) -> str | None:
        if request.transactional_id is not None:
            return "this daemon has no transactions: leave transactional_id nil"
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return f"producer id {request.producer_id} and epoch {request.producer_epoch} do not go together"
        if request.producer_id >= 0 and not self._ids.given_out(request.producer_id):
            return f"producer id {request.producer_id} was never given out here: ask for a new one"
        return None

    async def _new_id(self, call: Call) -> None:
        try:
            producer_id = await self._ids.take()
        except OSError as error:
            text = f"no producer id can be reserved: {error}"
            call.answer(InitProducerIdResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=text))
        else:
            call.answer(InitProducerIdResponse(ErrorCode.NONE, producer_id, 0))
