"""The port itself: what it says it serves, answers in order, what closes a connection."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from coordinator.config import ConfigurationError
from coordinator.embedded import Coordinator
from coordinator.kafka import port
from coordinator.kafka.calls import Api, KafkaCall, KafkaRequest, KafkaResponse
from coordinator.kafka.codec import KafkaCodec
from coordinator.kafka.fetch_sessions import MAX_PARTITIONS
from coordinator.server.dispatch import STEP
from protocol.errors import ErrorCode
from protocol.framing import DEFAULT_MAX_FRAME_BYTES
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.kafka.messages import APIS
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from protocol.kafka.messages.fetch_response import FetchableTopicResponse, FetchResponse, PartitionData
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.kafka.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.metadata_response import MetadataResponse
from protocol.kafka.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.kafka.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.kafka.schema import Message
from protocol.messages.topics import CreatedTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.coordinator.kafka.wire import KafkaWire, connected, framed, request_frame, response_kind
from tests.protocol.kafka.written import Record, written


def served(coordinator: Coordinator) -> list[Api]:
    """The table of a daemon, as a connection has it."""
    daemon = coordinator._daemon
    assert daemon is not None
    assert daemon._listener is not None
    codecs = [connection.wire.codec for connection in daemon._listener._connections]
    return next(list(codec._apis.values()) for codec in codecs if isinstance(codec, KafkaCodec))


async def test_api_versions_tells_what_is_served_in_every_version(wire: KafkaWire) -> None:
    for version in range(5):
        told = await wire.ask(ApiVersionsRequest("a client", "1.0"), version)
        assert told.error_code == ErrorCode.NONE
        ranges = {each.api_key: (each.min_version, each.max_version) for each in told.api_keys}
        assert ranges[18] == (0, 4)
        assert ranges[3] == (0, 13)
        assert ranges[0] == (0, 13), "librdkafka compresses only if Produce begins at 0, and says nothing if not"
        assert all(key in APIS for key in ranges)


async def test_a_newer_api_versions_is_answered_in_version_0_with_what_is_served(wire: KafkaWire) -> None:
    """KIP-511: the client asks again with what both know."""
    for version in (5, 32_000):
        header = encode_request_header(RequestHeader(18, version, 7, "new"))
        wire.writer.write(framed(header + b"\x01bytes of a form that is not known"))
        number, told = await wire.answer(18, 0)
        assert (number, told.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
        assert {each.api_key for each in told.api_keys} > {3, 18}
    assert (await wire.ask(ApiVersionsRequest(), 4)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("size", [10, 200, 1_000, 100_000])
@pytest.mark.parametrize("kind", [0, 3])
async def test_a_request_may_come_in_pieces(wire: KafkaWire, kind: int, size: int) -> None:
    """They are put together in another kind of bytes than a request that comes in one."""
    request: Message = MetadataRequest([MetadataRequestTopic(name="a b" * 50) for _ in range(size // 150)])
    if kind == 0:
        partition = PartitionProduceData(0, bytes(size))
        request = ProduceRequest(None, 1, 1_000, [TopicProduceData("t", partition_data=[partition])])
    data = request_frame(request, 5, 9)
    for part in (data[:3], data[3:6], data[6:11], data[11 : size // 2], data[max(11, size // 2) :]):
        wire.writer.write(part)
        await asyncio.sleep(0.02)
    assert (await wire.answer(kind, 5))[0] == 9


async def test_answers_come_in_the_order_of_requests_though_correlation_ids_repeat(wire: KafkaWire) -> None:
    """The first has a topic made, which takes longer than what is asked after it."""
    creating = MetadataRequest([MetadataRequestTopic(name="made")])
    for request, version in ((creating, 9), (ApiVersionsRequest(), 0), (MetadataRequest([]), 1)):
        wire.writer.write(request_frame(request, version, 5))
    made = (await wire.answer(3, 9))[1]
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in made.topics] == [("made", 0, 1)]
    assert (await wire.answer(18, 0))[0] == 5
    assert (await wire.answer(3, 1))[1].topics == []


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(encode_request_header(RequestHeader(12, 99, 1, "c")) + bytes(20), id="unknown version"),
        pytest.param(b"\x7f\x00\x00\x00\x00\x00\x00\x01\xff\xff", id="unknown key"),
        pytest.param(encode_request_header(RequestHeader(17, 1, 1, "c")) + bytes(20), id="key that is not served"),
        pytest.param(b"\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff\x00\x00\xff\xff", id="cut off"),
        pytest.param(b"\x00", id="less than a header"),
    ],
)
async def test_what_is_no_request_closes_its_connection_and_no_other(
    coordinator: Coordinator, wire: KafkaWire, payload: bytes
) -> None:
    async with connected(coordinator.kafka_address) as other:
        other.writer.write(framed(payload))
        assert await other.is_closed()
    assert (await wire.ask(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE


async def test_a_frame_above_the_bound_closes_the_connection_before_it_comes(wire: KafkaWire) -> None:
    wire.writer.write((2**31 - 1).to_bytes(4) + b"\x00\x03")
    assert await wire.is_closed()


async def test_a_request_larger_than_its_kind_may_be_closes_the_connection(wire: KafkaWire) -> None:
    """Or a short array of many short things would keep the loop for seconds."""
    header = encode_request_header(RequestHeader(3, 4, 1, "c"))
    wire.writer.write(framed(header + bytes(5 * 1024 * 1024)))
    assert await wire.is_closed()


@pytest.mark.parametrize("kind", [0, 3, 11, 14])
async def test_a_request_of_more_items_than_its_kind_may_have_closes_the_connection(
    coordinator: Coordinator, wire: KafkaWire, kind: int
) -> None:
    """Three bytes make a structure that takes a hundred in memory, and microseconds."""
    await wire.ask(ApiVersionsRequest(), 0)
    (api,) = (api for api in served(coordinator) if api.key == kind)
    many = 70_000
    requests: dict[int, Message] = {
        0: ProduceRequest(None, 1, 1, [TopicProduceData()] * many),
        3: MetadataRequest([MetadataRequestTopic()] * many),
        11: JoinGroupRequest(protocols=[JoinGroupRequestProtocol()] * many),
        14: SyncGroupRequest(assignments=[SyncGroupRequestAssignment()] * many),
    }
    async with connected(coordinator.kafka_address) as other:
        other.writer.write(request_frame(requests[kind], api.last, 1))
        assert await other.is_closed()


def one_partition_each(kind: int, topics: int) -> Message:
    """A request of a client that reads a partition of each of so many topics."""
    names = [f"t{number}" for number in range(topics)]
    if kind == 1:
        return FetchRequest(max_bytes=1, topics=[FetchTopic(name, partitions=[FetchPartition(0)]) for name in names])
    if kind == 2:
        return ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, [ListOffsetsPartition(0)]) for name in names])
    return OffsetFetchRequest("g", [OffsetFetchRequestTopic(name, [0]) for name in names])


@pytest.mark.parametrize(("kind", "version"), [(1, 11), (2, 5), (9, 5)])
async def test_a_request_may_name_as_many_partitions_as_a_session_has_each_with_a_topic_of_its_own(
    wire: KafkaWire, kind: int, version: int
) -> None:
    told = await wire.ask(one_partition_each(kind, MAX_PARTITIONS), version)
    topics = told.responses if kind == 1 else told.topics
    assert sum(len(topic.partitions) for topic in topics) == MAX_PARTITIONS
    wire.writer.write(request_frame(one_partition_each(kind, MAX_PARTITIONS + 1), version, 1))
    assert await wire.is_closed()


MANY = 4_000


@pytest.mark.parametrize(
    ("request_of_many", "version"),
    [
        (FindCoordinatorRequest(coordinator_keys=[f"g{number}" for number in range(MANY)]), 4),
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(f"g{number}") for number in range(MANY)]), 8),
    ],
)
async def test_what_asks_for_many_groups_leaves_the_loop_to_others_between_a_few(
    coordinator: Coordinator, wire: KafkaWire, request_of_many: Message, version: int
) -> None:
    """Each is a request of its own to a shard: thousands of them at once kept all connections waiting."""
    await wire.ask(FindCoordinatorRequest("g0"), 1)
    daemon = coordinator._daemon
    assert daemon is not None
    assert daemon._listener is not None
    asking = asyncio.create_task(wire.ask(request_of_many, version))
    asked, most = 0, 0
    while not asking.done():
        await asyncio.sleep(0)
        for connection in daemon._listener._connections:
            for call in connection.wire.calls.values():
                assert isinstance(call, KafkaCall)
                asked, before = len(call._parts), asked
                most = max(most, asked - before)
    answer = await asking
    assert len(answer.coordinators if version == 4 else answer.groups) == MANY
    assert 0 < most <= 4 * STEP


async def test_topics_are_not_made_where_settings_or_client_forbid_it(wire: KafkaWire) -> None:
    missing = MetadataRequest([MetadataRequestTopic(name="missing")], allow_auto_topic_creation=False)
    told = await wire.ask(missing, 9)
    assert [topic.error_code for topic in told.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    async with (
        Coordinator(kafka_port=-1, flush="os", kafka_auto_create_topics="no") as forbidding,
        connected(forbidding.kafka_address) as other,
    ):
        told = await other.ask(MetadataRequest([MetadataRequestTopic(name="missing")]), 9)
        assert [topic.error_code for topic in told.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_topic_that_another_node_has_made_meanwhile_is_asked_for_again(
    coordinator: Coordinator, wire: KafkaWire
) -> None:
    """The metadata of this node are older: its client gets a code after which it tries again."""
    await wire.ask(ApiVersionsRequest(), 0)
    (handle,) = (api.translator.handle for api in served(coordinator) if api.key == 3)
    creating = cast("Any", handle).__self__._node.handlers
    codes = {"made-elsewhere": ErrorCode.TOPIC_ALREADY_EXISTS, "refused": ErrorCode.POLICY_VIOLATION}
    told = CreateTopicsResponse(tuple(CreatedTopic(name, code) for name, code in codes.items()))
    creating[CreateTopicsRequest] = lambda call: call.answer(told)
    answer = await wire.ask(MetadataRequest([MetadataRequestTopic(name=name) for name in codes]), 9)
    assert [topic.error_code for topic in answer.topics] == [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.POLICY_VIOLATION,
    ]


async def test_produce_without_acks_has_no_answer_and_closes_the_connection_when_it_is_refused(wire: KafkaWire) -> None:
    await wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 9)
    batch = written([Record(None, b"v", 5)])
    for records in (batch, batch):
        partition = PartitionProduceData(0, records)
        request = ProduceRequest(None, 0, 1_000, [TopicProduceData("t", partition_data=[partition])])
        wire.writer.write(request_frame(request, 7, 3))
    end = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])])
    async with asyncio.timeout(20):
        while (await wire.ask(end, 5)).topics[0].partitions[0].offset != 2:
            await asyncio.sleep(0.01)
    partition = PartitionProduceData(0, batch[:-1])
    request = ProduceRequest(None, 0, 1_000, [TopicProduceData("t", partition_data=[partition])])
    wire.writer.write(request_frame(request, 7, 3))
    assert await wire.is_closed()


async def test_metadata_is_told_in_every_version(wire: KafkaWire) -> None:
    named = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="a b"), MetadataRequestTopic(name="t")]
    for version in range(14):
        told: MetadataResponse = await wire.ask(MetadataRequest(named), version)
        assert [(topic.name, topic.error_code) for topic in told.topics] == [
            ("t", ErrorCode.NONE),
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        assert [broker.node_id for broker in told.brokers] == [1]
        (partition,) = told.topics[0].partitions
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        everything = await wire.ask(MetadataRequest([] if version == 0 else None), version)
        assert [topic.name for topic in everything.topics] == ["__consumer_offsets", "__transaction_state", "t"]
    (by_id,) = (await wire.ask(MetadataRequest([MetadataRequestTopic(told.topics[0].topic_id, None)]), 12)).topics
    assert by_id.name == "t"
    (unknown,) = (await wire.ask(MetadataRequest([MetadataRequestTopic(b"?" * 16, None)]), 12)).topics
    assert unknown.error_code == 100


async def test_every_refusal_can_be_written_in_every_version_that_is_served(
    coordinator: Coordinator, wire: KafkaWire
) -> None:
    await wire.ask(ApiVersionsRequest(), 0)
    for api in served(coordinator):
        kind = response_kind(api.key)
        for version in range(api.first, api.last + 1):
            request = api.translator.request()
            refusal = api.translator.refusal(request, version, ErrorCode.UNKNOWN_SERVER_ERROR, "why")
            assert type(refusal) is kind
            decode(kind, version, b"".join(encode(refusal, version)))


async def test_an_answer_larger_than_a_frame_may_be_is_told_as_an_error_of_the_request(
    coordinator: Coordinator, wire: KafkaWire
) -> None:
    await wire.ask(ApiVersionsRequest(), 0)
    (api,) = (api for api in served(coordinator) if api.key == 1)
    asked = KafkaRequest(api, 12, 7, FetchRequest(topics=[FetchTopic("t", partitions=[FetchPartition(3)])]))
    codec = KafkaCodec(1 << 20, {})

    def answered(size: int) -> tuple[int, FetchResponse]:
        records = PartitionData(3, records=bytes(size))
        told = KafkaResponse(FetchResponse(responses=[FetchableTopicResponse("t", partitions=[records])]))
        data = b"".join(codec.encode(7, asked, told))
        assert int.from_bytes(data[:4]) == len(data) - 4 <= DEFAULT_MAX_FRAME_BYTES
        number, at = decode_response_header(1, 12, data[4:])
        return number, decode(FetchResponse, 12, data[4:], at)

    number, refused = answered(DEFAULT_MAX_FRAME_BYTES)
    assert (number, refused.error_code) == (7, ErrorCode.INVALID_REQUEST)
    (partition,) = refused.responses[0].partitions
    assert (partition.partition_index, partition.error_code) == (3, ErrorCode.INVALID_REQUEST)
    assert not partition.records
    number, fits = answered(1_000)
    assert (number, fits.error_code, len(fits.responses[0].partitions[0].records or b"")) == (7, 0, 1_000)


async def test_a_fault_of_ours_is_told_in_the_words_of_the_request(
    wire: KafkaWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("a fault that a test brings about")

    monkeypatch.setattr("coordinator.kafka.producers._given", failing)
    told = await wire.ask(InitProducerIdRequest(None), 4)
    assert told.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    monkeypatch.undo()
    assert (await wire.ask(InitProducerIdRequest(None), 4)).error_code == ErrorCode.NONE


async def test_without_the_libraries_the_port_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"google-crc32c and cramjam: pip install 'aiocohort\[kafka\]'"):
        async with Coordinator(kafka_port=-1):
            pass
