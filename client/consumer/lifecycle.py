"""The start and the end of a consumer: in which order its parts begin and end, by when, and what a cancelled end leaves."""

from __future__ import annotations

import asyncio

from client.consumer.assignment import Assignment
from client.consumer.coordinator import ConsumerCoordinator, Departures
from client.consumer.fetcher import Fetcher
from client.consumer.positions import Positions
from client.consumer.process import Process
from client.consumer.subscription import TopicSelection
from client.group import StopTurn
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline


class ConsumerLifecycle:
    """Starts the parts of one consumer and stops them, each once."""

    def __init__(
        self,
        cluster: Cluster,
        selection: TopicSelection,
        assignment: Assignment,
        positions: Positions,
        fetcher: Fetcher,
        coordinator: ConsumerCoordinator,
        process: Process,
        departures: Departures,
        news: asyncio.Event,
    ) -> None:
        self.stopped = False
        self._cluster = cluster
        self._selection = selection
        self._assignment = assignment
        self._positions = positions
        self._fetcher = fetcher
        self._coordinator = coordinator
        self._process = process
        self._departures = departures
        self._news = news
        self._stop_turn = StopTurn()
        self._close_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """See ``Consumer.start``."""
        self._coordinator.check_not_closed()
        if self._coordinator.running:
            return
        self._selection.track(self._cluster)
        pattern = self._selection.pattern
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._positions.start()
        self._fetcher.start()
        self._coordinator.start(complete=pattern is not None and pattern == self._selection.pattern)

    async def stop(self, deadline: Deadline) -> None:
        """See ``Consumer.stop``."""
        if self.stopped:
            return
        self._process.check_outside_handlers("stop()")
        if self._coordinator.membership is not None:
            self._coordinator.membership.check_outside()
        self._stop_turn.check_outside("a rebalance listener")
        async with self._stop_turn.take(
            deadline
        ) as is_mine:  # if not, the call under way goes on until its own deadline
            if is_mine and not self.stopped:
                await self._stop(deadline)

    async def _stop(self, deadline: Deadline) -> None:
        coordinator = self._coordinator
        coordinator.participant.closing = deadline
        coordinator.closed = True
        self._news.set()
        self._assignment.came_back.set()  # a rebalance under way waits no longer for records the program has in hand
        try:
            coordinator.commits.end()  # nothing is waited for before the membership's own stop, which leaves in any case
            if coordinator.membership is not None:
                await coordinator.membership.stop(deadline)
            elif coordinator.running:
                await self._process.wind_down(deadline)
                if coordinator.commits_by_itself:
                    await coordinator.participant.commit_last()
            ending = self._process.ending
            leaving = [*self._departures.tasks, *([ending] if ending is not None else [])]
            if leaving:
                await asyncio.wait(leaving, timeout=max(0.0, deadline.remaining_s()))
        finally:
            coordinator.running = False
            self._process.cancel()
            coordinator.participant.log_errors()
            if self._close_task is None:  # a task, for closing must not be cut short by another cancellation
                self._close_task = asyncio.create_task(self._close(), name="cohort-consumer-close")
            await asyncio.shield(self._close_task)
        self._assignment.remove(list(self._assignment.states))
        self._assignment.forget_pauses()
        self.stopped = True

    async def _close(self) -> None:
        await self._coordinator.commits.stop()
        await self._positions.stop()
        await self._fetcher.stop()
        await self._cluster.close()
