"""FindCoordinator (10): which node coordinates a group, or the transactions of a transactional id.

It is the leader of their partition of the internal topic, whichever node is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.log.errors import LogError
from coordinator.metadata.catalog import Catalog
from coordinator.nodes.membership import Membership
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import Tasks
from coordinator.server.handlers.metadata import AdvertisedAddress
from coordinator.server.node import Node
from coordinator.transaction_coordinator import TransactionCoordinator
from protocol.errors import ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse

_KEY_TYPE_GROUP: Final = 0
_KEY_TYPE_TRANSACTION: Final = 1


def handler(node: Node) -> Handler:
    """See ``FindCoordinatorHandler`` and ``ClusterFindCoordinatorHandler``."""
    settings, coordinators = node.settings, _Coordinators(node.groups, node.transactions)
    if node.catalog.cluster:
        return ClusterFindCoordinatorHandler(coordinators, node.catalog, node.membership).handle
    advertised = AdvertisedAddress(settings.advertised_host, settings.advertised_port)
    return FindCoordinatorHandler(coordinators, node.tasks, settings.node_id, advertised).handle


class _Coordinators:
    """Those of a node, by key type."""

    def __init__(self, groups: GroupCoordinator, transactions: TransactionCoordinator) -> None:
        self._by_key_type: Mapping[int, CoordinatorRuntime[Any]] = {
            _KEY_TYPE_GROUP: groups,
            _KEY_TYPE_TRANSACTION: transactions,
        }

    def asked_for(self, call: Call) -> CoordinatorRuntime[Any] | None:
        """The one that a request is about; None when it names none, or nothing that could have one: it is answered then."""
        request = cast("FindCoordinatorRequest", call.request)
        coordinator = self._by_key_type.get(request.key_type)
        if coordinator is None:
            message = f"key type {request.key_type} is unknown here; 0 (group) and 1 (transactional id) are served"
            call.answer(_not_found(ErrorCode.INVALID_REQUEST, message))
        elif (fault := coordinator.fault(request.key)) is not None:
            call.answer(_not_found(*fault))
            return None
        return coordinator


class FindCoordinatorHandler:
    """Of a node that is alone: it names itself, once the shard of the group or id is ready."""

    def __init__(self, coordinators: _Coordinators, tasks: Tasks, node_id: int, advertised: AdvertisedAddress) -> None:
        self._coordinators = coordinators
        self._tasks = tasks
        self._node_id = node_id
        self._advertised = advertised

    def handle(self, call: Call) -> None:
        """Opens the shard if need be, so that the first request finds it ready."""
        coordinator = self._coordinators.asked_for(call)
        if coordinator is not None:
            key = cast("FindCoordinatorRequest", call.request).key
            self._tasks.start(call, self._find(call, coordinator, key))

    async def _find(self, call: Call, coordinator: CoordinatorRuntime[Any], key: str) -> None:
        try:
            index = await coordinator.open(key)
        except (LogError, OSError) as error:
            response = _not_found(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        else:
            host, port = self._advertised.seen_by(call)
            response = FindCoordinatorResponse(ErrorCode.NONE, "", self._node_id, host, port, index)
        call.answer(response)


class ClusterFindCoordinatorHandler:
    """Names the node that leads the partition by the metadata. Whether it serves already is for that node to say."""

    def __init__(self, coordinators: _Coordinators, catalog: Catalog, membership: Membership) -> None:
        self._coordinators = coordinators
        self._catalog = catalog
        self._membership = membership

    def handle(self, call: Call) -> None:
        """Answers at once."""
        coordinator = self._coordinators.asked_for(call)
        if coordinator is None:
            return
        index = coordinator.partition_of(cast("FindCoordinatorRequest", call.request).key)
        node = self._catalog.nodes.get(coordinator.leader_of(index))
        if node is None or not self._membership.valid():
            call.answer(_not_found(ErrorCode.COORDINATOR_NOT_AVAILABLE, coordinator.why_not_here(index)))
        else:
            call.answer(FindCoordinatorResponse(ErrorCode.NONE, "", node.node_id, node.host, node.port, index))


def _not_found(code: ErrorCode, message: str) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(code, message, -1, "", -1)
