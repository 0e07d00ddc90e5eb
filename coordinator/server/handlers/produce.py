"""Produce (0): batches are checked (``produced_batches``), appended, and acknowledged.

**What an answer promises** is said by ``acks``. 0: there is no answer; the connection closes when something was refused, as
it has no other way to say so. 1: the batches are on the leader's disk. -1 (all): they are below the high watermark, on the
disk of every replica that is in sync, and those are at least ``min.insync.replicas``. When they become fewer while a request
waits it is told NOT_ENOUGH_REPLICAS_AFTER_APPEND at once. With one replica, its disk is the high watermark. Whatever
``acks`` says, with ``flush="os"`` "disk" means the operating system's memory.

**In a transaction** a request names its transactional id, asks for ``acks`` -1, and all its batches are transactional. They
are checked as any others; then ``coordinator.runtime.admission`` takes or refuses each partition's, perhaps after it has
asked the coordinator, once for all partitions of the request. Their bytes count as the request's until then. Requests behind
this one do not wait for it, but for those of the same producer for the same partition. The batches of a Kafka producer from
before KIP-890, which keeps one epoch, are written under that of its transaction (``coordinator.runtime.kept_epochs``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Final, cast

from coordinator.log.config import LogConfig
from coordinator.log.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    LogError,
    NotEnoughInSyncError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProducerStateError,
    UnknownProducerIdError,
)
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import INTERNAL_TOPICS, Catalog, Topic, TopicError
from coordinator.metadata.partitions import min_in_sync
from coordinator.runtime.admission import Admission, TransactionalWrite
from coordinator.runtime.held_commits import HeldCommits
from coordinator.runtime.kept_epochs import KeptEpochWrite
from coordinator.runtime.participants import TransactionName
from coordinator.server.call import Call, Handler, Steps
from coordinator.server.dispatch import STEP, ErrorTexts
from coordinator.server.handlers.led_partitions import LedPartitions, made_anew
from coordinator.server.handlers.produced_batches import (
    ALLOWED,
    ALLOWED_IN_TRANSACTIONS,
    Batches,
    Check,
    Inflation,
    RefusedRecordsError,
    checked_batches,
)
from coordinator.server.node import Node
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from protocol.record_batch import HEADER_BYTES, Attributes, read_header

log = get_logger()

_ALL: Final = -1
_ACKS: Final = (_ALL, 0, 1)
_BYTES_PER_WEIGHT: Final = 16 * 1024
"""Bytes of records that count as much as one partition more: they are checked, copied and appended."""

CODES: Final[Mapping[type[ProducerStateError], ErrorCode]] = {
    InvalidProducerEpochError: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidTransactionStateError: ErrorCode.INVALID_TXN_STATE,
    ConcurrentTransactionsError: ErrorCode.CONCURRENT_TRANSACTIONS,
    OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    UnknownProducerIdError: ErrorCode.UNKNOWN_PRODUCER_ID,
}
"""What the client is told when a batch does not continue what its producer wrote before."""

_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)


def handler(node: Node) -> Handler:
    """See ``ProduceHandler``."""
    transactions = node.transactions
    led = LedPartitions(node.catalog, node.logs, node.membership)
    return ProduceHandler(node.catalog, led, transactions.admission, transactions.held_commits, node.wall_ms).handle


class ProduceHandler:
    """Checks batches, appends them, answers when they are on disk.

    ``check`` is how the records of a partition become batches that may be appended, as ``checked_batches`` does: what comes
    by the Kafka port is checked in another way, and everything after that is the same. With ``keeps_epoch`` transactional
    batches are of producers that keep their epoch. ``in_order`` looks at each partition's result before it is told.
    """

    def __init__(
        self,
        catalog: Catalog,
        led: LedPartitions,
        admission: Admission,
        commits: HeldCommits,
        wall_ms: Callable[[], int],
        check: Check | None = None,
        *,
        keeps_epoch: bool = False,
        in_order: InOrder | None = None,
    ) -> None:
        self._catalog = catalog
        self._led = led
        self._logs = led.logs
        self._admission = admission
        self._commits = commits
        self._wall_ms = wall_ms
        self._check = check or checked_batches
        self._keeps_epoch = keeps_epoch
        self._in_order = in_order

    def handle(self, call: Call) -> Steps:
        """Appends each partition's batches, many in several steps; partitions fail one by one, not together."""
        request = cast("ProduceRequest", call.request)
        pending = _PendingProduce(call, request, self._led)
        inflation = Inflation()
        texts: ErrorTexts | None = None
        admitted = None
        if request.transactional_id is not None:
            admitted = _InTransaction(request.transactional_id, self._commits, self._keeps_epoch)
        done = 0
        for topic in request.topic_data:
            for data in topic.partition_data:
                if done >= STEP:
                    done = 0
                    yield None
                done += 1 + len(data.records) // _BYTES_PER_WEIGHT
                slot = pending.slot(topic.name)
                if self._in_order is not None:
                    slot = self._in_order(call, topic, data.records, slot)
                try:
                    yield from self._append(topic, data, request.acks, inflation, slot, admitted)
                except TopicError as error:
                    texts = texts or ErrorTexts()
                    refusal = self._refusal(topic.name, data.index, error.code, texts(str(error)))
                    if isinstance(error, RefusedRecordsError):
                        refusal = replace(refusal, record_errors=error.records)
                    slot(refusal)
                    if admitted is not None:
                        admitted.refused(data.records)
                except BaseException:
                    if admitted is not None:
                        admitted.give_up()
                    pending.give_up()
                    raise
        if admitted is not None:
            admitted.enter(self._admission)
        pending.all_appended()

    def _append(
        self,
        asked: TopicProduceData,
        data: PartitionProduceData,
        acks: int,
        inflation: Inflation,
        slot: Slot,
        admitted: _InTransaction | None,
    ) -> Steps:
        if acks not in _ACKS:
            raise TopicError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it can be 0, 1 or -1 (all)")
        name, index, topic_id = asked.name, data.index, asked.topic_id
        topic, opened = self._writable(name, index, acks, topic_id)
        if admitted is None:
            batches = yield from self._check(name, opened.config, data.records, inflation, _in_thread, ALLOWED)
        else:
            admitted.check_acks(acks)
            batches = yield from self._check(
                name, opened.config, data.records, inflation, _in_thread, ALLOWED_IN_TRANSACTIONS
            )
        if not self._is_writable_still(topic, index, opened):  # a thread has checked a batch meanwhile
            topic, opened = self._writable(name, index, acks, topic_id)
        if admitted is None:
            self._write(topic, index, opened, acks, batches, slot)
        else:
            write = partial(self._write_admitted, topic, index, opened, slot, admitted)
            admitted.add(topic, index, opened, batches, write, slot)

    def _write(self, topic: Topic, index: int, opened: PartitionLog, acks: int, batches: Batches, slot: Slot) -> None:
        """Appends the batches of a partition; its slot is filled when they are on disk. Raises ``TopicError``."""
        name = topic.name
        try:
            results = opened.append_all(batches, self._wall_ms())
        except ProducerStateError as error:
            raise TopicError(CODES[type(error)], f"{name}-{index}: {error}") from error
        except LogError as error:
            raise TopicError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{index} takes no records: {error}") from error
        end = results[0].last_offset + 1
        offsets: tuple[int, ...] = ()
        if len(results) > 1:
            end = max(result.last_offset for result in results) + 1
            if any(later.base_offset != result.last_offset + 1 for result, later in pairwise(results)):
                offsets = tuple(result.base_offset for result in results)
        # Of duplicates it is the time of their first append.
        base_offset, append_time_ms = results[0].base_offset, results[0].append_time_ms
        answer = PartitionProduceResponse(
            index, ErrorCode.NONE, base_offset, append_time_ms, opened.start_offset, "", offsets
        )

        def on_stored(error: Exception | None) -> None:
            if error is None:
                slot(answer if acks != _ALL else self._if_replicated(topic, opened, answer))
            elif isinstance(error, NotEnoughInSyncError):
                code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                slot(self._refusal(name, index, code, f"{name}-{index}: {error}"))
            else:
                lost = isinstance(error, NotLeaderError)
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER if lost else ErrorCode.KAFKA_STORAGE_ERROR
                slot(self._refusal(name, index, code, f"{name}-{index}: the batch was not stored: {error}"))

        # Duplicates count as well: they are answered when what was appended first is stored.
        if acks == _ALL:
            opened.when_committed(end, on_stored, True)
        else:
            opened.when_durable(end, on_stored)

    def _write_admitted(
        self, topic: Topic, index: int, opened: PartitionLog, slot: Slot, admitted: _InTransaction, batches: Batches
    ) -> None:
        """Appends batches that were admitted just now, perhaps long after they were checked."""
        texts, header = admitted.texts, batches[0][1]
        transaction = header.producer_id, header.producer_epoch
        try:
            if not self._is_writable_still(topic, index, opened):
                topic, opened = self._writable(topic.name, index, _ALL, topic.topic_id)
            self._write(topic, index, opened, _ALL, batches, slot)
            self._commits.appended(transaction, topic.name, index)
        except TopicError as error:
            slot(self._refusal(topic.name, index, error.code, texts(str(error))))
            self._commits.give_up(transaction, str(error))
        except Exception:
            log.exception("request_failed", request="ProduceRequest", topic=topic.name, partition=index)
            text = "the daemon failed unexpectedly; its log has the cause"
            slot(PartitionProduceResponse(index, ErrorCode.UNKNOWN_SERVER_ERROR, error_message=texts(text)))

    def _is_writable_still(self, topic: Topic, index: int, opened: PartitionLog) -> bool:
        """Whether what ``_writable`` returned holds: the topic is as it was, and this node leads the partition in a session
        that is not over."""
        if self._catalog.topics.get(topic.name) is not topic or self._logs.led.get((topic.name, index)) is not opened:
            return False
        self._led.check_valid(topic.name, index)
        return True

    def _writable(self, name: str, index: int, acks: int, topic_id: str) -> tuple[Topic, PartitionLog]:
        """The topic and the log of a partition. Raises ``TopicError`` when it takes no records now, or another topic than
        that with ``topic_id``, if it is given, has the name."""
        topic = self._catalog.topics.get(name) or self._catalog.topic(name)
        if topic_id and topic_id != topic.topic_id:
            raise made_anew(name)
        if name in INTERNAL_TOPICS:
            raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and takes no records")
        self._led.check_valid(name, index)
        opened = self._logs.led.get((name, index)) if 0 <= index < len(topic.partitions) else None
        if opened is None:
            opened = self._logs.find(topic, index)
        if acks == _ALL:
            leadership = opened.leadership
            if topic.partitions[index].lacks_replicas(opened.config.min_insync_replicas):
                raise TopicError(ErrorCode.NOT_ENOUGH_REPLICAS, _too_few(topic, index, opened.config))
            if leadership is not None and not leadership.has_enough_in_sync():
                raise TopicError(
                    ErrorCode.NOT_ENOUGH_REPLICAS, f"{_too_few(topic, index, opened.config)}, and some of them lag"
                )
        return topic, opened

    def _refusal(self, name: str, index: int, code: ErrorCode, text: str) -> PartitionProduceResponse:
        leader = self._led.hint(code, name, index)
        return PartitionProduceResponse(
            index, code, error_message=text, current_leader_id=leader.node_id, current_leader_epoch=leader.leader_epoch
        )

    def _if_replicated(
        self, topic: Topic, opened: PartitionLog, answer: PartitionProduceResponse
    ) -> PartitionProduceResponse:
        """The answer; or, when replicas were lost meanwhile, that the records are in the log but not safe."""
        now = self._catalog.topics.get(topic.name)
        if now is None or now.topic_id != topic.topic_id:
            return answer
        if not now.partitions[answer.index].lacks_replicas(opened.config.min_insync_replicas):
            return answer
        message = f"{_too_few(now, answer.index, opened.config)}. The records are in the log"
        return PartitionProduceResponse(answer.index, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, error_message=message)


