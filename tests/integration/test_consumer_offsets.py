"""Committed offsets and positions: where reading goes on, and what a commit may cover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import pytest
import structlog

from client import (
    Admin,
    ClosedError,
    CommitFailedError,
    Consumer,
    IllegalStateError,
    NoOffsetForPartitionError,
    OffsetAndMetadata,
    OffsetMetadataTooLargeError,
    Producer,
    RecordDeserializationError,
    TopicPartition,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from coordinator import Coordinator
from protocol.messages.records import ListedOffset
from tests.integration.consuming import QUICK, Journal, Reader, create, fill, take, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A daemon with topic t of two partitions: 0 to 99 in the first, nothing in the second."""
    async with Coordinator() as c:
        await create(c.address, t=2)
        await fill(c.address, "t", range(100), partition=0)
        yield c.address


async def test_a_manual_commit_is_where_the_next_one_begins(address: str) -> None:
    async with Consumer("t", bootstrap_servers=address, group_id="g", enable_auto_commit=False, **QUICK) as first:
        await take(first, 10)
        await first.commit()
        await take(first, 5)
        assert await first.committed(T0, T1) == {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(0)}
        record = await first.getone()
        await first.commit(record)
        await take(first, 5)
    async with Consumer("t", bootstrap_servers=address, group_id="g", enable_auto_commit=False, **QUICK) as second:
        assert await take(second, 1) == [16]
        await second.commit({T0: 50, T1: OffsetAndMetadata(0, "note")})
    async with Consumer("t", bootstrap_servers=address, group_id="g", enable_auto_commit=False, **QUICK) as third:
        assert await take(third, 1) == [50]
        assert (await third.committed(T1))[T1] == OffsetAndMetadata(0, "note")
        await third.seek_to_committed(T0)
        assert await third.position(T0) == 50


async def test_stopping_commits_what_earlier_polls_handed_out_and_not_the_record_in_work(address: str) -> None:
    async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as first:
        assert await take(first, 10) == list(range(10))
    async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as second:
        assert await take(second, 1) == [9]
        await second.getmany(max_records=10)
        await second.commit()
    async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as third:
        assert await take(third, 1) == [20]


async def test_auto_commit_by_the_clock_stays_behind_the_record_in_work(address: str) -> None:
    settings = {**QUICK, "auto_commit_interval_ms": 50}
    async with Consumer("t", bootstrap_servers=address, group_id="g", **settings) as first:
        await take(first, 10)
        await until_committed(first, 9)
        assert await take(first, 1) == [10]
        await until_committed(first, 10)


async def until_committed(consumer: Consumer, offset: int) -> None:
    async with asyncio.timeout(20):
        while (await consumer.committed(T0))[T0] != OffsetAndMetadata(offset):
            await asyncio.sleep(0.01)


async def test_a_commit_after_the_partition_went_fails_with_the_reason(address: str) -> None:
    first = Consumer("t", bootstrap_servers=address, group_id="g", revoke_grace_ms=0, **QUICK)
    async with first:
        await until(lambda: len(first.assignment()) == 2)
        records = {record.partition: record for record in [await first.getone()]}
        async with Consumer("t", bootstrap_servers=address, group_id="g", client_id="newcomer", **QUICK) as second:
            await until(lambda: len(second.assignment()) == len(first.assignment()) == 1)
            gone = next(iter(second.assignment()))
            with pytest.raises(
                CommitFailedError, match=r"t-\d is not this consumer's: it was revoked .*newcomer.* joined"
            ):
                await first.commit({gone: records[0].offset + 1})
            with pytest.raises(CommitFailedError, match="t-7 is not this consumer's: it was never assigned"):
                await first.commit({TopicPartition("t", 7): 1})


async def test_a_commit_says_of_every_partition_what_became_of_it(address: str) -> None:
    t9 = TopicPartition("t", 9)
    async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as consumer, Admin(address) as admin:
        await until(lambda: len(consumer.assignment()) == 2)
        with pytest.raises(CommitFailedError, match="metadata for partition 1") as partly:
            await consumer.commit({T0: 5, T1: OffsetAndMetadata(6, "x" * 5_000)})
        assert partly.value.partitions[T0] is None
        assert isinstance(partly.value.partitions[T1], OffsetMetadataTooLargeError)
        assert partly.value.__cause__ is partly.value.partitions[T1]
        assert await consumer.committed(T0, T1) == {T0: OffsetAndMetadata(5), T1: None}
        with pytest.raises(CommitFailedError) as unsent:
            await consumer.commit({T0: 7, t9: 1})
        assert "never assigned" in str(unsent.value.partitions[t9])
        assert "not sent" in str(unsent.value.partitions[T0])
        await admin.remove_members("g", consumer.group_metadata().member_id, reason="maintenance")
        with pytest.raises(CommitFailedError, match=r"(generation 1|removed from group g).*maintenance") as refused:
            await consumer.commit({T0: 8})
        why = refused.value.partitions[T0]
        # Refused by the daemon; or at once, if this member has heard of it by now, has given the partition up or not yet.
        assert isinstance(
            why, UnknownMemberIdError | IllegalStateError
        ) or "not sent: the coordinator says UNKNOWN" in str(why)


