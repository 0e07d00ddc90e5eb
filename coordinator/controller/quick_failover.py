"""Nodes whose process is gone are noticed before their lease ends: their machine refuses connections.

The controller keeps a connection to each live node, and every other node one to the controller. When one is lost and the
next two attempts, a moment apart, are refused, the node's live key is removed. That is as safe as the end of a lease, which
decides about availability only: a node that lives nevertheless sees that its key is gone, and registers anew. A machine that
does not answer at all says nothing about its processes: then the lease decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from coordinator.controller.election import ControllerElection
from coordinator.log_output import get_logger
from coordinator.metadata.authority import Compare, Delete, Operation, TransactionError
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.keys import CONTROLLER, live_key
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError, Stop
from coordinator.nodes.membership import Membership
from coordinator.replication.partition import Incarnation

log = get_logger()

REFUSALS: Final = 2
BETWEEN_S: Final = 0.1
_RETRY_S: Final = 1.0
"""At most, between attempts to reach a node that does not refuse, or that was never reached. The first ones come sooner: a
node that has just registered turns connections away until it knows its broker epoch itself."""


class Line(Protocol):
    """A connection to a node."""

    on_lost: Callable[[], None] | None
    """Called once when the connection is gone."""

    @property
    def closed(self) -> bool:
        """Whether it is gone."""


Connect = Callable[[int], Awaitable[Line]]
"""Connects to a node's present incarnation, or gives the connection that there is. An error that is a
``ConnectionRefusedError``, or is caused by one, says that nothing listens there."""


class QuickFailover:
    """See the module text; ``start`` begins it, ``close`` ends it."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        membership: Membership,
        election: ControllerElection,
        connect: Connect,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._membership = membership
        self._election = election
        self._connect = connect
        self._watched: dict[Incarnation, asyncio.Task[None]] = {}
        self._stop: Stop | None = None

    def start(self) -> None:
        """Watches from now on."""
        self._stop = self._catalog.on_nodes(self._nodes_changed)
        self._nodes_changed()

    async def close(self) -> None:
        """Watches no longer."""
        if self._stop is not None:
            self._stop()
        watched, self._watched = tuple(self._watched.values()), {}
        for task in watched:
            task.cancel()
        await asyncio.gather(*watched, return_exceptions=True)

    def _nodes_changed(self) -> None:
        wanted = self._wanted()
        for peer in tuple(self._watched):
            if peer not in wanted:
                self._watched.pop(peer).cancel()
        for peer in wanted:
            if peer not in self._watched or self._watched[peer].done():
                self._watched[peer] = asyncio.create_task(self._watch(peer), name=f"cohort-watch-node-{peer.node}")

    def _wanted(self) -> set[Incarnation]:
        """All others for the controller, the controller for the others."""
        me = self._membership.me.node
        controller = self._catalog.controller
        nodes = self._catalog.nodes if controller == me else [controller]
        return {
            Incarnation(node, self._catalog.nodes[node].broker_epoch)
            for node in nodes
            if node != me and node in self._catalog.nodes
        }

    async def _watch(self, peer: Incarnation) -> None:
        refused = 0
        was_there = False
        retry_s = BETWEEN_S
        while refused < REFUSALS:
            try:
                line = await self._connect(peer.node)
            except Exception as error:  # whatever carries connections has its own
                is_refused = isinstance(error, ConnectionRefusedError) or isinstance(
                    error.__cause__, ConnectionRefusedError
                )
                refused = refused + 1 if was_there and is_refused else 0
                if refused < REFUSALS:
                    await asyncio.sleep(BETWEEN_S if refused else retry_s)
                if not refused:
                    retry_s = min(2 * retry_s, _RETRY_S)
            else:
                was_there, refused, retry_s = True, 0, BETWEEN_S
                await _lost(line)
        await self._remove(peer)

    async def _remove(self, peer: Incarnation) -> None:
        """Removes the live key, and with it the controller's if that is the one who is gone."""
        while True:
            controller = self._store.get(CONTROLLER)
            if controller is None:
                await asyncio.sleep(BETWEEN_S)  # there will be one, and it watches too
                continue
            compare = [
                Compare(CONTROLLER, "create", controller.create_revision),
                Compare(live_key(peer.node), "create", peer.broker_epoch),
            ]
            removed: list[Operation] = [Delete(live_key(peer.node))]
            if (controller.value["node"], controller.value["broker_epoch"]) == peer:
                removed.append(Delete(CONTROLLER))
            elif self._election.fence is None:
                return
            try:
                if await self._store.transaction(compare, removed) is not None:
                    log.warning("node_gone", node=peer.node, broker_epoch=peer.broker_epoch)
                    return
                await self._store.catch_up()
            except (MetadataUnavailableError, TransactionError, OSError) as error:
                log.warning("node_not_removed", node=peer.node, error=str(error))
            live = self._store.get(live_key(peer.node))
            if live is None or live.create_revision != peer.broker_epoch:
                return
            await asyncio.sleep(BETWEEN_S)


async def _lost(line: Line) -> None:
    """Returns when a connection is gone."""
    gone = asyncio.Event()
    line.on_lost = gone.set
    if not line.closed:
        await gone.wait()
