"""``Consumer.process`` with a producer: what handlers return and the offsets of their records, in transactions.

::

    handler -> room for all outputs -> queued in the turn in which the record is done -> committed with its offset
                                   \\-> held back while a commit is under way, and queued in the next transaction

At every instant what is queued or held back belongs to the records that are done, and to no other. So a commit halts no
handler: it takes the offsets that are done, sends them beside the records, and holds back what comes later until it has its
answer. An abort drops what is queued and held back, and all partitions go back to what is committed; what handlers make of
records that they have had since before does not count.

One task begins, commits and aborts; all others ask it to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Final

from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.offset_commits import OffsetCommits
from client.consumer.partition import PartitionState
from client.errors import (
    ClosedError,
    CohortError,
    CommitFailedError,
    IllegalStateError,
    TransactionAbortedError,
    TransactionUncertainError,
)
from client.group import Membership, Session
from client.log import get_logger
from client.producer.outputs import OutputQueue, PreparedOutputs, TracedOutputQueue
from client.producer.producer import Producer
from client.transactions.transaction import ABORT_WAIT_S, Transaction
from client.transport.deadline import Deadline
from client.transport.retry import Backoff
from client.types.records import GroupMetadata, OffsetAndMetadata
from client.types.spans import Spans
from protocol.subscription import TopicPartition

_LOOK_EVERY_S: Final = 1.0
"""How often it is looked for positions that moved on without a record: past markers, or by a seek."""
_ABORT_S: Final = 5.0
"""How long the end of ``process`` waits for an abort, which goes on without it."""

log = get_logger()


class OutputTransactions:
    """The transactions of one call of ``process``.

    ``accepting`` tells whether records may be taken, ``round`` how many aborts there were: what was taken in an earlier
    round is not done. ``fail`` is told what ends ``process``, ``on_change`` that positions have moved or that records may be
    taken again. ``spans`` is told of outputs and commits unless the producer is traced by itself.
    """

    def __init__(
        self,
        producer: Producer,
        interval_ms: float,
        *,
        assignment: Assignment,
        commits: OffsetCommits,
        settings: ConsumerSettings,
        membership: Callable[[], Membership | None],
        backoff: Backoff,
        fail: Callable[[BaseException], None],
        on_change: Callable[[], None],
        spans: Spans | None = None,
    ) -> None:
        self.accepting = False
        self.round = 0
        self._producer = producer
        self._transactions = producer._transactional()
        self._spans = producer._spans or spans
        self._outputs = OutputQueue(producer) if self._spans is None else TracedOutputQueue(producer, self._spans)
        self._interval_s = interval_ms / 1000
        self._assignment = assignment
        self._commits = commits
        self._settings = settings
        self._membership = membership
        self._backoff = backoff
        self._fail = fail
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._transaction: Transaction | None = None
        self._commit_at_s = 0.0
        self._holding = True
        self._held: list[tuple[PartitionState, int, PreparedOutputs]] = []  # with the offset of their record
        self._sources: set[PartitionState] = set()  # of what is queued in the open transaction
        self._queued = False  # whether something was queued since the transaction began
        self._bases: dict[PartitionState, int] = {}  # where reading goes on after an abort
        self._doomed: Exception | None = None
        self._aborts = 0  # in a row
        self._begun = self._ended = 0  # commits and aborts
        self._asked = False
        self._woken = asyncio.Event()
        self._settled = asyncio.Event()
        self._session: Session | None = None  # in whose name offsets were sent last
        self._task: asyncio.Task[None] | None = None

    # --- for the workers ----------------------------------------------------------------------------------------------

    async def prepare(self, returned: object, *, serialized: bool = False) -> PreparedOutputs:
        """Room for what a handler returned; see ``OutputQueue.prepare``."""
        return await self._outputs.prepare(returned, serialized=serialized)

    def discard(self, prepared: PreparedOutputs) -> None:
        """Outputs of a record that is not done."""
        self._outputs.discard(prepared)

    def take_up(self, state: PartitionState, offset: int) -> None:
        """A handler is about to get the record of ``state`` at ``offset``."""
        if state not in self._bases:
            self._bases[state] = state.done if state.done >= 0 else offset

    def take_over(self, state: PartitionState, offset: int, prepared: PreparedOutputs) -> None:
        """Outputs of the record of ``state`` at ``offset`` that counts as done in the same turn of the loop."""
        if self._holding or self._transaction is None:
            self._held.append((state, offset, prepared))
        else:
            self._queue(state, offset, prepared)
        self._woken.set()

    def _queue(self, state: PartitionState, offset: int, prepared: PreparedOutputs) -> None:
        self._outputs.queue(prepared, state.tp, offset)
        self._sources.add(state)
        if not self._queued:
            self._queued = True
            self._commit_at_s = self._loop.time() + self._interval_s

    # --- for rebalances and the end -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._producer._lent = True
        self._transactions.on_close, self._transactions.spans = self._producer_stopped, self._spans
        self._task = asyncio.create_task(self._run(), name=f"cohort-transactions-{self._settings.client_id}")

    def lose(self) -> None:
        """Partitions were lost: what was done of them since the last commit cannot be committed any more."""
        self._doom(CommitFailedError("partitions were lost to other members"))

    async def commit(self, deadline: Deadline) -> bool:
        """Returns once what is done now is committed or aborted; False when that did not come to an end by ``deadline``."""
        wanted = self._begun + 1
        self._asked = True
        self._woken.set()
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                while self._ended < wanted and self._task is not None and not self._task.done():
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            self._doom(
                CommitFailedError("partitions are given up, and what was done of them was not committed in time")
            )
            return False
        return True

    async def end(self, deadline: Deadline) -> None:
        """Commits what is done, or aborts: nothing is open when this returns, unless no coordinator answers."""
        task = self._task
        if task is None:
            return
        decided = task.done() or await self.commit(deadline) or self._transaction is None
        self._task = None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._drop()
        opened, self._transaction = self._transaction, None
        if opened is not None:
            try:
                async with asyncio.timeout(_ABORT_S):
                    await self._transactions.abort(opened, ABORT_WAIT_S, None)
            except (CohortError, TimeoutError) as error:
                log.warning("transaction_not_aborted", group=self._settings.group_id, error=repr(error))
            decided = opened.outcome == "aborted"
        self._go_back(decided=decided)
        self._producer._lent = False
        self._transactions.on_close, self._transactions.spans = None, self._producer._spans
        self._commits.by_transactions = False

    # --- the task -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._commits.give_way(Deadline(self._settings.request_timeout_ms))
            self._accept()
            while True:
                await self._until_due()
                asked, self._asked = self._asked, False
                self._begun += 1
                pause_s = 0.0
                try:
                    if self._doomed is None:
                        await self._commit(at_once=asked)
                except Exception as error:
                    self._doom(error)
                if self._doomed is not None:
                    pause_s = await self._abort(self._doomed)
                self._ended = self._begun
                self._settled.set()
                await self._pause(pause_s)
                self._accept()
        except Exception as error:
            self._drop()
            self._fail(error)
        finally:
            self._settled.set()

    async def _pause(self, seconds: float) -> None:
        """The time before work is done again; a call of ``commit`` ends it."""
        until_s = self._loop.time() + seconds
        while not self._asked and self._loop.time() < until_s:
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._woken.wait()

    def _accept(self) -> None:
        if not self.accepting and self._doomed is None:
            self.accepting = True
            self._on_change()

    async def _until_due(self) -> None:
        """Returns when there is something to commit or to abort, and it is time."""
        while not self._asked and self._doomed is None:
            self._woken.clear()
            if self._held:
                return  # they wait for a transaction
            due_s = self._commit_at_s if self._queued else self._loop.time() + max(_LOOK_EVERY_S, self._interval_s)
            try:
                async with asyncio.timeout_at(due_s):
                    await self._woken.wait()
            except TimeoutError:
                if self._queued or self._offsets():
                    return

    async def _begin(self) -> None:
        transaction = Transaction(self._transactions, self._producer)
        await self._transactions.begin(transaction)
        self._outputs.refused = None
        self._transaction, transaction.on_failure = transaction, self._refused

    def _release(self) -> None:
        """What was held back is queued, and what comes from now on."""
        self._holding = False
        held, self._held = self._held, []
        for state, offset, prepared in held:
            self._queue(state, offset, prepared)

    async def _commit(self, *, at_once: bool) -> None:
        """Commits what is done at this moment; or begins a transaction for the first of it, unless it is ``at_once``."""
        if self._transaction is None:
            if not self._held and not self._offsets():
                return
            await self._begin()
            if self._held:  # the first of a transaction: they are committed when its time has come
                self._release()
                if not at_once:
                    return
        with nullcontext() if self._spans is None else self._spans.unattended():
            await self._commit_open(at_once=at_once)

    async def _commit_open(self, *, at_once: bool) -> None:
        transaction, metadata = self._transaction, self._metadata()
        assert transaction is not None, "one was begun"
        if not self._has_offsets(at_once=at_once):
            self._commit_at_s = self._loop.time() + self._interval_s
            return
        done = {state: state.done for state in self._assignment.states.values() if state.done >= 0}
        offsets = self._offsets()
        self._holding = True
        flushing = asyncio.create_task(self._producer.flush(), name="cohort-transactions-flush")
        try:
            if offsets:
                await transaction.send_offsets(offsets, metadata)
            await flushing
        finally:
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
        if self._doomed is None:
            await self._decide(transaction)
            self._committed(done, offsets)

    def _has_offsets(self, *, at_once: bool) -> bool:
        """Outputs are committed with the offsets of their records or not at all.

        False while a position is looked up, as after ``seek_to_end`` in a handler: what is committed is that position.
        Raises ``CommitFailedError`` when an offset does not come (in time).
        """
        for state in self._sources:
            name = f"{state.tp.topic}-{state.tp.partition}"
            if self._assignment.states.get(state.tp) is not state:
                raise CommitFailedError(f"{name} was given up before what was done of it was committed")
            if state.done < 0:
                if at_once:
                    raise CommitFailedError(f"the position of {name} is being looked up, and could not be committed")
                return False
        return True

    async def _decide(self, transaction: Transaction) -> None:
        try:
            await self._transactions.commit(transaction)
        except TransactionUncertainError as error:
            attempt = 0
            while (outcome := await self._settle()) is None:
                if attempt & (attempt + 1) == 0:
                    log.warning("transaction_uncertain", group=self._settings.group_id, error=str(error))
                await asyncio.sleep(self._backoff.delay_s(attempt))
                attempt += 1
            if outcome != "committed":
                self._transaction = None
                raise TransactionAbortedError(f"the transaction was aborted: {error}") from error

    async def _settle(self) -> str | None:
        try:
            return await self._transactions.settle()
        except CohortError as error:
            if error.retriable or isinstance(error, TransactionUncertainError):
                return None
            raise

    def _committed(self, done: dict[PartitionState, int], offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self._transaction = None
        self._queued = False
        self._sources.clear()
        self._aborts = 0
        states = self._assignment.states
        for tp, committed in offsets.items():
            self._assignment.settle(tp, committed.offset)
        self._bases = {
            state: done.get(state, base) for state, base in self._bases.items() if states.get(state.tp) is state
        }

    def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is done and not committed."""
        return self._commits.done(state for state in self._assignment.states.values() if state.done != state.committed)

    def _metadata(self) -> GroupMetadata:
        """As whom offsets are committed: in the last generation that this member has joined.

        Through a rebalance it holds on to its partitions, so those are its own in either generation. Raises
        ``CommitFailedError`` when its place in the group is gone.
        """
        group_id, membership = self._settings.group_id or "", self._membership()
        topics = sorted({topic for topic, _ in self._assignment.states})
        topic_ids = tuple((topic, self._commits.topic_id(topic)) for topic in topics)
        if membership is None:
            return GroupMetadata(group_id, topic_ids=topic_ids)
        session = self._session = membership.session
        ended = (
            "this consumer has not joined its group yet" if session is None else session.ended or session.latest.ended
        )
        if session is None or ended is not None:
            raise CommitFailedError(f"offsets of group {group_id!r} were not committed: {ended}")
        latest = session.latest
        instance_id = self._settings.group_instance_id
        return GroupMetadata(group_id, latest.generation, latest.member_id, instance_id, topic_ids)

    # --- aborts ---------------------------------------------------------------------------------------------------------

    def _refused(self, error: CohortError) -> None:
        """A record or the offsets of the transaction failed."""
        if self._outputs.refused is not None:
            (topic, partition), offset = self._outputs.refused
            error.add_note(f"it is an output of the record at offset {offset} of {topic}-{partition}")
        self._doom(error)

    def _producer_stopped(self) -> None:
        self._doom(ClosedError("the producer of process(producer=...) was stopped: stop the consumer first"))

    def _doom(self, error: Exception) -> None:
        """The transaction cannot be committed: from this turn on no record counts as done."""
        if self._doomed is None:
            self._doomed = error
            self._drop()
            self._woken.set()

    def _drop(self) -> None:
        self.accepting = False
        self.round += 1
        self._holding = True
        held, self._held = self._held, []
        for _, _, prepared in held:
            self._outputs.discard(prepared)

    async def _abort(self, error: Exception) -> float:
        """Aborts and goes back; returns for how many seconds to pause. Raises ``error`` if doing it again does not help."""
        opened, self._transaction = self._transaction, None
        repeat = _is_worth_repeating(error)
        if opened is not None:
            log.warning("transaction_aborted", group=self._settings.group_id, error=str(error))
            try:
                await self._transactions.abort(opened, ABORT_WAIT_S, None)
            except CohortError as failed:
                if repeat and not _is_worth_repeating(failed):
                    raise
                log.info("transaction_not_aborted", group=self._settings.group_id, error=repr(failed))
        self._go_back(decided=opened is None or opened.outcome == "aborted")
        self._queued = False
        self._sources.clear()
        self._doomed = None
        if self._session is not None:
            self._commits.refused(error, self._session)
        if not repeat:
            raise error
        if opened is None:
            return 0.0
        self._aborts += 1
        return self._backoff.delay_s(self._aborts - 1)

    def _go_back(self, *, decided: bool) -> None:
        """Reading goes on at what is committed; if that is not ``decided``, it is asked for."""
        for state, base in self._bases.items():
            if self._assignment.states.get(state.tp) is not state:
                continue
            if decided:
                state.go_back(base)
            else:
                state.look_up("committed", fallback=base)
        self._bases.clear()
        self._on_change()


