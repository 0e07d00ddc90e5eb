"""An admin and a daemon: topics come, grow and go; groups can be seen; every refusal says what and why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from client.admin import Admin
from client.errors import (
    ClosedError,
    CohortError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidPartitionsError,
    InvalidTopicError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from client.producer.producer import Producer
from client.transport.cluster import Cluster
from client.types.descriptions import GroupListing, PartitionLag
from client.types.records import OffsetAndMetadata
from coordinator import Coordinator
from protocol.errors import ErrorCode
from protocol.messages.groups import (
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
)
from protocol.subscription import Subscription, TopicPartition, encode_assignment, encode_subscription


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    async with Coordinator() as coordinator, Admin(coordinator.address) as made:
        yield made


async def test_topics_come_grow_and_go(admin: Admin) -> None:
    await admin.create_topics({"b": 3, "a": 1}, {"max.message.bytes": 2_000_000})
    await admin.create_topics({"default": -1})
    assert await admin.list_topics() == ["a", "b", "default"]
    assert await admin.list_topics(include_internal=True) == [
        "__consumer_offsets",
        "__transaction_state",
        "a",
        "b",
        "default",
    ]
    await admin.create_partitions({"a": 2, "b": 5})
    described = await admin.describe_topics("b", "a")
    assert [(name, len(topic.partitions)) for name, topic in described.items()] == [("b", 5), ("a", 2)]
    partition = described["b"].partitions[4]
    assert (partition.partition, partition.leader, partition.replicas, partition.in_sync_replicas) == (4, 0, (0,), (0,))
    await admin.delete_topics("a", "default")
    assert list(await admin.describe_topics()) == ["b"]
    internal = (await admin.describe_topics("__consumer_offsets"))["__consumer_offsets"]
    assert internal.internal
    assert len(internal.partitions) == 50


async def test_the_cluster_describes_itself(admin: Admin) -> None:
    cluster = await admin.describe_cluster()
    assert cluster.cluster_id
    assert [node.node_id for node in cluster.nodes] == [cluster.controller_id]
    assert cluster.nodes[0].host == "127.0.0.1"


REFUSALS: list[tuple[str, Callable[[Admin], Awaitable[object]], type[CohortError], str]] = [
    ("existing topic", lambda a: a.create_topics({"t": 1}), TopicAlreadyExistsError, "topic 't' exists"),
    ("illegal name", lambda a: a.create_topics({"a/b": 1}), InvalidTopicError, "'a/b'"),
    ("empty name", lambda a: a.create_topics({"": 1}), InvalidTopicError, "''"),
    ("internal name", lambda a: a.create_topics({"__consumer_offsets": 1}), CohortError, "__consumer_offsets"),
    ("no partitions", lambda a: a.create_topics({"n": 0}), InvalidPartitionsError, "'n' cannot have 0"),
    ("negative", lambda a: a.create_topics({"n": -5}), InvalidPartitionsError, "-5"),
    ("too many", lambda a: a.create_topics({"n": 1_000_000}), InvalidPartitionsError, "1000000"),
    ("unknown setting", lambda a: a.create_topics({"n": 1}, {"x.y": 1}), InvalidConfigError, "x.y"),
    ("bad setting", lambda a: a.create_topics({"n": 1}, {"max.message.bytes": "many"}), InvalidConfigError, "many"),
    ("delete unknown", lambda a: a.delete_topics("nope"), UnknownTopicOrPartitionError, "'nope' does not exist"),
    ("delete internal", lambda a: a.delete_topics("__consumer_offsets"), InvalidTopicError, "internal"),
    ("grow unknown", lambda a: a.create_partitions({"nope": 3}), UnknownTopicOrPartitionError, "'nope'"),
    ("shrink", lambda a: a.create_partitions({"t": 1}), InvalidPartitionsError, "'t' has 2 partitions"),
    ("grow to the same", lambda a: a.create_partitions({"t": 2}), InvalidPartitionsError, "'t' has 2 partitions"),
    ("describe unknown", lambda a: a.describe_topics("t", "nope"), UnknownTopicOrPartitionError, "'nope'"),
    ("empty group", lambda a: a.describe_groups("g", ""), InvalidGroupIdError, "group"),
    ("offsets of an empty group", lambda a: a.list_offsets(""), InvalidGroupIdError, "group"),
]


@pytest.mark.parametrize(("call", "error", "text"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
async def test_a_refusal_names_the_item_and_the_reason(
    admin: Admin, call: Callable[[Admin], Awaitable[object]], error: type[CohortError], text: str
) -> None:
    await admin.create_topics({"t": 2})
    with pytest.raises(error, match=text):
        await call(admin)
    assert await admin.list_topics() == ["t"]


async def test_all_items_are_tried_and_all_failures_named(admin: Admin) -> None:
    await admin.create_topics({"t": 1})
    with pytest.raises(TopicAlreadyExistsError, match=r"topic 't' exists; .*'a/b'"):
        await admin.create_topics({"t": 1, "fresh": 1, "a/b": 1})
    with pytest.raises(UnknownTopicOrPartitionError, match="'x' does not exist; topic 'y' does not exist"):
        await admin.delete_topics("x", "fresh", "y")
    assert await admin.list_topics() == ["t"]


async def test_wrong_types_are_named(admin: Admin) -> None:
    with pytest.raises(TypeError, match="the number of partitions of topic 't' must be a whole number, not '3'"):
        await admin.create_topics({"t": "3"})  # type: ignore[dict-item]


async def test_a_group_that_does_not_exist_is_dead_and_has_nothing(admin: Admin) -> None:
    group = (await admin.describe_groups("nobody"))["nobody"]
    assert (group.state, group.members) == ("Dead", ())
    assert await admin.list_offsets("nobody") == {}
    assert await admin.group_lag("nobody") == []
    assert await admin.list_groups() == []


async def join(cluster: Cluster, group_id: str, protocol_type: str, metadata: bytes, assignment: bytes) -> str:
    """Makes a stable group of one member; gives its id."""
    member_id = ""
    while True:
        protocols = (JoinGroupProtocol("range", metadata),)
        request = JoinGroupRequest(group_id, 30_000, 30_000, member_id, None, protocol_type, protocols)
        joined = await cluster.call_coordinator(group_id, request, JoinGroupResponse, wait_ms=30_000)
        member_id = joined.member_id
        if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            break
    assert joined.error_code == ErrorCode.NONE
    assignments = (SyncGroupAssignment(member_id, assignment),)
    sync = SyncGroupRequest(group_id, joined.generation_id, member_id, None, protocol_type, "range", assignments)
    assert (await cluster.call_coordinator(group_id, sync, SyncGroupResponse)).error_code == ErrorCode.NONE
    return member_id


async def commit(cluster: Cluster, group_id: str, topic: str, offsets: dict[int, int]) -> None:
    """Commits as an administrator does, for a group without members."""
    partitions = tuple(OffsetCommitPartition(index, offset, 3, "note") for index, offset in offsets.items())
    request = OffsetCommitRequest(group_id, -1, "", None, (OffsetCommitTopic(topic, partitions),))
    response = await cluster.call_coordinator(group_id, request, OffsetCommitResponse)
    assert all(partition.error_code == 0 for topic_ in response.topics for partition in topic_.partitions), response


async def test_groups_are_listed_described_and_measured() -> None:
    async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 3, "gone": 1})
        async with Producer(coordinator.address) as producer:
            for partition, count in enumerate((10, 5, 0)):
                await producer.send_many("t", [b"x"] * count, partition=partition)
        cluster = Cluster(coordinator.address, client_id="me")
        await cluster.start()
        try:
            await commit(cluster, "readers", "t", {0: 4, 1: 9})
            await commit(cluster, "readers", "gone", {0: 7})
            await commit(cluster, "idle", "t", {0: 0})
            await admin.delete_topics("gone")
            owned = [TopicPartition("t", 0), TopicPartition("t", 2)]
            subscription = encode_subscription(Subscription(("t",)))
            member = await join(cluster, "readers", "consumer", subscription, encode_assignment(owned))
            await join(cluster, "workers", "work", b"", b"do this")

            assert await admin.list_groups() == [
                GroupListing("idle", "", "Empty"),
                GroupListing("readers", "consumer", "Stable"),
                GroupListing("workers", "work", "Stable"),
            ]
            assert [group.group_id for group in await admin.list_groups(["STABLE"])] == ["readers", "workers"]
            assert [group.group_id for group in await admin.list_groups("Empty")] == ["idle"]

            described = await admin.describe_groups("workers", "readers")
            assert list(described) == ["workers", "readers"]
            readers, workers = described["readers"], described["workers"]
            assert (readers.state, readers.generation, readers.protocol) == ("Stable", 1, "range")
            assert (readers.leader, readers.coordinator) == (member, coordinator.address)
            assert readers.last_rebalance_reason
            assert [(who.member_id, who.client_id, who.assignment) for who in readers.members] == [
                (member, "me", tuple(owned))
            ]
            assert [(who.assignment, who.raw_assignment) for who in workers.members] == [((), b"do this")]

            committed = await admin.list_offsets("readers")
            assert committed[TopicPartition("t", 0)] == OffsetAndMetadata(4, "note", 3)
            lag = await admin.group_lag("readers")
            assert [row for row in lag if row.topic == "t"] == [
                PartitionLag("t", 0, 4, 10, 6, member),
                PartitionLag("t", 1, 9, 5, 0, None),
                PartitionLag("t", 2, None, 0, None, member),
            ]
            assert [row for row in lag if row.topic == "gone"] in (
                [],
                [PartitionLag("gone", 0, 7, None, None, None)],
            )
        finally:
            await cluster.close()


async def test_offsets_outlive_the_topic_only_as_long_as_the_daemon_keeps_them_and_lag_never_fails() -> None:
    async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 1})
        cluster = Cluster(coordinator.address, client_id="me")
        await cluster.start()
        try:
            await commit(cluster, "g", "t", {0: 4})
            await admin.delete_topics("t")
            assert all(row.end is None for row in await admin.group_lag("g"))
        finally:
            await cluster.close()


async def test_it_is_used_inside_async_with() -> None:
    with pytest.raises(ClosedError, match="use it inside 'async with'"):
        await Admin("127.0.0.1:1").list_topics()


async def test_no_daemon_is_told_in_time() -> None:
    with pytest.raises(RequestTimedOutError, match=r"within 200 ms.*cannot connect to 127.0.0.1:1"):
        await Admin("127.0.0.1:1").start(timeout_ms=200)


async def test_a_daemon_that_went_away_costs_no_more_than_the_timeout() -> None:
    async with Coordinator() as coordinator:
        admin = Admin(coordinator.address)
        await admin.start()
        await admin.list_topics()
    for call in (
        admin.list_topics(timeout_ms=200),
        admin.list_groups(timeout_ms=200),
        admin.group_lag("g", timeout_ms=200),
        admin.create_topics({"t": 1}, timeout_ms=200),
    ):
        with pytest.raises(RequestTimedOutError):
            await call
    await admin.stop()
