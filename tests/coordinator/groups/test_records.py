"""Records and their bytes: what is written is what is read, and a reader bears what newer writers add."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.groups.records import (
    MEMBERS_PER_STEP,
    CoordinatorRecord,
    GenerationRecord,
    GenerationTombstone,
    GroupMetadataRecord,
    GroupMetadataTombstone,
    MemberRecord,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    PendingOffset,
    PendingOffsetsRecord,
    PendingOffsetsTombstone,
    StagedOffset,
    StagedOffsetsRecord,
    StagedOffsetsTombstone,
    _decode_in_steps,
    decode_record,
    decode_records,
    encode_members_in_steps,
    encode_record,
)
from protocol.errors import ProtocolError
from protocol.messages.groups import JoinGroupProtocol

NAMES = st.text(max_size=8)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MEMBERS = st.builds(
    MemberRecord,
    NAMES,
    st.none() | NAMES,
    NAMES,
    NAMES,
    INT32,
    INT32,
    st.lists(st.builds(JoinGroupProtocol, NAMES, st.binary(max_size=8)), max_size=3).map(tuple),
    st.binary(max_size=8),
)
RECORDS = st.one_of(
    st.builds(OffsetCommitRecord, NAMES, NAMES, INT32, INT64, INT32, NAMES, INT64, NAMES),
    st.builds(OffsetCommitTombstone, NAMES, NAMES, INT32),
    st.builds(
        GroupMetadataRecord,
        NAMES,
        INT32,
        NAMES,
        st.none() | NAMES,
        st.none() | NAMES,
        NAMES,
        INT64,
        st.lists(MEMBERS, max_size=3).map(tuple),
    ),
    st.builds(GroupMetadataTombstone, NAMES),
    st.builds(GenerationRecord, NAMES, INT32),
    st.builds(GenerationTombstone, NAMES),
    st.builds(
        PendingOffsetsRecord,
        NAMES,
        INT64,
        INT16,
        INT64,
        st.lists(st.builds(PendingOffset, NAMES, INT32, INT64, INT32, NAMES, NAMES, INT32), max_size=3).map(tuple),
    ),
    st.builds(PendingOffsetsTombstone, NAMES, INT64),
    st.builds(
        StagedOffsetsRecord,
        NAMES,
        INT32,
        NAMES,
        INT64,
        st.lists(st.builds(StagedOffset, NAMES, INT32, INT64, INT64, NAMES, NAMES), max_size=3).map(tuple),
    ),
    st.builds(StagedOffsetsTombstone, NAMES),
)

OFFSET = OffsetCommitRecord("g", "t", 3, 15, -1, "note", 1_700_000_000_000, "id")
PENDING = PendingOffsetsRecord(
    "g",
    9,
    2,
    1_700_000_000_000,
    (PendingOffset("t", 3, 15, -1, "note", "id", 1), PendingOffset("u", 0, 5, 7, "", "", 2)),
)
STAGED = StagedOffsetsRecord("g", 4, "c-1", 1_700_000_000_000, (StagedOffset("t", 3, 15, 20, "note", "id"),))
GROUP = GroupMetadataRecord("g", 4, "consumer", None, None, "member A left", 1_700_000_000_000)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: CoordinatorRecord) -> None:
    key, value = encode_record(record)
    assert decode_record(key, value) == record


@pytest.mark.parametrize(
    ("record", "tombstone"),
    [
        (OFFSET, OffsetCommitTombstone("g", "t", 3)),
        (GROUP, GroupMetadataTombstone("g")),
        (GenerationRecord("g", 4), GenerationTombstone("g")),
        (PENDING, PendingOffsetsTombstone("g", 9)),
        (STAGED, StagedOffsetsTombstone("g")),
    ],
)
def test_a_tombstone_has_the_key_of_what_it_erases(record: CoordinatorRecord, tombstone: CoordinatorRecord) -> None:
    assert encode_record(tombstone) == (encode_record(record)[0], None)


def test_the_bytes_of_an_offset_are_fixed() -> None:
    key, value = encode_record(OFFSET)
    assert key == msgpack.packb([1, "g", "t", 3])
    assert value == msgpack.packb([0, 15, -1, "note", 1_700_000_000_000, "id"])


def test_an_offset_written_before_topics_had_ids_is_read_without_one() -> None:
    key, _ = encode_record(OFFSET)
    assert decode_record(key, msgpack.packb([0, 15, -1, "note", 1_700_000_000_000])) == OFFSET._replace(topic_id="")


def test_the_bytes_of_pending_and_staged_offsets_are_fixed() -> None:
    key, value = encode_record(PENDING)
    assert key == msgpack.packb([4, "g", 9])
    assert value == msgpack.packb(
        [0, 2, 1_700_000_000_000, [["t", 3, 15, -1, "note", "id", 1], ["u", 0, 5, 7, "", "", 2]]]
    )
    key, value = encode_record(STAGED)
    assert key == msgpack.packb([5, "g"])
    assert value == msgpack.packb([0, 4, "c-1", 1_700_000_000_000, [["t", 3, 15, 20, "note", "id"]]])


@pytest.mark.parametrize("record", [OFFSET, GROUP, GenerationRecord("g", 4), PENDING, STAGED])
def test_fields_that_a_newer_version_adds_are_ignored(record: CoordinatorRecord) -> None:
    key, value = encode_record(record)
    assert value is not None
    newer = msgpack.packb([9, *msgpack.unpackb(value)[1:], "new", {"more": 1}])
    assert decode_record(key, newer) == record


def test_a_kind_that_only_a_newer_version_knows_is_skipped() -> None:
    assert decode_record(msgpack.packb([99, "whatever"]), b"anything") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\x80", b""),
        (b"\xc1", b""),
        (msgpack.packb([]), b""),
        (msgpack.packb(5), b""),
        (msgpack.packb(["1", "g", "t", 0]), b""),
        (msgpack.packb([1, "g"]), b""),
        (msgpack.packb([1, 5, "t", 0]), msgpack.packb([0, 1, -1, "", 0])),
        (msgpack.packb([1, "g", "t", 0]), b""),
        (msgpack.packb([1, "g", "t", 0]), msgpack.packb([0, 1])),
        (msgpack.packb([1, "g", "t", 0]), msgpack.packb([0, 1, -1, "", 0]) + b"\x00"),
        (msgpack.packb([1, "g", "t", 0]), msgpack.packb([0, 1, -1, "", 0, 5])),
        (msgpack.packb([2]), None),
        (msgpack.packb([3]), None),
        (msgpack.packb([3, "g"]), msgpack.packb([0])),
        (msgpack.packb([4, "g"]), None),
        (msgpack.packb([4, "g", 9]), msgpack.packb([0, 2, 5])),
        (msgpack.packb([4, "g", 9]), msgpack.packb([0, 2, 5, [["t", 3, 15, -1, "note", "id"]]])),
        (msgpack.packb([4, "g", 9]), msgpack.packb([0, 2, 5, [[None, 3, 15, -1, "note", "id", 1]]])),
        (msgpack.packb([5]), None),
        (msgpack.packb([5, "g"]), msgpack.packb([0, 4, "c-1", 5])),
        (msgpack.packb([5, "g"]), msgpack.packb([0, 4, "c-1", 5, [["t", 3, 15, 20, "note"]]])),
        (msgpack.packb([2, "g"]), msgpack.packb([0, 1, "consumer", None, None, "", 0, [[1, 2]]])),
    ],
)
def test_bytes_that_are_no_record_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ProtocolError, match="is no coordinator record"):
        decode_record(key, value)
    if value is not None and not value.endswith(b"\x00"):  # in steps, bytes behind the last field are not looked at
        with pytest.raises(ProtocolError, match="is no coordinator record"):
            decoded_in_steps(key, value)


def test_offsets_share_the_strings_that_name_them() -> None:
    one = decode_record(*encode_record(OFFSET))
    other = decode_record(*encode_record(OFFSET._replace(partition=4)))
    assert isinstance(one, OffsetCommitRecord)
    assert isinstance(other, OffsetCommitRecord)
    assert one.group_id is other.group_id
    assert one.topic is other.topic


def test_members_that_offer_the_same_share_what_says_so() -> None:
    offered = tuple(JoinGroupProtocol(name, name.encode()) for name in ("range", "sticky"))
    other = (JoinGroupProtocol("range", b"else"),)
    members = tuple(
        MemberRecord(f"m{number}", None, "c", "h", 1, 2, offered if number % 2 else other, b"") for number in range(4)
    )
    record = decode_record(*encode_record(replace(GROUP, members=members)))
    assert isinstance(record, GroupMetadataRecord)
    assert record.members == members
    assert record.members[1].protocols is record.members[3].protocols


def test_large_values_among_others_are_decoded_in_turns_and_in_order() -> None:
    members = tuple(
        MemberRecord(f"m{number}", None, "c", "h", 1, 2, (), b"share" * 10) for number in range(2 * MEMBERS_PER_STEP)
    )
    large = replace(GROUP, members=members)
    encoded = [encode_record(OFFSET), (msgpack.packb([99, "g"]), b""), encode_record(large), encode_record(GROUP)]
    assert list(decode_records(encoded)) == [OFFSET, None, None, large, GROUP]


def decoded_in_steps(key: bytes, value: bytes) -> tuple[int, CoordinatorRecord | None]:
    """How often others had their turn, and the record, decoded as a large one is."""
    steps, turns = _decode_in_steps(key, value), 0
    while True:
        try:
            next(steps)
            turns += 1
        except StopIteration as end:
            return turns, end.value


class Returning:
    """Goes through a generator and keeps what it returns."""

    def __init__(self, steps: Generator[None, None, tuple[bytes, bytes]]) -> None:
        self._steps = steps
        self.value: tuple[bytes, bytes | None] | None = None

    def __iter__(self) -> Iterator[None]:
        self.value = yield from self._steps


@given(RECORDS)
def test_a_record_decoded_in_steps_is_the_same(record: CoordinatorRecord) -> None:
    key, value = encode_record(record)
    if value is not None:
        assert decoded_in_steps(key, value)[1] == record


@pytest.mark.parametrize("size", [1, 15, 16, MEMBERS_PER_STEP, MEMBERS_PER_STEP + 1, 2 * MEMBERS_PER_STEP + 16])
def test_a_generation_encoded_or_decoded_in_steps_is_the_same(size: int) -> None:
    offered = (JoinGroupProtocol("range", b"topics"),)
    members = tuple(MemberRecord(f"m{number}", None, "c", "h", 1, 2, offered, b"share") for number in range(size))
    record = replace(GROUP, members=members)
    steps = Returning(encode_members_in_steps(record))
    assert sum(1 for _ in steps) == -(-size // MEMBERS_PER_STEP)
    assert steps.value == encode_record(record)
    key, value = encode_record(record)
    assert value is not None
    assert decoded_in_steps(key, value) == (-(-size // MEMBERS_PER_STEP), record)
    newer = msgpack.packb([*msgpack.unpackb(value), "a field that a later version adds"])
    assert decoded_in_steps(key, newer)[1] == record
