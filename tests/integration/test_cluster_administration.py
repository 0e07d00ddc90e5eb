"""Administering a cluster of three real nodes: nodes, replicas and leaders, through the admin and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from client import Admin, Producer, TopicPartition
from client.errors import (
    BrokerIdNotRegisteredError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentInProgressError,
)
from coordinator.cluster import Cluster
from coordinator.metadata.authority import Compare, KeyValue, Operation
from coordinator.metadata.store import MetadataUnavailableError
from tests.integration import cohort_command

T0 = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=3, log_level="error", leader_rebalance="no") as running:
        yield running


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.1)


async def cohort(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Exit status and what a command printed; in a thread, as the nodes are on this loop."""
    done = await asyncio.to_thread(cohort_command.cohort, *words, address=cluster.addresses[0])
    return done.returncode, done.stdout, done.stderr


async def in_sync(admin: Admin, topic: str, replicas: int) -> bool:
    described = (await admin.describe_topics(topic))[topic]
    return all(len(each.in_sync_replicas) == len(each.replicas) == replicas for each in described.partitions)


async def test_the_nodes_of_a_cluster_are_described_and_those_that_are_gone_too(cluster: Cluster) -> None:
    async with Admin(cluster.address) as admin:
        described = await admin.describe_cluster()
        assert [node.node_id for node in described.nodes] == [0, 1, 2]
        assert sorted(f"{node.host}:{node.port}" for node in described.nodes) == sorted(cluster.addresses)
        assert described.controller_id in (0, 1, 2)
        assert described.absent_nodes == ()
        with pytest.raises(InvalidRequestError, match="node 2 is alive"):
            await admin.remove_node(2)
        with pytest.raises(BrokerIdNotRegisteredError):
            await admin.remove_node(17)
        await cluster.kill(2)

        async def noticed() -> bool:
            return [node.node_id for node in (await admin.describe_cluster()).absent_nodes] == [2]

        await until(noticed)
    status, printed, _ = await cohort(cluster, "cluster", "describe")
    assert status == 0
    assert "absent" in printed
    assert "do not stop a node now: node 2 is absent" in printed


async def test_a_node_that_is_dead_is_drained_and_removed_with_its_notes_of_deleted_topics() -> None:
    async with (
        Cluster(nodes=4, log_level="error", node_session_ms=2_000) as cluster,
        Admin(cluster.addresses[0]) as admin,
    ):
        await admin.create_topics({"t": 4}, replication_factor=2)

        async def made_on_all() -> bool:
            """Not while a node, on a busy machine, has not registered yet or its session has ended."""
            try:
                await admin.create_topics({"gone": 2}, replication_factor=4)
            except InvalidReplicationFactorError:
                return False
            return True

        await until(made_on_all)
        await admin.reassign_partitions({T0: [3, 0]})
        await until(lambda: in_sync(admin, "t", 2))
        async with Producer(cluster.addresses[0], acks="all") as producer:
            await producer.send_many("t", [b"%d" % number for number in range(100)])
        before = {partition: log.end for partition, log in (await admin.describe_logs("t")).items()}
        await cluster.kill(3)

        async def noticed() -> bool:
            return [node.node_id for node in (await admin.describe_cluster()).absent_nodes] == [3]

        await until(noticed)
        await admin.delete_topics("gone")
        with pytest.raises(InvalidRequestError, match=r"node 3 has replicas of .* reassign them to other nodes first"):
            await admin.remove_node(3)
        status, printed, said = await cohort(cluster, "topics", "reassign", "--drain-node", "3")
        assert (status, said) == (0, "")
        assert "t " in printed

        async def moved() -> bool:
            return await admin.list_reassignments() == {}

        await until(moved)
        described = (await admin.describe_topics("t"))["t"]
        assert all(3 not in each.replicas and len(each.replicas) == 2 for each in described.partitions)
        await until(lambda: in_sync(admin, "t", 2))
        assert {partition: log.end for partition, log in (await admin.describe_logs("t")).items()} == before
        assert await admin.drain_node(3) == {}
        assert [note.value["nodes"] for note in notes(cluster)] == [[3]]
        lost = lose_one_answer(cluster)
        assert (await cohort(cluster, "cluster", "remove-node", "3"))[0] == 0
        assert lost == ["deleting"], "the second attempt finds all done"
        assert notes(cluster) == []
        assert (await admin.describe_cluster()).absent_nodes == ()
        with pytest.raises(BrokerIdNotRegisteredError, match=r"there is no node 3; the nodes are \[0, 1, 2\]"):
            await admin.drain_node(3)


def lose_one_answer(cluster: Cluster) -> list[str]:
    """The next change of a note of a deleted topic is carried out, and its answer gets lost; the list tells that it did."""
    lost: list[str] = []
    for store in filter(None, (node._store for node in cluster._nodes)):

        async def losing(
            compare: Sequence[Compare], operations: Sequence[Operation], carry_out: Any = store.transaction, **rest: int
        ) -> int | None:
            revision: int | None = await carry_out(compare, operations, **rest)
            if not lost and any(condition.key.startswith("deleting/") for condition in compare):
                lost.append("deleting")
                raise MetadataUnavailableError("no answer", "unknown")
            return revision

        store.transaction = losing  # type: ignore[method-assign]
    return lost


