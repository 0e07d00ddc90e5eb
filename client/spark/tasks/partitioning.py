"""Which partition the rows of an Arrow batch go to, computed for all of them at once.

Keys are placed as the Python client places them: ``protocol.hashing.partition_for_key``. Numpy does that word by word over
all keys, so that a row costs a few nanoseconds; keys above ``_LONG_BYTES`` are hashed one by one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy

from protocol.hashing import murmur2

_SEED: Final = 0x9747B28C
_LONG_BYTES: Final = 1024
_BLOCK_ROWS: Final = 1000
"""Rows without a key that go to one partition before the next has its turn: batches are worth their while."""


def murmur2_of(offsets: Any, data: Any) -> Any:
    """The murmur2 hash of each item of a binary column, as uint32: item ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    ``offsets`` is an array of integers, ``data`` one of uint8.
    """
    starts = offsets[:-1].astype(numpy.int64)
    lengths = numpy.diff(offsets).astype(numpy.int64)
    mixer = numpy.uint32(0x5BD1E995)
    values = numpy.uint32(_SEED) ^ lengths.astype(numpy.uint32)
    long = numpy.flatnonzero(lengths > _LONG_BYTES)
    words = numpy.where(lengths > _LONG_BYTES, 0, lengths >> 2)
    # Every four neighbouring bytes as one number: the word of a key may begin anywhere.
    padded = numpy.concatenate([data, numpy.zeros(3, numpy.uint8)])
    at_byte = numpy.ndarray((len(data),), "<u4", buffer=padded.data, strides=(1,))
    most = int(words.max(initial=0))
    missing = (most - words).astype(numpy.uint16)  # small numbers are sorted by radix
    order = numpy.argsort(missing, kind="stable") if missing.any() else None
    counts: Any = [len(words)] * most
    if order is not None:
        counts = numpy.searchsorted(missing[order], most - numpy.arange(most)).tolist()
    for index in range(most):
        active = slice(None) if order is None else order[: counts[index]]
        word = at_byte[starts[active] + 4 * index] * mixer
        word ^= word >> numpy.uint32(24)
        word *= mixer
        values[active] = (values[active] * mixer) ^ word
    rest = lengths & 3
    for left in (1, 2, 3):
        rows = numpy.flatnonzero(rest == left)
        if len(rows):
            tail = at_byte[starts[rows] + (lengths[rows] & ~3)] & numpy.uint32((1 << (8 * left)) - 1)
            values[rows] = (values[rows] ^ tail) * mixer
    values ^= values >> numpy.uint32(13)
    values *= mixer
    values ^= values >> numpy.uint32(15)
    for row in long:
        values[row] = murmur2(data[offsets[row] : offsets[row + 1]].tobytes()) & 0xFFFFFFFF
    return values


def partitions_for(keys: Any, valid: Any, partitions: int, turn: int) -> Any:
    """The partition of each row, as int32. ``keys`` are offsets and data as ``murmur2_of`` takes them, None without keys;
    ``valid`` says which rows have one, None when all do.

    Rows without a key go to the partitions in turns of ``_BLOCK_ROWS``, beginning with ``turn``.
    """
    if keys is None:
        count = len(valid)
        return ((numpy.arange(count) // _BLOCK_ROWS + turn) % partitions).astype(numpy.int32)
    placed = ((murmur2_of(*keys) & numpy.uint32(0x7FFFFFFF)) % numpy.uint32(partitions)).astype(numpy.int32)
    if valid is not None:
        without = numpy.flatnonzero(~valid)
        placed[without] = (numpy.arange(len(without)) // _BLOCK_ROWS + turn) % partitions
    return placed
