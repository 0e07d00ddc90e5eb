"""Bad input harms the one who sent it and nobody else: an answer or a closed connection, and a daemon that serves on."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from client.errors import InvalidGroupIdError, ProtocolResponseError, UnsupportedVersionError
from client.transport.cluster import Cluster
from coordinator import Coordinator
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, ResponseFrame, decode_response, encode_frame, encode_request
from protocol.messages import PEER_REQUESTS, REQUESTS, ApiKey
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from protocol.messages.groups import HeartbeatRequest, JoinGroupProtocol, JoinGroupRequest, JoinGroupResponse
from protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.record_batch import HEADER_BYTES, BatchHeader, encode_batch, read_header


class RawClient:
    """A socket that says whatever a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader()
        self._ready: list[bytes | bytearray] = []

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> ResponseFrame | None:
        """The next response, or None when the daemon closed the connection."""
        async with asyncio.timeout(30):
            while not self._ready:
                try:
                    data = await self.reader.read(65536)
                except ConnectionResetError:
                    return None
                if not data:
                    return None
                self._ready += self._frames.feed(data)
        return decode_response(self._ready.pop(0))


@asynccontextmanager
async def raw(address: str) -> AsyncIterator[RawClient]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(
        log_level="error", max_frame_bytes=1 << 20, max_message_bytes=1 << 19, max_in_flight=16
    ) as running:
        yield running


@pytest.fixture
async def bystander(coordinator: Coordinator) -> AsyncIterator[Cluster]:
    """A well-behaved client that must notice nothing: checked when the test is over."""
    cluster = Cluster(coordinator.address, client_id="bystander")
    await cluster.start()
    await cluster.call(CreateTopicsRequest((CreatableTopic("orders", 2),)), CreateTopicsResponse)
    connection = await cluster._any_connection()
    yield cluster
    assert not connection.closed
    response = await cluster.call(MetadataRequest(("orders",)), MetadataResponse)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.NONE]
    await cluster.close()


HELLO = encode_request(ApiKey.API_VERSIONS, 0, 1, "test", encode_message(ApiVersionsRequest()))

MALFORMED: dict[str, bytes] = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a frame of no bytes": b"\0\0\0\0",
    "a frame above the bound": b"\x7f\xff\xff\xff",
    "a negative length": b"\xff\xff\xff\xff",
    "no msgpack": b"\0\0\0\x04\xc1\xc1\xc1\xc1",
    "msgpack cut short": b"\0\0\0\x02\x95\x01",
    "bytes after the value": encode_frame(1)[:4].replace(b"\x01", b"\x02") + b"\x01\x01",
    "a number instead of an array": encode_frame(7),
    "too few fields": encode_frame([18, 0, 1]),
    "a text as api key": encode_frame(["x", 0, 1, "c", []]),
    "a negative correlation id": encode_frame([18, 0, -1, "c", []]),
    "a client id of invalid UTF-8": b"\0\0\0\x07" + b"\x95\x12\x00\x01\xa1\xff\x90",
    "a client id without end": encode_frame([18, 0, 1, "c" * 5000, []]),
    "a body that is a map": encode_frame([18, 0, 1, "c", {"a": 1}]),
    "a body of wrong types": encode_frame([12, 0, 1, "c", [1, 2, 3]]),
    "a group id of invalid UTF-8": b"\0\0\0\x0b" + b"\x95\x0c\x00\x01\xa1c\x93\xa1\xff\x01\xa1m",
    "a body with fields missing": encode_frame([12, 0, 1, "c", ["group"]]),
    "an integer above 32 bits": encode_frame([12, 0, 1, "c", ["group", 2**40, "m"]]),
    "a map where none belongs": encode_frame([18, 0, 1, "c", [{}]]),
    "eight thousand empty maps": b"\0\0\x1f\x08" + b"\x95\x0b\0\1\xa0" + b"\xdc\x1f\x00" + b"\x80" * 0x1F00,
    "nesting without end": b"\0\0\x10\x00" + b"\x91" * 4096,
    "an array that claims four billion items": b"\0\0\0\x05\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_bytes_close_that_connection_only(
    coordinator: Coordinator, bystander: Cluster, what: str
) -> None:
    async with raw(coordinator.address) as client:
        await client.send(HELLO)
        hello = await client.answer()
        assert hello is not None
        assert hello.correlation_id == 1
        await client.send(MALFORMED[what])
        answers = []
        while (answer := await client.answer()) is not None:
            answers.append(answer)
        assert all(answer.error_code == ErrorCode.INVALID_REQUEST for answer in answers)
        assert len(answers) <= 1


