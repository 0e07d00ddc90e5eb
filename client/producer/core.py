"""What a producer sends next, and what becomes of it: sequences, requests cut by bytes, retries, answers by partition.

In a transaction a batch that fails ends it: nothing more is sent under its producer id and epoch, and the driver has to
``abandon`` what is left.

Pure: no socket, no clock, no task. Two drivers run it: ``client.producer.sender`` on an event loop for ``Producer``, and
``client.spark.tasks.producer`` on blocking connections for a task of Spark. A driver sends what ``drain`` gives it, tells
``answered`` or ``lost`` what came of each request, and calls ``drain`` again at ``next_drain`` at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Generic, Protocol

from client.errors import (
    CohortError,
    ConnectionLostError,
    InvalidProducerEpochError,
    LeaderNotAvailableError,
    RecordTooLargeError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    error_for,
)
from client.producer.batch import BatchT
from client.producer.config import SenderSettings
from client.producer.errors import (
    NO_ID_YET,
    OF_ONE_BATCH,
    OUT_OF_SEQUENCE,
    OUT_OF_SEQUENCE_IN_TRANSACTIONS,
    TOO_LARGE,
    UNCERTAIN,
    WAITED,
    doubtful,
    out_of_time,
    refused,
    stopped,
)
from client.producer.partition_queue import PartitionQueue, PartitionQueues, PartitionRequest
from client.producer.produce_request import InFlightRequest, RequestFilling, room_for_batches
from client.producer.sequences import ProducerIdentity
from client.producer.topic import LeaderAvailability
from client.transport.metadata import Address, Topology
from protocol.errors import ErrorCode
from protocol.messages import ApiKey
from protocol.messages.records import PartitionProduceResponse
from protocol.subscription import TopicPartition

_EXPIRY_SLACK_S = 0.001
"""How long after it is due a look is taken for what is out of time: not before, whatever rounding does."""
_LEAST_TIMEOUT_S = 0.001

Answers = Mapping[TopicPartition, PartitionProduceResponse]


class Nodes(Protocol):
    """What the core looks at of the cluster: ``client.transport.cluster.Cluster``, or what a task of Spark knows."""

    client_id: str
    topology: Topology

    def max_request_bytes(self, api_key: ApiKey, address: Address) -> int:
        """The largest payload of a frame with such a request that a node said it takes, 0 when it said nothing of it."""


class Outcomes(Protocol):
    """What is told of batches. Each batch is acknowledged or fails, once; one that is split does neither."""

    def acknowledged(self, batch: Any, base_offset: int, log_append_time_ms: int) -> None:
        """It is stored from ``base_offset`` on (-1: not known where), at this time unless that is -1."""

    def failed(self, batch: Any, error: CohortError) -> None:
        """It will not be sent again; ``error`` says whether it may be in the log."""

    def retrying(self, queue: Any, error: CohortError) -> None:
        """An attempt failed, and another follows unless time or attempts are used up."""


class ProducerCore(Generic[BatchT]):
    """The decisions of one producer. ``queues`` holds its batches, ``backoff`` gives the pause after an attempt in seconds.

    ``identity`` is that of an idempotent producer: it has to get an id, and a new one whenever ``needs_identity`` says so,
    before anything is sent. Times are seconds of one clock, whichever it is.
    """

    def __init__(
        self,
        nodes: Nodes,
        queues: PartitionQueues[BatchT],
        settings: SenderSettings,
        identity: ProducerIdentity | None,
        backoff: Callable[[int], float],
        outcomes: Outcomes,
    ) -> None:
        self.queues = queues
        self.why_no_identity: CohortError = NO_ID_YET
        self.next_drain = inf
        """When to drain again, by the clock that ``now`` is of."""
        self._nodes = nodes
        self._settings = settings
        self._identity = identity
        self._backoff = backoff
        self._outcomes = outcomes
        self._in_transactions = identity is not None and identity.transactional
        self._out_of_sequence = OUT_OF_SEQUENCE_IN_TRANSACTIONS if self._in_transactions else OUT_OF_SEQUENCE
        self._requests: set[InFlightRequest[BatchT]] = set()  # those of the transaction
        self._availability = LeaderAvailability(settings.availability_timeout_s)
        self._backing_off: list[PartitionQueue[BatchT]] = []
        self._in_flight: dict[Address, int] = {}
        self._closed = False

    @property
    def needs_identity(self) -> bool:
        """Whether batches wait until there is a producer id."""
        return self._identity is not None and self._identity.producer_id is None

    @property
    def requests_in_flight(self) -> int:
        """How many requests have no answer yet."""
        return sum(self._in_flight.values())

    def resumes(self, now: float) -> bool:
        """Whether the pause after a failed attempt is over for a partition: newer metadata may tell of another leader."""
        return any(queue.retry_at <= now for queue in self._backing_off)

    def is_slow(self, partition: TopicPartition) -> bool:
        """Whether the leader of a partition has been too busy to be sent anything for the availability timeout (KIP-794)."""
        return self._availability.is_slow(self._nodes.topology.leader(partition))

    def drain(self, now: float) -> list[InFlightRequest[BatchT]]:
        """The requests that are to be sent now. Batches that are out of time fail."""
        self.next_drain = inf
        topology = self._nodes.topology
        filling: RequestFilling[Address, PartitionRequest[BatchT]] = RequestFilling(self._room)
        requests: list[InFlightRequest[BatchT]] = []
        if self.needs_identity:
            self._expire_without_identity(now)
        if self._backing_off:
            self._resume(now)
        if self._availability.matters:
            self._note_held_up(now)
        for queue in self.queues.waiting():
            if self._is_expired(queue, now):
                self._drop_expired(queue, now, WAITED)
                if not queue.batches or not queue.may_send():
                    continue
            if self.needs_identity:  # what failed just now used up the last epoch
                self._drain_at(now)
                break
            if not self.queues.is_ready(queue, now):
                if not queue.in_flight:
                    self._drain_at(queue.batches[0].created_at + self.queues.linger_s)
                continue
            leader = topology.leader(queue.partition)
            if leader is None:
                self._without_leader(queue, now)
            elif not self._may_call(leader):
                self._availability.held_up(leader, now)
            else:
                self._availability.went(leader, now)
                self._add(queue, leader, filling, requests, now)
        for leader, parts in filling.take_all():
            requests.append(self._request(leader, parts, now))
        return requests

    def answered(
        self, request: InFlightRequest[BatchT], answers: Answers, now: float, *, refreshed: bool = False
    ) -> bool:
        """What a leader says of each partition of a request.

        True when it does not know some of them. Whether those were deleted or are not there yet is in newer metadata: they
        are left until this is called again with ``refreshed``.
        """
        if self._closed or not request.left:
            return False
        for part in tuple(request.left):
            answer = answers.get(part.queue.partition)
            if refreshed or answer is None or answer.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                request.left.remove(part)
                self._answered(part, answer, now)
        if request.left:
            return True
        self._ended(request)
        return False

    def lost(self, request: InFlightRequest[BatchT], error: CohortError, now: float) -> None:
        """The request could not be sent, or was not answered, or was refused as a whole."""
        if self._closed or not request.left:
            return
        while request.left:
            self._attempt_failed(request.left.pop(0), error, now)
        self._ended(request)

    def has_moved(self, request: InFlightRequest[BatchT]) -> bool:
        """Whether another node than the one that was sent a request leads a partition of it by now."""
        return any(self._leader_elsewhere(part.queue.partition, request.leader) for part in request.left)

    def give_up_moved(self, request: InFlightRequest[BatchT], now: float) -> bool:
        """What another node leads by now is sent there, though the one that was asked may still answer.

        True when nothing of the request is left to be answered.
        """
        host, port = request.leader
        for part in tuple(request.left):
            if self._leader_elsewhere(part.queue.partition, request.leader):
                request.left.remove(part)
                self._attempt_failed(part, ConnectionLostError(f"{host}:{port} led it, and has not answered"), now)
        if request.left:
            return False
        self._ended(request)
        return True

    def _leader_elsewhere(self, partition: TopicPartition, asked: Address | None) -> bool:
        """Whether a partition is led by another node than the one that was asked."""
        return self._nodes.topology.leader(partition) not in (None, asked)

    def seconds_left(self, parts: Sequence[PartitionRequest[BatchT]], now: float) -> float:
        """Until the first batch of these is out of time."""
        return min(part.batches[0].created_at for part in parts) + self._settings.delivery_timeout_s - now

    @property
    def unsettled(self) -> bool:
        """Whether a batch of the transaction is queued or in flight."""
        return bool(self._requests) or self.queues.unsent

    def unacknowledged(self) -> dict[TopicPartition, int] | None:
        """Of each partition with requests in flight in the transaction, the sequence that was sent last; sorted.

        None when a batch waits to be sent, perhaps because an attempt failed just now: requests do not tell of it.
        """
        if self.queues.unsent:
            return None
        queues = {part.queue.partition: part.queue for request in self._requests for part in request.left}
        return {
            partition: queues[partition].sequences.last  # type: ignore[union-attr]
            for partition in sorted(queues)
        }

    def close(self) -> None:
        """Every batch fails that is not settled; nothing is sent any more."""
        self._closed = True
        self._fail_all(stopped)

    def abandon(self, why: Callable[[BatchT], CohortError]) -> None:
        """Every batch fails that is not settled, with the error that ``why`` makes: its transaction is aborted.

        Requests in flight are not waited for. What they bring late belongs to no transaction, and daemons refuse it.
        """
        self._end_requests()
        self._fail_all(why)
        for queue in self.queues.all:
            queue.reset()

    def stored(self) -> None:
        """Every batch is acknowledged that is not settled, without its offset: its transaction is committed."""
        self._end_requests()
        for batch in self._take_unsettled():
            self._outcomes.acknowledged(batch, -1, -1)
        for queue in self.queues.all:
            queue.reset()

    def _end_requests(self) -> None:
        for request in self._requests:
            request.left.clear()
        self._requests.clear()
        self._in_flight.clear()
        self._backing_off.clear()

    def _fail_all(self, why: Callable[[BatchT], CohortError]) -> None:
        for batch in self._take_unsettled():
            self._failed(batch, why(batch))

    def _take_unsettled(self) -> Iterator[BatchT]:
        """Every batch that is not settled, out of its queue."""
        for queue in self.queues.all:
            self.queues.take_all(queue)
            batches = queue.all_batches()
            for part in list(queue.in_flight):
                self.queues.settle(part)
            yield from batches

    def _failed(self, batch: BatchT, error: CohortError) -> None:
        if self._in_transactions and self._identity is not None:
            self._identity.producer_id = None
        self._outcomes.failed(batch, error)

    def _drain_at(self, time: float) -> None:
        self.next_drain = min(self.next_drain, time)

    def _room(self, leader: Address) -> int:
        """Bytes of batches that a request to a node may carry."""
        taken = self._nodes.max_request_bytes(ApiKey.PRODUCE, leader)
        return room_for_batches(self._settings.max_request_bytes, taken, self._nodes.client_id)

    def _may_call(self, leader: Address) -> bool:
        return self._in_flight.get(leader, 0) < self._settings.max_in_flight

    def _add(
        self,
        queue: PartitionQueue[BatchT],
        leader: Address,
        filling: RequestFilling[Address, PartitionRequest[BatchT]],
        requests: list[InFlightRequest[BatchT]],
        now: float,
    ) -> None:
        """Puts what is ready of a queue into the request to its leader, or into another one when that is full."""
        part = self.queues.take(queue, filling.room(leader), now)
        if part is None and filling.holds(leader):
            requests.append(self._request(leader, filling.take(leader), now))
            if not self._may_call(leader):
                return
            part = self.queues.take(queue, filling.room(leader), now)
        if part is None:
            self._split(queue, leader, filling.room(leader), now)
            return
        filling.add(leader, part, sum(batch.size for batch in part.batches))
        if filling.has_enough(leader) and self._in_flight.get(leader, 0) + 1 < self._settings.max_in_flight:
            requests.append(self._request(leader, filling.take(leader), now))

    def _request(self, leader: Address, parts: list[PartitionRequest[BatchT]], now: float) -> InFlightRequest[BatchT]:
        for part in parts:
            part.queue.asked = leader
            for batch in part.batches:
                batch.attempts += 1
        self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
        timeout_s = min(self._settings.request_timeout_s, self.seconds_left(parts, now))
        request = InFlightRequest(leader, parts, max(_LEAST_TIMEOUT_S, timeout_s))
        if self._in_transactions:
            self._requests.add(request)
        return request

    def _ended(self, request: InFlightRequest[BatchT]) -> None:
        self._in_flight[request.leader] -= 1
        self._requests.discard(request)

    def _split(self, queue: PartitionQueue[BatchT], leader: Address, room: int, now: float) -> None:
        """The first batch of a queue is larger than any request to its leader: halves may do, a single record never does."""
        part = self.queues.take(queue, queue.batches[0].size, now)
        assert part is not None, "it has the room that it needs"
        host, port = leader
        self._attempt_failed(
            part,
            RecordTooLargeError(
                f"{part.batches[0].size} bytes are more than the {room} that the daemon at {host}:{port} takes in a "
                "request: raise its max_frame_bytes"
            ),
            now,
        )

    def _expire_without_identity(self, now: float) -> None:
        """Nothing is sent without an id; what is out of time meanwhile fails."""
        for queue in self.queues.all:
            self._drop_expired(queue, now, self.why_no_identity)
            if queue.batches:
                self._drain_at(queue.batches[0].created_at + self._settings.delivery_timeout_s + _EXPIRY_SLACK_S)

    def _resume(self, now: float) -> None:
        """Ends the pauses that are over, or waited for a leader that is there by now."""
        backing_off, self._backing_off = self._backing_off, []
        for queue in backing_off:
            if queue.retry_at <= now or self._leader_elsewhere(queue.partition, queue.asked):
                queue.backing_off = False
            else:
                self._back_off(queue)

    def _back_off(self, queue: PartitionQueue[BatchT]) -> None:
        queue.backing_off = True
        self._backing_off.append(queue)
        self._drain_at(queue.retry_at)

    def _note_held_up(self, now: float) -> None:
        """What waits for an answer holds up what comes behind it, whether or not the node would take another request."""
        for queue in self.queues.held_up(now):
            leader = self._nodes.topology.leader(queue.partition)
            if leader is not None:
                self._availability.held_up(leader, now)

    def _answered(self, part: PartitionRequest[BatchT], answer: PartitionProduceResponse | None, now: float) -> None:
        if answer is None:
            self._attempt_failed(part, UnknownServerError("the daemon's answer leaves this partition out"), now)
            return
        if answer.error_code not in UNCERTAIN:
            for batch in part.batches:
                batch.unanswered -= 1
        # DUPLICATE_SEQUENCE_NUMBER: it is in the log, and where is forgotten. Of several batches only one of them may be.
        forgotten = answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and len(part.batches) == 1
        if answer.error_code != ErrorCode.NONE and not forgotten:
            self._attempt_failed(part, error_for(answer.error_code, answer.error_message), now)
            return
        part.queue.attempts = 0
        self._settle(part)
        offset = -1 if forgotten else answer.base_offset
        for position, batch in enumerate(part.batches):
            if position < len(answer.batch_offsets):
                offset = answer.batch_offsets[position]
            self._outcomes.acknowledged(batch, offset, answer.log_append_time_ms)
            offset += batch.count if offset >= 0 else 0

    def _without_leader(self, queue: PartitionQueue[BatchT], now: float) -> None:
        part = self.queues.take_all(queue)
        queue.asked = None
        if self._is_gone(queue.partition):
            self._attempt_failed(part, UnknownTopicOrPartitionError("it was deleted"), now)
        else:
            self._attempt_failed(part, LeaderNotAvailableError(), now)

    def _is_gone(self, partition: TopicPartition) -> bool:
        topology = self._nodes.topology
        known = topology.topics.get(partition.topic)
        return partition.topic in topology.asked and (known is None or partition.partition >= len(known.partitions))

    def _attempt_failed(self, part: PartitionRequest[BatchT], error: CohortError, now: float) -> None:
        """Decides what becomes of batches: sent again, under new sequences or in smaller portions, or failed."""
        queue, batches = part.queue, part.batches
        self._drain_at(now)
        if (
            isinstance(error, self._out_of_sequence)
            and queue.sequences is not None
            and not self._ends_transaction(part, error)
        ):
            for batch in batches:  # it was refused for what came before it, which has its own number of attempts
                batch.attempts -= 1
            if isinstance(error, InvalidProducerEpochError):
                queue.sequences.give_up_identity()
                queue.resequence_from(batches[0].place, sure=False)
            elif part.first:
                # No batch before this one could come any more when it was sent: what the daemon waits for does not exist.
                queue.resequence_from(batches[0].place, sure=False)
            self._retry(part, error, now)
        elif error.retriable and not (
            isinstance(error, UnknownTopicOrPartitionError) and self._is_gone(queue.partition)
        ):
            self._retry(part, error, now)
        elif isinstance(error, OF_ONE_BATCH) and len(batches) > 1:
            for batch in batches:
                batch.alone = True
            self._settle(part, batches)
        elif isinstance(error, TOO_LARGE) and batches[0].count > 1 and self._may_split(batches[0]):
            self._settle(part, self._halves(queue, batches[0]))
        else:
            self.queues.settle(part)
            self._drop(queue, [(batch, refused(batch, error)) for batch in batches])

    def _ends_transaction(self, part: PartitionRequest[BatchT], error: CohortError) -> bool:
        """Whether a batch out of sequence is in doubt in a transaction: no other of it can be what the daemon waits for.

        Another epoch, as without transactions, is the coordinator's to give, and the next transaction has it.
        """
        return self._in_transactions and (part.first or isinstance(error, InvalidProducerEpochError))

    def _halves(self, queue: PartitionQueue[BatchT], batch: BatchT) -> tuple[BatchT, BatchT]:
        """What is sent in the place of a batch that is too large, and was certainly not stored."""
        halves = first, second = batch.split()
        if self._in_transactions and batch.sequence is not None:
            first.sequence, second.sequence = batch.sequence, batch.sequence.after(first.count)
            first.ordinal = second.ordinal = batch.ordinal
        else:
            queue.resequence_from(batch.place, sure=True)
        return halves

    def _may_split(self, batch: BatchT) -> bool:
        """Whether halves of a batch may be sent in its place.

        Its sequence tells a daemon of an earlier attempt that was stored, those of the halves do not. Without sequences any
        attempt that is not answered may be stored twice.
        """
        return self._identity is None or not batch.unanswered

    def _retry(self, part: PartitionRequest[BatchT], error: CohortError, now: float) -> None:
        """Sends the batches of a request again, save those that are out of attempts or time: after a pause, or at once if
        another node leads the partition by now."""
        queue, retries = part.queue, self._settings.retries
        exhausted = [batch for batch in part.batches if retries is not None and batch.attempts > retries]
        self.queues.settle(part, [batch for batch in part.batches if batch not in exhausted])
        moved = self._leader_elsewhere(queue.partition, queue.asked)
        delay_s = 0.0 if moved else self._backoff(queue.attempts)
        queue.attempts += 1
        self._outcomes.retrying(queue, error)
        self._drop(queue, [(batch, self._out_of_time(batch, error, now)) for batch in exhausted])
        self._drop_expired(queue, now + delay_s, error, now)
        if not queue.backing_off and not moved:  # several requests may fail by one cause
            queue.retry_at = now + delay_s
            self._back_off(queue)

    def _settle(self, part: PartitionRequest[BatchT], again: Sequence[BatchT] = ()) -> None:
        """Batches are in flight no longer; ``again`` are those to be sent again."""
        self.queues.settle(part, again)
        self._drop(part.queue, [])

    def _is_expired(self, queue: PartitionQueue[BatchT], now: float) -> bool:
        return queue.batches[0].created_at <= now - self._settings.delivery_timeout_s

    def _drop_expired(
        self, queue: PartitionQueue[BatchT], at: float, error: CohortError, now: float | None = None
    ) -> None:
        """Fails what waits and is out of time, or will be ``at`` a later time, when the next attempt is."""
        expired = self.queues.drop_older_than(queue, at - self._settings.delivery_timeout_s)
        told = at if now is None else now
        self._drop(queue, [(batch, self._out_of_time(batch, error, told)) for batch in expired])

    def _drop(self, queue: PartitionQueue[BatchT], failures: Sequence[tuple[BatchT, CohortError]]) -> None:
        """Fails batches that left the queue, and gives those behind them new sequences if that needs to be."""
        for batch, error in failures:
            if batch.sequence is not None and not batch.unanswered and not self._in_transactions:
                queue.resequence_from(batch.place, sure=True)  # its sequence never comes, nor does any after it
            self._failed(batch, error)
        if queue.resequence is not None:
            for batch in self.queues.begin_epoch_if_asked(queue):
                self._failed(batch, doubtful(batch))

    def _out_of_time(self, batch: BatchT, error: CohortError, now: float) -> CohortError:
        return out_of_time(batch, error, now, self._settings.delivery_timeout_s)
