"""Bundles of topics with the same subscribers, and the parts of a group."""

from __future__ import annotations

from client.assignors import Subscription
from client.assignors.subscribers import Bundle, Part, read_subscriptions


def members(**topics: str) -> dict[str, Subscription]:
    return {member: Subscription(tuple(names)) for member, names in topics.items()}


def test_topics_with_the_same_subscribers_are_one_bundle() -> None:
    read = read_subscriptions({"a": 1, "b": 2, "c": 4}, members(m2="ca", m1="abc", m3="aac"))
    assert read.order == ["m1", "m2", "m3"]
    assert read.bundles == [Bundle(("a", "c"), 5, (0, 1, 2)), Bundle(("b",), 2, (0,))]
    assert read.bundle_of_topic() == {"a": 0, "c": 0, "b": 1}
    assert read.parts() == [Part([0, 1, 2], [0, 1])]


def test_topics_that_are_not_there_or_have_no_partitions_make_no_difference() -> None:
    read = read_subscriptions({"a": 3, "b": 0, "c": -1}, members(m1="ab", m2="ac", m3="az", m4="bz"))
    assert read.bundles == [Bundle(("a",), 3, (0, 1, 2))]
    assert read.topics == [frozenset("a")] * 3 + [frozenset()]
    assert read.parts() == [Part([0, 1, 2], [0])]


def test_members_that_share_no_topic_even_through_others_are_apart() -> None:
    read = read_subscriptions(dict.fromkeys("abcdef", 1), members(m1="ab", m2="cd", m3="bx", m4="de", m5="f", m6=""))
    assert [
        (
            [read.order[place] for place in part.members],
            sorted(topic for at in part.bundles for topic in read.bundles[at].topics),
        )
        for part in read.parts()
    ] == [(["m1", "m3"], ["a", "b"]), (["m2", "m4"], ["c", "d", "e"]), (["m5"], ["f"])]


def test_a_long_chain_of_members_is_one_part() -> None:
    count = 2000
    chain = {f"m{n:04}": Subscription((f"t{n:04}", f"t{n + 1:04}")) for n in range(count)}
    parts = read_subscriptions({f"t{n:04}": 1 for n in range(count + 1)}, chain).parts()
    assert [len(part.members) for part in parts] == [count]
