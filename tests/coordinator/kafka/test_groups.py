"""Groups over the Kafka port: every version of the requests, the steps that old clients do not know, held heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.embedded import Coordinator
from protocol.errors import ErrorCode
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.delete_groups_request import DeleteGroupsRequest
from protocol.kafka.messages.describe_groups_request import DescribeGroupsRequest
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.kafka.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from protocol.kafka.messages.list_groups_request import ListGroupsRequest
from protocol.kafka.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.kafka.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.kafka.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.kafka.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.coordinator.kafka.wire import KafkaWire, connected, request_frame

SESSION_MS = 10_000


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1, kafka_heartbeat_hold_ms=1_500) as running:
        yield running


def joining(
    group: str, member_id: str = "", instance: str | None = None, session_ms: int = SESSION_MS
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group, session_ms, 20_000, member_id, instance, "consumer", [JoinGroupRequestProtocol("range", b"\0\0 topics")]
    )


async def joined(
    wire: KafkaWire, group: str, version: int = 9, member_id: str = "", session_ms: int = SESSION_MS
) -> Any:
    told = await wire.ask(joining(group, member_id, session_ms=session_ms), version)
    if told.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        told = await wire.ask(joining(group, told.member_id, session_ms=session_ms), version)
    return told


async def test_a_rebalance_timeout_without_an_end_is_one_of_a_day(wire: KafkaWire) -> None:
    """Kafka knows no upper bound, and Java programs write ``max.poll.interval.ms=2147483647``."""
    endless = joining("g")
    endless.rebalance_timeout_ms = 2**31 - 1
    told = await wire.ask(endless, 3)
    assert told.error_code == ErrorCode.NONE


async def member(wire: KafkaWire, group: str, version: int = 9, session_ms: int = SESSION_MS) -> Any:
    """Joins a group alone and brings the assignment."""
    told = await joined(wire, group, version, session_ms=session_ms)
    assert told.error_code == ErrorCode.NONE
    shares = [SyncGroupRequestAssignment(each.member_id, b"\0\0 share") for each in told.members]
    synced = await wire.ask(
        SyncGroupRequest(group, told.generation_id, told.member_id, assignments=shares), min(version, 5)
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"\0\0 share")
    return told


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_syncs_beats_and_leaves_in_every_version(wire: KafkaWire, version: int) -> None:
    first = await wire.ask(joining("g"), version)
    if version < 4:
        assert first.error_code == ErrorCode.NONE, "before KIP-394 a client knows of no second step"
    else:
        assert (first.error_code, first.generation_id, first.leader) == (ErrorCode.MEMBER_ID_REQUIRED, -1, "")
        first = await wire.ask(joining("g", first.member_id), version)
    assert (first.error_code, first.generation_id, first.protocol_name) == (ErrorCode.NONE, 1, "range")
    assert first.leader == first.member_id != ""
    assert [(each.member_id, each.metadata) for each in first.members] == [(first.member_id, b"\0\0 topics")]
    shares = [SyncGroupRequestAssignment(first.member_id, b"all")]
    sync = SyncGroupRequest("g", 1, first.member_id, None, "consumer" if version >= 5 else None, None, shares)
    synced = await wire.ask(sync, min(version, 5))
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"all")
    beat = HeartbeatRequest("g", 1, first.member_id)
    assert (await wire.ask(beat, min(version, 4))).error_code == ErrorCode.NONE
    leaving = LeaveGroupRequest("g", first.member_id if version < 3 else "")
    if version >= 3:
        leaving.members = [MemberIdentity(first.member_id)]
    left = await wire.ask(leaving, min(version, 5))
    assert left.error_code == ErrorCode.NONE
    assert [each.error_code for each in left.members] == ([] if version < 3 else [ErrorCode.NONE])
    if version < 3:
        assert (await wire.ask(leaving, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_session_below_kafkas_bound_is_refused(wire: KafkaWire) -> None:
    for version in (0, 9):
        told = await wire.ask(joining("g", session_ms=5_999), version)
        assert told.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        nameless = await wire.ask(joining("", session_ms=0), version)
        assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
    assert (await wire.ask(joining("g", session_ms=6_000), 0)).error_code == ErrorCode.NONE


async def test_the_leader_of_a_former_generation_that_comes_back_takes_itself_for_a_follower_in_old_versions(
    wire: KafkaWire, coordinator: Coordinator
) -> None:
    """KIP-814: only a client of version 9 knows that it leads and has nothing to share out."""
    for group, version in (("new", 9), ("old", 5)):
        first = await wire.ask(joining(group, instance="i"), version)
        shares = [SyncGroupRequestAssignment(first.member_id, b"all")]
        await wire.ask(SyncGroupRequest(group, 1, first.member_id, "i", assignments=shares), 3)
        async with connected(coordinator.kafka_address) as other:
            again = await other.ask(joining(group, instance="i"), version)
        assert (again.error_code, again.generation_id, again.skip_assignment) == (ErrorCode.NONE, 1, version == 9)
        assert (again.leader == again.member_id) == (version == 9)


async def test_a_held_heartbeat_is_answered_when_the_group_needs_the_member(
    wire: KafkaWire, coordinator: Coordinator
) -> None:
    first = await member(wire, "g")
    loop = asyncio.get_running_loop()
    beating = asyncio.create_task(wire.ask(HeartbeatRequest("g", first.generation_id, first.member_id), 4))
    await asyncio.sleep(0.1)
    assert not beating.done()
    begun = loop.time()
    async with connected(coordinator.kafka_address) as other:
        second = asyncio.create_task(joined(other, "g"))
        assert (await beating).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert loop.time() - begun < 1.0
        again = await joined(wire, "g", member_id=first.member_id)
        assert {each.member_id for each in again.members} == {first.member_id, (await second).member_id}


async def test_a_held_heartbeat_gives_way_to_the_next_request_of_its_connection(wire: KafkaWire) -> None:
    first = await member(wire, "g")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    beating = asyncio.create_task(wire.ask(HeartbeatRequest("g", first.generation_id, first.member_id), 4))
    await asyncio.sleep(0.05)
    asked = asyncio.create_task(wire.ask_behind(beating, ApiVersionsRequest(), 0))
    assert (await beating).error_code == ErrorCode.NONE
    assert (await asked).error_code == ErrorCode.NONE
    assert loop.time() - begun < 1.5
    third = await wire.ask(HeartbeatRequest("g", first.generation_id + 1, first.member_id), 4)
    assert third.error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(("software", "version", "is_held"), [("", 3, False), ("", 4, True), ("librdkafka", 3, True)])
async def test_heartbeats_of_clients_that_may_wait_for_them_are_not_held(
    wire: KafkaWire, software: str, version: int, is_held: bool
) -> None:
    """kafkajs, which does not say what it is, handles no record while a heartbeat is under way."""
    first = await member(wire, "g")
    if software:
        await wire.ask(ApiVersionsRequest(software, "1.0"), 3)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(1 if is_held else 5):
        told = await wire.ask(HeartbeatRequest("g", first.generation_id, first.member_id), version)
        assert told.error_code == ErrorCode.NONE
    assert (loop.time() - begun > 1.4) is is_held


async def test_a_heartbeat_is_held_for_a_third_of_the_session_at_most() -> None:
    session_ms = 6_000
    async with (
        Coordinator(kafka_port=-1, flush="os", kafka_heartbeat_hold_ms=60_000) as coordinator,
        connected(coordinator.kafka_address) as wire,
    ):
        first = await member(wire, "g", session_ms=session_ms)
        begun = asyncio.get_running_loop().time()
        told = await wire.ask(HeartbeatRequest("g", first.generation_id, first.member_id), 4)
        assert told.error_code == ErrorCode.NONE
        assert session_ms / 3 - 10 <= (asyncio.get_running_loop().time() - begun) * 1000 < session_ms / 2


async def test_heartbeats_are_answered_at_once_where_they_are_not_held() -> None:
    async with (
        Coordinator(kafka_port=-1, flush="os", kafka_heartbeat_hold_ms=0) as coordinator,
        connected(coordinator.kafka_address) as wire,
    ):
        first = await member(wire, "g")
        begun = asyncio.get_running_loop().time()
        for _ in range(20):
            told = await wire.ask(HeartbeatRequest("g", first.generation_id, first.member_id), 4)
            assert told.error_code == ErrorCode.NONE
        assert asyncio.get_running_loop().time() - begun < 2.0


async def test_a_client_goes_on_after_a_restart_without_looking_for_its_coordinator(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data_dir": str(tmp_path), "kafka_port": -1}
    commit = OffsetCommitRequest(
        "g", topics=[OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 7)])]
    )
    async with Coordinator(**settings) as coordinator, connected(coordinator.kafka_address) as wire:
        told = await wire.ask(commit, 2)
        assert told.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = await wire.ask(FindCoordinatorRequest("never asked for before"), 1)
        assert found.error_code == ErrorCode.NONE
    async with Coordinator(**settings) as coordinator, connected(coordinator.kafka_address) as wire:
        for group in ("g", "h", "i"):
            assert (await joined(wire, group, 3)).error_code == ErrorCode.NONE


async def test_groups_are_described_listed_and_deleted_in_every_version(
    wire: KafkaWire, coordinator: Coordinator
) -> None:
    first = await member(wire, "g")
    async with connected(coordinator.kafka_address) as admin:
        for version in range(7):
            told = await admin.ask(DescribeGroupsRequest(["g", "none", "g"]), version)
            assert [each.group_id for each in told.groups] == ["g", "none"]
            known, unknown = told.groups
            assert (known.error_code, known.group_state, known.protocol_data) == (ErrorCode.NONE, "Stable", "range")
            (only,) = known.members
            assert (only.member_id, only.client_id, only.client_host) == (first.member_id, "test", "/127.0.0.1")
            assert (only.member_metadata, only.member_assignment) == (b"\0\0 topics", b"\0\0 share")
            assert unknown.group_state == "Dead"
            assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
        for version in range(6):
            told = await admin.ask(ListGroupsRequest(), version)
            assert [(each.group_id, each.protocol_type) for each in told.groups] == [("g", "consumer")]
        assert told.groups[0].group_state == "Stable"
        assert told.groups[0].group_type == "classic"
        assert (await admin.ask(ListGroupsRequest(["empty"]), 4)).groups == []
        assert (await admin.ask(ListGroupsRequest([], ["consumer"]), 5)).groups == []
        assert len((await admin.ask(ListGroupsRequest(["stable"], ["Classic"]), 5)).groups) == 1
        for version in range(4):
            told = await admin.ask(DeleteGroupsRequest(["g", "none"]), version)
            assert [each.error_code for each in told.results] == [
                ErrorCode.NON_EMPTY_GROUP,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ]
        await wire.ask(LeaveGroupRequest("g", members=[MemberIdentity(first.member_id)]), 5)
        assert [each.error_code for each in (await admin.ask(DeleteGroupsRequest(["g"]), 2)).results] == [0]


async def test_offsets_are_committed_and_fetched_in_every_version(wire: KafkaWire) -> None:
    await wire.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)]), 7)
    for version in range(2, 10):
        partitions = [OffsetCommitRequestPartition(0, version, 3, "why"), OffsetCommitRequestPartition(5, 1)]
        commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
        if version < 6:
            partitions[0].committed_leader_epoch = -1
        (topic,) = (await wire.ask(commit, version)).topics
        assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
            (0, ErrorCode.NONE),
            (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        wanted = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0, 1])])
        if version < 8:
            told = await wire.ask(wanted, version)
            assert told.error_code == ErrorCode.NONE
        else:
            several = [
                OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[0, 1])]),
                OffsetFetchRequestGroup("other", topics=None),
            ]
            told, other = (await wire.ask(OffsetFetchRequest(topics=[], groups=several), version)).groups
            assert (other.group_id, other.topics, other.error_code) == ("other", [], ErrorCode.NONE)
        (found,) = told.topics
        assert [(each.committed_offset, each.metadata) for each in found.partitions] == [(version, "why"), (-1, "")]
        if 2 <= version < 8:
            everything = await wire.ask(OffsetFetchRequest("g", None), version)
            assert [len(each.partitions) for each in everything.topics] == [1]
    for version in range(1, 8):  # aiokafka looks at partitions only, where Kafka tells none from version 2 on
        told = await wire.ask(OffsetFetchRequest("", [OffsetFetchRequestTopic("t", [0, 1])]), version)
        assert [each.error_code for each in told.topics[0].partitions] == [ErrorCode.INVALID_GROUP_ID] * 2
        assert told.error_code == (ErrorCode.INVALID_GROUP_ID if version > 1 else ErrorCode.NONE)


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_many_offsets_are_committed_with_the_longest_texts_that_each_may_have(
    wire: KafkaWire, in_transaction: bool
) -> None:
    """A client whose commit is too large to be read is told no code: it would repeat it for ever."""
    count, text = 600, "x" * 4_096
    await wire.ask(CreateTopicsRequest([CreatableTopic("t", count, 1)]), 7)
    if in_transaction:
        await wire.ask(FindCoordinatorRequest("tx", 1), 2)
        given = await wire.ask(InitProducerIdRequest("tx", 60_000), 5)
        staged = [TxnOffsetCommitRequestPartition(index, 7, -1, text) for index in range(count)]
        asked = TxnOffsetCommitRequest(
            "tx",
            "g",
            given.producer_id,
            given.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic("t", partitions=staged)],
        )
        told = await wire.ask(asked, 5)
    else:
        partitions = [OffsetCommitRequestPartition(index, 7, -1, text) for index in range(count)]
        commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
        told = await wire.ask(commit, 8)
    assert [each.error_code for each in told.topics[0].partitions] == [ErrorCode.NONE] * count


async def test_a_text_that_is_too_long_is_told_to_its_partition_alone(wire: KafkaWire) -> None:
    await wire.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)]), 7)
    partitions = [OffsetCommitRequestPartition(index, 7, -1, "x" * (4_096 + index)) for index in range(2)]
    told = await wire.ask(OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)]), 8)
    codes = [each.error_code for each in told.topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.parametrize(("count", "text"), [(600, "x" * 32_767), (5_000, "x" * 4_000), (20_000, "")])
@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_commit_that_is_too_large_is_told_so_at_each_partition(
    wire: KafkaWire, in_transaction: bool, count: int, text: str
) -> None:
    """By its bytes, or by its topics and partitions. Kafka, whose log takes a MiB at once, refuses these as well."""
    names = [f"t{number}" for number in range(count)]
    for version in (0, 2, 3, 5) if in_transaction else (2, 6, 8, 9):
        told = await wire.ask(committing(names, text, in_transaction), version)
        assert [topic.name for topic in told.topics] == names
        codes = {(each.partition_index, each.error_code) for topic in told.topics for each in topic.partitions}
        assert codes == {(0, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)}
    await wire.ask(CreateTopicsRequest([CreatableTopic("t0", 1, 1)]), 7)
    told = await wire.ask(committing(["t0"], "", in_transaction=False), 8)
    assert told.topics[0].partitions[0].error_code == ErrorCode.NONE


def committing(names: list[str], text: str, in_transaction: bool) -> OffsetCommitRequest | TxnOffsetCommitRequest:
    """One partition of each topic."""
    if in_transaction:
        staged = [TxnOffsetCommitRequestPartition(0, 7, -1, text)]
        of_transaction = [TxnOffsetCommitRequestTopic(name, partitions=staged) for name in names]
        return TxnOffsetCommitRequest("tx", "g", 1, 0, topics=of_transaction)
    partitions = [OffsetCommitRequestPartition(0, 7, -1, text)]
    return OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic(name, partitions=partitions) for name in names])


async def test_a_commit_of_more_topics_than_kafka_s_log_could_take_closes_the_connection(wire: KafkaWire) -> None:
    too_many = committing([f"t{number}" for number in range(33_000)], "", in_transaction=False)
    wire.writer.write(request_frame(too_many, 8, 1))
    assert await wire.is_closed()


async def test_coordinators_of_several_groups_are_found_at_once(wire: KafkaWire, coordinator: Coordinator) -> None:
    _, _, port = coordinator.kafka_address.rpartition(":")
    for version in range(7):
        asked = FindCoordinatorRequest("a") if version < 4 else FindCoordinatorRequest(coordinator_keys=["a", "b", "a"])
        told = await wire.ask(asked, version)
        found = [told] if version < 4 else told.coordinators
        assert [(each.error_code, each.node_id, each.port) for each in found] == [(0, 1, int(port))] * len(found)
        assert len(found) == (1 if version < 4 else 2)
    told = await wire.ask(FindCoordinatorRequest("", 0), 2)
    assert told.error_code == ErrorCode.INVALID_GROUP_ID
    told = await wire.ask(FindCoordinatorRequest("a", 7), 2)
    assert told.error_code == ErrorCode.INVALID_REQUEST
