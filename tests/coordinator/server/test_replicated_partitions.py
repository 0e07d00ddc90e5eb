"""What clients are told of partitions with several replicas: who leads, what is known, what waits for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from coordinator.log.errors import NotLeaderError
from coordinator.metadata.catalog import TopicError
from coordinator.metadata.keys import registration_of
from coordinator.nodes.membership import Standalone
from coordinator.runtime.admission import Admission
from coordinator.runtime.held_commits import HeldCommits
from coordinator.server.dispatch import ErrorTexts, Tasks
from coordinator.server.handlers import delete_records
from coordinator.server.handlers.fetch import FetchHandler, _Wanted
from coordinator.server.handlers.led_partitions import KnownLeader, LedPartitions
from coordinator.server.handlers.list_offsets import ListOffsetsHandler
from coordinator.server.handlers.produce import ProduceHandler
from coordinator.server.handlers.produced_batches import MAX_ON_LOOP_BYTES, Inflation
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.records import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DeletedRecords,
    DeleteRecordsPartition,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
)
from protocol.record_batch import encode_batch, read_header
from tests.coordinator.log.logs import append_value
from tests.coordinator.log.transactional import transactional
from tests.coordinator.replication.replica_nodes import TOPIC, ReplicaCluster, ReplicaNode, carry, committed, led
from tests.coordinator.server.produce_node import Coordinators

BATCH = encode_batch([b"v"], [b"k"], timestamps_ms=[1])


class Member(Standalone):
    """A registration that is valid until it is told otherwise."""

    is_valid = True

    def valid(self) -> bool:
        return self.is_valid


class Served:
    """The handlers of a node."""

    def __init__(self, node: ReplicaNode) -> None:
        self.node = node
        self.member = Member(node.id)
        self.led = LedPartitions(node.catalog, node.logs, self.member)
        later = asyncio.get_running_loop().call_later
        admission, commits = Admission(Coordinators(), later), HeldCommits(lambda name, index: None, later)
        self._produce = ProduceHandler(node.catalog, self.led, admission, commits, lambda: 0)
        self._fetch = FetchHandler(node.catalog, self.led, Tasks(), max_wait_ms=1000, max_bytes=1 << 20)
        self._list = ListOffsetsHandler(self.led, Tasks())

    async def produce(self, acks: int = -1) -> PartitionProduceResponse:
        """The answer to one batch."""
        return await self.produce_meanwhile(BATCH, lambda: pytest.fail("it is checked at once"), acks)

    async def produce_meanwhile(
        self, batch: bytes, meanwhile: Callable[[], object], acks: int
    ) -> PartitionProduceResponse:
        """The same for a batch that a thread checks, while something else happens."""
        answer: asyncio.Future[PartitionProduceResponse] = asyncio.get_running_loop().create_future()
        data = PartitionProduceData(0, batch)
        try:
            for checking in self._produce._append(
                TopicProduceData(TOPIC, ()), data, acks, Inflation(), answer.set_result, None
            ):
                meanwhile()
                if checking is not None:
                    await checking
        except TopicError as error:
            return self._produce._refusal(TOPIC, 0, error.code, str(error))
        return await asyncio.wait_for(answer, 20)

    def find(self, topic_id: str = "", **ask: int) -> FetchedPartition | None:
        """What a fetch says of the partition before it looks for records."""
        wanted = FetchPartition(**{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, **ask})
        return self._fetch._find(FetchTopic(TOPIC, (wanted,), topic_id), wanted, False, ErrorTexts()).result

    def waits(self, offset: int) -> bool:
        """Whether a long poll waits there until it is told of a move."""
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1000, isolation_level=0, topics=())
        ask = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        return not self._fetch._may_answer([_Wanted(TOPIC, ask, False, self.node.log(), None)], request)

    async def offset(self, timestamp: int) -> tuple[int, int]:
        """What ListOffsets answers."""
        ask = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        listed = await self._list._list_one(TOPIC, ask, False, ErrorTexts())
        return listed.error_code, listed.offset


async def _transaction(cluster: ReplicaCluster, node: ReplicaNode, *values: bytes) -> None:
    """Records of a transaction that has no end marker yet, committed on all replicas."""
    batch = transactional([b"k"] * len(values), values, [0] * len(values), 5, 0)
    node.log().append(batch, read_header(batch))
    await cluster.until(lambda: node.log().high_watermark == len(values))


def _end(node: ReplicaNode) -> None:
    node.log().end_transactions([(5, 0, True)], 0, 0)


async def _delete(node: ReplicaNode, offset: int, *, wait_s: float) -> DeletedRecords:
    deadline = asyncio.get_running_loop().time() + wait_s
    return await delete_records._delete(
        cast("Node", node), TOPIC, DeleteRecordsPartition(0, offset), deadline, deadline
    )


async def test_a_follower_names_the_leader(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        topic_id = await cluster.create()
        one, two, _ = cluster.nodes.values()
        leads, follows = Served(one), Served(two)
        assert (await leads.produce()).error_code == ErrorCode.NONE
        refused = await follows.produce()
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (refused.current_leader_id, refused.current_leader_epoch) == (1, 0)
        fetched = follows.find()
        assert fetched is not None
        assert (fetched.error_code, fetched.current_leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
        assert [node.node_id for node in follows.led.endpoints({1, -1, 9})] == [1]
        assert leads.led.hint(ErrorCode.NOT_LEADER_OR_FOLLOWER, TOPIC, 0) == KnownLeader()
        assert leads.find(topic_id) is None
        other = leads.find("another")
        assert other is not None
        assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        newer = leads.find(current_leader_epoch=1)
        assert newer is not None
        assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_registration_that_ends_while_a_thread_checks_a_batch_is_seen(tmp_path: Path, acks: int) -> None:
    large = encode_batch([bytes(MAX_ON_LOOP_BYTES)], [b"k"], timestamps_ms=[1])
    async with led(tmp_path) as (_, one, _, _):
        served = Served(one)
        told = await served.produce_meanwhile(large, lambda: setattr(served.member, "is_valid", False), acks)
        assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        served.member.is_valid = True
        told = await served.produce_meanwhile(large, lambda: one.logs.led.pop((TOPIC, 0)), acks)
        assert told.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert one.log().end_offset == 0


async def test_a_node_whose_registration_may_be_over_answers_for_nothing(tmp_path: Path) -> None:
    async with led(tmp_path) as (_, one, _, _):
        served = Served(one)
        served.member.is_valid = False
        assert (await served.produce()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await served.produce(acks=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await served.offset(LATEST_TIMESTAMP))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fetched = served.find()
        assert fetched is not None
        assert fetched.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.log().end_offset == 0


async def test_too_few_in_sync_are_told_before_anything_is_appended(tmp_path: Path) -> None:
    async with led(tmp_path, min_isr=3) as (cluster, one, _, _):
        served = Served(one)
        assert (await served.produce()).error_code == ErrorCode.NONE
        await cluster.nodes[3].kill()
        await cluster.nodes[3].lease.revoke()
        await cluster.catch_up()
        end = one.log().end_offset
        assert (await served.produce()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert one.log().end_offset == end
        assert (await served.produce(acks=1)).error_code == ErrorCode.NONE


async def test_a_produce_that_waits_when_the_leadership_is_lost_is_told_so_with_the_new_leader(tmp_path: Path) -> None:
    async with led(tmp_path) as (cluster, one, two, _):
        served = Served(one)
        cluster.cut |= {(2, 1), (3, 1)}
        waiting = asyncio.create_task(served.produce())
        await cluster.until(lambda: one.log().end_offset == 1)
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader=two.replicas.me, leader_epoch=1))
        told = await waiting
        assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (told.current_leader_id, told.current_leader_epoch) == (2, 1)


async def test_records_are_deleted_without_a_wait_where_the_replicas_agree_already(tmp_path: Path) -> None:
    async with ReplicaCluster(tmp_path) as cluster:
        await cluster.create()
        one = cluster.nodes[1]
        leads = Served(one)
        for _ in range(2):
            assert (await leads.produce()).error_code == ErrorCode.NONE
        with pytest.raises(TopicError, match="not yet by every replica in sync: ask again") as caught:
            await _delete(one, 1, wait_s=0.0)
        assert (caught.value.code, one.log().start_offset) == (ErrorCode.REQUEST_TIMED_OUT, 1)
        assert (await _delete(one, 1, wait_s=20.0)).error_code == ErrorCode.NONE
        told = await _delete(one, 1, wait_s=0.0)
        assert (told.error_code, told.low_watermark) == (ErrorCode.NONE, 1)


async def test_records_that_only_a_former_leader_has_deleted_are_not_told_as_deleted(tmp_path: Path) -> None:
    """The leadership moves while DeleteRecords waits for an end marker, which comes by replication then."""
    async with led(tmp_path) as (cluster, one, two, _):
        await _transaction(cluster, one, b"a", b"b")
        deleting = asyncio.create_task(_delete(one, 2, wait_s=20.0))
        await asyncio.sleep(0.05)
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader=two.replicas.me, leader_epoch=1))
        await cluster.until(lambda: two.replica().serves)
        _end(two)
        await cluster.until(lambda: one.log().last_stable_offset == 3)
        with pytest.raises(TopicError) as refused:
            await deleting
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (one.log().start_offset, two.log().start_offset) == (0, 0)


async def test_a_leadership_that_ends_before_its_followers_have_deleted_is_told(tmp_path: Path) -> None:
    async with led(tmp_path, b"a", b"b") as (cluster, one, two, _):
        leading = one.replica().leading
        assert leading is not None
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader=two.replicas.me, leader_epoch=1))
        await cluster.until(lambda: one.log().leadership is None)
        with pytest.raises(NotLeaderError):
            await asyncio.wait_for(leading.wait_deleted(1), 20)


async def test_the_end_of_what_is_decided_has_the_epoch_of_the_record_there(tmp_path: Path) -> None:
    """librdkafka commits nothing that it takes for further back than what is committed: epochs come before offsets."""
    async with led(tmp_path) as (cluster, one, two, _):
        await _transaction(cluster, one, b"a")
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader=two.replicas.me, leader_epoch=1))
        await cluster.until(lambda: two.replica().serves)
        append_value(two.log(), b"of the next leader")
        await cluster.until(lambda: two.log().high_watermark == 2)
        served, latest = Served(two), ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
        stable = await served._list._list_one(TOPIC, latest, True, ErrorTexts())
        assert (stable.offset, stable.leader_epoch) == (0, 0)
        end = await served._list._list_one(TOPIC, latest, False, ErrorTexts())
        assert (end.offset, end.leader_epoch) == (2, 1)


async def test_a_new_leader_tells_no_end_before_it_knows_what_is_committed(tmp_path: Path) -> None:
    async with led(tmp_path, b"a", b"b") as (cluster, one, two, three):
        cluster.cut |= {(one.id, two.id), (three.id, two.id), (two.id, one.id), (three.id, one.id)}
        append_value(one.log(), b"c")
        await cluster.until(lambda: one.log().flushed_offset == 3)
        assert await carry(two.replica(), one.replica())  # it has the record, and was not told whether others do
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader=two.replicas.me, leader_epoch=1))
        await cluster.until(lambda: two.replica().serves)
        served = Served(two)
        leader = two.replica().leader
        assert leader is not None
        assert (await served.offset(LATEST_TIMESTAMP))[0] == ErrorCode.OFFSET_NOT_AVAILABLE
        assert await served.offset(EARLIEST_TIMESTAMP) == (ErrorCode.NONE, 0)
        cluster.cut.clear()
        await cluster.until(lambda: leader.knows_high_watermark)
        assert await served.offset(LATEST_TIMESTAMP) == (ErrorCode.NONE, 3)


async def test_a_consumer_hears_where_the_log_it_read_and_the_leaders_part(tmp_path: Path) -> None:
    async with led(tmp_path, b"a", b"b") as (cluster, one, _, _):
        known = registration_of(cluster.state())
        await cluster.write(replace(known, leader_epoch=3))
        await cluster.until(lambda: one.replica().serves and one.replica().leader_epoch == 3)
        assert await committed(one, b"c", b"d") is None
        served = Served(one)
        assert served.find(fetch_offset=2, last_fetched_epoch=0) is None
        assert served.find(fetch_offset=4, last_fetched_epoch=3) is None
        assert served.find(fetch_offset=4, last_fetched_epoch=-1) is None
        for offset, epoch, diverging in ((3, 0, (0, 2)), (3, 1, (0, 2)), (9, 3, (3, 4))):
            found = served.find(fetch_offset=offset, last_fetched_epoch=epoch)
            assert found is not None
            assert (found.error_code, found.diverging_epoch, found.diverging_end) == (ErrorCode.NONE, *diverging)
        one.log()._cleaner.clean_until = 3  # what compaction has joined may cover offsets of later epochs
        assert served.find(fetch_offset=3, last_fetched_epoch=0) is None


async def test_what_is_not_committed_is_waited_for_without_a_busy_look(tmp_path: Path) -> None:
    async with led(tmp_path, b"a") as (cluster, one, _, _):
        cluster.cut |= {(2, 1), (3, 1)}
        append_value(one.log(), b"b")
        await cluster.until(lambda: one.log().flushed_offset == 2)
        assert one.log().high_watermark == 1
        served = Served(one)
        assert [served.waits(offset) for offset in (0, 1, 2, 3)] == [False, True, True, False]
        cluster.cut.clear()
        await cluster.until(lambda: one.log().high_watermark == 2)
        assert [served.waits(offset) for offset in (1, 2)] == [False, True]
