"""A producer and a daemon that is there: records arrive once, in order, where they belong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any, Literal
from unittest.mock import patch

import pytest

from client.admin import Admin
from client.errors import (
    ClosedError,
    MessageTooLargeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from client.producer.producer import Producer
from coordinator import Coordinator
from protocol.hashing import partition_for_key
from tests.integration.fetched import stored, values


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for something that happens elsewhere, at most half a minute."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A daemon with topic "t" of four partitions and topic "one" of a single one."""
    async with Coordinator() as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 4, "one": 1})
        yield coordinator.address


async def test_concurrent_senders_keep_their_order_and_lose_nothing(address: str) -> None:
    async def sender(producer: Producer, name: int) -> list[Any]:
        return [await producer.send("t", b"%d %d" % (name, number), b"%d" % name) for number in range(500)]

    async with Producer(address, batch_size=2000) as producer:
        futures = await asyncio.gather(*(sender(producer, name) for name in range(10)))
        await producer.flush()
        assert all(future.done() for own in futures for future in own)
    records = await stored(address, "t")
    for name in range(10):
        partition = partition_for_key(b"%d" % name, 4)
        own = [record for record in records[partition] if record.key == b"%d" % name]
        assert [record.value for record in own] == [b"%d %d" % (name, number) for number in range(500)]
        assert [record.offset for record in own] == [future.result().offset for future in futures[name]]
    assert sum(map(len, records.values())) == 5000


async def test_everything_a_record_has_arrives(address: str) -> None:
    async with Producer(address) as producer:
        sent = [
            await producer.send_and_wait(
                "one", b"value", b"key", timestamp_ms=5, headers=[("a", b"1"), ("a", None), ("", b"")]
            ),
            await producer.send_and_wait("one", None, b"tombstone", timestamp_ms=6),
            await producer.send_and_wait("one", b"", b"", timestamp_ms=7),
            await producer.send_and_wait("one", bytearray(b"x"), memoryview(b"y"), timestamp_ms=8),
        ]
    assert [tuple(entry) for entry in sent] == [("one", 0, offset, 5 + offset) for offset in range(4)]
    assert [tuple(record) for record in (await stored(address, "one"))[0]] == [
        (0, 5, b"key", b"value", (("a", b"1"), ("a", None), ("", b""))),
        (1, 6, b"tombstone", None, ()),
        (2, 7, b"", b"", ()),
        (3, 8, b"y", b"x", ()),
    ]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("buffer_bytes", [4_000, 32 * 2**20])
