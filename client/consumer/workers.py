"""Records through a handler: one task a partition, its records one by one, partitions beside each other.

::

    buffer -> take (synchronous, under a free slot) -> handler -> finish: may be committed
                                                          \\-> give back: comes again, here or at the next owner

A worker is the task of one partition. It takes a record only when the handler can be called at once, so what waits is what
the fetcher has buffered, and a full buffer is not fetched into: a slow partition holds up no other.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Final

from client.consumer.assignment import Assignment
from client.consumer.error_policy import DeadLetter, DeadLetters, OnError, Policy, Retry, checked_policy
from client.consumer.partition import PartitionState
from client.consumer.transforming import OutputTransactions
from client.errors import CommitFailedError, HandlerError, RecordDeserializationError
from client.group import Progress, call_program
from client.log import get_logger
from client.producer.outputs import NO_OUTPUTS, PreparedOutputs
from client.transport.deadline import Deadline
from client.types.records import ConsumerRecord, OffsetAndMetadata
from protocol.subscription import TopicPartition

Handler = Callable[[ConsumerRecord], Awaitable[Any] | Any]
"""What it returns counts with a producer only: ``Output``s, one, or None."""

_YIELD_EVERY_S: Final = 0.005
"""How long a worker may go on with handlers that wait for nothing before other tasks get a turn."""
_CLEAN_UP_S: Final = 5.0
"""How long a rebalance waits for handlers that were cancelled. A partition is not handled here again before they end."""

log = get_logger()


class Slot:
    """A worker's place among the handlers that may run at once; first come, first served: each partition gets its turn."""

    def __init__(self, slots: asyncio.Semaphore | None) -> None:
        self._slots = slots
        self._taken = False

    async def take(self) -> None:
        """Waits for a place."""
        if self._slots is not None:
            await self._slots.acquire()
            self._taken = True

    def free(self) -> None:
        """Gives it back, if one was taken."""
        if self._slots is not None and self._taken:
            self._taken = False
            self._slots.release()


class PartitionWorker:
    """The task of one partition, and the record its handler works on at the moment."""

    def __init__(self, state: PartitionState, slots: asyncio.Semaphore | None) -> None:
        self.state = state
        self.slot = Slot(slots)
        self.pausing = False
        self.failed_at, self.failures = -1, 0
        self.task: asyncio.Task[None]
        self.woken = asyncio.Event()
        self.record: ConsumerRecord | None = None
        self.ending = False
        self.cancelled = False
        self.interrupted = False
        self.outputs: PreparedOutputs | None = None
        self.round = 0
        self._epoch = 0

    def take_up(self, record: ConsumerRecord) -> None:
        """The handler is about to get ``record``."""
        self.record, self._epoch = record, self.state.epoch

    def put_down(self, *, finished: bool) -> None:
        """The handler is through with its record, or counts no more. Only the first call for a record says which."""
        record, self.record = self.record, None
        if record is None:
            return
        if finished:
            self.state.finish()
        else:
            self.state.give_back(record.offset, self._epoch)

    def end(self) -> None:
        """No other record is taken; without a handler at work the worker ends at once."""
        self.ending = True
        if self.record is None or self.pausing:
            self.cancel()

    @property
    def moved(self) -> bool:
        """Whether the position was moved since the record in work was taken: then it is not to be tried again."""
        return self.state.epoch != self._epoch

    def failed(self, offset: int) -> int:
        """Counts one more failure at ``offset``; how many there were in a row."""
        self.failures = self.failures + 1 if offset == self.failed_at else 1
        self.failed_at = offset
        return self.failures

    def cancel(self) -> None:
        """Cancels the handler, once: a second cancellation would cut short what it does about the first.

        A thread cannot be cancelled. A handler that waits for one by ``asyncio.to_thread`` is cancelled when the thread has
        ended; as long as this task lives, the partition is not handled a second time.
        """
        self.ending = True
        if self.cancelled:
            return
        self.cancelled = True
        thread = _awaited_thread(self.task)
        if thread is None:
            self._interrupt()
        else:
            thread.add_done_callback(lambda _: self._interrupt())

    def _interrupt(self) -> None:
        self.interrupted = True
        self.task.cancel()


