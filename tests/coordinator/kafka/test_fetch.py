"""Fetch over the Kafka port: sessions, and topics by their ids."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from client import Producer
from coordinator.embedded import Coordinator
from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.fetch_sessions import MAX_SESSIONS
from coordinator.server.call import Call
from coordinator.server.handlers.fetch import FetchHandler
from coordinator.server.unread_answers import UnreadAnswers
from protocol.errors import ErrorCode
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from protocol.kafka.messages.fetch_response import FetchResponse
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.coordinator.kafka.wire import KafkaWire, connected, request_frame
from tests.protocol.kafka.written import Record, written

NO_SESSION = 0
BEGINS, IN_NONE = 0, -1
SESSION_VERSIONS = range(7, 19)
BY_ID = 13
NOBODYS = b"?" * 16


async def made(wire: KafkaWire, name: str = "t", partitions: int = 3) -> bytes:
    """The id of a new topic."""
    (topic,) = (await wire.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1)], 10_000), 7)).topics
    assert topic.error_code == 0
    assert any(topic.topic_id)
    topic_id: bytes = topic.topic_id
    return topic_id


@pytest.fixture
async def topic_id(wire: KafkaWire) -> bytes:
    return await made(wire)


async def append(wire: KafkaWire, index: int, value: bytes = b"v") -> None:
    batch = PartitionProduceData(index, written([Record(None, value)]))
    told = await wire.ask(ProduceRequest(None, -1, 9_000, [TopicProduceData("t", partition_data=[batch])]), 9)
    assert told.responses[0].partition_responses[0].error_code == 0


def reading(topic_id: bytes, offsets: dict[int, int]) -> list[FetchTopic]:
    """Named in the way of any version."""
    partitions = [
        FetchPartition(index, fetch_offset=offset, partition_max_bytes=1_000_000) for index, offset in offsets.items()
    ]
    return [FetchTopic("t", topic_id, partitions)]


def fetching(
    session_id: int,
    session_epoch: int,
    topics: list[FetchTopic],
    forgotten: list[ForgottenTopic] | None = None,
    max_wait_ms: int = 0,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1_000_000,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=forgotten or [],
    )


def indexes(told: FetchResponse) -> list[int]:
    return [each.partition_index for topic in told.responses for each in topic.partitions]


@pytest.mark.parametrize("version", SESSION_VERSIONS)
async def test_a_request_that_names_all_partitions_needs_no_session(
    wire: KafkaWire, topic_id: bytes, version: int
) -> None:
    """KIP-227: the epochs 0 and -1 are of full requests; a session's id beside them is of one that is given up."""
    for session_id in (NO_SESSION, -1, 77):
        for epoch in (BEGINS, IN_NONE):
            told = await wire.ask(fetching(session_id, epoch, reading(topic_id, {0: 0})), version)
            assert told.error_code == 0
            assert (told.session_id == NO_SESSION) == (epoch == IN_NONE)
            (topic,) = told.responses
            assert (topic.topic, topic.topic_id) == (("t", bytes(16)) if version < BY_ID else ("", topic_id))
            assert topic.partitions[0].error_code == 0


@pytest.mark.parametrize("version", SESSION_VERSIONS)
async def test_a_session_that_is_not_there_cannot_go_on(wire: KafkaWire, version: int) -> None:
    for session_id in (NO_SESSION, 77):
        told = await wire.ask(fetching(session_id, 1, []), version)
        assert (told.error_code, told.responses) == (KafkaCode.FETCH_SESSION_ID_NOT_FOUND, [])


