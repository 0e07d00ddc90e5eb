"""Consumers of a log that was cut below what they have read (KIP-320): by an unclean election, or with ``acks=1``.

One daemon behind a proxy that plays the leader of a replicated partition: it says that a partition has two replicas, and
answers as a leader does whose log ends earlier in the epoch that was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import msgpack
import pyarrow
import pytest
import structlog

from client import Admin, Consumer, LogTruncatedError, Producer, TopicPartition
from client.spark.errors import DataLossError
from client.spark.options import source_options
from client.spark.planning import Range
from client.spark.tasks.reader import RangeReader
from client.types.records import OffsetAndMetadata
from coordinator import Coordinator
from protocol.codec import decode_message, encode_message
from protocol.messages import ApiKey
from protocol.messages.cluster import MetadataResponse
from protocol.messages.records import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from tests.integration.consuming import QUICK, fill, take, until
from tests.integration.hostile_proxy import HostileProxy, Malice, frames, send

TP = TopicPartition("t", 0)


class CutLog(HostileProxy):
    """``cut`` is where the log was cut, None while it is whole or once it is read from there on.

    ``asked`` has the fetches that came: offset, leader epoch and epoch of the last record; ``topic_ids`` the ids they named.
    """

    def __init__(self) -> None:
        super().__init__(Malice(), Random(0))
        self.cut: int | None = None
        self.asked: list[tuple[int, int, int]] = []
        self.topic_ids: set[str] = set()
        self._metadata: set[int] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await super()._serve(reader, writer)

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, produces: set[int]) -> None:
        writer = self._writers[-1]
        async for frame in frames(reader):
            fields = msgpack.unpackb(frame)
            if fields[0] == ApiKey.METADATA:
                produces.add(fields[2])
            if fields[0] == ApiKey.FETCH and not self._passes(decode_message(FetchRequest, fields[4])):
                gone = FetchedPartition(0, 0, diverging_epoch=0, diverging_end=self.cut or 0)
                answer = FetchResponse(0, (FetchedTopic("t", (gone,)),))
                send(writer, msgpack.packb([fields[2], encode_message(answer)]))
                continue
            send(upstream, frame)

    def _passes(self, request: FetchRequest) -> bool:
        (topic,) = request.topics
        (asked,) = topic.partitions
        self.topic_ids.add(topic.topic_id)
        self.asked.append((asked.fetch_offset, asked.current_leader_epoch, asked.last_fetched_epoch))
        if self.cut is not None and (asked.fetch_offset <= self.cut or asked.last_fetched_epoch < 0):
            self.cut = None
        return self.cut is None

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, produces: set[int]) -> None:
        async for frame in frames(reader):
            fields: list[Any] = msgpack.unpackb(frame)
            if fields[0] in produces and len(fields) == 2:
                produces.discard(fields[0])
                answer = decode_message(MetadataResponse, fields[1])
                topics = tuple(
                    replace(topic, partitions=tuple(replace(each, replica_nodes=(0, 1)) for each in topic.partitions))
                    for topic in answer.topics
                )
                frame = msgpack.packb([fields[0], encode_message(replace(answer, topics=topics))])
            send(writer, frame)


@asynccontextmanager
async def cut_log() -> AsyncIterator[tuple[CutLog, str, str]]:
    """The proxy, its address, and the daemon's own."""
    async with (
        CutLog() as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 1})
        yield proxy, f"127.0.0.1:{proxy.port}", coordinator.address


async def test_a_consumer_goes_on_where_the_logs_part_and_says_what_is_lost() -> None:
    async with cut_log() as (proxy, address, _):
        await fill(address, "t", range(10))
        with structlog.testing.capture_logs() as logs:
            async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
                consumer.assign([TP])
                assert await take(consumer, 10) == [*range(10)]
                proxy.cut = 6
                assert await take(consumer, 4) == [6, 7, 8, 9]
        (lost,) = [entry for entry in logs if entry["event"] == "log_truncated"]
        assert (lost["topic"], lost["partition"], lost["offsets"], lost["lost"]) == ("t", 0, "6 to 9", 4)
        assert (10, 0, 0) in proxy.asked, "the epochs of the leader and of what was read"
        assert all(len(topic_id) > 10 for topic_id in proxy.topic_ids)


