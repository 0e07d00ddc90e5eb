"""Metadata (3): nodes, topics and where their partitions are; as a long poll, once one of them has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

from coordinator.metadata.catalog import Catalog
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.nodes.membership import Membership
from coordinator.runtime.fair_queue import FairQueue
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import Tasks
from coordinator.server.handlers.known_topics import catch_up_soon
from coordinator.server.metadata_answers import MetadataAnswers
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.cluster import MetadataRequest


class AdvertisedAddress(NamedTuple):
    """What clients are told to connect to; "" and 0 stand for what they have reached this node by."""

    host: str
    port: int

    def seen_by(self, call: Call) -> tuple[str, int]:
        """What the client of this call is told."""
        return self.host or call.connection.local[0], self.port or call.connection.local[1]


def handler(node: Node) -> Handler:
    """See ``MetadataHandler``."""
    settings = node.settings
    advertised = AdvertisedAddress(settings.advertised_host, settings.advertised_port)
    return MetadataHandler(
        node.catalog,
        node.tasks,
        node.membership,
        advertised=advertised,
        max_wait_ms=settings.max_fetch_wait_ms,
    ).handle


class MetadataHandler:
    """Describes topics to clients, and wakes those that wait for changes."""

    def __init__(
        self,
        catalog: Catalog,
        tasks: Tasks,
        membership: Membership,
        *,
        advertised: AdvertisedAddress,
        max_wait_ms: int,
    ) -> None:
        self._catalog = catalog
        self._tasks = tasks
        self._membership = membership
        self._advertised = advertised
        self._max_wait_ms = max_wait_ms
        self._answers = MetadataAnswers(catalog)
        self._watches: dict[str | None, dict[asyncio.Event, Callable[[], None]]] = {}
        """What to call when a topic changes, by its name; under None when any does."""
        catalog.on_routing(self._on_change)
        catalog.on_nodes(self._on_nodes)
        membership.on_invalid(self._on_nodes)

    def handle(self, call: Call) -> Iterator[None] | None:
        """Answers at once, or when a topic has changed that the client asks for, or the nodes."""
        request = cast("MetadataRequest", call.request)
        if self._catalog.cluster and request.known_revision > self._catalog.revision:
            self._tasks.start(call, self._catch_up(call, request))
            return None
        if self._catalog.cluster and request.known_revision < 0:
            self._tasks.start(call, self._answer_anew(call, request))
            return None
        patience = self._tasks.patience(call)
        if request.max_wait_ms > 0 and not self._answers.is_news(request) and patience():
            self._tasks.start(call, self._wait_for_change(call, request, patience))
            return None
        return self._answer(call, request)

    async def _catch_up(self, call: Call, request: MetadataRequest) -> None:
        """The client has heard more from another node: it is not told what was before."""
        try:
            await self._catalog.catch_up()
        except MetadataUnavailableError as error:
            call.refuse(
                ErrorCode.NETWORK_EXCEPTION, f"this node knows less than the client, and cannot catch up: {error}"
            )
            return
        if request.max_wait_ms > 0 and not self._answers.is_news(request):
            await self._wait_for_change(call, request, self._tasks.patience(call))
            return
        for _ in self._answer(call, request):
            await self._tasks.next_step(call)

    async def _answer_anew(self, call: Call, request: MetadataRequest) -> None:
        """The client knows nothing yet, and may ask for what it has just had changed through another node."""
        if self._membership.valid():
            await catch_up_soon(self._catalog)
        for _ in self._answer(call, request):
            await self._tasks.next_step(call)

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
        if not self._membership.valid():
            call.refuse(
                ErrorCode.NETWORK_EXCEPTION,
                "this node has lost the metadata store, and what it knows of the cluster may be old: ask another node",
            )
            return
        for parts in self._answers.make(request, *self._advertised.seen_by(call)):
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

    def _on_nodes(self) -> None:
        self._on_change([name for name in self._watches if name is not None])

    def _on_change(self, names: Sequence[str]) -> None:
        woken: dict[asyncio.Event, Callable[[], None]] = {}
        for name in (None, *names):
            woken |= self._watches.get(name, {})
        for wake in woken.values():
            wake()
