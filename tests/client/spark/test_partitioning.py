"""Rows go where the Python client puts them, whatever the keys look like."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from client.spark.tasks.partitioning import murmur2_of, partitions_for
from protocol.hashing import murmur2, partition_for_key


def column(keys: list[bytes]) -> tuple[Any, Any]:
    offsets = numpy.cumsum([0, *map(len, keys)]).astype(numpy.int32)
    return offsets, numpy.frombuffer(b"".join(keys), numpy.uint8)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40)))
@example([b""])
@example([b"same", b"size"])
@example([b"x" * 1024, b"y" * 1025, b"", b"z" * 5000])
def test_hashes_of_all_keys_at_once_are_those_of_each(keys: list[bytes]) -> None:
    assert murmur2_of(*column(keys)).tolist() == [murmur2(key) & 0xFFFFFFFF for key in keys]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=12)), st.integers(1, 5), st.integers(0, 5))
def test_keys_in_the_middle_of_a_buffer(keys: list[bytes], before: int, after: int) -> None:
    offsets, data = column([b"-" * before, *keys, b"-" * after])
    assert murmur2_of(offsets[1:-1], data).tolist() == [murmur2(key) & 0xFFFFFFFF for key in keys]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=12))), st.integers(1, 300), st.integers(0, 9))
def test_partitions_are_those_of_the_python_client(keys: list[bytes | None], partitions: int, turn: int) -> None:
    valid = numpy.array([key is not None for key in keys], dtype=bool)
    placed = partitions_for(column([key or b"" for key in keys]), valid, partitions, turn).tolist()
    for key, partition in zip(keys, placed, strict=True):
        assert partition == (turn % partitions if key is None else partition_for_key(key, partitions))


@pytest.mark.parametrize("turn", [0, 2])
def test_rows_without_keys_take_turns_in_blocks(turn: int) -> None:
    placed = partitions_for(None, range(3500), 3, turn)
    assert [int(placed[row]) for row in (0, 999, 1000, 2500, 3499)] == [(turn + block) % 3 for block in (0, 0, 1, 2, 3)]
