"""Who writes in a transaction and where: AddPartitionsToTxn of leaders, JoinTransaction of members.

An ordinary transaction has one member, the producer of the id, and is open from its first partition on. One that is joined
has a member for each producer, such as each task attempt of Spark, and belongs to a version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from coordinator.transactions import carrying, ending
from coordinator.transactions.completing import write_identity
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.identity import introduce
from coordinator.transactions.records import NO_PRODUCER, NOT_STARTED, Ended, Identity, IdentityRecord, MemberRecord
from coordinator.transactions.refusals import (
    Outcome,
    Refusal,
    join_fault,
    joined_by_others,
    newer_version,
    no_producer_id,
    no_such_id,
    not_added,
    not_current,
    scope_fault,
    too_many_members,
    too_many_partitions,
    too_many_writes,
    topics_fault,
)
from coordinator.transactions.transaction import TransactionalId, Transactions, Waits, start_timeout
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    NO_VERSION,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    JoinTransactionRequest,
    JoinTransactionResponse,
    TransactionTopic,
)

_NOT_TOLD: Final = Identity(NO_PRODUCER, -1)


def add(transactions: Transactions, request: AddPartitionsToTxnRequest, step: TransactionStep) -> Outcome:
    """Decides an AddPartitionsToTxn.

    The answer NONE leaves when the partitions are on disk: what is open in a log is known here.
    """
    state = transactions.known(request.transactional_id)
    if state is None:
        return no_such_id(request.transactional_id)
    named = state.meant(Identity(request.producer_id, request.producer_epoch), request.keeps_epoch)
    current = state.identity.identity
    member = state.current_members.get(named.producer_id)
    if named.epoch != current.epoch or (member is None and named != current):
        return not_current(state, named)
    if member is None and state.open_version != NO_VERSION:
        return joined_by_others(state)
    fault = topics_fault(request.topics)
    if fault is not None:
        return fault
    added = AddPartitionsToTxnResponse(ErrorCode.NONE, "", *(current if request.keeps_epoch else _NOT_TOLD))
    new = _not_in(() if member is None else member.topics, request.topics)
    if request.verify_only:
        if new:
            return not_added(state, new[0].name, new[0].partitions[0])
        return added
    behind = state.waits_in(request.topics)
    if behind is not None:
        return Waits(state, behind)
    if new:
        if member is None:
            member = MemberRecord(
                state.transactional_id, current, named.producer_id, "", step.now.wall_ms, NO_VERSION, ()
            )
        topics = _union(member.topics, new)
        if sum(len(topic.partitions) for topic in topics) > step.config.max_transaction_partitions:
            return too_many_partitions(state, step.config)
        if (
            state.current_members.writes + sum(len(topic.partitions) for topic in new)
            > step.config.max_transaction_writes
        ):
            return too_many_writes(state, step.config)
        # With one partition more it has begun: an answer about fewer, asked for at an earlier load, must not count.
        begins = state.carried or member.started_wall_ms == NOT_STARTED
        started_ms = step.now.wall_ms if begins else member.started_wall_ms
        step.effects.records.append(member._replace(topics=topics, started_wall_ms=started_ms))
    if state.open_version != NO_VERSION:
        if new:  # a sign of life
            start_timeout(state, state.identity.timeout_ms, step)
        return added
    carrying.touch(state, request.topics)
    if not state.open_members and state.touched:
        carrying.begin(state, step)
        start_timeout(state, state.identity.timeout_ms, step)
    return added


def join(transactions: Transactions, request: JoinTransactionRequest, step: TransactionStep) -> Outcome:
    """Decides a JoinTransaction.

    A member that joins again has its identity again, and this is a sign of life of the whole transaction.
    """
    fault = join_fault(request, step.config)
    if fault is not None:
        return fault
    state = transactions.known(request.transactional_id)
    if state is None:
        new = introduce(transactions, request.transactional_id, request.transaction_timeout_ms, request.scope, step)
        return new if isinstance(new, Refusal) else _take_in(transactions, new, request, step)
    fault = scope_fault(state, request.scope, step.config)
    if fault is not None:
        return fault
    identity = state.identity
    if request.version <= identity.committed_version:
        return JoinTransactionResponse(
            ErrorCode.NONE,
            committed_version=identity.committed_version,
            committed_metadata=identity.committed_metadata,
        )
    changes: dict[str, Any] = {"timeout_ms": request.transaction_timeout_ms, "scope": request.scope, "kept": None}
    if not state.open_members:
        carrying.give_up(state, step)
        if changes != {"timeout_ms": identity.timeout_ms, "scope": identity.scope, "kept": identity.kept}:
            identity = write_identity(transactions, state, step, **changes)
        return _take_in(transactions, identity, request, step)
    if state.open_version > request.version:
        return newer_version(state, request.version)
    if state.open_version == request.version:
        return _join_open(transactions, state, request, step)
    if not state.is_decidable:
        return Waits(state)
    record = ending.decide(transactions, state, Ended.FENCED, step, **changes)
    return no_producer_id() if record is None else _take_in(transactions, record, request, step)


def _join_open(
    transactions: Transactions, state: TransactionalId, request: JoinTransactionRequest, step: TransactionStep
) -> Outcome:
    members = state.open_members
    known = state.names.get((state.identity.identity, request.member))
    if known is None and len(members) >= step.config.max_transaction_members:
        return too_many_members(state, step.config)
    if known is None:
        return _take_in(transactions, state.identity, request, step)
    start_timeout(state, state.identity.timeout_ms, step)
    return _answer_join(state.identity, known)


def _take_in(
    transactions: Transactions, identity: IdentityRecord, request: JoinTransactionRequest, step: TransactionStep
) -> Outcome:
    """A new member of the transaction that ``identity`` names."""
    producer_id = transactions.next_producer_id()
    if producer_id is None:
        return no_producer_id()
    member = MemberRecord(
        identity.transactional_id,
        identity.identity,
        producer_id,
        request.member,
        step.now.wall_ms,
        request.version,
        (),
    )
    step.effects.records.append(member)
    start_timeout(transactions[identity.transactional_id], identity.timeout_ms, step)
    return _answer_join(identity, producer_id)


def _not_in(known: Iterable[TransactionTopic], asked: Iterable[TransactionTopic]) -> list[TransactionTopic]:
    """What of ``asked`` is not among the partitions that are known."""
    there = {topic.topic_id: frozenset(topic.partitions) for topic in known}
    new = []
    for topic in asked:
        partitions = there.get(topic.topic_id, frozenset())
        missing = tuple(partition for partition in topic.partitions if partition not in partitions)
        if missing:
            new.append(TransactionTopic(topic.name, topic.topic_id, missing))
    return new


def _union(known: Iterable[TransactionTopic], new: Iterable[TransactionTopic]) -> tuple[TransactionTopic, ...]:
    """All partitions, in order: members that wrote to the same ones have equal topics."""
    partitions: dict[tuple[str, str], set[int]] = {}
    for topic in (*known, *new):
        partitions.setdefault((topic.name, topic.topic_id), set()).update(topic.partitions)
    return tuple(TransactionTopic(*name, tuple(sorted(partitions[name]))) for name in sorted(partitions))


def _answer_join(identity: IdentityRecord, producer_id: int) -> JoinTransactionResponse:
    return JoinTransactionResponse(
        ErrorCode.NONE, producer_id, identity.epoch, identity.committed_version, identity.producer_id
    )
