"""Topics through the daemon: what is made, deleted and made again while the disk fails, fills up or is slow."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from client.errors import CohortError
from client.transport.cluster import Cluster
from coordinator.config import settings_from
from coordinator.daemon import AddressError, Daemon
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import File
from coordinator.metadata.encoding import MetadataDamagedError
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.topics import (
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicConfig,
    TopicPartitionCount,
    TopicResult,
)
from protocol.record_batch import encode_batch
from tests.coordinator.log.faulty_storage import HookedFile

Hook = Callable[[str, str], None]
NONE = ErrorCode.NONE
WRITES = ("write_file", "append")


class Hooked(FileStorage):
    """Real files; a hook sees each of some operations first and may fail it or hold it up."""

    hook: Hook = staticmethod(lambda operation, path: None)

    def open(self, path: str, create: bool = False) -> File:
        file = super().open(path, create)
        return HookedFile(file, path, self.hook) if path == "metadata.changes" else file

    def write_file(self, path: str, data: bytes) -> None:
        self.hook("write_file", path)
        super().write_file(path, data)

    def make_directory(self, path: str) -> None:
        self.hook("make_directory", path)
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.hook("rename", target)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.hook("sync_directory", path)
        super().sync_directory(path)


def refuse(operation: str, ending: str, number: int, skip: int = 0, times: int = 1) -> Hook:
    """Fails so many calls of an operation on a path of an ending, after ``skip`` that pass."""
    left = skip + times

    def hook(seen: str, path: str) -> None:
        nonlocal left
        if seen == operation and path.endswith(ending):
            left -= 1
            if 0 <= left < times:
                raise OSError(number, os.strerror(number))

    return hook


class Served:
    """A running daemon and a client of it."""

    def __init__(self, daemon: Daemon, storage: Hooked, cluster: Cluster) -> None:
        self.daemon = daemon
        self.storage = storage
        self.cluster = cluster

    async def create(self, *topics: CreatableTopic, timeout_ms: int = 10_000) -> tuple[CreatedTopic, ...]:
        return (await self.cluster.call(CreateTopicsRequest(topics, timeout_ms), CreateTopicsResponse)).topics

    async def delete(self, *names: str, timeout_ms: int = 10_000) -> tuple[TopicResult, ...]:
        return (await self.cluster.call(DeleteTopicsRequest(names, timeout_ms), DeleteTopicsResponse)).responses

    async def grow(self, name: str, count: int) -> TopicResult:
        request = CreatePartitionsRequest((TopicPartitionCount(name, count),))
        return (await self.cluster.call(request, CreatePartitionsResponse)).results[0]

    async def produce(self, topic: str, partition: int = 0) -> None:
        batch = encode_batch([b"x"] * 100, timestamps_ms=[1] * 100)
        data = (TopicProduceData(topic, (PartitionProduceData(partition, batch),)),)
        response = await self.cluster.call(ProduceRequest(None, -1, 5000, data), ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == NONE

    async def end(self, topic: str, partition: int = 0) -> int:
        """The high watermark, or the error code as a negative number."""
        ask = FetchRequest(0, 0, 1 << 20, (FetchTopic(topic, (FetchPartition(partition, 0, 1 << 20),)),))
        found = (await self.cluster.call(ask, FetchResponse)).responses[0].partitions[0]
        return found.high_watermark if found.error_code == NONE else -found.error_code


@asynccontextmanager
async def served(root: Path, **settings: object) -> AsyncIterator[Served]:
    storage = Hooked(root)
    daemon = Daemon(settings_from({"data_dir": str(root), "port": 0, **settings}), storage, SYSTEM_ORIGINS)
    await daemon.start()
    cluster = Cluster("{}:{}".format(*daemon.address), client_id="test", request_timeout_ms=10_000)
    try:
        await cluster.start()
        yield Served(daemon, storage, cluster)
    finally:
        await cluster.close()
        await daemon.stop()


async def test_a_topic_made_again_after_half_a_deletion_keeps_its_records(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        await node.create(CreatableTopic("t", 2))
        await node.produce("t")
        node.storage.hook = refuse("append", "metadata.changes", errno.ENOSPC, skip=1, times=2)
        # The note is not taken back, and what is refused again once the reserve is released stays refused.
        (deleted,) = await node.delete("t")
        assert deleted.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (created,) = await node.create(CreatableTopic("t", 1))
        assert created.error_code == NONE
        assert await node.end("t") == 0, "nothing of the namesake"
        await node.produce("t")
    async with served(tmp_path) as node:
        assert await node.end("t") == 100
        assert not (tmp_path / "t-1").exists()


async def test_a_name_is_not_free_while_files_of_its_namesake_are_left(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        await node.create(CreatableTopic("t", 1))
        await node.produce("t")
        node.storage.hook = refuse("rename", ".deleted", errno.EACCES)
        assert (await node.delete("t"))[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        node.storage.hook = refuse("rename", ".deleted", errno.EACCES)
        (created,) = await node.create(CreatableTopic("t", 1))
        assert (created.error_code, "Permission denied" in created.error_message) == (
            ErrorCode.KAFKA_STORAGE_ERROR,
            True,
        )
        (created,) = await node.create(CreatableTopic("t", 1))
        assert created.error_code == NONE
        assert await node.end("t") == 0


@pytest.mark.parametrize("change", ["create", "grow", "delete"])
async def test_metadata_in_doubt_ends_the_daemon_and_the_next_knows(tmp_path: Path, change: str) -> None:
    """The line was written and its sync failed: the change is there, or it is not, but never half of it."""
    async with served(tmp_path) as node:
        await node.create(CreatableTopic("t", 1))
        await node.produce("t")
        node.storage.hook = refuse("sync", "metadata.changes", errno.EIO)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: node.create(CreatableTopic("u", 1)),
            "grow": lambda: node.grow("t", 2),
            "delete": lambda: node.delete("t"),
        }
        asking = asyncio.ensure_future(calls[change]())
        assert "it is unknown" in await asyncio.wait_for(asyncio.shield(node.daemon.failed), 10)
        node.storage.hook = lambda operation, path: None
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with served(tmp_path) as node:
        unknown = -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ends = [await node.end("t", 0), await node.end("t", 1), await node.end("u")]
        assert (
            ends
            == {
                "create": [100, unknown, 0],
                "grow": [100, 0, unknown],
                "delete": [unknown, unknown, unknown],
            }[change]
        )


async def test_what_one_topic_asks_for_in_vain_hides_nothing_of_the_others(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        results = await node.create(
            CreatableTopic("a", 1),
            CreatableTopic("b", 1, -1, (TopicConfig("segment.bytes", "9" * 5000),)),
            CreatableTopic("c", 1),
        )
        assert [(result.name, result.error_code) for result in results] == [
            ("a", NONE),
            ("b", ErrorCode.INVALID_CONFIG),
            ("c", NONE),
        ]

        def fault(operation: str, path: str) -> None:
            if path == "e-0":
                raise RuntimeError("a fault of ours")

        node.storage.hook = fault
        results = await node.create(CreatableTopic("d", 1), CreatableTopic("e", 1), CreatableTopic("f", 1))
        assert [result.error_code for result in results] == [NONE, ErrorCode.UNKNOWN_SERVER_ERROR, NONE]
        assert await node.end("f") == 0


async def test_a_creation_that_the_disk_refuses_leaves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        for hook in (
            refuse("make_directory", "t-7", errno.ENOSPC),
            refuse("sync_directory", "t-3", errno.ENOSPC),
            refuse("append", "metadata.changes", errno.ENOSPC),
        ):
            node.storage.hook = hook
            (result,) = await node.create(CreatableTopic("t", 20))
            assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left on device" in result.error_message
            assert not [path.name for path in tmp_path.iterdir() if path.is_dir()]
        (result,) = await node.create(CreatableTopic("t", 20))
        assert (result.error_code, await node.end("t", 19)) == (NONE, 0)


async def test_many_topics_of_one_request_are_made_with_few_writes(tmp_path: Path) -> None:
    writes: list[str] = []
    async with served(tmp_path) as node:
        node.storage.hook = lambda operation, path: writes.append(path) if operation in WRITES else None
        results = await node.create(*(CreatableTopic(f"t{number}", 2) for number in range(100)), timeout_ms=60_000)
        assert {result.error_code for result in results} == {NONE}
        assert len({result.topic_id for result in results}) == 100
        assert 1 <= writes.count("metadata.json") + writes.count("metadata.changes") <= 4
        assert await node.end("t99", 1) == 0
    async with served(tmp_path) as node:
        assert await node.end("t0", 1) == 0


async def test_topics_of_requests_that_wait_at_the_same_time_share_a_write(tmp_path: Path) -> None:
    writes: list[str] = []
    async with served(tmp_path) as node:
        node.storage.hook = lambda operation, path: writes.append(path) if operation in WRITES else None
        wanted = [CreatableTopic(f"t{number % 40}", 2) for number in range(80)]
        wanted[7] = CreatableTopic("t7", 2, -1, (TopicConfig("segment.bytes", "none"),))
        results = [result for (result,) in await asyncio.gather(*(node.create(topic) for topic in wanted))]
        codes = [result.error_code for result in results]
        assert codes.pop(7) == ErrorCode.INVALID_CONFIG
        assert codes == [NONE] * 39 + [ErrorCode.TOPIC_ALREADY_EXISTS] * 7 + [NONE] + (
            [ErrorCode.TOPIC_ALREADY_EXISTS] * 32
        )
        assert 1 <= writes.count("metadata.json") + writes.count("metadata.changes") <= 8
        assert await node.end("t7", 1) == await node.end("t39", 1) == 0


async def test_a_topic_that_the_disk_refuses_keeps_those_of_other_requests_from_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as node:

        def refused(operation: str, path: str) -> None:
            if path == "t3-0":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        node.storage.hook = refused
        requests = [asyncio.create_task(node.create(CreatableTopic(f"t{number}", 1))) for number in range(8)]
        await asyncio.sleep(0)
        checked = CreateTopicsRequest((CreatableTopic("t5", 1), CreatableTopic("t9", 1)), 10_000, validate_only=True)
        valid = await node.cluster.call(checked, CreateTopicsResponse)
        codes = [result.error_code for (result,) in await asyncio.gather(*requests)]
        assert codes == [NONE] * 3 + [ErrorCode.KAFKA_STORAGE_ERROR] + [NONE] * 4
        assert [topic.error_code for topic in valid.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS, NONE]
        assert await node.end("t9") == -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("operation", "path"), [("make_directory", "b-1"), ("sync_directory", "b-0"), ("append", "metadata.changes")]
)
async def test_topics_made_together_with_one_that_the_disk_refuses_are_made(
    tmp_path: Path, operation: str, path: str
) -> None:
    async with served(tmp_path) as node:

        def no_room(seen: str, at: str) -> None:
            if seen == operation and at == path and (operation != "append" or (tmp_path / "b-0").exists()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        node.storage.hook = no_room
        results = await node.create(*(CreatableTopic(name, 2) for name in "abc"), timeout_ms=60_000)
        assert [result.error_code for result in results] == [NONE, ErrorCode.KAFKA_STORAGE_ERROR, NONE]
        assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == ["a-0", "a-1", "c-0", "c-1"]
        node.storage.hook = Hooked.hook
        assert (await node.create(CreatableTopic("b", 2)))[0].error_code == NONE


async def test_all_topics_together_are_bounded(tmp_path: Path) -> None:
    async with served(tmp_path, max_partitions=10) as node:
        results = await node.create(CreatableTopic("a", 7), CreatableTopic("b", 4), CreatableTopic("c", 3))
        assert [result.error_code for result in results] == [NONE, ErrorCode.INVALID_PARTITIONS, NONE]
        assert "max_partitions" in results[1].error_message
        assert (await node.grow("a", 8)).error_code == ErrorCode.INVALID_PARTITIONS
        await node.delete("c")
        assert (await node.grow("a", 8)).error_code == NONE


async def test_at_the_deadline_what_has_begun_goes_on_and_the_rest_is_dropped(tmp_path: Path) -> None:
    held = threading.Event()

    def hold(operation: str, path: str) -> None:
        if path == "slow-0":
            held.wait(20)

    async with served(tmp_path) as node:
        await node.create(CreatableTopic("old", 1))
        node.storage.hook = hold
        topics = CreatableTopic("first", 1), CreatableTopic("slow", 1), CreatableTopic("dropped", 300)
        before = asyncio.create_task(node.create(*topics, timeout_ms=300))
        await asyncio.sleep(0.1)
        behind = asyncio.create_task(node.delete("old", timeout_ms=100))
        (deleted,) = await behind
        assert deleted.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert [result.error_code for result in await before] == [ErrorCode.REQUEST_TIMED_OUT] * 3
        held.set()
        async with asyncio.timeout(30):
            while await node.end("slow") != 0:
                await asyncio.sleep(0.01)
        assert await node.end("first") == 0, "it was begun together with the other"
        assert await node.end("old") == 0, "the deletion had not begun"
        assert await node.end("dropped") == -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "too large to go with the others"
        assert (await node.delete("old", timeout_ms=0))[0].error_code in (NONE, ErrorCode.REQUEST_TIMED_OUT)
        async with asyncio.timeout(30):
            while await node.end("old") != -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await asyncio.sleep(0.01)


async def test_at_the_deadline_what_is_deleted_of_records_is_told(tmp_path: Path) -> None:
    held = threading.Event()

    def hold(operation: str, path: str) -> None:
        if (operation, path) == ("write_file", "t-1/checkpoint"):
            held.wait(20)

    async with served(tmp_path) as node:
        await node.create(CreatableTopic("t", 3))
        for partition in range(3):
            await node.produce("t", partition)
        node.storage.hook = hold
        asked = tuple(DeleteRecordsPartition(partition, 40) for partition in range(3))
        request = DeleteRecordsRequest((DeleteRecordsTopic("t", asked),), timeout_ms=300)
        async with asyncio.timeout(30):
            (topic,) = (await node.cluster.call(request, DeleteRecordsResponse)).topics
        assert [(each.error_code, each.low_watermark) for each in topic.partitions] == [
            (NONE, 40),
            (ErrorCode.REQUEST_TIMED_OUT, -1),
            (ErrorCode.REQUEST_TIMED_OUT, -1),
        ]
        held.set()
        logs = (
            [node.daemon._partitions.get("t", partition) for partition in range(3)] if node.daemon._partitions else []
        )
        async with asyncio.timeout(30):
            while [log.start_offset for log in logs if log is not None] != [40, 40, 0]:  # the last had not begun
                await asyncio.sleep(0.01)


async def test_commits_of_a_deleted_topic_are_forgotten(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        await node.create(CreatableTopic("t", 1), CreatableTopic("kept", 1))
        for topic in ("t", "kept"):
            commit = OffsetCommitRequest("g", -1, "", None, (OffsetCommitTopic(topic, (OffsetCommitPartition(0, 7),)),))
            await node.cluster.call_coordinator("g", commit, OffsetCommitResponse)
        await node.delete("t")
        await node.create(CreatableTopic("t", 1))
        fetched = await node.cluster.call_coordinator("g", OffsetFetchRequest("g", None), OffsetFetchResponse)
        assert [topic.name for topic in fetched.topics] == ["kept"]


async def test_missing_metadata_is_no_new_data_directory(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        await node.create(CreatableTopic("t", 1))
    (tmp_path / "metadata.json").rename(tmp_path / "backup")
    with pytest.raises(MetadataDamagedError, match=r"metadata\.json is missing"):
        async with served(tmp_path):
            pass
    (tmp_path / "backup").rename(tmp_path / "metadata.json")
    async with served(tmp_path) as node:
        assert await node.end("t") == 0


async def test_a_lost_partition_of_offsets_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        commit = OffsetCommitRequest("g", -1, "", None, (OffsetCommitTopic("t", (OffsetCommitPartition(0, 7),)),))
        await node.create(CreatableTopic("t", 1))
        await node.cluster.call_coordinator("g", commit, OffsetCommitResponse)
    (lost,) = tmp_path.glob("__consumer_offsets-*")
    lost.rename(tmp_path / "elsewhere")
    async with served(tmp_path) as node:
        with pytest.raises(CohortError, match="it is missing"):
            await node.cluster.call_coordinator("g", OffsetFetchRequest("g", None), OffsetFetchResponse)
        assert await node.end("t") == 0
    assert not lost.exists()


async def test_a_start_that_fails_leaves_nothing_running_and_the_directory_free(tmp_path: Path) -> None:
    async with served(tmp_path / "first") as node:
        _, port = node.daemon.address
        with pytest.raises(AddressError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use. Stop the program"):
            async with served(tmp_path / "second", port=port):
                pass
        assert [task.get_name() for task in asyncio.all_tasks() if "cohort-load" in task.get_name()] == []
    async with served(tmp_path / "second"):
        pass
