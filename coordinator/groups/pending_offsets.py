"""TxnOffsetCommit and the end of transactions: offsets that take effect when a transaction commits (KIP-98, KIP-447).

Until then they are pending: undecided, shown in no answer, never expiring. All that one transaction is to commit in a group
is one record of the log, which each further TxnOffsetCommit of it writes anew; the end of the transaction writes committed
offsets, or none, and a tombstone. So the offsets log has no transactional batches, and nothing has to be decided at a load.

Of all commits of a partition the one that came last counts, by the moment of its OffsetCommit or TxnOffsetCommit: a plain
commit overtakes what is pending for the partition, and of two transactions the one that was told later wins, whichever ends
first. What comes twice is told once: a TxnOffsetCommit that is late moves nothing that it was told before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from coordinator.groups.config import GroupStep
from coordinator.groups.group import Group, Groups, clipped
from coordinator.groups.offsets import judged, unknown_group_fault, write_overtaken
from coordinator.groups.records import (
    OVERTAKEN,
    OffsetCommitRecord,
    PendingOffset,
    PendingOffsetsRecord,
    PendingOffsetsTombstone,
)
from coordinator.groups.refusals import Refusal, error_response, member_fault
from coordinator.groups.staged import offsets_of_stage
from coordinator.groups.state import GroupState
from protocol.errors import ErrorCode
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_TRANSACTIONS_AT_ONCE: Final = 2
"""All open transactions may be about to commit so many times the offsets of one: partitions move between producers."""

End = tuple[int, int, bool]
"""Producer id and epoch of a transaction, and whether it committed."""


def commit_in_transaction(groups: Groups, request: TxnOffsetCommitRequest, step: GroupStep) -> None:
    """Decides a TxnOffsetCommit of a transaction whose coordinator knows that this partition takes part.

    Checked as an OffsetCommit, but also accepted while the group waits for its assignment, and without a generation
    whatever members the group has. It renews no session: it comes from a producer.
    """
    group = groups.get(request.group_id)
    fault = _fault(group, request, step) or _epoch_fault(groups, request)
    if fault is None and request.staged:
        found = offsets_of_stage(group, request, groups.topics, step)
        if isinstance(found, Refusal):
            fault = found
        else:
            records, response = found, TxnOffsetCommitResponse(())
    elif fault is None:
        records, topics, message = judged(request, groups.topics, step)
        response = TxnOffsetCommitResponse(topics, message)
    if fault is None and records:
        pending = _pending(group, request, records, step)
        fault = _size_fault(pending, step) or _room_fault(group, pending, step)
        if fault is None:
            step.effects.records.append(pending)
    step.reply(response if fault is None else error_response(request, fault.code, fault.message))


def end_transactions(groups: Groups, ends: Sequence[End], step: GroupStep) -> None:
    """See ``GroupCore.end_transactions``."""
    by_group: dict[str, dict[int, bool]] = {}
    for producer_id, producer_epoch, committed in ends:
        for group_id, open_epoch in groups.open_transactions.get(producer_id, {}).items():
            if open_epoch == producer_epoch:
                by_group.setdefault(group_id, {}).setdefault(producer_id, committed)
    for group_id, outcomes in by_group.items():
        _end(groups, groups[group_id], outcomes, step)


def forget(groups: Groups, group: Group, producer_id: int) -> None:
    """A tombstone was applied: a producer has no pending offsets of the group any more."""
    group.pending_offsets.pop(producer_id, None)
    epochs = groups.open_transactions.get(producer_id)
    if epochs is not None:
        epochs.pop(group.group_id, None)
        if not epochs:
            del groups.open_transactions[producer_id]


def _end(groups: Groups, group: Group, outcomes: dict[int, bool], step: GroupStep) -> None:
    """Transactions of these producers have ended, as ``outcomes`` says; those of others may have later offsets.

    The committed offsets come first in the log: what is torn off by a crash is then done again, as no marker was confirmed.
    """
    counting: dict[tuple[str, int], PendingOffset] = {}
    for producer_id, committed in outcomes.items():
        for pending in group.pending_offsets[producer_id].offsets if committed else ():
            place = pending.topic, pending.partition
            if pending.serial != OVERTAKEN and (place not in counting or counting[place].serial < pending.serial):
                counting[place] = pending
    records = step.effects.records
    for pending in counting.values():
        if not groups.topics.is_gone(pending.topic, pending.topic_id):
            topic, partition, offset, leader_epoch, metadata, topic_id, _ = pending
            records.append(
                OffsetCommitRecord(
                    group.group_id, topic, partition, offset, leader_epoch, metadata, step.now.wall_ms, topic_id
                )
            )
    for producer_id, record in group.pending_offsets.items():
        if producer_id in outcomes:
            records.append(PendingOffsetsTombstone(group.group_id, producer_id))
        else:
            write_overtaken(record, partial(_is_earlier, counting), step.effects)


def _is_earlier(counting: dict[tuple[str, int], PendingOffset], pending: PendingOffset) -> bool:
    """Whether one of the offsets that count now was told later for the same partition."""
    committed = counting.get((pending.topic, pending.partition))
    return committed is not None and committed.serial > pending.serial


def _fault(group: Group | None, request: TxnOffsetCommitRequest, step: GroupStep) -> Refusal | None:
    """What refuses the whole request, of what the group knows."""
    if group is None:
        return unknown_group_fault(request, step)
    if request.generation_id < 0:
        names_no_member = not request.member_id and request.group_instance_id is None
        if names_no_member or group.state is GroupState.EMPTY:
            return None
    return member_fault(group, request, step)


def _epoch_fault(groups: Groups, request: TxnOffsetCommitRequest) -> Refusal | None:
    """Another transaction of the producer has pending offsets here; admission has looked, but answers may be late."""
    epochs = groups.open_transactions.get(request.producer_id)
    epoch = request.producer_epoch if epochs is None else next(iter(epochs.values()))
    if epoch == request.producer_epoch:
        return None
    who = f"producer {request.producer_id} of transactional id {clipped(request.transactional_id)}"
    if epoch < request.producer_epoch:
        return Refusal(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{who}: its transaction of epoch {epoch} has not ended here yet; try again",
        )
    return Refusal(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"{who}: a transaction of epoch {epoch} is open here, and this is epoch {request.producer_epoch}; another "
        f"instance has taken over",
    )


def _pending(
    group: Group | None, request: TxnOffsetCommitRequest, records: Sequence[OffsetCommitRecord], step: GroupStep
) -> PendingOffsetsRecord:
    """All that the transaction is to commit in the group, with what this request brings."""
    before = None if group is None else group.pending_offsets.get(request.producer_id)
    others = () if group is None else group.pending_offsets.values()
    serial = 1 + max((pending.serial for record in others for pending in record.offsets), default=0)
    offsets = {} if before is None else {(one.topic, one.partition): one for one in before.offsets}
    for _, topic, partition, offset, leader_epoch, metadata, _, topic_id in records:
        pending = PendingOffset(topic, partition, offset, leader_epoch, metadata, topic_id, serial)
        known = offsets.get((topic, partition))
        if known is None or not _says_the_same(known, pending):
            offsets[topic, partition] = pending
    return PendingOffsetsRecord(
        request.group_id,
        request.producer_id,
        request.producer_epoch,
        step.now.wall_ms if before is None else before.since_wall_ms,
        tuple(offsets.values()),
    )


def _says_the_same(known: PendingOffset, pending: PendingOffset) -> bool:
    """Whether a transaction tells what it has told already; perhaps a request that was late on its way."""
    return known[:-1] == pending[:-1]


def _size_fault(pending: PendingOffsetsRecord, step: GroupStep) -> Refusal | None:
    config, count = step.config, len(pending.offsets)
    chars = sum(len(one.metadata) for one in pending.offsets)
    if count <= config.max_pending_offsets and chars <= config.max_pending_metadata_chars:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"the transaction of producer {pending.producer_id} is to commit {count} offsets of group "
        f"{clipped(pending.group_id)} with {chars} characters of metadata; at most {config.max_pending_offsets} and "
        f"{config.max_pending_metadata_chars} are allowed in one transaction",
    )


def _room_fault(group: Group | None, pending: PendingOffsetsRecord, step: GroupStep) -> Refusal | None:
    """Each commit of the group looks at all its pending offsets, so those of all transactions have a bound as well."""
    records = {} if group is None else group.pending_offsets
    others = sum(len(record.offsets) for producer_id, record in records.items() if producer_id != pending.producer_id)
    bound = _TRANSACTIONS_AT_ONCE * step.config.max_pending_offsets
    if others + len(pending.offsets) <= bound:
        return None
    return Refusal(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"open transactions of other producers are to commit {others} offsets of group {clipped(pending.group_id)}, and "
        f"{bound} are allowed together; try again when some have ended",
    )