class Workers:
    """All workers of one call of ``Consumer.process``; what a rebalance knows as ``Work``.

    ``still_ours`` tells whether the group is settled and leaves a partition with this consumer, ``make_room`` that buffers
    were emptied, ``on_news`` that ``failure`` or the workers have changed. With ``transactions`` what handlers return is
    sent and committed with the offsets of their records.
    """

    def __init__(
        self,
        handler: Handler,
        on_error: OnError | None,
        concurrency: int | None,
        assignment: Assignment,
        *,
        dead_letters: DeadLetters,
        random: Random,
        still_ours: Callable[[PartitionState], bool],
        make_room: Callable[[], None],
        on_news: Callable[[], None],
    ) -> None:
        self.transactions: OutputTransactions | None = None
        self.failure: BaseException | None = None
        self.progress: Progress | None = None
        self.overdue: tuple[ConsumerRecord, float] | None = None
        """Of the last partitions that were lost: the record that was longest in work, and for how many seconds."""
        self._handler = handler
        self._on_error: OnError = "raise" if on_error is None else on_error
        self._dead_letters = dead_letters
        self._random = random
        self._slots = asyncio.Semaphore(concurrency) if concurrency is not None else None
        self._assignment = assignment
        self._still_ours = still_ours
        self._make_room = make_room
        self._on_news = on_news
        self._workers: dict[TopicPartition, PartitionWorker] = {}
        self._stopping = False

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
        if worker is None or worker.record is None or worker.record.offset != record.offset:
            return False
        if self.progress is not None:
            self.progress.lease(seconds, worker)
        return True

    def unfinished(self) -> list[PartitionWorker]:
        """Workers whose handlers go on although nothing waits for them any longer."""
        return [worker for worker in self._workers.values() if not worker.task.done()]

    def wait_out(self, workers: Iterable[PartitionWorker]) -> None:
        """``workers`` of an earlier call are ``unfinished``: their partitions are not handled before they have ended."""
        for worker in workers:
            self._workers[worker.state.tp] = worker
            worker.task.add_done_callback(partial(self._forget, worker))

    def runs_in(self, task: asyncio.Task[None] | None) -> bool:
        """Whether ``task`` is one of the workers: a handler that asked for their end would wait for itself."""
        return any(worker.task is task for worker in self._workers.values())

    def _open(self, state: PartitionState) -> None:
        worker = self._workers[state.tp] = PartitionWorker(state, self._slots)
        worker.task = asyncio.create_task(
            self._run(worker), name=f"cohort-handler-{state.tp.topic}-{state.tp.partition}"
        )
        worker.task.add_done_callback(lambda task: self._closed(worker, task))

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
            record = worker.record
            if record is not None and self.progress is not None:
                seconds = self.progress.end(worker)
                if self.overdue is None or seconds > self.overdue[1]:
                    self.overdue = record, seconds
            worker.cancel()

    async def end(self, deadline: Deadline) -> None:
        """Ends all workers: handlers may finish until ``deadline`` and are cancelled then."""
        self._stopping = True
        try:
            await self._end(list(self._workers.values()), deadline)
        finally:
            await self._dead_letters.stop()

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
        late = [worker for worker in workers if not worker.task.done()]
        for worker in late:
            worker.cancel()
        await _wait_for(late, _CLEAN_UP_S)
        for worker in late:
            if not worker.task.done() and worker.record is not None:
                log.error(
                    "handler_outlasts_revocation",
                    topic=worker.record.topic,
                    partition=worker.record.partition,
                    offset=worker.record.offset,
                    thread=_awaited_thread(worker.task) is not None,
                    hint="it goes on although it was cancelled, and its partition is given up now: another member may "
                    "handle the same record; this one does not before the handler has ended",
                )
                self._let_go(worker)

    def _let_go(self, worker: PartitionWorker) -> None:
        worker.put_down(finished=False)
        if self.progress is not None:
            self.progress.end(worker)

    def fail(self, error: BaseException) -> None:
        """The first failure ends ``process``; the others are logged."""
        if self.failure is None:
            self.failure = error
        else:
            log.error("another_handler_failed", error=str(error), exc_info=error)
        self._stopping = True
        for worker in list(self._workers.values()):
            worker.ending = True
        self._on_news()

    # --- one worker ---------------------------------------------------------------------------------------------------

    async def _run(self, worker: PartitionWorker) -> None:
        loop = asyncio.get_running_loop()
        yield_at_s = loop.time() + _YIELD_EVERY_S
        while not worker.ending:
            worker.woken.clear()
            state = worker.state
            ready = state.buffered_bytes and state.readable and state.error is None and self._assignment.owned()
            if not ready or not (self.transactions is None or self.transactions.accepting):
                await worker.woken.wait()
            else:
                try:
                    await worker.slot.take()
                    await self._handle_next(worker)
                finally:
                    worker.slot.free()
            if loop.time() >= yield_at_s:
                await asyncio.sleep(0)
                yield_at_s = loop.time() + _YIELD_EVERY_S

    async def _handle_next(self, worker: PartitionWorker) -> None:
        transactions = self.transactions
        if worker.ending or not (transactions is None or transactions.accepting):  # while it waited for its turn
            return
        record, error = self._take(worker.state)
        if record is None:
            return
        worker.take_up(record)
        if transactions is not None:
            worker.round = transactions.round
            transactions.take_up(worker.state, record.offset)
        finished = False
        try:
            finished = await self._is_through(worker, record, error)
        finally:
            finished = finished and not worker.interrupted
            if transactions is not None:
                finished = self._hand_over(worker, transactions, finished=finished)
            worker.put_down(finished=finished)
            if self.progress is not None:
                self.progress.end(worker)
            if not finished:
                self._make_room()  # it is to be fetched again

    def _hand_over(self, worker: PartitionWorker, transactions: OutputTransactions, *, finished: bool) -> bool:
        """The outputs of a record that is about to count as done are queued; whether it may, if it is ``finished``."""
        outputs, worker.outputs = worker.outputs, None
        record = worker.record
        if finished and record is not None and worker.round == transactions.round:
            transactions.take_over(worker.state, record.offset, outputs or NO_OUTPUTS)
            return True
        if outputs is not None:
            transactions.discard(outputs)
        return False

    def _take(self, state: PartitionState) -> tuple[ConsumerRecord | None, RecordDeserializationError | None]:
        record = self._assignment.take_for_work(state)
        error = state.error
        if record is None and isinstance(error, RecordDeserializationError):
            record = state.take_undecoded(error.offset)
        else:
            if error is not None:
                self._on_news()
            error = None
        if self._assignment.freed:
            self._make_room()
        return record, error

    async def _is_through(
        self, worker: PartitionWorker, record: ConsumerRecord, undecoded: RecordDeserializationError | None
    ) -> bool:
        """Whether ``record`` is done with: handled, or skipped."""
        while True:
            if self.progress is not None:
                self.progress.begin(worker)
            error: Exception | None = undecoded
            if error is None:
                error = await self._call_handler(worker, record)
            if error is None:
                return True
            if worker.cancelled:
                log.warning("cancelled_handler_failed", error=repr(error), exc_info=error)
                return False
            if isinstance(error, CommitFailedError) and not self._still_ours(worker.state):
                log.info("partition_lost_before_commit", error=str(error))
                worker.ending = True
                return False
            finished = await self._settle(worker, record, error)
            if finished is not None:
                return finished
            if worker.ending or worker.moved or undecoded is not None:
                return False  # it comes again, decoded anew

    async def _call_handler(self, worker: PartitionWorker, record: ConsumerRecord) -> Exception | None:
        """What the handler raised, or what cannot be sent of that which it returned."""
        if self.transactions is None:
            return await call_program("the handler of process()", lambda: self._handler(record))
        returned: Any = None

        async def call() -> None:
            nonlocal returned
            returned = self._handler(record)
            if inspect.isawaitable(returned):
                returned = await returned

        error = await call_program("the handler of process()", call)
        if error is None:
            try:
                worker.outputs = await self.transactions.prepare(returned)
            except Exception as refused:
                error = refused
        return error

    async def _settle(self, worker: PartitionWorker, record: ConsumerRecord, error: Exception) -> bool | None:
        """Does what ``on_error`` says of a failure; whether the record is done with, None when it is to be tried again."""
        failures, what = worker.failed(record.offset), "handler"
        try:
            policy = await self._policy(record, error)
            if isinstance(policy, Retry):
                if not policy.ended_by(failures):
                    await self._pause(worker, record, error, policy, failures)
                    return None
                policy = policy.then
            if isinstance(policy, DeadLetter):
                what = f"writing of a dead letter to {policy.topic!r}"
                await self._keep_aside(worker, policy, worker.state.stored(record), error, failures)
        except _OnErrorFailed as failed:
            what, policy, error = "on_error callback", "raise", failed.error
        except Exception as failed:
            failed.__context__ = failed.__context__ or error
            policy, error = "raise", failed
        if policy != "raise":
            return True
        self.fail(error if isinstance(error, RecordDeserializationError) else _handler_error(what, record, error))
        return False

    async def _keep_aside(
        self, worker: PartitionWorker, letter: DeadLetter, record: ConsumerRecord, error: Exception, failures: int
    ) -> None:
        """Writes a dead letter, or makes it the output of its record."""
        if self.transactions is None:
            await self._dead_letters.write(letter, record, error, failures)
        else:
            output = self._dead_letters.output(letter, record, error, failures)
            worker.outputs = await self.transactions.prepare(output, serialized=True)

    async def _policy(self, record: ConsumerRecord, error: Exception) -> Policy:
        """What ``on_error`` says; "retry" is ``Retry()``. Raises ``_OnErrorFailed`` when it fails itself."""
        on_error = self._on_error
        policy: Policy = "raise"

        async def ask() -> None:
            nonlocal policy
            answer = on_error(record, error) if callable(on_error) else on_error
            policy = checked_policy(await answer if inspect.isawaitable(answer) else answer)

        failed = await call_program("on_error of process()", ask)
        if failed is not None:
            failed.__context__ = failed.__context__ or error
            raise _OnErrorFailed(failed)
        return Retry() if policy == "retry" else policy

    async def _pause(
        self, worker: PartitionWorker, record: ConsumerRecord, error: Exception, retry: Retry, failures: int
    ) -> None:
        """The time before the next attempt: it takes up no slot, and counts as no work."""
        seconds = retry.pause_s(failures, self._random)
        if failures & (failures - 1) == 0:  # the first, second, fourth, eighth ...: what fails for hours fills no log
            log.warning(
                "handler_retried",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                failures=failures,
                of=retry.attempts,
                pause_ms=round(seconds * 1000),
                error=repr(error),
            )
        if self.progress is not None:
            self.progress.end(worker)
        worker.slot.free()
        if not worker.ending:
            worker.pausing = True
            try:
                await asyncio.sleep(seconds)
                await worker.slot.take()
            finally:
                worker.pausing = False


