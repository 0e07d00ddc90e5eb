"""The records of the coordinators' logs in plain words: groups and committed offsets, transactional ids."""

from __future__ import annotations

from typing import Any, Final, Literal

from coordinator.groups.records import (
    CoordinatorRecord,
    GenerationRecord,
    GenerationTombstone,
    GroupMetadataRecord,
    GroupMetadataTombstone,
    MemberRecord,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    PendingOffsetsRecord,
    PendingOffsetsTombstone,
    StagedOffsetsRecord,
)
from coordinator.groups.records import decode_record as decode_of_groups
from coordinator.inspection.output import content_text, counted, plain, time_text
from coordinator.transactions.records import (
    IdentityRecord,
    IdentityTombstone,
    MemberTombstone,
    TransactionRecord,
)
from coordinator.transactions.records import MemberRecord as WriterRecord
from coordinator.transactions.records import decode_record as decode_of_transactions
from protocol.errors import ProtocolError
from protocol.names import clipped
from protocol.subscription import decode_assignment, group_by_topic

Contents = Literal["records", "groups", "transactions"]
"""What the records of a log are: a program's, or those of one of the coordinators."""

_LOGS: Final[dict[str, Contents]] = {"__consumer_offsets": "groups", "__transaction_state": "transactions"}


def contents_of(directory: str) -> Contents:
    """What the records in a partition's directory are, by its name."""
    return _LOGS.get(directory.rpartition("-")[0], "records")


def in_words(contents: Contents, key: bytes | None, value: bytes | None) -> tuple[str, Any]:
    """A record of a coordinator as a sentence, and for JSON. Raises ``ProtocolError`` when it is none."""
    if key is None:
        raise ProtocolError("a record of a coordinator has a key")
    record = decode_of_groups(key, value) if contents == "groups" else decode_of_transactions(key, value)
    if record is None:
        return f"a record that a newer version knows, of key {content_text(key, 100)}", None
    try:
        sentence = _of_group(record) if contents == "groups" else _of_transaction(record)  # type: ignore[arg-type]
        return sentence, {"type": type(record).__name__, **plain(record)}
    except (TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"key {key[:60]!r} has fields of other kinds: {error}") from error


def _of_group(record: CoordinatorRecord) -> str:
    group = f"group {clipped(record.group_id)}"
    if isinstance(record, OffsetCommitRecord):
        note = f", metadata {content_text(record.metadata.encode(errors='replace'), 100)}" if record.metadata else ""
        epoch = f", leader epoch {record.leader_epoch}" if record.leader_epoch >= 0 else ""
        where = _partition(record.topic, record.partition)
        return f"{group} committed offset {record.offset} of {where} at {time_text(record.commit_wall_ms)}{epoch}{note}"
    if isinstance(record, OffsetCommitTombstone):
        return f"{group}: the committed offset of {_partition(record.topic, record.partition)} is erased"
    if isinstance(record, GroupMetadataRecord):
        return _generation(group, record)
    if isinstance(record, GroupMetadataTombstone):
        return f"{group} is gone"
    if isinstance(record, GenerationRecord):
        return f"{group}: generation {record.generation} is handed out"
    if isinstance(record, GenerationTombstone):
        return f"{group}: its generations are gone"
    return _of_group_in_transactions(group, record)


def _of_group_in_transactions(group: str, record: CoordinatorRecord) -> str:
    if isinstance(record, PendingOffsetsRecord):
        offsets = ", ".join(f"{_partition(each.topic, each.partition)} {each.offset}" for each in record.offsets)
        return (
            f"{group}: the transaction of producer {record.producer_id}, epoch {record.producer_epoch}, open since "
            f"{time_text(record.since_wall_ms)}, is to commit {offsets or 'nothing'}"
        )
    if isinstance(record, PendingOffsetsTombstone):
        return f"{group}: no transaction of producer {record.producer_id} has offsets to commit any more"
    if isinstance(record, StagedOffsetsRecord):
        ranges = (f"{_partition(at.topic, at.partition)} {at.start_offset} to {at.end_offset}" for at in record.offsets)
        return (
            f"{group}: the next batch of generation {record.generation} reads {', '.join(ranges) or 'nothing'}, as member "
            f"{clipped(record.member_id)} said at {time_text(record.staged_wall_ms)}"
        )
    return f"{group}: nothing is staged any more"


