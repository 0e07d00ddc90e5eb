"""Carries batches from the accumulator to the daemons: requests, retries and timeouts of a producer.

Up to ``max_in_flight`` requests a node are under way. Without idempotence at most one of them carries records of a
partition, so that they keep their order through every retry; with it several do, and the daemon keeps the order. All
decisions fall in ``_drain``, once a turn of the loop; a task lives as long as one request.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from client.accumulator import Accumulator, Parcel, PartitionQueue, ProducerBatch
from client.buffer_pool import BufferPool
from client.cluster import Cluster
from client.deadline import Deadline
from client.delivery import deliver, fail
from client.errors import (
    ClosedError,
    CohortError,
    InvalidProducerEpochError,
    LeaderNotAvailableError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    RequestTimedOutError,
    UnknownProducerIdError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    error_for,
)
from client.log import get_logger
from client.numbering import ProducerIdentity
from client.producer_identity import IdentityFetcher
from client.topology import Address
from protocol.errors import ErrorCode
from protocol.messages.records import PartitionProduceResponse, ProduceResponse
from protocol.produce_frame import encode_produce_request
from protocol.record_batch import Compression
from protocol.subscription import TopicPartition

log = get_logger()


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """How batches are sent. Times are seconds, sizes bytes; ``retries`` None is as often as the delivery timeout allows."""

    acks: int
    compression: Compression | None
    max_in_flight: int
    max_request_bytes: int
    retries: int | None
    availability_timeout_s: float
    request_timeout_s: float
    delivery_timeout_s: float


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
        self._kept_up: dict[Address, tuple[float, float]] = {}  # when data was ready for a node, and when it went
        self._identity = None
        if identity is not None:
            timeout_ms = settings.request_timeout_s * 1000
            self._identity = IdentityFetcher(cluster, identity, timeout_ms, self.wake, self._without_identity)
        self._scheduled = False
        self._linger: asyncio.TimerHandle | None = None
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
        left = [batch for queue in self._accumulator.queues for batch in queue.all_batches()]
        if not left:
            return
        for batch in left:
            batch.settled = batch.settled or self._loop.create_future()
        with self._accumulator.hurry():
            self.wake()
            _, late = await asyncio.wait([batch.settled for batch in left if batch.settled], timeout=timeout_s)
        if late:
            raise RequestTimedOutError(
                f"flush: {self._accumulator.records()} records are not acknowledged after {timeout_s} s; "
                "they stay queued until their delivery timeout"
            )

    async def close(self) -> None:
        """Ends every request under way and fails what is left with ``ClosedError``."""
        self._closed = True
        if self._linger is not None:
            self._linger.cancel()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        left = self._accumulator.records()
        reason = f"the producer was stopped while {left} records were not acknowledged"
        for queue in self._accumulator.queues:
            self._accumulator.take_all(queue)
            batches = queue.all_batches()
            for parcel in list(queue.parcels):
                self._accumulator.settle(parcel)
            for batch in batches:
                self._fail(batch, ClosedError(f"{reason}; {batch.count} of them for {_name(queue.partition)}"))
        self._pool.close(reason)
        await asyncio.gather(*calls, return_exceptions=True)
        if self._identity is not None:
            await self._identity.close()

    def _drain(self) -> None:
        """Makes requests of the batches that may leave now."""
        self._scheduled = False
        if self._closed:
            return
        if self._identity is not None:
            self._identity.fetch_if_needed()
        now = self._loop.time()
        calls: dict[Address, list[Parcel]] = {}
        room: dict[Address, int] = {}
        lingers_until: list[float] = []
        for queue in self._accumulator.waiting():
            if not self._accumulator.is_ready(queue, now):
                if not queue.parcels:
                    lingers_until.append(queue.batches[0].created_at + self._accumulator.linger_s)
                continue
            leader = self._cluster.topology.leader(queue.partition)
            if leader is None:
                self._without_leader(queue)
                continue
            may_call = self._may_call(leader)
            self._kept_up[leader] = (now, now if may_call else self._kept_up.get(leader, (now, now))[1])
            if may_call:
                parcel = self._accumulator.take(queue, room.get(leader, self._settings.max_request_bytes), now)
                if parcel is None:  # the request is full: this partition begins the next one
                    self._start(leader, calls.pop(leader))
                    room.pop(leader)
                    if not self._may_call(leader):
                        continue
                    parcel = self._accumulator.take(queue, self._settings.max_request_bytes, now)
                    assert parcel is not None, "an empty request has room for a batch"
                calls.setdefault(leader, []).append(parcel)
                left = room.get(leader, self._settings.max_request_bytes)
                room[leader] = left - sum(batch.size for batch in parcel.batches)
        for leader, parcels in calls.items():
            self._start(leader, parcels)
        self._arm_linger(lingers_until)

    def is_slow(self, partition: TopicPartition) -> bool:
        """Whether the leader of a partition has been too busy to be sent anything for the availability timeout (KIP-794)."""
        leader = self._cluster.topology.leader(partition)
        ready, went = self._kept_up.get(leader, (0.0, 0.0)) if leader is not None else (0.0, 0.0)
        return 0 < self._settings.availability_timeout_s < ready - went

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
        call = asyncio.create_task(self._call(parcels), name=f"cohort-produce-{self._cluster.client_id}")
        self._calls[call] = leader
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        self.wake()

    async def _call(self, parcels: list[Parcel]) -> None:
        """The life of one request."""
        try:
            answers = await self._request(parcels)
            await self._look_for_missing(answers)
        except CohortError as error:
            for parcel in parcels:
                self._attempt_failed(parcel, error)
        except Exception as error:  # whatever went wrong in here, nobody may be left waiting
            log.exception("a produce request failed unexpectedly", client_id=self._cluster.client_id)
            for parcel in parcels:
                self._attempt_failed(parcel, CohortError(f"the producer failed unexpectedly: {error!r}"))
        else:
            for parcel in parcels:
                self._answered(parcel, answers.get(parcel.queue.partition))

    async def _request(self, parcels: list[Parcel]) -> dict[TopicPartition, PartitionProduceResponse]:
        oldest = min(parcel.batches[0].created_at for parcel in parcels)
        left_s = oldest + self._settings.delivery_timeout_s - self._loop.time()
        timeout_s = max(0.001, min(self._settings.request_timeout_s, left_s))
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._cluster.connection_to_leader(parcels[0].queue.partition)
                frame = partial(self._frame, parcels, timeout_s)
                if self._settings.acks == 0:
                    await connection.send_only(frame)
                    partitions = [parcel.queue.partition for parcel in parcels]
                    return {partition: PartitionProduceResponse(partition.partition, 0) for partition in partitions}
                response = await connection.request_frame("Produce", frame, ProduceResponse, timeout_s=timeout_s)
        except TimeoutError as error:
            raise RequestTimedOutError(f"no connection within {timeout_s * 1000:.0f} ms") from error
        return {
            TopicPartition(topic.name, answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }

    async def _look_for_missing(self, answers: dict[TopicPartition, PartitionProduceResponse]) -> None:
        """Finds out whether a partition that the leader does not know was deleted, or is only not there yet."""
        if any(answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for answer in answers.values()):
            try:
                await self._cluster.refresh(Deadline(self._settings.request_timeout_s * 1000))
            except CohortError as error:
                log.debug("metadata could not be refreshed", client_id=self._cluster.client_id, error=str(error))

    def _frame(self, parcels: list[Parcel], timeout_s: float, correlation_id: int, client_id: str) -> bytes:
        by_topic: dict[str, list[tuple[int, list[bytes]]]] = {}
        for parcel in parcels:
            topic, index = parcel.queue.partition
            pieces = [piece for batch in parcel.batches for piece in batch.encode(self._settings.compression)]
            by_topic.setdefault(topic, []).append((index, pieces))
        timeout_ms = max(1, int(timeout_s * 1000))
        return encode_produce_request(correlation_id, client_id, self._settings.acks, timeout_ms, by_topic.items())

    def _answered(self, parcel: Parcel, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            self._attempt_failed(parcel, UnknownServerError("the daemon's answer leaves this partition out"))
            return
        if answer.error_code != ErrorCode.NONE:
            self._attempt_failed(parcel, error_for(answer.error_code, answer.error_message))
            return
        parcel.queue.attempts = 0
        self._accumulator.settle(parcel)
        offset = answer.base_offset
        for position, batch in enumerate(parcel.batches):
            if position < len(answer.batch_offsets):
                offset = answer.batch_offsets[position]
            deliver(batch.waiters, batch.timestamps_ms, batch.partition, offset, answer.log_append_time_ms)
            offset += batch.count if offset >= 0 else 0
            self._release(batch)

    def _without_leader(self, queue: PartitionQueue) -> None:
        parcel = self._accumulator.take_all(queue)
        if self._is_gone(queue.partition):
            self._attempt_failed(parcel, UnknownTopicOrPartitionError("UNKNOWN_TOPIC_OR_PARTITION: it was deleted"))
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
        if isinstance(error, OutOfOrderSequenceNumberError | UnknownProducerIdError) and queue.numbering is not None:
            # A batch before this one may still come. If none does, the daemon waits for one that nobody has any more.
            queue.renumber = queue.renumber or queue.is_first(parcel)
            self._retry(parcel, error)
            return
        if error.retriable and not (isinstance(error, UnknownTopicOrPartitionError) and self._is_gone(queue.partition)):
            self._retry(parcel, error)
            return
        if isinstance(error, InvalidProducerEpochError) and queue.numbering is not None:
            queue.numbering.give_up_identity()
            queue.renumber = True
        smaller = _in_smaller_portions(queue, batches) if isinstance(error, _TOO_LARGE) else []
        self._accumulator.settle(parcel, smaller)
        if not smaller:
            for batch in batches:
                self._fail(batch, _refused(batch, error))
        self.wake()

    def _retry(self, parcel: Parcel, error: CohortError) -> None:
        """Sends the batches of a parcel again after a pause, save those that are out of attempts or time."""
        queue, retries = parcel.queue, self._settings.retries
        exhausted = [batch for batch in parcel.batches if retries is not None and batch.attempts > retries]
        self._accumulator.settle(parcel, [batch for batch in parcel.batches if batch not in exhausted])
        delay_s = self._cluster.backoff.delay_s(queue.attempts)
        queue.attempts += 1
        expired = self._accumulator.drop_older_than(
            queue, self._loop.time() + delay_s - self._settings.delivery_timeout_s
        )
        for batch in [*exhausted, *expired]:
            self._fail(batch, self._out_of_time(batch, error))
        if not queue.backing_off:  # several parcels may fail by one cause
            queue.backing_off = True
            self._loop.call_later(delay_s, self._resume, queue)

    def _without_identity(self, error: CohortError) -> None:
        """Nothing can be sent without an id, and waiting for one counts against the delivery timeout."""
        for queue in self._accumulator.queues:
            too_old = self._loop.time() - self._settings.delivery_timeout_s
            for batch in self._accumulator.drop_older_than(queue, too_old):
                self._fail(batch, self._out_of_time(batch, error))

    def _resume(self, queue: PartitionQueue) -> None:
        queue.backing_off = False
        self.wake()

    def _out_of_time(self, batch: ProducerBatch, error: CohortError) -> CohortError:
        waited_ms = (self._loop.time() - batch.created_at) * 1000
        failure = RequestTimedOutError(
            f"{batch.count} records for {_name(batch.partition)} were not acknowledged in {waited_ms:.0f} ms and "
            f"{batch.attempts} attempts (delivery_timeout_ms={self._settings.delivery_timeout_s * 1000:.0f}); the last "
            f"error was {type(error).__name__}: {error}. They may or may not be in the log"
        )
        failure.__cause__ = error
        return failure

    def _fail(self, batch: ProducerBatch, error: CohortError) -> None:
        fail(batch.waiters, lambda: _copy_of(error))
        self._release(batch)

    def _release(self, batch: ProducerBatch) -> None:
        self._pool.release(batch.buffered)
        if batch.settled is not None and not batch.settled.done():
            batch.settled.set_result(None)


_TOO_LARGE = (MessageTooLargeError, RecordListTooLargeError)


def _in_smaller_portions(queue: PartitionQueue, batches: list[ProducerBatch]) -> list[ProducerBatch]:
    """The same records in batches that go one by one, or a single batch halved; nothing for a single record."""
    if len(batches) > 1:
        for batch in batches:
            batch.alone = True
        return batches
    return list(queue.split(batches[0])) if batches[0].count > 1 else []


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _refused(batch: ProducerBatch, error: CohortError) -> CohortError:
    refusal = type(error)(f"{batch.count} records for {_name(batch.partition)} were not stored: {error}")
    refusal.__cause__ = error
    return refusal


def _copy_of(error: CohortError) -> CohortError:
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
