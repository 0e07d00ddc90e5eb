"""Calls of the handler of ``process``, in the program's own way, and what is done about those that fail."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any

from client.consumer.assignment import Assignment
from client.consumer.error_policy import DeadLetter, DeadLetters, OnBatchError, OnError, Policy, Retry, checked_policy
from client.consumer.handler_task import HandlerTask, in_thread
from client.consumer.partition import PartitionState
from client.consumer.transforming import OutputTransactions
from client.errors import CommitFailedError, HandlerError, RecordDeserializationError
from client.group import Progress, call_program
from client.log import get_logger
from client.types.records import ConsumerRecord, Output
from client.types.spans import Spans

Handler = Callable[[Any], Awaitable[Any] | Any]
"""Of a record, or of a list of them where batches are handled. What it returns counts with a producer only: ``Output``s,
one, or None."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How many records a handler of batches gets at most, and how long they may wait for more of their partition."""

    max_records: int
    max_wait_ms: float


class HandlerCalls:
    """The handler of one call of ``process``, or of ``process_batch`` with ``batch``.

    ``pool`` has threads for handlers that are plain functions; None calls them on the event loop. ``still_ours`` tells
    whether the group is settled and leaves a partition with this consumer. ``fail`` is told what ends ``process``. With
    ``transactions`` what handlers return is sent, and so are dead letters. ``spans`` is told of the calls; None where nobody
    traces.
    """

    def __init__(
        self,
        handler: Handler,
        on_error: OnError | OnBatchError | None,
        assignment: Assignment,
        *,
        batch: BatchLimits | None = None,
        pool: Executor | None = None,
        dead_letters: DeadLetters,
        random: Random,
        still_ours: Callable[[PartitionState], bool],
        spans: Spans | None = None,
    ) -> None:
        self.batch = batch
        self.transactions: OutputTransactions | None = None
        self.progress: Progress | None = None
        self.fail: Callable[[BaseException], None] = _unheard
        self._handler = handler
        self._on_error: OnError | OnBatchError = "raise" if on_error is None else on_error
        self._assignment = assignment
        self._pool = pool
        self._dead_letters = dead_letters
        self._random = random
        self._still_ours = still_ours
        self._spans = spans
        self._by_record = batch is None and pool is None
        self._what = "the handler of process()" if batch is None else "the handler of process_batch()"

    async def close(self) -> None:
        """The last call has ended."""
        await self._dead_letters.stop()

    async def are_done(self, task: HandlerTask, undecoded: RecordDeserializationError | None) -> bool:
        """Whether the records in work of ``task`` are done with: handled, or skipped."""
        while True:
            if self.progress is not None:
                self.progress.begin(task)
            error: Exception | None = undecoded
            if error is None:
                error = await (
                    self._call_handler(task) if self._spans is None else self._call_in_span(task, self._spans)
                )
            else:
                task.span = None
            if error is None:
                return True
            if task.cancelled:
                log.warning("cancelled_handler_failed", error=repr(error), exc_info=error)
                return False
            if isinstance(error, CommitFailedError) and not self._still_ours(task.state):
                log.info("partition_lost_before_commit", error=str(error))
                task.halt()
                return False
            finished = await self._settle(task, error)
            if finished is not None:
                return finished
            if task.ending or task.moved or (undecoded is not None and not task.decodes_anew):
                return False  # it comes again, decoded anew
            if undecoded is not None:
                (record,), (origin,) = task.records, task.origins
                task.records[0], undecoded = self._assignment.decoded_anew(task.state, record, origin)

    def _call(self, records: list[ConsumerRecord]) -> Awaitable[Any] | Any:
        given = records[0] if self.batch is None else list(records)  # what the handler does to its list is its own
        if self._pool is not None:
            return in_thread(self._pool, self._handler, given)
        return self._handler(given)

    async def _call_in_span(self, task: HandlerTask, spans: Spans) -> Exception | None:
        """``_call_handler`` in a span, as what handlers return is sent in."""
        with spans.process(task.records, batch=self.batch is not None) as span:
            task.span = span
            error = await self._call_handler(task)
            if error is not None:
                span.failed(error)
        return error

    async def _call_handler(self, task: HandlerTask) -> Exception | None:
        """What the handler raised, or what cannot be sent of that which it returned."""
        records = task.records
        if self.transactions is None:
            if self._by_record:  # the usual case, with one call less
                handler, record = self._handler, records[0]
                return await call_program(self._what, lambda: handler(record))
            return await call_program(self._what, lambda: self._call(records))
        returned: Any = None

        async def call() -> None:
            nonlocal returned
            returned = self._call(records)
            if inspect.isawaitable(returned):
                returned = await returned

        error = await call_program(self._what, call)
        if error is None:
            try:
                task.outputs = await self.transactions.prepare(returned)
            except Exception as refused:
                error = refused
        return error

    async def _settle(self, task: HandlerTask, error: Exception) -> bool | None:
        """Does what ``on_error`` says of a failure; whether the records are done with, None when they are tried again."""
        records = task.records
        failures, what = task.failed(records[0].offset), "handler"
        try:
            policy = await self._policy(records, error)
            if isinstance(policy, Retry):
                if not policy.ended_by(failures):
                    await self._pause(task, error, policy, failures)
                    return None
                policy = policy.then
            if isinstance(policy, DeadLetter):
                what = f"writing of a dead letter to {policy.topic!r}"
                stored = [task.stored(record) for record in records]
                with nullcontext() if self._spans is None else self._spans.following(task.span, records[0]):
                    await self._keep_aside(task, policy, stored, error, failures)
        except _OnErrorFailed as failed:
            what, policy, error = "on_error callback", "raise", failed.error
        except Exception as failed:
            failed.__context__ = failed.__context__ or error
            policy, error = "raise", failed
        if policy != "raise":
            return True
        self.fail(error if isinstance(error, RecordDeserializationError) else _handler_error(what, records, error))
        return False

    async def _keep_aside(
        self,
        task: HandlerTask,
        letter: DeadLetter,
        records: Sequence[ConsumerRecord],
        error: Exception,
        failures: int,
    ) -> None:
        """Writes dead letters, or makes them the outputs of their records."""
        if self.transactions is None:
            await self._dead_letters.write(letter, records, error, failures)
        else:
            outputs: list[Output] = [self._dead_letters.output(letter, record, error, failures) for record in records]
            task.outputs = await self.transactions.prepare(outputs, serialized=True)

    async def _policy(self, records: list[ConsumerRecord], error: Exception) -> Policy:
        """What ``on_error`` says; "retry" is ``Retry()``. Raises ``_OnErrorFailed`` when it fails itself."""
        on_error = self._on_error
        policy: Policy = "raise"
        given: Any = records[0] if self.batch is None else list(records)

        async def ask() -> None:
            nonlocal policy
            answer = on_error(given, error) if callable(on_error) else on_error
            policy = checked_policy(await answer if inspect.isawaitable(answer) else answer)

        failed = await call_program("on_error of process()", ask)
        if failed is not None:
            failed.__context__ = failed.__context__ or error
            raise _OnErrorFailed(failed)
        return Retry() if policy == "retry" else policy

    async def _pause(self, task: HandlerTask, error: Exception, retry: Retry, failures: int) -> None:
        """The time before the next attempt: it takes up no slot, and counts as no work."""
        seconds = retry.pause_s(failures, self._random)
        if failures & (failures - 1) == 0:  # the first, second, fourth, eighth ...: what fails for hours fills no log
            log.warning(
                "handler_retried",
                topic=task.records[0].topic,
                partition=task.records[0].partition,
                offset=task.records[0].offset,
                records=len(task.records),
                failures=failures,
                of=retry.attempts,
                pause_ms=round(seconds * 1000),
                error=repr(error),
            )
        if self.progress is not None:
            self.progress.end(task)
        task.slot.free()
        if not task.ending:
            task.pausing = True
            try:
                await asyncio.sleep(seconds)
                await task.slot.take()
            finally:
                task.pausing = False


class _OnErrorFailed(Exception):
    """The program's ``on_error`` has raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(repr(error))
        self.error = error


def _unheard(error: BaseException) -> None:
    raise error


def _handler_error(what: str, records: Sequence[ConsumerRecord], error: Exception) -> HandlerError:
    first, last = records[0], records[-1]
    many = len(records) > 1
    which = f"records at offsets {first.offset} to {last.offset}" if many else f"record at offset {first.offset}"
    they, it = ("records are", "them") if many else ("record is", "it")
    come, go = ("they come", "go") if many else ("it comes", "goes")
    raised = HandlerError(
        f"the {what} failed on the {which} of {first.topic}-{first.partition}: {error!r}. The {they} not done: {come} first "
        f"when process() is called again, or {go} to the partition's next owner; on_error can skip {it} or keep {it} in a "
        f"DeadLetter topic, and seek(tp, {last.offset + 1}) passes over {it}",
        first.topic,
        first.partition,
        first.offset,
    )
    raised.__cause__ = error
    return raised
