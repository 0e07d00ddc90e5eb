"""What a consumer may be asked to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client.consumer import Consumer
from client.consumer.subscription import TopicSelection
from client.errors import IllegalStateError
from client.transport.metadata import Topology
from protocol.messages.cluster import MetadataResponse, PartitionMetadata, TopicMetadata
from protocol.subscription import TopicPartition

NOTHING = Topology.unknown()
T = TopicPartition


def topology(**partitions: int) -> Topology:
    topics = tuple(
        TopicMetadata(
            0,
            name,
            name,
            name.startswith("__"),
            tuple(PartitionMetadata(0, number, 0, 0, (0,), (0,)) for number in range(count)),
        )
        for name, count in partitions.items()
    )
    return Topology.of(MetadataResponse(1, "cluster", 0, (), topics))


def without(name: str, **partitions: int) -> Topology:
    """The answer to a question that asked for a topic that does not exist, too."""
    there = topology(**partitions)
    return replace(there, asked=there.asked | {name})


def created_anew(before: Topology) -> Topology:
    """The same names, of other topics."""
    topics = {name: replace(topic, topic_id=f"another {name}") for name, topic in before.topics.items()}
    return replace(before, topics=topics)


def test_named_topics_are_wanted_whether_they_exist_or_not() -> None:
    selection = TopicSelection()
    selection.subscribe(["b", "a"], None, NOTHING)
    assert selection.topics(topology(a=2)) == ("a", "b")
    assert [tuple(tp) for tp in selection.partitions(topology(a=2))] == [("a", 0), ("a", 1)]


def test_a_pattern_matches_whole_names_and_never_internal_topics() -> None:
    selection = TopicSelection()
    selection.subscribe([], "log.|.*_offsets", NOTHING)
    assert selection.topics(topology(logs=1, logs2=1, weblog=1, __consumer_offsets=50, my_offsets=1)) == (
        "logs",
        "my_offsets",
    )


def test_a_change_says_what_came_and_went() -> None:
    selection = TopicSelection()
    selection.subscribe([], "log.", NOTHING)
    assert selection.change(("log1",), topology(log1=1)) is None
    assert selection.change(("log0", "log1"), topology(log1=1, log2=1)) == (
        "the topics subscribed to changed: new log2; gone log0"
    )


@pytest.mark.parametrize(("topics", "pattern"), [([], None), (["a"], "a"), ([""], None), ([], "(")])
def test_nonsense_is_refused(topics: list[str], pattern: str | None) -> None:
    with pytest.raises(ValueError, match=r"exactly one|each is a name|no regular expression"):
        TopicSelection().subscribe(topics, pattern, NOTHING)


@pytest.mark.parametrize("topic", [["a", "b"], b"a", None, 3])
def test_a_topic_that_is_no_text_is_refused_with_an_example(topic: Any) -> None:
    with pytest.raises(TypeError, match=r"a topic's name is text, not .*: Consumer\('"):
        TopicSelection().subscribe([topic], None, NOTHING)


def test_topics_in_a_list_are_told_how_to_be_passed() -> None:
    with pytest.raises(
        TypeError, match=r"not \['t', 'u'\]; pass each name by itself: Consumer\('t', 'u'\) or subscribe"
    ):
        Consumer(["t", "u"])  # type: ignore[arg-type]


def test_subscription_and_assignment_exclude_each_other() -> None:
    selection = TopicSelection()
    selection.subscribe(["a"], None, NOTHING)
    with pytest.raises(IllegalStateError, match=r"given partitions by subscribe\(\); call unsubscribe\(\) first"):
        selection.assign(["a"])
    selection.clear()
    selection.assign(["a"])
    with pytest.raises(IllegalStateError, match=r"by assign\(\)"):
        selection.subscribe(["a"], None, NOTHING)


def test_partitions_that_appear_after_a_topic_was_first_seen_are_new() -> None:
    selection = TopicSelection()
    selection.subscribe(["t", "late"], None, NOTHING)
    assert not selection.is_new(T("t", 7)), "nothing was seen of it yet"
    selection.look(without("late", t=2, other=1))
    selection.look(topology(t=4, late=1))
    assert [number for number in range(4) if selection.is_new(T("t", number))] == [2, 3]
    assert selection.is_new(T("late", 0))
    assert selection.first_seen() == {"t": 2, "late": 0}


def test_topics_that_match_later_are_new_once_all_topics_have_been_seen() -> None:
    selection = TopicSelection()
    selection.subscribe([], "t.*", NOTHING)
    selection.look(topology(), complete=True)
    selection.look(topology(t=1))
    assert selection.is_new(T("t", 0))
    assert selection.is_new(T("t2", 0)), "another member may be assigned a topic before it has seen it"


def test_a_pattern_that_replaces_names_takes_no_topic_for_new_before_it_has_seen_all() -> None:
    selection, named = TopicSelection(), topology(t1=1)
    selection.subscribe(["t1"], None, NOTHING)
    selection.look(named)
    selection.subscribe([], "t.*", named)
    selection.look(named)  # the answer to a question that was under way
    assert not selection.is_new(T("t2", 0))
    selection.look(topology(t1=3, t2=1))
    selection.look(topology(t1=3, t2=1, t3=1))
    assert [tp for tp in (T("t1", 0), T("t1", 1), T("t2", 0), T("t3", 0)) if selection.is_new(tp)] == [
        T("t1", 1),
        T("t3", 0),
    ]


def test_a_topic_that_was_deleted_is_new_when_it_appears_again() -> None:
    selection = TopicSelection()
    selection.subscribe(["t", "u"], None, NOTHING)
    selection.look(topology(t=2, u=2))
    selection.look(without("t", u=2))
    assert selection.created_anew(topology(u=2, other=1)) == []
    anew = created_anew(topology(u=2, other=1))  # nothing was seen of their absence
    assert selection.created_anew(anew) == ["u", "other"]
    assert selection.created_anew(anew) == []
    assert selection.first_seen() == {"t": 0, "u": 0}
    assert [selection.topic_id(name) for name in ("u", "unseen")] == ["another u", ""]


def test_what_was_seen_of_a_topic_ends_with_its_selection() -> None:
    selection = TopicSelection()
    selection.subscribe(["t", "u"], None, NOTHING)
    selection.look(topology(t=1, u=1))
    selection.subscribe(["u", "v"], None, topology(t=1, u=1))
    assert selection.first_seen() == {"u": 1}
    selection.subscribe(["t", "u"], None, topology(t=1, u=1))
    selection.look(topology(t=4, u=4))
    assert selection.first_seen() == {"t": 4, "u": 1}
    selection.clear()
    assert selection.first_seen() == {}


def test_the_least_that_any_member_saw_counts() -> None:
    selection = TopicSelection()
    selection.subscribe(["t"], None, NOTHING)
    selection.look(topology(t=3))
    selection.learn_first_seen({"t": 1, "u": 0})
    selection.learn_first_seen({"t": 2})
    assert selection.first_seen() == {"t": 1, "u": 0}


def test_each_missing_topic_is_told_once_until_it_exists() -> None:
    selection = TopicSelection()
    selection.subscribe(["oders", "t"], None, NOTHING)
    assert selection.newly_missing(topology(t=1)) == [], "it was not asked for yet"
    assert selection.newly_missing(without("oders", t=1)) == ["oders"]
    assert selection.newly_missing(without("oders", t=1)) == []
    assert selection.newly_missing(topology(oders=1, t=1)) == []
    assert selection.newly_missing(without("oders", t=1)) == ["oders"]


def whole(**partitions: int) -> Topology:
    """The answer to a question about all topics."""
    return replace(topology(**partitions), whole=True)


def test_a_pattern_that_matches_no_topic_is_told_once_until_one_matches() -> None:
    selection = TopicSelection()
    selection.subscribe([], "ordr-.*", NOTHING)
    assert selection.newly_unmatched(NOTHING) is None, "nothing is known yet"
    assert selection.newly_unmatched(topology(t=1)) is None, "there may be topics that were not asked for"
    assert selection.newly_unmatched(whole(orders=1)) == "ordr-.*"
    assert selection.newly_unmatched(whole(orders=2)) is None
    selection.subscribe([], "ordr-.*", NOTHING)
    assert selection.newly_unmatched(whole(orders=2)) is None, "it was told of this pattern"
    assert selection.newly_unmatched(whole(**{"ordr-1": 1})) is None
    assert selection.newly_unmatched(whole(orders=2)) == "ordr-.*"
    selection.subscribe([], "__.*", NOTHING)
    assert selection.newly_unmatched(whole(__consumer_offsets=50)) == "__.*", "internal topics are not read by pattern"
    selection.clear()
    assert selection.newly_unmatched(whole()) is None
    selection.subscribe(["t"], None, NOTHING)
    assert selection.newly_unmatched(whole()) is None, "a name is told of as a missing topic"


def test_a_name_that_no_daemon_could_read_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"no topic has such a name: .* is no text that UTF-8 can hold"):
        TopicSelection().subscribe(["t\ud800"], None, NOTHING)