def _in_thread(check: Callable[[], None]) -> asyncio.Future[None]:
    return asyncio.get_running_loop().run_in_executor(None, check)


def _too_few(topic: Topic, index: int, config: LogConfig) -> str:
    state = topic.partitions[index]
    return (
        f"{topic.name}-{index} has {len(state.isr)} of {len(state.replicas)} replicas in sync; acks=all needs "
        f"{min_in_sync(config.min_insync_replicas, len(state.replicas))} (min.insync.replicas)"
    )


class _InTransaction:
    """The writes of one request in a transaction: once all its batches are checked they are admitted, or not."""

    def __init__(self, transactional_id: str, commits: HeldCommits, keeps_epoch: bool) -> None:
        self.texts = ErrorTexts()
        self._transactional_id = transactional_id
        self._commits = commits
        self._keeps_epoch = keeps_epoch
        self._writes: dict[TransactionName, list[TransactionalWrite]] = {}
        self._under_kept_epoch: dict[TransactionName, list[KeptEpochWrite]] = {}

    def check_acks(self, acks: int) -> None:
        """Raises ``TopicError`` unless all replicas are asked for: a commit must not lose what was acknowledged."""
        if acks != _ALL:
            text = f"acks is {acks}; with a transactional id it has to be -1 (all)"
            raise TopicError(ErrorCode.INVALID_REQUIRED_ACKS, text)

    def add(
        self,
        topic: Topic,
        index: int,
        opened: PartitionLog,
        batches: Batches,
        proceed: Callable[[Batches], None],
        slot: Slot,
    ) -> None:
        """The batches of one partition are fit. Raises ``TopicError`` when not all of them are of a transaction."""
        header = batches[0][1]
        if header.producer_id < 0 or not all(header.attributes & _TRANSACTIONAL for _, header in batches):
            text = "a request with a transactional id has transactional batches of a producer only"
            raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic.name!r}: {text}")

        def refuse(code: ErrorCode, text: str) -> None:
            slot(PartitionProduceResponse(index, code, error_message=self.texts(text)))
            self._commits.give_up((header.producer_id, header.producer_epoch), text)

        name = TransactionName(self._transactional_id, header.producer_id, header.producer_epoch)
        key = topic.name, topic.topic_id, index
        if self._keeps_epoch:
            kept = KeptEpochWrite(key, opened, lambda *transaction: proceed(_part_of(batches, *transaction)), refuse)
            self._under_kept_epoch.setdefault(name, []).append(kept)
            return
        write = TransactionalWrite(key, opened, header.base_sequence, partial(proceed, batches), refuse)
        self._writes.setdefault(name, []).append(write)

    def refused(self, records: bytes) -> None:
        """The batches of a partition are not fit: no commit waits for them any more."""
        try:
            header = read_header(records, 0)
        except ProtocolError:
            return
        self._commits.give_up((header.producer_id, header.producer_epoch), "a write was refused")

    def enter(self, admission: Admission) -> None:
        """Everything is checked."""
        for name, writes in self._writes.items():
            admission.enter(name, writes)
        for name, kept in self._under_kept_epoch.items():
            admission.enter_under_kept_epoch(name, kept)

    def give_up(self) -> None:
        """The request failed in the middle: nothing of it is written."""
        writes = [write.refuse for write in chain.from_iterable(self._writes.values())]
        writes += [write.refuse for write in chain.from_iterable(self._under_kept_epoch.values())]
        for refuse in writes:
            refuse(ErrorCode.UNKNOWN_SERVER_ERROR, "the request failed")


