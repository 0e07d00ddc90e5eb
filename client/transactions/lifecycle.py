"""The transactions of one producer, one after the other: begin, commit, abort, and finding out what became of one.

A transaction ends by itself, so that a caller who is cancelled leaves nothing half done: ``settle``, and whatever the
producer does next, finds the ending where it is and waits for it or goes on with it. Its coordinator is asked at once; a
task goes on where that is not enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Final, Protocol

from client.errors import (
    AlreadyCommittedError,
    ClosedError,
    CohortError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortedError,
    TransactionUncertainError,
    copy_of,
)
from client.log import get_logger
from client.transactions.ending import Ending, Identity, Outcome, Question
from client.transactions.identity import TransactionalIdentity
from client.transactions.offsets import checked_offsets, commit_offsets
from client.transactions.transaction import ABORT_WAIT_S, Transaction
from client.transport.cluster import Cluster
from client.transport.connection import ToldExchange
from client.transport.deadline import Deadline
from client.types.records import GroupMetadata, OffsetAndMetadata
from client.types.spans import Spans
from protocol.messages.transactions import NO_VERSION, EndTxnResponse, UnacknowledgedTopic
from protocol.subscription import TopicPartition

log = get_logger()

_LATE_ANSWERS_S: Final = 1.0
"""How long a commit that has its answer waits for those of its records, which tell their offsets."""


class Records(Protocol):
    """The records of a producer, as its transactions see them."""

    @property
    def used(self) -> bool:
        """Whether a record was sent, perhaps, since ``open``."""
        ...

    def open(self, transaction: Transaction, identity: Identity) -> None:
        """Records are taken from now on, as part of this transaction."""
        ...

    def close(self) -> None:
        """No more are taken; those that are queued are sent."""
        ...

    async def send_all(self) -> bool:
        """Returns once each record was sent; False when some are not on their way yet."""
        ...

    def unacknowledged(self) -> tuple[UnacknowledgedTopic, ...] | None:
        """What is sent and has no answer yet, as EndTxn has it; None when that cannot be named: it is to be waited for."""
        ...

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until each record is acknowledged or has failed."""
        ...

    @property
    def unsettled(self) -> bool:
        """Whether what became of some record is not told yet."""
        ...

    def withhold_failures(self) -> None:
        """A record that fails is told so by ``abandon`` only: it may be stored, and its transaction committed."""
        ...

    def stored(self) -> None:
        """The transaction is committed: so each record is stored."""
        ...

    def abandon(self, why: Callable[[], CohortError], *, in_doubt: bool = False) -> None:
        """Every record fails that is not acknowledged, and nothing is waited for; ``in_doubt``: it may be committed."""
        ...


