"""FindCoordinator (10): which node coordinates a group, or the transactions of a transactional id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.log.errors import LogError
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.server.dispatch import Call, Handler, Tasks
from coordinator.server.handlers.metadata import AdvertisedAddress
from coordinator.server.node import Node
from coordinator.transaction_coordinator import TransactionCoordinator
from protocol.errors import ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse

_KEY_TYPE_GROUP: Final = 0
_KEY_TYPE_TRANSACTION: Final = 1


def handler(node: Node) -> Handler:
    """See ``FindCoordinatorHandler``."""
    settings = node.settings
    advertised = AdvertisedAddress(settings.advertised_host, settings.advertised_port)
    return FindCoordinatorHandler(node.groups, node.transactions, node.tasks, settings.node_id, advertised).handle


class FindCoordinatorHandler:
    """Names this node, once the shard of the group or id is ready."""

    def __init__(
        self,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        tasks: Tasks,
        node_id: int,
        advertised: AdvertisedAddress,
    ) -> None:
        self._coordinators: Mapping[int, CoordinatorRuntime[Any]] = {
            _KEY_TYPE_GROUP: groups,
            _KEY_TYPE_TRANSACTION: transactions,
        }
        self._tasks = tasks
        self._node_id = node_id
        self._advertised = advertised

    def handle(self, call: Call) -> None:
        """Opens the shard if need be, so that the first request finds it ready."""
        request = cast("FindCoordinatorRequest", call.request)
        coordinator = self._coordinators.get(request.key_type)
        if coordinator is None:
            message = f"key type {request.key_type} is unknown here; 0 (group) and 1 (transactional id) are served"
            call.answer(FindCoordinatorResponse(ErrorCode.INVALID_REQUEST, message, -1, "", -1))
        elif (fault := coordinator.fault(request.key)) is not None:
            call.answer(FindCoordinatorResponse(*fault, -1, "", -1))
        else:
            self._tasks.start(call, self._find(call, coordinator, request.key))

    async def _find(self, call: Call, coordinator: CoordinatorRuntime[Any], key: str) -> None:
        try:
            index = await coordinator.open(key)
        except (LogError, OSError) as error:
            response = FindCoordinatorResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error), -1, "", -1)
        else:
            host, port = self._advertised.seen_by(call)
            response = FindCoordinatorResponse(ErrorCode.NONE, "", self._node_id, host, port, index)
        call.answer(response)
