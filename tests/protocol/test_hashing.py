"""The three hashes, against values computed by Kafka's own Java code and against plain definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import java_string_hash, murmur2, partition_for_group, partition_for_key


@pytest.mark.parametrize(
    ("group", "value", "partition"),
    [
        ("", 0, 0),
        ("a", 97, 47),
        ("group", 98629247, 47),
        ("my-group", -1906497762, 12),  # masking the sign instead of abs would give 36
        ("consumer-group-1", 147483020, 20),
        ("polygenelubricants", -(2**31), 0),  # abs has no positive counterpart here
        ("group-é", 293427483, 33),
        ("grp-😀", -1235730613, 13),  # two UTF-16 units; masking would give 35
        ("😀", 1772899, 49),
    ],
)
def test_groups_are_placed_as_kafka_places_them(group: str, value: int, partition: int) -> None:
    assert java_string_hash(group) == value
    assert partition_for_group(group) == partition


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 275646681),
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafkas_producers(data: bytes, value: int) -> None:
    assert murmur2(data) == value


@pytest.mark.parametrize(("key", "partitions", "partition"), [(b"21", 1000, 340), (b"foobar", 50, 16), (b"", 10, 1)])
def test_keys_are_placed_by_the_masked_hash_and_not_by_abs(key: bytes, partitions: int, partition: int) -> None:
    assert partition_for_key(key, partitions) == partition


def units_of(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


@given(st.text(st.characters(), max_size=30))
def test_the_string_hash_is_a_polynomial_over_utf16_units(text: str) -> None:
    value = 0
    for unit in units_of(text):
        value = 31 * value + unit
    value &= 0xFFFFFFFF
    assert java_string_hash(text) == (value if value < 2**31 else value - 2**32)


@given(st.text(max_size=30), st.integers(1, 1000))
def test_a_group_has_one_partition_that_exists(group: str, partitions: int) -> None:
    assert 0 <= partition_for_group(group, partitions) < partitions


@given(st.binary(max_size=60), st.integers(1, 1000))
def test_a_key_has_one_partition_that_exists(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for_key(key, partitions) < partitions
    assert partition_for_key(key, partitions) == (murmur2(key) % 2**31) % partitions


@given(st.binary(max_size=60))
def test_murmur2_is_a_signed_32_bit_number(data: bytes) -> None:
    assert -(2**31) <= murmur2(data) < 2**31
