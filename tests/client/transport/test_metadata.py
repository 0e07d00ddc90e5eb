"""Pictures of the cluster: whatever order answers come in, what a client knows of a topic never goes back."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from client.transport.metadata import LeaderHint, Topology, hints_of
from protocol.errors import ErrorCode
from protocol.messages.cluster import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from protocol.messages.records import (
    FetchedPartition,
    FetchedTopic,
    FetchResponse,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.subscription import TopicPartition

NAMES = ("a", "b", "c", "d")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Daemon:
    """What a daemon says at each revision; a topic exists while it has an incarnation, which is its topic id."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.history: list[dict[str, str]] = [{}]

    @property
    def revision(self) -> int:
        return len(self.history) - 1

    def change(self) -> None:
        now = dict(self.history[-1])
        name = self._random.choice(NAMES)
        if now.pop(name, None) is None:
            now[name] = f"{name}{len(self.history)}"
        self.history.append(now)

    def answer(self, names: tuple[str, ...] | None, known: int = -1, *, changes: bool = False) -> MetadataResponse:
        now = self.history[-1]
        if changes:
            since = self.history[known:]
            changed = {name for name in NAMES if len({state.get(name) for state in since}) > 1}
            listed = sorted(changed if names is None else changed & set(names))
        else:
            listed = sorted(now) if names is None else list(names)
        return MetadataResponse(
            self.revision, "c", 0, (BrokerMetadata(0, "h", 1),),
            tuple(_topic(name, now.get(name)) for name in listed), known if changes else -1,
        )  # fmt: skip


def _topic(name: str, topic_id: str | None) -> TopicMetadata:
    if topic_id is None:
        return TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, "", False, ())
    return TopicMetadata(ErrorCode.NONE, name, topic_id, False, (PartitionMetadata(0, 0, 0, 0, (0,), (0,)),))


def of(topology: Topology) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topology.topics.items()}


def test_only_a_picture_of_all_topics_goes_on_by_changes_of_all_topics() -> None:
    daemon = Daemon(Random(1))
    daemon.change()
    named = Topology.unknown().followed_by(daemon.answer(("a",)), ("a",))
    assert named is not None
    assert not named.whole
    everything = named.followed_by(daemon.answer(None), None)
    assert everything is not None
    assert everything.whole
    daemon.change()
    changed = everything.followed_by(daemon.answer(None, everything.revision, changes=True), None)
    assert changed is not None
    assert changed.whole
    assert of(changed) == daemon.history[-1]
    narrowed = changed.followed_by(daemon.answer(("a",)), ("a",))
    assert narrowed is not None
    assert not narrowed.whole


@pytest.mark.parametrize("seed", range(200))
def test_what_is_known_of_a_topic_never_goes_back_and_is_right_in_the_end(seed: int) -> None:
    """Long polls, fresh looks at all and at single topics, each delivered late or early."""
    random = Random(seed)
    daemon = Daemon(random)
    all_topics = random.random() < 0.5
    asked = None if all_topics else NAMES
    topology = Topology.of(daemon.answer(asked))
    under_way: list[tuple[MetadataResponse, tuple[str, ...] | None]] = []
    newest = dict.fromkeys(NAMES, 0)  # the latest revision at which each topic was learned of
    for _ in range(60):
        what = random.randrange(5)
        if what == 0:
            daemon.change()
        elif what == 1:
            under_way.append((daemon.answer(asked), asked))
        elif what == 2:
            under_way.append((daemon.answer(asked, topology.revision, changes=True), asked))
        elif what == 3:
            name = random.choice(NAMES)
            found = Topology.of(daemon.answer((name,)))
            if found.revision >= topology.revision:
                topology = topology.with_more(found)
                newest[name] = max(newest[name], found.revision)
        elif under_way:
            response, names = under_way.pop(random.randrange(len(under_way)))
            following = topology.followed_by(response, names)
            assert following is not None
            if response.revision >= topology.revision:
                newest = {name: max(known, response.revision) for name, known in newest.items()}
            topology = following
        for name, revision in newest.items():
            later = [state.get(name) for state in daemon.history[revision:]]
            assert of(topology).get(name) in later, f"{name} went back behind revision {revision}"
    final = topology.followed_by(daemon.answer(asked, topology.revision, changes=True), asked)
    assert final is not None
    assert of(final) == daemon.history[-1]
    assert final.later == {}


