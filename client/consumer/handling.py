"""The consumer's call that has records handled: ``process``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from client.consumer.error_policy import DeadLetters, OnError, check_on_error
from client.consumer.partition import PartitionState
from client.consumer.polling import PollCalls
from client.consumer.workers import Handler, Lane, Processing
from client.errors import ClosedError, CohortError, IllegalStateError, MaxPollIntervalExceededError
from client.group import Membership
from client.log import get_logger
from client.producer.producer import Producer
from client.transport.deadline import Deadline

_LAST_COMMIT_MS = 5_000

log = get_logger()


class ProcessCalls(PollCalls):
    """Base of ``Consumer``. ``process`` runs tasks; they end with it, or with the partitions they are about."""

    _ending: asyncio.Task[None] | None
    _unfinished: list[Lane]
    _random: Random
    _clock: Callable[[], int] | None

    async def process(
        self, handler: Handler, *, concurrency: int | None = None, on_error: OnError | None = None
    ) -> None:
        """Calls ``handler(record)``, coroutine or plain, for every record until ``stop``, an error, or cancellation.

        Each partition has a task of its own: its records are handled in order and one at a time, partitions beside each
        other. ``concurrency`` bounds the handlers that run at once over all partitions; ``None`` leaves it at one a
        partition. Partitions take turns, and a slow one holds up no other: beyond ``max_partition_fetch_bytes`` nothing is
        fetched for it. A handler that blocks the event loop (``time.sleep``, a plain function) holds up all of them;
        ``await asyncio.to_thread(work, record)`` holds up its own partition only.

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
        in ``await asyncio.to_thread(...)`` is cancelled when its thread has ended, and until then no other handler of this
        consumer gets a record of its partition. Threads of ``asyncio.gather`` and ``loop.run_in_executor`` are not
        noticed: such a handler is cancelled at once, its threads run on, and the record may be handled again beside them.

        **Errors.** When a handler raises, ``process`` ends the other handlers in this way and raises ``HandlerError``,
        which names the record; that one comes first when ``process`` is called again. ``on_error`` may say otherwise:
        "skip" (the record counts as done), "retry" (as ``Retry()``), ``Retry(attempts=5, then="skip")``,
        ``DeadLetter("orders.dlq")``, or a function of ``(record, error)``, plain or coroutine, that returns one of these or
        "raise". It is asked too when a deserializer fails; the record has the stored bytes then. Otherwise that is raised
        as ``RecordDeserializationError``.

        A handler that runs for longer than ``max_poll_interval_ms``, or its ``lease``, whatever others do, ends the
        membership: all handlers are cancelled and ``process`` raises ``MaxPollIntervalExceededError``; the next call joins
        again. Each attempt of a retry counts by itself. Without membership nobody could take over, and nothing is watched.

        In a handler, ``pause`` and ``resume`` take effect after its record. ``seek`` does too: the next record is the one
        sought, and what is committed is that position. ``stop`` and ``enforce_rebalance`` would wait for the handler
        itself and raise ``IllegalStateError``. So do ``getone``, ``getmany`` and a second ``process`` while this one runs.
        Raises what ``getone`` raises, and ``ValueError`` for a ``concurrency`` below 1 and for what cannot be ``on_error``.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(
                f"concurrency is {concurrency}; it must be at least 1, or None for one handler a partition"
            )
        check_on_error(on_error)
        membership = self._begin_poll()
        processing = self._new_processing(handler, concurrency, on_error)
        processing.wait_out(self._unfinished)
        self._processing = self._participation.work = processing
        self._news.set()  # a poll that waits has no business here any more
        try:
            processing.progress = membership.progress if membership is not None else None
            await self._serve(processing, membership)
        finally:
            await self._end_in_order(processing)

    def _new_processing(self, handler: Handler, concurrency: int | None, on_error: OnError | None) -> Processing:
        return Processing(
            handler,
            on_error,
            concurrency,
            self._assignment,
            dead_letters=DeadLetters(self._new_producer, self._settings.group_id),
            random=self._random,
            still_ours=self._still_ours,
            make_room=self._make_room,
            on_news=self._news.set,
        )

    async def _end_in_order(self, processing: Processing) -> None:
        self._ending = asyncio.create_task(self._end_processing(processing), name="cohort-consumer-processing-end")
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            processing.cancel()  # asked for a second time: no grace any more, and the rest is done without this task
            raise

    async def _serve(self, processing: Processing, membership: Membership | None) -> None:
        try:
            while True:
                self._news.clear()
                if self._membership is not membership:  # assign() or subscribe() has made another one
                    membership = self._change_membership(processing, membership)
                if processing.failure is not None:
                    raise processing.failure
                self._check()
                processing.sync()
                self._fetcher.hunger()  # partitions whose handlers are slow hold what is buffered, and the others wait
                await self._news.wait()
        except ClosedError:
            if not self._closed:
                raise
        except MaxPollIntervalExceededError as error:
            raise self._overdue(processing, error) from error
        finally:
            if membership is not None:
                membership.progress.leave()

    def _change_membership(self, processing: Processing, old: Membership | None) -> Membership | None:
        new = self._membership
        if old is not None:
            old.progress.leave()
        if new is not None:
            new.progress.enter()
        processing.progress = new.progress if new is not None else None
        return new

    def _still_ours(self, state: PartitionState) -> bool:
        settled = self._membership is None or self._membership.state == "stable"
        return settled and not state.frozen and self._assignment.owned()

    def _overdue(self, processing: Processing, error: MaxPollIntervalExceededError) -> MaxPollIntervalExceededError:
        if processing.overdue is None:
            return error
        record, seconds = processing.overdue
        return MaxPollIntervalExceededError(
            f"the handler of the record at offset {record.offset} of {record.topic}-{record.partition} ran for "
            f"{seconds * 1000:.0f} ms, more than max_poll_interval_ms ({self._settings.max_poll_interval_ms} ms), so this "
            f"member left group {self._settings.group_id!r}, all handlers were cancelled, and its partitions went to "
            "others. The next call joins again. Let handlers take less time, take a lease(record, "
            "seconds) in those that need more, or raise max_poll_interval_ms"
        )

    def _new_producer(self) -> Producer:
        """For dead letters."""
        settings = self._settings
        return Producer(
            settings.bootstrap_servers,
            f"{settings.client_id}-dead-letters",
            request_timeout_ms=settings.request_timeout_ms,
            clock=self._clock,
            random=Random(self._random.getrandbits(64)),
        )

    async def _end_processing(self, processing: Processing) -> None:
        try:
            await processing.end(self._grace())
            if self._settings.group_id is None or not self._settings.enable_auto_commit or self._closed:
                return  # stop() commits by itself
            try:
                await self._commits.commit_done(Deadline(min(_LAST_COMMIT_MS, self._settings.request_timeout_ms)))
            except CohortError as error:
                log.warning("the last commit of process() failed", group=self._settings.group_id, error=str(error))
        finally:
            self._unfinished = processing.unfinished()
            self._processing = self._participation.work = None

    async def _end_handlers(self, deadline: Deadline) -> None:
        """For a consumer without membership, whose partitions nobody asks for. Ends by ``deadline``."""
        tps = frozenset(self._assignment.states)
        if self._processing is None or not tps:
            return
        self._assignment.freeze(tps)
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._processing.wind_down(tps, self._grace())
        except TimeoutError:
            log.warning("no time was left for handlers to end", client_id=self._settings.client_id)

    def _grace(self) -> Deadline:
        grace_ms: float = self._settings.revoke_grace_ms
        closing = self._participation.closing
        return Deadline(grace_ms if closing is None else min(grace_ms, closing.remaining_ms() / 3))

    def _check_outside_handlers(self, what: str) -> None:
        if self._processing is not None and self._processing.runs_in(asyncio.current_task()):
            raise IllegalStateError(f"{what} was called in a handler of process(), which it would have to wait for")
