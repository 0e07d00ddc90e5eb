"""The three hashes that decide where things live.

Two of them are easy to confuse, and confusing them is the classic porting fault: groups are placed with ``abs`` of
Java's ``String.hashCode``, records with murmur2 whose sign bit is *masked* away.
"""

from __future__ import annotations

import struct
from functools import lru_cache

GROUP_PARTITIONS = 50
"""Partitions of ``__consumer_offsets``, as in Kafka (offsets.topic.num.partitions)."""

TRANSACTION_PARTITIONS = 50
"""Partitions of ``__transaction_state``, as in Kafka (transaction.state.log.num.partitions)."""

_INT32_MIN = -(2**31)


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``: ``h = 31 * h + unit`` over UTF-16 code units, as a signed 32-bit integer.

    A character outside the basic plane counts as its two surrogates. A lone surrogate counts as itself.
    """
    encoded = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return _signed32(value)


@lru_cache(maxsize=8192)
def partition_for_group(group_id: str, partitions: int = GROUP_PARTITIONS) -> int:
    """The partition of ``__consumer_offsets`` that holds a group: ``abs(hash(group)) % partitions``.

    ``abs(-2**31)`` is 0 here, as in Kafka's ``Utils.abs``, and not the negative number that Java's ``Math.abs`` gives.
    Results are cached: the daemon asks at every request.
    """
    value = java_string_hash(group_id)
    return 0 if value == _INT32_MIN else abs(value) % partitions


def partition_for_transactional_id(transactional_id: str, partitions: int = TRANSACTION_PARTITIONS) -> int:
    """The partition of ``__transaction_state`` that holds a transactional id, by the same hash as groups."""
    return partition_for_group(transactional_id, partitions)


def murmur2(data: bytes) -> int:
    """Murmur2 as Kafka's producers use it (seed 0x9747b28c, little-endian words), as a signed 32-bit integer."""
    length = len(data)
    mixer = 0x5BD1E995
    value = 0x9747B28C ^ length
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = (word * mixer) & 0xFFFFFFFF
        word ^= word >> 24
        word = (word * mixer) & 0xFFFFFFFF
        value = ((value * mixer) & 0xFFFFFFFF) ^ word
    tail = data[whole:]
    if tail:
        value ^= int.from_bytes(tail, "little")
        value = (value * mixer) & 0xFFFFFFFF
    value ^= value >> 13
    value = (value * mixer) & 0xFFFFFFFF
    value ^= value >> 15
    return _signed32(value)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a keyed record: ``(murmur2(key) & 0x7fffffff) % partitions``, over all partitions of the topic.

    Masked, not ``abs``: equal to what Kafka's Java producer computes.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
