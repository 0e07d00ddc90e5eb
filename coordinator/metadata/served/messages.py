"""What a metadata store and those that it is served to say to each other; pure.

A frame is a length and a msgpack array, as between clients and daemons: ``[kind, correlation_id, body]``. Values are JSON,
as in etcd. The first frame is ``Hello``, answered by ``Welcome`` and, if the store has changed since, by all keys in
``Keys``. From then on each ``Changes`` is what happened at one revision, in order, and an ``Answer`` comes behind all that
happened before it: what an answer speaks of is known when it comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, cast

from coordinator.metadata.authority import Change, Compare, Delete, DeletePrefix, KeyValue, Operation, Put
from protocol.codec import Int8, Int32, Int64, decode_message, encode_message
from protocol.errors import ProtocolError
from protocol.framing import encode_frame, unpack

MAGIC: Final = "cohort-metadata"
VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""120 operations with values of 2 KiB take a tenth of it."""


class Outcome(IntEnum):
    """What became of a request."""

    DONE = 0
    REFUSED = 1
    """A condition does not hold; or the lease is over."""
    INVALID = 2
    """A transaction that makes no sense, or names a lease that is over: nothing of it was done."""
    NOT_DONE = 3
    """The store did not do it, and will not."""
    UNKNOWN = 4
    """It may have been done, or still be."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Begins a connection. ``cluster_id`` and ``revision`` are what is known already, "" and 0 at first."""

    magic: str
    version: Int32
    name: str
    cluster_id: str
    revision: Int64


@dataclass(frozen=True, slots=True)
class Welcome:
    """``refusal`` is empty, or says why this connection is of no use. With ``listed`` all keys follow."""

    cluster_id: str
    revision: Int64
    listed: bool
    refusal: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A key; its value is JSON, None when the key is gone."""

    key: str
    value: bytes | None
    create_revision: Int64 = 0
    mod_revision: Int64 = 0
    version: Int64 = 0
    lease: Int64 = 0


@dataclass(frozen=True, slots=True)
class Keys:
    """A part of all keys, in order; ``more`` follow."""

    entries: tuple[Entry, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened at one revision."""

    revision: Int64
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """``Compare``."""

    key: str
    what: str
    revision: Int64


@dataclass(frozen=True, slots=True)
class Step:
    """An ``Operation``: a put with a value; without one a key, or all keys with a prefix, removed."""

    key: str
    value: bytes | None
    lease: Int64
    is_prefix: bool


@dataclass(frozen=True, slots=True)
class Transaction:
    """See ``MetadataStore.transaction``."""

    conditions: tuple[Condition, ...]
    steps: tuple[Step, ...]
    timeout_ms: Int32


@dataclass(frozen=True, slots=True)
class CatchUp:
    """See ``MetadataStore.catch_up``."""

    timeout_ms: Int32


@dataclass(frozen=True, slots=True)
class Grant:
    """See ``MetadataStore.grant``."""

    ttl_ms: Int64
    timeout_ms: Int32


@dataclass(frozen=True, slots=True)
class Renew:
    """See ``Lease.renew``."""

    lease: Int64


@dataclass(frozen=True, slots=True)
class Revoke:
    """See ``Lease.revoke``."""

    lease: Int64


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the other side is there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``number`` is what was asked for: a lease's number."""

    outcome: Int8
    revision: Int64
    number: Int64
    text: str


Request = Transaction | CatchUp | Grant | Renew | Revoke | Ping
Message = Hello | Welcome | Keys | Changes | Answer | Request

_KINDS: Final[tuple[type[Message], ...]] = (
    *(Hello, Welcome, Keys, Changes, Answer),
    *(Transaction, CatchUp, Grant, Renew, Revoke, Ping),
)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}


def encode(message: Message, correlation_id: int = 0) -> bytes:
    """A whole frame."""
    return encode_frame((_NUMBERS[type(message)], correlation_id, encode_message(message)))


def decode(payload: bytes | bytearray) -> tuple[int, Message]:
    """A correlation id and its message. Raises ``ProtocolError``."""
    frame = unpack(payload)
    if type(frame) is not tuple or len(frame) < 3 or type(frame[0]) is not int or type(frame[1]) is not int:
        raise ProtocolError("a message is an array of kind, correlation id and body")
    if not 0 <= frame[0] < len(_KINDS):
        raise ProtocolError(f"a message of the unknown kind {frame[0]}")
    return frame[1], decode_message(_KINDS[frame[0]], frame[2])


def entry(known: KeyValue) -> Entry:
    """A key as it is sent."""
    return Entry(known.key, _encoded(known.value), *known[2:])


def entries(changes: Iterable[Change]) -> tuple[Entry, ...]:
    """Changes as they are sent: what was before, the other side knows."""
    return tuple(Entry(change.key, None) if change.after is None else entry(change.after) for change in changes)


def key_value(found: Entry) -> KeyValue | None:
    """A key that was sent; None when it is gone. Raises ``ProtocolError``."""
    if found.value is None:
        return None
    return KeyValue(
        found.key, _decoded(found.value), found.create_revision, found.mod_revision, found.version, found.lease
    )


def transaction(compare: Sequence[Compare], operations: Sequence[Operation], timeout_ms: int) -> Transaction:
    """A transaction as it is sent."""
    return Transaction(tuple(Condition(*each) for each in compare), tuple(map(_step, operations)), timeout_ms)


def conditions_of(sent: Transaction) -> list[Compare]:
    """Its conditions. Raises ``ProtocolError``."""
    for each in sent.conditions:
        if each.what not in ("mod", "create", "version"):
            raise ProtocolError(f"a condition about {each.what!r}")
    return [Compare(each.key, cast("Any", each.what), each.revision) for each in sent.conditions]


def operations_of(sent: Transaction) -> list[Operation]:
    """Its operations. Raises ``ProtocolError``."""
    return [
        Put(step.key, _decoded(step.value), step.lease)
        if step.value is not None
        else (DeletePrefix if step.is_prefix else Delete)(step.key)
        for step in sent.steps
    ]


def _step(operation: Operation) -> Step:
    if isinstance(operation, Put):
        return Step(operation.key, _encoded(operation.value), operation.lease, False)
    if isinstance(operation, Delete):
        return Step(operation.key, None, 0, False)
    return Step(operation.prefix, None, 0, True)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _decoded(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise ProtocolError(f"a value that is no JSON: {value[:40]!r}") from error
