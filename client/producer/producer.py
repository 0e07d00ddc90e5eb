"""The producer: records in, acknowledgements out.

``send`` chooses a partition and puts the record into that partition's batch; ``client.producer.sender`` carries batches to
the daemons. A record whose acknowledgement was lost is sent again; the daemon takes it once (KIP-98), unless ``acks`` or
``enable_idempotence`` say otherwise: then it may be in the log twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import add
from random import Random
from types import TracebackType
from typing import Any, Final, Generic, Self

from client.errors import ClosedError, IllegalStateError, RequestTimedOutError
from client.log import get_logger
from client.option_names import explains_options
from client.producer.accumulator import YIELD_AFTER_RECORDS, Accumulator, BulkRecords
from client.producer.acknowledgements import BulkAcknowledgement, RecordFuture
from client.producer.batch import (
    HEADER_MEMORY_BYTES,
    RECORD_MEMORY_BYTES,
    RECORD_OVERHEAD_BYTES,
    ProducerBatch,
)
from client.producer.buffer_pool import BufferPool
from client.producer.config import Acks, ProducerSettings
from client.producer.partition_queue import PartitionQueues
from client.producer.partitioner import Partitioner
from client.producer.record_limits import RecordLimits
from client.producer.sender import Sender, SenderCounts
from client.producer.sequences import ProducerIdentity
from client.producer.serialization import (
    bytes_column,
    checked_headers,
    checked_timestamp,
    headers_column,
    listed,
    record_sizes,
    timestamps_column,
    to_bytes,
)
from client.producer.topic import ProducedTopic, TopicLookups
from client.producer.transactional_records import TransactionalRecords
from client.transactions.ending import Outcome
from client.transactions.identity import TransactionalIdentity
from client.transactions.lifecycle import Transactions
from client.transactions.transaction import ABORT_WAIT_S, Transaction
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline, wait_s
from client.transport.metadata import Topology
from client.types.metrics import ProducerMetrics
from client.types.records import GroupMetadata, OffsetAndMetadata, RecordMetadata
from client.types.serdes import AnySerializer, K, V, bound_serializer
from client.types.spans import Spans
from protocol.columns import Headers
from protocol.compression import Compression
from protocol.messages import ApiKey
from protocol.subscription import TopicPartition

log = get_logger()

EXIT_ON_ERROR_MS: Final = 5_000
"""How long ``async with Producer(...)`` goes on sending when it is left by an exception, in milliseconds."""


class Producer(Generic[K, V]):
    """Sends records to topics. Use it inside ``async with``, or call ``start`` and ``stop``.

    Leaving ``async with`` sends what is queued as ``stop`` does, for up to ``delivery_timeout_ms``; when an exception leaves
    it, for five seconds. What could not be sent is counted in the log unless the program has looked at its futures.

    What is promised for the records of one partition:

    ====== =========== ============================ ====================== =====================================
    acks   idempotence acknowledged means           in the log             order
    ====== =========== ============================ ====================== =====================================
    "all"  on          on disk of every replica in  once                   of the calls, also through retries
                       sync (``min.insync.replicas``)
    "all"  off         the same                     once or more           of the calls; the copy of a record
                                                                           may come after later ones
    1      off         on the leader's disk         once or more, or lost  the same
                                                    with the leader
    0      off         written to the connection    at most once           of the calls
    ====== =========== ============================ ====================== =====================================

    A record that fails is in the log at most as often, and its error says whether it may be there. With idempotence it is
    then not sent again under a new sequence, so that it is never stored twice, unless the daemon forgot this producer while
    its first records were in flight.

    - ``acks``: "all" waits for every in-sync replica's disk, 1 for the leader's, 0 for nothing.
    - ``enable_idempotence``: the first row (KIP-98, KIP-679). It counts with ``acks="all"``; a producer that does not wait
      for what is stored cannot see to it that it is stored once.
    - ``partitioner``: chooses partitions instead of the default (``client.partitioner.Partitioner``).
      ``partitioner_adaptive``: records without keys go less often to partitions whose batches are not acknowledged as fast.
      ``partitioner_availability_timeout_ms``: if so, they do not go at all where nothing could be sent for so long; 0:
      never so.
    - ``batch_size``: bytes of a batch of one partition, before compression. ``linger_ms``: how long a batch waits for more
      records. With 0 a batch leaves at once while its partition is idle; what comes meanwhile forms the next.
    - ``compression``: None, "gzip" or "zstd" (needs the extra ``aiocohort[zstd]``).
    - ``max_in_flight``: requests in flight to one node. Without idempotence never more than one of a partition, which keeps
      its order; with it up to five batches of a partition are in flight.
    - ``max_request_bytes``: bound of a request and of a record (a request leaves with a MiB already where another may follow
      it); what the daemon takes (its ``max_frame_bytes``) bounds them
      as well. ``buffer_bytes``: bound of the memory that
      records take which are not acknowledged yet; above it ``send`` waits, for ``delivery_timeout_ms`` at most. Beside key,
      value and headers a record counts for 273 bytes (its future, mostly), each header for 208 more, a record of
      ``send_many`` for 81. While a request is in flight, and until it is acknowledged, its records are held a second time
      as it was encoded.
    - ``retries``: attempts after the first; None: as many as ``delivery_timeout_ms`` allows. That is how long a record may
      take from ``send`` to its acknowledgement; ``request_timeout_ms`` bounds one attempt.
    - ``key_serializer``, ``value_serializer``: make bytes of keys and values, ``None`` stays null: functions, as
      ``str.encode``, or objects that see topic and headers (``Serializer``), as ``JsonSerde()`` and ``MsgspecSerde(Order)``.
      ``Producer[K, V]`` is typed by them: ``send`` takes what they take.
    - ``transactional_id``: the producer writes in transactions, see ``transaction``. One that starts with the same id ends
      those of the one before it, which is fenced: ``ProducerFencedError``. ``transaction_timeout_ms``: a transaction that is
      open for longer is aborted.
    - ``clock`` gives wall time in ms since 1970; ``random`` draws partitions and jitter. Both are there for simulations.
    """

    @explains_options
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:7337",
        client_id: str | None = None,
        *,
        acks: Acks = "all",
        partitioner: Partitioner | None = None,
        partitioner_adaptive: bool = True,
        partitioner_availability_timeout_ms: float = 0,
        batch_size: int = 256 * 1024,
        linger_ms: float = 0,
        compression: Compression | None = None,
        enable_idempotence: bool = True,
        max_in_flight: int = 5,
        max_request_bytes: int = 4 * 1024 * 1024,
        buffer_bytes: int = 32 * 1024 * 1024,
        retries: int | None = None,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        key_serializer: AnySerializer[K] | None = None,
        value_serializer: AnySerializer[V] | None = None,
        clock: Callable[[], int] | None = None,
        random: Random | None = None,
    ) -> None:
        self._settings = ProducerSettings(
            acks, enable_idempotence, partitioner_adaptive, partitioner_availability_timeout_ms, batch_size, linger_ms,
            compression, max_in_flight, max_request_bytes, buffer_bytes, retries, request_timeout_ms, delivery_timeout_ms,
            transactional_id, transaction_timeout_ms,
        ).check()  # fmt: skip
        self._random = random or Random()
        self._clock = clock or _wall_clock_ms
        self._partitioner = partitioner
        self._key_serializer = bound_serializer(key_serializer, "key")
        self._value_serializer = bound_serializer(value_serializer, "value")
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=client_id or "cohort-producer",
            request_timeout_ms=request_timeout_ms,
            random=self._random,
        )
        transactional = transactional_id is not None
        self._identity = ProducerIdentity(transactional=transactional) if self._settings.idempotent else None
        self._pool = BufferPool(buffer_bytes)
        self._limits = RecordLimits(self._settings, self._pool)
        self._queues = PartitionQueues[ProducerBatch](self._limits.batch_bytes, linger_ms / 1000, self._identity)
        self._known_topics: dict[str, ProducedTopic] = {}
        self._topics = self._known_topics
        self._lent = False  # to process(), which alone sends with it
        self._spans: Spans | None = None  # of one that is traced
        self._let_in(not transactional)
        self._lookups = TopicLookups(self._cluster, delivery_timeout_ms)
        self._sender: Sender | None = None
        self._running = False
        self._stopped = False
        self._starting = asyncio.Lock()
        self._accumulator: Accumulator | None = None
        self._transactions: Transactions | None = None

    async def start(self) -> None:
        """Connects, and takes over the transactional id if there is one. Does nothing when the producer runs already.

        Raises ``RequestTimedOutError`` when no daemon answers within ``request_timeout_ms``, or does not give the id within
        ``delivery_timeout_ms``, and may then be tried again; ``InvalidTransactionTimeoutError``; ``ClosedError`` after
        ``stop``.
        """
        async with self._starting:
            if self._running:
                return
            self._check_not_stopped()
            self._loop = asyncio.get_running_loop()
            settings = self._settings.for_sender()
            transactional_id = self._settings.transactional_id
            sender = Sender(self._cluster, self._queues, self._pool, settings, self._identity, transactional_id)
            try:
                await self._cluster.start()
                self._check_not_stopped()
                if transactional_id is not None:
                    identity = TransactionalIdentity(
                        self._cluster, transactional_id, self._settings.transaction_timeout_ms
                    )
                    await identity.take_over(Deadline(self._settings.delivery_timeout_ms))
                    self._check_not_stopped()
            except GeneratorExit:
                raise  # nothing can be waited for any more
            except BaseException:
                await self._cluster.close()
                raise
            self._limits.heed(self._cluster.max_request_bytes(ApiKey.PRODUCE), self._cluster.client_id)
            self._queues.batch_size = self._limits.batch_bytes
            self._sender = sender
            self._accumulator = Accumulator(
                self._queues,
                self._pool,
                self._limits.batch_bytes,
                settings.compression,
                sender.wake,
                settings.delivery_timeout_s,
            )
            if transactional_id is not None:
                self._transactions = self._with_transactions(identity, sender, self._accumulator)
            self._cluster.on_change(self._topology_changed)
            self._running = True

    def _with_transactions(
        self, identity: TransactionalIdentity, sender: Sender, accumulator: Accumulator
    ) -> Transactions:
        assert self._identity is not None, "transactions need idempotence"
        records = TransactionalRecords(self._identity, sender, accumulator, self._let_in)
        transactions = Transactions(self._cluster, identity, records, self._settings.delivery_timeout_ms)
        sender.on_failure, transactions.spans = transactions.failed, self._spans
        return transactions

    def _let_in(self, taken: bool) -> None:
        """Whether ``send`` takes records: its first look is whether it knows the topic."""
        self._topics = self._known_topics if taken and not self._lent else {}

    async def stop(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> None:
        """Sends what is queued, for at most ``timeout`` seconds (or ``timeout_ms``), and closes.

        Records that are not acknowledged by then fail with ``ClosedError``. Without a limit it waits until each record is
        delivered or out of time, ``delivery_timeout_ms`` at most, also when no daemon is there. Callers who wait for room in
        the buffer get ``ClosedError`` at once. Records that failed and whose futures the program has not looked at are
        counted in the log. Further calls wait as well; the shortest limit of all counts. A call that is cancelled closes at
        once; calling it again waits for the end of that.

        A transaction that is open is aborted.
        """
        patience_s = wait_s(timeout, timeout_ms)
        self._stopped, self._running = True, False
        self._known_topics.clear()
        self._lookups.cancel()
        if self._accumulator is not None:
            self._accumulator.close("the producer was stopped before there was room for this record; it was not sent")
        try:
            if self._transactions is not None:
                await self._transactions.close(patience_s)
            if self._sender is not None:
                await self._sender.flush(patience_s)
        except RequestTimedOutError:
            log.warning(
                "producer_stopped_before_all_were_acknowledged",
                client_id=self._cluster.client_id,
                records=self._queues.records(),
                waited_s=patience_s,
            )
        except GeneratorExit:  # it is thrown away and can wait no more: that is left to another call, if there is one
            raise
        except BaseException:
            await self._close()
            raise
        await self._close()

    async def _close(self) -> None:
        """Fails what is left and closes all connections before it waits for anything: cancelling it leaves nothing open."""
        if self._sender is not None:
            self._sender.abort()
        if self._transactions is not None:
            self._transactions.cancel()
        await self._cluster.close()
        await self._lookups.ended()
        if self._sender is not None:
            await self._sender.close()
        if self._transactions is not None:
            await self._transactions.cancelled()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await (self.stop() if kind is None else self.stop(timeout_ms=EXIT_ON_ERROR_MS))

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordFuture:
        """Queues a record and gives the future of its ``RecordMetadata``.

        Waits only while the buffer is full, and at the first record of a topic for what the daemon says of it.
        ``value`` and ``key`` are bytes or None, unless the producer has serializers. Records of one partition are stored in
        the order of the calls. The future fails with ``RequestTimedOutError`` after ``delivery_timeout_ms``, or with the
        error of the daemon that refused the record. A cancelled ``send`` has not queued its record.
        Raises ``UnknownTopicOrPartitionError``, ``RecordTooLargeError`` above ``max_request_bytes`` or ``buffer_bytes``,
        ``RequestTimedOutError`` when there is no room, or no daemon that knows the topic, within ``delivery_timeout_ms``,
        ``ClosedError`` outside ``async with``, ``TypeError`` and ``ValueError`` for arguments that make no sense.
        """
        target = self._topics.get(topic) or await self._topic(topic)
        accumulator = self._accumulator
        assert accumulator is not None, "a topic is known after the start only"
        if accumulator.unyielded >= YIELD_AFTER_RECORDS:
            await accumulator.pause()
        size, memory = RECORD_OVERHEAD_BYTES, RECORD_MEMORY_BYTES
        checked: Headers = ()
        if headers:
            checked, headers_size = checked_headers(headers)
            size += headers_size
            memory += len(checked) * HEADER_MEMORY_BYTES
        key_bytes: Any = key
        value_bytes: Any = value
        if value is not None:
            if self._value_serializer is not None:
                value_bytes = self._value_serializer(value, topic, checked)
            if type(value_bytes) is not bytes:
                value_bytes = to_bytes("value", value_bytes)
            size += 0 if value_bytes is None else len(value_bytes)
        if key is not None:
            if self._key_serializer is not None:
                key_bytes = self._key_serializer(key, topic, checked)
            if type(key_bytes) is not bytes:
                key_bytes = to_bytes("key", key_bytes)
            size += 0 if key_bytes is None else len(key_bytes)
        timestamp_ms = self._clock() if timestamp_ms is None else checked_timestamp(timestamp_ms)
        if size > self._limits.record_bytes or size + memory > self._pool.capacity:
            raise self._limits.too_large(topic, size)
        partition = target.choose(key_bytes, value_bytes, size) if partition is None else target.checked(partition)
        memory += size
        if not self._pool.try_reserve(memory):
            await accumulator.wait_for_room(memory)
        queue = target.queues[partition]
        batch = queue.open
        if batch is None or batch.size + size > self._limits.batch_bytes:
            batch = accumulator.next_batch(queue)
        future: RecordFuture = self._loop.create_future()
        batch.append(key_bytes, value_bytes, timestamp_ms, checked, size, future)
        accumulator.unyielded += 1
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordMetadata:
        """``send``, and then waits for the acknowledgement. When it is cancelled the record may or may not be sent."""
        return await (
            await self.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
        )

    async def send_many(
        self,
        topic: str,
        values: Iterable[V | None],
        keys: Iterable[K | None] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | Iterable[int] | None = None,
        headers: Iterable[Sequence[tuple[str, bytes | None]] | None] | None = None,
    ) -> list[RecordMetadata]:
        """Sends many records at a fraction of ``send``'s cost, and waits until all are acknowledged.

        Gives their metadata in the order of ``values``. ``keys`` and ``headers`` have one entry (or None) a value;
        ``timestamp_ms`` is one for all, one for each, or None for now. Records of one partition, hence of one key, keep
        their order; without keys, runs of a batch's size go to one partition after the other.

        Raises as ``send`` does, before anything is sent, when an argument is wrong. When records fail later, all others are
        still tried, and the first error is raised with a note saying how many failed. A cancelled call may have sent a part.
        """
        target = self._topics.get(topic) or await self._topic(topic)
        value_list = listed("value", values)
        header_column, header_sizes = None, None
        if headers is not None:
            header_column, header_sizes = headers_column(headers, len(value_list))
        value_column = bytes_column("value", value_list, self._value_serializer, topic, header_column)
        key_column = None
        if keys is not None:
            key_list = listed("key", keys)
            if len(key_list) != len(value_list):
                raise ValueError(f"values: {len(value_list)}, keys: {len(key_list)}; every record needs one of each")
            key_column = bytes_column("key", key_list, self._key_serializer, topic, header_column)
        sizes = record_sizes(key_column, value_column)
        if header_sizes is not None:
            sizes = list(map(add, sizes, header_sizes))
        times = self._clock() if timestamp_ms is None else timestamps_column(timestamp_ms, len(value_column))
        if partition is not None:
            target.checked(partition)
        if not sizes:
            return []
        records = BulkRecords(key_column, value_column, header_column, times, sizes)
        self._limits.check_many(topic, records)
        bulk = BulkAcknowledgement(len(sizes), self._loop.create_future())
        accumulator = self._accumulator
        assert accumulator is not None, "a topic is known after the start only"
        try:
            if partition is not None or (key_column is None and target.spreads_evenly):
                await accumulator.append_run(bulk, target, partition, records, range(len(sizes)))
            else:
                await accumulator.append_scattered(bulk, target, records)
            await bulk.future
            return await bulk.metadata()
        finally:
            bulk.future.cancel()

    async def flush(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> None:
        """Waits until every record queued before this call is acknowledged or has failed; its future tells which.

        Nothing lingers meanwhile. Raises ``RequestTimedOutError`` after ``timeout`` seconds (or ``timeout_ms``); the records
        stay queued.
        """
        patience_s = wait_s(timeout, timeout_ms)
        self._check_running()
        if self._sender is not None:
            await self._sender.flush(patience_s)

    def transaction(self, version: int | None = None) -> Transaction:
        """A transaction: all its records and offsets take effect together, or none does. One at a time::

            async with producer.transaction() as tx:
                await tx.send("payments", value)
                await tx.send_offsets(consumer)

        Leaving the block commits and returns when the decision is on disk. An exception that leaves it aborts, and goes on.
        ``tx.outcome`` is "committed", "aborted", or None when it is not known. Inside, ``send`` of the producer belongs to
        the transaction, too; outside it raises ``IllegalStateError``.

        ``version`` is a whole number from 0 that rises with each piece of work. It is stored with the commit, so a program
        that does its work again after a crash is told what is done: ``AlreadyCommittedError``.

        Leaving raises ``TransactionAbortedError`` when the transaction was aborted instead, by its timeout, an administrator
        or a record that failed: do it again. ``TransactionUncertainError`` when the commit was not answered within
        ``delivery_timeout_ms``: ``settle`` finds out. ``ProducerFencedError`` when another producer has the id.
        """
        transactions = self._of_the_program()
        self._check_not_stopped()
        if version is None:
            return Transaction(transactions, self)
        if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 2**63:
            raise ValueError(f"version is {version!r}; it must be a whole number from 0, or None")
        transactions.check_version(version)
        return Transaction(transactions, self, version)

    async def begin_transaction(self) -> Transaction:
        """Begins a transaction without a block: ``commit_transaction`` or ``abort_transaction`` ends it."""
        return await self.transaction().__aenter__()

    async def commit_transaction(self) -> None:
        """Commits what is open; raises as leaving the block of ``transaction`` does.

        After ``TransactionUncertainError`` it may be called again, and goes on with the same commit.
        """
        transactions = self._of_the_program()
        await transactions.commit(transactions.latest())

    async def abort_transaction(self) -> None:
        """Aborts what is open. Records that were not acknowledged fail with ``TransactionAbortedError``.

        Does nothing when the latest transaction is aborted already, as after a commit that said so.
        """
        transactions = self._of_the_program()
        await transactions.abort(transactions.latest(), ABORT_WAIT_S, None)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group_metadata: GroupMetadata | str
    ) -> None:
        """See ``Transaction.send_offsets``."""
        await self._of_the_program().latest().send_offsets(offsets, group_metadata)

    async def settle(self) -> Outcome | None:
        """Finds out what became of the latest transaction that ended: "committed" or "aborted".

        None when its coordinator does not answer within ``delivery_timeout_ms``, or there was none.
        """
        return await self._transactional().settle()

    @property
    def committed_version(self) -> int:
        """The highest version that the transactional id has committed, -1 for none. Known from the start on."""
        return self._transactional().committed_version

    def _of_the_program(self) -> Transactions:
        """The transactions, which the program begins and ends unless ``process`` does."""
        transactions = self._transactional()
        if self._lent:
            raise IllegalStateError(
                f"process(producer=...) begins and ends the transactions of {transactions.transactional_id!r} itself: "
                "return Outputs from its handler, and do anything else with another producer, with its own transactional_id"
            )
        return transactions

    def _transactional(self) -> Transactions:
        if self._settings.transactional_id is None:
            raise IllegalStateError("this producer has no transactions: give it a transactional_id")
        if self._transactions is None:
            self._check_not_stopped()
            raise ClosedError("this producer is not started: use it inside 'async with'")
        return self._transactions

    def metrics(self) -> ProducerMetrics:
        """What it has sent, and what waits, since it was started."""
        counts = SenderCounts() if self._sender is None else self._sender.counts
        pool = self._pool
        return ProducerMetrics(
            **asdict(counts),
            buffered_bytes=pool.used,
            buffer_capacity_bytes=pool.capacity,
            sends_waiting=pool.waiting,
        )

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, ascending. Raises ``UnknownTopicOrPartitionError`` when it does not exist."""
        return list((self._known_topics.get(topic) or await self._look_up(topic)).partitions)

    async def _topic(self, topic: str) -> ProducedTopic:
        """A topic that is produced to for the first time. Raises when no transaction is open that would have to be."""
        self._check_running()
        transactions = self._transactions
        if transactions is None:
            return await self._look_up(topic)
        if self._lent:
            raise IllegalStateError(
                f"process(producer=...) sends with the producer of {transactions.transactional_id!r}, in one transaction "
                "with the offsets: return Outputs from its handler, and send anything else with another producer"
            )
        transactions.check_open()
        transaction = transactions.current
        target = self._known_topics.get(topic) or await self._look_up(topic)
        transactions.check_open(transaction)
        return target

    async def _look_up(self, topic: str) -> ProducedTopic:
        """Learns about a topic."""
        self._check_running()
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a string, not {type(topic).__name__} {topic!r}")
        await self._lookups.wait_for(topic)
        self._check_running()
        target, sender = self._known_topics.get(topic), self._sender
        if target is None:
            assert sender is not None, "it runs"
            target = self._known_topics[topic] = ProducedTopic(
                topic,
                self._cluster.topology,
                queue_of=self._queues.queue,
                partitioner=self._partitioner,
                random=self._random,
                batch_size=self._limits.batch_bytes,
                is_slow=sender.is_slow if self._settings.partitioner_adaptive else None,
            )
        return target

    def _topology_changed(self, topology: Topology) -> None:
        for name, target in list(self._known_topics.items()):
            if name in topology.topics:
                target.update(topology)
            elif name in topology.asked:
                del self._known_topics[name]
        if self._sender is not None:
            self._sender.leaders_changed()

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise ClosedError("this producer was stopped: make a new one")

    def _check_running(self) -> None:
        if not self._running:
            raise ClosedError("this producer is not started, or stopped already: use it inside 'async with'")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
