"""Elements of a request are counted without making them, and what has too many is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Generator
from math import ceil
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import pack
from protocol.framing import OversizedRequestError, decode_request, decode_request_in_steps, encode_request
from protocol.limits import (
    MAX_REQUEST_ELEMENTS,
    MAX_SMALL_REQUEST_BYTES,
    count_elements,
    least_elements,
    max_request_elements,
)
from protocol.messages import ApiKey

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=40),
    max_leaves=60,
)


def elements(value: Any) -> int:
    return 1 + sum(map(elements, value)) if isinstance(value, list) else 1


@given(values)
def test_every_value_is_counted_once(value: Any) -> None:
    assert least_elements(pack(value), 1_000_000) == elements(value)


def done(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """How many steps there were, and what came of them."""
    number = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return number, end.value
        number += 1


@given(values, st.integers(1, 5))
def test_counted_in_steps_a_value_has_as_many(value: Any, per_step: int) -> None:
    number = elements(value)
    assert done(count_elements(pack(value), 1_000_000, per_step)) == (ceil(number / per_step), number)


@pytest.mark.parametrize("size", [0, 255, 256, 65535, 65536, 100_000])
def test_long_values_are_stepped_over_and_long_arrays_counted(size: int) -> None:
    assert least_elements(pack([b"x" * size, "x" * size, 1]), 10**9) == 4
    assert least_elements(pack([[0] * size, 1]), 10**9) == size + 3
    assert least_elements(msgpack.packb([1.5] * 3, use_single_float=True), 10) == 4


@given(st.binary(max_size=200), st.integers(0, 50))
def test_what_is_no_msgpack_is_counted_to_an_end(content: bytes, limit: int) -> None:
    assert least_elements(content, limit) >= 0


def test_a_request_with_too_many_elements_is_refused_before_it_is_decoded() -> None:
    body = [100, 1, 1000, [["t", [[0, 0, 0]] * MAX_REQUEST_ELEMENTS]]]
    with pytest.raises(
        OversizedRequestError, match=f"of this kind {max_request_elements(ApiKey.FETCH)} are allowed"
    ) as caught:
        decode_request(encode_request(ApiKey.FETCH, 0, 77, "c", body)[4:])
    assert caught.value.correlation_id == 77


@pytest.mark.parametrize("key", sorted(ApiKey))
def test_each_kind_may_have_as_many_elements_as_are_told(key: ApiKey) -> None:
    most = max_request_elements(key) - 7  # the frame, four values before the body, the body, the list
    frame = encode_request(key, 0, 1, "c", [[1 << 20] * most])
    assert len(decode_request(frame[4:]).body[0]) == most
    with pytest.raises(OversizedRequestError):
        decode_request(encode_request(key, 0, 1, "c", [[1 << 20] * (most + 1)])[4:])


def test_a_large_request_is_decoded_in_steps_to_the_same_or_refused_alike() -> None:
    payload = encode_request(ApiKey.SYNC_GROUP, 0, 9, "c", [[1 << 20] * 100_000])[4:]
    steps, frame = done(decode_request_in_steps(payload))
    assert steps == 5, "four to count, one to unpack"
    same = frame == decode_request(payload)
    assert same
    with pytest.raises(OversizedRequestError, match=f"of this kind {max_request_elements(ApiKey.SYNC_GROUP)} are"):
        done(decode_request_in_steps(encode_request(ApiKey.SYNC_GROUP, 0, 9, "c", [[[1] * 50_000] * 4])[4:]))


def test_arrays_that_are_only_announced_count() -> None:
    """Else a few thousand bytes would have gigabytes set aside for them."""
    announced = (b"\xdd" + struct.pack(">I", 20_000)) * 500
    payload = b"\x95\x01\x00\x05\xa1c" + announced + b"\x00" * 30_000
    with pytest.raises(OversizedRequestError):
        decode_request(payload)


def test_a_small_request_that_is_too_large_in_bytes_is_refused_by_name() -> None:
    body = [[b"x" * MAX_SMALL_REQUEST_BYTES]]
    with pytest.raises(OversizedRequestError, match=f"of this kind {MAX_SMALL_REQUEST_BYTES} are allowed") as caught:
        decode_request(encode_request(ApiKey.FETCH, 0, 5, "c", body)[4:])
    assert caught.value.correlation_id == 5
    assert decode_request(encode_request(ApiKey.PRODUCE, 0, 5, "c", body)[4:]).correlation_id == 5
