"""Control batches: the end markers of transactions in a partition's log.

A control batch has the attribute CONTROL, no producer of its own (id -1), and one record for each transaction that it
ends. Only the partition's leader writes them. The key of a record is two little-endian int16, a version and a type: 0
abort, 1 commit. Its value is a msgpack array::

    [coordinator epoch, producer id, producer epoch, first offset]

``first offset`` is that of the transaction's first record in this partition, so what a transaction covers can be told
from its marker alone. A reader takes the fields it knows and ignores later ones.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgpack

from protocol.errors import ProtocolError
from protocol.record_batch import Attributes, BatchHeader, EncodedBatch, decode_columns, encode_in_pieces

_KEY: Final = struct.Struct("<hh")
_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1
_CONTROL: Final = int(Attributes.CONTROL)


class TransactionEnd(NamedTuple):
    """The end marker of one transaction, named by producer id and epoch, in one partition.

    ``coordinator_epoch`` is the leader epoch of its coordinator's partition, for people; ``first_offset`` that of the
    transaction's first record in this partition.
    """

    coordinator_epoch: int
    producer_id: int
    producer_epoch: int
    committed: bool
    first_offset: int


def encode_control_batch(ends: Sequence[TransactionEnd], now_ms: int) -> EncodedBatch:
    """A control batch with a record for each of at least one end; ``now_ms`` is the wall time of all of them.

    Raises ``ValueError`` for no end at all.
    """
    if not ends:
        raise ValueError("a control batch needs at least one end of a transaction")
    keys = [_KEY.pack(_VERSION, _COMMIT if end.committed else _ABORT) for end in ends]
    values = [
        msgpack.packb((end.coordinator_epoch, end.producer_id, end.producer_epoch, end.first_offset)) for end in ends
    ]
    header, body = encode_in_pieces(values, keys, timestamps_ms=[now_ms] * len(ends))
    return EncodedBatch(replace(header, attributes=header.attributes | _CONTROL), body)


def decode_control_batch(buffer: bytes | memoryview, position: int, header: BatchHeader) -> list[TransactionEnd]:
    """The ends in the control batch at ``position``, whose header is ``header``, in the order of their records.

    None in one that compaction has emptied. Raises ``ProtocolError`` when it is no control batch, or damaged.
    """
    if not header.attributes & _CONTROL:
        raise ProtocolError(f"the batch at offset {header.base_offset} is no control batch")
    if not header.record_count:
        return []
    columns = decode_columns(buffer, position, header)
    columns.check()
    return [_end_of(key, value, header) for key, value in zip(columns.keys(), columns.values(), strict=True)]


def _end_of(key: bytes | None, value: bytes | None, header: BatchHeader) -> TransactionEnd:
    where = f"the control batch at offset {header.base_offset}"
    if key is None or value is None or len(key) < _KEY.size:
        raise ProtocolError(f"{where} has a record without the key or the value of an end marker")
    _, kind = _KEY.unpack_from(key)
    if kind not in (_ABORT, _COMMIT):
        raise ProtocolError(f"{where} has a record of type {kind}: 0 (abort) and 1 (commit) are known")
    try:
        fields = msgpack.unpackb(value, use_list=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"{where} has an end marker that does not parse: {error}") from error
    if not isinstance(fields, tuple) or len(fields) < 4 or not all(map(_is_int64, fields[:4])):
        raise ProtocolError(f"{where} has an end marker that is no array of at least four integers")
    coordinator_epoch, producer_id, producer_epoch, first_offset = fields[:4]
    return TransactionEnd(coordinator_epoch, producer_id, producer_epoch, kind == _COMMIT, first_offset)


def _is_int64(field: object) -> bool:
    return type(field) is int and -(2**63) <= field < 2**63