async def test_positions_follow_seek_pause_and_resume(address: str) -> None:
    async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as consumer:
        assert await take(consumer, 3) == [0, 1, 2]
        assert await consumer.position(T0) == 3
        consumer.seek(T0, 90)
        assert await take(consumer, 1) == [90]
        consumer.pause(T0)
        assert consumer.paused() == {T0}
        assert await consumer.getmany(timeout_ms=50) == {}
        await fill(address, "t", [1000], partition=1)
        assert await take(consumer, 1) == [1000]
        consumer.resume(T0)
        assert await take(consumer, 1) == [91]
        await consumer.seek_to_beginning(T0)
        assert await take(consumer, 1) == [0]
        await consumer.seek_to_end()
        assert await consumer.position(T0) == 100
        assert await consumer.lag() == {T0: 0, T1: 0}
        consumer.seek(T0, 40)
        assert await consumer.lag() == {T0: 60, T1: 0}
        with pytest.raises(IllegalStateError, match="t-5 is not assigned"):
            consumer.seek(TopicPartition("t", 5), 0)


async def test_a_seek_does_not_wait_for_a_parked_fetch(address: str) -> None:
    async with Consumer("t", bootstrap_servers=address, fetch_max_wait_ms=20_000, **QUICK) as consumer:
        await take(consumer, 100)
        await asyncio.sleep(0.1)  # the fetch at the end of the log is parked by now
        for offset in (50, 10, 99, 3):
            consumer.seek(T0, offset)
            assert await take(consumer, 1, 15) == [offset]


async def test_many_seeks_past_parked_fetches_stay_bounded(address: str) -> None:
    async with Consumer("t", bootstrap_servers=address, fetch_max_wait_ms=300, **QUICK) as consumer:
        await take(consumer, 100)
        for _ in range(100):
            consumer.seek(T0, 100)
            await asyncio.sleep(0.002)
        consumer.seek(T0, 42)
        assert await take(consumer, 1) == [42]


async def test_offsets_of_the_logs_and_by_time(address: str) -> None:
    async with Consumer(bootstrap_servers=address) as consumer:
        assert await consumer.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
        assert await consumer.end_offsets([T0, T1]) == {T0: 100, T1: 0}
        found = await consumer.offsets_for_times({T0: 0, T1: 0})
        first = found[T0]
        assert first is not None
        assert first.offset == 0
        assert found[T1] is None
        assert await consumer.offsets_for_times({T0: 10**15}) == {T0: None}


@pytest.mark.parametrize(("policy", "position", "skipped"), [("earliest", 0, 0), ("latest", 100, 0)])
async def test_an_offset_outside_the_log_is_reset_by_the_policy_and_told(
    address: str, policy: str, position: int, skipped: int
) -> None:
    async with Consumer(bootstrap_servers=address, auto_offset_reset=policy) as consumer:  # type: ignore[arg-type]
        consumer.assign([T0])
        with structlog.testing.capture_logs() as logs:
            consumer.seek(T0, 5000)
            await until(lambda: any(line["event"] == "offset_out_of_range" for line in logs))
            assert await consumer.position(T0) == position
        (told,) = [line for line in logs if line["event"] == "offset_out_of_range"]
        assert (told["wanted"], told["position"], told["skipped"]) == (5000, position, skipped)


async def test_without_a_policy_a_missing_offset_is_an_error_until_a_seek(address: str) -> None:
    async with Consumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="none") as consumer:
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError, match=r"t-\d has no committed offset in group 'g'"):
                await consumer.getone()
        for tp in (T0, T1):
            consumer.seek(tp, 0)
        assert await take(consumer, 1) == [0]
        consumer.seek(T0, 5000)
        with pytest.raises(NoOffsetForPartitionError, match="offset 5000 of t-0 is outside the log"):
            await consumer.getone()


