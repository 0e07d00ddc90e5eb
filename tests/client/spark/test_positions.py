"""Offsets as Spark keeps them: equal positions give equal text."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.spark.positions import Positions
from protocol.subscription import TopicPartition

offsets = st.dictionaries(
    st.builds(TopicPartition, st.text(st.characters(categories=["Ll"]), min_size=1, max_size=5), st.integers(0, 200)),
    st.integers(0, 2**63 - 1),
)


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


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    known = {TopicPartition("t", number): number for number in (10, 9, 2)}
    assert list(Positions(known).to_json()["t"]) == ["2", "9", "10"]


def test_what_kafkas_source_wrote_is_understood() -> None:
    assert Positions.from_json({"t": {"0": 5}}) == Positions({TopicPartition("t", 0): 5})


@pytest.mark.parametrize(
    "damaged", [{"t": 5}, {"t": {"x": 5}}, {"$cohort": {"v": 2}}, {"$cohort": 3}, {"t": {"0": None}}]
)
def test_what_is_something_else_is_refused(damaged: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="offsets of another source, or damaged"):
        Positions.from_json(damaged)