def _part_of(batches: Batches, producer_id: int, producer_epoch: int) -> Batches:
    """The batches of a producer that keeps its epoch, with headers that name the transaction they are part of."""
    named = []
    for batch, header in batches:
        kept_epoch = header.producer_epoch
        told = replace(header, producer_id=producer_id, producer_epoch=producer_epoch, kept_epoch=kept_epoch)
        named.append((told.pack() + memoryview(batch)[HEADER_BYTES:], told))
    return named


Slot = Callable[[PartitionProduceResponse], None]
"""The place for the result of one partition; to be called once."""

InOrder = Callable[[Call, TopicProduceData, bytes, Slot], Slot]
"""Of a request, a topic of it and the records of a partition: where a result goes first, on its way to its own place."""


class _PendingProduce:
    """Collects the results of one request's partitions and answers when the last is known or the time is over."""

    def __init__(self, call: Call, request: ProduceRequest, led: LedPartitions) -> None:
        self._call = call
        self._led = led
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._topics: list[tuple[str, list[PartitionProduceResponse | None]]] = []
        self._indexes = [partition.index for topic in request.topic_data for partition in topic.partition_data]
        self._missing = 0
        self._complete = False
        self._answered = False
        self._forget_bytes = call.keep_bytes()
        self._timer: asyncio.TimerHandle | None = None

    def slot(self, topic: str) -> Slot:
        """A place for the result of the next partition; call it once."""
        if not self._topics or self._topics[-1][0] != topic:
            self._topics.append((topic, []))
        results = self._topics[-1][1]
        place = len(results)
        results.append(None)
        self._missing += 1

        def fill(result: PartitionProduceResponse) -> None:
            if not self._answered:
                results[place] = result
            self._missing -= 1
            if self._complete and not self._missing:
                self._finish()

        return fill

    def give_up(self) -> None:
        """The request failed in the middle and is answered as a whole; its bytes are given back when the last is written."""
        self._answered = self._complete = True
        self._missing -= 1  # that of the partition that failed
        if not self._missing:
            self._finish()

    def all_appended(self) -> None:
        """Every partition has its slot: from here on the answer can leave."""
        self._complete = True
        if not self._missing:
            self._finish()
        elif self._acks != 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self._timeout_ms, 0) / 1000, self._on_timeout)

    def _finish(self) -> None:
        self._forget_bytes()  # not before: an answer by timeout leaves the batches in the queue of the disk
        if not self._answered:
            self._answer()

    def _on_timeout(self) -> None:
        indexes = iter(self._indexes)
        message = f"not on disk within {self._timeout_ms} ms; the batch may be stored later"
        for _, results in self._topics:
            for place, result in enumerate(results):
                index = next(indexes)
                if result is None:
                    code = ErrorCode.REQUEST_TIMED_OUT
                    results[place] = PartitionProduceResponse(index, code, error_message=message)
        self._answer()

    def _answer(self) -> None:
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        responses = tuple(
            TopicProduceResponse(topic, tuple(result for result in results if result is not None))
            for topic, results in self._topics
        )
        failed = [entry for topic in responses for entry in topic.partition_responses if entry.error_code]
        if self._acks == 0:
            self._call.finish_silently()
            if failed:
                # There is no answer that could carry the error: as in Kafka, the connection says it by closing.
                self._call.connection.close_with(f"records with acks=0 were refused: {failed[0].error_message}")
        else:
            leaders = {entry.current_leader_id for entry in failed}
            self._call.answer(ProduceResponse(responses, self._led.endpoints(leaders) if leaders else ()))
