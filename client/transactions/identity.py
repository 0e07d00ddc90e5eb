"""The identity that a transactional id has: taken over from the coordinator, and moved on by each transaction that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from client.errors import CohortError, RequestTimedOutError, error_for
from client.log import get_logger
from client.transactions.ending import Ending, Identity, Question
from client.transport.cluster import COORDINATOR_MOVED, Cluster, CoordinatorKey
from client.transport.connection import ToldExchange
from client.transport.deadline import Deadline
from client.transport.request_limits import checked_frame
from protocol.messages.producers import InitProducerIdResponse
from protocol.messages.transactions import NO_VERSION, EndTxnRequest, EndTxnResponse, UnacknowledgedTopic

log = get_logger()


class TransactionalIdentity:
    """Who a producer is at the coordinator of its transactional id, and the endings that change it.

    ``current`` is the identity of the transaction that is open or comes next, None while it is in doubt. ``fatal`` is the
    error after which there is none any more. ``committed_version`` is the highest version that the id has committed, -1 for
    none.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.current: Identity | None = None
        self.committed_version = NO_VERSION
        self.fatal: CohortError | None = None
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def take_over(self, deadline: Deadline) -> None:
        """Ends what the producer before this one has open, fences it, and gets the identity.

        Raises what the coordinator refuses it for, ``RequestTimedOutError`` when it does not answer in time.
        """
        ending = Ending(self.transactional_id, self._timeout_ms, Question.TAKE_OVER)
        await self.ask(ending, deadline)
        if ending.fatal is not None:
            raise ending.fatal
        self.follow(ending)

    def ending(
        self, question: Question, version: int = NO_VERSION, unacknowledged: tuple[UnacknowledgedTopic, ...] = ()
    ) -> Ending:
        """The end of the current transaction, which has to be asked for; the identity is in doubt until it is done."""
        assert self.current is not None, "a transaction that ends has an identity"
        current, self.current = self.current, None
        return Ending(self.transactional_id, self._timeout_ms, question, current, version, unacknowledged)

    def follow(self, ending: Ending) -> None:
        """Goes on after an ending that is done."""
        self.current, self.fatal = ending.following, ending.fatal
        self.committed_version = max(self.committed_version, ending.committed_version)

    def ask_at_once(
        self, ending: Ending, deadline: Deadline, tell: Callable[[EndTxnResponse | Exception], None]
    ) -> ToldExchange[EndTxnResponse] | None:
        """Asks the coordinator once, without a task, where nothing has to be waited for; None where ``ask`` has to be used.

        ``tell`` gets the answer, or the error in its place, which may be that the coordinator is elsewhere.
        """
        request = ending.request()
        connection = self._cluster.connection_to_known(self.transactional_id, CoordinatorKey.TRANSACTIONAL_ID)
        if connection is None or not isinstance(request, EndTxnRequest):
            return None

        def answered(outcome: EndTxnResponse | Exception) -> None:
            if isinstance(outcome, EndTxnResponse) and outcome.error_code in COORDINATOR_MOVED:
                outcome = error_for(outcome.error_code, outcome.error_message)
            tell(outcome)

        timeout_s = min(self._cluster.request_timeout_ms / 1000, deadline.remaining_s())
        frame, name = partial(checked_frame, request), type(request).__name__
        try:
            exchange = connection.begin(name, frame, EndTxnResponse, answered, timeout_s=timeout_s)
        except Exception as error:  # ``ask`` meets it again, where it can be told
            log.debug("transaction_ending_put_off", transactional_id=self.transactional_id, error=repr(error))
            return None
        if exchange is not None:
            ending.sent()
        return exchange

    async def ask(self, ending: Ending, deadline: Deadline) -> None:
        """Asks the coordinator until the ending is done, or ``waits`` for the records.

        Raises ``RequestTimedOutError`` at the deadline, with the last error as its cause; or the error of an answer that
        makes no sense. It may be called again then, with the same ending.
        """
        attempt = 0
        while not (ending.done or ending.waits):
            request = ending.request()
            answer: EndTxnResponse | InitProducerIdResponse = await self._cluster.call_coordinator(
                self.transactional_id,
                request,
                EndTxnResponse if isinstance(request, EndTxnRequest) else InitProducerIdResponse,
                key_type=CoordinatorKey.TRANSACTIONAL_ID,
                deadline=deadline,
                before_attempt=ending.sent,
            )
            error = ending.answered(answer)
            if error is None:
                attempt = 0
                continue
            delay_s = self._cluster.backoff.delay_s(attempt)
            if not error.retriable:
                raise error
            if deadline.remaining_s() <= delay_s:
                raise RequestTimedOutError(
                    f"{type(request).__name__} of transactional id {self.transactional_id!r} did not succeed within "
                    f"{deadline.timeout_ms:.0f} ms; the last error was {type(error).__name__}: {error}"
                ) from error
            log.debug("transaction_ending_again", transactional_id=self.transactional_id, error=str(error))
            attempt += 1
            await asyncio.sleep(delay_s)