def test_a_topic_that_was_found_on_its_own_outlasts_an_answer_that_was_overtaken() -> None:
    """It was deleted and created again; the answer of the time in between comes last."""
    daemon = Daemon(Random(1))
    daemon.history = [{}, {"a": "a1"}]
    topology = Topology.of(daemon.answer(("a",)))
    daemon.history.append({})
    between = daemon.answer(("a",))
    daemon.history.append({"a": "a3"})
    topology = topology.with_more(Topology.of(daemon.answer(("a",))))
    after = topology.followed_by(between, ("a",))
    assert after is not None
    assert of(after) == {"a": "a3"}
    assert after.revision == 2


def test_changes_that_do_not_go_on_from_what_is_known_do_not_fit() -> None:
    daemon = Daemon(Random(1))
    topology = Topology.of(daemon.answer(None))
    daemon.history += [{"a": "a1"}, {"a": "a1", "b": "b2"}]
    assert topology.followed_by(daemon.answer(None, 1, changes=True), None) is None
    other = MetadataResponse(7, "another cluster", 0, (), (), 3)
    assert topology.followed_by(other, None) is None
    assert topology.followed_by(MetadataResponse(7, "another cluster", 0, (), ()), None) == Topology(
        7, "another cluster", {}, {}, frozenset(), whole=True
    )


TWO = (BrokerMetadata(0, "h", 1), BrokerMetadata(1, "h", 2))


def led(revision: int, leader: int, epoch: int, topic_id: str = "x") -> MetadataResponse:
    partitions = tuple(PartitionMetadata(0, index, leader, epoch, (0, 1), (0, 1)) for index in range(2))
    return MetadataResponse(revision, "c", 0, TWO, (TopicMetadata(0, "t", topic_id, False, partitions),))


def followed(topology: Topology, answer: MetadataResponse) -> Topology:
    found = topology.followed_by(answer, ("t",))
    assert found is not None
    return found


def test_a_leader_of_a_later_epoch_is_taken_and_one_of_an_earlier_is_not() -> None:
    known = Topology.of(led(5, 0, 3))
    for epoch in (2, 3):
        assert known.with_leaders({T0: LeaderHint(1, epoch)}, TWO) is known
    assert known.with_leaders({TopicPartition("u", 0): LeaderHint(1, 9)}, TWO) is known
    hinted = known.with_leaders({T0: LeaderHint(7, 4)}, (BrokerMetadata(7, "new", 9),))
    assert (hinted.leader(T0), hinted.leader_epoch(T0)) == (("new", 9), 4)
    assert (hinted.leader(T1), hinted.leader_epoch(T1)) == (("h", 1), 3)


def test_a_leader_that_was_named_stays_until_the_metadata_has_it() -> None:
    hinted = Topology.of(led(5, 0, 3)).with_leaders({T0: LeaderHint(7, 4)}, (BrokerMetadata(7, "new", 9),))
    lagging = followed(hinted, led(6, 0, 3))
    assert (lagging.revision, lagging.leader(T0), lagging.leader(T1)) == (6, ("new", 9), ("h", 1))
    assert followed(lagging, led(7, 0, 3)).leader(T0) == ("new", 9)
    there = followed(lagging, led(8, 1, 4))
    assert (there.leader(T0), there.hinted) == (("h", 2), frozenset())
    assert followed(there, led(9, 0, 5)).leader(T0) == ("h", 1)


def test_a_leader_that_was_named_is_not_that_of_a_namesake() -> None:
    hinted = Topology.of(led(5, 0, 3)).with_leaders({T0: LeaderHint(1, 4)}, TWO)
    again = followed(hinted, led(6, 0, 0, topic_id="y"))
    assert (again.leader(T0), again.leader_epoch(T0)) == (("h", 1), 0)
    other = hinted.followed_by(replace(led(7, 0, 0), cluster_id="d"), ("t",))
    assert other is not None
    assert other.leader(T0) == ("h", 1)


def test_the_leaders_that_answers_name_are_found_by_partition() -> None:
    refused = PartitionProduceResponse(1, 6, current_leader_id=1, current_leader_epoch=4)
    produced = ProduceResponse((TopicProduceResponse("t", (PartitionProduceResponse(0, 0), refused)),), TWO)
    assert hints_of(produced) == {T1: LeaderHint(1, 4)}
    fetched = FetchResponse(
        0, (FetchedTopic("t", (FetchedPartition(0, 74, current_leader_id=0, current_leader_epoch=9),)),), TWO
    )
    assert hints_of(fetched) == {T0: LeaderHint(0, 9)}
