"""How a transaction ends: what its coordinator is asked, and what each answer means. Pure.

The same request is sent until it has a definite answer, so an answer that was lost is told again: a coordinator knows how
the identity before the current one ended. A transaction counts as committed or aborted only when that is certain.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, NamedTuple

from client.errors import (
    CohortError,
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
    error_for,
)
from protocol.errors import ErrorCode
from protocol.messages.producers import OUTCOME_COMMITTED, InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import NO_VERSION, EndTxnRequest, EndTxnResponse, UnacknowledgedTopic

Outcome = Literal["committed", "aborted"]
"""What became of a transaction."""

FATAL: Final = (
    ProducerFencedError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    InvalidTransactionTimeoutError,
    TransactionalIdNotFoundError,
)
"""After one of these a producer does nothing more: another has its transactional id, or the program is wrong, or the id is
forgotten as it was not used for long.

A producer that took such an id anew by itself could fence one that has come and rested since; and nothing would tell its
program that the version committed last is forgotten with the id (KAFKA-18019).
"""


class Identity(NamedTuple):
    """Names a transaction: a producer id and an epoch, used once."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = Identity(-1, -1)


class Question(Enum):
    """What is asked next."""

    COMMIT = "EndTxn, commit"
    ABORT = "EndTxn, abort"
    RENEW = "InitProducerId with the identity"
    TAKE_OVER = "InitProducerId"


class Ending:
    """The end of the transaction ``identity`` of a transactional id, or with ``Question.TAKE_OVER`` the id's taking over.

    The coordinator is asked ``request()`` until ``done``: the driver tells ``sent`` before each attempt and ``answered`` or
    ``lost`` after it. ``outcome`` is what became of the transaction as soon as it is known, and for good; ``following`` is
    the identity of the next one. ``reason`` is why a transaction is aborted that was to be committed. ``fatal`` is the error
    after which the producer can do nothing more; the outcome may then stay unknown.
    """

    def __init__(
        self,
        transactional_id: str,
        timeout_ms: int,
        question: Question,
        identity: Identity = NO_IDENTITY,
        version: int = NO_VERSION,
        unacknowledged: tuple[UnacknowledgedTopic, ...] = (),
    ) -> None:
        self.early = bool(unacknowledged)
        """Whether the commit is sent before all records are acknowledged."""
        self.waits = False
        """Whether the coordinator has not decided an early commit: the records are to be waited for, then ``go_on``."""
        self.outcome: Outcome | None = "aborted" if question is Question.ABORT else None
        self.following: Identity | None = None
        self.committed_version = NO_VERSION
        self.reason: CohortError | None = None
        self.fatal: CohortError | None = None
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._question = question
        self._identity = identity
        self._version = version
        self._unacknowledged = unacknowledged
        self._in_doubt = 0  # attempts to commit that may have been heard and were not answered

    @property
    def done(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.following is not None or self.fatal is not None

    @property
    def in_doubt(self) -> bool:
        """Whether the transaction may be committed or aborted, as far as is known."""
        return self.outcome is None and self._in_doubt > 0

    @property
    def unknowable(self) -> bool:
        """Whether no answer can tell any more what became of the transaction."""
        return self.outcome is None and self.fatal is not None

    def request(self) -> EndTxnRequest | InitProducerIdRequest:
        """What to ask now."""
        producer_id, epoch = self._identity
        if self._question in (Question.COMMIT, Question.ABORT):
            committed = self._question is Question.COMMIT
            version = self._version if committed else NO_VERSION
            return EndTxnRequest(
                self._transactional_id, producer_id, epoch, committed, version, unacknowledged=self._unacknowledged
            )
        if self._question is Question.TAKE_OVER:
            return InitProducerIdRequest(self._transactional_id, self._timeout_ms)
        return InitProducerIdRequest(self._transactional_id, self._timeout_ms, producer_id, epoch)

    def sent(self) -> None:
        """The request is about to be sent, and may be heard from now on."""
        if self._question is Question.COMMIT:
            self._in_doubt += 1

    def go_on(self) -> None:
        """All records are acknowledged: the commit no longer names any."""
        self.waits = False

    def give_up(self, reason: CohortError) -> None:
        """A record failed after an early commit was sent: an abort takes its place.

        The outcome is known when that is answered: the commit may have been decided, as what a producer takes for failed may
        be stored.
        """
        if self._question is Question.COMMIT:
            self._question, self.waits, self._unacknowledged, self.reason = Question.ABORT, False, (), reason

    def answered(self, answer: EndTxnResponse | InitProducerIdResponse) -> CohortError | None:
        """Takes an answer. Returns the error for which the same request is to be sent again later, if that is so."""
        if answer.error_code == ErrorCode.NONE:
            self.committed_version = max(self.committed_version, answer.committed_version)
            self._go_on(answer)
            return None
        error = error_for(answer.error_code, f"transactional id {self._transactional_id!r}: {answer.error_message}")
        if self._unacknowledged and self._question is Question.COMMIT and error.retriable:
            self._unacknowledged, self.waits = (), True  # it stays in doubt: this request may come again
            return None
        if isinstance(error, ConcurrentTransactionsError):
            self._in_doubt -= self._question is Question.COMMIT  # it was parked, and nothing was decided
            return error
        if isinstance(error, TransactionAbortableError | InvalidProducerEpochError):
            self._refused(error)
            return None
        if isinstance(error, FATAL):
            self._refused(error)
            return None
        return error

    def _go_on(self, answer: EndTxnResponse | InitProducerIdResponse) -> None:
        """The answer says what became of the transaction, or who comes next, or both."""
        if self._question is Question.COMMIT:
            self.outcome = "committed"
            self.committed_version = max(self.committed_version, self._version)
        elif self._question is Question.ABORT:
            self.outcome = "aborted"
        elif isinstance(answer, InitProducerIdResponse) and self._question is Question.RENEW and self.outcome is None:
            self.outcome = "committed" if answer.previous_outcome == OUTCOME_COMMITTED else "aborted"
        following = Identity(answer.producer_id, answer.producer_epoch)
        if isinstance(answer, EndTxnResponse) and following in (NO_IDENTITY, self._identity):
            self._question = Question.RENEW  # the version was committed before, and nothing was done now
        else:
            self.following = following

    def _refused(self, error: CohortError) -> None:
        """The coordinator has decided otherwise, or knows nothing of this identity (any more)."""
        if self._question is Question.COMMIT:
            self._in_doubt -= 1
        if isinstance(error, InvalidProducerEpochError):  # what Kafka's coordinators said before KIP-588
            error = ProducerFencedError(str(error))
        if isinstance(error, InvalidTxnStateError) and self._question is Question.ABORT and self.in_doubt:
            self._question = Question.RENEW  # the early commit has taken effect
            return
        certain = isinstance(error, TransactionAbortableError) or not self._in_doubt
        if self.outcome is None and certain:
            self.outcome = "aborted"
            self.reason = error
        if isinstance(error, TransactionAbortableError) and self._question is Question.COMMIT:
            self._question = Question.ABORT
        elif isinstance(error, TransactionAbortableError) and self._question is Question.ABORT:
            self._question = Question.RENEW
        else:
            self.fatal = error