@pytest.mark.parametrize("version", SESSION_VERSIONS)
async def test_a_session_says_what_is_new(wire: KafkaWire, topic_id: bytes, version: int) -> None:
    begun = await wire.ask(fetching(NO_SESSION, BEGINS, reading(topic_id, {0: 0, 1: 0})), version)
    assert indexes(begun) == [0, 1]
    session = begun.session_id
    assert session > 0
    nothing = await wire.ask(fetching(session, 1, []), version)
    assert (nothing.error_code, nothing.session_id, nothing.responses) == (0, session, [])
    await append(wire, 1)
    news = await wire.ask(fetching(session, 2, []), version)
    assert indexes(news) == [1]
    assert news.responses[0].partitions[0].records
    added = await wire.ask(fetching(session, 3, reading(topic_id, {1: 1, 2: 0})), version)
    assert indexes(added) == [2]
    beyond = await wire.ask(fetching(session, 4, reading(topic_id, {0: 99})), version)
    assert [each.error_code for each in beyond.responses[0].partitions] == [ErrorCode.OFFSET_OUT_OF_RANGE]
    forgotten = [ForgottenTopic("t", topic_id, [0, 2])]
    assert (await wire.ask(fetching(session, 5, [], forgotten), version)).responses == []
    assert (await wire.ask(fetching(session, 5, []), version)).error_code == KafkaCode.INVALID_FETCH_SESSION_EPOCH
    other = 12 if version >= BY_ID else 17
    wrong = await wire.ask(fetching(session, 6, []), other)
    assert wrong.error_code == KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR
    over = await wire.ask(fetching(session, 6, [], [ForgottenTopic("t", topic_id, [1])]), version)
    assert (over.error_code, over.session_id) == (0, NO_SESSION)
    assert (await wire.ask(fetching(session, 7, []), version)).error_code == KafkaCode.FETCH_SESSION_ID_NOT_FOUND


async def test_sessions_without_end_are_none_but_the_records_come(wire: KafkaWire, topic_id: bytes) -> None:
    """A client that gives up none of its sessions fills the cache: those that are in it stay, and it is told of no more."""
    await append(wire, 0)
    topics = reading(topic_id, {0: 0})
    numbers = []
    for _ in range(MAX_SESSIONS + 3):
        told = await wire.ask(fetching(NO_SESSION, BEGINS, topics), 17)
        assert told.responses[0].partitions[0].records
        numbers.append(told.session_id)
    assert len(set(numbers)) == MAX_SESSIONS + 1
    assert numbers[-3:] == [NO_SESSION] * 3
    for number in (numbers[0], numbers[MAX_SESSIONS - 1]):
        assert (await wire.ask(fetching(number, 1, []), 17)).error_code == 0


async def test_a_session_is_waited_in_as_a_full_request_is(coordinator: Coordinator, topic_id: bytes) -> None:
    async with connected(coordinator.kafka_address) as reader, connected(coordinator.kafka_address) as writer:
        begun = await reader.ask(fetching(NO_SESSION, BEGINS, reading(topic_id, {0: 0, 1: 0})), 17)
        waiting = asyncio.create_task(reader.ask(fetching(begun.session_id, 1, [], max_wait_ms=20_000), 17))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await append(writer, 1)
        assert indexes(await waiting) == [1]


async def test_a_session_goes_on_over_another_connection(coordinator: Coordinator) -> None:
    async with connected(coordinator.kafka_address) as first:
        topic_id = await made(first)
        begun = await first.ask(fetching(NO_SESSION, BEGINS, reading(topic_id, {0: 0})), 17)
    async with connected(coordinator.kafka_address) as second:
        assert (await second.ask(fetching(begun.session_id, 1, []), 17)).error_code == 0


