"""The codec of Kafka's wire protocol beside that of Cohort's own: messages a second on one core, with header or envelope."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from time import process_time
from typing import Final, NamedTuple

from client.bench.figures import Figure, Setting
from protocol.codec import decode_message, encode_message
from protocol.framing import LENGTH_BYTES, decode_request, encode_request, encode_response_in_pieces
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import RequestHeader, decode_request_header, encode_request_header, encode_response_header
from protocol.kafka.messages import fetch_request as kafka_fetch_request
from protocol.kafka.messages import fetch_response as kafka_fetch_response
from protocol.kafka.messages import heartbeat_request as kafka_heartbeat_request
from protocol.kafka.messages import join_group_request as kafka_join_group_request
from protocol.kafka.messages import metadata_response as kafka_metadata_response
from protocol.kafka.messages import offset_commit_request as kafka_offset_commit_request
from protocol.kafka.messages import produce_request as kafka_produce_request
from protocol.kafka.schema import Message
from protocol.messages import Request, Response, cluster, groups, offsets, records

PARTITIONS: Final = 12
RECORDS: Final = b"r" * 16 * 1024
_TOPIC: Final = "measurements"
_GROUP: Final = "readers"
_MEMBER: Final = "reader-1-6c1d2f9e-0d38-4c3b-9a4e-2f1f9f1f0f11"
_CLIENT: Final = "bench"
_ROUNDS: Final = 7
_SECONDS_A_ROUND: Final = 0.05


class Case(NamedTuple):
    """One message in both protocols."""

    kafka: Message
    version: int
    native: Request | Response


def cases() -> Iterator[Case]:
    """Requests, which are decoded, and responses, which are encoded."""
    yield _produce()
    yield _fetch()
    yield _join_group()
    yield _offset_commit()
    beat = kafka_heartbeat_request.HeartbeatRequest(_GROUP, 7, _MEMBER)
    yield Case(beat, 4, groups.HeartbeatRequest(_GROUP, 7, _MEMBER))
    yield _fetched()
    yield _metadata()


def _produce() -> Case:
    kafka = kafka_produce_request
    topic = kafka.TopicProduceData(_TOPIC, partition_data=[kafka.PartitionProduceData(0, RECORDS)])
    native = records.TopicProduceData(_TOPIC, (records.PartitionProduceData(0, RECORDS),))
    return Case(kafka.ProduceRequest(None, -1, 30_000, [topic]), 9, records.ProduceRequest(None, -1, 30_000, (native,)))


def _fetch() -> Case:
    kafka = kafka_fetch_request
    asked = [kafka.FetchPartition(number, 3, 1000, partition_max_bytes=1 << 20) for number in range(PARTITIONS)]
    native = tuple(records.FetchPartition(number, 1000, 1 << 20, 3) for number in range(PARTITIONS))
    request = kafka.FetchRequest(max_wait_ms=500, min_bytes=1, topics=[kafka.FetchTopic(_TOPIC, partitions=asked)])
    return Case(request, 12, records.FetchRequest(500, 1, 1 << 26, (records.FetchTopic(_TOPIC, native),)))


def _join_group() -> Case:
    kafka = kafka_join_group_request
    names, metadata = ("range", "cooperative-sticky"), bytes(100)
    protocols = [kafka.JoinGroupRequestProtocol(name, metadata) for name in names]
    native = tuple(groups.JoinGroupProtocol(name, metadata) for name in names)
    return Case(
        kafka.JoinGroupRequest(_GROUP, 45_000, 300_000, _MEMBER, None, "consumer", protocols, "rejoining"),
        9,
        groups.JoinGroupRequest(_GROUP, 45_000, 300_000, _MEMBER, None, "consumer", native, "rejoining"),
    )


def _offset_commit() -> Case:
    kafka = kafka_offset_commit_request
    committed = [kafka.OffsetCommitRequestPartition(number, 1000, 3, "") for number in range(PARTITIONS)]
    native = tuple(offsets.OffsetCommitPartition(number, 1000, 3, "") for number in range(PARTITIONS))
    topics = [kafka.OffsetCommitRequestTopic(_TOPIC, partitions=committed)]
    own = offsets.OffsetCommitRequest(_GROUP, 7, _MEMBER, None, (offsets.OffsetCommitTopic(_TOPIC, native),))
    return Case(kafka.OffsetCommitRequest(_GROUP, 7, _MEMBER, None, topics=topics), 9, own)


def _fetched() -> Case:
    kafka = kafka_fetch_response
    partitions = [kafka.PartitionData(number, 0, 1000, 1000, 0, records=RECORDS) for number in range(PARTITIONS)]
    native = tuple(records.FetchedPartition(number, 0, 1000, 1000, 0, RECORDS) for number in range(PARTITIONS))
    answer = kafka.FetchResponse(responses=[kafka.FetchableTopicResponse(_TOPIC, partitions=partitions)])
    return Case(answer, 12, records.FetchResponse(0, (records.FetchedTopic(_TOPIC, native),)))


def _metadata() -> Case:
    kafka, nodes = kafka_metadata_response, (1, 2, 3)
    brokers = [kafka.MetadataResponseBroker(node, "localhost", 9092) for node in nodes]
    partitions = [
        kafka.MetadataResponsePartition(0, number, 1, 3, list(nodes), list(nodes)) for number in range(PARTITIONS)
    ]
    topic = kafka.MetadataResponseTopic(0, _TOPIC, bytes(16), partitions=partitions)
    native = tuple(cluster.PartitionMetadata(0, number, 1, 3, nodes, nodes) for number in range(PARTITIONS))
    own = cluster.MetadataResponse(
        *(1, "cluster", 1, tuple(cluster.BrokerMetadata(node, "localhost", 9092) for node in nodes)),
        (cluster.TopicMetadata(0, _TOPIC, "0" * 32, False, native),),
    )
    return Case(kafka.MetadataResponse(brokers=brokers, cluster_id="cluster", controller_id=1, topics=[topic]), 12, own)


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """The best of seven rounds each, by the processor's time."""
    for case in cases():
        name = type(case.native).__name__
        kafka, native = _decoding(case) if isinstance(case.native, Request) else _encoding(case, case.native)
        api = name.removesuffix("Request").removesuffix("Response")
        metric = f"{'decode' if isinstance(case.native, Request) else 'encode'}_{api}_per_s"
        params = {"version": case.version, "partitions": PARTITIONS}
        yield Figure(
            *("kafka_codec", metric, _a_second(kafka, setting.quick), "/s", _a_second(native, setting.quick)),
            "the same in Cohort's own protocol",
            params,
        )


