"""``Consumer``: membership, fetching and offsets put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from types import TracebackType
from typing import Literal, Self

from client.assignors import Assignor, CooperativeStickyAssignor, RangeAssignor
from client.consumer.assignment import Assignment
from client.consumer.config import (
    DEFAULT_FETCH_MAX_BYTES,
    DEFAULT_PARTITION_FETCH_BYTES,
    ConsumerSettings,
    Deserializer,
    OffsetReset,
)
from client.consumer.decoding import BatchDecoder
from client.consumer.fetcher import Fetcher
from client.consumer.offset_commits import Commits
from client.consumer.positions import Positions
from client.consumer.subscribing import SubscriptionCalls
from client.consumer.subscription import TopicSelection
from client.consumer.workers import Lane, Processing
from client.errors import ClosedError, IllegalStateError
from client.group import DEFAULT_STOP_S, Membership, State
from client.option_names import explains_options
from client.transport.background_loop import Background
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline


class Consumer(SubscriptionCalls):
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
    ``heartbeat_interval_ms`` (3,000): how long one heartbeat waits at the daemon. ``rebalance_timeout_ms`` (``None``: as
    ``max_poll_interval_ms``): how long the group waits for this member at a rebalance. ``revoke_grace_ms`` (10,000): how
    long a rebalance lets the program finish the records it was handed before they count as not done: the rest of what
    ``getmany`` returned, or the handlers of ``process`` whose partitions go to another member. Set it above the time that
    this takes.

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
    later. ``max_poll_records``: upper bound of one ``getmany``; ``None`` for 5,000. ``key_deserializer``,
    ``value_deserializer``: functions of ``bytes``, not called for ``None``. ``isolation_level``: "read_uncommitted".
    ``request_timeout_ms`` (30,000) bounds every other wait for a daemon. ``background``, ``random`` and ``clock``, wall time
    in ms since 1970, are for simulations.

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
        isolation_level: Literal["read_uncommitted"] = "read_uncommitted",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        request_timeout_ms: int = 30_000,
        background: Background | None = None,
        random: Random | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if isolation_level != "read_uncommitted":
            raise ValueError(f"isolation_level is {isolation_level!r}; there is only 'read_uncommitted' so far")
        self._settings = ConsumerSettings(
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            client_id=client_id or "cohort-consumer",
            group_instance_id=group_instance_id,
            client_rack=client_rack,
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
        self._clock = clock
        self._build(background, random or Random())
        if topics:
            self.subscribe(topics)

    def _build(self, background: Background | None, random: Random) -> None:
        """Makes the parts; nothing runs before ``start``."""
        self._background = background
        self._random = random
        self._membership: Membership | None = None
        self._running = False
        self._closed = self._stopped = False
        self._stopping: asyncio.Task[None] | None = None
        self._stop_turn = asyncio.Lock()
        self._leaving: dict[asyncio.Task[None], None] = {}
        self._topic_ids: dict[str, str] = {}
        self._close_task: asyncio.Task[None] | None = None
        self._processing: Processing | None = None
        self._ending: asyncio.Task[None] | None = None
        self._unfinished: list[Lane] = []
        self._since_breath = 0
        self._cluster = Cluster(
            self._settings.bootstrap_servers,
            client_id=self._settings.client_id,
            request_timeout_ms=self._settings.request_timeout_ms,
            random=Random(self._random.getrandbits(64)),
        )
        self._news = asyncio.Event()
        self._assignment = Assignment(BatchDecoder(self._settings.key_deserializer, self._settings.value_deserializer))
        self._assignment.owned = self._owned
        self._positions = Positions(self._cluster, self._assignment, self._settings, self._news)
        self._fetcher = Fetcher(self._cluster, self._assignment, self._positions, self._settings, self._news)
        self._positions.on_found = self._fetcher.wake
        self._commits = Commits(
            self._cluster,
            self._assignment,
            self._settings,
            lambda: self._membership,
            lambda topic: self._topic_ids.get(topic, ""),
        )
        self._commits.on_error = self._news.set
        self._selection = TopicSelection()
        self._positions.is_new = self._selection.is_new
        self._participation = self._new_participation()
        self._positions.before_committed = self._left

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and begins to join the group, without waiting for the end of that.

        Raises ``RequestTimedOutError`` when no daemon answers within ``request_timeout_ms``, ``ClosedError`` after ``stop``.
        """
        if self._closed:
            raise ClosedError("this consumer was stopped; make a new one")
        if self._running:
            return
        self._selection.track(self._cluster)
        pattern = self._selection.pattern
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._running = True
        self._selection.track(self._cluster)  # it may have changed meanwhile
        self._look(self._cluster.topology, complete=pattern is not None and pattern == self._selection.pattern)
        self._begin_anew(self._cluster.topology)  # notes which topics these are
        self._cluster.on_change(self._on_topology)
        self._positions.start()
        self._fetcher.start()
        if self._settings.group_id is not None and self._settings.enable_auto_commit:
            self._commits.start()
        self._take_up_subscription()

    async def stop(self, timeout: float | None = None) -> None:
        """Commits (see the class text), calls ``on_partitions_revoked``, leaves the group, closes all connections.

        Done within ``timeout`` seconds (default 30), daemon or no daemon; what could not be done by then is logged.
        Whoever waits in a poll gets ``ClosedError``, an ``async for`` ends. What a listener raises now is logged. Calling it
        again waits for a call that is under way, and finishes what a cancelled one has left undone. Raises
        ``IllegalStateError`` inside a rebalance listener and inside a handler of ``process``.
        """
        if self._stopped:
            return
        self._check_outside_handlers("stop()")
        if self._membership is not None:
            self._membership.check_outside()
        if self._stopping is asyncio.current_task():
            raise IllegalStateError("stop() was called from a rebalance listener that is called by stop()")
        deadline = Deadline(1000 * (DEFAULT_STOP_S if timeout is None else timeout))
        try:
            async with asyncio.timeout(max(0.0, deadline.remaining_s())):
                await self._stop_turn.acquire()
        except TimeoutError:
            return  # the call under way goes on until its own deadline
        self._stopping = asyncio.current_task()
        try:
            if not self._stopped:
                await self._stop(deadline)
        finally:
            self._stopping = None
            self._stop_turn.release()

    async def _stop(self, deadline: Deadline) -> None:
        self._participation.closing = deadline
        self._closed = True
        self._news.set()
        try:
            self._commits.end()  # nothing is waited for before the membership's own stop, which says goodbye in any case
            if self._membership is not None:
                await self._membership.stop(deadline)
            elif self._running:
                await self._end_handlers(deadline)
                if self._settings.group_id is not None and self._settings.enable_auto_commit:
                    await self._participation.commit_last()
            leaving = [*self._leaving, *([self._ending] if self._ending is not None else [])]
            if leaving:
                await asyncio.wait(leaving, timeout=max(0.0, deadline.remaining_s()))
        finally:
            self._running = False
            if self._processing is not None:
                self._processing.cancel()
            self._participation.log_errors()
            if self._close_task is None:  # a task, for closing must not be cut short by another cancellation
                self._close_task = asyncio.create_task(self._close_parts(), name="cohort-consumer-close")
            await asyncio.shield(self._close_task)
        self._assignment.remove(list(self._assignment.states))
        self._assignment.forget_pauses()
        self._stopped = True

    async def _close_parts(self) -> None:
        await self._commits.stop()
        await self._positions.stop()
        await self._fetcher.stop()
        await self._cluster.close()

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
        if self._closed:
            return "closed"
        if self._membership is not None:
            return self._membership.state
        return "stable" if self._running and self._selection.kind is not None else "unjoined"

    def _owned(self) -> bool:
        return self._membership is None or self._membership.holds_share()
