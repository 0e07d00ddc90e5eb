"""What a request is refused with, and the sentences that say why and what to do. All of them bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.records import Ended, Identity, Previous
from coordinator.transactions.transaction import TransactionalId, Waits
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    NO_VERSION,
    AbortTransactionRequest,
    AbortTransactionResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    JoinTransactionRequest,
    JoinTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionTopic,
)
from protocol.names import clipped, is_topic_name

_MAX_TOPIC_ID: Final = 64
"""Characters; ours have 22 to 36."""

_HOW: Final = {
    Ended.COMMITTED: "was committed",
    Ended.ABORTED: "was aborted",
    Ended.TIMED_OUT: "was aborted when its timeout had passed",
    Ended.ADMIN: "was aborted by an administrator",
    Ended.FENCED: "was aborted when another producer took the id over, or an administrator fenced it",
    Ended.RENEWED: "was aborted when its producer asked for the id again",
}


class Refusal(NamedTuple):
    """Why a request is not served: an error code, and a sentence with the cause and what to do."""

    code: ErrorCode
    message: str


Outcome = Response | Refusal | Waits
"""What a decision about a request comes to: its answer, why it is refused, or the end markers it waits for."""


def id_fault(transactional_id: str, config: TransactionConfig) -> Refusal | None:
    """A transactional id is not empty and has a bound."""
    if not transactional_id:
        return Refusal(ErrorCode.INVALID_REQUEST, "the transactional id is empty; set one")
    return length_fault("transactional id", transactional_id, config)


def topics_fault(topics: Iterable[TransactionTopic]) -> Refusal | None:
    """Topics have a name that there can be, and an id of ours: both become part of the log."""
    for topic in topics:
        if not is_topic_name(topic.name) or len(topic.topic_id) > _MAX_TOPIC_ID:
            return Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there can be no topic {clipped(topic.name, 60)} with id {clipped(topic.topic_id, 60)}; name those that "
                f"Metadata has",
            )
    return None


def join_fault(request: JoinTransactionRequest, config: TransactionConfig) -> Refusal | None:
    """What is wrong with a JoinTransaction that can be said without knowing the id."""
    if request.version < 0:
        return Refusal(ErrorCode.INVALID_REQUEST, f"version {request.version} is negative; versions begin with 0")
    if not request.member:
        return Refusal(ErrorCode.INVALID_REQUEST, "the name of the member is empty; set one")
    return (
        id_fault(request.transactional_id, config)
        or timeout_fault(request.transaction_timeout_ms, config)
        or length_fault("scope", request.scope, config)
        or length_fault("name of the member", request.member, config)
    )


def timeout_fault(timeout_ms: int, config: TransactionConfig) -> Refusal | None:
    """A transaction timeout is between 1 ms and the bound."""
    if 1 <= timeout_ms <= config.transaction_max_timeout_ms:
        return None
    return Refusal(
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        f"transaction_timeout_ms {timeout_ms} is outside 1 to {config.transaction_max_timeout_ms}, the daemon's "
        f"transaction_max_timeout_ms; set one within",
    )


def scope_fault(state: TransactionalId, scope: str, config: TransactionConfig) -> Refusal | None:
    """Versions are those of one scope, which has a bound. An id that has none yet takes the first that is named."""
    fault = length_fault("scope", scope, config)
    if fault is not None:
        return fault
    known = state.identity.scope
    if known == scope or (not known and state.identity.committed_version == NO_VERSION):
        return None
    return Refusal(
        ErrorCode.INVALID_TXN_STATE,
        f"transactional id {state.shown} has versions of {_scope(known)} up to {state.identity.committed_version}, and this "
        f"is {_scope(scope)}: its versions would be taken for those; choose another transactional id",
    )


def too_many_ids(transactional_id: str, config: TransactionConfig) -> Refusal:
    """The bound on transactional ids is reached."""
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"transactional id {clipped(transactional_id)} is new, and max_transactional_ids {config.max_transactional_ids} is "
        f"reached; use ids again instead of making up new ones, or wait until some have expired",
    )


def too_many_members(state: TransactionalId, config: TransactionConfig) -> Refusal:
    """The bound on members of a transaction is reached."""
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"the transaction of {state.shown} has max_transaction_members {config.max_transaction_members}; "
        f"write with fewer tasks",
    )


def too_many_partitions(state: TransactionalId, config: TransactionConfig) -> Refusal:
    """The bound on the partitions of a member is reached."""
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"a producer in the transaction of {state.shown} writes to more than max_transaction_partitions "
        f"{config.max_transaction_partitions}; write to fewer partitions in one transaction",
    )


def too_many_writes(state: TransactionalId, config: TransactionConfig) -> Refusal:
    """The bound on members and their partitions together is reached."""
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"the members of the transaction of {state.shown} write to more than max_transaction_writes "
        f"{config.max_transaction_writes} partitions, counted for each member; write with fewer tasks, or to fewer "
        f"partitions in each",
    )


def no_producer_id() -> Refusal:
    """There is no producer id at hand."""
    return Refusal(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "the coordinator has no producer id at hand, and reserves some; try again",
    )


def no_such_id(transactional_id: str) -> Refusal:
    """The coordinator does not know the id, or has forgotten it."""
    return Refusal(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {clipped(transactional_id)} has no producer: it is new or expired; ask for a producer id again",
    )


def not_found(transactional_id: str) -> Refusal:
    """An administrator asks about an id that is not there."""
    return Refusal(
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        f"transactional id {clipped(transactional_id)} is not known: it was never used, or it is expired",
    )


def concurrent(state: TransactionalId) -> Refusal:
    """A request has waited for the markers of the transaction before for long enough."""
    return Refusal(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the transaction of {state.shown} before is decided, and its end marker is not written yet in "
        f"{state.in_the_way()}; try again",
    )


def not_current(state: TransactionalId, named: Identity) -> Refusal:
    """The request names a transaction that is neither the current one nor how it may name the one before."""
    previous = state.identity.previous
    name = f"epoch {named.epoch} of producer id {named.producer_id}"
    if previous is not None and _was_in(state, previous, named):
        if previous.how in (Ended.TIMED_OUT, Ended.ADMIN):
            return Refusal(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"the transaction of {state.shown} in {name} {_how(state, previous)}; abort it and begin another",
            )
        text = f"{name} of transactional id {state.shown} is over: its transaction {_HOW[previous.how]}"
    else:
        text = f"{name} is not that of transactional id {state.shown}"
    return Refusal(ErrorCode.PRODUCER_FENCED, f"{text}; another producer has the id, or the request is late")


def other_verdict(state: TransactionalId, previous: Previous) -> Refusal:
    """The transaction is decided, and not the way the request wants."""
    return Refusal(
        ErrorCode.INVALID_TXN_STATE,
        f"the transaction of {state.shown} in epoch {previous.epoch} of producer id {previous.producer_id} "
        f"{_HOW[previous.how]} already, and that stands",
    )


def nothing_to_commit(state: TransactionalId) -> Refusal:
    """A commit without a version of a transaction that has no partitions."""
    return Refusal(
        ErrorCode.INVALID_TXN_STATE,
        f"no transaction of {state.shown} is open: nothing was written in epoch {state.identity.epoch}",
    )


def other_version(state: TransactionalId, version: int) -> Refusal:
    """The open transaction is that of another version."""
    opened = state.open_version
    return Refusal(
        ErrorCode.INVALID_TXN_STATE,
        f"the open transaction of {state.shown} was joined for version {opened}, not {version}; end that of {opened}",
    )


def newer_version(state: TransactionalId, version: int) -> Refusal:
    """A later version is open: who asks has been replaced."""
    return Refusal(
        ErrorCode.PRODUCER_FENCED,
        f"version {state.open_version} of {state.shown} is open, after version {version}: another process has gone on; "
        f"stop one of the two",
    )


def no_member(state: TransactionalId, winners: list[int]) -> Refusal:
    """A commit names producers that are not in the transaction."""
    some = ", ".join(map(str, winners[:5]))
    return Refusal(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"producer ids {some} are not in the transaction of {state.shown}: they wrote in one that has ended; abort, and "
        f"write this version again",
    )


def joined_by_others(state: TransactionalId) -> Refusal:
    """The producer of the id writes in a transaction that has members."""
    return Refusal(
        ErrorCode.PRODUCER_FENCED,
        f"version {state.open_version} of {state.shown} is open, and this producer has not joined it; give each program a "
        f"transactional id of its own",
    )


def not_added(state: TransactionalId, topic: str, partition: int) -> Refusal:
    """A leader asks whether a partition is in the transaction, and it is not."""
    return Refusal(
        ErrorCode.INVALID_TXN_STATE,
        f"the open transaction of {state.shown} has not written to {topic}-{partition} yet; the first record there has "
        f"sequence 0",
    )


def error_response(request: Request, code: ErrorCode, message: str) -> Response:
    """The answer to ``request`` that carries nothing but an error."""
    match request:
        case InitProducerIdRequest():
            return InitProducerIdResponse(code, error_message=message)
        case AddPartitionsToTxnRequest():
            return AddPartitionsToTxnResponse(code, message)
        case EndTxnRequest():
            return EndTxnResponse(code, error_message=message)
        case JoinTransactionRequest():
            return JoinTransactionResponse(code, error_message=message)
        case AbortTransactionRequest():
            return AbortTransactionResponse(code, message)
        case DescribeTransactionsRequest():
            return DescribeTransactionsResponse(
                tuple(DescribedTransaction(code, name, error_message=message) for name in request.transactional_ids)
            )
        case ListTransactionsRequest():
            return ListTransactionsResponse(code, error_message=message)
    raise AssertionError(f"{type(request).__name__} is no request to a transaction coordinator")


def length_fault(what: str, text: str, config: TransactionConfig) -> Refusal | None:
    """Ids, and what is stored beside them, have one bound."""
    bound = config.max_transactional_id_bytes
    if len(text) <= bound and len(text.encode()) <= bound:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"{what} {clipped(text, 60)} is longer than {bound} bytes; choose a shorter one",
    )


def _was_in(state: TransactionalId, previous: Previous, named: Identity) -> bool:
    """Whether a producer wrote in the transaction before: that of the id, or a member while its record is there."""
    if named == previous.identity:
        return True
    return named.epoch == previous.epoch and named.producer_id in state.transactions.get(previous.identity, ())


def _how(state: TransactionalId, previous: Previous) -> str:
    after = f" of {state.identity.timeout_ms} ms" if previous.how is Ended.TIMED_OUT else ""
    return _HOW[previous.how].replace("timeout", f"timeout{after}")


def _scope(scope: str) -> str:
    return f"scope {clipped(scope, 60)}" if scope else "no scope"