def _generation(group: str, record: GroupMetadataRecord) -> str:
    at = time_text(record.written_wall_ms)
    if not record.members:
        return f"{group} is empty after generation {record.generation}, since {at}: {clipped(record.rebalance_reason)}"
    head = (
        f"{group}: generation {record.generation} of {counted(len(record.members), 'member')}, {record.protocol_type} "
        f"{clipped(str(record.protocol_name))}, leader {clipped(str(record.leader))}, written at {at}; reason: "
        f"{clipped(record.rebalance_reason)}"
    )
    return "\n".join([head, *(f"    {_member(member)}" for member in record.members)])


def _member(member: MemberRecord) -> str:
    static = f" (static: {clipped(member.group_instance_id)})" if member.group_instance_id else ""
    return (
        f"{clipped(member.member_id)}{static} of {clipped(member.client_id)} at {clipped(member.client_host)}, session "
        f"{member.session_timeout_ms} ms, rebalance {member.rebalance_timeout_ms} ms: {_assigned(member.assignment)}"
    )


def _assigned(assignment: bytes) -> str:
    if not assignment:
        return "nothing is assigned"
    try:
        by_topic = group_by_topic(decode_assignment(assignment))
    except ProtocolError:
        return f"{counted(len(assignment), 'byte')} of assignment"
    owned = (f"{clipped(topic)} {','.join(map(str, numbers))}" for topic, numbers in by_topic.items())
    return "; ".join(owned) or "no partition"


def _of_transaction(record: TransactionRecord) -> str:
    name = f"transactional id {clipped(record.transactional_id)}"
    if isinstance(record, IdentityTombstone):
        return f"{name} is forgotten"
    if isinstance(record, IdentityRecord):
        return f"{name}: {_identity(record)}"
    transaction = f"transaction of producer {record.transaction.producer_id}, epoch {record.transaction.epoch}"
    if isinstance(record, MemberTombstone):
        return f"{name}: producer {record.producer_id} is no longer part of the {transaction}"
    return f"{name}: {_writer(record, transaction)}"


def _identity(record: IdentityRecord) -> str:
    parts = [f"producer {record.producer_id}, epoch {record.epoch}, timeout {record.timeout_ms} ms"]
    if record.previous is not None:
        how = record.previous.how.name.lower().replace("_", " ")
        parts.append(f"the one before, producer {record.previous.producer_id}, epoch {record.previous.epoch}: {how}")
    if record.completing is not None:
        verdicts = ", ".join(
            f"producer {producer_id} {'commits' if committed else 'aborts'}"
            for producer_id, committed in record.completing.verdicts
        )
        parts.append(
            f"end markers of producer {record.completing.producer_id}, epoch {record.completing.epoch} are being written "
            f"({verdicts or 'none'})"
        )
    if record.scope or record.committed_version >= 0:
        parts.append(f"committed version {record.committed_version} of scope {clipped(record.scope)!r}")
    return "; ".join([*parts, f"changed at {time_text(record.changed_wall_ms)}"])


def _writer(record: WriterRecord, transaction: str) -> str:
    written = ", ".join(f"{clipped(topic.name)} {','.join(map(str, topic.partitions))}" for topic in record.topics)
    since = f"since {time_text(record.started_wall_ms)}" if record.started_wall_ms >= 0 else "if it has begun"
    name = f" ({clipped(record.name)})" if record.name else ""
    return f"producer {record.producer_id}{name} writes in the {transaction}, {since}: {written or 'nowhere yet'}"


def _partition(topic: str, partition: int) -> str:
    return f"{clipped(topic)}-{partition}"
