"""The producer of a task: ``ProducerCore`` on blocking connections, one thread and no event loop.

The core gives batches their sequences, cuts requests and decides what is sent again, as it does for ``client.Producer``.
Requests go out ahead of their answers, ``IN_FLIGHT`` at a time to one node. Each row of one attempt of a task is stored
once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from time import perf_counter, sleep
from typing import Final, Literal, NamedTuple, TypeVar

from client.errors import CohortError, MessageTooLargeError, error_for
from client.producer.batch import Batch, Place
from client.producer.config import SenderSettings
from client.producer.core import ProducerCore
from client.producer.errors import records
from client.producer.partition_queue import PartitionQueue, PartitionQueues
from client.producer.produce_request import InFlightRequest, answers_of, room_for_batches
from client.producer.sequences import ProducerIdentity
from client.spark.options import SinkOptions
from client.spark.tasks.arrow import Rows
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import BlockingConnection, Until
from client.transport.retry import Backoff
from protocol.errors import ErrorCode
from protocol.messages import ApiKey
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import ProduceResponse
from protocol.record_batch import HEADER_BYTES, EncodedBatch
from protocol.subscription import TopicPartition

IN_FLIGHT: Final = 4
"""Requests in flight to one node; a daemon tells repeated batches among the last five of a partition."""
_ALL: Final = -1
_LONGEST_PAUSE_S: Final = 1.0
_SILENCE_S: Final = 10.0
"""Longer than followers may lag: what is sent again by then is known by its sequence."""

T = TypeVar("T")


class TaskBatch(Batch):
    """Rows of one partition, encoded."""

    __slots__ = ("_compression", "_encoded", "_rows", "_timestamp_ms")

    def __init__(
        self,
        partition: TopicPartition,
        rows: Rows,
        timestamp_ms: int,
        compression: Literal["gzip", "zstd"] | None,
        place: Place = (),
    ) -> None:
        self._rows = rows
        self._timestamp_ms = timestamp_ms
        self._compression = compression
        self._encoded = rows.encode(timestamp_ms, compression)
        super().__init__(partition, 0.0, _bytes_of(self._encoded), place)

    @property
    def count(self) -> int:
        """How many rows it holds."""
        return self._encoded.header.record_count

    def encode(self) -> list[bytes]:
        """The pieces of the batch, with its sequence."""
        return self._encoded.pieces() if self.sequence is None else self._encoded.pieces(*self.sequence)

    def split(self) -> tuple[TaskBatch, TaskBatch]:
        """Two batches with half of the rows each."""
        middle = self.count // 2
        first, second = (
            TaskBatch(self.partition, rows, self._timestamp_ms, self._compression, (*self.place, half))
            for half, rows in enumerate((self._rows.part(0, middle), self._rows.part(middle, self.count)))
        )
        for half in (first, second):
            half.created_at = self.created_at
            half.alone = True
        return first, second


class _Sent(NamedTuple):
    connection: BlockingConnection
    correlation_id: int
    request: InFlightRequest[TaskBatch]


class _Clock:
    """Counts the seconds that a task spends in its producer: what it does between two calls uses up no timeout."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since = perf_counter()

    def now(self) -> float:
        return self._before + perf_counter() - self._since

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since = perf_counter()
        try:
            yield
        finally:
            self._before = self.now()


