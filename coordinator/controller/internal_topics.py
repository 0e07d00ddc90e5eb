"""The topics of the coordinators, made once as many nodes live as are awaited: one for each replica, or all workers."""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.controller.topics import ClusterTopics
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog, TopicError
from coordinator.metadata.store import MetadataUnavailableError

log = get_logger()

_RETRY_S: Final = 1.0


class InternalTopics:
    """Makes them on the node that is the controller. Another that believes to be it makes the same ones or none."""

    def __init__(self, topics: ClusterTopics, catalog: Catalog) -> None:
        self._topics = topics
        self._catalog = catalog
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Looks now, and whenever nodes or the controller change, until they are there."""
        self._task = asyncio.create_task(self._run(), name="cohort-internal-topics")

    async def close(self) -> None:
        """Makes none any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        stop = self._catalog.on_nodes(self._changed.set)
        stop_topics = self._catalog.on_change(lambda names: self._changed.set())
        try:
            while self._catalog.internal_topics_missing():
                self._changed.clear()
                if not self._is_due() or await self._made():
                    await self._changed.wait()
        finally:
            stop()
            stop_topics()

    def _is_due(self) -> bool:
        accepting = sum(node.accepting for node in self._catalog.live.values())
        is_controller = self._catalog.controller == self._catalog.node_id
        return is_controller and accepting >= self._catalog.awaited_nodes

    async def _made(self) -> bool:
        """False when it is to be tried again, after a pause."""
        try:
            await self._topics.create_internal_topics(self._catalog.offsets_replication_factor)
        except (TopicError, MetadataUnavailableError, OSError) as error:
            log.warning("internal_topics_not_made", error=str(error))
            await asyncio.sleep(_RETRY_S)
            return False
        log.info("internal_topics_made", replicas=self._catalog.offsets_replication_factor)
        return True
