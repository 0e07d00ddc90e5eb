"""Transactions whose coordinator and partitions are on different nodes, and coordinators that move in the middle of one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from coordinator import marker_delivery, open_lookup
from coordinator.metadata.authority import Delete, Put
from coordinator.metadata.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coordinator.metadata.keys import encode_state, partition_key, topic_key
from coordinator.metadata.partitions import NO_LEADER
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.participants import ANSWER_TIMEOUT_S
from coordinator.runtime.shard import ShardState
from coordinator.server.call import Call, Handler
from coordinator.server.handlers import find_coordinator, init_producer_id, offset_commit, offset_fetch
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    MarkerTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.coordinator.transaction_cluster import (
    GROUP_PARTITION,
    TRANSACTION_PARTITION,
    ClusterNode,
    TransactionCluster,
    transaction_cluster,
)
from tests.coordinator.transaction_node import Question

GROUP = "g"


async def written(
    node: ClusterNode, identity: tuple[int, int], topic: str, partition: int = 0, sequence: int = 0
) -> None:
    await node.wrote(identity, topic, partition, sequence, value=topic.encode())


async def readable(node: ClusterNode, topic: str, partition: int = 0) -> list[bytes]:
    async with asyncio.timeout(30):
        while node.log(topic, partition).last_stable_offset < node.log(topic, partition).end_offset:
            await asyncio.sleep(0.001)
    return await node.committed(topic, partition)


async def test_a_transaction_of_partitions_on_two_nodes_is_readable_on_both(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("near", [0])
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        await written(cluster[0], identity, "near")
        await written(cluster[1], identity, "far")
        await written(cluster[1], identity, "far", sequence=1)
        assert cluster[1].log("far").last_stable_offset == 0
        described = cluster[0].described()
        assert {topic.name for member in described.members for topic in member.topics} == {"near", "far"}
        identity = await cluster[0].end(identity, committed=True)
        assert await readable(cluster[0], "near") == [b"near"]
        assert await readable(cluster[1], "far") == [b"far", b"far"]
        await cluster[0].until_state("CompleteCommit")
        await written(cluster[1], identity, "far")  # carried: nothing is written for it
        await cluster[0].end(identity, committed=False)
        assert await readable(cluster[1], "far") == [b"far", b"far"]
        assert await readable(cluster[0], "near") == [b"near"]
        await cluster[0].until_state("CompleteAbort")


async def test_a_coordinator_that_has_no_leader_for_a_while_is_looked_for_until_it_has(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, NO_LEADER)
        assert cluster[0].transactions.shard("t") is None
        writing = cluster[1].write(identity, "far")
        await asyncio.sleep(0.2)
        assert not writing.done()
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, 0, copied_from=0)
        async with asyncio.timeout(5):
            assert await writing == (ErrorCode.NONE, "0")
        assert cluster[0].shard().leader_epoch == 2


async def test_a_node_that_stopped_is_not_waited_for_once_the_coordinator_has_moved(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path, nodes=3) as cluster:
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        shard = cluster[0].shard()
        shard.submit = lambda *anything: None  # type: ignore[method-assign]
        writing = cluster[1].write(identity, "far")
        await asyncio.sleep(0.1)
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, 2)
        async with asyncio.timeout(6):
            assert await writing == (ErrorCode.NONE, "0")
        assert cluster[2].described().state == "Ongoing"


async def test_a_coordinator_that_moves_again_while_a_wait_for_it_ends(tmp_path: Path) -> None:
    """Two changes of the metadata in a row: the wait that the first has ended must not be ended once more."""
    async with transaction_cluster(tmp_path, nodes=3) as cluster:
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        cluster[0].shard().submit = lambda *anything: None  # type: ignore[method-assign]
        writing = cluster[1].write(identity, "far")
        await asyncio.sleep(0.1)
        elsewhere = cluster[1].transactions._elsewhere
        assert elsewhere is not None
        assert elsewhere._attempts
        found, elsewhere._leader_of = elsewhere._leader_of, lambda name: 2
        elsewhere.moved()
        await asyncio.sleep(0)
        assert all(attempt.expired() for attempt in elsewhere._attempts)
        elsewhere.moved()
        elsewhere._leader_of = found
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, 2)
        async with asyncio.timeout(6):
            assert await writing == (ErrorCode.NONE, "0")


async def test_a_write_is_refused_when_its_coordinator_is_not_found_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.remote_coordinators.ASK_S", 0.2)
    assert ANSWER_TIMEOUT_S > 0.2
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, NO_LEADER)
        code, text = await cluster[1].write(identity, "far")
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "has no leader at the moment" in text


@pytest.mark.parametrize("committed", [True, False])
async def test_the_next_coordinator_completes_a_transaction_whose_markers_were_not_sent(
    tmp_path: Path, committed: bool
) -> None:
    async with transaction_cluster(tmp_path, nodes=3) as cluster:
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        await written(cluster[1], identity, "far")
        await cluster.elect("far", 0, NO_LEADER)
        following = await cluster[0].end(identity, committed=committed)
        await cluster[0].until_state("PrepareCommit" if committed else "PrepareAbort")
        first = cluster[0].shard()
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, 2)
        assert first.state is ShardState.RESIGNED
        await cluster.kill(0)
        await cluster.elect("far", 0, 1, copied_from=1)
        assert await readable(cluster[1], "far") == ([b"far"] if committed else [])
        await cluster[2].until_state("CompleteCommit" if committed else "CompleteAbort")
        await written(cluster[1], following, "far")
        await cluster[2].end(following, committed=True)
        assert len(await readable(cluster[1], "far")) == 1 + committed


async def test_markers_follow_a_partition_whose_leader_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_delivery, "RETRY_S", 60.0)
    async with transaction_cluster(tmp_path, nodes=3) as cluster:
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        await written(cluster[1], identity, "far")
        await cluster[1].log("far").flush()
        await cluster.elect("far", 0, NO_LEADER)
        await cluster[0].end(identity, committed=True)
        await cluster[0].until(lambda: bool(cluster[0].transactions._delivery._pauses))
        store, follow = cluster[0].store, cluster[0].store.follow
        store.follow = lambda: None  # type: ignore[method-assign]  # it hears of the election when the leader serves
        await cluster.elect("far", 0, 2, copied_from=1, by=1)
        store.follow = follow  # type: ignore[method-assign]
        store.follow()
        async with asyncio.timeout(20):
            assert await readable(cluster[2], "far") == [b"far"]


async def test_a_former_leader_does_not_say_that_a_transaction_has_ended_where_it_does_not_lead(tmp_path: Path) -> None:
    """It has not heard of the next leader, in whose log the transaction is open."""
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        node = cluster[1]
        topic = node.catalog.topics["far"]
        state = encode_state(cluster._led_by(0, 5))
        deaf = node.store
        deaf.follow = lambda: None  # type: ignore[method-assign]  # until it asks
        await cluster[0].store.transaction([], [Put(partition_key(topic.topic_id, 0), state)])
        await asyncio.sleep(0.01)
        assert node.catalog.topics["far"].partitions[0].leader == 1, "it does not know"
        answer = await answered(
            cluster,
            WriteTxnMarkersRequest((TransactionMarker(7, 0, True, 1, (MarkerTopic(topic.topic_id, (0,)),), 3),)),
        )
        (partition,) = answer.markers[0].topics[0].partitions
        assert partition.error_code != ErrorCode.NONE
        assert "does not lead far-0 any more" in partition.error_message


async def answered(cluster: TransactionCluster, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """What node 1 answers to node 0."""
    connection = await cluster[0].peers.connect(1, "test")
    return await connection.request(request, WriteTxnMarkersResponse, timeout_s=10)


async def test_markers_of_a_former_coordinator_are_refused(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        await cluster.elect(TRANSACTIONS_TOPIC, 3, 0)
        topics = (MarkerTopic("id-far", (0,)),)
        for epoch, code in ((0, ErrorCode.TRANSACTION_COORDINATOR_FENCED), (1, ErrorCode.NONE), (2, ErrorCode.NONE)):
            marker = TransactionMarker(7, 0, True, epoch, topics, 3)
            answer = await answered(cluster, WriteTxnMarkersRequest((marker,)))
            assert answer.markers[0].topics[0].partitions[0].error_code == code
        marker = TransactionMarker(7, 0, True, 0, topics)
        answer = await answered(cluster, WriteTxnMarkersRequest((marker,)))
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE, (
            "an administrator is no coordinator"
        )
        await cluster.elect("far", 0, 0)
        answer = await answered(cluster, WriteTxnMarkersRequest((marker,)))
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_after_a_move_the_leaders_say_whether_carried_partitions_were_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_lookup, "FIRST_PAUSE_S", 0.01)
    async with transaction_cluster(tmp_path, nodes=3) as cluster:
        await cluster.create("far", [1, 2])
        identity = await cluster[0].init()
        for partition in (0, 1):
            await written(cluster[partition + 1], identity, "far", partition)
        identity = await cluster[0].end(identity, committed=True)
        await cluster[0].until_state("CompleteCommit")
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, 2)
        await cluster[2].until(lambda: is_carried(cluster[2]))
        await written(cluster[1], identity, "far", 0)
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, 1)
        await cluster[1].until(lambda: cluster[1].shard().state is ShardState.ACTIVE)
        await asyncio.sleep(0.1)
        assert not is_carried(cluster[1]), "it is open in one of them"
        await cluster[1].end(identity, committed=True)
        assert len(await readable(cluster[1], "far", 0)) == 2
        assert len(await readable(cluster[2], "far", 1)) == 1


def is_carried(node: ClusterNode) -> bool:
    """Whether the coordinator knows that the transaction is open in none of the partitions that are carried."""
    state = node.shard().core.transactions.get("t")
    return state is not None and state.carried


class Asked:
    """A call of a client, as far as a handler of one answer needs it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.response: Response | None = None

    def answer(self, response: Response) -> None:
        assert self.response is None
        self.response = response