async def test_many_records_have_headers_and_times_of_their_own(address: str, keyed: bool, buffer_bytes: int) -> None:
    count = 500
    values = [b"%d" % number for number in range(count)]
    keys = [b"%d" % (number % 7) for number in range(count)] if keyed else None
    headers = [[("n", b"%d" % number), ("x", None)] if number % 3 else None for number in range(count)]
    times = range(1000, 1000 + count)
    async with Producer(address, batch_size=1000, buffer_bytes=buffer_bytes) as producer, asyncio.timeout(60):
        sent = await producer.send_many("t", values, keys, headers=headers, timestamp_ms=times)
        plain = await producer.send_many("t", values[:3], timestamp_ms=77)
        assert producer._pool.used == 0
    assert [entry.timestamp_ms for entry in sent] == list(times)
    assert [entry.timestamp_ms for entry in plain] == [77] * 3
    found = await stored(address, "t")
    for number, entry in enumerate(sent):
        record = found[entry.partition][entry.offset]
        assert record.value == values[number]
        assert record.key == (keys[number] if keys else None)
        assert record.timestamp_ms == times[number]
        assert record.headers == (() if headers[number] is None else (("n", b"%d" % number), ("x", None)))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"headers": [None]}, ValueError, "values: 2, headers: 1; every record needs one of each"),
        ({"headers": [[("a", "text")], None]}, TypeError, "the value of header 'a' must be bytes or None"),
        ({"headers": "ab"}, TypeError, "one sequence of .* for each value"),
        ({"headers": [("a", b"1"), ("b", b"2")]}, TypeError, "headers must be a sequence of"),
        ({"headers": [[("", b"")] * 400, None]}, MessageTooLargeError, "above"),
        ({"timestamp_ms": [1]}, ValueError, "values: 2, timestamps: 1; every record needs one of each"),
        ({"timestamp_ms": [1, -1]}, ValueError, "timestamp_ms -1 is outside"),
        ({"timestamp_ms": "now"}, TypeError, "one for all or one for each value, not 'now'"),
        ({"timestamp_ms": 1.5}, TypeError, "one for all or one for each value, not 1.5"),
    ],
)
async def test_headers_and_times_of_many_records_are_checked_before_anything_is_sent(
    address: str, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    async with Producer(address, buffer_bytes=20_000) as producer:
        with pytest.raises(error, match=text):
            await producer.send_many("one", [b"1", b"2"], **arguments)
        assert producer._pool.used == 0
        assert (await producer.send_and_wait("one", b"first")).offset == 0


async def test_the_clock_gives_the_time_of_records_that_bring_none(address: str) -> None:
    async with Producer(address, clock=lambda: 1234) as producer:
        assert (await producer.send_and_wait("one", b"v")).timestamp_ms == 1234
        assert (await producer.send_many("one", [b"v"]))[0].timestamp_ms == 1234


async def test_send_many_answers_in_the_order_of_its_input(address: str) -> None:
    keys = [b"%d" % (number % 7) if number % 3 else None for number in range(3000)]
    many = [b"%d" % number for number in range(3000)]
    async with Producer(address, batch_size=1000, buffer_bytes=20_000) as producer:
        results = await producer.send_many("t", many, keys)
    records = await stored(address, "t")
    by_place = {(partition, record.offset): record for partition, own in records.items() for record in own}
    found = [by_place[entry.partition, entry.offset] for entry in results]
    assert [record.value for record in found] == many
    assert [record.key for record in found] == keys
    for key in set(keys) - {None}:
        places = [entry for entry, own in zip(results, keys, strict=True) if own == key]
        assert {entry.partition for entry in places} == {partition_for_key(key or b"", 4)}
        assert [entry.offset for entry in places] == sorted(entry.offset for entry in places)


async def test_send_many_without_keys_fills_batch_after_batch(address: str) -> None:
    async with Producer(address, batch_size=1000, partitioner_adaptive=False) as producer:
        results = await producer.send_many("t", (b"%d" % number for number in range(2000)))
        assert await producer.send_many("t", []) == []
        fixed = await producer.send_many("t", [b"x", b"y"], partition=2)
    turns = [1 for before, after in pairwise(results) if before.partition != after.partition]
    assert 2000 * 20 / 2 / 1000 <= len(turns) <= 2000 * 22 / 700, "one to two batches a turn"
    assert {entry.partition for entry in results} == {0, 1, 2, 3}
    assert {entry.partition for entry in fixed} == {2}
    assert sum(map(len, (await stored(address, "t")).values())) == 2002


async def test_send_and_send_many_may_be_mixed(address: str) -> None:
    async with Producer(address, batch_size=500) as producer:
        futures = [await producer.send("one", b"0")]
        many = asyncio.create_task(producer.send_many("one", [b"%d" % number for number in range(1, 200)]))
        await many
        futures.append(await producer.send("one", b"200", headers=[("h", b"")]))
    assert (await values(address, "one"))[0] == [b"%d" % number for number in range(201)]
    assert [future.result().offset for future in futures] == [0, 200]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_compressed_batches_arrive(address: str, compression: Literal["gzip", "zstd"]) -> None:
    text = [b"again and again %d" % (number // 100) for number in range(5000)]
    async with Producer(address, compression=compression) as producer:
        await producer.send_many("one", text)
        await producer.send_and_wait("one", b"last", headers=[("h", b"1")])
    assert (await values(address, "one"))[0] == [*text, b"last"]


@pytest.mark.parametrize("acks", ["all", 1])
async def test_acknowledged_records_tell_their_offset(address: str, acks: Literal["all", 1]) -> None:
    async with Producer(address, acks=acks) as producer:
        assert [(await producer.send_and_wait("one", b"v")).offset for _ in range(3)] == [0, 1, 2]


async def test_without_acks_the_future_is_done_once_the_record_is_written(address: str) -> None:
    async with Producer(address, acks=0) as producer:
        assert (await producer.send_and_wait("one", b"v")).offset == -1
        assert [entry.offset for entry in await producer.send_many("one", [b"w", b"x"])] == [-1, -1]

        async def stored_all() -> bool:
            return (await values(address, "one"))[0] == [b"v", b"w", b"x"]

        await until(stored_all)


async def test_serializers_make_bytes_and_leave_null_alone(address: str) -> None:
    async with Producer(address, key_serializer=str.encode, value_serializer=lambda v: b"%d" % v) as producer:
        await producer.send_and_wait("one", 7, "k")
        await producer.send_and_wait("one", None, None)
        await producer.send_many("one", [8, None], ["l", None])
    assert [(record.key, record.value) for record in (await stored(address, "one"))[0]] == [
        (b"k", b"7"), (None, None), (b"l", b"8"), (None, None),
    ]  # fmt: skip


async def test_a_partitioner_of_the_user_decides(address: str) -> None:
    async with Producer(
        address, partitioner=lambda topic, key, value, partitions, available: partitions[-1]
    ) as producer:
        assert (await producer.send_and_wait("t", b"v", b"key")).partition == 3
        assert {entry.partition for entry in await producer.send_many("t", [b"v"] * 10)} == {3}
        assert (await producer.send_and_wait("t", b"v", partition=1)).partition == 1


async def test_the_buffer_bounds_what_is_under_way(address: str) -> None:
    async with Producer(address, buffer_bytes=5000, batch_size=1000) as producer:
        most = 0

        async def send(number: int) -> None:
            nonlocal most
            await producer.send("one", b"%0400d" % number)
            most = max(most, producer._pool.used)

        await asyncio.gather(*(send(number) for number in range(200)))
        await producer.flush()
        assert 0 < most <= 5000
        assert producer._pool.used == 0
    assert (await values(address, "one"))[0] == [b"%0400d" % number for number in range(200)]


async def test_a_full_buffer_ends_lingering(address: str) -> None:
    async with Producer(address, buffer_bytes=2000, linger_ms=100_000) as producer:
        async with asyncio.timeout(30):
            futures = [await producer.send("one", b"%0400d" % number) for number in range(20)]
        async with asyncio.timeout(30):
            await producer.flush()
        assert all(future.done() for future in futures)


async def test_linger_gathers_records_until_its_time_is_over(address: str) -> None:
    async with Producer(address, linger_ms=50) as producer:
        first = await producer.send("one", b"1")
        await asyncio.sleep(0.01)
        second = await producer.send("one", b"2")
        assert not first.done()
        assert (await second).offset == 1


async def test_big_values_pass_and_too_big_ones_fail_alone(address: str) -> None:
    big = b"x" * 3_000_000
    async with Admin(address) as admin:
        await admin.create_topics({"big": 1}, {"max.message.bytes": 4_000_000})
    async with Producer(address) as producer:
        assert (await producer.send_and_wait("big", big)).offset == 0
        with pytest.raises(MessageTooLargeError, match=r"a record of 4194305 bytes for topic 'big'.*max_request_bytes"):
            await producer.send("big", b"x" * (4 * 1024 * 1024 - 16))
        with pytest.raises(MessageTooLargeError):
            await producer.send_many("big", [b"small", b"x" * 5_000_000])
        with pytest.raises(MessageTooLargeError, match=r"1 record for one-0 was not stored: .*max.message.bytes"):
            await producer.send_and_wait("one", big)
        assert (await producer.send_and_wait("one", b"fine")).offset == 0
    assert (await values(address, "big"))[0] == [big]


async def test_batches_that_a_topic_finds_too_large_are_split(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics({"small": 1}, {"max.message.bytes": 1000})
    async with Producer(address, batch_size=10_000) as producer:
        results = await producer.send_many("small", [b"%0100d" % number for number in range(500)])
        futures = [await producer.send("small", b"y" * (2000 if number == 3 else 100)) for number in range(10)]
        await producer.flush()
    assert [entry.offset for entry in results] == list(range(500))
    assert isinstance(futures[3].exception(), MessageTooLargeError)
    assert [future.result().offset for future in futures if not future.exception()] == list(range(500, 509))


async def test_what_does_not_exist_is_told_at_once(address: str) -> None:
    async with Producer(address) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match="topic 'nope' does not exist; create it with"):
            await producer.send("nope", b"v")
        for name in ("", "a b;rm -r", "..", "a\x1b[2J", "a" * 400):
            with pytest.raises(UnknownTopicOrPartitionError, match="does not exist and cannot: names have 1") as raised:
                await producer.send(name, b"v")
            assert str(raised.value).isprintable()
            assert len(str(raised.value)) < 200
        with pytest.raises(UnknownTopicOrPartitionError, match="topic 't' has partitions 0 to 3, not 4"):
            await producer.send("t", b"v", partition=4)
        with pytest.raises(UnknownTopicOrPartitionError, match="not -1"):
            await producer.send_many("t", [b"v"], partition=-1)
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.partitions_for("nope")
        assert await producer.partitions_for("t") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"value": "text"}, TypeError, "value must be bytes or None, not str 'text': .*value_serializer=str.encode"),
        ({"value": 5}, TypeError, "value must be bytes or None, not int 5: encode it first"),
        ({"key": "k"}, TypeError, "key must be bytes or None"),
        ({"partition": "1"}, TypeError, "partition must be a whole number or None"),
        ({"partition": True}, TypeError, "partition must be a whole number or None"),
        ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms must be whole milliseconds"),
        ({"timestamp_ms": -1}, ValueError, "timestamp_ms -1 is outside"),
        ({"timestamp_ms": 2**63}, ValueError, "is outside"),
        ({"headers": {"a": b"1"}}, TypeError, "headers must be a sequence of"),
        ({"headers": ["ab"]}, TypeError, "headers must be a sequence of"),
        ({"headers": [(b"a", b"1")]}, TypeError, "the name of a header must be a string"),
        ({"headers": [("a", "1")]}, TypeError, "the value of header 'a' must be bytes or None"),
        ({"headers": [("\ud800", b"1")]}, ValueError, "must be valid Unicode"),
        ({"topic": b"t"}, TypeError, "topic must be a string"),
    ],
)
async def test_wrong_arguments_are_named(
    address: str, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    async with Producer(address) as producer:
        with pytest.raises(error, match=text):
            await producer.send(**{"topic": "t", **arguments})
        assert producer._pool.used == 0


async def test_wrong_arguments_of_send_many_are_named_before_anything_is_sent(address: str) -> None:
    async with Producer(address) as producer:
        with pytest.raises(TypeError, match="value must be bytes or None, not str 'b'"):
            await producer.send_many("one", [b"a", "b"])
        with pytest.raises(TypeError, match="values must be a sequence of values, not a single bytes"):
            await producer.send_many("one", b"abc")
        with pytest.raises(ValueError, match="values: 2, keys: 1; every record needs one of each"):
            await producer.send_many("one", [b"a", b"b"], [b"k"])
    assert await values(address, "one") == {0: []}


async def test_it_is_used_between_start_and_stop_only(address: str) -> None:
    producer = Producer(address)
    for call in (producer.send("t", b"v"), producer.send_many("t", [b"v"]), producer.flush()):
        with pytest.raises(ClosedError, match="use it inside 'async with'"):
            await call
    await producer.start()
    await producer.send_and_wait("t", b"v")
    await producer.stop()
    await producer.stop()
    for call in (producer.send("t", b"v"), producer.send_many("t", [b"v"]), producer.flush(), producer.start()):
        with pytest.raises(ClosedError):
            await call
    unstarted = Producer(address)
    await unstarted.stop()


async def test_stop_delivers_what_was_queued(address: str) -> None:
    producer = Producer(address, linger_ms=100_000)
    await producer.start()
    futures = [await producer.send("t", b"%d" % number) for number in range(100)]
    await producer.stop()
    assert all(future.result().offset >= 0 for future in futures)


async def test_a_cancelled_send_has_not_queued_its_record(address: str) -> None:
    async with Producer(address, buffer_bytes=1300, linger_ms=100_000) as producer:
        await producer.send("one", b"x" * 1000)
        waiting = asyncio.create_task(producer.send("one", b"cancelled" * 50))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await producer.send("one", b"next")
        await producer.flush()
        assert producer._pool.used == 0
    assert (await values(address, "one"))[0] == [b"x" * 1000, b"next"]


async def test_cancelling_a_flush_or_a_future_harms_no_record(address: str) -> None:
    async with Producer(address) as producer:
        futures = [await producer.send("one", b"%d" % number) for number in range(10)]
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        futures[4].cancel()
        await producer.flush()
        assert producer._pool.used == 0
    assert (await values(address, "one"))[0] == [b"%d" % number for number in range(10)]


async def test_a_cancelled_send_many_leaves_nothing_behind(address: str) -> None:
    async with Producer(address, buffer_bytes=20_000, batch_size=1000) as producer:
        many = asyncio.create_task(producer.send_many("one", [b"%d" % number for number in range(50_000)]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert producer._pool.used > 10_000
        many.cancel()
        with pytest.raises(asyncio.CancelledError):
            await many
        await producer.flush()
        assert producer._pool.used == 0
    found = (await values(address, "one"))[0]
    assert found == [b"%d" % number for number in range(len(found))]


async def test_deleting_a_topic_fails_what_is_queued_for_it(address: str) -> None:
    async with Producer(address, linger_ms=100_000) as producer, Admin(address) as admin:
        future = await producer.send("one", b"v")
        await admin.delete_topics("one")
        await producer.flush(timeout=10)
        with pytest.raises(UnknownTopicOrPartitionError, match="1 record for one-0 was not stored"):
            await future

        async def known() -> bool:
            try:
                await producer.partitions_for("one")
            except UnknownTopicOrPartitionError:
                return True
            return False

        await until(known)
        await admin.create_topics({"one": 2})
        again = await producer.send("one", b"again", partition=1)
        await producer.flush()
        assert again.result().offset == 0


async def test_a_topic_that_is_made_again_is_a_new_one(address: str) -> None:
    """Its partitions know nothing of this producer, whose numbers go on where they were."""
    async with Producer(address) as producer, Admin(address) as admin:
        for _ in range(2):
            for number in range(3):
                assert (await producer.send_and_wait("one", b"%d" % number)).offset == number
            await admin.delete_topics("one")
            await admin.create_topics({"one": 1})


async def test_concurrent_sends_of_the_first_records_ask_once_for_the_topic_and_keep_their_order(address: str) -> None:
    async with Producer(address, batch_size=300) as producer:
        asked = 0
        question = producer._cluster.topic_partitions

        async def counted(*arguments: Any) -> int:
            nonlocal asked
            asked += 1
            return await question(*arguments)

        with patch.object(producer._cluster, "topic_partitions", counted):
            sends = [asyncio.create_task(producer.send("one", b"%d" % number)) for number in range(500)]
            await asyncio.sleep(0)
            sends[0].cancel()
            futures = await asyncio.gather(*sends[1:])
        assert asked == 1
        await asyncio.gather(*futures)
    assert (await values(address, "one"))[0] == [b"%d" % number for number in range(1, 500)]


async def test_a_stop_ends_the_question_for_a_topic() -> None:
    async with Coordinator() as coordinator:
        producer = Producer(coordinator.address)
        await producer.start()
        sending = asyncio.create_task(producer.send("one", b"v"))
        await asyncio.sleep(0)
        await producer.stop()
        with pytest.raises(ClosedError):
            await sending


async def test_partitions_that_are_added_are_used_without_a_restart(address: str) -> None:
    async with Producer(address) as producer, Admin(address) as admin:
        await producer.send_and_wait("one", b"v")
        await admin.create_partitions({"one": 3})

        async def known() -> bool:
            return await producer.partitions_for("one") == [0, 1, 2]

        await until(known)
        assert (await producer.send_and_wait("one", b"v", b"k")).partition == partition_for_key(b"k", 3)


async def test_a_flush_that_takes_too_long_says_so(address: str) -> None:
    async with Producer(address) as producer:
        await producer.flush()
        future = await producer.send("one", b"v")
        with pytest.raises(RequestTimedOutError, match="flush: 1 record is not acknowledged after 0 s"):
            await producer.flush(timeout=0)
        assert (await future).offset == 0
