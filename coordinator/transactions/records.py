"""What the transaction coordinator writes to its log, and the bytes of it.

A record is a key and a value; the log keeps the latest value of each key, and a null value (a tombstone) erases it::

    key    [1, id]                          value  [version, producer_id, epoch, previous, timeout_ms, completing,
                                                    committed_version, scope, changed_wall_ms, committed_metadata,
                                                    kept]; without the last one, or both, if they are empty
    key    [2, id, tx_pid, tx_epoch, pid]   value  [version, member_name, started_wall_ms, tx_version,
                                                    [[topic, topic_id, [partition, ...]], ...]]
    previous    nil | [producer_id, epoch, how]
    completing  nil | [tx_pid, tx_epoch, [[pid, committed], ...]]
    kept        nil | [producer_id, epoch]

Each transaction has an identity of its own (KIP-890). A Kafka producer from before that keeps one epoch: ``kept`` is the
identity that it goes on under and names all its transactions by, while the coordinator counts them as any others.

A member whose ``started_wall_ms`` is -1 has the partitions of the transaction before: they are carried, and written to or
not (see ``carrying``).

All are msgpack arrays. A reader skips keys of a kind it does not know and ignores extra trailing fields of a value, so a
later version must add to the end only; what cannot is a new kind. The decision about a transaction is one record, the
identity with the next epoch: nothing else commits or aborts, so that it cannot be torn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from sys import intern
from typing import Any, Final, NamedTuple

from msgpack import Packer, unpackb
from msgpack.exceptions import UnpackException

from protocol.errors import ProtocolError
from protocol.messages.transactions import NO_VERSION, TransactionTopic

IDENTITY_KIND: Final = 1
MEMBER_KIND: Final = 2
VERSION: Final = 0

RECORDS_PER_STEP: Final = 1_000
"""Records that are encoded or decoded before others have their turn: about 2 ms."""

NO_PRODUCER: Final = -1

NOT_STARTED: Final = -1
"""When a member with partitions that are carried began to write: the log does not say whether it did."""

_pack: Final = Packer().pack  # kept: making a packer, as packb does at every call, costs more than packing


class Identity(NamedTuple):
    """Names a transaction of a transactional id: a producer id and an epoch, used once."""

    producer_id: int
    epoch: int


class Ended(IntEnum):
    """How the epoch of a transactional id ended. The numbers are stored."""

    COMMITTED = 1
    ABORTED = 2
    TIMED_OUT = 3
    ADMIN = 4
    FENCED = 5
    RENEWED = 6


class Previous(NamedTuple):
    """The identity before the current one, and how it ended."""

    producer_id: int
    epoch: int
    how: Ended

    @property
    def identity(self) -> Identity:
        """Which one it was."""
        return Identity(self.producer_id, self.epoch)


class Completing(NamedTuple):
    """A transaction that is decided, of which not all markers are known to be written. ``verdicts`` has each member."""

    producer_id: int
    epoch: int
    verdicts: tuple[tuple[int, bool], ...]

    @property
    def identity(self) -> Identity:
        """Which transaction it is."""
        return Identity(self.producer_id, self.epoch)


class IdentityRecord(NamedTuple):
    """The current identity of a transactional id, and what is decided about the transactions before it."""

    transactional_id: str
    producer_id: int
    epoch: int
    previous: Previous | None
    timeout_ms: int
    completing: Completing | None
    committed_version: int
    scope: str
    changed_wall_ms: int
    committed_metadata: str = ""
    kept: Identity | None = None

    @property
    def identity(self) -> Identity:
        """The producer id and epoch of the transaction that is open, or comes next."""
        return Identity(self.producer_id, self.epoch)


class IdentityTombstone(NamedTuple):
    """The transactional id is forgotten."""

    transactional_id: str


class MemberRecord(NamedTuple):
    """A producer that writes in a transaction, and where. Its ``version`` is that of the transaction it joined."""

    transactional_id: str
    transaction: Identity
    producer_id: int
    name: str
    started_wall_ms: int
    version: int
    topics: tuple[TransactionTopic, ...]


class MemberTombstone(NamedTuple):
    """The transaction of the member is complete, or it was left over by a crash."""

    transactional_id: str
    transaction: Identity
    producer_id: int


TransactionRecord = IdentityRecord | IdentityTombstone | MemberRecord | MemberTombstone


def unknown_id(transactional_id: str) -> IdentityRecord:
    """What stands for the identity of an id of which no record has been applied."""
    return IdentityRecord(transactional_id, NO_PRODUCER, -1, None, 0, None, NO_VERSION, "", 0)


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record; the value of a tombstone is None."""
    if isinstance(record, MemberRecord):
        topics = [(topic.name, topic.topic_id, topic.partitions) for topic in record.topics]
        value = (VERSION, record.name, record.started_wall_ms, record.version, topics)
        return _member_key(record), _pack(value)
    if isinstance(record, IdentityRecord):
        transactional_id, *fields, metadata, kept = record
        last = (metadata, kept) if kept is not None else (metadata,) if metadata else ()
        return _pack((IDENTITY_KIND, transactional_id)), _pack((VERSION, *fields, *last))
    if isinstance(record, MemberTombstone):
        return _member_key(record), None
    return _pack((IDENTITY_KIND, record.transactional_id)), None


