"""FindCoordinator (10): which node coordinates a group."""

from __future__ import annotations

from typing import Final, cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.log.errors import LogError
from coordinator.server.dispatch import Call, Handler, Tasks
from coordinator.server.handlers.metadata import AdvertisedAddress
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse

_KEY_TYPE_GROUP: Final = 0


def handler(node: Node) -> Handler:
    """See ``FindCoordinatorHandler``."""
    settings = node.settings
    advertised = AdvertisedAddress(settings.advertised_host, settings.advertised_port)
    return FindCoordinatorHandler(node.groups, node.tasks, settings.node_id, advertised).handle


class FindCoordinatorHandler:
    """Names this node, once the group's shard is ready."""

    def __init__(self, groups: GroupCoordinator, tasks: Tasks, node_id: int, advertised: AdvertisedAddress) -> None:
        self._groups = groups
        self._tasks = tasks
        self._node_id = node_id
        self._advertised = advertised

    def handle(self, call: Call) -> None:
        """Opens the group's shard if need be, so that the first join finds it ready."""
        request = cast("FindCoordinatorRequest", call.request)
        if request.key_type != _KEY_TYPE_GROUP:
            message = f"key type {request.key_type} is unknown here; 0 (group) is served"
            call.answer(FindCoordinatorResponse(ErrorCode.INVALID_REQUEST, message, -1, "", -1))
        elif (fault := self._groups.group_id_fault(request.key)) is not None:
            call.answer(FindCoordinatorResponse(fault.code, fault.message, -1, "", -1))
        else:
            self._tasks.start(call, self._find(call, request.key))

    async def _find(self, call: Call, group_id: str) -> None:
        try:
            index = await self._groups.open(group_id)
        except (LogError, OSError) as error:
            response = FindCoordinatorResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error), -1, "", -1)
        else:
            host, port = self._advertised.seen_by(call)
            response = FindCoordinatorResponse(ErrorCode.NONE, "", self._node_id, host, port, index)
        call.answer(response)
