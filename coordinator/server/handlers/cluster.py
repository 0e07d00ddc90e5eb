"""ApiVersions (18), Metadata (3), FindCoordinator (10)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import cast

from coordinator.log.errors import LogError
from coordinator.metadata.catalog import Catalog, Topic, TopicError, check_topic_name
from coordinator.runtime.group_coordinator import GroupCoordinator
from coordinator.server.connection import Call
from coordinator.server.dispatch import Handler, Tasks
from protocol.errors import ErrorCode
from protocol.limits import max_request_bytes, max_request_elements
from protocol.messages import REQUESTS, Request
from protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BrokerMetadata,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)

_KEY_TYPE_GROUP = 0


def _own_version() -> str:
    try:
        return version("cohort")
    except PackageNotFoundError:
        return "unknown"


class ClusterHandlers:
    """Answers who is there and who leads what."""

    def __init__(
        self,
        catalog: Catalog,
        groups: GroupCoordinator,
        tasks: Tasks,
        *,
        node_id: int,
        advertised: tuple[str, int],
        max_wait_ms: int,
        max_frame_bytes: int,
    ) -> None:
        self._catalog = catalog
        self._groups = groups
        self._tasks = tasks
        self._node_id = node_id
        self._advertised = advertised
        self._max_wait_ms = max_wait_ms
        keys = tuple(
            ApiVersion(key, *request.versions, max_request_bytes(key, max_frame_bytes), max_request_elements(key))
            for key, request in sorted(REQUESTS.items())
        )
        self._api_versions = ApiVersionsResponse(ErrorCode.NONE, keys, "cohort", _own_version())

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {
            ApiVersionsRequest: self.api_versions,
            MetadataRequest: self.metadata,
            FindCoordinatorRequest: self.find_coordinator,
        }

    def api_versions(self, call: Call) -> None:
        """Says what this node speaks, and how large requests may be."""
        call.answer(self._api_versions)

    def metadata(self, call: Call) -> None:
        """Answers at once, or when the metadata has moved past what the client knows."""
        request = cast("MetadataRequest", call.request)
        if request.max_wait_ms > 0 and request.known_revision >= self._catalog.revision:
            self._tasks.start(call, self._wait_for_change(call, request))
        else:
            call.answer(self._picture(call, request.topics))

    def find_coordinator(self, call: Call) -> None:
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
            host, port = self._address(call)
            response = FindCoordinatorResponse(ErrorCode.NONE, "", self._node_id, host, port, index)
        call.answer(response)

    async def _wait_for_change(self, call: Call, request: MetadataRequest) -> None:
        with self._tasks.long_poll() as changed:
            stop = self._catalog.on_change(changed.set)
            try:
                async with asyncio.timeout(min(request.max_wait_ms, self._max_wait_ms) / 1000):
                    await changed.wait()
            except TimeoutError:
                pass  # nothing happened: the answer says so by its revision
            finally:
                stop()
        call.answer(self._picture(call, request.topics))

    def _address(self, call: Call) -> tuple[str, int]:
        """What clients are told: the advertised address, or the one this client reached us by."""
        host, port = self._advertised
        return host or call.connection.local[0], port or call.connection.local[1]

    def _picture(self, call: Call, names: tuple[str, ...] | None) -> MetadataResponse:
        topics = self._catalog.topics
        if names is None:
            described = [_describe(topics[name]) for name in sorted(topics)]
        else:
            asked = dict.fromkeys(names)  # a name given twice is answered once: answers must not outgrow requests
            described = [_describe(topics[name]) if name in topics else _unknown(name) for name in asked]
        host, port = self._address(call)
        return MetadataResponse(
            self._catalog.revision,
            self._catalog.cluster_id,
            self._node_id,
            (BrokerMetadata(self._node_id, host, port),),
            tuple(described),
        )


def _describe(topic: Topic) -> TopicMetadata:
    partitions = tuple(
        PartitionMetadata(ErrorCode.NONE, index, state.leader, state.leader_epoch, state.replicas, state.isr)
        for index, state in enumerate(topic.partitions)
    )
    return TopicMetadata(ErrorCode.NONE, topic.name, topic.topic_id, topic.internal, partitions)


def _unknown(name: str) -> TopicMetadata:
    try:
        check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except TopicError as error:
        code = error.code
    return TopicMetadata(code, name, "", False, ())