class AskedOnce(Asked):
    """One that is answered by a task."""

    open = True
    on_abandon: object = None
    client_id = "client"
    of_kafka = False

    class connection:  # noqa: N801
        host, number, software = "127.0.0.1", 1, ""


def found(node: ClusterNode, key: str, key_type: int) -> FindCoordinatorResponse:
    asked = Asked(FindCoordinatorRequest(key, key_type))
    find_coordinator.handler(node.server_node)(cast("Call", asked))
    assert isinstance(asked.response, FindCoordinatorResponse)
    return asked.response


async def test_every_node_names_the_leader_of_the_partition_as_the_coordinator(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        for node in cluster.nodes.values():
            response = found(node, GROUP, 0)
            assert (response.error_code, response.node_id, response.port) == (ErrorCode.NONE, 1, 9001)
            assert found(node, "t", 1).node_id == 0
        await cluster.elect(OFFSETS_TOPIC, GROUP_PARTITION, 0)
        assert [found(node, GROUP, 0).node_id for node in cluster.nodes.values()] == [0, 0]
        await cluster.elect(OFFSETS_TOPIC, GROUP_PARTITION, NO_LEADER)
        response = found(cluster[0], GROUP, 0)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "has no leader" in response.error_message
        assert found(cluster[0], "", 0).error_code == ErrorCode.INVALID_GROUP_ID


class Client:
    """A member of the group, which asks the node that leads its partition."""

    def __init__(self, cluster: TransactionCluster) -> None:
        self.cluster = cluster

    async def ask(self, node_id: int, request: Request) -> Response:
        groups = self.cluster[node_id].groups
        await self.cluster[node_id].until(lambda: groups.shard(GROUP) is not None)
        await groups.wait_loaded()
        shard, question = groups.shard(GROUP), Question(request)
        assert shard is not None
        shard.submit(request, RequestContext(groups.replies.open(question), "client", "127.0.0.1"))
        async with asyncio.timeout(30):
            return await question.answered

    async def join(self, node_id: int, member_id: str = "") -> JoinGroupResponse:
        request = JoinGroupRequest(
            GROUP, 10_000, 10_000, member_id, None, "consumer", (JoinGroupProtocol("range", b""),)
        )
        response = cast("JoinGroupResponse", await self.ask(node_id, request))
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join(node_id, response.member_id)
        return response

    async def commit(self, node_id: int, joined: JoinGroupResponse, offset: int) -> int:
        topics = (OffsetCommitTopic("far", (OffsetCommitPartition(0, offset),)),)
        request = OffsetCommitRequest(GROUP, joined.generation_id, joined.member_id, None, topics)
        response = cast("OffsetCommitResponse", await self.ask(node_id, request))
        return response.topics[0].partitions[0].error_code

    async def committed(self, node_id: int) -> int:
        response = cast("OffsetFetchResponse", await self.ask(node_id, OffsetFetchRequest(GROUP, None)))
        return response.topics[0].partitions[0].committed_offset

    async def heartbeat(self, node_id: int, joined: JoinGroupResponse) -> int:
        request = HeartbeatRequest(GROUP, joined.generation_id, joined.member_id, None)
        return cast("HeartbeatResponse", await self.ask(node_id, request)).error_code


async def test_a_group_goes_on_at_another_node_without_a_rebalance(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        client = Client(cluster)
        joined = await client.join(1)
        assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
        assignments = (SyncGroupAssignment(joined.member_id, b"mine"),)
        sync = SyncGroupRequest(GROUP, 1, joined.member_id, None, "consumer", "range", assignments)
        assert cast("SyncGroupResponse", await client.ask(1, sync)).error_code == ErrorCode.NONE
        assert await client.commit(1, joined, 42) == ErrorCode.NONE
        former = cluster[1].groups.shard(GROUP)
        await cluster.elect(OFFSETS_TOPIC, GROUP_PARTITION, 0)
        assert former is not None
        assert former.state is ShardState.RESIGNED
        assert await client.heartbeat(0, joined) == ErrorCode.NONE, "its session began anew"
        assert await client.committed(0) == 42
        assert await client.commit(0, joined, 43) == ErrorCode.NONE
        shard = cluster[0].groups.shard(GROUP)
        assert shard is not None
        group = shard.core.groups[GROUP]
        assert (group.generation, list(group.members)) == (1, [joined.member_id])
        await cluster.kill(1)
        again = await client.join(0, joined.member_id)
        assert again.generation_id == 2, "no generation is handed out twice"
        assert await client.committed(0) == 43


async def test_the_offsets_of_a_topic_that_another_node_deletes_go(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        await cluster.create("near", [0])
        client = Client(cluster)
        joined = await client.join(1)
        sync = SyncGroupRequest(GROUP, 1, joined.member_id, None, "consumer", "range")
        assert cast("SyncGroupResponse", await client.ask(1, sync)).error_code == ErrorCode.NONE
        assert await client.commit(1, joined, 42) == ErrorCode.NONE
        shard = cluster[1].groups.shard(GROUP)
        assert shard is not None
        await cluster[0].catalog.begin_deletion(cluster[0].catalog.topics["near"])
        await cluster.settled()
        assert list(shard.core.groups[GROUP].offsets) == ["far"], "of another topic they stay"
        await cluster[0].catalog.begin_deletion(cluster[0].catalog.topics["far"])
        await cluster[1].until(lambda: not shard.core.groups[GROUP].offsets)


async def test_a_producer_id_that_another_node_has_given_out_is_known_when_it_is_asked_for(tmp_path: Path) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        given = await cluster[0].server_node.producer_ids.take()
        store = cluster[1].store
        assert store.get("producer-ids") is None, "this node has not heard of it yet"
        handle = init_producer_id.handler(cluster[1].server_node)
        asked = AskedOnce(InitProducerIdRequest(None, 0, given, 3))
        handle(cast("Call", asked))
        await cluster[1].until(lambda: asked.response is not None)
        assert asked.response == InitProducerIdResponse(ErrorCode.NONE, given, 4)
        unknown = AskedOnce(InitProducerIdRequest(None, 0, given + 5_000_000, 3))
        handle(cast("Call", unknown))
        await cluster[1].until(lambda: unknown.response is not None)
        assert cast("InitProducerIdResponse", unknown.response).error_code == ErrorCode.INVALID_REQUEST


async def asked(node: ClusterNode, handle: Handler, request: Request) -> Response:
    """What a handler of a node answers."""
    call = AskedOnce(request)
    handle(cast("Call", call))
    await node.until(lambda: call.response is not None)
    assert call.response is not None
    return call.response


async def test_offsets_are_of_the_topic_that_the_client_knows_however_old_the_picture_of_the_coordinator_is(
    tmp_path: Path,
) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        node, request = cluster[1], OffsetFetchRequest(GROUP, (OffsetFetchTopic("far", (0,)),))
        fetch, commit = offset_fetch.handler(node.server_node), offset_commit.handler(node.server_node)

        async def fetched() -> int:
            response = cast("OffsetFetchResponse", await asked(node, fetch, request))
            return response.topics[0].partitions[0].committed_offset

        async def commits(offset: int, topic_id: str) -> int:
            topics = (OffsetCommitTopic("far", (OffsetCommitPartition(0, offset),), topic_id),)
            response = await asked(node, commit, OffsetCommitRequest(GROUP, -1, "", None, topics))
            return cast("OffsetCommitResponse", response).topics[0].partitions[0].error_code

        assert await commits(14, "id-far") == ErrorCode.NONE
        assert await fetched() == 14
        node.store.follow = lambda: None  # type: ignore[method-assign]  # it hears of nothing until it asks
        await cluster[0].catalog.begin_deletion(cluster[0].catalog.topics["far"])
        partition = Put(partition_key("again", 0), encode_state(cluster._led_by(1, 0)))
        again = Put(topic_key("far"), {"id": "again", "config": {}})
        await cluster[0].store.transaction([], [partition, again])
        await asyncio.sleep(0.01)
        assert node.catalog.topics["far"].topic_id == "id-far"
        assert await commits(3, "again") == ErrorCode.NONE
        assert await fetched() == 3
        assert await commits(15, "id-far") != ErrorCode.NONE
        await cluster[0].store.transaction([], [Delete(topic_key("far"))])
        assert await fetched() == -1
        await cluster.elect(OFFSETS_TOPIC, GROUP_PARTITION, NO_LEADER)
        refused = cast("OffsetFetchResponse", await asked(node, fetch, request))
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "it does not know that it is none any more"


async def test_a_write_that_waits_for_its_coordinator_is_refused_when_another_node_leads_its_partition(
    tmp_path: Path,
) -> None:
    async with transaction_cluster(tmp_path) as cluster:
        await cluster.create("far", [1])
        identity = await cluster[0].init()
        await cluster.elect(TRANSACTIONS_TOPIC, TRANSACTION_PARTITION, NO_LEADER)
        writing = cluster[1].write(identity, "far")
        await asyncio.sleep(0.05)
        assert not writing.done()
        await cluster.elect("far", 0, 0)
        async with asyncio.timeout(5):
            code, text = await writing
        assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert text == "far-0 is not led by this node any more"
