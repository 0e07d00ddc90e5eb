"""Where the replicas of new partitions go."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from coordinator.controller.placement import NodeLoad, PlacementError, place, spread


def nodes(*racks: str) -> list[NodeLoad]:
    """Nodes 1, 2, ... without load."""
    return [NodeLoad(node + 1, rack) for node, rack in enumerate(racks)]


def test_replicas_and_preferred_leaders_are_spread() -> None:
    placed = place(nodes("", "", ""), 30, 3, 0)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in placed)
    assert Counter(replicas[0] for replicas in placed) == {1: 10, 2: 10, 3: 10}


def test_topics_of_one_partition_do_not_all_begin_at_one_node() -> None:
    assert [place(nodes("", "", ""), 1, 1, start) for start in range(4)] == [[(1,)], [(2,)], [(3,)], [(1,)]]


def test_the_nodes_with_the_fewest_replicas_come_first() -> None:
    loads = [NodeLoad(1, "", 5, 1), NodeLoad(2, "", 0, 0), NodeLoad(3, "", 4, 3)]
    assert place(loads, 1, 2, 0) == [(2, 3)]
    assert place(loads, 1, 3, 0) == [(2, 1, 3)], "of the three, node 2 leads the fewest, then node 1"


def test_replicas_are_on_different_racks_while_there_are_enough() -> None:
    for start in range(4):
        for replicas in place(nodes("a", "a", "a", "b"), 5, 2, start):
            assert 4 in replicas
        assert all(len(set(replicas)) == 3 for replicas in place(nodes("a", "a", "a", "b"), 5, 3, start))


def test_what_is_given_does_not_change() -> None:
    loads = nodes("", "")
    place(loads, 4, 2, 1)
    assert loads == nodes("", "")


@pytest.mark.parametrize(("living", "asked"), [(0, 1), (2, 3), (2, 0)])
def test_too_few_nodes_are_named(living: int, asked: int) -> None:
    known = {0: "none", 2: "1, 2"}[living]
    with pytest.raises(PlacementError, match=rf"{asked} replicas were asked for, and {living} nodes .* \({known}\)"):
        place(nodes(*[""] * living), 1, asked, 0)
    with pytest.raises(PlacementError, match=rf"{asked} replicas were asked for, and {living} nodes .* \({known}\)"):
        spread(nodes(*[""] * living), (1,), asked)


@pytest.mark.parametrize(
    ("present", "asked", "expected"),
    [((1,), 3, (1, 2, 3)), ((3, 1), 1, (3,)), ((2, 9), 2, (2, 1)), ((9,), 2, (1, 2)), ((1, 2, 3), 3, (1, 2, 3))],
)
def test_replicas_that_are_there_stay_where_they_may(
    present: tuple[int, ...], asked: int, expected: tuple[int, ...]
) -> None:
    assert spread(nodes("", "", ""), present, asked) == expected


def test_a_replica_that_is_added_goes_to_another_rack() -> None:
    assert spread(nodes("a", "a", "b"), (1,), 2) == (1, 3)


def test_load_stays_even_whatever_was_there() -> None:
    random = Random(1)
    for _ in range(200):
        loads = [NodeLoad(node, random.choice(["", "a", "b"])) for node in range(random.randint(3, 8))]
        factor, partitions = random.randint(1, 3), random.randint(1, 60)
        placed = place(loads, partitions, factor, random.randint(0, 100))
        assert len(placed) == partitions
        assert all(len(set(replicas)) == factor for replicas in placed)
        racks = {node.rack or node.node_id for node in loads}
        rack_of = {node.node_id: node.rack or node.node_id for node in loads}
        for replicas in placed:
            assert len({rack_of[node] for node in replicas}) == min(factor, len(racks))
        if all(not node.rack for node in loads):
            counts = Counter(node for replicas in placed for node in replicas)
            assert max(counts.values()) - min(counts[node.node_id] for node in loads) <= 1


def test_a_node_without_room_gets_no_replicas_and_is_named_when_the_others_are_too_few() -> None:
    def loads() -> list[NodeLoad]:
        return [NodeLoad(1, room=2), NodeLoad(2, room=0), NodeLoad(3), NodeLoad(4, room=3)]

    placed = place(loads(), 2, 3, 0)
    assert all(sorted(replicas) == [1, 3, 4] for replicas in placed)
    with pytest.raises(PlacementError, match=r"3 replicas were asked for, and nodes 1, 2 may open no more logs"):
        place(loads(), 3, 3, 0)
    assert len(place(loads(), 5, 1, 0)) == 5
    assert spread(loads(), (1, 2), 2) == (1, 2), "those that have a replica have room for it"
    assert spread(loads(), (1,), 3) == (1, 3, 4)
    with pytest.raises(PlacementError, match=r"4 replicas were asked for, and node 2 may open no more logs"):
        spread(loads(), (1,), 4)
