"""Bytes that are no message: whatever they are, only a protocol error comes of them, in bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from typing import Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.decoding import MAX_TAGGED_FIELDS, decode, decode_in_steps
from protocol.kafka.encoding import encode, varint
from protocol.kafka.messages.describe_topic_partitions_request import DescribeTopicPartitionsRequest
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from protocol.kafka.messages.metadata_request import MetadataRequest
from protocol.kafka.messages.metadata_response import MetadataResponse
from protocol.kafka.messages.offset_commit_request import OffsetCommitRequest
from protocol.kafka.messages.produce_request import ProduceRequest
from protocol.kafka.schema import Array, Message, Structure, covers
from tests.protocol.kafka.kinds import EVERY_VERSION, KINDS
from tests.protocol.kafka.values import as_version, instances, versions_of

DAMAGES: Final = 30
"""Of each message that is drawn, and as many random ones."""


def encoded(message: Message, version: int) -> bytes:
    return b"".join(encode(message, version))


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut out, doubled or put in: those that lengths begin with more often than others."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        end = at + chance.choice((1, 1, 1, 2, 4, 8))
        put_in = bytes(chance.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, chance.randrange(256))) for _ in range(end - at))
        match chance.randrange(5):
            case 0:
                del changed[at:]
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = changed[at : 2 * end - at]
            case 3:
                changed[at:at] = put_in
            case _:
                changed[at:end] = put_in
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=10)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_damaged_bytes_are_a_message_or_a_protocol_error(kind: type[Message], data: st.DataObject, seed: int) -> None:
    chance = random.Random(seed)
    version = data.draw(st.sampled_from(versions_of(kind)))
    sent = encoded(as_version(data.draw(instances(kind)), version), version)
    made_up = [chance.randbytes(chance.randrange(60)) for _ in range(DAMAGES)]
    for candidate in [*made_up, *(damaged(sent, chance) for _ in range(DAMAGES))]:
        try:
            message = decode(kind, version, candidate)
        except ProtocolError:
            continue
        assert decode(kind, version, encoded(message, version)) == message


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=3)
@given(data=st.data())
def test_every_byte_is_needed(kind: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(kind)))
    sent = encoded(as_version(data.draw(instances(kind)), version), version)
    for end in {*range(min(len(sent), 200)), max(0, len(sent) - 1)} - {len(sent)}:
        with pytest.raises(ProtocolError):
            decode(kind, version, sent[:end])


BIG: Final = "7fffffff"
LONG_VARINT: Final = "8080808010"
"""2**32."""


@pytest.mark.parametrize(
    ("kind", "version", "data", "reason"),
    [
        (MetadataRequest, 1, "fffffffe", "MetadataRequest 1: topics has a length of -2"),
        (MetadataRequest, 0, "ffffffff", "topics is null where it may not be"),
        (MetadataRequest, 1, BIG, "topics has 2147483647 items, in 0 bytes"),
        (MetadataRequest, 1, "00000002 0001 61", "topics has 2 items, in 3 bytes"),
        (MetadataRequest, 9, "ffffffff0f", "topics has 4294967294 items, in 0 bytes"),
        (MetadataRequest, 9, LONG_VARINT, "a varint at 0 is longer than 32 bits"),
        (MetadataRequest, 9, "808080808000", "a varint at 0 is longer than 32 bits"),
        (MetadataRequest, 9, "80", "ends within a field, after 1 bytes"),
        (MetadataRequest, 9, "02 00 00", "name is null where it may not be"),
        (MetadataRequest, 9, "02 03 c328 00 000000 00", "a string is not UTF-8"),
        (MetadataRequest, 12, "02 00112233", "topics has 1 items, in 4 bytes"),
        (HeartbeatRequest, 0, "ffff", "group_id is null where it may not be"),
        (HeartbeatRequest, 0, "fffe", "group_id has a length of -2"),
        (HeartbeatRequest, 0, "8000", "group_id has a length of -32768"),
        (HeartbeatRequest, 0, "0005 6162", "ends within a field, after 4 bytes"),
        (HeartbeatRequest, 0, "0001 61 00000001 0005 6162", "ends at byte 14, of which 11 are there"),
        (HeartbeatRequest, 3, "0001 61 00000001 0001 61 fffd", "group_instance_id has a length of -3"),
        (HeartbeatRequest, 4, "81 80 02" + "61" * 32768, "group_id has a length of 32768"),
        (
            HeartbeatRequest,
            4,
            "02 61 00000001 02 61 00 01 07 05 61",
            "tagged field 7 has 5 bytes, of which 1 are there",
        ),
        (HeartbeatRequest, 4, "02 61 00000001 02 61 00 05 0700", "5 tagged fields at 10, in 2 bytes"),
        (HeartbeatRequest, 4, "02 61 00000001 02 61 00 ffffffff0f", "4294967295 tagged fields"),
        (HeartbeatRequest, 4, "02 61 00000001 02 61 00 01 07", "in 1 bytes"),
        (HeartbeatRequest, 4, "02 61 00000001 02 61 00 8108" + "0700" * 1025, "at most 1024"),
        (
            FetchRequest,
            12,
            25 * "00" + "01 01 01 01 0003 026100",
            "tagged field cluster_id takes 2 bytes, where 3",
        ),
        (FetchRequest, 12, 25 * "00" + "01 01 01 02 0002 0261 0002 0261", "tagged field 0 is there twice"),
        (FetchRequest, 12, 25 * "00" + "01 01 01 01 0002 0561 00", "tagged field cluster_id takes 5 bytes, where 2"),
        (FetchRequest, 15, 21 * "00" + "01 01 01 01 0103 000000", "ends within a field"),
        (ProduceRequest, 3, "ffff 0001 00000001" + BIG, "topic_data has 2147483647 items"),
        (ProduceRequest, 3, "ffff 0001 00000001 00000001 0001 61 00000001 00000000" + BIG, "ends at byte"),
        (
            ProduceRequest,
            3,
            "ffff 0001 00000001 00000001 0001 61 00000001 00000000 fffffffe",
            "records has a length of -2",
        ),
        (DescribeTopicPartitionsRequest, 0, "01 00000001 02", "cursor has a length of 2"),
        (DescribeTopicPartitionsRequest, 0, "01 00000001 80", "cursor has a length of -128"),
        (MetadataRequest, 99, "", "MetadataRequest has no version 99: there are 0 to 13"),
        (MetadataRequest, -1, "", "has no version -1"),
    ],
)
def test_what_is_malformed_is_told(kind: type[Message], version: int, data: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(kind, version, bytes.fromhex(data))


def test_unknown_tagged_fields_are_passed_over() -> None:
    tagged = varint(MAX_TAGGED_FIELDS) + b"".join(varint(tag) + b"\x01x" for tag in range(MAX_TAGGED_FIELDS))
    sent = encoded(HeartbeatRequest("g", 1, "m"), 4)[:-1] + tagged
    assert decode(HeartbeatRequest, 4, sent) == HeartbeatRequest("g", 1, "m")


@pytest.mark.parametrize("whole", [True, False])
def test_the_items_of_all_arrays_together_have_a_bound(whole: bool) -> None:
    partitions = [FetchPartition(number) for number in range(4)]
    sent = FetchRequest(
        topics=[FetchTopic("a", partitions=partitions), FetchTopic("b", partitions=partitions)],
        forgotten_topics_data=[ForgottenTopic("c", partitions=[1, 2, 3])],
    )
    data, items = encoded(sent, 12), 2 + 4 + 4 + 1 + 3

    def read(max_items: int) -> FetchRequest:
        if whole:
            return decode(FetchRequest, 12, data, max_items=max_items)
        steps = decode_in_steps(FetchRequest, 12, data, max_items=max_items)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast("FetchRequest", end.value)

    assert read(items) == sent
    with pytest.raises(ProtocolError, match="with partitions it has 1 items more than it may have"):
        read(items - 1)
    with pytest.raises(ProtocolError, match="with topics it has 2 items more"):
        read(0)


def peak_of(kind: type[Message], version: int, data: bytes) -> int:
    """The most bytes that decoding had in use at once."""
    decode(kind, version, encoded(kind(), version))  # compiled before it is measured
    tracemalloc.start()
    try:
        decode(kind, version, data)
    except ProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    ("kind", "version", "data"),
    [
        (MetadataResponse, 0, bytes(4) + bytes.fromhex("00000001 0000 0000") + bytes.fromhex("0fffffff") * 4000),
        (
            OffsetCommitRequest,
            2,
            bytes.fromhex("0000 00000000 0000 0000000000000000") + bytes.fromhex("00000fff0000") * 3000,
        ),
        (FetchRequest, 4, bytes(17) + bytes.fromhex("00000fff 0001 61 00000fff") * 1500),
        (MetadataRequest, 9, varint(16_000) + bytes.fromhex("0100") * 10),
        (MetadataRequest, 9, varint(16_000) + bytes(15_999)),
    ],
)
def test_counts_that_are_not_there_take_no_memory(kind: type[Message], version: int, data: bytes) -> None:
    assert peak_of(kind, version, data) < 50_000


MOST_MEMORY_PER_BYTE: Final = 48


@pytest.mark.parametrize(("kind", "version"), [each for each in EVERY_VERSION if each[1] in each[0].VERSIONS])
def test_memory_is_bounded_by_the_bytes_that_came(kind: type[Message], version: int) -> None:
    for field in kind.FIELDS:
        if not isinstance(field.type, Array) or not covers(field.versions, version):
            continue
        item = field.type.item
        if not isinstance(item, type):
            continue
        items: list[Structure] = [item() for _ in range(2000)]
        data = encoded(kind(**{field.name: items}), version)
        assert peak_of(kind, version, data) < MOST_MEMORY_PER_BYTE * len(data) + 4096, field.name