class Transactions:
    """See the module. ``timeout_ms`` is how long an ending is asked for at a time, in milliseconds.

    ``current`` is the transaction that is open or being flushed, ``last`` the one before it.
    """

    def __init__(self, cluster: Cluster, identity: TransactionalIdentity, records: Records, timeout_ms: float) -> None:
        self.transactional_id = identity.transactional_id
        self.current: Transaction | None = None
        self.last: Transaction | None = None
        self._cluster = cluster
        self._identity = identity
        self._records = records
        self._timeout_ms = timeout_ms
        self._ending: Ending | None = None
        self._exchange: ToldExchange[EndTxnResponse] | None = None  # the first question, until it is answered
        self._waiting: list[asyncio.Future[None]] = []  # for that
        self._task: asyncio.Task[None] | None = None
        self._why: CohortError | None = None  # why the ending has no answer yet
        self._failure: CohortError | None = None  # of a record, after an early commit was sent
        self._asking: asyncio.Timeout | None = None  # what a failure interrupts
        self._closed = False
        self.on_close: Callable[[], None] | None = None
        """Called when the producer is stopped."""
        self.spans: Spans | None = None
        """Told of each commit that is sent, and of offsets; None where nobody traces."""

    @property
    def committed_version(self) -> int:
        """The highest version that the transactional id has committed, as far as this producer knows; -1 for none."""
        return self._identity.committed_version

    @property
    def fatal(self) -> CohortError | None:
        """The error after which this producer does nothing more."""
        return self._identity.fatal

    async def begin(self, transaction: Transaction) -> None:
        """Begins a transaction, after the one before it: if its end is in doubt, that is found out first.

        Raises ``IllegalStateError`` when one is open, ``AlreadyCommittedError``, ``TransactionUncertainError`` when the
        coordinator still does not answer, or the fatal error.
        """
        self._check_may_begin(transaction)
        if self._ending is not None:
            await self.settle()
            self._check_may_begin(transaction)
            if self._ending is not None:
                raise self._still_unsettled()
        identity = self._identity.current
        if identity is None:
            raise ClosedError("this producer is not started: use it inside 'async with'")
        transaction.begun = True
        self.current = transaction
        self._records.open(transaction, identity)

    def is_open(self, transaction: Transaction) -> bool:
        """Whether this is the transaction that has not ended."""
        return self.current is transaction

    def check_version(self, version: int) -> None:
        """Raises ``AlreadyCommittedError`` when a version is known to be committed."""
        committed = self.committed_version
        if version != NO_VERSION and version <= committed:
            raise AlreadyCommittedError(
                f"version {version} of transactional id {self.transactional_id!r} is committed already (the last "
                f"one is {committed}): its work is done",
                version,
                committed,
            )

    def check_open(self, transaction: Transaction | None = None) -> None:
        """Raises what is wrong with sending something now, in ``transaction`` or the one that is open."""
        self._check_usable()
        current = self.current
        if current is None or (transaction is not None and transaction is not current):
            raise IllegalStateError(
                "this transaction is not open"
                if transaction is not None
                else "no transaction is open: this producer has a "
                "transactional id, and its records are sent inside 'async with producer.transaction()'"
            )
        if current.failure is not None:
            raise current.aborted_error()
        if current.ending:
            raise IllegalStateError("the transaction is being committed and takes nothing more")

    async def commit(self, transaction: Transaction) -> None:
        """Commits; returns when the decision is on disk.

        Raises ``TransactionAbortedError`` when it was aborted instead, ``TransactionUncertainError`` when that is not known
        within the timeout, the fatal error when there is one.
        """
        if self._ending is not None and transaction is self.last and transaction.outcome is None:
            with self._commit_span(transaction):
                await self.settle()  # the same call again, after one that was not answered
                self._raise_unless_committed(transaction)
            return
        self._check_open_to_end(transaction)
        transaction.ending = True
        self._records.close()
        try:
            sent = await self._records.send_all()
            while transaction.offset_calls:
                await asyncio.wait(transaction.offset_calls)
            unacknowledged = self._records.unacknowledged() if sent and transaction.failure is None else None
            if unacknowledged is None:
                await self._records.flush()
        except BaseException:  # cancelled before anything was decided
            if self.current is transaction:
                self._abort(transaction, TransactionAbortedError("the commit was cancelled before it was decided"))
            raise
        if transaction.failure is not None and self.current is transaction:
            await self.abort(transaction, ABORT_WAIT_S, None)
        if self.current is not transaction:
            raise transaction.aborted_error()
        if not self._records.used and not transaction.has_offsets and transaction.version == NO_VERSION:
            self._ended(transaction, "committed")
            return
        with self._commit_span(transaction):
            self._end(transaction, Question.COMMIT, unacknowledged or ())
            await self._wait(None)
            self._raise_unless_committed(transaction)

    def _commit_span(self, transaction: Transaction) -> AbstractContextManager[object]:
        if self.spans is None:
            return nullcontext()
        return self.spans.commit_transaction(self.transactional_id, transaction.group_id)

    async def abort(self, transaction: Transaction, wait_s: float, cause: BaseException | None) -> None:
        """Aborts; waits at most ``wait_s`` seconds for the coordinator, whose answer does not matter for the outcome."""
        if self.current is transaction:
            self._abort(transaction, cause)
        elif transaction.outcome != "aborted":
            self._check_open_to_end(transaction)
        await self._wait(wait_s)

    async def settle(self) -> Outcome | None:
        """What became of the last transaction that ended, asking its coordinator if need be; None if it is not known yet."""
        self._check_not_closed()
        if self._ending is not None:
            if self._exchange is None and (self._task is None or self._task.done()):
                self._begin_asking(self._ending)
            await self._wait(None)
        last = self.last
        if last is not None and last.outcome is None and self.fatal is not None:
            raise copy_of(self.fatal)
        return None if last is None else last.outcome

    async def send_offsets(
        self,
        transaction: Transaction,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata,
    ) -> None:
        """See ``Transaction.send_offsets``."""
        self.check_open(transaction)
        checked = checked_offsets(offsets)
        identity = self._identity.current
        if not checked:
            return
        assert identity is not None, "an open transaction has an identity"
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transaction.offset_calls.add(call)
        try:
            transaction.group_id = group.group_id
            spans = self.spans
            with nullcontext() if spans is None else spans.commit(group.group_id, self.transactional_id):
                await self._commit_offsets(transaction, identity, checked, group)
        except CohortError as error:
            self.failed(error, transaction)
            if isinstance(error, RequestTimedOutError):
                raise transaction.aborted_error() from error
            raise
        except BaseException as error:
            why = "a call that sent offsets was cancelled, and whether they belong to it is not known"
            self.failed(TransactionAbortedError(f"{why}: {error!r}"), transaction)
            raise
        finally:
            transaction.offset_calls.discard(call)
            call.cancel()

    async def _commit_offsets(
        self,
        transaction: Transaction,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
    ) -> None:
        def check() -> None:
            if self.current is not transaction or transaction.failure is not None:
                raise transaction.aborted_error()
            transaction.has_offsets = True

        deadline = Deadline(self._timeout_ms)
        await commit_offsets(self._cluster, self.transactional_id, identity, offsets, group, deadline, check)

    def failed(self, error: CohortError, transaction: Transaction | None = None) -> None:
        """A record, or offsets, of the open transaction failed: it can only be aborted. Others are no longer of interest."""
        current = self.current
        if current is None and self._ending is not None and self._ending.early:
            if self._failure is None and self._asking is not None and not self._asking.expired():
                self._asking.reschedule(asyncio.get_running_loop().time())
            self._failure = self._failure or error
            if self._exchange is not None and not self._exchange.done():  # or its answer is what has this record fail
                self._exchange.cancel()
                self._begin_asking(self._ending)
            return
        if current is None or current.failure is not None or (transaction is not None and transaction is not current):
            return
        current.failure = error
        if isinstance(error, ProducerFencedError | InvalidProducerIdMappingError):
            self._identity.fatal = error
        self._records.close()
        asyncio.get_running_loop().call_soon(self._abandon, current)
        self._tell_failure(current, error)

    def _tell_failure(self, transaction: Transaction, error: CohortError) -> None:
        if transaction.on_failure is not None:
            try:
                transaction.on_failure(error)
            except Exception:  # it is called amid the producer's own work
                log.exception("on_failure_failed", transactional_id=self.transactional_id)

    async def close(self, wait_s: float | None) -> None:
        """Aborts what is open, and waits for the end of it: ``wait_s`` seconds at most, without a limit the timeout."""
        self._closed = True
        if self.current is not None:
            log.warning("transaction_aborted_by_stop", transactional_id=self.transactional_id)
            self._abort(self.current, ClosedError("the producer was stopped"))
        if self.on_close is not None:
            self.on_close()
        await self._wait(wait_s)

    def cancel(self) -> None:
        """Ends what is under way, at once; ``cancelled`` waits for the end."""
        self._closed = True
        if self._exchange is not None and self._ending is not None:
            self._exchange.cancel()
            self._conclude(self._ending, self.last)
            self._first_answered()
        if self._task is not None:
            self._task.cancel()

    async def cancelled(self) -> None:
        """Waits until nothing is under way any more."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def latest(self) -> Transaction:
        """The transaction that is open, or else the one that ended last; ``IllegalStateError`` when there was none."""
        latest = self.current or self.last
        if latest is None:
            raise IllegalStateError("no transaction is open: begin_transaction() first")
        return latest

    def _check_may_begin(self, transaction: Transaction) -> None:
        self._check_usable()
        if transaction.begun:
            raise IllegalStateError("a transaction is begun once: get another with producer.transaction()")
        if self.current is not None:
            raise IllegalStateError("a transaction of this producer is open: commit or abort it first")
        self.check_version(transaction.version)

    def _check_usable(self) -> None:
        self._check_not_closed()
        if self.fatal is not None:
            raise copy_of(self.fatal)

    def _check_not_closed(self) -> None:
        if self._closed:
            raise ClosedError("this producer was stopped: make a new one")

    def _check_open_to_end(self, transaction: Transaction) -> None:
        if self.current is not transaction:
            self._check_usable()
            if transaction.outcome is None and transaction.begun:
                raise IllegalStateError("the commit of this transaction is not answered yet: await producer.settle()")
            raise IllegalStateError(
                f"this transaction is {transaction.outcome} already" if transaction.begun else "no transaction is open"
            )
        if transaction.ending:
            raise IllegalStateError("this transaction is being committed already")

    def _abort(self, transaction: Transaction, cause: BaseException | None) -> None:
        """The transaction is aborted from here on; its coordinator is told."""
        transaction.ending = True
        if transaction.failure is None:
            how = "" if cause is None else f" by {type(cause).__name__}"
            left = TransactionAbortedError(f"the program aborted it{how}")
            transaction.failure = cause if isinstance(cause, CohortError) else left
        self._records.close()
        used = self._records.used or transaction.has_offsets
        self._records.abandon(lambda: transaction.aborted_error())
        if self.fatal is not None or not used:
            self._ended(transaction, "aborted")
        else:
            transaction.outcome = "aborted"  # nobody else commits it
            self._end(transaction, Question.ABORT)

    def _abandon(self, transaction: Transaction) -> None:
        if self.current is transaction:
            self._records.abandon(lambda: transaction.aborted_error())

    def _end(
        self, transaction: Transaction, question: Question, unacknowledged: tuple[UnacknowledgedTopic, ...] = ()
    ) -> None:
        self.current, self.last = None, transaction
        self._failure = None
        if unacknowledged:
            self._records.withhold_failures()
        self._ask(self._identity.ending(question, transaction.version, unacknowledged))

    def _ended(self, transaction: Transaction, outcome: Outcome) -> None:
        """It ended without the coordinator, which has not heard of it."""
        self.current, self.last = None, transaction
        transaction.outcome = outcome

    def _ask(self, ending: Ending) -> None:
        self._ending = ending
        deadline = Deadline(self._timeout_ms)
        told = partial(self._told, ending, self.last, deadline)
        self._exchange = self._identity.ask_at_once(ending, deadline, told)
        if self._exchange is None:
            self._begin_asking(ending, deadline)

    def _told(
        self, ending: Ending, transaction: Transaction | None, deadline: Deadline, outcome: EndTxnResponse | Exception
    ) -> None:
        """The first question is answered, or will not be: mostly that is the end of it."""
        try:
            if isinstance(outcome, EndTxnResponse):
                ending.answered(outcome)
            if ending.done and not (ending.outcome == "committed" and self._records.unsettled):
                self._why = None
                self._conclude(ending, transaction)
                self._first_answered()
                return
        except Exception:  # a fault of ours: the task meets it again
            log.exception("transaction_end_failed_unexpectedly", transactional_id=self.transactional_id)
        self._begin_asking(ending, deadline)

    def _first_answered(self) -> None:
        self._exchange = None
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _begin_asking(self, ending: Ending, deadline: Deadline | None = None) -> None:
        """A task asks until the ending is done, for the timeout or what is left of it."""
        name = f"cohort-transaction-{self.transactional_id}"
        asking = self._carry_out(ending, self.last, deadline or Deadline(self._timeout_ms))
        self._task = asyncio.create_task(asking, name=name)
        self._first_answered()

    async def _carry_out(self, ending: Ending, transaction: Transaction | None, deadline: Deadline) -> None:
        self._why = None
        try:
            await self._ask_until_done(ending, deadline)
        except CohortError as error:
            self._why = error
            log.warning(
                "transaction_end_not_answered",
                transactional_id=self.transactional_id,
                outcome=ending.outcome or "not known yet",
                error=str(error),
            )
        except Exception as error:  # a fault of ours: the transaction stays in doubt, and is asked for again
            self._why = CohortError(f"the end of the transaction failed unexpectedly: {error!r}")
            log.exception("transaction_end_failed_unexpectedly", transactional_id=self.transactional_id)
        finally:
            self._conclude(ending, transaction)

    def _conclude(self, ending: Ending, transaction: Transaction | None) -> None:
        """Nothing is asked any more, for now: tells what is known."""
        if transaction is not None:
            transaction.outcome = ending.outcome
            if ending.early:
                self._settle_records(ending, transaction)
            transaction.failure = transaction.failure or ending.reason or ending.fatal
        if ending.done:
            self._identity.follow(ending)
            self._ending = None

    async def _ask_until_done(self, ending: Ending, deadline: Deadline) -> None:
        """Asks for the end. Of an early commit that the coordinator does not decide, the records are waited for first; one
        that fails has the transaction aborted, unless the commit has taken effect by then.

        What is asked after that has a time of its own: records may take as long as ``delivery_timeout_ms`` to fail.
        """
        while not ending.done:
            if self._failure is not None:
                ending.give_up(self._failure)
            try:
                async with asyncio.timeout(None) as self._asking:
                    if ending.waits:
                        await self._records.flush()
                        ending.go_on()
                        deadline = Deadline(self._timeout_ms)
                    else:
                        await self._identity.ask(ending, deadline)
            except TimeoutError:
                if self._failure is None:
                    raise
                deadline = Deadline(self._timeout_ms)
            finally:
                self._asking = None
        if ending.outcome == "committed" and self._records.unsettled:
            with suppress(RequestTimedOutError):  # other connections bring their answers late
                await self._records.flush(_LATE_ANSWERS_S)

    def _settle_records(self, ending: Ending, transaction: Transaction) -> None:
        """What became of records that were not acknowledged before their commit was sent."""
        if ending.outcome == "committed" and ending.fatal is None:
            self._records.stored()
        elif ending.outcome == "aborted":
            transaction.failure = transaction.failure or self._failure or ending.reason
            if transaction.failure is not None:
                self._tell_failure(transaction, transaction.failure)
            self._records.abandon(transaction.aborted_error)
        elif self._records.unsettled:
            # Nothing sends them any more: what was not stored by now is not committed. Nor does it say anything of them that
            # the version is committed, when another producer has the id.
            fatal = ending.fatal
            self._failure = self._failure or fatal or self._still_unsettled()
            self._records.abandon(self._still_unsettled if fatal is None else partial(copy_of, fatal), in_doubt=True)

    async def _wait(self, wait_s: float | None) -> None:
        """Waits for the ending that is under way, if there is one. Cancelling this does not end that."""
        if self._exchange is not None:
            loop = asyncio.get_running_loop()
            answered: asyncio.Future[None] = loop.create_future()
            self._waiting.append(answered)
            began = loop.time()
            try:
                if wait_s is None:
                    await answered
                else:
                    await asyncio.wait({answered}, timeout=wait_s)
                    wait_s = max(0.0, wait_s - (loop.time() - began))
            finally:
                answered.cancel()
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=wait_s)

    def _raise_unless_committed(self, transaction: Transaction) -> None:
        if transaction.outcome == "committed":
            return
        if transaction.outcome == "aborted":
            raise transaction.aborted_error()
        if self.fatal is not None:
            error = copy_of(self.fatal)
            error.add_note("whether the transaction before that was committed is not known")
            raise error
        raise self._still_unsettled()

    def _still_unsettled(self) -> CohortError:
        """What is known when the coordinator does not answer."""
        if self.last is not None and self.last.outcome is not None:
            error: CohortError = RequestTimedOutError(
                f"the coordinator of transactional id {self.transactional_id!r} has not answered the end of the transaction "
                f"before, which is {self.last.outcome}: {self._why}"
            )
        else:
            error = TransactionUncertainError(
                f"whether the transaction of {self.transactional_id!r} is committed is not known yet; "
                f"await producer.settle() finds out: {self._why}"
            )
        error.__cause__ = self._why
        return error