async def test_a_body_that_does_not_parse_is_told_which_field_is_wrong(
    coordinator: Coordinator, bystander: Cluster
) -> None:
    async with raw(coordinator.address) as client:
        await client.send(encode_frame([12, 0, 5, "c", ["group", "three", "m"]]))
        answer = await client.answer()
        assert answer is not None
        assert (answer.correlation_id, answer.error_code) == (5, ErrorCode.INVALID_REQUEST)
        assert "generation_id" in answer.error_message
        assert await client.answer() is None


async def test_random_bytes_never_disturb_the_daemon(coordinator: Coordinator, bystander: Cluster) -> None:
    dice = random.Random(7)
    for _ in range(150):
        garbage = dice.randbytes(dice.randrange(1, 200))
        if dice.random() < 0.7:  # a plausible length, so that the content is looked at
            garbage = len(garbage).to_bytes(4, "big") + garbage
        async with raw(coordinator.address) as client:
            await client.send(garbage)


async def test_random_values_in_every_request_are_answered_or_refused(
    coordinator: Coordinator, bystander: Cluster
) -> None:
    dice = random.Random(8)

    def value(depth: int = 0) -> Any:
        kind = dice.randrange(8 if depth < 3 else 6)
        plain: list[Any] = [None, dice.randrange(-(2**63), 2**63), "t" * dice.randrange(4), os.urandom(3), True, -1]
        return plain[kind] if kind < 6 else [value(depth + 1) for _ in range(dice.randrange(6))]

    async with asyncio.TaskGroup() as group:
        for key in REQUESTS:
            for _ in range(12):
                group.create_task(one_random_request(coordinator.address, key, [value() for _ in range(9)]))


async def one_random_request(address: str, key: int, body: list[Any]) -> None:
    async with raw(address) as client:
        await client.send(encode_frame([key, 0, 1, "fuzz", body]))
        answer = await client.answer()
        assert answer is None or answer.correlation_id == 1


@pytest.mark.parametrize(
    ("key", "version"), [(999, 0), (-5, 0), (12, 99), (12, -1), *((key, 0) for key in PEER_REQUESTS)]
)
async def test_unknown_requests_and_versions_are_refused_and_the_connection_lives(
    coordinator: Coordinator, key: int, version: int
) -> None:
    async with raw(coordinator.address) as client:
        await client.send(encode_frame([key, version, 3, "c", []]))
        answer = await client.answer()
        assert answer is not None
        assert (answer.correlation_id, answer.error_code) == (3, ErrorCode.UNSUPPORTED_VERSION)
        await client.send(HELLO)
        assert (await client.answer()) is not None


async def test_a_client_that_is_too_new_learns_what_is_spoken(coordinator: Coordinator) -> None:
    async with raw(coordinator.address) as client:
        await client.send(encode_frame([ApiKey.API_VERSIONS, 9, 3, "c", ["new", "9.9", "more", 1]]))
        answer = await client.answer()
        assert answer is not None
        keys = {entry[0] for entry in answer.body[1]}
        assert keys == set(REQUESTS)


async def test_the_client_library_raises_a_refusal_by_its_name(coordinator: Coordinator, bystander: Cluster) -> None:
    connection = await bystander._any_connection()

    @dataclass(frozen=True, slots=True)
    class FutureRequest(ApiVersionsRequest):
        api_key = 77  # type: ignore[assignment]

    with pytest.raises(UnsupportedVersionError, match="api key 77 is unknown"):
        await connection.request(FutureRequest(), ApiVersionsResponse, timeout_s=5)


