"""What the group coordinator writes to its log, and the bytes of it.

A record is a key and a value; the log keeps the latest value of each key, and a null value (a tombstone) erases it::

    key    [1, group, topic, partition]      value  [version, offset, leader_epoch, metadata, commit_wall_ms,
                                                     topic_id]
    key    [2, group]                        value  [version, generation, protocol_type, protocol_name, leader, reason,
                                                     written_wall_ms, [member, ...]]
    key    [3, group]                        value  [version, generation]
    key    [4, group, producer_id]           value  [version, producer_epoch, since_wall_ms, [pending, ...]]
    key    [5, group]                        value  [version, generation, member_id, staged_wall_ms, [staged, ...]]
    pending [topic, partition, offset, leader_epoch, metadata, topic_id, serial]
    staged [topic, partition, start_offset, end_offset, metadata, topic_id]
    member [member_id, instance_id, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,
            [[protocol_name, metadata], ...], assignment]

All are msgpack arrays. A reader skips keys of a kind it does not know and ignores extra trailing fields of a value, so a
later version must add to the end only; what cannot is a new kind (as in Kafka, KIP-915). The key carries no version: a
rewrite by a newer version has to replace the older value.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from sys import intern
from typing import Any, Final, NamedTuple

from msgpack import Packer, Unpacker, unpackb
from msgpack.exceptions import UnpackException

from protocol.errors import ProtocolError
from protocol.messages.groups import JoinGroupProtocol

OFFSET_COMMIT_KIND: Final = 1
GROUP_METADATA_KIND: Final = 2
GENERATION_KIND: Final = 3
PENDING_OFFSETS_KIND: Final = 4
STAGED_OFFSETS_KIND: Final = 5
VERSION: Final = 0

MEMBERS_PER_STEP: Final = 2_500
"""Members of a generation that are encoded or decoded in one step: about 2 ms. Each step is a turn of the loop, and the
answers to all groups of the shard wait for the last: so there are few."""

_LARGE_VALUE_BYTES: Final = 128 * 1024
"""A larger value is decoded in steps: it may have thousands of members."""

_GROUP_FIELDS: Final = 8
"""The fields of a generation that version 0 has; the members are the last of them."""

_pack: Final = Packer().pack  # kept: making a packer, as packb does at every call, costs more than packing
_pack_array_header: Final = Packer().pack_array_header
_pack_members: Final = Packer(default=attrgetter("name", "metadata")).pack
"""Packs members, in which only the protocols they offer are no tuples."""


class OffsetCommitRecord(NamedTuple):
    """One committed offset. ``metadata`` is "" when there is none, ``leader_epoch`` -1 when unknown.

    ``topic_id`` names the topic that it was committed for: a topic that is deleted and created again under the same name has
    another id, and its groups begin anew (KIP-516). It is "" in records of version 0.1, which had none.

    A tuple, not a dataclass like the others: a restart makes a million of them, and a frozen dataclass costs three times as
    much to make.
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_wall_ms: int
    topic_id: str = ""


CommittedOffset = tuple[int, int, str, int, str]
"""What a group keeps of an ``OffsetCommitRecord``: offset, leader epoch, metadata, commit time, topic id.

A plain tuple because there are millions: the garbage collector stops looking at plain tuples that hold no containers, while
it would walk through as many objects of a class again and again.
"""


@dataclass(frozen=True, slots=True)
class OffsetCommitTombstone:
    """The committed offset of a partition is gone."""

    group_id: str
    topic: str
    partition: int