def encode_records(records: Sequence[TransactionRecord]) -> Iterator[tuple[bytes, bytes | None] | None]:
    """Key and value of each record; None in between while many are encoded."""
    for place, record in enumerate(records, 1):
        yield encode_record(record)
        if place % RECORDS_PER_STEP == 0:
            yield None


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """The record of a key and a value; None for a kind that only a newer version knows.

    Raises ``ProtocolError`` when the bytes are no record; the log's crc has already passed, so it is a bug or foreign data.
    """
    try:
        fields = unpackb(key, use_list=False)
        kind = fields[0]
        content = None if value is None else unpackb(value, use_list=False)
        if kind == IDENTITY_KIND:
            return IdentityTombstone(fields[1]) if content is None else _identity(fields[1], content)
        if kind == MEMBER_KIND:
            return _member(fields, content)
        if type(kind) is not int:
            raise ValueError(f"the kind of a record is an integer, not {kind!r}")
        return None
    except (ValueError, TypeError, LookupError, UnpackException, RecursionError) as error:
        raise ProtocolError(
            f"key {key[:60]!r} is no record of transactions: {type(error).__name__}: {error}"
        ) from error


def decode_records(encoded: Iterable[tuple[bytes, bytes | None]]) -> Iterator[TransactionRecord | None]:
    """The record of each key and value, but of those that only a newer version knows.

    Raises ``ProtocolError`` as ``decode_record`` does.
    """
    for key, value in encoded:
        record = decode_record(key, value)
        if record is not None:
            yield record


def _member_key(record: MemberRecord | MemberTombstone) -> bytes:
    key = (MEMBER_KIND, record.transactional_id, *record.transaction, record.producer_id)
    return _pack(key)  # type: ignore[no-any-return]


def _identity(transactional_id: str, content: tuple[Any, ...]) -> IdentityRecord:
    _, producer_id, epoch, previous, timeout_ms, completing, committed_version, scope, changed_wall_ms = content[:9]
    return IdentityRecord(
        transactional_id,
        producer_id,
        epoch,
        None if previous is None else Previous(previous[0], previous[1], Ended(previous[2])),
        timeout_ms,
        None if completing is None else Completing(*completing[:3]),
        committed_version,
        scope,
        changed_wall_ms,
        content[9] if len(content) > 9 else "",
        Identity(*content[10][:2]) if len(content) > 10 and content[10] is not None else None,
    )


def _member(fields: tuple[Any, ...], content: tuple[Any, ...] | None) -> MemberRecord | MemberTombstone:
    _, transactional_id, transaction_producer_id, epoch, producer_id = fields
    transaction = Identity(transaction_producer_id, epoch)
    if content is None:
        return MemberTombstone(transactional_id, transaction, producer_id)
    _, name, started_wall_ms, version, topics = content[:5]
    # Interned: a hundred thousand members share the few strings that name their topics.
    touched = tuple(
        TransactionTopic(intern(topic), intern(topic_id), partitions) for topic, topic_id, partitions in topics
    )
    return MemberRecord(transactional_id, transaction, producer_id, name, started_wall_ms, version, touched)