def _decoding(case: Case) -> tuple[Callable[[], object], Callable[[], object]]:
    kind, version = type(case.kafka), case.version
    data = b"".join(
        (encode_request_header(RequestHeader(kind.API_KEY, version, 1, _CLIENT)), *encode(case.kafka, version))
    )
    own_kind = type(case.native)
    assert isinstance(case.native, Request)
    own = encode_request(case.native.api_key, 0, 1, _CLIENT, encode_message(case.native))[LENGTH_BYTES:]

    def kafka() -> object:
        _, at = decode_request_header(data)
        return decode(kind, version, data, at)

    assert kafka() == case.kafka
    return kafka, lambda: decode_message(own_kind, decode_request(own).body)


def _encoding(case: Case, own: Response) -> tuple[Callable[[], object], Callable[[], object]]:
    key, version, message = case.kafka.API_KEY, case.version, case.kafka
    return (
        lambda: (encode_response_header(key, version, 1), encode(message, version)),
        lambda: encode_response_in_pieces(1, encode_message(own)),
    )


def _a_second(once: Callable[[], object], quick: bool) -> float:
    once()  # compiled
    best, count, seconds = 0.0, 1, 0.0
    for _ in range(1 if quick else _ROUNDS):
        while True:
            began = process_time()
            for _ in range(count):
                once()
            seconds = process_time() - began
            if seconds >= (0.001 if quick else _SECONDS_A_ROUND):
                break
            count *= 2
        best = max(best, count / seconds)
    return best