class MemberRecord(NamedTuple):
    """A member of a stable generation. ``protocols`` are all it offered, so that a change shows also after a restart.

    A tuple, as a group of ten thousand members makes as many of them at once.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataRecord:
    """A generation with its members and their assignments; without members, a group that became empty."""

    group_id: str
    generation: int
    protocol_type: str
    protocol_name: str | None
    leader: str | None
    rebalance_reason: str
    written_wall_ms: int
    members: tuple[MemberRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMetadataTombstone:
    """The group is gone."""

    group_id: str


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """A generation is handed out: written before any member hears its number, so that none is ever handed out twice.

    Kafka writes a generation only once it is settled, and counts from there again after a restart: then a late SyncGroup of
    the leader, for a generation that was lost, can settle another one of the same number with shares for other members.
    """

    group_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class GenerationTombstone:
    """The group is gone, and its generations with it."""

    group_id: str


OVERTAKEN: Final = 0
"""The serial of a pending offset that will not take effect."""


class PendingOffset(NamedTuple):
    """An offset of a transaction that is not decided.

    Of two for one partition, the one with the greater ``serial`` came later. One whose serial is ``OVERTAKEN`` will not take
    effect: something that came later counts. It stays until the transaction ends, so that a TxnOffsetCommit which comes
    twice brings nothing back.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str
    serial: int


@dataclass(frozen=True, slots=True)
class PendingOffsetsRecord:
    """All offsets of a group that the open transaction of a producer is to commit. It replaces the one before."""

    group_id: str
    producer_id: int
    producer_epoch: int
    since_wall_ms: int
    offsets: tuple[PendingOffset, ...]


@dataclass(frozen=True, slots=True)
class PendingOffsetsTombstone:
    """No transaction of the producer has pending offsets of the group: it is decided, or they were erased."""

    group_id: str
    producer_id: int


class StagedOffset(NamedTuple):
    """What a batch reads of one partition: from ``start_offset`` up to the record before ``end_offset``."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    metadata: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class StagedOffsetsRecord:
    """What the next batch of a group reads, as a member said. It replaces what was staged before."""

    group_id: str
    generation: int
    member_id: str
    staged_wall_ms: int
    offsets: tuple[StagedOffset, ...]


@dataclass(frozen=True, slots=True)
class StagedOffsetsTombstone:
    """Nothing is staged."""

    group_id: str


CoordinatorRecord = (
    OffsetCommitRecord
    | OffsetCommitTombstone
    | GroupMetadataRecord
    | GroupMetadataTombstone
    | GenerationRecord
    | GenerationTombstone
    | PendingOffsetsRecord
    | PendingOffsetsTombstone
    | StagedOffsetsRecord
    | StagedOffsetsTombstone
)


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record; the value of a tombstone is None."""
    if isinstance(record, OffsetCommitRecord):
        group_id, topic, partition, offset, leader_epoch, metadata, commit_wall_ms, topic_id = record
        return (
            _pack((OFFSET_COMMIT_KIND, group_id, topic, partition)),
            _pack((VERSION, offset, leader_epoch, metadata, commit_wall_ms, topic_id)),
        )
    if isinstance(record, GroupMetadataRecord):
        return _pack((GROUP_METADATA_KIND, record.group_id)), _group_value(record)
    if isinstance(record, GenerationRecord):
        return _pack((GENERATION_KIND, record.group_id)), _pack((VERSION, record.generation))
    if isinstance(record, OffsetCommitTombstone):
        return _pack((OFFSET_COMMIT_KIND, record.group_id, record.topic, record.partition)), None
    if isinstance(record, GenerationTombstone):
        return _pack((GENERATION_KIND, record.group_id)), None
    if isinstance(record, GroupMetadataTombstone):
        return _pack((GROUP_METADATA_KIND, record.group_id)), None
    return _encode_transactional(record)


def _encode_transactional(
    record: PendingOffsetsRecord | PendingOffsetsTombstone | StagedOffsetsRecord | StagedOffsetsTombstone,
) -> tuple[bytes, bytes | None]:
    if isinstance(record, PendingOffsetsRecord):
        return (
            _pack((PENDING_OFFSETS_KIND, record.group_id, record.producer_id)),
            _pack((VERSION, record.producer_epoch, record.since_wall_ms, record.offsets)),
        )
    if isinstance(record, PendingOffsetsTombstone):
        return _pack((PENDING_OFFSETS_KIND, record.group_id, record.producer_id)), None
    key = _pack((STAGED_OFFSETS_KIND, record.group_id))
    if isinstance(record, StagedOffsetsTombstone):
        return key, None
    return key, _pack((VERSION, record.generation, record.member_id, record.staged_wall_ms, record.offsets))


