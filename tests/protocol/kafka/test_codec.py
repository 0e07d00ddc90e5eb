"""Kafka's messages to bytes and back, and what a version cannot say."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.decoding import STEP_BYTES, decode, decode_in_steps, read_varint
from protocol.kafka.encoding import UNCOPIED_BYTES, encode, in_pieces, varint
from protocol.kafka.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from protocol.kafka.messages.join_group_request import JoinGroupRequest
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.metadata_response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from protocol.kafka.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.kafka.messages.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.kafka.schema import BOOL, BYTES, INT64, STRING, UUID, Array, Field, Message, Structure, covers
from tests.protocol.kafka.kinds import EVERY_VERSION, KINDS
from tests.protocol.kafka.values import as_version, instances, versions_of


def encoded(message: Message, version: int) -> bytes:
    return b"".join(encode(message, version))


def in_steps(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """How many steps there were, and what came of them."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize(
    ("kind", "version"), EVERY_VERSION, ids=[f"{kind.__name__}-{version}" for kind, version in EVERY_VERSION]
)
def test_a_message_of_defaults_survives(kind: type[Message], version: int) -> None:
    data = encoded(kind(), version)
    assert decode(kind, version, data) == kind()
    assert decode(kind, version, memoryview(b"..." + data + b"behind"), 3) == kind()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_steps_come_to_the_same(kind: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(kind)))
    message = as_version(data.draw(instances(kind)), version)
    sent = encoded(message, version)
    assert in_steps(decode_in_steps(kind, version, sent))[1] == message
    assert in_steps(decode_in_steps(kind, version, memoryview(b"." + sent), 1))[1] == message
    if len(sent) > 1:
        with pytest.raises(ProtocolError):
            in_steps(decode_in_steps(kind, version, sent[:-1]))


@pytest.mark.parametrize("text", ["", "x" * 300, None])
@pytest.mark.parametrize("version", range(2, 10))
def test_a_string_that_is_passed_over_has_its_default(version: int, text: str | None) -> None:
    def commit(said: str | None) -> bytes:
        partitions = [OffsetCommitRequestPartition(number, 7, -1, said) for number in range(3)]
        return encoded(
            OffsetCommitRequest("g", 1, "m", topics=[OffsetCommitRequestTopic("t", partitions=partitions)]), version
        )

    _, without = in_steps(decode_in_steps(OffsetCommitRequest, version, commit("")))
    sent = commit(text)
    assert in_steps(decode_in_steps(OffsetCommitRequest, version, sent, passed_over="committed_metadata"))[1] == without
    with pytest.raises(ProtocolError):
        in_steps(decode_in_steps(OffsetCommitRequest, version, sent[:-1], passed_over="committed_metadata"))


def test_a_long_message_has_steps() -> None:
    topics = [MetadataRequestTopic(name=f"{number:08}") for number in range(20_000)]
    data = encoded(MetadataRequest(topics), 9)
    steps, message = in_steps(decode_in_steps(MetadataRequest, 9, data))
    assert message.topics == topics
    assert steps >= len(data) // (STEP_BYTES + 12)
    replicas = MetadataResponsePartition(replica_nodes=list(range(100_000)))
    answer = MetadataResponse(topics=[MetadataResponseTopic(partitions=[replicas])])
    steps, message = in_steps(decode_in_steps(MetadataResponse, 9, encoded(answer, 9)))
    assert message == answer
    assert steps >= 6


def test_long_byte_strings_are_not_copied() -> None:
    records = bytes(UNCOPIED_BYTES)
    short = b"r" * (UNCOPIED_BYTES - 1)
    partitions = [PartitionData(0, records=records), PartitionData(1, records=short), PartitionData(2, records=records)]
    pieces = encode(FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)]), 12)
    assert [piece is records for piece in pieces] == [False, True, False, True, False]
    assert short in pieces[2]


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize("size", [3, UNCOPIED_BYTES])
def test_records_in_pieces_are_what_they_are_together(version: int, size: int) -> None:
    parts: list[bytes | memoryview] = [b"head", memoryview(b"x" * size), b"tail", memoryview(b"y" * size)]

    def answer(records: bytes) -> FetchResponse:
        partitions = [PartitionData(number, records=records) for number in range(2)]
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])

    pieces = encode(answer(in_pieces(parts)), version)
    assert b"".join(pieces) == encoded(answer(b"".join(parts)), version)
    assert sum(piece is parts[1] for piece in pieces) == (2 if size == UNCOPIED_BYTES else 0)


@dataclass(slots=True)
class Inner(Structure):
    """What is in ``Unusual``."""

    FIELDS: ClassVar[tuple[Field, ...]] = (Field("name", STRING, "0+"), Field("blob", BYTES, "2+", tagged="2+", tag=1))

    name: str = ""
    blob: bytes = b""


