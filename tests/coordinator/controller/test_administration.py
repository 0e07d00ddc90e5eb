"""Reassignments, elections and nodes that are forgotten: what is refused by name, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from coordinator.controller.administration import Administration, Outcome
from coordinator.metadata.authority import Compare, Operation, Put
from coordinator.metadata.catalog import TopicError
from coordinator.metadata.keys import encode_partition, partition_key, reassignment_key
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.replication.partition import PartitionRegistration
from protocol.errors import ErrorCode
from tests.coordinator.controller.nodes import Node, soon, started
from tests.coordinator.controller.test_runner import FAILOVER_S, leads, stop_all
from tests.coordinator.nodes.members import Etcd, simulate


def of(node: Node) -> Administration:
    return Administration(node.store, node.catalog)


def codes(outcomes: Sequence[Outcome]) -> list[int]:
    return [outcome.code for outcome in outcomes]


def test_targets_that_cannot_be_are_refused_by_name() -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(1, 2)] * 8)
        outcomes = await of(nodes[1]).reassign(
            [
                (("t", 0), (2, 3)),
                (("t", 1), (2, 9)),
                (("t", 2), ()),
                (("t", 3), (2, 2)),
                (("t", 8), (1, 2)),
                (("u", 0), (1, 2)),
                (("t", 4), None),
                (("t", 5), (1, 2)),
            ]
        )
        bad = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        none = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert codes(outcomes) == [0, bad, bad, bad, unknown, unknown, none, 0]
        assert "partition 1 of 't' cannot have replicas on 9: the nodes that accept replicas are 1, 2, 3" in str(
            outcomes
        )
        assert nodes[1].store.get(reassignment_key(topic, 5)) is None, "it is where it is to be"
        fewer = await of(nodes[1]).reassign([(("t", 6), (1,))], may_change_replication_factor=False)
        assert codes(fewer) == [ErrorCode.INVALID_REPLICATION_FACTOR]
        await stop_all(nodes)

    simulate(scenario)


def test_a_reassignment_is_listed_until_it_is_done_or_cancelled() -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(1, 2), (1, 2)])
        admin = of(nodes[0])
        await admin.reassign([(("t", 0), (2, 3)), (("t", 1), (3, 2))])
        await soon(lambda: nodes[0].partition(topic, 1).adding == (3,), 0.2)
        listed = admin.reassignments()
        assert [(entry.partition, entry.replicas, entry.adding, entry.removing) for entry in listed] == [
            (("t", 0), (1, 2), (3,), (1,)),
            (("t", 1), (1, 2), (3,), (1,)),
        ]
        assert [entry.partition for entry in admin.reassignments([("t", 1), ("t", 7)])] == [("t", 1)]
        assert codes(await admin.reassign([(("t", 1), None)])) == [0]
        await soon(lambda: nodes[0].partition(topic, 1).adding == (), 0.2)
        assert [entry.partition for entry in admin.reassignments()] == [("t", 0)]
        await nodes[0].change_in_sync(Random(1))
        await soon(lambda: nodes[0].partition(topic, 0).replicas == (2, 3), 0.5)
        assert admin.reassignments() == []
        await stop_all(nodes)

    simulate(scenario)


def test_preferred_replicas_lead_when_they_are_asked_to_and_may() -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(1, 2), (2, 1), (3, 2)])
        nodes[0].kill()
        await soon(lambda: leads(nodes[1], topic, 0) == 2, FAILOVER_S)
        await nodes[0].start()
        await asyncio.sleep(0.1)
        admin = of(nodes[2])
        late = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert codes(await admin.elect_preferred([("t", 0), ("t", 1), ("u", 0)])) == [
            late,
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        await nodes[1].change_in_sync(Random(1))
        await nodes[2].store.catch_up()
        assert await admin.elect_preferred() == [Outcome(("t", 0))], "the others are led as they are to be"
        assert leads(nodes[2], topic, 0) == 1
        assert await admin.elect_preferred() == []
        await stop_all(nodes)

    simulate(scenario)


def test_an_unclean_election_takes_the_log_that_goes_furthest_where_none_is_in_sync() -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 3)
        topic = await nodes[1].make_topic("t", [(1, 2, 3)] * 3)
        for index in range(2):
            known = nodes[1].partition(topic, index)
            alone = PartitionRegistration((1, 2, 3), known.leader, 0, {1: known.isr[1]}, 1)
            await nodes[1].store.transaction([], [Put(partition_key(topic, index), encode_partition(alone))])
        nodes[0].kill()
        await soon(lambda: leads(nodes[1], topic, 2) == 2, FAILOVER_S)
        await soon(lambda: nodes[1].partition(topic, 0).leader is None, 0.2)
        asked: list[tuple[int, Sequence[int]]] = []

        async def ends(topic_id: str, index: int, of_nodes: Sequence[int]) -> Mapping[int, tuple[int, int]]:
            asked.append((index, of_nodes))
            return {} if index == 1 else {2: (4, 100), 3: (5, 7)}

        admin = Administration(nodes[1].store, nodes[1].catalog, ends)
        outcomes = await admin.elect_unclean([("t", index) for index in range(3)])
        assert codes(outcomes) == [0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, ErrorCode.ELECTION_NOT_NEEDED]
        assert asked == [(0, [2, 3]), (1, [2, 3])]
        known = nodes[1].partition(topic, 0)
        assert (known.leader and known.leader.node, set(known.isr)) == (3, {3})
        nodes[2].kill()
        await soon(lambda: nodes[1].partition(topic, 0).leader is None, FAILOVER_S)
        assert codes(await of(nodes[1]).elect_unclean()) == [0, 0], "only one lives: there is nothing to be asked"
        assert leads(nodes[1], topic, 0) == leads(nodes[1], topic, 1) == 2
        await stop_all(nodes)

    simulate(scenario)


def test_a_node_is_forgotten_once_it_is_dead_and_has_no_replicas() -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(2, 3)])
        admin = of(nodes[0])

        async def refusal(node: int) -> tuple[int, str]:
            with pytest.raises(TopicError) as caught:
                await admin.forget_node(node)
            return caught.value.code, str(caught.value)

        assert await refusal(7) == (ErrorCode.BROKER_ID_NOT_REGISTERED, "there is no node 7")
        assert await refusal(3) == (ErrorCode.INVALID_REQUEST, "node 3 is alive: stop it first")
        nodes[2].kill()
        await soon(lambda: 3 not in nodes[0].catalog.nodes, FAILOVER_S)
        code, text = await refusal(3)
        assert code == ErrorCode.INVALID_REQUEST
        assert text.startswith("node 3 has replicas of 1 partitions: reassign")
        await admin.reassign([(("t", 0), (2, 1))])
        await asyncio.sleep(0.1)
        await nodes[1].change_in_sync(Random(1))
        await soon(lambda: nodes[0].partition(topic, 0).replicas == (2, 1), 0.5)
        assert set(admin.known_nodes()) == {1, 2, 3}
        await admin.forget_node(3)
        assert admin.known_nodes() == {1: "r", 2: "r"}
        await stop_all(nodes)

    simulate(scenario)


def test_answers_that_get_lost_change_nothing_about_the_outcome() -> None:
    async def scenario(etcd: Etcd) -> None:
        nodes = await started(etcd, 3)
        topic = await nodes[0].make_topic("t", [(1, 2)] * 120)
        admin = of(nodes[1])
        transaction = nodes[1].store.transaction
        lost = 0

        async def losing(compare: Sequence[Compare], operations: Sequence[Operation], **rest: int) -> int | None:
            nonlocal lost
            revision = await transaction(compare, operations, **rest)
            lost += 1
            if lost % 3 == 1:
                raise MetadataUnavailableError("no answer", "unknown")
            return revision

        nodes[1].store.transaction = losing  # type: ignore[method-assign]
        wanted = [(("t", index), (1, 3)) for index in range(120)]
        assert codes(await admin.reassign(wanted)) == [0] * 120
        assert lost >= 3
        nodes[1].store.transaction = transaction  # type: ignore[method-assign]
        assert len(nodes[1].catalog.reassignments()) == 120
        assert topic
        await stop_all(nodes)

    simulate(scenario)
