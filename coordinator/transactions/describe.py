"""What administrators see of transactions: one transactional id with everything about it, or a list of many."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Final

from coordinator.transactions.records import NOT_STARTED, Ended, MemberRecord
from coordinator.transactions.refusals import not_found
from coordinator.transactions.transaction import TransactionalId
from protocol.errors import ErrorCode
from protocol.messages.transactions import DescribedTransaction, ListedTransaction, TransactionMember

EMPTY: Final = "Empty"
ONGOING: Final = "Ongoing"
PREPARE_COMMIT: Final = "PrepareCommit"
PREPARE_ABORT: Final = "PrepareAbort"
COMPLETE_COMMIT: Final = "CompleteCommit"
COMPLETE_ABORT: Final = "CompleteAbort"

STATES: Final = frozenset({EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT})
"""Kafka's names for where a transactional id stands."""

_OUTCOMES: Final = {
    Ended.COMMITTED: "committed",
    Ended.ABORTED: "aborted",
    Ended.TIMED_OUT: "timed out",
    Ended.ADMIN: "aborted by an administrator",
    Ended.FENCED: "fenced",
    Ended.RENEWED: "renewed",
}

MAX_WAITS: Final = 100
"""So many partitions are named that are waited for; the text after them says how many more there are. A request may ask
about thousands of ids."""


def state_of(state: TransactionalId) -> str:
    """Where the id stands. An open transaction is shown before the one that is completing."""
    completing, previous = state.identity.completing, state.identity.previous
    if state.open_members:
        return ONGOING
    if completing is not None and not state.is_finished:
        return PREPARE_COMMIT if any(committed for _, committed in completing.verdicts) else PREPARE_ABORT
    if previous is None or previous.how in (Ended.FENCED, Ended.RENEWED):
        return EMPTY
    return COMPLETE_COMMIT if previous.how is Ended.COMMITTED else COMPLETE_ABORT


def describe(state: TransactionalId | None, transactional_id: str) -> DescribedTransaction:
    """Everything about one id."""
    if state is None:
        fault = not_found(transactional_id)
        return DescribedTransaction(fault.code, transactional_id, error_message=fault.message)
    identity = state.identity
    members = tuple(
        TransactionMember(member.producer_id, member.name, _member_started_ms(state, member), member.topics)
        for member in state.open_members.values()
    )
    return DescribedTransaction(
        ErrorCode.NONE,
        transactional_id,
        state=state_of(state),
        transaction_timeout_ms=identity.timeout_ms,
        transaction_start_ms=_started_ms(state),
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        members=members,
        committed_version=identity.committed_version,
        scope=identity.scope,
        version=state.open_version,
        previous_outcome="" if identity.previous is None else _OUTCOMES[identity.previous.how],
        waits_for=tuple(_waits_for(state)),
    )


def _waits_for(state: TransactionalId) -> Iterator[str]:
    yield from map(str, islice(state.markers.values(), MAX_WAITS))
    if len(state.markers) > MAX_WAITS:
        yield f"and {len(state.markers) - MAX_WAITS} more partitions"


def list_ids(
    states: Mapping[str, TransactionalId],
    names: Collection[str],
    producer_ids: Collection[int],
    older_than_ms: int,
    wall_ms: int,
) -> list[ListedTransaction]:
    """The ids that pass all filters, sorted."""
    wanted_names, wanted_ids = frozenset(names), frozenset(producer_ids)  # a request may name thousands
    listed = []
    for transactional_id, state in states.items():
        name = state_of(state)
        if (wanted_names and name not in wanted_names) or not state.is_known:
            continue  # most of a hundred thousand, mostly
        identity = state.identity
        started_ms = _started_ms(state)
        if (not wanted_ids or identity.producer_id in wanted_ids or not wanted_ids.isdisjoint(state.open_members)) and (
            older_than_ms < 0 or (started_ms >= 0 and wall_ms - started_ms > older_than_ms)
        ):
            listed.append(ListedTransaction(transactional_id, identity.producer_id, identity.epoch, name, started_ms))
    return sorted(listed, key=attrgetter("transactional_id"))


def _started_ms(state: TransactionalId) -> int:
    return min((_member_started_ms(state, member) for member in state.open_members.values()), default=-1)


def _member_started_ms(state: TransactionalId, member: MemberRecord) -> int:
    return state.open_since_wall_ms if member.started_wall_ms == NOT_STARTED else member.started_wall_ms
