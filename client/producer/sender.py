"""Carries out on an event loop what ``ProducerCore`` decides: requests, their answers and timeouts, pauses and expiry.

All decisions fall in ``_drain``, at most once a turn of the loop, and when an answer comes. A request has a task only if
it must wait before it is sent, or for newer metadata after its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from client.errors import CohortError, ConnectionLostError, RequestTimedOutError, copy_of
from client.log import get_logger
from client.producer.acknowledgements import UnretrievedFailures, deliver, fail
from client.producer.batch import ProducerBatch
from client.producer.buffer_pool import BufferPool
from client.producer.config import SenderSettings
from client.producer.core import Answers, ProducerCore
from client.producer.errors import name_of, records
from client.producer.partition_queue import PartitionQueue, PartitionQueues
from client.producer.produce_request import InFlightRequest, answers_of
from client.producer.producer_id import IdentityFetcher
from client.producer.sequences import ProducerIdentity
from client.transport.cluster import Cluster
from client.transport.connection import Frame, ToldExchange
from client.transport.deadline import Deadline
from protocol.messages.records import PartitionProduceResponse, ProduceResponse
from protocol.subscription import TopicPartition

log = get_logger()

_ATTEMPTS_TO_WARN: Final = 8
"""Failures in a row, about three seconds of them, after which the log says what a producer waits for."""
_MOVED_S: Final = 0.5
"""A node that led a partition has so long to answer what it was sent before, once another leads it."""
_QUIET_S: Final = 30.0
"""A producer says so at most this often, whatever number of partitions has the trouble."""

Request = InFlightRequest[ProducerBatch]


@dataclass(slots=True)
class SenderCounts:
    """What became of batches since the producer was started."""

    records_acknowledged: int = 0
    records_failed: int = 0
    batches_acknowledged: int = 0
    retries: int = 0


class Sender:
    """Sends what ``queues`` hold, settles the batches and gives their bytes back to ``pool``."""

    def __init__(
        self,
        cluster: Cluster,
        queues: PartitionQueues[ProducerBatch],
        pool: BufferPool,
        settings: SenderSettings,
        identity: ProducerIdentity | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self.on_failure: Callable[[CohortError], None] | None = None
        """Called with the error of each batch that fails."""
        self._transactional_id = transactional_id
        self._cluster = cluster
        self._queues = queues
        self._pool = pool
        self._settings = settings
        self._core = ProducerCore(cluster, queues, settings, identity, cluster.backoff.delay_s, self)
        self._loop = asyncio.get_running_loop()
        self._exchanges: dict[Request, ToldExchange[ProduceResponse]] = {}
        self._calls: dict[asyncio.Task[None], Request] = {}  # in order: a simulation replays how they are cancelled
        self._call_name = f"cohort-produce-{cluster.client_id}"
        self._unretrieved = UnretrievedFailures(cluster.client_id)
        self._identity = None
        if identity is not None and not identity.transactional:
            timeout_ms = min(settings.request_timeout_s, settings.delivery_timeout_s) * 1000
            self._identity = IdentityFetcher(cluster, identity, timeout_ms, self.wake, self._without_identity)
        self._withholding = False
        self._withheld: list[tuple[ProducerBatch, CohortError]] = []  # they failed, perhaps: their transaction tells
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until = self._loop.time()
        self._closed = False
        self.counts = SenderCounts()

    def wake(self) -> None:
        """Looks for batches to send at the loop's next turn."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain_if_scheduled)

    def leaders_changed(self) -> None:
        """There is a new picture of the cluster: looks for what is to be sent elsewhere."""
        self.wake()
        moved = [request for request in self._under_way() if self._core.has_moved(request)]
        if any(self._cluster.is_silent(request.leader) for request in moved):
            self._give_up_moved()
        elif moved:
            self._loop.call_later(_MOVED_S, self._give_up_moved)

    def _under_way(self) -> list[Request]:
        return [*self._exchanges, *self._calls.values()]

    def _give_up_moved(self) -> None:
        """What is in flight to nodes that do not lead it any more, and may never answer, is sent to those that do."""
        if self._closed:
            return
        now = self._loop.time()
        for request in self._under_way():
            if self._core.has_moved(request) and self._core.give_up_moved(request, now):
                exchange = self._exchanges.pop(request, None)
                if exchange is not None:
                    exchange.cancel()
                for call in [call for call, of in self._calls.items() if of is request]:
                    call.cancel()
        self.wake()

    def is_slow(self, partition: TopicPartition) -> bool:
        """See ``ProducerCore.is_slow``."""
        return self._core.is_slow(partition)

    async def flush(self, timeout_s: float | None) -> None:
        """Waits until every batch that is queued now is settled; nothing lingers meanwhile.

        Raises ``RequestTimedOutError`` after ``timeout_s`` seconds. Without a limit the delivery timeout bounds it.
        """
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        last = {queue: queue.last_place for queue in self._queues.all if queue.batches or queue.in_flight}
        with self._queues.no_linger():
            while left := [
                batch for queue, place in last.items() for batch in queue.all_batches() if batch.place <= place
            ]:
                for batch in left:  # halves of one that is too large take its place: look again
                    batch.settled = batch.settled or self._loop.create_future()
                self.wake()
                remaining_s = None if deadline is None else deadline - self._loop.time()
                _, late = await asyncio.wait([batch.settled for batch in left if batch.settled], timeout=remaining_s)
                if late:
                    count = self._queues.records()
                    raise RequestTimedOutError(
                        f"flush: {records(count)} {'is' if count == 1 else 'are'} not acknowledged after {timeout_s} s and "
                        f"{'stays' if count == 1 else 'stay'} queued until delivery_timeout_ms is over"
                    )

    async def send_all(self) -> bool:
        """Returns once every batch that is queued was sent; none waits for more records, nor for the answer to another
        unless it has to. False when something is not on its way yet, as there is no connection."""
        self._queues.close_batches()
        while True:
            self._drain()
            if not self._queues.unsent:
                return not self._calls
            unsettled = [batch for queue in self._queues.all for batch in queue.all_batches()]
            for batch in unsettled:
                batch.settled = batch.settled or self._loop.create_future()
            await asyncio.wait(
                [batch.settled for batch in unsettled if batch.settled], return_when=asyncio.FIRST_COMPLETED
            )

    def unacknowledged(self) -> dict[TopicPartition, int] | None:
        """See ``ProducerCore.unacknowledged``."""
        return self._core.unacknowledged()

    @property
    def unsettled(self) -> bool:
        """Whether what became of some record is not told yet, in a transaction."""
        return bool(self._withheld) or self._core.unsettled

    def withhold_failures(self) -> None:
        """The transaction is being committed: that a record failed is told by ``stored`` or ``abandon``, whichever it is.

        What this producer takes for failed may be stored, and committed.
        """
        self._withholding = True

    def stored(self) -> None:
        """The transaction is committed: every record of it is stored, whatever was heard of it."""
        self._withholding = False
        withheld, self._withheld = self._withheld, []
        if self._core.unsettled:
            self._forget_requests()
            self._core.stored()
        for batch, _ in withheld:
            self.acknowledged(batch, -1, -1)

    def abort(self) -> None:
        """Ends every request in flight and fails what is left with ``ClosedError``, at once; ``close`` waits for the end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._forget_requests()
        self._tell_withheld()
        self._core.close()
        self._pool.close("the producer was stopped")
        if self._identity is not None:
            self._identity.abort()

    def abandon(self, why: Callable[[], CohortError], *, in_doubt: bool = False) -> None:
        """Fails every record that is not acknowledged: their transaction is aborted. See ``ProducerCore.abandon``.

        Of one that is ``in_doubt`` no error counts that was withheld: it may be committed.
        """
        self._forget_requests()
        self._tell_withheld(why if in_doubt else None)
        self._core.abandon(lambda batch: why())

    def _tell_withheld(self, why: Callable[[], CohortError] | None = None) -> None:
        self._withholding = False
        withheld, self._withheld = self._withheld, []
        for batch, error in withheld:
            self.failed(batch, error if why is None else why())

    def _forget_requests(self) -> None:
        """No answer to a request in flight is heard any more."""
        for call in self._calls:
            call.cancel()
        for exchange in self._exchanges.values():
            exchange.cancel()
        self._exchanges.clear()

    async def close(self) -> None:
        """``abort``, and waits until nothing of it runs any more. May be cancelled and called again."""
        self.abort()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if self._identity is not None:
            await self._identity.close()
        await asyncio.sleep(0)  # those who wait for the futures that failed just now look at them
        self._unretrieved.report()

    def _drain_if_scheduled(self) -> None:
        if self._scheduled:  # not done meanwhile
            self._drain()

    def _drain(self) -> None:
        """Makes requests of the batches that may leave now."""
        self._scheduled = False
        if self._closed:
            return
        if self._identity is not None:
            self._identity.fetch_if_needed()
        now = self._loop.time()
        for request in self._core.drain(now):
            self._start(request)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_drain = self._core.next_drain
        if next_drain <= now:
            self.wake()
        elif next_drain < float("inf"):
            self._timer = self._loop.call_at(next_drain, self.wake)

    def _start(self, request: Request) -> None:
        """Sends a request at once where nothing has to be waited for; else a task does."""
        connection = self._cluster.open_connection(request.leader)
        exchange = None
        if connection is not None and self._settings.acks != 0:
            frame, tell = self._frame(request), partial(self._told, request)
            try:
                exchange = connection.begin("Produce", frame, ProduceResponse, tell, timeout_s=request.timeout_s)
            except Exception as error:  # the task meets it again, where it can be told
                log.debug("produce_request_put_off", client_id=self._cluster.client_id, error=repr(error))
        if exchange is None:
            self._run(request, self._call(request))
        else:
            self._exchanges[request] = exchange

    def _frame(self, request: Request) -> Frame:
        return partial(request.encode, acks=self._settings.acks, transactional_id=self._transactional_id)

    def _told(self, request: Request, outcome: ProduceResponse | Exception) -> None:
        """The answer to a request that was sent at once, or the error in its place."""
        del self._exchanges[request]
        with self._settled(request):
            if isinstance(outcome, Exception):
                raise outcome
            answers = self._heard(outcome)
            if self._core.answered(request, answers, self._loop.time()):
                self._run(request, self._refreshed(request, answers))
        if self._queues.unsent:
            self.wake()

    async def _call(self, request: Request) -> None:
        """The life of a request that cannot be sent at once."""
        with self._settled(request):
            response = await self._send(request)
            if response is None:  # without acks: it was sent, and no more is known
                partitions = [part.queue.partition for part in request.left]
                answers: Answers = {
                    partition: PartitionProduceResponse(partition.partition, 0) for partition in partitions
                }
            else:
                answers = self._heard(response)
            if self._core.answered(request, answers, self._loop.time()):
                await self._refreshed(request, answers)

    def _heard(self, response: ProduceResponse) -> Answers:
        if response.node_endpoints:  # before anything is decided: what is sent again goes there
            self._cluster.learn_leaders(response)
        return answers_of(response)

    async def _refreshed(self, request: Request, answers: Answers) -> None:
        """Settles with newer metadata what the leader does not know: it was deleted, or is only not there yet."""
        left_s = self._core.seconds_left(request.left, self._loop.time())
        try:
            await self._cluster.refresh(Deadline(max(0.0, min(self._settings.request_timeout_s, left_s)) * 1000))
        except CohortError as error:
            log.debug("metadata_not_refreshed", client_id=self._cluster.client_id, error=str(error))
        with self._settled(request):
            self._core.answered(request, answers, self._loop.time(), refreshed=True)

    @contextmanager
    def _settled(self, request: Request) -> Iterator[None]:
        """Has a request settled by what is raised inside: whatever goes wrong, no future is left without an outcome."""
        try:
            yield
        except CohortError as error:
            self._core.lost(request, error, self._loop.time())
        except Exception as error:
            log.exception("produce_request_failed_unexpectedly", client_id=self._cluster.client_id)
            failure = CohortError(f"the producer failed unexpectedly: {error!r}")
            self._core.lost(request, failure, self._loop.time())

    def _run(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        call = asyncio.create_task(work, name=self._call_name)
        self._calls[call] = request
        call.add_done_callback(partial(self._ended, request))

    def _ended(self, request: Request, call: asyncio.Task[None]) -> None:
        self._calls.pop(call, None)
        # Cancelled, and not by this sender, which would be closed: by a program that cancels all tasks.
        error = ConnectionLostError("the program cancelled the task that waited for the answer")
        self._core.lost(request, error, self._loop.time())
        self.wake()

    async def _send(self, request: Request) -> ProduceResponse | None:
        """Connects, waits until the connection takes more, and sends; gives the answer, if there is one."""
        until = self._loop.time() + request.timeout_s
        try:
            async with asyncio.timeout_at(until):
                connection = await self._cluster.connection_to(request.leader)
        except TimeoutError as error:
            raise RequestTimedOutError(f"no connection within {request.timeout_s * 1000:.0f} ms") from error
        request.timeout_s = timeout_s = max(0.001, until - self._loop.time())
        frame = self._frame(request)
        if self._settings.acks == 0:
            await connection.send_only("Produce", frame, timeout_s=timeout_s)
            return None
        return await connection.request_frame("Produce", frame, ProduceResponse, timeout_s=timeout_s)

    def _without_identity(self, error: CohortError) -> None:
        """Nothing can be sent without an id, and waiting for one counts against the delivery timeout."""
        self._core.why_no_identity = error
        self.wake()

    def acknowledged(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        """Called by the core."""
        self.counts.batches_acknowledged += 1
        self.counts.records_acknowledged += batch.count
        deliver(batch.waiters, batch.timestamps_ms, batch.partition, base_offset, log_append_time_ms)
        self._release(batch)

    def failed(self, batch: ProducerBatch, error: CohortError) -> None:
        """Called by the core."""
        if self._withholding and self.on_failure is not None:
            self._withheld.append((batch, error))
            if batch.settled is not None and not batch.settled.done():
                batch.settled.set_result(None)
            self.on_failure(error)
            return
        self.counts.records_failed += batch.count
        futures = fail(batch.waiters, lambda: copy_of(error))
        if self.on_failure is None:
            self._unretrieved.add(batch.partition, error, futures)
        else:
            for future in futures:
                future.exception()  # the transaction tells of it
            self.on_failure(error)
        self._release(batch)

    def retrying(self, queue: PartitionQueue[ProducerBatch], error: CohortError) -> None:
        """Called by the core."""
        self.counts.retries += 1
        if queue.attempts >= _ATTEMPTS_TO_WARN and self._loop.time() >= self._quiet_until:
            self._quiet_until = self._loop.time() + _QUIET_S
            log.warning(
                "records_sent_again", partition=name_of(queue.partition), attempts=queue.attempts, error=str(error)
            )

    def _release(self, batch: ProducerBatch) -> None:
        self._pool.release(batch.reserved)
        if batch.settled is not None and not batch.settled.done():
            batch.settled.set_result(None)
