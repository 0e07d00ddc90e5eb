"""Carries batches from the accumulator to the daemons: requests, retries and timeouts of a producer.

Up to ``max_in_flight`` requests a node are under way. Without idempotence at most one of them carries records of a
partition, so that they keep their order through every retry; with it several do, and the daemon keeps the order. All
decisions fall in ``_drain``, once a turn of the loop; a task lives as long as one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from client.errors import (
    CohortError,
    ConnectionLostError,
    InvalidProducerEpochError,
    LeaderNotAvailableError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    error_for,
)
from client.log import get_logger
from client.producer.accumulator import Accumulator
from client.producer.acknowledgements import deliver, fail
from client.producer.batch import ProducerBatch
from client.producer.buffer_pool import BufferPool
from client.producer.config import SenderSettings
from client.producer.errors import (
    NO_ID_YET,
    OF_ONE_BATCH,
    OUT_OF_ROW,
    TOO_LARGE,
    UNCERTAIN,
    WAITED,
    copy_of,
    doubtful,
    name_of,
    out_of_time,
    records,
    refused,
    stopped,
)
from client.producer.partition_queue import Parcel, PartitionQueue
from client.producer.produce_request import ProduceExchange, RequestFilling
from client.producer.producer_id import IdentityFetcher
from client.producer.sequences import ProducerIdentity
from client.producer.topic import LeaderPace
from client.producer.unretrieved import UnretrievedFailures
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.metadata import Address
from protocol.errors import ErrorCode
from protocol.messages import ApiKey
from protocol.messages.records import PartitionProduceResponse
from protocol.subscription import TopicPartition

log = get_logger()

REQUEST_BYTES: Final = 512
"""What a request takes beside the client id and its partitions; rounded up."""
_EXPIRY_SLACK_S: Final = 0.001
"""How long after it is due a look is taken for what is out of time: not before, whatever rounding does."""
_ATTEMPTS_TO_WARN: Final = 8
"""Failures in a row, about three seconds of them, after which the log says what a producer waits for."""
_QUIET_S: Final = 30.0
"""A producer says so at most this often, whatever number of partitions has the trouble."""


class Sender:
    """Sends what ``accumulator`` holds, settles the batches and gives their bytes back to ``pool``."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        pool: BufferPool,
        settings: SenderSettings,
        identity: ProducerIdentity | None = None,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._pool = pool
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._calls: dict[asyncio.Task[None], Address] = {}
        self._call_name = f"cohort-produce-{cluster.client_id}"
        self._around_batches = REQUEST_BYTES + len(cluster.client_id.encode(errors="replace"))
        self._pace = LeaderPace(settings.availability_timeout_s)
        self._unretrieved = UnretrievedFailures(cluster.client_id)
        self._identity = None
        if identity is not None:
            timeout_ms = min(settings.request_timeout_s, settings.delivery_timeout_s) * 1000
            self._identity = IdentityFetcher(cluster, identity, timeout_ms, self.wake, self._without_identity)
        self._why_no_id: CohortError = NO_ID_YET
        self._scheduled = False
        self._linger: asyncio.TimerHandle | None = None
        self._quiet_until = self._loop.time()
        self._closed = False

    def wake(self) -> None:
        """Looks for batches to send at the loop's next turn."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    async def flush(self, timeout_s: float | None) -> None:
        """Waits until every batch that is queued now is settled; nothing lingers meanwhile.

        Raises ``RequestTimedOutError`` after ``timeout_s`` seconds. Without a limit the delivery timeout bounds it.
        """
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        last = {queue: queue.last_place for queue in self._accumulator.queues}
        with self._accumulator.hurry():
            while left := [
                batch for queue, place in last.items() for batch in queue.all_batches() if batch.place <= place
            ]:
                for batch in left:  # halves of one that is too large take its place: look again
                    batch.settled = batch.settled or self._loop.create_future()
                self.wake()
                remaining_s = None if deadline is None else deadline - self._loop.time()
                _, late = await asyncio.wait([batch.settled for batch in left if batch.settled], timeout=remaining_s)
                if late:
                    count = self._accumulator.records()
                    raise RequestTimedOutError(
                        f"flush: {records(count)} {'is' if count == 1 else 'are'} not acknowledged after {timeout_s} s and "
                        f"{'stays' if count == 1 else 'stay'} queued until delivery_timeout_ms is over"
                    )

    def abort(self) -> None:
        """Ends every request under way and fails what is left with ``ClosedError``, at once; ``close`` waits for the end."""
        self._closed = True
        if self._linger is not None:
            self._linger.cancel()
        for call in list(self._calls):
            call.cancel()
        for queue in self._accumulator.queues:
            self._accumulator.take_all(queue)
            batches = queue.all_batches()
            for parcel in list(queue.parcels):
                self._accumulator.settle(parcel)
            for batch in batches:
                self._fail(batch, stopped(batch))
        self._pool.close("the producer was stopped")
        if self._identity is not None:
            self._identity.abort()

    async def close(self) -> None:
        """``abort``, and waits until nothing of it runs any more. May be cancelled and called again."""
        self.abort()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if self._identity is not None:
            await self._identity.close()
        await asyncio.sleep(0)  # who waits for the futures that failed just now looks at them
        self._unretrieved.report()

    def _drain(self) -> None:
        """Makes requests of the batches that may leave now."""
        self._scheduled = False
        if self._closed:
            return
        now = self._loop.time()
        requests = RequestFilling[Address, Parcel](self._room)
        lingers_until = self._await_identity(now)
        if self._pace.matters:
            self._note_held_up(now)
        for queue in self._accumulator.waiting():
            self._drop_expired(queue, now, WAITED)
            if not queue.batches or not queue.may_send():
                continue
            if not self._accumulator.is_ready(queue, now):
                if not queue.parcels:
                    lingers_until.append(queue.batches[0].created_at + self._accumulator.linger_s)
                continue
            leader = self._cluster.topology.leader(queue.partition)
            if leader is None:
                self._without_leader(queue)
                continue
            if not self._may_call(leader):
                self._pace.held_up(leader, now)
            else:
                self._pace.went(leader, now)
                self._add(queue, leader, requests, now)
        for leader, parcels in requests.take_all():
            self._start(leader, parcels)
        self._arm_linger(lingers_until)

    def _add(
        self, queue: PartitionQueue, leader: Address, requests: RequestFilling[Address, Parcel], now: float
    ) -> None:
        """Puts what is ready of a queue into the request to its leader, or into another one when that is full."""
        parcel = self._accumulator.take(queue, requests.room(leader), now)
        if parcel is None and requests.holds(leader):
            self._start(leader, requests.take(leader))
            if not self._may_call(leader):
                return
            parcel = self._accumulator.take(queue, requests.room(leader), now)
        if parcel is None:
            self._break_up(queue, leader, requests.room(leader), now)
            return
        requests.add(leader, parcel, sum(batch.size for batch in parcel.batches))

    def _room(self, leader: Address) -> int:
        """Bytes of batches that a request to a node may carry: as many as the program and the node allow."""
        allowed, taken = self._settings.max_request_bytes, self._cluster.max_request_bytes(ApiKey.PRODUCE, leader)
        return min(allowed, taken - self._around_batches) if taken else allowed

    def _break_up(self, queue: PartitionQueue, leader: Address, room: int, now: float) -> None:
        """The first batch of a queue is larger than any request to its leader: halves may do, a single record never does."""
        parcel = self._accumulator.take(queue, queue.batches[0].size, now)
        assert parcel is not None, "it has the room that it needs"
        host, port = leader
        self._attempt_failed(
            parcel,
            RecordTooLargeError(
                f"{parcel.batches[0].size} bytes are more than the {room} that the daemon at {host}:{port} takes in a "
                "request: raise its max_frame_bytes"
            ),
        )

    def _await_identity(self, now: float) -> list[float]:
        """Asks for an id if there is none. Until there is, what is out of time fails: gives when to look next."""
        if self._identity is None or not self._identity.fetch_if_needed():
            return []
        for queue in self._accumulator.queues:
            self._drop_expired(queue, now, self._why_no_id)
        timeout_s = self._settings.delivery_timeout_s + _EXPIRY_SLACK_S
        return [queue.batches[0].created_at + timeout_s for queue in self._accumulator.queues if queue.batches]

    def is_slow(self, partition: TopicPartition) -> bool:
        """Whether the leader of a partition has been too busy to be sent anything for the availability timeout (KIP-794)."""
        return self._pace.is_slow(self._cluster.topology.leader(partition))

    def _note_held_up(self, now: float) -> None:
        """What waits for an answer holds up what comes behind it, whether or not the node would take another request."""
        for queue in self._accumulator.held_up(now):
            leader = self._cluster.topology.leader(queue.partition)
            if leader is not None:
                self._pace.held_up(leader, now)

    def _may_call(self, leader: Address) -> bool:
        return sum(address == leader for address in self._calls.values()) < self._settings.max_in_flight

    def _arm_linger(self, lingers_until: list[float]) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self._linger = self._loop.call_at(min(lingers_until), self.wake) if lingers_until else None

    def _start(self, leader: Address, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            for batch in parcel.batches:
                batch.attempts += 1
        timeout_s = max(0.001, min(self._settings.request_timeout_s, self._left_s(parcels)))
        request = ProduceExchange(self._cluster, parcels, self._settings.acks, self._settings.compression, timeout_s)
        request.begin(leader)
        call = asyncio.create_task(self._call(request), name=self._call_name)
        self._calls[call] = leader
        call.add_done_callback(partial(self._ended, request))

    def _ended(self, request: ProduceExchange, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        # Cancelled, and not by this sender, which would be closed: by a program that cancels all tasks.
        self._all_failed(request, ConnectionLostError("the program cancelled the task that waited for the answer"))
        request.abandon()
        self.wake()

    async def _call(self, request: ProduceExchange) -> None:
        """The life of one request."""
        try:
            answers = await request.answers()
            for parcel in tuple(request.left):
                answer = answers.get(parcel.queue.partition)
                if answer is None or answer.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    request.left.remove(parcel)
                    self._answered(parcel, answer)
            if request.left:
                await self._look_for_missing(request.left)
            for parcel in tuple(request.left):
                request.left.remove(parcel)
                self._answered(parcel, answers[parcel.queue.partition])
        except CohortError as error:
            self._all_failed(request, error)
        except Exception as error:  # whatever went wrong in here, nobody may be left waiting
            log.exception("a produce request failed unexpectedly", client_id=self._cluster.client_id)
            self._all_failed(request, CohortError(f"the producer failed unexpectedly: {error!r}"))

    def _all_failed(self, request: ProduceExchange, error: CohortError) -> None:
        while request.left:
            self._attempt_failed(request.left.pop(0), error)

    def _left_s(self, parcels: list[Parcel]) -> float:
        """Until the first of their batches is out of time."""
        oldest = min(parcel.batches[0].created_at for parcel in parcels)
        return oldest + self._settings.delivery_timeout_s - self._loop.time()

    async def _look_for_missing(self, parcels: list[Parcel]) -> None:
        """Finds out whether partitions that the leader does not know were deleted, or are only not there yet."""
        timeout_s = max(0.0, min(self._settings.request_timeout_s, self._left_s(parcels)))
        try:
            await self._cluster.refresh(Deadline(timeout_s * 1000))
        except CohortError as error:
            log.debug("metadata could not be refreshed", client_id=self._cluster.client_id, error=str(error))

    def _answered(self, parcel: Parcel, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            self._attempt_failed(parcel, UnknownServerError("the daemon's answer leaves this partition out"))
            return
        if answer.error_code not in UNCERTAIN:
            for batch in parcel.batches:
                batch.unanswered -= 1
        # DUPLICATE_SEQUENCE_NUMBER: it is in the log, and where is forgotten. Of several batches only one of them may be.
        forgotten = answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and len(parcel.batches) == 1
        if answer.error_code != ErrorCode.NONE and not forgotten:
            self._attempt_failed(parcel, error_for(answer.error_code, answer.error_message))
            return
        parcel.queue.attempts = 0
        self._settle(parcel)
        offset = -1 if forgotten else answer.base_offset
        for position, batch in enumerate(parcel.batches):
            if position < len(answer.batch_offsets):
                offset = answer.batch_offsets[position]
            deliver(batch.waiters, batch.timestamps_ms, batch.partition, offset, answer.log_append_time_ms)
            offset += batch.count if offset >= 0 else 0
            self._release(batch)

    def _without_leader(self, queue: PartitionQueue) -> None:
        parcel = self._accumulator.take_all(queue)
        if self._is_gone(queue.partition):
            self._attempt_failed(parcel, UnknownTopicOrPartitionError("it was deleted"))
        else:
            self._attempt_failed(parcel, LeaderNotAvailableError())

    def _is_gone(self, partition: TopicPartition) -> bool:
        topology = self._cluster.topology
        known = topology.topics.get(partition.topic)
        return partition.topic in topology.asked and (known is None or partition.partition >= len(known.partitions))

    def _attempt_failed(self, parcel: Parcel, error: CohortError) -> None:
        """Decides what becomes of a parcel: sent again, under new numbers or in smaller portions, or failed."""
        if self._closed:
            return
        queue, batches = parcel.queue, parcel.batches
        if isinstance(error, OUT_OF_ROW) and queue.numbering is not None:
            for batch in batches:  # it was refused for what came before it, which has its own number of attempts
                batch.attempts -= 1
            if isinstance(error, InvalidProducerEpochError):
                queue.numbering.give_up_identity()
                queue.renumber_from(batches[0].place, sure=False)
            elif parcel.first:
                # No batch before this one could come any more when it was sent: nobody has what the daemon waits for.
                queue.renumber_from(batches[0].place, sure=False)
            self._retry(parcel, error)
        elif error.retriable and not (
            isinstance(error, UnknownTopicOrPartitionError) and self._is_gone(queue.partition)
        ):
            self._retry(parcel, error)
        elif isinstance(error, OF_ONE_BATCH) and len(batches) > 1:
            for batch in batches:
                batch.alone = True
            self._settle(parcel, batches)
        elif isinstance(error, TOO_LARGE) and batches[0].count > 1 and not batches[0].unanswered:
            queue.renumber_from(batches[0].place, sure=True)
            self._settle(parcel, batches[0].split())
        else:
            self._accumulator.settle(parcel)
            self._drop(queue, [(batch, refused(batch, error)) for batch in batches])
        self.wake()

    def _retry(self, parcel: Parcel, error: CohortError) -> None:
        """Sends the batches of a parcel again after a pause, save those that are out of attempts or time."""
        queue, retries, now = parcel.queue, self._settings.retries, self._loop.time()
        exhausted = [batch for batch in parcel.batches if retries is not None and batch.attempts > retries]
        self._accumulator.settle(parcel, [batch for batch in parcel.batches if batch not in exhausted])
        delay_s = self._cluster.backoff.delay_s(queue.attempts)
        queue.attempts += 1
        if queue.attempts >= _ATTEMPTS_TO_WARN and now >= self._quiet_until:
            self._quiet_until = now + _QUIET_S
            log.warning(
                "records wait and are sent again",
                partition=name_of(queue.partition),
                attempts=queue.attempts,
                error=str(error),
            )
        self._drop(queue, [(batch, self._out_of_time(batch, error)) for batch in exhausted])
        self._drop_expired(queue, now + delay_s, error)
        if not queue.backing_off:  # several parcels may fail by one cause
            queue.backing_off = True
            self._loop.call_later(delay_s, self._resume, queue)

    def _without_identity(self, error: CohortError) -> None:
        """Nothing can be sent without an id, and waiting for one counts against the delivery timeout."""
        self._why_no_id = error
        self.wake()

    def _settle(self, parcel: Parcel, again: Sequence[ProducerBatch] = ()) -> None:
        """A parcel is under way no longer; ``again`` are batches of it to be sent again."""
        self._accumulator.settle(parcel, again)
        self._drop(parcel.queue, [])

    def _drop_expired(self, queue: PartitionQueue, now: float, error: CohortError) -> None:
        """Fails what waits and is out of time."""
        expired = self._accumulator.drop_older_than(queue, now - self._settings.delivery_timeout_s)
        self._drop(queue, [(batch, self._out_of_time(batch, error)) for batch in expired])

    def _drop(self, queue: PartitionQueue, failures: Sequence[tuple[ProducerBatch, CohortError]]) -> None:
        """Fails batches that left the queue, and gives those behind them new numbers if that needs to be."""
        for batch, error in failures:
            if batch.number is not None and not batch.unanswered:
                queue.renumber_from(batch.place, sure=True)  # its number never comes, nor does any after it
            self._fail(batch, error)
        for batch in self._accumulator.begin_anew_if_asked(queue):
            self._fail(batch, doubtful(batch))

    def _resume(self, queue: PartitionQueue) -> None:
        queue.backing_off = False
        self.wake()

    def _out_of_time(self, batch: ProducerBatch, error: CohortError) -> CohortError:
        return out_of_time(batch, error, self._loop.time(), self._settings.delivery_timeout_s)

    def _fail(self, batch: ProducerBatch, error: CohortError) -> None:
        self._unretrieved.add(batch.partition, error, fail(batch.waiters, lambda: copy_of(error)))
        self._release(batch)

    def _release(self, batch: ProducerBatch) -> None:
        self._pool.release(batch.reserved)
        if batch.settled is not None and not batch.settled.done():
            batch.settled.set_result(None)
