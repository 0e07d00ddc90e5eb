"""What appears while a consumer reads is read from its beginning, also under "latest"; what does not exist is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from client import Admin, Consumer, Producer, RangeAssignor, TopicPartition, UnknownTopicOrPartitionError
from coordinator import Coordinator
from tests.integration.consuming import QUICK, Reader, create, fill, take, until

LATEST: dict[str, Any] = {**QUICK, "auto_offset_reset": "latest"}


async def send_slowly(producer: Producer, topic: str, partition: int, count: int = 20) -> None:
    """The first records are there before a consumer can have noticed the partition, the last ones long after."""
    for number in range(count):
        while True:
            try:
                await producer.send_and_wait(topic, b"%d" % number, partition=partition)
                break
            except UnknownTopicOrPartitionError:  # the producer has not noticed it yet either
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("group_id", [None, "g"])
@pytest.mark.parametrize("by_pattern", [False, True])
async def test_under_latest_no_record_of_what_appears_later_is_skipped(group_id: str | None, by_pattern: bool) -> None:
    async with Coordinator() as c:
        await create(c.address, **{"orders.a": 1})
        await fill(c.address, "orders.a", [1000, 1001])
        consumer = Consumer(bootstrap_servers=c.address, group_id=group_id, **LATEST)
        if by_pattern:
            consumer.subscribe(pattern=r"orders\..*")
        else:
            consumer.subscribe(["orders.a", "orders.b"])
        async with consumer, Admin(c.address) as admin, Producer(c.address) as producer:
            await until(lambda: bool(consumer.assignment()))
            reader = Reader(consumer)
            await admin.create_topics({"orders.b": 1})
            await send_slowly(producer, "orders.b", 0)
            await admin.create_partitions({"orders.a": 2})
            await send_slowly(producer, "orders.a", 1)
            await until(lambda: len(reader.records) >= 40)
            for tp in (("orders.b", 0), ("orders.a", 1)):
                read = [int(record.value) for record in reader.records if (record.topic, record.partition) == tp]
                assert read == list(range(20))
            assert not {1000, 1001} & set(reader.numbers), "those were there before, and latest skips them"


@pytest.mark.parametrize("group_id", [None, "g"])
async def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(group_id: str | None) -> None:
    """Also when it is the first that this consumer hears of the cluster's changes, and it had read further than that."""
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=1)
        await fill(c.address, "t", range(50))
        settings = {**LATEST, "auto_commit_interval_ms": 20}
        async with Consumer("t", bootstrap_servers=c.address, group_id=group_id, **settings) as consumer:
            tp = TopicPartition("t", 0)
            await until(lambda: tp in consumer.assignment())
            assert await consumer.position(tp) == 50
            reader = Reader(consumer)
            await fill(c.address, "t", range(50, 60))
            await until(lambda: len(reader.records) == 10)
            await admin.delete_topics("t")
            await admin.create_topics({"t": 1})
            await fill(c.address, "t", range(1_000, 1_100))
            await until(lambda: {*range(1_000, 1_100)} <= set(reader.numbers))
            assert [record.offset for record in reader.records[-100:]] == list(range(100))


async def test_a_member_that_comes_later_hears_from_the_leader_what_is_new() -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(100), partition=0)
        settings: dict[str, Any] = {
            "bootstrap_servers": c.address, "group_id": "g", "assignors": [RangeAssignor], "enable_auto_commit": False,
            "revoke_grace_ms": 500, **LATEST,
        }  # fmt: skip
        async with Consumer("t", client_id="a", **settings) as first, Admin(c.address) as admin:
            await until(lambda: first.state == "stable")
            await admin.create_partitions({"t": 2})
            await until(lambda: len(first.assignment()) == 2)
            await fill(c.address, "t", range(10), partition=1)
            assert await take(first, 10) == list(range(10))
            async with Consumer("t", client_id="b", **settings) as second:
                await until(lambda: [tp.partition for tp in second.assignment()] == [1])
                assert await take(second, 10) == list(range(10)), "the first has not committed them"
                await second.commit()
                async with Consumer("t", client_id="c", **settings) as third:
                    await until(lambda: len(first.assignment() | second.assignment()) == 2 and third.state == "stable")
                    await fill(c.address, "t", [10], partition=1)
                    assert await take(second, 1) == [10]


async def test_a_topic_that_does_not_exist_is_told_once_and_how_to_create_it() -> None:
    async with Coordinator() as c:
        with structlog.testing.capture_logs() as logs:
            async with Consumer("oders", bootstrap_servers=c.address, group_id="g", **LATEST) as consumer:
                await until(lambda: consumer.state == "stable")
                assert await consumer.getmany(timeout_ms=50) == {}
                consumer.subscribe(["oders", "no such name"])
                await create(c.address, unrelated=1)
                await until(lambda: sum(line["event"] == "subscribed_topic_missing" for line in logs) == 2)
                told = [line for line in logs if line["event"] == "subscribed_topic_missing"]
                await create(c.address, oders=1)
                await until(lambda: len(consumer.assignment()) == 1)
                assert [line for line in logs if line["event"] == "subscribed_topic_missing"] == told
    assert "topic 'oders' does not exist; create it with: cohort topics create oders" in told[0]["reason"]
    assert "'no such name' does not exist and cannot" in told[1]["reason"]
    assert {line["log_level"] for line in told} == {"warning"}


@pytest.mark.parametrize("group", ["g", None])
async def test_a_pattern_that_matches_no_topic_is_told_once_and_what_to_do(group: str | None) -> None:
    async with Coordinator() as c:
        await create(c.address, orders=1)
        with structlog.testing.capture_logs() as logs:
            async with Consumer(bootstrap_servers=c.address, group_id=group, **LATEST) as consumer:
                consumer.subscribe(pattern="order")
                await until(lambda: any(line["event"] == "subscribed_pattern_unmatched" for line in logs))
                await create(c.address, unrelated=1)
                consumer.subscribe(pattern="order")
                await until(lambda: "unrelated" in consumer._cluster.topology.topics)
                await create(c.address, order=1)
                await until(lambda: [tp.topic for tp in consumer.assignment()] == ["order"])
    (told,) = (line for line in logs if line["event"] == "subscribed_pattern_unmatched")
    assert told["log_level"] == "warning"
    assert (told["pattern"], told["group"]) == ("order", group)
    assert "no topic's whole name matches 'order'" in told["reason"]
    assert "cohort topics list" in told["reason"]
