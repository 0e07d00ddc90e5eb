"""Bare requests of both protocols, in bursts over one connection: what the daemon does for each, without a client's ways.

Of both protocols the same is asked, in the same pattern; every answer is decoded and has to be right.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, NamedTuple

from client.bench.raw_group import RawMember
from client.bench.records import values
from client.cli.failure import CommandError
from client.transport.metadata import parse_bootstrap_servers
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.framing import LENGTH_BYTES, decode_response, encode_request
from protocol.kafka.batch import KafkaBatchHeader, read_batch_header
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.kafka.messages import (
    fetch_request,
    fetch_response,
    heartbeat_request,
    heartbeat_response,
    offset_commit_request,
    offset_commit_response,
    produce_request,
    produce_response,
)
from protocol.kafka.records import records_of
from protocol.kafka.schema import Message
from protocol.messages import Request
from protocol.messages import groups as native_groups
from protocol.messages import offsets as native_offsets
from protocol.messages import records as native_records
from protocol.record_batch import decode_columns, encode_batch, iter_batches, read_header

BATCH_RECORDS: Final = 150
"""Of 100 bytes they are about the 16 KiB of a batch of Kafka's Java client."""
PARTITIONS: Final = 2
FETCH_BYTES: Final = 1024 * 1024
_VALUE_BYTES: Final = 100
_TIMEOUT_S: Final = 60.0
_CLIENT_ID: Final = "bench"


class Asked(NamedTuple):
    """A request: its frame by correlation id, and what an answer stands for, in items; that raises for a wrong one."""

    frame: Callable[[int], bytes]
    items: Callable[[bytes], int]


class Pair(NamedTuple):
    """The same request in both protocols."""

    kafka: Asked
    native: Asked


def heartbeat(member: RawMember) -> Pair:
    """An item is a heartbeat."""
    kafka = heartbeat_request.HeartbeatRequest(member.group_id, member.generation, member.member_id)
    native = native_groups.HeartbeatRequest(member.group_id, member.generation, member.member_id, None, 0)
    return Pair(
        _kafka(kafka, 4, heartbeat_response.HeartbeatResponse, lambda answer: _good(answer.error_code)),
        _native(native, lambda answer: _good(answer.error_code)),
    )


def offset_commit(member: RawMember, topic: str) -> Pair:
    """An item is a request, with an offset for each of the partitions."""
    kafka, native = offset_commit_request, native_offsets
    committed = [kafka.OffsetCommitRequestPartition(number, 1000, -1, "") for number in range(PARTITIONS)]
    topics = [kafka.OffsetCommitRequestTopic(topic, partitions=committed)]
    own = tuple(native.OffsetCommitPartition(number, 1000) for number in range(PARTITIONS))

    def items(answer: Any) -> int:
        return _good(*(each.error_code for one in answer.topics for each in one.partitions))

    who = member.group_id, member.generation, member.member_id
    return Pair(
        _kafka(kafka.OffsetCommitRequest(*who, topics=topics), 9, offset_commit_response.OffsetCommitResponse, items),
        _native(native.OffsetCommitRequest(*who, None, (native.OffsetCommitTopic(topic, own),)), items),
    )


def produce(kafka_topic: str, native_topic: str) -> Pair:
    """An item is a record; a request has ``BATCH_RECORDS`` for each of the partitions."""
    kafka, native = produce_request, native_records
    columns = encode_batch(values(BATCH_RECORDS, _VALUE_BYTES), timestamps_ms=[0] * BATCH_RECORDS)
    records = records_of(decode_columns(columns, 0, read_header(columns)), 0)
    batch = KafkaBatchHeader(0, 0, 0, 0, 0, BATCH_RECORDS - 1, 0, 0, -1, -1, -1, BATCH_RECORDS).with_records(records)
    data = [kafka.PartitionProduceData(number, batch) for number in range(PARTITIONS)]
    own = tuple(native.PartitionProduceData(number, columns) for number in range(PARTITIONS))

    def items(answer: Any) -> int:
        told = [each.error_code for one in answer.responses for each in one.partition_responses]
        return _good(*told) * len(told) * BATCH_RECORDS

    request = kafka.ProduceRequest(None, -1, 30_000, [kafka.TopicProduceData(kafka_topic, partition_data=data)])
    return Pair(
        _kafka(request, 9, produce_response.ProduceResponse, items),
        _native(native.ProduceRequest(None, -1, 30_000, (native.TopicProduceData(native_topic, own),)), items),
    )