async def test_batches_for_another_topic_of_the_name_are_refused(bystander: Cluster) -> None:
    """By its id a producer says which one it means."""
    batch = (PartitionProduceData(0, encode_batch([b"x"], timestamps_ms=[1])),)
    (known,) = (await bystander.call(MetadataRequest(("orders",)), MetadataResponse)).topics
    data = tuple(TopicProduceData("orders", batch, each) for each in ("0" * 32, "no id", known.topic_id, ""))
    produced = await bystander.call(ProduceRequest(None, -1, 9_000, data), ProduceResponse)
    entries = [entry for topic in produced.responses for entry in topic.partition_responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [entry.error_code for entry in entries] == [unknown, unknown, 0, 0]
    assert "deleted and made anew" in entries[0].error_message


async def test_unknown_topics_and_partitions_are_named(bystander: Cluster) -> None:
    batch = encode_batch([b"x"], timestamps_ms=[1])
    produced = await bystander.call(
        ProduceRequest(
            None,
            -1,
            1000,
            (
                TopicProduceData("nope", (PartitionProduceData(0, batch),)),
                TopicProduceData("orders", (PartitionProduceData(2, batch), PartitionProduceData(-1, batch))),
                TopicProduceData("__consumer_offsets", (PartitionProduceData(0, batch),)),
            ),
        ),
        ProduceResponse,
    )
    codes = [entry.error_code for topic in produced.responses for entry in topic.partition_responses]
    assert codes == [3, 3, 3, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert "partitions 0 to 1, not 2" in produced.responses[1].partition_responses[0].error_message
    listed = await bystander.call(
        ListOffsetsRequest((ListOffsetsTopic("orders", (ListOffsetsPartition(9, -1), ListOffsetsPartition(0, -7))),)),
        ListOffsetsResponse,
    )
    assert [entry.error_code for entry in listed.topics[0].partitions] == [3, ErrorCode.INVALID_TIMESTAMP]
    fetched = await bystander.call(
        FetchRequest(
            30_000,
            1,
            1000,
            (
                FetchTopic("nope", (FetchPartition(0, 0, 1000),)),
                FetchTopic(
                    "orders",
                    (FetchPartition(0, 5, 1000), FetchPartition(1, -3, 1000), FetchPartition(0, 0, 1000, 8)),
                ),
            ),
        ),
        FetchResponse,
    )
    codes = [entry.error_code for topic in fetched.responses for entry in topic.partitions]
    assert codes == [3, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_LEADER_EPOCH]


def tampered(**changes: int) -> bytes:
    """A batch whose header says something else, with a checksum that matches what it says."""
    batch = encode_batch([b"abc", b"def"], timestamps_ms=[1, 2])
    header = read_header(batch)
    fields = {name: getattr(header, name) for name in BatchHeader.__dataclass_fields__}
    return BatchHeader(**{**fields, **changes}).pack() + batch[HEADER_BYTES:]


BAD_BATCHES: dict[str, tuple[bytes, ErrorCode]] = {
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "no batch": (b"garbage", ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit in the body": (
        encode_batch([b"x" * 100], timestamps_ms=[1])[:-8] + b"\1" * 8,
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "a cut-off batch": (encode_batch([b"x" * 100], timestamps_ms=[1])[:-8], ErrorCode.CORRUPT_MESSAGE),
    "bytes after the batch": (encode_batch([b"x"], timestamps_ms=[1]) + b"junk", ErrorCode.CORRUPT_MESSAGE),
    "more records than there are": (tampered(record_count=900, last_offset_delta=899), ErrorCode.CORRUPT_MESSAGE),
    "no records at all": (tampered(record_count=0, last_offset_delta=0), ErrorCode.INVALID_RECORD),
    "a span wider than its records": (tampered(last_offset_delta=50), ErrorCode.INVALID_RECORD),
    "a control batch": (tampered(attributes=1 << 5), ErrorCode.INVALID_RECORD),
    "a kept epoch, which is the leader's to say": (tampered(kept_epoch=3), ErrorCode.INVALID_RECORD),
    "an unknown compression": (tampered(attributes=3), ErrorCode.CORRUPT_MESSAGE),
    "a batch above the limit": (
        encode_batch([b"x" * 200_000], timestamps_ms=[1]),
        ErrorCode.MESSAGE_TOO_LARGE,
    ),
    "a good batch and a bad one": (
        encode_batch([b"x"], timestamps_ms=[1]) + tampered(record_count=5, last_offset_delta=4),
        ErrorCode.CORRUPT_MESSAGE,
    ),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
async def test_bad_batches_are_refused_by_name_and_leave_the_log_as_it_was(what: str) -> None:
    records, code = BAD_BATCHES[what]
    async with Coordinator(log_level="error", max_message_bytes=100_000) as coordinator:
        cluster = Cluster(coordinator.address, client_id="c")
        await cluster.start()
        await cluster.call(CreateTopicsRequest((CreatableTopic("orders", 1),)), CreateTopicsResponse)
        request = ProduceRequest(None, -1, 1000, (TopicProduceData("orders", (PartitionProduceData(0, records),)),))
        response = await cluster.call(request, ProduceResponse)
        result = response.responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (code, -1)
        assert result.error_message
        ends = await cluster.call(
            ListOffsetsRequest((ListOffsetsTopic("orders", (ListOffsetsPartition(0, -1),)),)), ListOffsetsResponse
        )
        assert ends.topics[0].partitions[0].offset == 0
        await cluster.close()


async def test_wrong_acks_are_refused_and_with_acks_0_an_error_closes_the_connection(coordinator: Coordinator) -> None:
    batch = encode_batch([b"x"], timestamps_ms=[1])
    data = (TopicProduceData("nope", (PartitionProduceData(0, batch),)),)
    async with raw(coordinator.address) as client:
        await client.send(encode_request(0, 0, 1, "c", encode_message(ProduceRequest(None, 7, 1000, data))))
        answer = await client.answer()
        assert answer is not None
        assert answer.body[0][0][1][0][1] == ErrorCode.INVALID_REQUIRED_ACKS
        await client.send(encode_request(0, 0, 2, "c", encode_message(ProduceRequest(None, 0, 1000, data))))
        assert await client.answer() is None


async def test_absurd_joins_are_refused_by_name(bystander: Cluster) -> None:
    protocols = (JoinGroupProtocol("range", b""),)
    wanted = {
        ErrorCode.INVALID_SESSION_TIMEOUT: JoinGroupRequest("g", -5, 1000, "", None, "consumer", protocols),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: JoinGroupRequest("g", 1000, 1000, "", None, "consumer", ()),
        ErrorCode.UNKNOWN_MEMBER_ID: JoinGroupRequest("g", 1000, 1000, "who?", None, "consumer", protocols),
    }
    for code, request in wanted.items():
        response = await bystander.call_coordinator("g", request, JoinGroupResponse)
        assert response.error_code == code
        assert response.error_message
    with pytest.raises(InvalidGroupIdError):
        await bystander.coordinator_address("")


async def test_a_correlation_id_in_use_is_malformed(coordinator: Coordinator) -> None:
    async with raw(coordinator.address) as client:
        await client.send(encode_request(ApiKey.METADATA, 0, 0, "c", encode_message(MetadataRequest(()))))
        first = await client.answer()
        assert first is not None
        revision = decode_message(MetadataResponse, first.body).revision
        poll = encode_request(ApiKey.METADATA, 0, 1, "c", encode_message(MetadataRequest((), revision, 30_000)))
        await client.send(poll + poll)
        assert await client.answer() is None


async def test_a_client_that_never_reads_is_not_read_either(coordinator: Coordinator, bystander: Cluster) -> None:
    """Its answers pile up to a bound, then its requests wait in its own socket."""
    async with raw(coordinator.address) as client:
        frame = encode_request(ApiKey.METADATA, 0, 0, "c", encode_message(MetadataRequest(None)))
        try:
            async with asyncio.timeout(3):
                for _ in range(5_000):
                    await client.send(frame * 200)
            raise AssertionError("a million requests were taken although no answer was read")
        except TimeoutError:
            pass  # the kernel's buffers are full: what back-pressure looks like


async def test_more_requests_than_allowed_at_once_wait_their_turn(coordinator: Coordinator) -> None:
    polls = [
        encode_request(ApiKey.METADATA, 0, number, "c", encode_message(MetadataRequest((), 10**6, 200)))
        for number in range(50)
    ]
    async with raw(coordinator.address) as client:
        await client.send(b"".join(polls))
        answered = [answer.correlation_id for _ in polls if (answer := await client.answer()) is not None]
        assert answered == list(range(50))


async def test_one_connection_too_many_is_closed() -> None:
    async with Coordinator(log_level="error", max_connections=2) as coordinator:
        async with raw(coordinator.address) as first, raw(coordinator.address) as second:
            for client in (first, second):
                await client.send(HELLO)
                assert await client.answer() is not None
            async with raw(coordinator.address) as third:
                await third.send(HELLO)
                assert await third.answer() is None
        async with asyncio.timeout(30):
            while not await is_served(coordinator.address):  # the daemon has yet to notice that the first two are gone
                pass


async def is_served(address: str) -> bool:
    async with raw(address) as client:
        try:
            await client.send(HELLO)
            return await client.answer() is not None
        except ConnectionError:
            return False


async def test_a_heartbeat_for_nobody_is_an_answer_not_an_accident(coordinator: Coordinator) -> None:
    async with raw(coordinator.address) as client:
        await client.send(encode_request(12, 0, 1, "c", encode_message(HeartbeatRequest("g", 1, "m"))))
        answer = await client.answer()
        assert answer is not None
        assert answer.body[0] == ErrorCode.NOT_COORDINATOR


def test_every_error_class_carries_its_code() -> None:
    assert issubclass(UnsupportedVersionError, ProtocolResponseError)
    assert UnsupportedVersionError.code == ErrorCode.UNSUPPORTED_VERSION