class TaskProducer:
    """The producer of one task attempt: ``delivery_timeout_ms`` of ``options`` bounds how long one batch is tried.

    With ``transactional_id`` it writes in one transaction, which ``begin`` names. What is in doubt then fails the attempt.
    """

    def __init__(self, cluster: BlockingCluster, options: SinkOptions, transactional_id: str | None = None) -> None:
        self._transactional_id = transactional_id
        self._cluster = cluster
        self._options = options
        self._settings = SenderSettings(
            acks=_ALL,
            compression=options.compression,
            max_in_flight=IN_FLIGHT,
            max_request_bytes=options.max_request_bytes,
            retries=None,
            availability_timeout_s=0,
            request_timeout_s=options.connection.request_timeout_ms / 1000,
            delivery_timeout_s=options.delivery_timeout_ms / 1000,
        )
        self._identity = ProducerIdentity(transactional=transactional_id is not None)
        self._queues = PartitionQueues[TaskBatch](options.batch_bytes, 0, self._identity)
        delay_s = Backoff(Random()).delay_s
        self._core = ProducerCore(cluster, self._queues, self._settings, self._identity, delay_s, self)
        self._clock = _Clock()
        self._in_flight: deque[_Sent] = deque()
        self._failures: list[tuple[TaskBatch, CohortError]] = []
        self._most_bytes: int | None = None
        self.stored: dict[TopicPartition, int] = {}
        """Records on disk, by partition."""

    def begin(self, producer_id: int, epoch: int) -> None:
        """What is sent belongs to the transaction of this epoch."""
        self._identity.begin(producer_id, epoch)

    def send(self, batches: Iterable[TaskBatch]) -> None:
        """Sends batches, waiting for earlier ones where too many are in flight.

        Raises what keeps an earlier batch or one of these from being stored, when retrying cannot help or
        ``delivery.timeout.ms`` are over.
        """
        with self._clock.running():
            while len(self._in_flight) >= IN_FLIGHT:
                self._receive()
            for batch in batches:
                batch.created_at = self._clock.now()
                self._queues.add(self._queues.queue(batch.partition), batch)
            while self._drain():
                self._wait()

    def flush(self) -> None:
        """Waits until everything is on disk; raises as ``send`` does."""
        with self._clock.running():
            while self._drain() or self._in_flight:
                self._wait()

    def most_bytes(self) -> int:
        """Bytes of batches that a request may carry: as many as ``max.request.size`` and the daemon allow.

        Raises the last error of the connection when no daemon says so within ``delivery.timeout.ms``.
        """
        if self._most_bytes is None:
            self._retrying(lambda: self._cluster.learn_limits(self._until()), "asking how large a request may be")
            taken = self._cluster.max_request_bytes(ApiKey.PRODUCE)
            self._most_bytes = room_for_batches(self._settings.max_request_bytes, taken, self._cluster.client_id)
        return self._most_bytes

    def _until(self, timeout_s: float | None = None) -> Until:
        return Until((self._settings.request_timeout_s if timeout_s is None else timeout_s) * 1000)

    def _retrying(self, operation: Callable[[], T], what: str) -> T:
        return self._cluster.retrying(operation, Until(self._options.delivery_timeout_ms), what)

    def _drain(self) -> bool:
        """Sends what may be sent; whether there is more. Raises what keeps a batch from being stored."""
        while True:
            self._raise_failures()
            if self._core.needs_identity and self._transactional_id is None:
                self._identity.producer_id = self._retrying(self._producer_id, "getting a producer id")
            now = self._clock.now()
            if self._core.resumes(now):
                self._cluster.look_again(self._until())
            for request in self._core.drain(now):
                self._start(request)
            self._raise_failures()
            if self._core.next_drain > self._clock.now():
                return self._queues.unsent

    def _producer_id(self) -> int:
        answer = self._cluster.call_any_node(InitProducerIdRequest(), InitProducerIdResponse, self._until())
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, answer.error_message)
        return answer.producer_id

    def _wait(self) -> None:
        """Waits for the oldest answer, or for the end of a pause when nothing is in flight."""
        if self._in_flight:
            self._receive()
        else:
            sleep(min(_LONGEST_PAUSE_S, max(0.0, self._core.next_drain - self._clock.now())))

    def _start(self, request: InFlightRequest[TaskBatch]) -> None:
        until = self._until(request.timeout_s)
        try:
            connection = self._cluster.connection(request.leader, until)
            frame = request.encode(connection.next_correlation_id, connection.client_id, _ALL, self._transactional_id)
            correlation_id = connection.send_frame(b"".join(frame), ProduceResponse, until)
        except CohortError as error:
            self._core.lost(request, error, self._clock.now())
        else:
            self._in_flight.append(_Sent(connection, correlation_id, request))

    def _receive(self) -> None:
        connection, correlation_id, request = self._in_flight.popleft()
        try:
            until, silence_s = self._until(request.timeout_s), self._cluster.silence_s(_SILENCE_S)
            response = connection.receive(correlation_id, ProduceResponse, until, silence_s)
        except CohortError as error:
            connection.close()  # what was sent on it after this is not waited for: its sequences tell it when it comes again
            self._core.lost(request, error, self._clock.now())
            return
        if response.node_endpoints:
            self._cluster.learn_leaders(response)
        answers = answers_of(response)
        if self._core.answered(request, answers, self._clock.now()):
            self._cluster.look_again(self._until())
            self._core.answered(request, answers, self._clock.now(), refreshed=True)

    def _raise_failures(self) -> None:
        if not self._failures:
            return
        batch, error = self._failures[0]
        count = self._queues.records() + sum(failed.count for failed, _ in self._failures)
        error.add_note(f"{records(count)} of this task {'was' if count == 1 else 'were'} not acknowledged")
        if isinstance(error, MessageTooLargeError):
            error.add_note(
                f"a row that is larger needs a higher max.message.bytes of its topic, {batch.partition.topic!r}"
            )
        raise error

    def acknowledged(self, batch: TaskBatch, base_offset: int, log_append_time_ms: int) -> None:
        """Called by the core."""
        self.stored[batch.partition] = self.stored.get(batch.partition, 0) + batch.count

    def failed(self, batch: TaskBatch, error: CohortError) -> None:
        """Called by the core."""
        self._failures.append((batch, error))

    def retrying(self, queue: PartitionQueue[TaskBatch], error: CohortError) -> None:
        """Called by the core. Spark's workers have no log of their own: the last error tells, if it comes to that."""


def _bytes_of(batch: EncodedBatch) -> int:
    """The bytes of a batch, before or after compression, whichever is more: a daemon bounds both in a request."""
    return HEADER_BYTES + max(batch.header.body_length, batch.header.length - HEADER_BYTES)