def fetch(kafka_topic: str, native_topic: str) -> Pair:
    """An item is a record; a request is for the first ``FETCH_BYTES`` of a partition."""
    kafka, native = fetch_request, native_records
    asked = kafka.FetchPartition(0, -1, 0, partition_max_bytes=FETCH_BYTES)
    request = kafka.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[kafka.FetchTopic(kafka_topic, partitions=[asked])],
    )
    own = native.FetchTopic(native_topic, (native.FetchPartition(0, 0, FETCH_BYTES),))
    return Pair(
        _kafka(request, 12, fetch_response.FetchResponse, _fetched_by_kafka),
        _native(native.FetchRequest(0, 1, FETCH_BYTES, (own,)), _fetched),
    )


def in_bursts(address: str, asked: Asked, burst: int, bursts: int) -> tuple[int, float]:
    """Sends so many requests at once, and again once all are answered. Items, and seconds; blocks.

    Raises ``CommandError`` for a wrong answer, ``OSError`` for a connection that is lost.
    """
    ((host, port),) = parse_bootstrap_servers(address)
    frames, items = b"".join(map(asked.frame, range(1, burst + 1))), 0
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb", buffering=FETCH_BYTES)
        began = perf_counter()
        for _ in range(bursts):
            connection.sendall(frames)
            for _ in range(burst):
                items += asked.items(_frame(answers.read))
        return items, perf_counter() - began


def _frame(read: Callable[[int], bytes]) -> bytes:
    length = read(LENGTH_BYTES)
    payload = read(int.from_bytes(length))
    if len(length) < LENGTH_BYTES or len(payload) < int.from_bytes(length):
        raise CommandError("the daemon closed the connection of the benchmark; its log says why")
    return payload


def _kafka(request: Message, version: int, response: type[Message], items: Callable[[Any], int]) -> Asked:
    key, body = request.API_KEY, b"".join(encode(request, version))

    def frame(correlation_id: int) -> bytes:
        payload = encode_request_header(RequestHeader(key, version, correlation_id, _CLIENT_ID)) + body
        return len(payload).to_bytes(LENGTH_BYTES) + payload

    def read(payload: bytes) -> int:
        _, at = decode_response_header(key, version, payload)
        return items(decode(response, version, payload, at))

    return Asked(frame, read)


def _native(request: Request, items: Callable[[Any], int]) -> Asked:
    body, version = encode_message(request), request.versions[1]

    def read(payload: bytes) -> int:
        answer = decode_response(payload)
        _good(answer.error_code)
        return items(decode_message(request.response, answer.body))

    return Asked(lambda number: encode_request(request.api_key, version, number, _CLIENT_ID, body), read)


def _good(*codes: int) -> int:
    wrong = [ErrorCode(code).name for code in codes if code != ErrorCode.NONE]
    if wrong or not codes:
        raise CommandError(f"the daemon answered the benchmark with {wrong or 'nothing'}")
    return 1


def _fetched_by_kafka(answer: fetch_response.FetchResponse) -> int:
    (partition,) = answer.responses[0].partitions
    _good(answer.error_code, partition.error_code)
    batches, position, count = partition.records or b"", 0, 0
    while position < len(batches):
        header = read_batch_header(batches, position)
        position += header.size
        count += header.record_count
    return count


def _fetched(answer: native_records.FetchResponse) -> int:
    (partition,) = answer.responses[0].partitions
    _good(answer.error_code, partition.error_code)
    return sum(header.record_count for _, header in iter_batches(partition.records))