async def test_without_a_reset_policy_the_program_is_told_both_offsets_until_it_seeks() -> None:
    async with cut_log() as (proxy, address, _):
        await fill(address, "t", range(10))
        async with Consumer(bootstrap_servers=address, auto_offset_reset="none") as consumer:
            consumer.assign([TP])
            consumer.seek(TP, 0)
            assert await take(consumer, 10) == [*range(10)]
            proxy.cut = 6
            for _ in range(2):
                with pytest.raises(
                    LogTruncatedError, match=r"t-0: offsets 6 to 9 were read .* seek\(\) to 6"
                ) as caught:
                    await take(consumer, 1)
                assert (caught.value.partition, caught.value.offset, caught.value.diverging_offset) == (TP, 10, 6)
            assert await consumer.position(TP) == 10
            consumer.seek(TP, caught.value.diverging_offset)
            assert await take(consumer, 4) == [6, 7, 8, 9]


async def test_records_that_were_fetched_and_not_handed_out_are_fetched_again() -> None:
    async with cut_log() as (proxy, address, _):
        await fill(address, "t", range(10))
        with structlog.testing.capture_logs() as logs:
            async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
                consumer.assign([TP])
                assert await take(consumer, 3) == [0, 1, 2]
                proxy.cut = 6
                state = consumer._assignment.states[TP]
                await until(lambda: (proxy.asked[-1][0] == 3 and not state.buffered_bytes) or len(proxy.asked) > 4)
                assert await take(consumer, 7) == [3, 4, 5, 6, 7, 8, 9]
        assert [entry for entry in logs if entry["event"] == "log_truncated"] == []


async def test_the_epoch_of_what_was_read_is_committed_and_asked_by_after_a_restart() -> None:
    async with cut_log() as (proxy, address, direct):
        await fill(address, "t", range(10))
        async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as consumer:
            assert await take(consumer, 10) == [*range(10)]
            await consumer.commit()
        async with Admin(direct) as admin:
            assert await admin.list_offsets("g") == {TP: OffsetAndMetadata(10, "", 0)}
        proxy.cut = 6
        with structlog.testing.capture_logs() as logs:
            async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as consumer:
                assert await take(consumer, 4) == [6, 7, 8, 9]
        assert [entry["offsets"] for entry in logs if entry["event"] == "log_truncated"] == ["6 to 9"]


async def test_a_log_that_is_not_replicated_is_read_as_ever() -> None:
    async with Coordinator() as coordinator, Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 1})
        await fill(coordinator.address, "t", range(3))
        async with Consumer("t", bootstrap_servers=coordinator.address, group_id="g", **QUICK) as consumer:
            assert await take(consumer, 3) == [0, 1, 2]
            await consumer.commit()
        assert await admin.list_offsets("g") == {TP: OffsetAndMetadata(3)}


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_task_that_finds_another_log_than_it_read_has_lost_data(fail: str) -> None:
    async with cut_log() as (proxy, address, _):
        async with Producer(address) as producer:
            for number in range(10):
                await producer.send_and_wait("t", b"%d" % number)  # a batch each
        given = {"kafka.bootstrap.servers": address, "subscribe": "t", "failOnDataLoss": fail, "fetch.max.bytes": "1"}
        options = source_options(given, streaming=False)
        schema = pyarrow.schema([("value", pyarrow.binary())])

        def read() -> list[int]:
            batches = RangeReader(options, Range("t", 0, 0, 10), schema).batches()
            numbers = []
            for batch in batches:
                numbers += [int(value) for value in batch.column(0).to_pylist()]
                if numbers == [0]:
                    proxy.cut = 0
            return numbers

        reading = asyncio.to_thread(read)
        if fail == "true":
            with pytest.raises(DataLossError, match=r"t-0 was read from offset 0 to \d, and a new leader has other"):
                await reading
        else:
            assert await reading == [*range(10)]
