"""ApiVersions (18), Metadata (3), FindCoordinator (10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.log.errors import LogError
from coordinator.metadata.catalog import Catalog
from coordinator.runtime.fair_queue import FairQueue
from coordinator.server.call import Call
from coordinator.server.dispatch import Handler, Tasks
from coordinator.server.metadata_answers import MetadataAnswers
from protocol.errors import ErrorCode
from protocol.limits import max_request_bytes, max_request_elements
from protocol.messages import REQUESTS, Request
from protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
)

_KEY_TYPE_GROUP = 0


def _own_version() -> str:
    try:
        return version("aiocohort")
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
        self._groups = groups
        self._tasks = tasks
        self._node_id = node_id
        self._advertised = advertised
        self._max_wait_ms = max_wait_ms
        self._answers = MetadataAnswers(catalog, node_id)
        self._watches: dict[str | None, dict[asyncio.Event, Callable[[], None]]] = {}
        """What to call when a topic changes, by its name; under None when any does."""
        catalog.on_change(self._on_change)
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

    def metadata(self, call: Call) -> Iterator[None] | None:
        """Answers at once, or when a topic has changed that the client asks for."""
        request = cast("MetadataRequest", call.request)
        patience = self._tasks.patience(call)
        if request.max_wait_ms > 0 and not self._answers.is_news(request) and patience():
            self._tasks.start(call, self._wait_for_change(call, request, patience))
            return None
        return self._answer(call, request)

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

    async def _wait_for_change(self, call: Call, request: MetadataRequest, patience: Callable[[], bool]) -> None:
        wait_s = min(request.max_wait_ms, self._max_wait_ms) / 1000
        with self._tasks.long_poll() as changed, self._watching(call.connection.fair_queue, request.topics, changed):
            # Looked at again, now that a change would be heard of: one may have come before this task began to run.
            if not self._answers.is_news(request) and patience():
                try:
                    await asyncio.wait_for(changed.wait(), wait_s)
                except TimeoutError:
                    pass  # nothing happened: the answer says so by its revision
        for _ in self._answer(call, request):
            await self._tasks.next_step(call)

    def _answer(self, call: Call, request: MetadataRequest) -> Iterator[None]:
        for parts in self._answers.make(request, *self._address(call)):
            if parts is None:
                yield
            else:
                call.answer_packed(*parts)

    @contextmanager
    def _watching(self, fair_queue: FairQueue, names: tuple[str, ...] | None, changed: asyncio.Event) -> Iterator[None]:
        """While one of these topics changes, ``changed`` is set; in turns, for there may be thousands who wait."""
        watched = (None,) if names is None else tuple(dict.fromkeys(names))

        def wake() -> None:
            fair_queue.put(self, changed.set)

        for name in watched:
            self._watches.setdefault(name, {})[changed] = wake
        try:
            yield
        finally:
            for name in watched:
                watches = self._watches[name]
                del watches[changed]
                if not watches:
                    del self._watches[name]

    def _on_change(self, names: Sequence[str]) -> None:
        woken: dict[asyncio.Event, Callable[[], None]] = {}
        for name in (None, *names):
            woken |= self._watches.get(name, {})
        for wake in woken.values():
            wake()

    def _address(self, call: Call) -> tuple[str, int]:
        """What clients are told: the advertised address, or the one this client reached us by."""
        host, port = self._advertised
        return host or call.connection.local[0], port or call.connection.local[1]
