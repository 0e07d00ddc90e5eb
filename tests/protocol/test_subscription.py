"""Subscription and assignment blobs: both ends may be older or newer, or be Kafka's, and garbage is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import pack
from protocol.errors import ProtocolError
from protocol.subscription import (
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    decode_topics,
    encode_assignment,
    encode_subscription,
    group_by_topic,
)

topics = st.text("abc-.", min_size=1, max_size=4)
partitions = st.lists(st.builds(TopicPartition, topics, st.integers(0, 50)), max_size=8, unique=True)
subscriptions = st.builds(
    Subscription,
    st.lists(topics, max_size=5).map(tuple),
    st.binary(max_size=10),
    partitions.map(lambda owned: tuple(sorted(owned))),
    st.integers(-1, 2**31 - 1),
    st.none() | topics,
)


@given(subscriptions, st.none() | topics)
def test_a_subscription_survives_and_takes_its_instance_id_from_the_join(
    subscription: Subscription, instance: str | None
) -> None:
    decoded = decode_subscription(encode_subscription(subscription), instance)
    assert decoded.group_instance_id == instance
    assert decode_subscription(encode_subscription(decoded)) == subscription


@given(partitions, st.binary(max_size=5))
def test_an_assignment_survives_sorted(assigned: list[TopicPartition], user_data: bytes) -> None:
    assert decode_assignment(encode_assignment(assigned, user_data)) == tuple(sorted(assigned))


def test_a_member_that_the_leader_left_out_has_nothing() -> None:
    assert decode_assignment(b"") == ()


@given(subscriptions, st.integers(0, 3), st.booleans())
def test_an_older_subscription_of_kafka_s_lacks_its_last_fields(
    subscription: Subscription, version: int, null: bool
) -> None:
    """As Java's ``ConsumerProtocol`` writes them, field by field."""
    owned = group_by_topic(subscription.owned_partitions)
    data = struct.pack(">hi", version, len(subscription.topics)) + b"".join(map(kafka_string, subscription.topics))
    user_data = b"" if null else subscription.user_data
    data += struct.pack(">i", -1) if null else struct.pack(">i", len(user_data)) + user_data
    if version >= 1:
        data += struct.pack(">i", len(owned))
        for topic, numbers in owned.items():
            data += kafka_string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    if version >= 2:
        data += struct.pack(">i", subscription.generation)
    if version >= 3:
        data += struct.pack(">h", -1) if subscription.rack is None else kafka_string(subscription.rack)
    decoded = decode_subscription(data, "i")
    assert decoded == Subscription(
        subscription.topics,
        user_data,
        subscription.owned_partitions if version >= 1 else (),
        subscription.generation if version >= 2 else -1,
        subscription.rack if version >= 3 else None,
        "i",
    )
    assert decode_topics(data) == subscription.topics
    if version == 3 and user_data == subscription.user_data and (user_data or null):
        assert encode_subscription(decoded) == data


def kafka_string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def test_bytes_as_kafka_s_consumers_send_them() -> None:
    """Byte by byte after Kafka's schemas: a consumer that owns two partitions, and what its leader gives to it."""
    said = bytes.fromhex("000300000001000174ffffffff00000001000174000000020000000000000003")
    said += bytes.fromhex("00000007ffff")
    owned = (TopicPartition("t", 0), TopicPartition("t", 3))
    assert decode_subscription(said) == Subscription(("t",), b"", owned, 7)
    assert encode_subscription(Subscription(("t",), b"", owned, 7)) == said
    given_to_it = bytes.fromhex("0003000000010001740000000100000002ffffffff")
    assert decode_assignment(given_to_it) == (TopicPartition("t", 2),)
    assert encode_assignment([TopicPartition("t", 2)]) == given_to_it


@given(subscriptions, st.booleans())
def test_other_readers_pass_over_what_only_ours_know(subscription: Subscription, holds: bool) -> None:
    """A member that holds on to its partitions says so behind the last field that Kafka knows."""
    plain = encode_subscription(subscription)
    holding = encode_subscription(replace(subscription, holds=True))
    assert holding == plain + b"\x01"
    assert decode_subscription(holding) == replace(subscription, holds=True)
    future = bytes((0, 9)) + plain[2:] + b"\x01"
    assert decode_subscription(future) == subscription


@given(subscriptions, st.data())
def test_a_subscription_that_was_cut_is_refused(subscription: Subscription, data: st.DataObject) -> None:
    blob = encode_subscription(subscription)
    with pytest.raises(ProtocolError):
        decode_subscription(blob[: data.draw(st.integers(0, len(blob) - 1))])


