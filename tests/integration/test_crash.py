"""What was acknowledged is there after SIGKILL; groups go on where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from client import Consumer, Producer, TopicPartition
from client.errors import CohortError
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
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
)
from protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.record_batch import decode_columns, encode_batch, iter_batches
from tests.daemon_process import DaemonProcess


async def connected(daemon: DaemonProcess, name: str = "test") -> Cluster:
    cluster = Cluster(daemon.address, client_id=name, request_timeout_ms=20_000)
    await cluster.start()
    return cluster


async def create(cluster: Cluster, topic: str, partitions: int, **config: str) -> None:
    response = await cluster.call(CreateTopicsRequest((CreatableTopic(topic, partitions),)), CreateTopicsResponse)
    assert response.topics[0].error_code == ErrorCode.NONE


async def records_of(cluster: Cluster, topic: str, partition: int) -> list[bytes | None]:
    """Every record of a partition, in order."""
    values: list[bytes | None] = []
    offset = 0
    while True:
        ask = FetchRequest(0, 0, 1 << 20, (FetchTopic(topic, (FetchPartition(partition, offset, 1 << 20),)),))
        fetched = (await cluster.call(ask, FetchResponse)).responses[0].partitions[0]
        assert fetched.error_code == ErrorCode.NONE, fetched.error_message
        if not fetched.records:
            assert offset == fetched.high_watermark
            return values
        for position, header in iter_batches(fetched.records):
            assert header.base_offset == offset, "offsets have no gap"
            values += decode_columns(fetched.records, position, header).values()
            offset = header.next_offset


async def produce_until_broken(cluster: Cluster, partition: int, acknowledged: list[tuple[int, bytes]]) -> None:
    """Appends one value after the other, each once the one before is acknowledged, until the daemon is gone."""
    for number in range(1_000_000):
        value = f"p{partition}-{number}".encode()
        data = (
            TopicProduceData("orders", (PartitionProduceData(partition, encode_batch([value], timestamps_ms=[1])),)),
        )
        connection = await cluster._any_connection()
        response = await connection.request(ProduceRequest(None, -1, 5000, data), ProduceResponse, timeout_s=5)
        result = response.responses[0].partition_responses[0]
        assert result.error_code == ErrorCode.NONE, result.error_message
        acknowledged.append((result.base_offset, value))


async def commit_until_broken(cluster: Cluster, group: str, acknowledged: dict[str, int]) -> None:
    for offset in range(1, 1_000_000):
        topics = (OffsetCommitTopic("orders", (OffsetCommitPartition(0, offset),)),)
        connection = await cluster._any_connection()
        response = await connection.request(
            OffsetCommitRequest(group, -1, "", None, topics), OffsetCommitResponse, timeout_s=5
        )
        code = response.topics[0].partitions[0].error_code
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            continue
        assert code == ErrorCode.NONE, response.error_message
        acknowledged[group] = offset


async def until_broken(work: Awaitable[None]) -> None:
    with pytest.raises(CohortError) as broken:
        await work
    assert broken.value.retriable, broken.value


@pytest.mark.parametrize("flush", ["ack", "os"])
async def test_acknowledged_records_and_commits_survive_sigkill_under_load(tmp_path: Path, flush: str) -> None:
    """Three times in a row, on the same data. A killed process loses nothing even with flush=os: the kernel lives on."""
    partitions, groups = 4, [f"group-{number}" for number in range(6)]
    acknowledged: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(partitions)}
    daemon = DaemonProcess(tmp_path / "data", "--flush", flush)
    daemon.start()
    cluster = await connected(daemon)
    await create(cluster, "orders", partitions)
    for number in range(3):
        committed = dict.fromkeys(groups, 0)  # each round begins again, lower: the coordinator is a store, not a judge
        for group in groups:
            await cluster.coordinator_address(group)
        async with asyncio.timeout(60), asyncio.TaskGroup() as load:
            for partition in range(partitions):
                load.create_task(until_broken(produce_until_broken(cluster, partition, acknowledged[partition])))
            for group in groups:
                load.create_task(until_broken(commit_until_broken(cluster, group, committed)))
            await asyncio.sleep(0.4)
            while not all(committed.values()) or min(map(len, acknowledged.values())) < 5 * (number + 1):
                await asyncio.sleep(0.01)
            daemon.kill()
        daemon.start()
        for partition in range(partitions):
            stored = await records_of(cluster, "orders", partition)
            for offset, value in acknowledged[partition]:
                assert stored[offset] == value
        for group in groups:
            response = await cluster.call_coordinator(group, OffsetFetchRequest(group, None), OffsetFetchResponse)
            offset = response.topics[0].partitions[0].committed_offset
            # One more may have been stored whose answer the kill cut off.
            assert committed[group] <= offset <= committed[group] + 1
    assert all(len(values) > 10 for values in acknowledged.values())
    await cluster.close()
    assert daemon.terminate() == 0


class RawMember:
    """A member that speaks the protocol by hand, so that a test sees every answer."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.cluster, self.group = cluster, group
        self.member_id, self.generation = "", -1

    async def join(self) -> None:
        joined = await self.cluster.call_coordinator(
            self.group,
            JoinGroupRequest(
                self.group, 10_000, 10_000, self.member_id, None, "consumer", (JoinGroupProtocol("range", b"m"),)
            ),
            JoinGroupResponse,
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            await self.join()
            return
        assert joined.error_code == ErrorCode.NONE, joined.error_message
        self.member_id, self.generation = joined.member_id, joined.generation_id
        gives = tuple(SyncGroupAssignment(member.member_id, member.member_id.encode()) for member in joined.members)
        synced = await self.cluster.call_coordinator(
            self.group,
            SyncGroupRequest(self.group, self.generation, self.member_id, None, "consumer", "range", gives),
            SyncGroupResponse,
        )
        if synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            await self.join()
        else:
            assert synced.error_code == ErrorCode.NONE, synced.error_message
            assert synced.assignment == self.member_id.encode()

    async def heartbeat(self, max_wait_ms: int = 0) -> int:
        request = HeartbeatRequest(self.group, self.generation, self.member_id, None, max_wait_ms)
        return (await self.cluster.call_coordinator(self.group, request, HeartbeatResponse)).error_code

    async def commit(self, offset: int) -> int:
        topics = (OffsetCommitTopic("orders", (OffsetCommitPartition(0, offset),)),)
        request = OffsetCommitRequest(self.group, self.generation, self.member_id, None, topics)
        response = await self.cluster.call_coordinator(self.group, request, OffsetCommitResponse)
        return response.topics[0].partitions[0].error_code


async def settle(members: list[RawMember]) -> None:
    """Joins all and lets everybody rejoin until nobody is asked to any more."""
    for member in members:
        others = [other for other in members if other is not member and other.member_id]
        async with asyncio.TaskGroup() as group:
            group.create_task(member.join())
            for other in others:
                group.create_task(rejoin_when_told(other))


async def rejoin_when_told(member: RawMember) -> None:
    assert await member.heartbeat(5000) == ErrorCode.REBALANCE_IN_PROGRESS
    await member.join()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
async def test_a_group_goes_on_without_a_rebalance_when_its_coordinator_restarts(tmp_path: Path, how: str) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    cluster = await connected(daemon)
    await create(cluster, "orders", 2)
    members = [RawMember(cluster, "workers") for _ in range(3)]
    await settle(members)
    generation = members[0].generation
    assert {member.generation for member in members} == {generation}
    assert await members[0].commit(41) == ErrorCode.NONE
    if how == "SIGKILL":
        daemon.kill()
    else:
        assert daemon.terminate() == 0
    daemon.start()
    for member in members:
        assert await member.heartbeat() == ErrorCode.NONE
    assert await members[1].commit(42) == ErrorCode.NONE
    described = await cluster.call_coordinator("workers", DescribeGroupsRequest(("workers",)), DescribeGroupsResponse)
    group = described.groups[0]
    assert (group.group_state, group.generation_id, len(group.members)) == ("Stable", generation, 3)
    assert "joined" in group.last_rebalance_reason, "the reason of the last rebalance survives too"
    await cluster.close()
    daemon.kill()


async def test_a_member_that_does_not_come_back_after_the_restart_is_removed(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data", "--min-session-timeout-ms", "100").start()
    cluster = await connected(daemon)
    await create(cluster, "orders", 1)
    stays, goes = RawMember(cluster, "workers"), RawMember(cluster, "workers")
    await settle([stays, goes])
    daemon.kill()
    daemon.start()
    async with asyncio.timeout(30):  # its session of 10 s runs from the moment the coordinator has loaded
        while await stays.heartbeat(1000) == ErrorCode.NONE:
            pass
    await stays.join()
    described = await cluster.call_coordinator("workers", DescribeGroupsRequest(("workers",)), DescribeGroupsResponse)
    assert [member.member_id for member in described.groups[0].members] == [stays.member_id]
    assert "session" in described.groups[0].last_rebalance_reason
    await cluster.close()
    daemon.kill()


async def test_sigterm_answers_what_is_parked_and_exits_with_0(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    cluster = await connected(daemon)
    await create(cluster, "orders", 1)
    member = RawMember(cluster, "workers")
    await member.join()
    connection = await cluster._any_connection()
    parked = asyncio.create_task(
        connection.request(
            HeartbeatRequest("workers", member.generation, member.member_id, None, 5000),
            HeartbeatResponse,
            timeout_s=20,
        )
    )
    await asyncio.sleep(0.2)
    status = await asyncio.to_thread(daemon.terminate)
    assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
    assert status == 0
    await cluster.close()


async def test_a_second_daemon_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as first:
        second = DaemonProcess(tmp_path / "data")
        with pytest.raises(AssertionError, match="ended with 1") as refused:
            second.start()
        assert str(first.pid) in str(refused.value)
        cluster = await connected(first)
        await cluster.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: (data / "metadata.json").write_bytes(b"not ours\n\n"), "damaged"),
        (lambda data: (data / "metadata.json").write_bytes(b'{"format": 99}\n{}\n'), "format 99"),
    ],
)
async def test_a_directory_that_cannot_be_trusted_is_refused_with_the_reason(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    assert daemon.terminate() == 0
    damage(tmp_path / "data")
    with pytest.raises(AssertionError, match="ended with 1") as refused:
        DaemonProcess(tmp_path / "data").start()
    assert words in str(refused.value)


async def test_a_damaged_partition_is_refused_and_the_others_serve(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    cluster = await connected(daemon)
    await create(cluster, "orders", 2)
    for number in range(20):
        for partition in (0, 1):
            batch = encode_batch([b"x" * 100 + bytes([number])], timestamps_ms=[1])
            data = (TopicProduceData("orders", (PartitionProduceData(partition, batch),)),)
            await cluster.call(ProduceRequest(None, -1, 5000, data), ProduceResponse)
    daemon.kill()
    log = next((tmp_path / "data" / "orders-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[300] ^= 0xFF  # in the middle of what was acknowledged: no torn tail
    log.write_bytes(content)
    daemon.start()
    assert len(await records_of(cluster, "orders", 1)) == 20
    ask = FetchRequest(0, 0, 1 << 20, (FetchTopic("orders", (FetchPartition(0, 0, 1 << 20),)),))
    refused = (await cluster.call(ask, FetchResponse)).responses[0].partitions[0]
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "damaged" in refused.error_message
    assert refused.records == b""
    await cluster.close()
    daemon.kill()


@pytest.mark.parametrize("group_id", [None, "g"])
async def test_a_damaged_partition_does_not_keep_a_new_consumer_from_the_others(
    tmp_path: Path, group_id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    cluster = await connected(daemon)
    await create(cluster, "orders", 3)
    async with Producer(bootstrap_servers=daemon.address) as producer:
        for partition in range(3):
            await producer.send_and_wait("orders", b"tea", partition=partition)
    await cluster.close()
    daemon.terminate()  # it writes down what was on disk: without that, this were a torn tail
    log = next((tmp_path / "data" / "orders-1").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[100] ^= 0xFF
    log.write_bytes(content)
    (log.parent / "clean-end").unlink()  # so that the segment is scanned
    daemon.start()
    read: set[TopicPartition] = set()
    async with (
        Consumer(
            "orders", bootstrap_servers=daemon.address, group_id=group_id, auto_offset_reset="earliest"
        ) as consumer,
        asyncio.timeout(30),
    ):
        while len(read) < 2 or "orders-1 is damaged" not in caplog.text:
            read |= set(await consumer.getmany(timeout_ms=100))
    assert read == {TopicPartition("orders", 0), TopicPartition("orders", 2)}
    daemon.kill()


async def test_a_torn_tail_is_cut_and_what_was_acknowledged_before_it_is_there(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    cluster = await connected(daemon)
    await create(cluster, "orders", 1)
    data = (TopicProduceData("orders", (PartitionProduceData(0, encode_batch([b"kept"], timestamps_ms=[1])),)),)
    await cluster.call(ProduceRequest(None, -1, 5000, data), ProduceResponse)
    daemon.kill()
    log = next((tmp_path / "data" / "orders-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + encode_batch([b"half"], timestamps_ms=[1])[:50])
    daemon.start()
    assert await records_of(cluster, "orders", 0) == [b"kept"]
    await cluster.call(ProduceRequest(None, -1, 5000, data), ProduceResponse)
    assert await records_of(cluster, "orders", 0) == [b"kept", b"kept"]
    await cluster.close()
    daemon.kill()


async def test_a_client_finds_the_daemon_again_within_its_deadline(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    cluster = await connected(daemon)
    await create(cluster, "orders", 1)
    daemon.kill()
    asking = asyncio.create_task(
        cluster.call_coordinator(
            "g", OffsetFetchRequest("g", None), OffsetFetchResponse, deadline=Deadline(timeout_ms=20_000)
        )
    )
    await asyncio.sleep(0.5)
    await asyncio.to_thread(daemon.start)
    assert (await asking).error_code == ErrorCode.NONE
    await cluster.close()
    daemon.kill()
