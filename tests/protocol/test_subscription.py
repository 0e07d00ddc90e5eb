"""Subscription and assignment blobs: both ends may be older or newer, and garbage is refused."""

from __future__ import annotations

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


@given(st.binary(min_size=1, max_size=60))
def test_random_bytes_are_blobs_or_a_protocol_error(blob: bytes) -> None:
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
