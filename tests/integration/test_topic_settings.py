"""What topics are told, through the daemon and its admin: settings, retention, deletion, compaction, what acks promise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client import Admin, Consumer, Producer, TopicPartition
from client.errors import (
    CohortError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from client.transport.cluster import Cluster
from coordinator import Coordinator
from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.authority import Put
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.partitions import PartitionState
from coordinator.nodes.membership import Standalone
from coordinator.runtime.admission import Admission
from coordinator.runtime.held_commits import HeldCommits
from coordinator.server.handlers.led_partitions import LedPartitions
from coordinator.server.handlers.produce import ProduceHandler
from coordinator.server.handlers.produced_batches import Inflation
from protocol.errors import ErrorCode
from protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.record_batch import HEADER_BYTES, encode_batch, read_header
from tests.coordinator.server.produce_node import Coordinators
from tests.daemon_process import DaemonProcess

QUICK: dict[str, Any] = {"retention_check_interval_ms": 30, "compaction_interval_ms": 30}
"""Log maintenance without a pause worth waiting for. A slip of the clock by so little is believed a look later."""


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(log_level="error", **QUICK) as running:
        yield running


@pytest.fixture
async def admin(coordinator: Coordinator) -> AsyncIterator[Admin]:
    async with Admin(coordinator.address) as made:
        yield made


@pytest.fixture
async def cluster(coordinator: Coordinator) -> AsyncIterator[Cluster]:
    made = Cluster(coordinator.address, client_id="raw")
    await made.start()
    yield made
    await made.close()


async def produce(cluster: Cluster, topic: str, batch: bytes, acks: int = -1) -> PartitionProduceResponse:
    data = (TopicProduceData(topic, (PartitionProduceData(0, batch),)),)
    response = await cluster.call(ProduceRequest(None, acks, 10_000, data), ProduceResponse)
    return response.responses[0].partition_responses[0]


async def until(holds: Callable[[], Any], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.02)


async def values_in(address: str, topic: str, end: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of everything that can be read below ``end``."""
    found: list[tuple[int, bytes | None]] = []
    partition = TopicPartition(topic, 0)
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [(record.offset, record.value) for record in records]
    return found


async def test_a_topic_shows_its_settings_and_whose_they_are(admin: Admin) -> None:
    await admin.create_topics({"t": 1}, {"retention.ms": 5000, "cleanup.policy": "delete,compact"})
    topic = (await admin.describe_topics("t"))["t"]
    assert topic.own_config == ("cleanup.policy", "retention.ms")
    assert (topic.config["retention.ms"], topic.config["cleanup.policy"]) == ("5000", "compact,delete")
    assert (topic.config["min.insync.replicas"], topic.config["message.timestamp.type"]) == ("1", "CreateTime")
    await admin.alter_topic_config("t", {"retention.ms": None, "min.cleanable.dirty.ratio": 0.25})
    topic = (await admin.describe_topics("t"))["t"]
    assert topic.own_config == ("cleanup.policy", "min.cleanable.dirty.ratio")
    assert topic.config["retention.ms"] == "604800000"
    offsets = (await admin.describe_topics("__consumer_offsets"))["__consumer_offsets"]
    assert offsets.config["cleanup.policy"] == "compact"