@pytest.mark.parametrize("version", range(BY_ID, 19))
async def test_an_id_that_no_topic_has_is_told_at_once(wire: KafkaWire, topic_id: bytes, version: int) -> None:
    topics = [*reading(topic_id, {0: 0}), *reading(NOBODYS, {0: 0, 5: 0}), *reading(bytes(16), {0: 0})]
    for epoch in (BEGINS, IN_NONE):
        told = await wire.ask(fetching(NO_SESSION, epoch, topics, max_wait_ms=60_000), version)
        codes = {topic.topic_id: [each.error_code for each in topic.partitions] for topic in told.responses}
        unknown = KafkaCode.UNKNOWN_TOPIC_ID
        assert codes == {topic_id: [0], NOBODYS: [unknown, unknown], bytes(16): [unknown]}
    missing = await wire.ask(fetching(NO_SESSION, IN_NONE, reading(topic_id, {7: 0})), version)
    assert missing.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_session_of_thousands_of_partitions_is_served_in_steps(wire: KafkaWire, topic_id: bytes) -> None:
    """Its incremental requests are as short as any, and what they ask for is as much."""
    missing = [FetchTopic("", index.to_bytes(16), [FetchPartition(0)]) for index in range(1, 3_000)]
    begun = await wire.ask(fetching(NO_SESSION, BEGINS, [*missing, *reading(topic_id, {0: 0})]), 17)
    assert len(indexes(begun)) == 3_000
    await append(wire, 0)
    errors = await wire.ask(fetching(begun.session_id, 1, []), 17)
    codes = [each.error_code for topic in errors.responses for each in topic.partitions]
    assert (codes.count(KafkaCode.UNKNOWN_TOPIC_ID), codes.count(0)) == (2_999, 1)
    forgotten = [ForgottenTopic("", topic.topic_id, [0]) for topic in missing]
    assert (await wire.ask(fetching(begun.session_id, 2, reading(topic_id, {0: 1}), forgotten), 17)).responses == []


@pytest.mark.parametrize("again", [False, True])
async def test_a_topic_that_is_deleted_is_not_read_under_its_id(
    coordinator: Coordinator, wire: KafkaWire, topic_id: bytes, again: bool
) -> None:
    """Neither by who waits for it nor by who asks later, though another topic may have the name."""
    await append(wire, 0)
    async with connected(coordinator.kafka_address) as reader:
        begun = await reader.ask(fetching(NO_SESSION, BEGINS, reading(topic_id, {0: 1})), 17)
        waiting = asyncio.create_task(reader.ask(fetching(begun.session_id, 1, [], max_wait_ms=3_000), 17))
        await asyncio.sleep(0.05)
        await wire.ask(DeleteTopicsRequest([DeleteTopicState(None, topic_id)], timeout_ms=9_000), 6)
        if again:
            assert await made(wire) != topic_id
            for _ in range(2):
                await append(wire, 0)
        told = await waiting
        (partition,) = told.responses[0].partitions
        assert partition.error_code in (KafkaCode.INCONSISTENT_TOPIC_ID, KafkaCode.UNKNOWN_TOPIC_ID)
        assert not partition.records
        later = await reader.ask(fetching(begun.session_id, 2, []), 17)
        assert later.responses[0].partitions[0].error_code == KafkaCode.UNKNOWN_TOPIC_ID


