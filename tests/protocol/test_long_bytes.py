"""A long byte string is found and cut out of any message that has one, and of nothing else."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import pack
from protocol.framing import unpack
from protocol.long_bytes import long_bytes

LONG = bytes(70_000)
SMALL = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=40)
VALUES = st.recursive(
    SMALL | st.binary(max_size=300), lambda inner: st.lists(inner, max_size=20).map(tuple), max_leaves=30
)


@given(before=st.lists(VALUES, max_size=4), after=st.lists(VALUES, max_size=4))
def test_it_is_cut_out_and_the_rest_stays(before: list[Any], after: list[Any]) -> None:
    payload = pack([*before, [1, LONG, "x"], *after])
    found = long_bytes(payload)
    assert found is not None
    assert found.length == len(LONG)
    end = found.start + found.length
    assert payload[found.start : end] == LONG
    assert unpack(found.without(payload[: found.start], payload[end:])) == (*before, (1, b"", "x"), *after)


@given(st.lists(VALUES))
def test_there_may_be_none(values: list[Any]) -> None:
    assert long_bytes(pack(values)) is None


@given(st.binary(max_size=200))
def test_nonsense_is_left_to_whoever_unpacks_it(payload: bytes) -> None:
    found = long_bytes(payload)
    assert found is None or payload[found.marker] == 0xC6


def test_what_begins_behind_the_head_is_not_found() -> None:
    payload = pack(["t" * 100, LONG])
    assert long_bytes(payload[:100]) is None
    assert long_bytes(msgpack.packb({"a": 1})) is None