def _is_worth_repeating(error: Exception) -> bool:
    """Whether the same work may succeed in another transaction.

    Not so what a daemon refuses for good, such as a record that is too large, nor the end of the producer.
    """
    if isinstance(error, TransactionUncertainError):
        return True  # of an abort: the next transaction finds out
    cause = error.__cause__ if isinstance(error, TransactionAbortedError) and error.__cause__ is not None else error
    return isinstance(cause, CohortError) and (cause.retriable or cause.abortable)


def check_producer(producer: Producer, commit_interval_ms: float, group_id: str | None) -> None:
    """Raises what is wrong with the arguments of ``process``."""
    if not isinstance(producer, Producer):
        raise TypeError(f"producer is {producer!r}; it must be a Producer with a transactional_id")
    settings = producer._settings
    if settings.transactional_id is None:
        raise ValueError("process(producer=...) writes in transactions: give the producer a transactional_id")
    transactions = producer._transactional()  # it has been started
    if producer._lent:
        raise IllegalStateError(
            f"another process(producer=...) writes with the producer of {transactions.transactional_id!r}: give each one a "
            "producer of its own, with its own transactional_id"
        )
    if transactions.current is not None:
        raise IllegalStateError(
            f"process(producer=...) makes the transactions of {transactions.transactional_id!r} itself, and one is open: "
            "commit or abort it first, or give each process() a producer of its own"
        )
    if group_id is None:
        raise IllegalStateError("process(producer=...) commits offsets with its outputs: pass group_id to the consumer")
    if (
        isinstance(commit_interval_ms, bool)
        or not isinstance(commit_interval_ms, int | float)
        or not commit_interval_ms > 0  # not a number, too
    ):
        raise ValueError(f"commit_interval_ms is {commit_interval_ms!r}; it must be a number of milliseconds above 0")
    if commit_interval_ms >= settings.transaction_timeout_ms:
        raise ValueError(
            f"commit_interval_ms is {commit_interval_ms} and the producer's transaction_timeout_ms "
            f"{settings.transaction_timeout_ms}: every transaction would be aborted before its commit; commit more often"
        )
