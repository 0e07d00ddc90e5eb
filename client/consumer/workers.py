"""Records through a handler: a task a partition or a key, its records one by one or in batches, tasks beside each other.

::

    buffer -> take (synchronous, under a free slot) -> handler -> finish: may be committed
                                                          \\-> give back: comes again, here or at the next owner

A worker is the task of one partition. It takes a record only when the handler can be called at once, so what waits is what
the fetcher has buffered, and a full buffer is not fetched into: a slow partition holds up no other. With the order of keys
it takes up to a bound, and has lanes, each the task of one key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from client.consumer.assignment import Assignment
from client.consumer.handler_calls import BatchLimits, HandlerCalls
from client.consumer.handler_task import HandlerTask, KeyedWorker, KeyLane, PartitionWorker, QueuedRecord
from client.consumer.partition import FetchedBatch, PartitionState
from client.consumer.transforming import OutputTransactions
from client.errors import RecordDeserializationError
from client.group import Progress
from client.log import get_logger
from client.producer.outputs import NO_OUTPUTS
from client.transport.deadline import Deadline
from client.types.records import ConsumerRecord, OffsetAndMetadata
from protocol.subscription import TopicPartition

_YIELD_EVERY_S: Final = 0.005
"""How long a worker may go on with handlers that wait for nothing before other tasks get a turn."""
_CLEAN_UP_S: Final = 5.0
"""How long a rebalance waits for handlers that were cancelled. A partition is not handled here again before they end."""

log = get_logger()


class Workers:
    """All workers of one call of ``Consumer.process``; what a rebalance knows as ``Work``.

    ``calls`` has the handler, and what is done about its failures; ``concurrency`` bounds how many run at once. ``by_key``:
    records of one key are handled one after the other, others beside each other. ``make_room`` is told that buffers were
    emptied, ``on_news`` that ``failure`` or the workers have changed. ``more_may_come`` tells whether a partition may get
    more records before some of what is buffered is taken.
    """

    def __init__(
        self,
        calls: HandlerCalls,
        concurrency: int | None,
        assignment: Assignment,
        *,
        by_key: bool = False,
        make_room: Callable[[], None],
        on_news: Callable[[], None],
        more_may_come: Callable[[PartitionState], bool],
    ) -> None:
        self.failure: BaseException | None = None
        self.overdue: tuple[ConsumerRecord, float] | None = None
        """Of the last partitions that were lost: the record that was longest in work, and for how many seconds."""
        self.by_key = by_key
        self._calls = calls
        calls.fail = self.fail
        self._slots = asyncio.Semaphore(concurrency) if concurrency is not None else None
        self._assignment = assignment
        self._make_room = make_room
        self._on_news = on_news
        self._more_may_come = more_may_come
        self._workers: dict[TopicPartition, PartitionWorker] = {}
        self._stopping = False

    @property
    def transactions(self) -> OutputTransactions | None:
        """With it what handlers return is sent and committed with the offsets of their records."""
        return self._calls.transactions

    @transactions.setter
    def transactions(self, transactions: OutputTransactions) -> None:
        """Set before the first record is taken."""
        self._calls.transactions = transactions

    @property
    def progress(self) -> Progress | None:
        """Watches how long handlers take, if anything does."""
        return self._calls.progress

    @progress.setter
    def progress(self, progress: Progress | None) -> None:
        """Set with the membership that it belongs to."""
        self._calls.progress = progress

    # --- which workers there are --------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Gives every partition that may be read its worker, wakes those with records, ends those without a partition.

        A partition that comes back gets its worker when the one from before has ended.
        """
        if self._stopping:
            return
        states = self._assignment.states
        for worker in list(self._workers.values()):
            if states.get(worker.state.tp) is not worker.state:
                worker.end()
        for tp, state in states.items():
            worker_or_none = self._workers.get(tp)
            if worker_or_none is not None:
                worker_or_none.woken.set()
            elif not state.frozen:
                self._open(state)

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where the handlers are through with each partition."""
        states = self._assignment.states.values()
        return {state.tp: OffsetAndMetadata(state.done) for state in states if state.done >= 0}

    async def commit(self, deadline: Deadline) -> bool:
        """See ``Work.commit``."""
        return self.transactions is None or await self.transactions.commit(deadline)

    def lease(self, record: ConsumerRecord, seconds: float) -> bool:
        """Gives the handler of ``record`` so many seconds from now; returns whether there is one."""
        worker = self._workers.get(TopicPartition(record.topic, record.partition))
        for task in worker.tasks() if worker is not None else []:
            if any(each.offset == record.offset for each in task.records):
                if self.progress is not None:
                    self.progress.lease(seconds, task)
                return True
        return False

    def unfinished(self) -> list[PartitionWorker]:
        """Workers whose handlers go on although nothing waits for them any longer."""
        return [worker for worker in self._workers.values() if not worker.is_over]

    def wait_out(self, workers: Iterable[PartitionWorker]) -> None:
        """``workers`` of an earlier call are ``unfinished``: their partitions are not handled before they have ended."""
        for worker in workers:
            self._workers[worker.state.tp] = worker
            worker.task.add_done_callback(partial(self._forget, worker))

    def runs_in(self, task: asyncio.Task[None] | None) -> bool:
        """Whether ``task`` is one of the workers: a handler that asked for their end would wait for itself."""
        return any(each.task is task for worker in self._workers.values() for each in worker.tasks())

    def _open(self, state: PartitionState) -> None:
        worker: PartitionWorker
        if self.by_key:
            worker = KeyedWorker(state, self._slots)
            self._start_dispatch(worker)
        else:
            worker = PartitionWorker(state, self._slots)
            worker.task = asyncio.create_task(self._run(worker), name=_task_name(state))
            worker.task.add_done_callback(partial(self._closed, worker))
        self._workers[state.tp] = worker

    def _closed(self, worker: PartitionWorker, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)
        self._forget(worker, task)

    def _forget(self, worker: PartitionWorker, _: asyncio.Task[None]) -> None:
        if self._workers.get(worker.state.tp) is worker:
            del self._workers[worker.state.tp]
        self._on_news()

    # --- their end --------------------------------------------------------------------------------------------------

    async def wind_down(self, tps: frozenset[TopicPartition], deadline: Deadline) -> None:
        """See ``Work.wind_down``."""
        await self._end(self._frozen(tps), deadline)

    def abandon(self, tps: frozenset[TopicPartition]) -> None:
        """See ``Work.abandon``."""
        self.overdue = None
        if self.transactions is not None:
            self.transactions.lose()
        for worker in self._frozen(tps):
            for task in worker.tasks():
                if task.record is not None and self.progress is not None:
                    seconds = self.progress.end(task)
                    if self.overdue is None or seconds > self.overdue[1]:
                        self.overdue = task.record, seconds
            worker.cancel()

    async def end(self, deadline: Deadline) -> None:
        """Ends all workers: handlers may finish until ``deadline`` and are cancelled then."""
        self._stopping = True
        try:
            await self._end(list(self._workers.values()), deadline)
        finally:
            await self._calls.close()

    def cancel(self) -> None:
        """Cancels all handlers now."""
        self._stopping = True
        for worker in list(self._workers.values()):
            worker.cancel()

    def _frozen(self, tps: Iterable[TopicPartition]) -> list[PartitionWorker]:
        """Those that really go: a partition may have come back before its earlier state is given up."""
        workers = [self._workers[tp] for tp in sorted(tps) if tp in self._workers]
        return [worker for worker in workers if worker.state.frozen]

    async def _end(self, workers: list[PartitionWorker], deadline: Deadline) -> None:
        for worker in workers:
            worker.end()
        await _wait_for(workers, deadline.remaining_s())
        late = [worker for worker in workers if not worker.is_over]
        for worker in late:
            worker.cancel()
        await _wait_for(late, _CLEAN_UP_S)
        for worker in late:
            if not worker.is_over:
                self._let_go(worker)

    def _let_go(self, worker: PartitionWorker) -> None:
        for task in worker.tasks():
            if task.record is None:
                continue
            log.error(
                "handler_outlasts_revocation",
                topic=task.record.topic,
                partition=task.record.partition,
                offset=task.record.offset,
                thread=task.thread is not None,
                hint="it goes on although it was cancelled, and its partition is given up now: another member may "
                "handle the same record; this one does not before the handler has ended",
            )
            if self.progress is not None:
                self.progress.end(task)
        worker.let_go()

    def fail(self, error: BaseException) -> None:
        """The first failure ends ``process``; the others are logged."""
        if self.failure is None:
            self.failure = error
        else:
            log.error("another_handler_failed", error=str(error), exc_info=error)
        self._stopping = True
        for worker in list(self._workers.values()):
            worker.halt()
        self._on_news()

    # --- one worker ---------------------------------------------------------------------------------------------------

    async def _run(self, worker: PartitionWorker) -> None:
        loop, calls, state = asyncio.get_running_loop(), self._calls, worker.state
        batch = calls.batch
        yield_at_s = loop.time() + _YIELD_EVERY_S
        while not worker.ending:
            worker.woken.clear()
            ready = state.buffered_bytes and state.readable and state.error is None and self._assignment.owned()
            if not ready or not (calls.transactions is None or calls.transactions.accepting):
                await worker.woken.wait()
            else:
                try:
                    if batch is not None and batch.max_wait_ms:
                        await self._linger(worker, batch)
                    if self._slots is not None:
                        await worker.slot.take()
                    undecoded = self._take_up(worker)
                    if worker.records:
                        await self._handle(worker, undecoded)
                finally:
                    worker.slot.free()
            now_s = loop.time()
            if now_s >= yield_at_s:
                await asyncio.sleep(0)
                yield_at_s = now_s + _YIELD_EVERY_S

    async def _linger(self, worker: PartitionWorker, batch: BatchLimits) -> None:
        """Waits until a whole batch is there or no more can come, or for as long as a batch may wait for its last record."""
        until_s, state = asyncio.get_running_loop().time() + batch.max_wait_ms / 1000, worker.state
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                while state.buffered_records < batch.max_records and self._more_may_come(state) and not worker.ending:
                    worker.woken.clear()
                    await worker.woken.wait()

    def _take_up(self, worker: PartitionWorker) -> RecordDeserializationError | None:
        """What the handler is to get next is in work, if there is something; why it could not be decoded, if so."""
        transactions = self._calls.transactions
        if worker.ending or not (transactions is None or transactions.accepting):  # while it waited for its turn
            return None
        records, origins, undecoded = self._take(worker.state)
        if records:
            worker.take_up(records, origins)
            if transactions is not None:
                worker.round = transactions.round
                transactions.take_up(worker.state, records[0].offset)
        return undecoded

    async def _handle(self, task: HandlerTask, undecoded: RecordDeserializationError | None) -> None:
        """Has the handler work on what ``task`` has taken up, until that is done or not done."""
        finished, calls = False, self._calls
        try:
            finished = await calls.are_done(task, undecoded)
        finally:
            finished = finished and not task.interrupted
            if calls.transactions is not None:
                finished = self._hand_over(task, calls.transactions, finished=finished)
            task.put_down(finished=finished)
            if calls.progress is not None:
                calls.progress.end(task)
            if not finished:
                self._make_room()  # it is to be fetched again

    def _hand_over(self, task: HandlerTask, transactions: OutputTransactions, *, finished: bool) -> bool:
        """The outputs of records that are about to count as done are queued; whether they may, if they are ``finished``."""
        outputs, task.outputs = task.outputs, None
        record = task.record
        if finished and record is not None and task.round == transactions.round:
            transactions.take_over(task.state, record.offset, outputs or NO_OUTPUTS)
            return True
        if outputs is not None:
            transactions.discard(outputs)
        return False

    def _take(
        self, state: PartitionState
    ) -> tuple[list[ConsumerRecord], list[FetchedBatch], RecordDeserializationError | None]:
        """What the handler is to get next, which batches that came from, and why it could not be decoded, if so."""
        assignment, batch = self._assignment, self._calls.batch
        if batch is None:
            record = assignment.take_for_work(state)
            if record is not None and state.origin is not None:  # as nearly always
                if assignment.freed:
                    self._make_room()
                return [record], [state.origin], None
            records: list[ConsumerRecord] = []
            origins: list[FetchedBatch] = []
        else:
            records, origins = assignment.take_many_for_work(state, batch.max_records)
        error, undecoded = state.error, None
        if not records and isinstance(error, RecordDeserializationError):
            records, undecoded = [state.take_undecoded(error.offset)], error
            origins = [] if state.origin is None else [state.origin]
        elif error is not None:
            self._on_news()
        if assignment.freed:
            self._make_room()
        return records, origins, undecoded

    # --- one worker whose records go by their keys ------------------------------------------------------------------------

    def _start_dispatch(self, worker: KeyedWorker) -> None:
        worker.task = asyncio.create_task(self._dispatch(worker), name=_task_name(worker.state))
        worker.task.add_done_callback(partial(self._dispatch_ended, worker))

    def _dispatch_ended(self, worker: KeyedWorker, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._start_dispatch(worker)  # the program has cancelled it; its lanes go on, and are waited for
        else:
            worker.has_ended = True
            self._closed(worker, task)

    async def _dispatch(self, worker: KeyedWorker) -> None:
        """Hands the records of a partition to the lanes of their keys; returns when the last lane has ended."""
        while not worker.ending:
            worker.woken.clear()
            state = worker.state
            ready = state.buffered_bytes and state.readable and state.error is None and self._assignment.owned()
            if not ready or not worker.has_room:
                await worker.woken.wait()
                continue
            key = self._assignment.next_key(worker.state)
            records, origins, undecoded = self._take(worker.state)
            if not records:
                continue
            (record,), (origin,) = records, origins
            lane = worker.lane(key if undecoded is None else record.key, record.offset)
            lane.add(QueuedRecord(record, undecoded, origin, worker.state.epoch))
            if not lane.started:
                self._start(lane)
        while worker.lanes:
            await asyncio.wait([lane.task for lane in worker.lanes.values()])
            await asyncio.sleep(0)  # they are closed in the turn after
        worker.state.give_back_all()

    def _start(self, lane: KeyLane) -> None:
        lane.started = True
        lane.task = asyncio.create_task(self._run_lane(lane), name=f"{_task_name(lane.state)}-{lane.key!r:.40}")
        lane.task.add_done_callback(partial(self._lane_ended, lane))

    async def _run_lane(self, lane: KeyLane) -> None:
        loop = asyncio.get_running_loop()
        yield_at_s = loop.time() + _YIELD_EVERY_S
        while lane.queue and not lane.ending:
            try:
                await lane.slot.take()
                while lane.queue and lane.queue[0].epoch != lane.state.epoch:
                    lane.drop_first()  # the position was moved: it comes again, or is passed over
                if lane.queue and not lane.ending:
                    await self._handle(lane, lane.next())
            finally:
                lane.slot.free()
            if loop.time() >= yield_at_s:
                await asyncio.sleep(0)
                yield_at_s = loop.time() + _YIELD_EVERY_S
        lane.worker.close(lane)

    def _lane_ended(self, lane: KeyLane, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)
        if lane.queue and not lane.ending:
            self._start(lane)  # the program has cancelled its handler: that has done nothing, as without keys
        else:
            lane.worker.close(lane)


def _task_name(state: PartitionState) -> str:
    return f"cohort-handler-{state.tp.topic}-{state.tp.partition}"


async def _wait_for(workers: list[PartitionWorker], timeout_s: float) -> None:
    """Until all have ended, or for so long."""
    until_s = asyncio.get_running_loop().time() + timeout_s
    while going_on := [worker for worker in workers if not worker.is_over]:
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return
        if tasks := [worker.task for worker in going_on if not worker.task.done()]:
            await asyncio.wait(tasks, timeout=left_s)
        else:
            await asyncio.sleep(0)  # that they have ended, or have other tasks, is known in this turn
