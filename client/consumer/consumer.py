"""``Consumer``: what programs call. It hands on to its parts, which ``parts.py`` lists and puts together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Generic, Self

from client.assignors import Assignor, CooperativeStickyAssignor, RangeAssignor
from client.consumer.arguments import Commitable, check_offset, partition_of, partitions_of
from client.consumer.config import (
    DEFAULT_FETCH_MAX_BYTES,
    DEFAULT_PARTITION_FETCH_BYTES,
    ConsumerSettings,
    OffsetReset,
)
from client.consumer.error_policy import OnBatchError, OnError
from client.consumer.handler_calls import BatchLimits
from client.consumer.parts import ConsumerParts
from client.consumer.process_options import Order, ProcessOptions
from client.consumer.rebalance_listener import RebalanceListener
from client.errors import ClosedError, IllegalStateError
from client.group import DEFAULT_STOP_S, State
from client.option_names import explains_options
from client.producer.producer import Producer
from client.transport.background_loop import Background
from client.transport.deadline import Deadline, wait_s
from client.types.columns import RecordColumns
from client.types.metrics import ConsumerMetrics
from client.types.records import ConsumerRecord, GroupMetadata, IsolationLevel, OffsetAndMetadata, OffsetAndTimestamp
from client.types.serdes import AnyDeserializer, K, V
from protocol.messages.records import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from protocol.subscription import TopicPartition


class Consumer(Generic[K, V]):
    """Reads topics, alone or as a member of a group::

        async with Consumer("orders", bootstrap_servers="127.0.0.1:7337", group_id="billing") as consumer:
            async for record in consumer:
                ...

    **Group.** ``group_id`` shares the partitions of the topics among all consumers that name it; ``None`` reads alone, all
    partitions or those of ``assign``. ``assignors``: strategies in order of preference, classes or instances. When all of
    them are cooperative, partitions that stay are read on through a rebalance, and only those that go are given up
    (KIP-429); one that is not has the consumer give up everything before each rebalance. The default is range, which is not,
    and cooperative sticky behind it: a group becomes cooperative when its members are restarted, one after the other, with
    ``assignors=[CooperativeStickyAssignor]``. ``group_instance_id``, a name that
    no other process of the group has, makes a static member (KIP-345): neither ``stop`` nor ``unsubscribe`` leaves the
    group, and a process that comes back with the name within ``session_timeout_ms`` gets the partitions it had, without a
    rebalance. They go to others when the session is over, or at once by ``Admin.remove_members``. A second process with
    the name takes the place of the first, which raises ``FencedInstanceIdError`` at every poll until it is stopped.

    ``client_rack`` (``None``): the rack, or zone, in which this consumer runs (KIP-881). When nodes say their racks too, the
    assignors but round robin prefer to give a member partitions that have a replica in its rack; balance comes first.

    Heartbeats run in a background thread, so code that blocks the event loop costs no membership; nor does it hold up
    others that join, if this member holds its partitions through a rebalance (``process``, cooperative assignors): after a
    second the thread joins for it, and only partitions that go from here wait for the program. What stops that thread too is
    a C call that keeps the GIL: ``re.match(r"(a+)+$", "a" * 28 + "b")`` for 12 s, twice as long for each more letter,
    ``json.dumps`` of 3 million numbers for 1.4 s. Beyond ``session_timeout_ms`` the membership is lost, safely:
    ``on_partitions_lost``, and no commit. Such work belongs into a process, ``await loop.run_in_executor(pool, work,
    record.value)`` with a ``concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))``.

    What ends a stuck consumer is ``max_poll_interval_ms`` (default 300,000): after so long without a poll it leaves its
    group, the next poll raises ``MaxPollIntervalExceededError``, and the one after joins again; ``lease`` gives a slow
    record more time.
    ``session_timeout_ms`` (45,000): without heartbeats for so long the daemon takes a member for dead.
    ``heartbeat_interval_ms`` (3,000): how long one heartbeat waits at the daemon, at most a third of the session.
    ``rebalance_timeout_ms`` (``None``: as ``max_poll_interval_ms``): how long the group waits for this member at a
    rebalance. ``revoke_grace_ms`` (10,000): how long a rebalance lets the program finish the records it was handed before
    they count as not done: the rest of what ``getmany`` returned, or the handlers of ``process`` whose partitions go to
    another member. Set it above the time that this takes.

    **Offsets.** ``auto_offset_reset`` says where to begin without a committed offset, or when it is out of range:
    "latest", "earliest", or "none" to raise ``NoOffsetForPartitionError``. A warning says what is skipped. "latest" is about
    what is there when the consumer subscribes: topics and partitions that appear later are read from their beginning until
    an offset is committed, so that no record is lost before they are noticed, and so is a topic that was deleted and
    created anew. The leader of a group tells members that joined after a partition had appeared. With ``enable_auto_commit``
    offsets are committed every ``auto_commit_interval_ms`` (5,000), before partitions are given up and at ``stop``. An
    automatic commit never covers records of the latest poll: asking for more says that the earlier ones are done. So a
    record in work when the program fails, is cancelled, or stops is delivered again. To have the last ones count,
    ``await consumer.commit()`` before leaving. Several tasks that poll one consumer should use ``commit(record)``
    instead, or better ``process``, which runs a task for each partition and commits what their handlers have finished.

    **Fetching.** Records are fetched ahead of the program, in turns over the partitions. ``fetch_max_bytes`` (50 MiB) bounds
    what is held in all and ``max_partition_fetch_bytes`` (1 MiB) one answer about a partition, of which about two are held;
    bytes as they are stored, inflated one batch at a time. Neither keeps the reading from going on: a batch that is larger
    comes whole, and a partition of which nothing is held may fetch one answer although others, paused perhaps, hold all
    there is. A fetch waits at the daemon until ``fetch_min_bytes`` (1) have come together, over all partitions it asks for,
    or more is there than it has a place for, but at most ``fetch_max_wait_ms`` (500): larger fetches cost less and come
    later. ``max_poll_records``: upper bound of one ``getmany``; ``None`` for 5,000.

    **Keys and values** are bytes, or what ``key_deserializer`` and ``value_deserializer`` make of them: functions of bytes,
    as ``bytes.decode``, or objects that see topic and headers (``Deserializer``), as ``JsonSerde()`` and
    ``MsgspecSerde(Order)``. ``Consumer[K, V]`` and its records are typed by them; one that is not given makes ``Any``.
    Null stays None without a call, whatever the type says: ``consumer: Consumer[bytes, Order | None] = Consumer(...)`` has
    a type checker think of it. They are called on the event loop when a record is handed out, so they must not block: a
    schema that has to be asked for is kept.

    **Transactions.** With ``isolation_level="read_committed"``, the default, a partition is read up to its last stable
    offset: the records of transactions that were aborted are left out, and what comes behind the first record of an open
    one waits until that is decided. ``end_offsets``, ``lag`` and "latest" mean that offset then. A consumer that waits for
    the same transaction for 10 s says so in the log. "read_uncommitted" reads all that is acknowledged, decided or not.
    Committed offsets that an open transaction is about to change are waited for in either case. Other settings:
    ``request_timeout_ms`` (30,000) bounds every other wait for a daemon. ``background``, ``random`` and ``clock``, wall time
    in ms since 1970, are for simulations.

    **Threads.** ``process`` calls a plain function on the event loop, and one that blocks (``time.sleep``, a driver of a
    database) holds up everything. With ``threads`` (``None``; 1 to 1,000) it is called in a pool of so many threads and
    holds up its own partition only; they bound ``concurrency`` too. In a thread the consumer's methods must not be called.
    ``await asyncio.to_thread(work, record)`` in a coroutine does the same for a part of the work.

    **Order.** With ``process(order="key")`` only records of the same key, as it is stored, are handled in order and one at
    a time; others of their partition are handled beside them and before them, ``concurrency`` at once over all partitions,
    which has to be given. Those without a key have no order, and what was taken before a ``pause`` is handled still. Only
    what is done without a gap is committed: when the process dies, all behind the first record that is not done comes
    again, at most 1,000 records and about 1 MiB of a partition. The record of a handler that fails for good, or is
    cancelled, is not passed over either. ``commit(record)`` raises ``IllegalStateError`` then, and ``producer`` is not
    taken. After a ``seek`` what was in work counts no more.

    **Done** is a record whose handler has returned, and only that. With ``enable_auto_commit``, what is done is
    committed every ``auto_commit_interval_ms``, before partitions are given up, at ``stop``, and when ``process`` ends.
    Without it nothing is: ``await consumer.commit(record)`` in the handler, or ``commit()``, which stores what all
    handlers have finished.

    **Rebalances.** Partitions that stay here are not disturbed, whatever the assignor. Handlers of those that go to
    another member may finish for ``revoke_grace_ms`` (10,000); then they are cancelled, and given 5 s to clean up, so
    the next owner waits for 15 s at most. What was finished is committed before that, what was cancelled comes again
    there. No handler works on a partition after ``on_partitions_revoked`` was called for it, unless it outlasts those
    5 s; the log says so. Handlers of partitions that were lost are cancelled at once. The same grace is given when
    ``process`` is cancelled, fails, or ends by ``stop``, after which it returns. A thread cannot be cancelled: a handler
    in a thread of ``threads`` or ``asyncio.to_thread`` is cancelled when its thread has ended, and until then no other
    handler of this consumer gets a record of its partition. Threads of ``asyncio.gather`` and ``loop.run_in_executor`` are
    not noticed: such a handler is cancelled at once, its threads run on, and the record may be handled again beside them.

    **Exactly once.** With ``producer``, one with a ``transactional_id`` that nothing else uses meanwhile, the handler
    returns ``Output``s (one, an iterable of them, or None), and each record counts once: its outputs and its offset are
    committed in one transaction, through crashes of either side, rebalances and timeouts. That holds for what readers
    with read_committed see of the outputs, and for nothing else that a handler does. A transaction takes in what all
    handlers have finished within ``commit_interval_ms`` (100); a commit halts none of them. A handler that fails or is
    cancelled leaves nothing behind. After an abort all partitions go back to what is committed, the log says why, and
    the work is done again; what that does not help against, such as ``ProducerFencedError``, is raised. Before
    partitions are given up, what is done is committed. Nothing else commits offsets meanwhile: ``commit`` raises
    ``IllegalStateError``, and so do ``assign`` and ``unsubscribe``. Dead letters are outputs too. Needs a ``group_id``.

    Raises ``ValueError`` for settings that make no sense, ``TypeError`` for options that it does not have, naming the right
    one, and for topics that are no text.
    """

    @explains_options
    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:7337",
        group_id: str | None = None,
        client_id: str | None = None,
        group_instance_id: str | None = None,
        client_rack: str | None = None,
        assignors: Sequence[Assignor | type[Assignor]] = (RangeAssignor, CooperativeStickyAssignor),
        auto_offset_reset: OffsetReset = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        rebalance_timeout_ms: int | None = None,
        revoke_grace_ms: int = 10_000,
        max_poll_records: int | None = None,
        fetch_max_bytes: int = DEFAULT_FETCH_MAX_BYTES,
        max_partition_fetch_bytes: int = DEFAULT_PARTITION_FETCH_BYTES,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        isolation_level: IsolationLevel = "read_committed",
        key_deserializer: AnyDeserializer[K] | None = None,
        value_deserializer: AnyDeserializer[V] | None = None,
        request_timeout_ms: int = 30_000,
        background: Background | None = None,
        random: Random | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._settings = ConsumerSettings(
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            client_id=client_id or "cohort-consumer",
            group_instance_id=group_instance_id,
            client_rack=client_rack,
            isolation_level=isolation_level,
            assignors=tuple(assignor() if isinstance(assignor, type) else assignor for assignor in assignors),
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            rebalance_timeout_ms=max_poll_interval_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
            revoke_grace_ms=revoke_grace_ms,
            max_poll_records=max_poll_records,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            request_timeout_ms=request_timeout_ms,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
        )
        self._take(ConsumerParts(self._settings, background, random or Random(), clock))
        if topics:
            self.subscribe(topics)

    def _take(self, parts: ConsumerParts) -> None:
        self._cluster = parts.cluster
        self._assignment = parts.assignment
        self._positions = parts.positions
        self._fetcher = parts.fetcher
        self._coordinator = parts.coordinator
        self._collector = parts.collector
        self._process = parts.process
        self._lifecycle = parts.lifecycle

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and begins to join the group, without waiting for the end of that.

        Raises ``RequestTimedOutError`` when no daemon answers within ``request_timeout_ms``, ``ClosedError`` after ``stop``.
        """
        await self._lifecycle.start()

    async def stop(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> None:
        """Commits (see the class text), calls ``on_partitions_revoked``, leaves the group, closes all connections.

        Done within ``timeout`` seconds (or ``timeout_ms``; default 30 s), daemon or no daemon; what could not be done by
        then is logged.
        A poll that waits raises ``ClosedError``, an ``async for`` ends. What a listener raises now is logged. Calling it
        again waits for a call that is under way, and finishes what a cancelled one has left undone. Raises
        ``IllegalStateError`` inside a rebalance listener and inside a handler of ``process``.
        """
        patience_s = wait_s(timeout, timeout_ms)
        await self._lifecycle.stop(Deadline(1000 * (DEFAULT_STOP_S if patience_s is None else patience_s)))

    close = stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def state(self) -> State:
        """One of "unjoined", "joining", "stable", "rebalancing", "fenced" (out of the group for now) or "closed".

        A consumer that reads without membership is "stable" once it runs.
        """
        return self._coordinator.state

    # --- what to read, and as whom ----------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads ``topics``, or every topic whose whole name matches the regular expression ``pattern``.

        Replaces an earlier subscription. Topics that appear later, and partitions that are added, are picked up and read
        from their beginning, unless ``auto_offset_reset`` is "none". A warning tells once of a named topic that does not
        exist, and of a pattern that no topic matches. Raises ``ValueError`` for both or none, ``TypeError`` for names that
        are no text and for a ``listener`` whose methods do not take what they are given, ``IllegalStateError`` after
        ``assign``, ``ClosedError`` after ``stop``.
        """
        self._coordinator.subscribe(topics, pattern, listener)

    def unsubscribe(self) -> None:
        """Ends the subscription or the assignment; a member gives up its partitions and leaves its group.

        A static member stays in it until its session is over, as after ``stop``.
        """
        self._coordinator.unsubscribe()

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, without membership. Offsets of ``group_id``, if given, are used and committed.

        Replaces an earlier assignment; partitions that stay keep their position. Raises ``IllegalStateError`` after
        ``subscribe``, ``TypeError`` for what is no partition, ``ClosedError`` after ``stop``. For a partition that does not
        exist each poll raises ``UnknownTopicOrPartitionError``, and the others are read.
        """
        self._coordinator.check_not_closed()
        self._coordinator.assign(partitions_of(tps))

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this consumer reads at the moment."""
        return frozenset(self._assignment.states)

    def group_metadata(self) -> GroupMetadata:
        """This member's identity in its group. Raises ``IllegalStateError`` without a ``group_id``."""
        return self._coordinator.group_metadata()

    async def enforce_rebalance(self, reason: str) -> None:
        """Makes the group rebalance, and returns when this member has its new share (KIP-568).

        ``reason`` is shown to people. Raises ``IllegalStateError`` without membership and after ``unsubscribe``,
        ``ClosedError`` when the consumer is stopped meanwhile, ``RequestTimedOutError`` when the group does not settle
        within the rebalance timeout.
        """
        self._coordinator.check_running()
        self._process.check_outside_handlers("enforce_rebalance()")
        await self._coordinator.enforce_rebalance(reason)

    # --- records ----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        try:
            return await self._collector.getone([])
        except ClosedError:
            if self._coordinator.closed:
                raise StopAsyncIteration from None
            raise

    async def getone(self, *tps: TopicPartition) -> ConsumerRecord[K, V]:
        """The next record, of these partitions or of any; waits until there is one. Cancelling it loses nothing.

        A partition that is not assigned has none until it is. Raises ``ClosedError`` outside ``start`` and ``stop``,
        ``MaxPollIntervalExceededError``, ``TypeError`` for what is no partition,
        ``NoOffsetForPartitionError``, ``CorruptMessageError``, ``RecordDeserializationError``, what a listener raised, and
        what keeps this member out of its group.
        """
        return await self._collector.getone(partitions_of(tps))

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """Buffered records by partition, of these partitions or of all; an empty dict when none came in time.

        Waits up to ``timeout_ms`` for the first ones. At most ``max_records`` (default ``max_poll_records``; 5,000 when
        neither is given). Cancelling it loses nothing. Raises as ``getone``, and ``TypeError`` or ``ValueError`` for a time
        or a number that is none.
        """
        return await self._collector.getmany(frozenset(partitions_of(tps)), timeout_ms, max_records)

    async def getmany_columns(
        self, *tps: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[RecordColumns]]:
        """Buffered records by partition, as columns: one ``RecordColumns`` for each batch, or part of one.

        For programs that pass records on to Arrow or NumPy: no Python object is made for a record, and nothing is copied.
        Otherwise as ``getmany``, with which it may be mixed: the same positions, limits, commits and errors. Deserializers
        are not called. Without a limit it hands out all that is buffered.
        """
        return await self._collector.getmany_columns(frozenset(partitions_of(tps)), timeout_ms, max_records)

    async def process(
        self,
        handler: Callable[[ConsumerRecord[K, V]], Awaitable[Any] | Any],
        *,
        concurrency: int | None = None,
        order: Order = "partition",
        threads: int | None = None,
        on_error: OnError | None = None,
        producer: Producer | None = None,
        commit_interval_ms: float = 100,
    ) -> None:
        """Calls ``handler(record)``, coroutine or plain, for every record until ``stop``, an error, or cancellation.

        Each partition has a task of its own: its records are handled in order and one at a time, partitions beside each
        other. ``concurrency`` bounds the handlers that run at once over all partitions; ``None`` leaves it at one a
        partition. Partitions take turns, and a slow one holds up no other: beyond ``max_partition_fetch_bytes`` nothing is
        fetched for it. Of ``threads``, ``order`` and ``producer``, of commits and of rebalances the class text tells.

        **Errors.** When a handler raises, ``process`` ends the other handlers in this way and raises ``HandlerError``,
        which names the record; that one comes first when ``process`` is called again. ``on_error`` may say otherwise:
        "skip" (the record counts as done), "retry" (as ``Retry()``), ``Retry(attempts=5, then="skip")``,
        ``DeadLetter("orders.dlq")``, or a function of ``(record, error)``, plain or coroutine, that returns one of these or
        "raise". It is asked too when a deserializer fails; the record has the stored bytes then. Otherwise that is raised
        as ``RecordDeserializationError``.

        A handler that runs for longer than ``max_poll_interval_ms``, or its ``lease``, whatever others do, ends the
        membership: all handlers are cancelled and ``process`` raises ``MaxPollIntervalExceededError``; the next call joins
        again. Each attempt of a retry counts by itself. Without membership no other member could take over, and nothing
        is watched.

        In a handler, ``pause`` and ``resume`` take effect after its record. ``seek`` does too: the next record is the one
        sought, and what is committed is that position. ``stop`` and ``enforce_rebalance`` would wait for the handler
        itself and raise ``IllegalStateError``. So do ``getone``, ``getmany`` and a second ``process`` while this one runs.
        Raises what ``getone`` raises, and ``ValueError`` or ``TypeError`` for arguments that make no sense.
        """
        options = ProcessOptions(
            concurrency=concurrency,
            order=order,
            threads=threads,
            on_error=on_error,
            producer=producer,
            commit_interval_ms=commit_interval_ms,
        )
        await self._process.run(handler, options)

    async def process_batch(
        self,
        handler: Callable[[list[ConsumerRecord[K, V]]], Awaitable[Any] | Any],
        *,
        max_records: int = 500,
        max_wait_ms: float = 0,
        concurrency: int | None = None,
        threads: int | None = None,
        on_error: OnBatchError | None = None,
        producer: Producer | None = None,
        commit_interval_ms: float = 100,
    ) -> None:
        """Calls ``handler(records)`` with one to ``max_records`` records of one partition, in their order.

        What is buffered when the handler is called makes a batch, ``max_records`` (1 to 1,000,000) at most. With
        ``max_wait_ms`` (0; up to an hour) fewer wait so long for more, but not for what the buffers have no room for
        (``max_partition_fetch_bytes``, ``fetch_max_bytes``). A batch is done when its handler has returned, as a whole: when
        it fails or is cancelled all its records come again. ``on_error`` is about the batch: a function gets
        ``(records, error)``, ``Retry`` hands the same records out again, "skip" passes over all of them, a ``DeadLetter``
        keeps each. A record that a deserializer does not take is a batch of its own. All else is as for ``process``.
        """
        options = ProcessOptions(
            concurrency=concurrency,
            threads=threads,
            on_error=on_error,
            producer=producer,
            commit_interval_ms=commit_interval_ms,
            batch=BatchLimits(max_records, max_wait_ms),
        )
        await self._process.run(handler, options)

    def lease(self, record: ConsumerRecord, seconds: float) -> None:
        """Work on ``record`` may take ``seconds`` from now, although ``max_poll_interval_ms`` would be over before that.

        In ``process`` that holds for the handler of this record, and all others are watched as before; otherwise for what
        the last poll handed out, until the next poll. It never shortens the time, and may be renewed for as long as the
        work goes well. A program that is stuck is found when the lease is over, so take it as short as the work allows. It
        holds up no rebalance: a partition that goes to another member takes its records along, lease or no lease.

        Raises ``ValueError`` for a time that is not above 0 or longer than a day, ``IllegalStateError`` when the record is
        not in work here: its partition has gone, or its handler has ended.
        """
        self._coordinator.lease(record, seconds)

    def pause(self, *tps: TopicPartition) -> None:
        """Hands out no records of these partitions until ``resume``.

        A pause outlasts rebalances: of a partition that stays, and of one that was given up and comes back with the next
        generation, as all do in a group that is not cooperative. It ends when the partition goes to another member, and with
        ``unsubscribe``. What was buffered is kept and handed out after ``resume``, unless the partition was given up
        meanwhile; then it is fetched again.

        Raises ``IllegalStateError`` for a partition that is not assigned, ``ClosedError`` after ``stop``.
        """
        self._coordinator.check_not_stopped()
        self._assignment.pause(partitions_of(tps))

    def resume(self, *tps: TopicPartition) -> None:
        """Ends ``pause``; during a rebalance also of partitions that this consumer has given up and may get back.

        Raises as ``pause`` does, for a partition that is neither assigned nor ``paused``.
        """
        self._coordinator.check_not_stopped()
        self._assignment.resume(partitions_of(tps))
        self._positions.changed()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused.

        Between giving up its partitions and the next assignment a consumer has none, but the pauses of those that may come
        back are among these: ``resume(*paused())`` ends every pause at any time.
        """
        return frozenset(self._assignment.paused)

    # --- offsets; every call that asks a daemon is bounded by ``request_timeout_ms`` ------------------------------------

    async def commit(self, offsets: Commitable = None) -> None:
        """Stores offsets for the group and returns when they are safe.

        ``None``: the positions of all partitions, that is every record handed out so far, those of the latest poll included;
        while ``process`` runs, up to where its handlers have finished.
        A mapping: the next offset to read of each partition. A record: that one and all before it in its partition; one
        that was handed out before its partition was lost and came back is refused, since it comes again.
        Raises ``CommitFailedError`` with the true cause when a partition is not this member's any more,
        ``RequestTimedOutError`` when no daemon answers, ``IllegalStateError`` without a ``group_id``, ``ValueError`` and
        ``TypeError`` for what is no offset.
        """
        self._coordinator.check_running()
        await self._coordinator.commit(offsets)

    def consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What ``commit()`` would store now, for a transaction to commit it: ``await tx.send_offsets(consumer)``.

        Raises ``CommitFailedError`` when records in the program's hands are of partitions that went since.
        """
        return self._coordinator.consumed_offsets()

    async def committed(self, *tps: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none; of all assigned partitions when none is named."""
        self._coordinator.check_running()
        self._check_group()
        asked = partitions_of(tps or self._assignment.states)
        found = await self._positions.committed(asked)
        return {tp: found.get(tp) for tp in asked}

    async def position(self, tp: TopicPartition) -> int:
        """The offset of the next record of ``tp`` to be handed out, waiting until it is known.

        Raises ``IllegalStateError`` when it is not assigned, ``NoOffsetForPartitionError`` when there is no offset and no
        policy, ``RequestTimedOutError`` when no daemon answers.
        """
        self._coordinator.check_running()
        return await self._positions.position(partition_of(tp))

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """The next record of ``tp`` handed out is the one at ``offset``, or the first after it.

        An offset outside the log is treated as ``auto_offset_reset`` says. Raises ``IllegalStateError`` when ``tp`` is not
        assigned, ``ValueError`` for a number that is no offset, ``TypeError`` for what is no whole number, and
        ``ClosedError`` after ``stop``.
        """
        self._coordinator.check_not_stopped()
        self._positions.seek(partition_of(tp), check_offset("the offset to seek", offset))

    async def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Goes to the first offset still there, of all assigned partitions when none is named."""
        self._coordinator.check_running()
        await self._positions.seek_to("earliest", partitions_of(tps))

    async def seek_to_end(self, *tps: TopicPartition) -> None:
        """Goes to the end of the log as it is now, of all assigned partitions when none is named."""
        self._coordinator.check_running()
        await self._positions.seek_to("latest", partitions_of(tps))

    async def seek_to_committed(self, *tps: TopicPartition) -> None:
        """Goes back to the committed offsets; a partition without one goes where ``auto_offset_reset`` says."""
        self._check_group()
        self._coordinator.check_running()
        await self._positions.seek_to("committed", partitions_of(tps))

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset still there in each partition, assigned or not.

        Raises ``UnknownTopicOrPartitionError`` for one that does not exist, ``RequestTimedOutError`` when no daemon answers.
        """
        return await self._ends(tps, EARLIEST_TIMESTAMP)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition, assigned or not; raises as ``beginning_offsets``.

        With read_committed the last stable offset: where the oldest open transaction begins, if there is one.
        """
        return await self._ends(tps, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in each partition; None where all records are older.

        Times are whole milliseconds since 1970 and not negative: ``ValueError`` and ``TypeError`` for others. Partitions
        need not be assigned. Records are looked at in the order of the log: one behind that which is found may be older.
        Raises ``UnknownTopicOrPartitionError`` and ``RequestTimedOutError`` as ``beginning_offsets``.
        """
        self._coordinator.check_running()
        asked = {partition_of(tp): check_offset("a timestamp", time_ms) for tp, time_ms in timestamps_ms.items()}
        found = await self._positions.offsets_at(asked)
        return {
            tp: OffsetAndTimestamp(found[tp].offset, found[tp].timestamp) if found[tp].offset >= 0 else None
            for tp in asked
        }

    async def lag(self) -> dict[TopicPartition, int]:
        """How many offsets the position of each assigned partition is behind ``end_offsets``.

        What compaction and DeleteRecords have removed is counted, what was fetched ahead too. Raises what ``position`` and
        ``end_offsets`` raise.
        """
        self._coordinator.check_running()
        return await self._positions.lag()

    def metrics(self) -> ConsumerMetrics:
        """What it reads and how far it has come, without asking a daemon."""
        membership = self._coordinator.membership
        return self._fetcher.metrics(None if membership is None else membership.metrics())

    async def _ends(self, tps: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._coordinator.check_running()
        asked = partitions_of(tps)
        found = await self._positions.offsets_at(dict.fromkeys(asked, which))
        return {tp: found[tp].offset for tp in asked}

    def _check_group(self) -> None:
        if self._settings.group_id is None:
            raise IllegalStateError("without a group_id there are no committed offsets")
