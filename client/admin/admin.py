"""``Admin`` itself: its life. What it can do is in the modules beside this one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Self

from client.admin.calls import DEFAULT_TIMEOUT_MS
from client.admin.cluster import ClusterCalls
from client.admin.groups import GroupCalls
from client.admin.offsets import OffsetCalls
from client.admin.topics import TopicCalls
from client.admin.transactions import TransactionCalls
from client.errors import ClosedError
from client.option_names import explains_options
from client.transport.cluster import Cluster


class Admin(TopicCalls, GroupCalls, OffsetCalls, TransactionCalls, ClusterCalls):
    """Administers a cluster. Use it inside ``async with``, or call ``start`` and ``stop``.

    Every method takes ``timeout_ms``, milliseconds for all it does (default 30,000), and raises ``RequestTimedOutError``
    beyond. A method that is given several items tries all of them. If some fail, the others are done all the same, and it
    raises one error: of the class of the first that failed, with a text that names all that failed, and with ``failures``,
    which maps each item that failed (a topic, a group, a ``TopicPartition``, a member) to its own error.
    """

    @explains_options
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:7337",
        client_id: str | None = None,
        *,
        random: Random | None = None,
    ) -> None:
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=client_id or "cohort-admin",
            request_timeout_ms=DEFAULT_TIMEOUT_MS,
            random=random,
        )
        self._starting = asyncio.Lock()
        self._running = False
        self._stops = 0

    async def start(self, timeout_ms: int | None = None) -> None:
        """Connects. Does nothing when it is connected already.

        Raises ``RequestTimedOutError`` when no daemon answers in time, ``ClosedError`` when it is stopped meanwhile.
        """
        deadline = self._deadline(timeout_ms)
        async with self._starting:
            if self._running:
                return
            stops = self._stops
            try:
                await self._cluster.start(deadline)
                if self._stops != stops:
                    raise ClosedError("the admin was stopped while it started")
            except GeneratorExit:
                raise  # nothing can be waited for any more
            except BaseException:
                await self._cluster.close()
                raise
            self._running = True

    async def stop(self) -> None:
        """Closes the connections at once; calls under way get ``ConnectionLostError``. It may be started again."""
        self._stops += 1
        self._running = False
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