async def test_what_waits_behind_an_unanswered_request_is_neither_read_nor_kept(
    coordinator: Coordinator, wire: KafkaWire, topic_id: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers leave in the order of requests: what a client asks for behind a long poll would be kept until then."""
    read: list[int] = []
    original = FetchHandler._read

    async def counted(handler: FetchHandler, call: Call, wanted: list[Any]) -> bool:
        enough = await original(handler, call, wanted)
        read.append(len(wanted))
        return enough

    monkeypatch.setattr(FetchHandler, "_read", counted)
    await append(wire, 1, b"v" * 100_000)
    behind = 200
    async with connected(coordinator.kafka_address) as greedy:
        long_poll = fetching(NO_SESSION, IN_NONE, reading(topic_id, {0: 0}), max_wait_ms=30_000)
        much = fetching(NO_SESSION, IN_NONE, reading(topic_id, {1: 0}))
        for number, request in enumerate((long_poll, *[much] * behind)):
            greedy.writer.write(request_frame(request, 12, number))
        async with asyncio.timeout(20):
            while sum(task.get_name() == "cohort-FetchRequest" for task in asyncio.all_tasks()) <= behind:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert not read
        await append(wire, 0)
        async with asyncio.timeout(60):
            for number in range(behind + 1):
                told, response = await greedy.answer(FetchRequest.API_KEY, 12)
                assert told == number
                (partition,) = response.responses[0].partitions
                assert len(partition.records or b"") > (100_000 if number else 50)


BATCH_BYTES = 200_000
"""Of a batch of Cohort's own producer, a little less than its columns take."""
MEMORY_BYTES = 4 << 20
READERS = 16


async def write_batches(coordinator: Coordinator, count: int, compression: Literal["gzip"] | None = None) -> None:
    """In columns, so that every answer has to be converted."""
    async with connected(coordinator.kafka_address) as admin:
        await made(admin)
    async with Producer(coordinator.address, compression=compression, linger_ms=0, batch_size=1 << 20) as producer:
        for _ in range(count):
            await producer.send_many("t", [b"v" * 1_000] * (BATCH_BYTES // 1_000), partition=0)


def whole_partition(max_bytes: int) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic("t", bytes(16), [partition])]
    )


def unread_of(coordinator: Coordinator) -> UnreadAnswers[Any]:
    daemon = coordinator._daemon
    assert daemon is not None
    assert daemon._listener is not None
    return daemon._listener.unread


def conversions() -> int:
    """How many answers are being made of what was read."""
    return sum(task.get_name() == "cohort-KafkaRequest" for task in asyncio.all_tasks())


async def read_once(coordinator: Coordinator) -> int:
    """Bytes of the records that one reader got."""
    async with connected(coordinator.kafka_address) as reader:
        (topic,) = (await reader.ask(whole_partition(1 << 20), 12)).responses
        assert topic.partitions[0].error_code == 0
        return len(topic.partitions[0].records)


async def test_what_is_read_and_converted_takes_room_in_memory_until_it_is_sent() -> None:
    """Reads take a moment and conversions share the loop: many readers that catch up would have read before one is sent."""
    async with Coordinator(kafka_port=-1, flush="os", max_request_memory_bytes=MEMORY_BYTES) as coordinator:
        await write_batches(coordinator, 5)
        unread, most = unread_of(coordinator), 0
        readers = [asyncio.create_task(read_once(coordinator)) for _ in range(READERS)]
        async with asyncio.timeout(20):
            while not all(reader.done() for reader in readers):
                under_way = conversions()
                most = max(most, under_way)
                assert unread.held >= under_way * BATCH_BYTES
                assert unread.held <= 2 * MEMORY_BYTES, "what was read, and as much that was made of it"
                await asyncio.sleep(0)
        assert 1 < most < READERS
        assert all(reader.result() > BATCH_BYTES for reader in readers)
        assert unread.held == 0


async def test_readers_that_hang_up_while_their_answers_are_made_leave_the_room_to_others() -> None:
    async with Coordinator(kafka_port=-1, flush="os", max_request_memory_bytes=MEMORY_BYTES) as coordinator:
        await write_batches(coordinator, 5)
        async with asyncio.timeout(20):
            readers = [asyncio.create_task(read_once(coordinator)) for _ in range(READERS)]
            while conversions() < 2:
                await asyncio.sleep(0)
            for reader in readers:
                reader.cancel()
            assert await read_once(coordinator) > BATCH_BYTES
            while unread_of(coordinator).held or conversions():
                await asyncio.sleep(0.01)


async def test_an_answer_is_no_larger_than_the_daemon_allows_however_much_is_asked_for() -> None:
    """What was compressed is many times as large once it is converted."""
    async with Coordinator(kafka_port=-1, flush="os", max_fetch_bytes=3 * BATCH_BYTES) as coordinator:
        await write_batches(coordinator, 8, "gzip")
        async with connected(coordinator.kafka_address) as reader:
            (topic,) = (await reader.ask(whole_partition(2**31 - 1), 12)).responses
            assert BATCH_BYTES < len(topic.partitions[0].records) <= 3 * BATCH_BYTES