@pytest.mark.parametrize(
    "blob",
    [
        bytes.fromhex("0003" "7fffffff"), bytes.fromhex("0003" "ffffffff"), bytes.fromhex("0003" "00000001" "ffff"),
        bytes.fromhex("0003" "00000001" "0002" "c328"), bytes.fromhex("0003" "00000001" "0001"),
    ],
)  # fmt: skip
def test_counts_and_strings_that_cannot_be_are_refused(blob: bytes) -> None:
    for decode in (decode_subscription, decode_topics):
        with pytest.raises(ProtocolError, match="subscription"):
            decode(blob)
    with pytest.raises(ProtocolError, match="assignment"):
        decode_assignment(blob)


def test_a_negative_partition_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no partition number"):
        decode_assignment(bytes.fromhex("00030000000100017400000001fffffffeffffffff"))


def test_a_topic_that_is_named_twice_has_all_its_partitions() -> None:
    entry = bytes.fromhex("0001740000000100000002")
    other = bytes.fromhex("0001740000000100000001")
    assert decode_assignment(bytes.fromhex("000000000002") + entry + other + bytes.fromhex("00000000")) == (
        TopicPartition("t", 1),
        TopicPartition("t", 2),
    )


@given(subscriptions, st.integers(2, 6))
def test_an_older_subscription_lacks_its_last_fields(subscription: Subscription, kept: int) -> None:
    fields = [0, list(subscription.topics), subscription.user_data, group_by_topic(subscription.owned_partitions)]
    fields += [subscription.generation, subscription.rack]
    decoded = decode_subscription(pack(fields[:kept]))
    assert decoded.topics == subscription.topics
    assert decoded.user_data == (subscription.user_data if kept > 2 else b"")
    assert decoded.owned_partitions == (subscription.owned_partitions if kept > 3 else ())
    assert decoded.generation == (subscription.generation if kept > 4 else -1)
    assert decoded.rack == (subscription.rack if kept > 5 else None)


def test_newer_blobs_have_more_fields_which_are_ignored() -> None:
    assert decode_subscription(pack([9, ["t"], b"u", {"t": [1]}, 4, "rack", True, "new", {}])) == Subscription(
        ("t",), b"u", (TopicPartition("t", 1),), 4, "rack", holds=True
    )
    assert decode_assignment(pack([9, {"t": [2, 1]}, b"", "new"])) == (TopicPartition("t", 2), TopicPartition("t", 1))


@pytest.mark.parametrize(
    "fields",
    [
        None, 7, "text", {}, [], [0], ["0", []], [-1, []], [None, []], [0, "t"], [0, None], [0, [1]], [0, [b"t"]],
        [0, ["t"], "no bytes"], [0, ["t"], b"", None], [0, ["t"], b"", [1]], [0, ["t"], b"", {"t": 1}],
        [0, ["t"], b"", {"t": [-1]}], [0, ["t"], b"", {"t": ["1"]}], [0, ["t"], b"", {"t": [True]}],
        [0, ["t"], b"", {}, 1, None, 1],
        [0, ["t"], b"", {}, "1"], [0, ["t"], b"", {}, None], [0, ["t"], b"", {}, 1, 5], [0, ["t"], b"", {b"t": [1]}],
        [0, ["t"], b"", {b"t": [1], "u": [2]}],
    ],
)  # fmt: skip
def test_what_is_no_subscription_is_refused(fields: object) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(pack(fields))


@pytest.mark.parametrize(
    "fields",
    [None, 7, [], [0], [0, None], [0, []], [0, {"t": None}], [0, {"t": [1.0]}], [0, {b"t": [1]}], ["0", {}]],
)
def test_what_is_no_assignment_is_refused(fields: object) -> None:
    with pytest.raises(ProtocolError):
        decode_assignment(pack(fields))


@given(st.binary(min_size=1, max_size=60), st.sampled_from([b"", b"\0\0", b"\0\3", b"\0\3\0\0\0\1"]))
def test_random_bytes_are_blobs_or_a_protocol_error(rest: bytes, beginning: bytes) -> None:
    blob = beginning + rest
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(blob)
        except ProtocolError:
            continue


def test_partitions_are_grouped_and_sorted() -> None:
    assert group_by_topic([("b", 2), ("a", 1), ("b", 0)]) == {"a": [1], "b": [0, 2]}


@given(subscriptions, st.binary(max_size=8))
def test_topics_are_read_without_the_rest(subscription: Subscription, rest: bytes) -> None:
    blob = encode_subscription(subscription)
    assert decode_topics(blob) == decode_topics(blob + rest) == subscription.topics


@pytest.mark.parametrize(
    "blob",
    [
        *(b"", b"\xc1", b"\x90", b"\x91\x00", b"\x92\x00"),
        *(b"\x92\xa1a\x90", b"\x92\xff\x90"),
        *(b"\x92\x00\xa1t", b"\x92\x00\x91\x01", b"\x92\x00\x91\xa5cut", b"\x92\x00\x91\xa1\xff"),
        *(b"\x92\x00" + b"\x91" * 5_000, b"\x92\x00\xdd\xff\xff\xff\xff"),
    ],
)
def test_topics_that_do_not_parse_are_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError, match="subscription"):
        decode_topics(blob)
