"""The leader's side of ReplicaFetch, asked by hand over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.log.producer_snapshots import decode_snapshot
from coordinator.metadata.authority import DeletePrefix, Put
from coordinator.metadata.keys import live_key, topic_key
from coordinator.replication import serving
from coordinator.replication.fetch import FetchError, FetchPartition
from coordinator.replication.partition import Incarnation
from coordinator.server.peers.client import PeerConnection, Peers
from protocol.messages.replication import (
    FetchedReplica,
    ForgottenReplicas,
    PeerErrorCode,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchTopic,
)
from protocol.record_batch import encode_batch, iter_batches, read_header
from tests.coordinator.replication.nodes import (
    TOPIC_ID,
    ReplicaCluster,
    ReplicaNode,
    replica_cluster,
    until,
)
from tests.coordinator.server.peers.nodes import CLUSTER, Member

AT_START = (0, -1, 0)
"""Offset, last epoch and log start of a follower that has nothing."""


class Follower:
    """Node 2: a live key, and a connection to node 1 on which a test asks what it likes."""

    def __init__(self, cluster: ReplicaCluster, leader: ReplicaNode, connection: PeerConnection, peers: Peers) -> None:
        self.cluster = cluster
        self.leader = leader
        self.connection = connection
        self.peers = peers
        self.session = 1

    async def fetch(
        self,
        named: dict[int, tuple[int, int, int]] | None = None,
        *,
        max_wait_ms: int = 5_000,
        max_bytes: int = 1 << 20,
        epoch: int = 0,
        forgotten: tuple[int, ...] = (),
    ) -> dict[int, FetchedReplica]:
        """Names partitions, and returns what the answer has of each."""
        partitions = tuple(
            ReplicaFetchPartition(index, epoch, offset, last, start)
            for index, (offset, last, start) in (named or {}).items()
        )
        request = ReplicaFetchRequest(
            self.session,
            max_wait_ms,
            max_bytes,
            (ReplicaFetchTopic(TOPIC_ID, partitions),),
            (ForgottenReplicas(TOPIC_ID, forgotten),),
        )
        answer = await self.connection.request(request, ReplicaFetchResponse, timeout_s=10)
        assert answer.error_code == PeerErrorCode.NONE, answer.error_message
        return {fetched.partition: fetched for topic in answer.responses for fetched in topic.partitions}

    async def written(self, value: bytes, index: int = 0) -> None:
        """Returns once a record is on the leader's disk."""
        end = self.leader.append(value, index=index)
        await until(lambda: self.leader.end(index) == end)

    async def told(self, *partitions: int, at: tuple[int, int, int] = AT_START) -> None:
        """Names partitions and takes the first answer, so that the leader has nothing to tell any more."""
        named = dict.fromkeys(partitions, at)
        missing = set(partitions)
        while missing:
            missing -= set(await self.fetch({index: at for index in named if index in missing}))


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[Follower]:
    async with replica_cluster(tmp_path, 1, replica_fetch_wait_max_ms=60_000) as cluster:
        value = {"host": "", "port": 0, "peer_host": "", "peer_port": 0, "rack": "", "clean_since": 0}
        await cluster.store.transaction([], [Put(live_key(2), value)])
        known = cluster.store.get(live_key(2))
        assert known is not None
        me = Incarnation(2, known.create_revision)
        leader = cluster.nodes[1]
        await cluster.lead(1, 1, 2, partitions=4, isr=(1,))
        peers = Peers(leader.catalog, Member(me), CLUSTER)
        try:
            yield Follower(cluster, leader, await peers.connect(1, "replication"), peers)
        finally:
            peers.close()


def values(fetched: FetchedReplica) -> int:
    """How many records there are."""
    return sum(header.record_count for _, header in iter_batches(fetched.records))


async def test_a_fetch_is_held_until_there_are_records(follower: Follower) -> None:
    await follower.told(0)
    held = asyncio.create_task(follower.fetch({0: AT_START}))
    await asyncio.sleep(0.05)
    assert not held.done()
    follower.leader.append(b"a")
    found = await held
    assert list(found) == [0]
    assert values(found[0]) == 1
    assert [(epoch.leader_epoch, epoch.start_offset) for epoch in found[0].epochs] == [(0, 0)]


async def test_a_fetch_is_held_no_longer_than_it_says(follower: Follower) -> None:
    await follower.told(0)
    began_s = asyncio.get_running_loop().time()
    assert await follower.fetch({0: AT_START}, max_wait_ms=100) == {}
    assert asyncio.get_running_loop().time() - began_s >= 0.1