async def test_latest_begins_at_the_end_and_says_what_it_skips(address: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with Consumer("t", bootstrap_servers=address, group_id="g") as consumer:
            await until(lambda: len(consumer.assignment()) == 2)
            assert await consumer.position(T0) == 100
            await fill(address, "t", [100], partition=0)
            assert await take(consumer, 1) == [100]
    (told,) = [line for line in logs if line["event"] == "records_skipped"]
    assert (told["offsets"], told["skipped"]) == ("t-0 0 to 99", 100)


async def test_going_to_the_end_on_purpose_skips_nothing_that_needs_telling(address: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with Consumer(bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            await consumer.seek_to_end(T0)
            assert await consumer.position(T0) == 100
    assert [line for line in logs if line["log_level"] == "warning"] == []


async def test_the_lag_of_a_partition_whose_position_is_looked_up_anew_is_what_it_was(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Consumer(bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert await consumer.lag() == {T0: 100}
        assert await take(consumer, 30) == list(range(30))
        assert await consumer.lag() == {T0: 70}
        offsets_at = consumer._positions.offsets_at
        seeking: list[asyncio.Task[None]] = []

        async def while_another_task_seeks(
            asked: Mapping[TopicPartition, int],
        ) -> Mapping[TopicPartition, ListedOffset]:
            found = await offsets_at(asked)
            seeking.append(asyncio.create_task(consumer.seek_to_end(T0)))
            await asyncio.sleep(0)
            return found

        monkeypatch.setattr(consumer._positions, "offsets_at", while_another_task_seeks)
        assert await consumer.lag() == {T0: 70}
        await asyncio.gather(*seeking)
        monkeypatch.undo()
        assert await consumer.lag() == {T0: 0}


async def test_an_offset_that_was_out_of_range_is_forgotten_by_the_next_look_up(address: str) -> None:
    async with Consumer(bootstrap_servers=address, group_id="g", auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 5000)
        with pytest.raises(NoOffsetForPartitionError, match="offset 5000 of t-0 is outside the log"):
            await consumer.getone()
        with pytest.raises(NoOffsetForPartitionError, match="t-0 has no committed offset in group 'g'"):
            await consumer.seek_to_committed(T0)


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_topic_that_was_created_anew_is_not_read_from_an_offset_of_the_one_before(
    address: str, policy: Literal["earliest", "latest", "none"]
) -> None:
    async with Consumer(bootstrap_servers=address, auto_offset_reset=policy) as consumer, Admin(address) as admin:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert await take(consumer, 50) == list(range(50))
        consumer.pause(T0)
        with structlog.testing.capture_logs() as logs:
            await admin.delete_topics("t")
            await admin.create_topics({"t": 2})
            await fill(address, "t", range(1000, 1200), partition=0)
            await until(lambda: any(line["event"] == "topic_recreated" for line in logs))
        assert consumer.paused() == {T0}
        consumer.resume(T0)
        if policy == "none":
            with pytest.raises(NoOffsetForPartitionError, match="deleted and created anew"):
                await take(consumer, 1)
        else:
            assert await take(consumer, 200) == list(range(1000, 1200))


async def test_what_all_partitions_skip_is_told_in_one_line(address: str) -> None:
    await create(address, wide=25)
    await fill(address, "wide", range(25))
    with structlog.testing.capture_logs() as logs:
        async with Consumer("wide", bootstrap_servers=address, group_id="g") as consumer:
            await until(lambda: consumer.state == "stable")
    (told,) = [line for line in logs if line["event"] == "records_skipped"]
    assert told["offsets"].startswith("wide-0 0 to 0, wide-1 0 to 0, ")
    assert told["offsets"].endswith("wide-19 0 to 0, and 5 more")
    assert told["skipped"] == 25


async def test_a_partition_that_does_not_exist_keeps_no_other_from_being_read(address: str) -> None:
    absent = [TopicPartition("missing", 0), TopicPartition("t", 9)]
    async with Consumer(bootstrap_servers=address, **QUICK) as consumer:
        consumer.assign([*absent, T0, T1])
        got: list[int] = []
        errors: set[str] = set()
        async with asyncio.timeout(30):
            while len(got) < 100 or len(errors) < 2:
                try:
                    got += [int(record.value) for record in (await consumer.getmany(timeout_ms=100)).get(T0, [])]
                except UnknownTopicOrPartitionError as error:
                    errors.add(str(error).partition(" ")[0])
        assert got == list(range(100))
        assert errors == {"missing-0", "t-9"}
        assert await consumer.position(T1) == 0


async def test_a_fault_in_the_background_is_raised_by_a_poll_and_does_not_end_the_work(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ArithmeticError("a fault")

    settings = {**QUICK, "auto_commit_interval_ms": 20}
    async with Consumer("t", bootstrap_servers=address, group_id="g", **settings) as consumer:
        await take(consumer, 5)
        with monkeypatch.context() as patch:
            patch.setattr(consumer._coordinator.commits, "commit_done", fail)
            patch.setattr("client.consumer.positions.fetch_committed", fail)
            with pytest.raises(ArithmeticError, match="a fault"):
                await take(consumer, 100, 5)
            consumer._assignment.state(T0).look_up("committed")
            consumer._positions.changed()
            await until(lambda: consumer._assignment.state(T0).error is not None)
        with suppress(ArithmeticError):
            await consumer.getmany()
        with suppress(ArithmeticError):
            await consumer.getmany()
        await take(consumer, 3)
        await until_committed(consumer, await consumer.position(T0) - 1)


async def test_manual_assignment_uses_and_commits_the_groups_offsets(address: str) -> None:
    for start in (0, 10):
        consumer = Consumer(bootstrap_servers=address, group_id="simple", auto_offset_reset="earliest")
        consumer.assign([T0])
        async with consumer:
            assert consumer.assignment() == {T0}
            assert await take(consumer, 10) == list(range(start, start + 10))
            await consumer.commit()


async def test_deserializers_make_keys_and_values_and_are_not_called_for_none(address: str) -> None:
    consumer: Consumer[int | None, int] = Consumer(
        "t", bootstrap_servers=address, value_deserializer=int, key_deserializer=int, **QUICK
    )
    async with consumer:
        record = await consumer.getone()
        assert (record.key, record.value) == (None, 0)


async def test_a_record_that_cannot_be_read_is_an_error_of_every_poll_until_a_seek(address: str) -> None:
    def below_five(value: bytes) -> int:
        if int(value) == 5:
            raise ValueError("five")
        return int(value)

    async with Consumer(bootstrap_servers=address, value_deserializer=below_five, **QUICK) as consumer:
        consumer.assign([T0])
        assert await take(consumer, 5) == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match="offset 5 of t-0"):
                await asyncio.wait_for(consumer.getone(), 20)
            with pytest.raises(RecordDeserializationError, match="offset 5 of t-0"):
                await consumer.getmany(timeout_ms=60_000)
        consumer.seek(T0, 6)
        assert await take(consumer, 1) == [6]


@pytest.mark.parametrize("offset", [-1, 2**63, 2**64])
async def test_numbers_that_are_no_offsets_are_refused_at_once(address: str, offset: int) -> None:
    async with Consumer(bootstrap_servers=address, group_id="g", **QUICK) as consumer:
        consumer.assign([T0])
        with pytest.raises(ValueError, match=f"is {offset}; it must be at least 0 and below"):
            consumer.seek(T0, offset)
        with pytest.raises(ValueError, match=f"offset to commit of t-0 is {offset}; it must"):
            await consumer.commit({T0: offset})
        with pytest.raises(ValueError, match=f"timestamp is {offset}; it must"):
            await consumer.offsets_for_times({T0: offset})


@pytest.mark.parametrize("offset", [1.5, 1e15, True, "3", None])
async def test_what_is_no_whole_number_is_refused_before_a_daemon_sees_it(address: str, offset: Any) -> None:
    async with Consumer(bootstrap_servers=address, group_id="g", **QUICK) as consumer:
        consumer.assign([T0])
        with pytest.raises(TypeError, match=r"the offset to seek is .*; it must be a whole number"):
            consumer.seek(T0, offset)
        with pytest.raises(TypeError, match=r"the offset to commit of t-0 is .*; it must be a whole number"):
            await consumer.commit({T0: offset})
        with pytest.raises(TypeError, match=r"a timestamp is .*; it must be a whole number"):
            await consumer.offsets_for_times({T0: offset})
        assert await take(consumer, 1) == [0], "the connection is as good as before"


async def test_numbers_of_other_libraries_are_offsets_too(address: str) -> None:
    class Int64:
        """What an index into a column of NumPy or Arrow is like."""

        def __index__(self) -> int:
            return 42

    number: Any = Int64()
    async with Consumer(bootstrap_servers=address, group_id="g", **QUICK) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, number)
        assert await take(consumer, 1) == [42]
        await consumer.commit({T0: number})
        assert (await consumer.committed(T0))[T0] == OffsetAndMetadata(42)


@pytest.mark.parametrize("wrong", ["t", "t0", ("t",), ("t", "0"), ("t", True), (0, "t"), None])
async def test_what_is_no_partition_is_told(address: str, wrong: Any) -> None:
    async with Consumer(bootstrap_servers=address, group_id="g", **QUICK) as consumer:
        consumer.assign([T0])
        calls: list[Callable[[], Any]] = [
            lambda: consumer.getone(wrong),
            lambda: consumer.getmany(wrong),
            lambda: consumer.getmany_columns(wrong),
            lambda: consumer.pause(wrong),
            lambda: consumer.resume(wrong),
            lambda: consumer.seek(wrong, 0),
            lambda: consumer.seek_to_end(wrong),
            lambda: consumer.position(wrong),
            lambda: consumer.committed(wrong),
            lambda: consumer.commit({wrong: 1}),
            lambda: consumer.end_offsets([wrong]),
            lambda: consumer.offsets_for_times({wrong: 1}),
            lambda: consumer.assign([wrong]),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=r"is no partition; pass a TopicPartition\(topic, partition\)"):
                await asyncio.wait_for(call(), 20)
        assert consumer.assignment() == {T0}


async def test_a_stopped_consumer_says_so_whatever_is_asked(address: str) -> None:
    async with Consumer(bootstrap_servers=address, group_id="g", **QUICK) as consumer:
        consumer.assign([T0])
        record = await consumer.getone()
    calls: list[Callable[[], Any]] = [
        consumer.getone,
        consumer.getmany,
        consumer.getmany_columns,
        lambda: consumer.process(print),
        lambda: consumer.seek(T0, 0),
        lambda: consumer.pause(T0),
        lambda: consumer.resume(T0),
        lambda: consumer.subscribe(["t"]),
        lambda: consumer.assign([T0]),
        lambda: consumer.position(T0),
        lambda: consumer.seek_to_beginning(T0),
        consumer.committed,
        consumer.commit,
        lambda: consumer.commit(record),
        consumer.lag,
        lambda: consumer.end_offsets([T0]),
        lambda: consumer.offsets_for_times({T0: 0}),
        lambda: consumer.lease(record, 1),
        lambda: consumer.enforce_rebalance("why not"),
        consumer.start,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="this consumer was stopped"):
            await asyncio.wait_for(call(), 20)
    assert [record async for record in consumer] == []
    await consumer.stop()
    consumer.unsubscribe()
    assert (consumer.state, consumer.assignment(), consumer.paused()) == ("closed", frozenset(), frozenset())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_partition_fetch_bytes", 2**31),
        ("fetch_min_bytes", 2**31),
        ("fetch_max_wait_ms", 2**31),
        ("fetch_max_wait_ms", 0.5),
        ("fetch_max_bytes", 1e6),
        ("fetch_max_bytes", 0),
        ("max_poll_records", True),
        ("session_timeout_ms", "45000"),
        ("rebalance_timeout_ms", 0),
        ("request_timeout_ms", None),
    ],
)
def test_settings_that_no_daemon_would_understand_are_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; it must be"):
        Consumer(**{name: value})


async def test_getmany_has_limits_and_chooses_partitions(address: str) -> None:
    await fill(address, "t", range(100, 110), partition=1)
    async with Consumer("t", bootstrap_servers=address, max_poll_records=7, **QUICK) as consumer:
        assert sum(map(len, (await consumer.getmany(timeout_ms=5000)).values())) == 7
        records = await consumer.getmany(T1, timeout_ms=5000, max_records=3)
        assert [(tp, len(of_it)) for tp, of_it in records.items()] == [(T1, 3)]


async def test_misuse_is_told(address: str) -> None:
    consumer = Consumer("t", bootstrap_servers=address)
    with pytest.raises(ClosedError, match="not started"):
        await consumer.getmany()
    async with consumer:
        with pytest.raises(IllegalStateError, match="pass group_id"):
            await consumer.commit()
        with pytest.raises(IllegalStateError, match="without a group_id"):
            await consumer.committed()
        with pytest.raises(ValueError, match="without a group_id there are none"):
            consumer.subscribe(["t"], listener=Journal())
        waiting = Reader(consumer)
        await asyncio.sleep(0)
    await asyncio.wait_for(waiting.task, 20)
    with pytest.raises(ClosedError, match="was stopped"):
        await consumer.getone()
    with pytest.raises(ClosedError, match="make a new one"):
        await consumer.start()
    with pytest.raises(ValueError, match="heartbeat_interval_ms"):
        Consumer(session_timeout_ms=1000, heartbeat_interval_ms=1000)
    async with Consumer(bootstrap_servers=address) as idle:
        assert idle.state == "unjoined"
        with pytest.raises(IllegalStateError, match="nothing to read"):
            await idle.getone()


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
async def test_offsets_by_time_look_into_batches_however_they_are_stored(
    address: str, compression: Literal["gzip", "zstd"] | None
) -> None:
    topic = f"timed-{compression}".lower()
    await create(address, **{topic: 1})
    tp = TopicPartition(topic, 0)
    async with Producer(address, compression=compression, linger_ms=50) as producer:
        sent = [await producer.send(topic, b"%d" % at_ms, timestamp_ms=at_ms) for at_ms in (100, 300, 200, 300, 500)]
        await producer.flush()
        await asyncio.gather(*sent)
    async with Consumer(bootstrap_servers=address) as consumer:
        for wanted, found in [(0, (0, 100)), (101, (1, 300)), (300, (1, 300)), (301, (4, 500)), (501, None)]:
            assert await consumer.offsets_for_times({tp: wanted}) == {tp: found}


async def test_offsets_by_time_follow_the_daemon_s_clock_where_that_sets_the_times(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics({"stamped": 1}, config={"message.timestamp.type": "LogAppendTime"})
    tp = TopicPartition("stamped", 0)
    before_ms = time.time_ns() // 1_000_000 - 1_000
    async with Producer(address) as producer:
        await producer.send_many("stamped", [b"0", b"1", b"2"], partition=0)
    async with Consumer(bootstrap_servers=address) as consumer:
        found = (await consumer.offsets_for_times({tp: before_ms}))[tp]
        assert found is not None
        assert (found.offset, before_ms < found.timestamp_ms < before_ms + 60_000) == (0, True)
        consumer.assign([tp])
        await consumer.seek_to_beginning()
        (columns,) = (await consumer.getmany_columns(timeout_ms=5_000, max_records=2))[tp]
        assert list(columns.timestamps_ms) == [found.timestamp_ms] * 2
        assert (await consumer.getone()).timestamp_ms == found.timestamp_ms
        assert await consumer.offsets_for_times({tp: found.timestamp_ms + 60_000}) == {tp: None}


@pytest.mark.parametrize(("metadata", "kept"), [("", 1), ("m" * 5000, 0)])
async def test_a_commit_that_may_be_stored_counts_as_done_and_one_that_was_refused_does_not(
    metadata: str, kept: int
) -> None:
    async with Coordinator() as c:
        await create(c.address, t=1)
        await fill(c.address, "t", range(1))
        tp = TopicPartition("t", 0)
        async with Consumer(
            "t", bootstrap_servers=c.address, group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=60_000
        ) as consumer:
            assert await take(consumer, 1) == [0]
            committing = asyncio.create_task(consumer.commit({tp: OffsetAndMetadata(1, metadata)}))
            if metadata:
                with pytest.raises(CommitFailedError):
                    await committing
            else:
                await asyncio.sleep(0)
                committing.cancel()
                await asyncio.wait([committing])
        async with Admin(c.address) as admin:
            assert (await admin.list_offsets("g"))[tp].offset == kept


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"timeout_ms": None}, TypeError, r"timeout_ms is None.*getone\(\) and 'async for'"),
        ({"timeout_ms": "5"}, TypeError, "timeout_ms is '5'"),
        ({"timeout_ms": -1}, ValueError, "timeout_ms is -1; it must be a number of milliseconds from 0 on"),
        ({"timeout_ms": float("inf")}, ValueError, "timeout_ms is inf"),
        ({"timeout_ms": float("nan")}, ValueError, "timeout_ms is nan"),
        ({"max_records": "5"}, TypeError, "max_records is '5'"),
        ({"max_records": 0}, ValueError, "max_records is 0; it must be above 0"),
    ],
)
async def test_polls_say_what_they_take(address: str, arguments: Any, error: type[Exception], said: str) -> None:
    async with Consumer("t", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        for poll in (consumer.getmany, consumer.getmany_columns):
            with pytest.raises(error, match=said):
                await poll(**arguments)
        assert await take(consumer, 1) == [0], "it is as it was"
