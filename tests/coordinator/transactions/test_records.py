"""The bytes of the transaction log: what is written is read back, and what is no record is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb

from coordinator.transactions.records import (
    RECORDS_PER_STEP,
    Completing,
    Ended,
    Identity,
    IdentityRecord,
    IdentityTombstone,
    MemberRecord,
    MemberTombstone,
    Previous,
    decode_record,
    decode_records,
    encode_record,
    encode_records,
)
from protocol.errors import ProtocolError
from protocol.messages.transactions import TransactionTopic

ids = st.text(max_size=20)
longs = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 32_767)
identities = st.builds(Identity, longs, epochs)
topics = st.builds(TransactionTopic, ids, ids, st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple))
verdicts = st.lists(st.tuples(longs, st.booleans()), max_size=4).map(tuple)
records = st.one_of(
    st.builds(
        IdentityRecord,
        transactional_id=ids,
        producer_id=longs,
        epoch=epochs,
        previous=st.none() | st.builds(Previous, longs, epochs, st.sampled_from(Ended)),
        timeout_ms=st.integers(1, 900_000),
        completing=st.none() | st.builds(Completing, longs, epochs, verdicts),
        committed_version=longs,
        scope=ids,
        changed_wall_ms=longs,
        committed_metadata=ids,
        kept=st.none() | identities,
    ),
    st.builds(IdentityTombstone, ids),
    st.builds(
        MemberRecord,
        transactional_id=ids,
        transaction=identities,
        producer_id=longs,
        name=ids,
        started_wall_ms=longs,
        version=longs,
        topics=st.lists(topics, max_size=3).map(tuple),
    ),
    st.builds(MemberTombstone, ids, identities, longs),
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: object) -> None:
    read = decode_record(*encode_record(record))  # type: ignore[arg-type]
    assert read == record
    assert type(read) is type(record)


def test_what_a_record_holds_has_its_type_again() -> None:
    record = IdentityRecord(
        "t", 7, 3, Previous(7, 2, Ended.TIMED_OUT), 60_000, Completing(7, 2, ((7, False),)), 5, "q", 1
    )
    read = decode_record(*encode_record(record))
    assert isinstance(read, IdentityRecord)
    assert read.previous is not None
    assert read.previous.how is Ended.TIMED_OUT
    assert read.previous.identity == Identity(7, 2)
    assert read.completing is not None
    assert read.completing.identity == Identity(7, 2)


def test_the_bytes_are_those_of_version_0() -> None:
    identity = IdentityRecord("t", 7, 3, Previous(7, 2, Ended.COMMITTED), 60, Completing(7, 2, ((7, True),)), -1, "", 9)
    assert encode_record(identity) == (
        packb([1, "t"]),
        packb([0, 7, 3, [7, 2, 1], 60, [7, 2, [[7, True]]], -1, "", 9]),
    )
    described = identity._replace(committed_version=4, scope="q", committed_metadata="what")
    assert encode_record(described)[1] == packb([0, 7, 3, [7, 2, 1], 60, [7, 2, [[7, True]]], 4, "q", 9, "what"])
    kept = identity._replace(kept=Identity(7, 1))
    assert encode_record(kept)[1] == packb([0, 7, 3, [7, 2, 1], 60, [7, 2, [[7, True]]], -1, "", 9, "", [7, 1]])
    member = MemberRecord("t", Identity(7, 3), 8, "m", 9, 4, (TransactionTopic("orders", "id", (0, 2)),))
    assert encode_record(member) == (packb([2, "t", 7, 3, 8]), packb([0, "m", 9, 4, [["orders", "id", [0, 2]]]]))


def test_fields_of_a_later_version_are_passed_over() -> None:
    key, value = packb([1, "t"]), packb([0, 7, 3, None, 60, None, -1, "", 9, "what", None, "new"])
    assert decode_record(key, value) == IdentityRecord("t", 7, 3, None, 60, None, -1, "", 9, "what")
    member = packb([0, "m", 9, -1, [], "new"])
    assert decode_record(packb([2, "t", 7, 3, 8]), member) == MemberRecord("t", Identity(7, 3), 8, "m", 9, -1, ())


def test_a_kind_of_a_later_version_is_passed_over() -> None:
    assert decode_record(packb([9, "t"]), packb([0])) is None
    assert list(decode_records([(packb([9, "t"]), None)])) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\x80", b""),
        (b"\xc1", b""),
        (packb(["x", "t"]), packb([0])),
        (packb([1, "t"]), packb([0, 7])),
        (packb([1, "t"]), packb([0, 7, 3, [7, 2, 99], 60, None, -1, "", 9])),
        (packb([2, "t", 7]), packb([0, "m", 9, -1, []])),
        (packb([2, "t", 7, 3, 8]), packb([0, "m", 9, -1, [[1, 2, 3]]])),
    ],
)
def test_other_bytes_are_no_record(key: bytes, value: bytes) -> None:
    with pytest.raises(ProtocolError, match="no record of transactions"):
        decode_record(key, value)


def test_others_have_their_turn_while_many_are_encoded() -> None:
    many = [MemberTombstone("t", Identity(7, 3), number) for number in range(2 * RECORDS_PER_STEP + 1)]
    encoded = list(encode_records(many))
    assert encoded.count(None) == 2
    assert list(decode_records(one for one in encoded if one is not None)) == many
