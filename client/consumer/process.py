"""``Consumer.process``: has the workers handle what is assigned, watches over them, and ends them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from random import Random
from typing import Final

from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.coordinator import ConsumerCoordinator
from client.consumer.error_policy import DeadLetters
from client.consumer.fetch_collector import FetchCollector
from client.consumer.fetcher import Fetcher
from client.consumer.handler_calls import Handler, HandlerCalls
from client.consumer.handler_task import PartitionWorker
from client.consumer.partition import PartitionState
from client.consumer.positions import Positions
from client.consumer.process_options import ProcessOptions
from client.consumer.transforming import OutputTransactions
from client.consumer.workers import Workers
from client.errors import ClosedError, CohortError, IllegalStateError, MaxPollIntervalExceededError
from client.group import Membership
from client.log import get_logger
from client.producer.producer import Producer
from client.transport.deadline import Deadline
from client.transport.retry import Backoff
from client.types.spans import Spans

_LAST_COMMIT_MS: Final = 5_000

log = get_logger()


class Process:
    """The calls of ``process`` of one consumer, one at a time. Its workers end with it, or with their partitions."""

    def __init__(
        self,
        settings: ConsumerSettings,
        coordinator: ConsumerCoordinator,
        assignment: Assignment,
        positions: Positions,
        collector: FetchCollector,
        fetcher: Fetcher,
        news: asyncio.Event,
        clock: Callable[[], int] | None,
        random: Random,
    ) -> None:
        self.ending: asyncio.Task[None] | None = None
        """The end of the latest call, which goes on when that is cancelled."""
        self._settings = settings
        self._coordinator = coordinator
        self._assignment = assignment
        self._positions = positions
        self._collector = collector
        self._fetcher = fetcher
        self._news = news
        self._clock = clock
        self._random = random
        self._workers: Workers | None = None
        self._unfinished: list[PartitionWorker] = []
        self.spans: Spans | None = None
        """Told of handlers, and of what is sent for them; None where nobody traces."""

    async def run(self, handler: Handler, options: ProcessOptions) -> None:
        """See ``Consumer.process`` and ``Consumer.process_batch``."""
        options.check(handler, self._settings.group_id)
        membership = self._collector.begin_poll()
        pool = None
        if options.threads is not None:
            pool = ThreadPoolExecutor(options.threads, f"cohort-handler-{self._settings.client_id}")
        workers = self._new_workers(handler, options, pool)
        workers.wait_out(self._unfinished)
        self._workers = workers
        self._coordinator.set_work(workers)
        if options.producer is not None:
            transactions = self._transactions(options.producer, options.commit_interval_ms, workers)
            workers.transactions = transactions
            transactions.start()
        self._news.set()  # a poll that waits has no business here any more
        try:
            workers.progress = membership.progress if membership is not None else None
            await self._serve(workers, membership)
        finally:
            await self._end_in_order(workers, pool)

    async def wind_down(self, deadline: Deadline) -> None:
        """Ends the handlers of a consumer without membership, which no rebalance ends. Done by ``deadline``."""
        tps = frozenset(self._assignment.states)
        if self._workers is None or not tps:
            return
        self._assignment.freeze(tps)
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._workers.wind_down(tps, self._coordinator.participant.work_deadline())
        except TimeoutError:
            log.warning("stop_deadline_passed", undone="waiting for handlers", client_id=self._settings.client_id)
        if self._workers is not None:
            await self._workers.commit(deadline)

    def cancel(self) -> None:
        """Cancels all handlers now."""
        if self._workers is not None:
            self._workers.cancel()

    def check_outside_handlers(self, what: str) -> None:
        """Raises ``IllegalStateError`` in a handler, for a call that would wait for the handler itself."""
        if self._workers is not None and self._workers.runs_in(asyncio.current_task()):
            raise IllegalStateError(f"{what} was called in a handler of process(), which it would have to wait for")

    def _new_workers(self, handler: Handler, options: ProcessOptions, pool: Executor | None) -> Workers:
        calls = HandlerCalls(
            handler,
            options.on_error,
            self._assignment,
            batch=options.batch,
            pool=pool,
            dead_letters=DeadLetters(self._new_producer, self._settings.group_id, self.spans),
            random=self._random,
            still_ours=self._still_ours,
            spans=self.spans,
        )
        return Workers(
            calls,
            options.at_once,
            self._assignment,
            by_key=options.order == "key",
            make_room=self._fetcher.room_came_free,
            on_news=self._news.set,
            more_may_come=self._fetcher.may_bring_more,
        )

    def _transactions(self, producer: Producer, commit_interval_ms: float, workers: Workers) -> OutputTransactions:
        return OutputTransactions(
            producer,
            commit_interval_ms,
            assignment=self._assignment,
            commits=self._coordinator.commits,
            settings=self._settings,
            membership=lambda: self._coordinator.membership,
            backoff=Backoff(Random(self._random.getrandbits(64))),
            fail=workers.fail,
            on_change=self._positions.changed,
            spans=self.spans,
        )

    def _new_producer(self) -> Producer:
        """For dead letters."""
        settings = self._settings
        return Producer(
            settings.bootstrap_servers,
            f"{settings.client_id}-dead-letters",
            request_timeout_ms=settings.request_timeout_ms,
            clock=self._clock,
            random=Random(self._random.getrandbits(64)),
        )

    def _still_ours(self, state: PartitionState) -> bool:
        membership = self._coordinator.membership
        settled = membership is None or membership.state == "stable"
        return settled and not state.frozen and self._coordinator.owns()

    async def _serve(self, workers: Workers, membership: Membership | None) -> None:
        try:
            while True:
                self._news.clear()
                if self._coordinator.membership is not membership:  # assign() or subscribe() has made another one
                    membership = self._change_membership(workers, membership)
                if workers.failure is not None:
                    raise workers.failure
                self._collector.check()
                workers.sync()
                self._fetcher.starving()  # partitions whose handlers are slow hold what is buffered, and the others wait
                await self._news.wait()
        except ClosedError:
            if not self._coordinator.closed:
                raise
        except MaxPollIntervalExceededError as error:
            raise self._overdue(workers, error) from error
        finally:
            if membership is not None:
                membership.progress.leave()

    def _change_membership(self, workers: Workers, old: Membership | None) -> Membership | None:
        new = self._coordinator.membership
        if old is not None:
            old.progress.leave()
        if new is not None:
            new.progress.enter()
        workers.progress = new.progress if new is not None else None
        return new

    def _overdue(self, workers: Workers, error: MaxPollIntervalExceededError) -> MaxPollIntervalExceededError:
        if workers.overdue is None:
            return error
        record, seconds = workers.overdue
        return MaxPollIntervalExceededError(
            f"the handler of the record at offset {record.offset} of {record.topic}-{record.partition} ran for "
            f"{seconds * 1000:.0f} ms, more than max_poll_interval_ms ({self._settings.max_poll_interval_ms} ms), so this "
            f"member left group {self._settings.group_id!r}, all handlers were cancelled, and its partitions went to "
            "others. The next call joins again. Let handlers take less time, take a lease(record, "
            "seconds) in those that need more, or raise max_poll_interval_ms"
        )

    async def _end_in_order(self, workers: Workers, pool: Executor | None) -> None:
        self.ending = asyncio.create_task(self._end(workers, pool), name="cohort-consumer-process-end")
        try:
            await asyncio.shield(self.ending)
        except asyncio.CancelledError:
            workers.cancel()  # asked for a second time: no grace any more, and the rest is done without this task
            raise

    async def _end(self, workers: Workers, pool: Executor | None) -> None:
        coordinator = self._coordinator
        try:
            await workers.end(coordinator.participant.work_deadline())
            if workers.transactions is not None:
                await workers.transactions.end(Deadline(min(_LAST_COMMIT_MS, self._settings.request_timeout_ms)))
                return
            if not coordinator.commits_by_itself or coordinator.closed:
                return  # stop() commits by itself
            try:
                await coordinator.commits.commit_done(Deadline(min(_LAST_COMMIT_MS, self._settings.request_timeout_ms)))
            except CohortError as error:
                log.warning(
                    "last_commit_failed", when="process() ended", group=self._settings.group_id, error=str(error)
                )
        finally:
            if pool is not None:
                pool.shutdown(
                    wait=False
                )  # threads that go on although nothing waits for them any longer end by themselves
            self._unfinished = workers.unfinished()
            self._workers = None
            coordinator.set_work(None)
