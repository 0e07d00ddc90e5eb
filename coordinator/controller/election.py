"""Which node is the controller: the one whose lease holds the key ``controller``. Taken when there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.log_output import get_logger
from coordinator.metadata.authority import Compare, Put, TransactionError
from coordinator.metadata.keys import CONTROLLER, live_key
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError, Stop
from coordinator.nodes.registration import Registration

log = get_logger()

_RETRY_S: Final = 0.2


class ControllerElection:
    """This node's part in it. ``fence`` is what every transaction of the controller compares."""

    def __init__(self, store: MetadataStore, registration: Registration, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when this node becomes the controller or is it no more."""
        self._store = store
        self._registration = registration
        self._on_change = on_change
        self._elected = 0
        """The broker epoch that this node was elected with last; 0 while another is the controller."""
        self._stops: list[Stop] = []
        self._taking: asyncio.Task[None] | None = None

    @property
    def fence(self) -> Compare | None:
        """That this node, in this incarnation, is the controller still; None while it is not."""
        known = self._store.get(CONTROLLER)
        if known is None or (known.value["node"], known.value["broker_epoch"]) != self._registration.me:
            return None
        return Compare(CONTROLLER, "create", known.create_revision)

    def start(self) -> None:
        """Takes part from now on; ``close`` ends it."""
        self._stops = [
            self._store.watch(CONTROLLER, lambda _: self._look()),
            self._registration.on_registered(lambda _: self._look()),
            self._registration.on_lost(self._look),
        ]
        self._look()

    async def close(self) -> None:
        """Takes part no longer. The key goes with the lease."""
        for stop in self._stops:
            stop()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)

    def _look(self) -> None:
        """The key changed, or this node's registration did."""
        elected = self._registration.me.broker_epoch if self.fence is not None else 0
        if elected != self._elected:
            self._elected = elected
            if elected:
                log.info("controller_elected", node=self._registration.me.node, broker_epoch=elected)
            self._on_change()
        if self._is_open() and self._taking is None:
            self._taking = asyncio.create_task(self._take(), name="cohort-controller-election")

    def _is_open(self) -> bool:
        """Whether there is no controller, and this node may be it: it is registered, and not about to stop."""
        if self._store.get(CONTROLLER) is not None or not self._registration.lease_id:
            return False
        live = self._store.get(live_key(self._registration.me.node))
        return live is not None and live.version == 1 and live.create_revision == self._registration.me.broker_epoch

    async def _take(self) -> None:
        try:
            while self._is_open():
                try:
                    await self._attempt()
                except (MetadataUnavailableError, TransactionError, OSError) as error:
                    log.warning("controller_not_elected", error=str(error))
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._taking = None

    async def _attempt(self) -> None:
        """Another node may be faster. With an unknown outcome the next attempt is refused, or finds the key made."""
        me = self._registration.me
        compare = [Compare(CONTROLLER, "create", 0), Compare(live_key(me.node), "create", me.broker_epoch)]
        value = {"node": me.node, "broker_epoch": me.broker_epoch}
        revision = await self._store.transaction(compare, [Put(CONTROLLER, value, self._registration.lease_id)])
        if revision is None:
            await self._store.catch_up()