def notes(cluster: Cluster) -> Sequence[KeyValue]:
    """Of deleted topics, as the first node knows them: those whose logs some node has still to remove."""
    store = cluster._nodes[0]._store
    assert store is not None
    return store.range("deleting/")


async def test_topics_are_kept_on_as_many_nodes_as_asked_for_and_moved_while_they_are_in_use(cluster: Cluster) -> None:
    async with Admin(cluster.address) as admin:
        await admin.create_topics({"t": 4}, replication_factor=1)
        with pytest.raises(InvalidReplicationFactorError):
            await admin.create_topics({"wide": 1}, replication_factor=4)
        async with Producer(cluster.address) as producer:
            await producer.send_many("t", [b"%d" % number for number in range(400)])
        changed = await admin.set_replication_factor("t", 3)
        assert sorted(partition.partition for partition in changed) == [0, 1, 2, 3]
        await until(lambda: in_sync(admin, "t", 3))
        assert await admin.set_replication_factor("t", 3) == {}
        replicas = await admin.describe_replicas("t")
        assert {len(copies) for copies in replicas.values()} == {3}
        assert sum(copies[0].end for copies in replicas.values()) == 400
        assert {copy.lag for copies in replicas.values() for copy in copies} == {0}
        await admin.reassign_partitions({T0: [1, 2]})

        async def moved() -> bool:
            partition = (await admin.describe_topics("t"))["t"].partitions[0]
            return partition.replicas == (1, 2) and partition.leader in (1, 2)

        await until(moved)
        assert await admin.list_reassignments() == {}
        logs = await admin.describe_logs("t")
        assert sum(found.end for found in logs.values()) == 400
        with pytest.raises(InvalidReplicaAssignmentError, match="t-0"):
            await admin.reassign_partitions({T0: [1, 9]})
        with pytest.raises(NoReassignmentInProgressError, match="t-0"):
            await admin.reassign_partitions({T0: None})


async def test_partitions_get_their_preferred_leaders_back_when_that_is_asked_for(cluster: Cluster) -> None:
    async with Admin(cluster.address) as admin:
        await admin.create_topics({"t": 6})
        await cluster.stop(0)

        async def led_by_others() -> bool:
            described = (await admin.describe_topics("t"))["t"]
            return all(each.leader in (1, 2) for each in described.partitions)

        await until(led_by_others)
        await cluster.start(0)
        await until(lambda: in_sync(admin, "t", 3))
        elected = await admin.elect_leaders()
        assert {partition.partition for partition in elected if partition.topic == "t"} == {
            each.partition for each in (await admin.describe_topics("t"))["t"].partitions if each.replicas[0] == 0
        }
        assert await admin.elect_leaders() == []
        assert await admin.delete_records({TopicPartition("t", index): 0 for index in range(6)}) == {
            TopicPartition("t", index): 0 for index in range(6)
        }


async def test_the_command_line_moves_partitions_and_elects_leaders(cluster: Cluster) -> None:
    assert (await cohort(cluster, "topics", "create", "t", "--partitions", "2", "--replication-factor", "2"))[0] == 0
    status, printed, _ = await cohort(cluster, "topics", "reassign", "t", "--replicas", "2,1,0")
    assert status == 0
    assert printed.count("[2, 1, 0]") == 2
    async with Admin(cluster.address) as admin:
        await until(lambda: in_sync(admin, "t", 3))
    assert "nothing is being moved" in (await cohort(cluster, "topics", "reassign", "--status"))[1]
    status, printed, _ = await cohort(cluster, "topics", "elect-leaders", "t")
    assert status == 0
    status, _, said = await cohort(cluster, "topics", "reassign", "--drain-node", "1")
    assert status == 1
    assert "no other node is there for the one on node 1" in said
    status, _, said = await cohort(cluster, "topics", "reassign", "--drain-node", "7")
    assert (status, "there is no node 7; the nodes are [0, 1, 2]" in said) == (1, True)
    status, _, said = await cohort(cluster, "topics", "elect-leaders", "t", "--unclean")
    assert (status, "--partition" in said) == (1, True)
    status, _, said = await cohort(cluster, "cluster", "remove-node", "0")
    assert (status, "node 0 is alive" in said) == (1, True)
    status, printed, _ = await cohort(cluster, "cluster", "describe")
    assert status == 0
    assert "every replica is in sync: a node may be restarted" in printed


async def test_nodes_say_how_many_replicas_they_may_still_be_given() -> None:
    async with Cluster(nodes=3, max_partitions=10) as cluster, Admin(cluster.address) as admin:
        assert {node.room for node in (await admin.describe_cluster()).nodes} == {10}
        await admin.create_topics({"t": 4})
        assert {node.room for node in (await admin.describe_cluster()).nodes} == {6}
        await admin.create_topics({"u": 6})
        status, printed, _ = await cohort(cluster, "cluster", "describe")
        assert status == 0
        assert "ROOM" in printed.splitlines()[2]
        assert {node.room for node in (await admin.describe_cluster()).nodes} == {0}