def encode_records(records: Sequence[CoordinatorRecord]) -> Iterator[tuple[bytes, bytes | None] | None]:
    """Key and value of each record; None in between while a generation of many members is encoded."""
    for record in records:
        if isinstance(record, GroupMetadataRecord) and len(record.members) >= MEMBERS_PER_STEP:
            encoding = encode_members_in_steps(record)
            try:
                while True:
                    yield next(encoding)
            except StopIteration as encoded:
                yield encoded.value
        else:
            yield encode_record(record)


def encode_members_in_steps(record: GroupMetadataRecord) -> Generator[None, None, tuple[bytes, bytes]]:
    """What ``encode_record`` returns, made in steps of ``MEMBERS_PER_STEP`` members."""
    fields = _group_fields(record)
    parts = [_pack(fields)[1:], _pack_array_header(len(record.members))]
    for start in range(0, len(record.members), MEMBERS_PER_STEP):
        some = record.members[start : start + MEMBERS_PER_STEP]
        packed = _pack_members(some)
        parts.append(packed[len(_pack_array_header(len(some))) :])
        yield
    value = _pack_array_header(len(fields) + 1) + b"".join(parts)
    return _pack((GROUP_METADATA_KIND, record.group_id)), value


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """The record of a key and a value; None for a kind that only a newer version knows.

    Raises ``ProtocolError`` when the bytes are no record; the log's crc has already passed, so it is a bug or foreign data.
    """
    try:
        fields = unpackb(key, use_list=False)
        kind = fields[0]
        if kind == OFFSET_COMMIT_KIND:
            # Interned: a million offsets share the few strings that name their groups and topics.
            _, group_id, topic, partition = fields
            if value is None:
                return OffsetCommitTombstone(intern(group_id), intern(topic), partition)
            content = unpackb(value, use_list=False)
            topic_id = intern(content[5]) if len(content) > 5 else ""
            _, offset, leader_epoch, metadata, commit_wall_ms = content[:5]
            return OffsetCommitRecord(
                intern(group_id), intern(topic), partition, offset, leader_epoch, metadata, commit_wall_ms, topic_id
            )
        if kind == GROUP_METADATA_KIND:
            return _group_record(intern(fields[1]), value)
        if kind == GENERATION_KIND:
            if value is None:
                return GenerationTombstone(intern(fields[1]))
            return GenerationRecord(intern(fields[1]), unpackb(value, use_list=False)[1])
        if type(kind) is not int:
            raise ValueError(f"the kind of a record is an integer, not {kind!r}")
        return _decode_transactional(kind, fields, value)
    except (ValueError, TypeError, LookupError, UnpackException, RecursionError) as error:
        raise _no_record(key, error) from error


def _decode_transactional(kind: int, fields: tuple[Any, ...], value: bytes | None) -> CoordinatorRecord | None:
    """The record of pending or staged offsets; None for a kind that only a newer version knows."""
    if kind == PENDING_OFFSETS_KIND:
        _, group_id, producer_id = fields[:3]
        if value is None:
            return PendingOffsetsTombstone(intern(group_id), producer_id)
        _, producer_epoch, since_wall_ms, pending = unpackb(value, use_list=False)[:4]
        offsets = tuple(
            PendingOffset(intern(topic), partition, offset, leader_epoch, metadata, intern(topic_id), serial)
            for topic, partition, offset, leader_epoch, metadata, topic_id, serial, *_ in pending
        )
        return PendingOffsetsRecord(intern(group_id), producer_id, producer_epoch, since_wall_ms, offsets)
    if kind == STAGED_OFFSETS_KIND:
        if value is None:
            return StagedOffsetsTombstone(intern(fields[1]))
        _, generation, member_id, staged_wall_ms, staged = unpackb(value, use_list=False)[:5]
        return StagedOffsetsRecord(
            intern(fields[1]),
            generation,
            member_id,
            staged_wall_ms,
            tuple(
                StagedOffset(intern(topic), partition, start_offset, end_offset, metadata, intern(topic_id))
                for topic, partition, start_offset, end_offset, metadata, topic_id, *_ in staged
            ),
        )
    return None