async def test_a_newer_request_has_the_older_one_answered_at_once(follower: Follower) -> None:
    await follower.told(0, 1)
    older = asyncio.create_task(follower.fetch({0: AT_START}))
    await asyncio.sleep(0.02)
    newer = asyncio.create_task(follower.fetch({1: AT_START}))
    assert await asyncio.wait_for(older, 1) == {}
    follower.leader.append(b"a", index=0)
    assert list(await newer) == [0]  # it was named before, and is armed still


async def test_what_was_delivered_comes_again_only_when_it_is_named_again(follower: Follower) -> None:
    await follower.written(b"a")
    assert values((await follower.fetch({0: AT_START}))[0]) == 1
    await follower.written(b"b")
    assert await follower.fetch(max_wait_ms=100) == {}
    assert values((await follower.fetch({0: (1, 0, 0)}))[0]) == 1


async def test_errors_and_logs_that_differ_are_answered_at_once(follower: Follower) -> None:
    await follower.written(b"a")
    found = await follower.fetch({0: (5, 7, 0), 1: (3, -1, 0), 9: AT_START})
    assert found[0].diverging_end_offset == 1
    assert found[1].error_code == FetchError.OFFSET_OUT_OF_RANGE
    assert found[9].error_code == FetchError.UNKNOWN_TOPIC_OR_PARTITION
    found = await follower.fetch({0: AT_START}, epoch=4)
    assert (found[0].error_code, found[0].leader_epoch) == (FetchError.UNKNOWN_LEADER_EPOCH, 4)


async def test_without_room_there_are_no_records_but_errors(follower: Follower) -> None:
    await follower.written(b"a")
    found = await follower.fetch({0: AT_START, 9: AT_START}, max_bytes=0)
    assert list(found) == [9]
    assert values((await follower.fetch())[0]) == 1


async def test_who_begins_anew_is_told_the_producers_that_wrote_before(follower: Follower) -> None:
    """It takes room, so a follower without any is told later."""
    log = follower.leader.replica().log
    assert log is not None
    batch = encode_batch([b"a", b"b"], timestamps_ms=[0, 0], producer_id=7, producer_epoch=3, base_sequence=0)
    log.append(batch, read_header(batch))
    await until(lambda: log.high_watermark == 2)
    await log.delete_before(2)
    assert await follower.fetch({0: AT_START}, max_bytes=0, max_wait_ms=50) == {}
    told = (await follower.fetch())[0]
    assert (told.error_code, told.log_start_offset) == (FetchError.OFFSET_OUT_OF_RANGE, 2)
    ((producer_id, state),) = decode_snapshot(told.producers)
    assert (producer_id, state.epoch, state.batches[-1][:4]) == (7, 3, (0, 1, 0, 2))


