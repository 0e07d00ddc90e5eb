"""What a consumer may be asked to read."""

from __future__ import annotations

import pytest

from client.consumer.selection import TopicSelection
from client.errors import IllegalStateError
from client.topology import Topology
from protocol.messages.cluster import MetadataResponse, PartitionMetadata, TopicMetadata


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


def test_named_topics_are_wanted_whether_they_exist_or_not() -> None:
    selection = TopicSelection()
    selection.subscribe(["b", "a"], None)
    assert selection.topics(topology(a=2)) == ("a", "b")
    assert [tuple(tp) for tp in selection.partitions(topology(a=2))] == [("a", 0), ("a", 1)]


def test_a_pattern_matches_from_the_beginning_and_never_internal_topics() -> None:
    selection = TopicSelection()
    selection.subscribe([], "log|.*_offsets")
    assert selection.topics(topology(logs=1, weblog=1, __consumer_offsets=50, my_offsets=1)) == ("logs", "my_offsets")


def test_a_change_says_what_came_and_went() -> None:
    selection = TopicSelection()
    selection.subscribe([], "log")
    assert selection.change(("log1",), topology(log1=1)) is None
    assert selection.change(("log0", "log1"), topology(log1=1, log2=1)) == (
        "the topics subscribed to changed: new log2; gone log0"
    )


@pytest.mark.parametrize(("topics", "pattern"), [([], None), (["a"], "a"), ([""], None), ([], "(")])
def test_nonsense_is_refused(topics: list[str], pattern: str | None) -> None:
    with pytest.raises(ValueError, match=r"exactly one|each is a name|no regular expression"):
        TopicSelection().subscribe(topics, pattern)


def test_subscription_and_assignment_exclude_each_other() -> None:
    selection = TopicSelection()
    selection.subscribe(["a"], None)
    with pytest.raises(IllegalStateError, match=r"given partitions by subscribe\(\); call unsubscribe\(\) first"):
        selection.assign(["a"])
    selection.clear()
    selection.assign(["a"])
    with pytest.raises(IllegalStateError, match=r"by assign\(\)"):
        selection.subscribe(["a"], None)