def decode_records(encoded: Iterable[tuple[bytes, bytes | None]]) -> Iterator[CoordinatorRecord | None]:
    """The record of each key and value, but of those that only a newer version knows.

    None in between while a generation of many members is decoded. Raises ``ProtocolError`` as ``decode_record`` does.
    """
    for key, value in encoded:
        if value is None or len(value) <= _LARGE_VALUE_BYTES:
            record = decode_record(key, value)
        else:
            record = yield from _decode_in_steps(key, value)
        if record is not None:
            yield record


def _decode_in_steps(key: bytes, value: bytes) -> Generator[None, None, CoordinatorRecord | None]:
    try:
        kind, group_id = unpackb(key, use_list=False)[:2]
        if kind != GROUP_METADATA_KIND:
            return decode_record(key, value)
        fields = Unpacker(use_list=False, max_buffer_size=len(value))
        fields.feed(value)
        if fields.read_array_header() < _GROUP_FIELDS:
            raise ValueError("fields are missing")
        _, generation, protocol_type, protocol_name, leader, reason, written_wall_ms = (
            fields.unpack() for _ in range(_GROUP_FIELDS - 1)
        )
        left = fields.read_array_header()
        records: list[MemberRecord] = []
        known: _Known = {}
        while left:
            some = min(left, MEMBERS_PER_STEP)
            left -= some
            records += _member_records((fields.unpack() for _ in range(some)), known)
            yield
        return GroupMetadataRecord(
            intern(group_id), generation, protocol_type, protocol_name, leader, reason, written_wall_ms, tuple(records)
        )
    except (ValueError, TypeError, LookupError, UnpackException, RecursionError) as error:
        raise _no_record(key, error) from error


def _group_value(record: GroupMetadataRecord) -> bytes:
    # Members are tuples with the fields in the order they are stored in: ten thousand are packed in C.
    return _pack_members((*_group_fields(record), record.members))  # type: ignore[no-any-return]


def _group_fields(record: GroupMetadataRecord) -> tuple[object, ...]:
    """What is stored of a generation, in its order, except the members."""
    return (
        VERSION,
        record.generation,
        record.protocol_type,
        record.protocol_name,
        record.leader,
        record.rebalance_reason,
        record.written_wall_ms,
    )


def _group_record(group_id: str, value: bytes | None) -> GroupMetadataRecord | GroupMetadataTombstone:
    if value is None:
        return GroupMetadataTombstone(group_id)
    content = unpackb(value, use_list=False)
    _, generation, protocol_type, protocol_name, leader, reason, written_wall_ms, members = content[:8]
    return GroupMetadataRecord(
        group_id,
        generation,
        protocol_type,
        protocol_name,
        leader,
        reason,
        written_wall_ms,
        tuple(_member_records(members, {})),
    )


def _no_record(key: bytes, error: Exception) -> ProtocolError:
    return ProtocolError(f"key {key[:60]!r} is no coordinator record: {type(error).__name__}: {error}")


_Known = dict[Any, tuple[JoinGroupProtocol, ...]]


def _member_records(members: Iterable[Any], known: _Known) -> list[MemberRecord]:
    """Members that offer the same share what says so, kept in ``known``: ten thousand of one program mostly do."""
    records = []
    for fields in members:
        member_id, instance_id, client_id, client_host, session_ms, rebalance_ms, offered, assignment = fields[:8]
        protocols = known.get(offered)
        if protocols is None:
            protocols = known[offered] = tuple(JoinGroupProtocol(name, metadata) for name, metadata in offered)
        records.append(
            MemberRecord(
                member_id, instance_id, client_id, client_host, session_ms, rebalance_ms, protocols, assignment
            )
        )
    return records
