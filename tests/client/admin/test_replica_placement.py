"""Where replicas go when their number changes or a node is drained."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.admin.replica_placement import with_replication_factor, without_node
from client.errors import InvalidReplicationFactorError
from protocol.subscription import TopicPartition

NODES: dict[int, str | None] = {1: None, 2: None, 3: None, 4: None}


def partitions(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", index): each for index, each in enumerate(replicas)}


def load(placement: dict[TopicPartition, tuple[int, ...]]) -> Counter[int]:
    return Counter(node for replicas in placement.values() for node in replicas)


def test_what_is_there_stays_and_new_replicas_go_where_there_are_fewest() -> None:
    before = partitions((1,), (2,), (1, 2, 3))
    assert with_replication_factor(before, 3, NODES, load(before)) == partitions((1, 4, 3), (2, 4, 1))


def test_of_too_many_replicas_those_that_are_gone_go_first_and_then_the_last() -> None:
    before = partitions((9, 1, 2), (1, 2, 3))
    assert with_replication_factor(before, 2, NODES, load(before)) == partitions((1, 2), (1, 2))


def test_other_racks_come_before_fewer_replicas() -> None:
    nodes = {1: "a", 2: "a", 3: "b"}
    busy = Counter({1: 1, 2: 0, 3: 100})
    assert with_replication_factor(partitions((1,)), 2, nodes, busy) == partitions((1, 3))


def test_too_few_nodes_are_named() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="t-0 cannot have 5 replicas: nodes 1, 2, 3, 4 live"):
        with_replication_factor(partitions((1, 2)), 5, NODES, Counter())


def test_a_drained_node_is_replaced_in_its_place() -> None:
    before = partitions((1, 2, 3), (2, 3), (3, 1))
    drained = without_node(before, 1, NODES, load(before))
    assert drained == {TopicPartition("t", 0): (4, 2, 3), TopicPartition("t", 2): (3, 4)}


def test_a_node_that_no_other_can_stand_in_for_is_not_drained() -> None:
    nodes = {1: None, 2: None, 3: None}
    with pytest.raises(InvalidReplicationFactorError, match="t-0 has its 3 replicas on nodes 1, 2, 3, and no other"):
        without_node(partitions((1, 2, 3)), 1, nodes, Counter())


@given(
    st.lists(st.permutations([1, 2, 3, 4]).map(tuple), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.sampled_from(["a", "b", None]), min_size=4, max_size=4),
)
def test_no_node_has_a_partition_twice_and_no_replica_moves_without_need(
    orders: list[tuple[int, ...]], before: int, factor: int, racks: list[str | None]
) -> None:
    placement = partitions(*(order[:before] for order in orders))
    nodes = dict(zip(NODES, racks, strict=True))
    changed = with_replication_factor(placement, factor, nodes, load(placement))
    assert (changed == {}) == (before == factor)
    for partition, replicas in changed.items():
        assert len(set(replicas)) == len(replicas) == factor
        kept = min(before, factor)
        assert replicas[:kept] == placement[partition][:kept]
