"""A task that has a handler work on records: what it has in work, and how its work ends."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, Final, NamedTuple

from client.consumer.partition import FetchedBatch, PartitionState
from client.errors import RecordDeserializationError
from client.producer.outputs import PreparedOutputs
from client.types.records import ConsumerRecord
from client.types.spans import ProcessSpan

_KEYED_RECORDS: Final = 1_000
"""How many records of a partition are taken, from the first that is not done on, when those of different keys overtake each
other: all of them come again when the process dies."""
_KEYED_BYTES: Final = 1024 * 1024
"""How many bytes of a partition, as they are stored, wait for their turn then or are in work: as much as a fetch brings."""


class Slot:
    """A task's place among the handlers that may run at once; first come, first served: each partition gets its turn."""

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


class HandlerTask:
    """A task that calls the handler for one record, or one batch, after the other.

    ``records`` are those in work, ``origins`` the batches that they came from. ``pausing``: the handler is not at work on
    them at the moment. Failures of the same record are counted in ``failures``. ``span`` is that of the latest call, of a
    consumer that is traced.
    """

    decodes_anew = False
    """Whether a record that could not be decoded is decoded anew from its batch, and not from what is fetched anew."""

    def __init__(self, state: PartitionState, slots: asyncio.Semaphore | None) -> None:
        self.state = state
        self.slot = Slot(slots)
        self.pausing = False
        self.failed_at, self.failures = -1, 0
        self.task: asyncio.Task[None]
        self.records: list[ConsumerRecord] = []
        self.origins: list[FetchedBatch] = []
        self.ending = False
        self.cancelled = False
        self.interrupted = False
        self.outputs: PreparedOutputs | None = None
        self.span: ProcessSpan | None = None
        self.round = 0
        self._epoch = 0

    @property
    def record(self) -> ConsumerRecord | None:
        """The first record in work, if there is one."""
        return self.records[0] if self.records else None

    @property
    def moved(self) -> bool:
        """Whether the position was moved since the records in work were taken: then they are not to be tried again."""
        return self.state.epoch != self._epoch

    def take_up(self, records: list[ConsumerRecord], origins: list[FetchedBatch]) -> None:
        """The handler is about to get ``records``."""
        self.records, self.origins, self._epoch = records, origins, self.state.epoch

    def put_down(self, *, finished: bool) -> None:
        """The handler is through with its records, or counts no more. Only the first call for them says which."""
        records = self.records
        if not records:
            return
        self.records, self.origins = [], []
        if finished:
            self.state.finish(records[0].offset, self._epoch)
        else:
            self._give_back(self._epoch)

    def _give_back(self, epoch: int) -> None:
        self.state.give_back(epoch)

    def halt(self) -> None:
        """No other record of the partition is taken; the handler at work goes on."""
        self.ending = True

    def end(self) -> None:
        """No other record is taken; without a handler at work the task ends at once."""
        self.halt()
        if not self.records or self.pausing:
            self.cancel()

    def failed(self, offset: int) -> int:
        """Counts one more failure at ``offset``; how many there were in a row."""
        self.failures = self.failures + 1 if offset == self.failed_at else 1
        self.failed_at = offset
        return self.failures

    def stored(self, record: ConsumerRecord) -> ConsumerRecord:
        """``record``, which is in work, with the bytes that are stored."""
        for origin in self.origins:
            if origin.header.base_offset <= record.offset < origin.header.next_offset:
                return self.state.stored(record, origin)
        return record

    def cancel(self) -> None:
        """Cancels the handler, once: a second cancellation would cut short what it does about the first.

        A thread cannot be cancelled. A handler in one, or that waits for one by ``asyncio.to_thread``, is cancelled when the
        thread has ended; as long as this task lives, the record is not handled a second time.
        """
        self.ending = True
        if self.cancelled:
            return
        self.cancelled = True
        thread = self.thread
        if thread is None:
            self._interrupt()
        else:
            thread.add_done_callback(lambda _: self._interrupt())

    @property
    def thread(self) -> asyncio.Future[Any] | None:
        """What the handler waits for in a thread, if it does."""
        return _awaited_thread(self.task)

    def _interrupt(self) -> None:
        self.interrupted = True
        self.task.cancel()


