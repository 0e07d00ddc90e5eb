"""The coordinators of transactions of all nodes, as the leaders of partitions ask them.

A leader asks whether a write belongs to a transaction (see ``coordinator.runtime.admission``). The coordinator may be on
another node, and may move while it is asked: it is looked for again until it answers, or the time is over.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from coordinator.metadata.partitions import NO_LEADER
from coordinator.remote_markers import PURPOSE
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.participants import ANSWER_TIMEOUT_S
from coordinator.server.peers.client import PeerLostError
from protocol.errors import ErrorCode
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

ASK_S: Final = ANSWER_TIMEOUT_S - 0.5
"""How long the coordinator is looked for: those who ask wait a little longer, and hear why."""

FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 0.5

MAX_UNDER_WAY: Final = 32
"""Questions to one node without an answer; more of them wait."""

_MOVED: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
"""The coordinator is to be looked for again."""

Done = Callable[[AddPartitionsToTxnResponse], None]


class RemoteCoordinators:
    """``leader_of`` names the node that has the coordinator of a transactional id, ``ask_here`` asks that of this node."""

    def __init__(
        self,
        cluster: Cluster,
        leader_of: Callable[[str], int],
        ask_here: Callable[[AddPartitionsToTxnRequest, Done], None],
    ) -> None:
        self._cluster = cluster
        self._leader_of = leader_of
        self._ask_here = ask_here
        self._loop = asyncio.get_running_loop()
        self._asking: set[asyncio.Task[None]] = set()
        self._attempts: dict[asyncio.Timeout, tuple[str, int]] = {}
        """The id and the node that is asked, by what bounds the wait for its answer."""
        self._under_way: defaultdict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_UNDER_WAY))

    def add(self, request: AddPartitionsToTxnRequest, done: Done) -> None:
        """See ``coordinator.runtime.admission.Transactions``."""
        task = self._loop.create_task(self._add(request, done), name="cohort-add-partitions")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def moved(self) -> None:
        """Coordinators may have moved: none is waited for where it was before."""
        for attempt, (transactional_id, node) in self._attempts.items():
            if self._leader_of(transactional_id) != node and not attempt.expired():
                attempt.reschedule(self._loop.time())

    def close(self) -> None:
        """Asks nothing any more; those who wait are answered by their own time."""
        for task in self._asking:
            task.cancel()

    async def _add(self, request: AddPartitionsToTxnRequest, done: Done) -> None:
        deadline_s, pause_s = self._loop.time() + ASK_S, FIRST_PAUSE_S
        answer = AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its coordinator was not found")
        while (left_s := deadline_s - self._loop.time()) > 0:
            attempt = asyncio.timeout(left_s)
            try:
                async with attempt:
                    self._attempts[attempt] = request.transactional_id, self._leader_of(request.transactional_id)
                    answer = await self._asked(request, left_s)
            except TimeoutError:
                continue  # the time is over, or the coordinator has moved
            finally:
                self._attempts.pop(attempt, None)
            if answer.error_code not in _MOVED:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        done(answer)

    async def _asked(self, request: AddPartitionsToTxnRequest, timeout_s: float) -> AddPartitionsToTxnResponse:
        leader = self._leader_of(request.transactional_id)
        if leader == NO_LEADER:
            text = f"the coordinator of transactional id {request.transactional_id!r} has no leader at the moment"
            return AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        if leader == self._cluster.membership.me.node:
            return await self._answered_here(request)
        try:
            async with self._under_way[leader]:
                connection = await self._cluster.peers.connect(leader, PURPOSE)
                return await connection.request(request, AddPartitionsToTxnResponse, timeout_s=timeout_s)
        except PeerLostError as error:
            return AddPartitionsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))

    async def _answered_here(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        answered: asyncio.Future[AddPartitionsToTxnResponse] = self._loop.create_future()

        def tell(answer: AddPartitionsToTxnResponse) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._ask_here(request, tell)
        return await answered