async def test_settings_survive_a_restart(tmp_path: Path) -> None:
    for first in (True, False):
        async with Coordinator(str(tmp_path)) as coordinator, Admin(coordinator.address) as admin:
            if first:
                await admin.create_topics({"t": 1}, {"retention.ms": 5000})
                await admin.alter_topic_config("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.1})
            topic = (await admin.describe_topics("t"))["t"]
            assert topic.own_config == ("cleanup.policy", "min.cleanable.dirty.ratio", "retention.ms")
            assert topic.config["min.cleanable.dirty.ratio"] == "0.1"


@pytest.mark.parametrize(
    ("topic", "changes", "error", "says"),
    [
        ("t", {"retention.mss": 1}, InvalidConfigError, "did you mean 'retention.ms'"),
        ("t", {"retention.mss": None}, InvalidConfigError, "did you mean 'retention.ms'"),
        ("t", {"cleanup.policy": "compress"}, InvalidConfigError, "delete or compact or compact,delete"),
        ("t", {"retention.ms": 7, "segment.bytes": 1}, InvalidConfigError, "from 1024"),
        ("t", {"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5}, InvalidConfigError, "above max.compaction"),
        ("nope", {"retention.ms": 7}, UnknownTopicOrPartitionError, "'nope' does not exist"),
        ("__consumer_offsets", {"retention.ms": 7}, InvalidTopicError, "internal"),
    ],
)
async def test_a_change_that_is_refused_changes_nothing(
    admin: Admin, topic: str, changes: dict[str, object | None], error: type[CohortError], says: str
) -> None:
    await admin.create_topics({"t": 1})
    with pytest.raises(error) as refused:
        await admin.alter_topic_config(topic, changes)
    assert says in str(refused.value)
    assert (await admin.describe_topics("t"))["t"].own_config == ()


async def test_max_message_bytes_holds_from_the_change_on(admin: Admin, cluster: Cluster) -> None:
    await admin.create_topics({"t": 1})
    batch = encode_batch([b"v" * 5000], timestamps_ms=[0])
    assert (await produce(cluster, "t", batch)).error_code == ErrorCode.NONE
    await admin.alter_topic_config("t", {"max.message.bytes": 4000})
    refused = await produce(cluster, "t", batch)
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes of topic 't', 4000" in refused.error_message


def dense(records: int) -> bytes:
    """A small batch that becomes large when it is inflated."""
    return encode_batch([b""] * records, timestamps_ms=[0] * records, compression="gzip")


def damaged(batch: bytes) -> bytes:
    return batch[:-8] + bytes([batch[-8] ^ 1]) + batch[-7:]


def with_header(batch: bytes, **changes: int) -> bytes:
    return replace(read_header(batch), **changes).pack() + batch[HEADER_BYTES:]


GOOD = encode_batch([b"v", b"w"], [b"k", b"l"], timestamps_ms=[1, 2])
PACKED = encode_batch([b"v" * 99] * 2, [b"k", b"l"], timestamps_ms=[1, 2], compression="gzip")


@pytest.mark.parametrize(
    ("batch", "code", "says"),
    [
        (encode_batch([b"v"], timestamps_ms=[0]), ErrorCode.INVALID_RECORD, "the record has none"),
        (encode_batch([b"v", b"w"], [b"k", None], timestamps_ms=[0, 0]), ErrorCode.INVALID_RECORD, "some of the 2"),
        (encode_batch([b"v"], timestamps_ms=[0], compression="gzip"), ErrorCode.INVALID_RECORD, "needs a key"),
        (dense(5000), ErrorCode.MESSAGE_TOO_LARGE, "5000 records"),
        (damaged(GOOD), ErrorCode.CORRUPT_MESSAGE, "checksum"),
        (damaged(PACKED), ErrorCode.CORRUPT_MESSAGE, "checksum"),
        (with_header(GOOD, record_count=1), ErrorCode.INVALID_RECORD, "1 record cannot span 2"),
        (with_header(GOOD, last_offset_delta=9), ErrorCode.INVALID_RECORD, "2 records cannot span 10"),
        (with_header(PACKED, record_count=0), ErrorCode.INVALID_RECORD, "0 records"),
        (with_header(GOOD, base_sequence=4), ErrorCode.INVALID_RECORD, "do not go together"),
        (with_header(GOOD, attributes=0x1100), ErrorCode.INVALID_RECORD, "attributes 0x1100"),
        (with_header(GOOD, attributes=0x148), ErrorCode.INVALID_RECORD, "attributes 0x148"),
        (GOOD + GOOD[:50], ErrorCode.CORRUPT_MESSAGE, "50 are left"),
        (b"", ErrorCode.INVALID_RECORD, "no batch"),
    ],
)
async def test_a_compacted_topic_refuses_by_name_and_its_log_stays_as_it_was(
    admin: Admin, cluster: Cluster, coordinator: Coordinator, batch: bytes, code: ErrorCode, says: str
) -> None:
    await admin.create_topics({"t": 1}, {"cleanup.policy": "compact", "max.message.bytes": 4000})
    assert (await produce(cluster, "t", GOOD)).error_code == ErrorCode.NONE
    for request in (batch, GOOD + batch):
        if request != GOOD:
            refused = await produce(cluster, "t", request)
            assert (refused.error_code, says in refused.error_message) == (code, True), refused
    assert (await produce(cluster, "t", PACKED)).base_offset == 2
    assert [offset for offset, _ in await values_in(coordinator.address, "t", 4)] == [0, 1, 2, 3]


async def test_producers_get_the_refusal_of_a_record_without_a_key(admin: Admin, coordinator: Coordinator) -> None:
    await admin.create_topics({"t": 1})
    async with Producer(coordinator.address) as producer:
        await producer.send_and_wait("t", b"v")
        await admin.alter_topic_config("t", {"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecordError, match="needs a key"):
            await producer.send_and_wait("t", b"v")
        assert (await producer.send_and_wait("t", b"v", b"k")).offset == 1


async def test_log_append_time_is_the_daemons_clock(admin: Admin, coordinator: Coordinator, cluster: Cluster) -> None:
    await admin.create_topics({"t": 1}, {"retention.ms": -1})
    async with Producer(coordinator.address) as producer:
        assert (await producer.send_and_wait("t", b"a", timestamp_ms=5)).timestamp_ms == 5
        await admin.alter_topic_config("t", {"message.timestamp.type": "LogAppendTime"})
        stamped = await producer.send_and_wait("t", b"b", timestamp_ms=5)
        assert stamped.timestamp_ms > 1_600_000_000_000
        await admin.alter_topic_config("t", {"message.timestamp.type": None})
        assert (await producer.send_and_wait("t", b"c", timestamp_ms=6)).timestamp_ms == 6
    async with Consumer("t", bootstrap_servers=coordinator.address, auto_offset_reset="earliest") as consumer:
        seen = [(await consumer.getone()).timestamp_ms for _ in range(3)]
        assert seen == [5, stamped.timestamp_ms, 6]
        partition = TopicPartition("t", 0)
        found = (await consumer.offsets_for_times({partition: stamped.timestamp_ms}))[partition]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (1, stamped.timestamp_ms)


async def test_a_repeated_batch_is_answered_with_the_time_it_got_first(admin: Admin, cluster: Cluster) -> None:
    numbered = [
        encode_batch([b"v"], timestamps_ms=[5], producer_id=1 << 40, producer_epoch=0, base_sequence=number)
        for number in range(2)
    ]
    await admin.create_topics({"t": 1}, {"message.timestamp.type": "LogAppendTime", "retention.ms": -1})
    first = await produce(cluster, "t", numbered[0])
    await asyncio.sleep(0.01)
    await admin.alter_topic_config("t", {"message.timestamp.type": None})
    assert (await produce(cluster, "t", numbered[1])).log_append_time_ms == -1
    again = await produce(cluster, "t", numbered[0])
    assert (again.error_code, again.base_offset, again.log_append_time_ms) == (0, 0, first.log_append_time_ms)
    assert first.log_append_time_ms > 1_600_000_000_000


async def test_writes_that_ask_for_all_need_enough_replicas(
    admin: Admin, cluster: Cluster, coordinator: Coordinator
) -> None:
    """There is one node, so what a cluster would say of a partition with three replicas is put into the metadata."""
    await admin.create_topics({"t": 1}, {"min.insync.replicas": 3})
    assert (
        await produce(cluster, "t", GOOD)
    ).error_code == ErrorCode.NONE  # one replica: more than one cannot be needed
    daemon = coordinator._daemon
    assert daemon is not None
    assert daemon._partitions is not None
    catalog = daemon._partitions._catalog
    topic = catalog.topic("t")

    async def in_sync(*isr: int) -> None:
        state = {"leader": 0, "leader_epoch": 0, "replicas": [0, 1, 2], "isr": list(isr)}
        assert await catalog._store.transaction([], [Put(f"partitions/{topic.topic_id}/{0:07}", state)])

    await in_sync(0, 1)
    refused = await produce(cluster, "t", GOOD)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "2 of 3 replicas in sync; acks=all needs 3" in refused.error_message
    assert (await produce(cluster, "t", GOOD, acks=1)).base_offset == 2  # nothing was appended
    await admin.alter_topic_config("t", {"min.insync.replicas": 2})
    assert (await produce(cluster, "t", GOOD)).base_offset == 4
    await in_sync(0, 1, 2)
    assert (await produce(cluster, "t", GOOD)).base_offset == 6
    await admin.alter_topic_config("t", {"min.insync.replicas": None})
    await in_sync(0)
    refused = await produce(cluster, "t", GOOD)
    assert (
        "1 of 3 replicas in sync; acks=all needs 2" in refused.error_message
    )  # a majority, not the -1 that stands for it


async def test_replicas_lost_after_the_append_are_told_and_the_records_are_there(tmp_path: Path) -> None:
    """What the answer to a write says is decided when it is on disk: by then too few replicas are in sync."""
    disk, partition = Disk(FileStorage(str(tmp_path)), threads=1), {"leader": 0, "leader_epoch": 0, "replicas": [0, 1]}
    store = await LocalMetadataStore.open(disk, lambda: "cluster", lambda reason: None)
    catalog = Catalog(
        store, 0, lambda: "t", max_partitions=9, max_partitions_per_topic=9, config_defaults=Settings().topic_defaults
    )
    topic = catalog.draft("t", 1, {"min.insync.replicas": 2})
    partitions = LogManager(disk, catalog, lambda topic: catalog.config(topic).log_config("ack"), lambda reason: None)
    await partitions.create(topic, range(1))
    await catalog.commit(topic)
    admission = Admission(Coordinators(), asyncio.get_running_loop().call_later)
    commits = HeldCommits(lambda name, index: None, asyncio.get_running_loop().call_later)
    led = LedPartitions(catalog, partitions, Standalone(0))
    handler = ProduceHandler(catalog, led, admission, commits, lambda: 0)
    await store.transaction([], [Put(f"partitions/t/{0:07}", {**partition, "isr": [0, 1]})])
    found: list[PartitionProduceResponse] = []
    for acks in (-1, 1):
        for _ in handler._append(
            TopicProduceData("t", ()), PartitionProduceData(0, GOOD), acks, Inflation(), found.append, None
        ):
            raise AssertionError("a small batch needs one step")
    catalog.topics = {"t": replace(catalog.topic("t"), partitions=(PartitionState(0, 0, (0, 1), (0,)),))}
    await partitions.flush()
    assert [answer.error_code for answer in found] == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NONE]
    assert "The records are in the log" in found[0].error_message
    opened = partitions.get("t", 0)
    assert opened is not None
    assert opened.high_watermark == 4
    await partitions.close()
    disk.close()


async def test_without_acks_a_refusal_closes_the_connection(
    admin: Admin, cluster: Cluster, coordinator: Coordinator
) -> None:
    await admin.create_topics({"t": 1}, {"cleanup.policy": "compact"})
    connection = await cluster._any_connection()
    for batch, closes in ((GOOD, False), (encode_batch([b"v"], timestamps_ms=[0]), True)):
        request = ProduceRequest(None, 0, 10_000, (TopicProduceData("t", (PartitionProduceData(0, batch),)),))
        with contextlib.suppress(CohortError):  # there is never an answer
            await connection.request(request, ProduceResponse, timeout_s=0.3)
        assert connection.closed is closes
    assert [offset for offset, _ in await values_in(coordinator.address, "t", 2)] == [0, 1]


async def test_records_are_deleted_and_groups_go_on_where_the_log_begins(
    admin: Admin, coordinator: Coordinator
) -> None:
    await admin.create_topics({"t": 2})
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    async with Producer(coordinator.address) as producer:
        for partition in (0, 1):
            await producer.send_many("t", [b"%d" % number for number in range(10)], partition=partition)
        await admin.alter_offsets("g", {first: 2, second: 2})
        assert await admin.delete_records({first: 6, second: -1}) == {first: 6, second: 10}
        assert await admin.delete_records({first: 3}) == {first: 6}
        await producer.send_and_wait("t", b"new", partition=1)
    logs = await admin.describe_logs("t")
    assert [(log.start, log.end) for log in logs.values()] == [(6, 10), (10, 11)]
    async with Consumer(
        "t", bootstrap_servers=coordinator.address, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        assert await consumer.beginning_offsets([first, second]) == {first: 6, second: 10}
        found: dict[TopicPartition, list[int]] = {first: [], second: []}
        while sum(map(len, found.values())) < 5:
            for read, records in (await consumer.getmany(timeout_ms=500)).items():
                found[read] += [record.offset for record in records]
        assert found == {first: [6, 7, 8, 9], second: [10]}


@pytest.mark.parametrize(
    ("topic", "offset", "error", "says"),
    [
        ("t", 3, OffsetOutOfRangeError, "ends at offset 2"),
        ("t", -2, OffsetOutOfRangeError, "neither one nor -1"),
        ("nope", 0, UnknownTopicOrPartitionError, "does not exist"),
        ("keyed", 0, PolicyViolationError, "compacted only"),
        ("__consumer_offsets", 0, InvalidTopicError, "internal"),
    ],
)
async def test_a_deletion_that_is_refused_deletes_nothing(
    admin: Admin, cluster: Cluster, topic: str, offset: int, error: type[CohortError], says: str
) -> None:
    await admin.create_topics({"t": 1})
    await admin.create_topics({"keyed": 1}, {"cleanup.policy": "compact"})
    await produce(cluster, "t", GOOD)
    with pytest.raises(error) as refused:
        await admin.delete_records({TopicPartition(topic, 0): offset})
    assert says in str(refused.value)
    assert (await admin.describe_logs("t"))[TopicPartition("t", 0)].start == 0


async def test_without_a_cleanup_policy_records_stay_until_they_are_deleted(
    admin: Admin, coordinator: Coordinator
) -> None:
    settings = {"retention.ms": 1, "segment.bytes": 4096}
    await admin.create_topics({"stays": 1}, {**settings, "cleanup.policy": ""})
    await admin.create_topics({"goes": 1}, settings)
    stays, goes = TopicPartition("stays", 0), TopicPartition("goes", 0)
    async with Producer(coordinator.address) as producer:
        for topic, _ in (stays, goes):  # what expires was written last
            for number in range(30):
                assert (await producer.send_and_wait(topic, b"x" * 500)).offset == number

    async def gone() -> bool:
        return (await admin.describe_logs("goes"))[goes].start == 30

    await until(gone)
    assert (await admin.describe_logs("stays"))[stays].start == 0
    assert await admin.delete_records({stays: 20}) == {stays: 20}
    assert (await admin.describe_logs("stays"))[stays].start == 20


async def test_records_expire_while_they_are_produced_and_read(admin: Admin, coordinator: Coordinator) -> None:
    await admin.create_topics({"t": 1}, {"retention.ms": 200, "segment.bytes": 4096})
    partition = TopicPartition("t", 0)
    async with (
        Producer(coordinator.address) as producer,
        Consumer("t", bootstrap_servers=coordinator.address, auto_offset_reset="earliest") as consumer,
    ):
        for number in range(100):
            assert (await producer.send_and_wait("t", b"x" * 500)).offset == number
            assert (await consumer.getone()).offset == number

        async def empty() -> bool:
            log = (await admin.describe_logs("t"))[partition]
            return log.start == log.end == 100 and log.size == 0

        await until(empty)
        assert (await producer.send_and_wait("t", b"x")).offset == 100
        assert (await consumer.getone()).offset == 100


async def test_a_topic_is_compacted_while_it_is_written(admin: Admin, coordinator: Coordinator) -> None:
    await admin.create_topics({"t": 1}, {"segment.bytes": 4096, "min.cleanable.dirty.ratio": 0.1})
    async with Producer(coordinator.address) as producer:
        for number in range(300):
            await producer.send_and_wait("t", b"%d" % number, b"k%d" % (number % 3))
        await admin.alter_topic_config("t", {"cleanup.policy": "compact"})

        async def compacted() -> bool:
            return len(await values_in(coordinator.address, "t", 300)) < 100

        await until(compacted)
        found = await values_in(coordinator.address, "t", 300)
        assert found[-3:] == [(number, b"%d" % number) for number in (297, 298, 299)]
        assert all(value == b"%d" % offset for offset, value in found)


async def test_a_daemon_killed_in_the_midst_of_log_maintenance_lies_about_nothing(tmp_path: Path) -> None:
    options = ("--retention-check-interval-ms", "20", "--compaction-interval-ms", "20", "--segment-bytes", "2048")
    with DaemonProcess(tmp_path / "data", *options) as daemon:
        async with Admin(daemon.address) as admin, Producer(daemon.address) as producer:
            await admin.create_topics({"keyed": 1}, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
            await admin.create_topics({"timed": 1}, {"retention.ms": 100})
            await admin.create_topics({"sized": 1}, {"retention.bytes": 4096})
            starts = dict.fromkeys(("keyed", "timed", "sized"), 0)
            sent = 0
            for _ in range(4):
                for _ in range(60):
                    for topic in starts:
                        data = await producer.send_and_wait(topic, b"%d" % sent, b"k%d" % (sent % 5))
                        assert data.offset == sent
                    sent += 1
                logs = await admin.describe_logs(*starts)
                daemon.kill()
                daemon.start()
                for partition, before in logs.items():
                    log = (await admin.describe_logs(partition.topic))[partition]
                    assert (log.fault, log.end) == ("", sent)
                    assert log.start >= before.start >= starts[partition.topic]
                    starts[partition.topic] = log.start
                for topic in ("keyed", "sized"):
                    found = await values_in(daemon.address, topic, sent)
                    assert all(value == b"%d" % offset for offset, value in found)
                    assert [offset for offset, _ in found][-5:] == list(range(sent - 5, sent))
        assert starts["keyed"] == 0
        assert min(starts["timed"], starts["sized"]) > 0
