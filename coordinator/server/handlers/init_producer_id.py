"""InitProducerId (22): a producer gets its id and epoch; with a transactional id, from the coordinator of that."""

from __future__ import annotations

from typing import cast

from coordinator.log_output import get_logger
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.shard_requests import to_transaction_shard
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.record_batch import LAST_PRODUCER_EPOCH

log = get_logger()


def handler(node: Node) -> Handler:
    """See ``InitProducerIdHandler``."""
    return InitProducerIdHandler(node).handle


def with_id_at_hand(node: Node, handle: Handler) -> Handler:
    """Calls ``handle`` once there is a producer id that its decision may take.

    Without one, as the metadata store refuses to reserve more, the decision says so if it needs one.
    """

    async def wait(call: Call) -> None:
        try:
            await node.producer_ids.ready()
        except (OSError, MetadataUnavailableError) as error:
            log.warning("producer_ids_not_reserved", error=str(error))
        call.on_abandon = None
        handle(call)

    def begin(call: Call) -> None:
        node.tasks.start(call, wait(call))

    return begin


class InitProducerIdHandler:
    """Gives producers their identity."""

    def __init__(self, node: Node) -> None:
        self._ids = node.producer_ids
        self._tasks = node.tasks
        self._transactional = with_id_at_hand(node, to_transaction_shard(node.transactions))

    def handle(self, call: Call) -> None:
        """Answers with a new id, or with the next epoch of the one the producer has."""
        request = cast("InitProducerIdRequest", call.request)
        if request.transactional_id is not None:
            self._transactional(call)
            return
        producer_id, epoch = request.producer_id, request.producer_epoch
        if (producer_id < 0) != (epoch < 0):
            fault = f"producer id {producer_id} and epoch {epoch} do not go together"
            call.answer(InitProducerIdResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        elif producer_id >= 0 and not self._ids.given_out(producer_id):
            self._tasks.start(call, self._look_again(call, request))
        else:
            self._give(call, request)

    def _give(self, call: Call, request: InitProducerIdRequest) -> None:
        if 0 <= request.producer_epoch < LAST_PRODUCER_EPOCH:
            call.answer(InitProducerIdResponse(ErrorCode.NONE, request.producer_id, request.producer_epoch + 1))
        else:
            self._tasks.start(call, self._new_id(call))

    async def _look_again(self, call: Call, request: InitProducerIdRequest) -> None:
        """Another node may have given it out a moment ago."""
        try:
            await self._ids.catch_up()
        except MetadataUnavailableError as error:
            text = f"whether producer id {request.producer_id} was given out cannot be found out: {error}"
            call.answer(InitProducerIdResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=text))
            return
        if self._ids.given_out(request.producer_id):
            call.on_abandon = None
            self._give(call, request)
        else:
            fault = f"producer id {request.producer_id} was never given out here: ask for a new one"
            call.answer(InitProducerIdResponse(ErrorCode.INVALID_REQUEST, error_message=fault))

    async def _new_id(self, call: Call) -> None:
        try:
            producer_id = await self._ids.take()
        except (OSError, MetadataUnavailableError) as error:
            text = f"no producer id can be reserved: {error}"
            call.answer(InitProducerIdResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=text))
        else:
            call.answer(InitProducerIdResponse(ErrorCode.NONE, producer_id, 0))