class PartitionWorker(HandlerTask):
    """The task of one partition: it has the partition's records handled one after the other, or batch by batch."""

    def __init__(self, state: PartitionState, slots: asyncio.Semaphore | None) -> None:
        super().__init__(state, slots)
        self.woken = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether none of its handlers run, and none will."""
        return self.task.done()

    def tasks(self) -> list[HandlerTask]:
        """Those that call handlers."""
        return [self]

    def let_go(self) -> None:
        """What is in work counts no more, although its handlers go on."""
        self.put_down(finished=False)


class QueuedRecord(NamedTuple):
    """A record that waits for those of the same key before it; what it was taken with."""

    record: ConsumerRecord
    undecoded: RecordDeserializationError | None
    origin: FetchedBatch
    epoch: int

    @property
    def bytes(self) -> int:
        """What it takes in the log, on average over its batch."""
        header = self.origin.header
        return header.length // max(1, header.record_count)


class KeyLane(HandlerTask):
    """The task of one key of a partition, as long as records of that key are in work or wait."""

    decodes_anew = True  # fetching it anew would hand out again what others have behind it

    def __init__(self, worker: KeyedWorker, key: bytes | int, slots: asyncio.Semaphore | None) -> None:
        super().__init__(worker.state, slots)
        self.worker = worker
        self.key = key
        self.queue: deque[QueuedRecord] = deque()
        self.started = False
        self._taken: QueuedRecord | None = None

    def add(self, queued: QueuedRecord) -> None:
        """It waits from now on."""
        self.worker.held_bytes += queued.bytes
        self.queue.append(queued)

    def next(self) -> RecordDeserializationError | None:
        """Takes up the next record of the queue; returns why it was not decoded, if it was not."""
        self._taken = queued = self.queue.popleft()
        self.take_up([queued.record], [queued.origin])
        self._epoch = queued.epoch
        return queued.undecoded

    def put_down(self, *, finished: bool) -> None:
        """As ``HandlerTask.put_down``; and there is room for another record.

        What is neither done nor given up, as its handler was cancelled by the program itself, is the first to be handled
        next: given back to the partition it would be a gap, behind which nothing is committed until the partition goes.
        """
        taken, self._taken = self._taken, None
        if taken is not None and self.records:
            if not finished and not self.ending and not self.moved:
                self.records, self.origins = [], []
                self.queue.appendleft(taken)
                return
            self.worker.held_bytes -= taken.bytes
            self.worker.woken.set()
        super().put_down(finished=finished)

    def halt(self) -> None:
        """No other record of the partition is taken, and none that waits is begun."""
        self.worker.halt()

    def drop_queue(self) -> None:
        """What waits is not handled."""
        while self.queue:
            self.drop_first()

    def drop_first(self) -> None:
        """The record that waits longest is not handled."""
        queued = self.queue.popleft()
        self.worker.held_bytes -= queued.bytes
        self.state.drop(queued.epoch)

    def end(self) -> None:
        """Nothing that waits is begun; without a handler at work the task ends at once."""
        self.ending = True
        self.drop_queue()
        if not self.records or self.pausing:
            self.cancel()

    def _give_back(self, epoch: int) -> None:
        self.state.set_aside(epoch)


class KeyedWorker(PartitionWorker):
    """The worker of one partition whose records are handled in the order of each key: it hands them to lanes.

    Its task ends when those of all lanes have.
    """

    def __init__(self, state: PartitionState, slots: asyncio.Semaphore | None) -> None:
        super().__init__(state, slots)
        self.lanes: dict[bytes | int, KeyLane] = {}
        self._slots = slots
        self.held_bytes = 0
        self.has_ended = False
        """Whether the task has ended by itself: one that the program cancels has a successor."""

    @property
    def is_over(self) -> bool:
        """See ``PartitionWorker``."""
        return self.has_ended

    @property
    def has_room(self) -> bool:
        """Whether another record may be taken."""
        return len(self.state.work) < _KEYED_RECORDS and self.held_bytes < _KEYED_BYTES

    def lane(self, key: bytes | None, offset: int) -> KeyLane:
        """The lane for the record at ``offset``. Records without a key have no order, and so each a lane of its own."""
        name = offset if key is None else key
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = KeyLane(self, name, self._slots)
        return lane

    def close(self, lane: KeyLane) -> None:
        """The task of ``lane`` has nothing left to do: the next record of its key gets another."""
        lane.drop_queue()
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
        self.woken.set()

    def tasks(self) -> list[HandlerTask]:
        """The lanes."""
        return list(self.lanes.values())

    def halt(self) -> None:
        """No other record is taken, and none that waits is begun."""
        self.ending = True
        for lane in self.lanes.values():
            lane.ending = True
        self.woken.set()

    def end(self) -> None:
        """No other record is taken, and none that waits is begun; without handlers at work the task ends soon."""
        self.halt()
        for lane in list(self.lanes.values()):
            lane.end()

    def cancel(self) -> None:
        """Cancels the handlers of all lanes, each once."""
        self.halt()
        self.cancelled = True
        for lane in list(self.lanes.values()):
            lane.drop_queue()
            lane.cancel()

    def let_go(self) -> None:
        """What is in work counts no more, although its handlers go on."""
        for lane in self.lanes.values():
            lane.drop_queue()
            lane.put_down(finished=False)
        self.state.give_back_all()


async def in_thread(pool: Executor, handler: Callable[[Any], Any], records: Any) -> Any:
    """What ``handler`` returns, called in a thread of ``pool`` with the context of this task."""
    loop = asyncio.get_running_loop()
    returned = await loop.run_in_executor(pool, copy_context().run, _called, handler, records)
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise TypeError("a handler that is called in a thread must be a plain function, but it returned an awaitable")
    return returned


def _called(handler: Callable[[Any], Any], records: Any) -> Any:
    try:
        return handler(records)
    except StopIteration as error:  # no future takes one: what waits for it would wait for ever
        raise RuntimeError(f"the handler raised {error!r}") from error


_IN_THREADS: Final = (asyncio.to_thread.__code__, in_thread.__code__)


def _awaited_thread(task: asyncio.Task[None]) -> asyncio.Future[Any] | None:
    """What ``asyncio.to_thread`` or ``in_thread`` waits for in ``task``, directly or through coroutines and tasks.

    A future does not say so itself, so this follows what each coroutine awaits. Several tasks at once (``gather``) are not
    looked into, and in what else runs in an executor nothing tells a thread from a process.
    """
    awaited: Any = task
    in_a_thread = False
    while True:
        if isinstance(awaited, asyncio.Task):
            awaited, in_a_thread = awaited.get_coro(), False
        elif inspect.iscoroutine(awaited):
            in_a_thread = awaited.cr_code in _IN_THREADS
            inner = None
            if awaited.cr_code is asyncio.wait_for.__code__ and awaited.cr_frame is not None:
                inner = awaited.cr_frame.f_locals.get("fut")
            awaited = inner if isinstance(inner, asyncio.Task) else awaited.cr_await  # Python 3.11 makes a task of it
        else:
            futures = [each for each in gc.get_referents(awaited) if asyncio.isfuture(each)] if awaited else []
            if len(futures) != 1:
                return None
            if in_a_thread:
                return futures[0]
            if not isinstance(futures[0], asyncio.Task):
                return None
            awaited = futures[0]