@dataclass(slots=True)
class Unusual(Message):
    """What Kafka's schemas may say, but those that are here do not."""

    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("inner", Inner, "0+"),
        Field("later", Inner, "1+", ignorable=True),
        Field("needed", Inner, "1+"),
        Field("ids", Array(UUID), "0+"),
        Field("flags", Array(BOOL), "0+"),
        Field("blob", BYTES, "0+", tagged="2+", tag=5),
        Field("inners", Array(Inner), "2+", tagged="2+", tag=3, nullable="3+", ignorable=True),
        Field("number", INT64, "2+", tagged="3+", tag=0, ignorable=True),
    )

    inner: Inner = field(default_factory=Inner)
    later: Inner = field(default_factory=Inner)
    needed: Inner = field(default_factory=Inner)
    ids: list[bytes] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    blob: bytes = b""
    inners: list[Inner] | None = field(default_factory=list)
    number: int = -1


LONG = bytes(UNCOPIED_BYTES + 1)


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize(
    "message",
    [
        Unusual(),
        Unusual(Inner("a"), ids=[bytes(16), b"i" * 16], flags=[True, False] * 20, blob=LONG),
        Unusual(Inner("a"), Inner("later"), inners=[Inner("b"), Inner()], number=7),
        Unusual(Inner("a"), number=-1, blob=b"x"),
    ],
    ids=("default", "long", "tagged", "short"),
)
def test_what_schemas_may_say_survives(message: Unusual, version: int) -> None:
    carried = as_version(message, version)
    assert decode(Unusual, version, encoded(message, version)) == carried
    assert in_steps(decode_in_steps(Unusual, version, encoded(message, version)))[1] == carried


def test_byte_strings_in_tagged_fields_are_counted() -> None:
    message = Unusual(Inner("a", LONG), blob=LONG, inners=[Inner("b", LONG)])
    assert decode(Unusual, 2, encoded(message, 2)) == message
    assert decode(Unusual, 3, encoded(Unusual(inners=None), 3)) == Unusual(inners=None)


@pytest.mark.parametrize(
    ("message", "version", "what"),
    [(Unusual(needed=Inner("a")), 0, "needed"), (Unusual(Inner("a", LONG)), 1, "blob")],
)
def test_structures_that_a_version_lacks_are_refused(message: Unusual, version: int, what: str) -> None:
    with pytest.raises(ValueError, match=f"has no field {what}"):
        encode(message, version)


@given(st.integers(0, 2**32 - 1))
def test_varints_survive(value: int) -> None:
    assert read_varint(b"." + varint(value) + b"behind", 1) == (value, 1 + len(varint(value)))


@pytest.mark.parametrize(
    ("value", "sent"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_varints(value: int, sent: str) -> None:
    assert varint(value).hex() == sent


def test_a_tagged_structure_is_sent_even_if_all_is_default() -> None:
    sent = PartitionData(current_leader=LeaderIdAndEpoch())
    message = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[sent, PartitionData()])])
    assert decode(FetchResponse, 12, encoded(message, 12)) == message


@pytest.mark.parametrize(
    ("message", "version", "reason"),
    [
        (JoinGroupRequest(group_instance_id="a"), 4, "JoinGroupRequest 4: has no field group_instance_id"),
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g")]), 7, "has no field groups"),
        (MetadataRequest(topics=None), 0, "MetadataRequest 0: "),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9, "MetadataRequest 9: "),
        (MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"short")]), 12, "topic_id has to have 16 bytes"),
        (JoinGroupRequest(session_timeout_ms=2**31), 9, "JoinGroupRequest 9: "),
        (JoinGroupRequest(group_id="x" * 32768), 5, "JoinGroupRequest 5: "),
        (JoinGroupRequest(group_id="x" * 32768), 6, "group_id has 32768 bytes, at most 32767"),
        (JoinGroupRequest(group_id="\ud800"), 6, "surrogates not allowed"),
        (JoinGroupRequest(), 10, "has no version 10: there are 0 to 9"),
        (JoinGroupRequest(), -1, "has no version -1"),
    ],
)
def test_what_a_version_cannot_say_is_refused(message: Message, version: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode(message, version)


def test_the_longest_string_survives() -> None:
    for version in (5, 6):
        sent = JoinGroupRequest(group_id="x" * 32767)
        assert decode(JoinGroupRequest, version, encoded(sent, version)) == sent


def test_what_may_be_ignored_is_dropped() -> None:
    sent = JoinGroupRequest(group_id="g", rebalance_timeout_ms=5, reason="why")
    assert decode(JoinGroupRequest, 0, encoded(sent, 0)) == JoinGroupRequest(group_id="g")


@pytest.mark.parametrize(
    ("versions", "inside", "outside"),
    [("3", [3], [2, 4]), ("0-12", [0, 12], [13]), ("13+", [13, 99], [12]), ("none", [], [0])],
)
def test_kafkas_notation_of_versions(versions: str, inside: list[int], outside: list[int]) -> None:
    assert all(covers(versions, each) for each in inside)
    assert not any(covers(versions, each) for each in outside)