class _OnErrorFailed(Exception):
    """The program's ``on_error`` has raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(repr(error))
        self.error = error


def _handler_error(what: str, record: ConsumerRecord, error: Exception) -> HandlerError:
    raised = HandlerError(
        f"the {what} failed on the record at offset {record.offset} of {record.topic}-{record.partition}: {error!r}. The "
        "record is not done: it comes first when process() is called again, or goes to the partition's next owner; on_error "
        f"can skip it or keep it in a DeadLetter topic, and seek(tp, {record.offset + 1}) passes over it",
        record.topic,
        record.partition,
        record.offset,
    )
    raised.__cause__ = error
    return raised


def _awaited_thread(task: asyncio.Task[None]) -> asyncio.Future[Any] | None:
    """What ``asyncio.to_thread`` waits for in ``task``, directly or through coroutines and tasks that it awaits, if it does.

    A future does not say so itself, so this follows what each coroutine awaits. Several tasks at once (``gather``) are not
    looked into, and in what else runs in an executor nothing tells a thread from a process.
    """
    awaited: Any = task
    in_thread = False
    while True:
        if isinstance(awaited, asyncio.Task):
            awaited, in_thread = awaited.get_coro(), False
        elif inspect.iscoroutine(awaited):
            in_thread = awaited.cr_code is asyncio.to_thread.__code__
            inner = None
            if awaited.cr_code is asyncio.wait_for.__code__ and awaited.cr_frame is not None:
                inner = awaited.cr_frame.f_locals.get("fut")
            awaited = inner if isinstance(inner, asyncio.Task) else awaited.cr_await  # Python 3.11 makes a task of it
        else:
            futures = [each for each in gc.get_referents(awaited) if asyncio.isfuture(each)] if awaited else []
            if len(futures) != 1:
                return None
            if in_thread:
                return futures[0]
            if not isinstance(futures[0], asyncio.Task):
                return None
            awaited = futures[0]


async def _wait_for(workers: list[PartitionWorker], timeout_s: float) -> None:
    tasks = [worker.task for worker in workers if not worker.task.done()]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