async def test_partitions_take_turns(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PARTITION_BYTES", 3_000)
    offsets = dict.fromkeys(range(3), 0)
    for index in offsets:
        for _ in range(6):
            follower.leader.append(b"x" * 1_300, index=index)
    await until(lambda: all(follower.leader.end(index) == 6 for index in offsets))
    served: list[int] = []
    found = await follower.fetch(dict.fromkeys(offsets, AT_START), max_bytes=3_000)
    while len(served) < 9:
        for index, fetched in found.items():
            assert values(fetched) == 2
            served.append(index)
            offsets[index] += values(fetched)
        found = await follower.fetch({index: (offsets[index], 0, 0) for index in found}, max_bytes=3_000)
    assert served == [0, 1, 2] * 3


async def test_a_batch_that_is_larger_than_all_comes_alone(follower: Follower) -> None:
    for index in range(3):
        follower.leader.append(b"x" * 5_000, index=index)
    await until(lambda: all(follower.leader.end(index) == 1 for index in range(3)))
    found = await follower.fetch(dict.fromkeys(range(3), AT_START), max_bytes=1_000)
    assert [values(fetched) for fetched in found.values()] == [1]


async def test_what_is_forgotten_is_not_served(follower: Follower) -> None:
    await follower.told(0, 1)
    held = asyncio.create_task(follower.fetch({0: AT_START, 1: AT_START}))
    await asyncio.sleep(0.02)
    newer = asyncio.create_task(follower.fetch(forgotten=(0,)))
    assert await held == {}
    follower.leader.append(b"a", index=0)
    follower.leader.append(b"a", index=1)
    assert list(await newer) == [1]
    assert not follower.leader.replica(0)._listeners


async def test_of_a_partition_that_is_gone_nothing_is_kept(follower: Follower) -> None:
    await follower.told(0, 1)
    held = asyncio.create_task(follower.fetch({0: AT_START, 1: AT_START}))
    gone = follower.leader.replica(0)
    await until(lambda: bool(gone._listeners))
    await follower.cluster.store.transaction([], [DeletePrefix(topic_key("t"))])
    found = await held
    while 0 not in found:
        found = await follower.fetch()
    assert found[0].error_code == FetchError.UNKNOWN_TOPIC_OR_PARTITION
    assert not gone._listeners, "the follower does not say that it has forgotten what it was told to be gone"


async def test_a_leadership_that_is_lost_is_told_at_once(follower: Follower) -> None:
    await follower.told(0)
    held = asyncio.create_task(follower.fetch({0: AT_START}))
    await asyncio.sleep(0.02)
    follower.leader.replicas.lost()
    assert (await held)[0].error_code in (FetchError.FENCED_LEADER_EPOCH, FetchError.UNKNOWN_LEADER_EPOCH)


async def test_a_session_ends_with_its_connection(follower: Follower) -> None:
    await follower.told(0)
    held = asyncio.create_task(follower.fetch({0: AT_START}))
    await until(lambda: bool(follower.leader.replica(0)._listeners))
    follower.connection.close()
    with pytest.raises(ConnectionError):
        await held
    await until(lambda: not follower.leader.replica(0)._listeners)
    follower.connection = await follower.peers.connect(1, "replication")
    with pytest.raises(AssertionError, match="session 1 of node 2 is over"):
        await follower.fetch({0: AT_START})
    follower.session = 2
    assert 0 in await follower.fetch({0: AT_START})


async def test_a_newer_session_ends_the_older_one(follower: Follower) -> None:
    await follower.told(0)
    held = asyncio.create_task(follower.fetch({0: AT_START}))
    await asyncio.sleep(0.02)
    other = Follower(
        follower.cluster, follower.leader, await follower.peers.connect(1, "replication too"), follower.peers
    )
    other.session = 2
    assert 0 in await other.fetch({0: AT_START})
    assert await held == {}
    with pytest.raises(AssertionError, match="session 1 of node 2 is over"):
        await follower.fetch({0: AT_START})
    follower.session = 2
    with pytest.raises(AssertionError, match="session 2 of node 2 is over"):
        await follower.fetch({0: AT_START})


async def test_a_high_watermark_alone_is_told_after_a_while(follower: Follower) -> None:
    leader = follower.leader
    await follower.told(0)
    await until(lambda: 2 in leader.isr())
    held = asyncio.create_task(follower.fetch({0: AT_START}))
    await follower.written(b"a")
    assert (await held)[0].high_watermark == 0
    began_s = asyncio.get_running_loop().time()
    found = await follower.fetch({0: (1, 0, 0)})
    assert leader.committed() == 1
    assert (found[0].high_watermark, found[0].records) == (1, b"")
    assert serving.HIGH_WATERMARK_DELAY_S <= asyncio.get_running_loop().time() - began_s < 1


async def test_a_session_that_ends_while_it_names_partitions_leaves_nothing_behind(follower: Follower) -> None:
    partitions = tuple(ReplicaFetchPartition(index, 0, *AT_START) for index in range(900))
    request = ReplicaFetchRequest(1, 5_000, 1 << 20, (ReplicaFetchTopic(TOPIC_ID, partitions),))
    naming = asyncio.create_task(follower.connection.request(request, ReplicaFetchResponse, timeout_s=10))
    await asyncio.sleep(0)
    follower.connection.close()
    with pytest.raises(ConnectionError):
        await naming
    await asyncio.sleep(0.1)
    assert not any(follower.leader.replica(index)._listeners for index in range(4))


async def test_naming_many_partitions_does_not_hold_up_the_loop(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of the loop names the partitions of a step, or of two: the first is done as soon as the request is there."""
    await follower.told(0, 1, 2, 3)
    in_turn = [0]
    name = serving._FollowerSession.name

    def counted(session: serving._FollowerSession, key: serving.Key, request: FetchPartition) -> None:
        in_turn[-1] += 1
        name(session, key, request)

    async def watch() -> None:
        while True:
            in_turn.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(serving._FollowerSession, "name", counted)
    watching = asyncio.create_task(watch())
    missing = set(range(4, 1_004))
    while missing:
        missing -= set(await follower.fetch(dict.fromkeys(missing, AT_START)))
    watching.cancel()
    assert sum(in_turn) >= 1_000
    assert max(in_turn) <= 2 * serving.STEP
