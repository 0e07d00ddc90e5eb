"""Offsets as Spark keeps them: equal positions give equal text."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.spark.errors import CheckpointError
from client.spark.positions import Positions
from protocol.subscription import TopicPartition

offsets = st.dictionaries(
    st.builds(TopicPartition, st.text(st.characters(categories=["Ll"]), min_size=1, max_size=5), st.integers(0, 200)),
    st.integers(0, 2**63 - 1),
)


@settings(deadline=None)
@given(offsets, st.randoms(use_true_random=False))
def test_equal_positions_give_equal_text_and_come_back(known: dict[TopicPartition, int], random: Random) -> None:
    ids = {partition.topic: f"id-{partition.topic}" for partition in known}
    shuffled = list(known.items())
    random.shuffle(shuffled)
    first = json.dumps(Positions(known, ids, "c").to_json())
    assert first == json.dumps(Positions(dict(shuffled), dict(reversed(ids.items())), "c").to_json())
    back = Positions.from_json(json.loads(first))
    assert (back.offsets, back.ids, back.cluster_id) == (known, ids, "c")
    assert json.dumps(back.to_json()) == first


def test_leader_epochs_are_kept_where_they_are_known_and_tell_of_their_own_position_only() -> None:
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    positions = Positions({one: 5, two: 7}, {"t": "id"}, "c", epochs={one: 3})
    back = Positions.from_json(json.loads(json.dumps(positions.to_json())))
    assert back == positions
    assert back.epoch_at(one, 5, "id") == 3
    assert [back.epoch_at(one, 4, "id"), back.epoch_at(one, 5, "another"), back.epoch_at(two, 7, "id")] == [-1, -1, -1]
    assert "epochs" not in Positions({one: 5}).to_json()["$cohort"], "what has no replicas is kept as it was"
    assert Positions.from_json({"$cohort": KNOWN, "t": {"0": 5}}).epochs == {}


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    known = {TopicPartition("t", number): number for number in (10, 9, 2)}
    assert list(Positions(known).to_json()["t"]) == ["2", "9", "10"]


KNOWN = {"v": 1, "ids": {}, "cluster": "c"}


def test_offsets_of_sparks_kafka_source_are_refused_with_what_to_do() -> None:
    """They are numbers of records in another log: read as Cohort's they would skip records or repeat them."""
    with pytest.raises(
        CheckpointError, match=r"Spark's Kafka source writes: .*\"t\": .*new checkpointLocation.*starting"
    ):
        Positions.from_json({"t": {"0": 5}})


@pytest.mark.parametrize("foreign", [{}, {"offset": 5}, {"t": {"x": 5}}, {"t": {"0": None}}, {"logOffset": {"a": {}}}])
def test_offsets_of_any_other_source_are_refused(foreign: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="of another source than Cohort's"):
        Positions.from_json(foreign)


def test_offsets_of_a_later_release_are_refused() -> None:
    with pytest.raises(CheckpointError, match="version 2, which a later release of Cohort wrote"):
        Positions.from_json({"$cohort": {"v": 2}, "t": {"0": 5}})


@pytest.mark.parametrize(
    "damaged",
    [
        {"$cohort": 3},
        {"$cohort": {}},
        {"$cohort": {"v": None}},
        {"$cohort": KNOWN, "t": 5},
        {"$cohort": KNOWN, "t": {"x": 5}},
        {"$cohort": KNOWN, "t": {"0": None}},
        {"$cohort": KNOWN | {"ids": 7}},
    ],
)
def test_what_is_damaged_is_refused(damaged: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="the offsets in the checkpoint are damaged"):
        Positions.from_json(damaged)


def test_a_long_checkpoint_is_shown_in_part() -> None:
    with pytest.raises(CheckpointError) as caught:
        Positions.from_json({f"topic-{number}": {"0": number} for number in range(500)})
    assert len(str(caught.value)) < 700
