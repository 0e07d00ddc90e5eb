"""Bytes of the versions that Kafka 4.4 has added and other codecs do not know yet: written by hand after the schemas."""

from __future__ import annotations

import pytest

from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from protocol.kafka.messages.delete_groups_request import DeleteGroupsRequest
from protocol.kafka.messages.delete_groups_response import DeletableGroupResult, DeleteGroupsResponse
from protocol.kafka.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.kafka.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from protocol.kafka.schema import Message
from tests.protocol.kafka.oracles import UNKNOWN_TO_THEM

TOPIC_ID = bytes(range(16))

WRITTEN: list[tuple[int, Message, str]] = [
    (5, ApiVersionsRequest("kit", "1", "c", 2), "04 6b6974 02 31 02 63 00000002 00"),
    (5, ApiVersionsRequest("kit", "1"), "04 6b6974 02 31 00 ffffffff 00"),
    (
        5,
        ApiVersionsResponse(0, [ApiVersion(18, 0, 5)], 7, finalized_features_epoch=3, zk_migration_ready=True),
        "0000 02 0012 0000 0005 00 00000007 02 01 08 0000000000000003 03 01 01",
    ),
    (3, DeleteGroupsRequest(["a", "bc"]), "03 02 61 03 6263 00"),
    (
        3,
        DeleteGroupsResponse(1, [DeletableGroupResult("a", 69, "gone"), DeletableGroupResult("b", 0, None)]),
        "00000001 03 02 61 0045 05 676f6e65 00 02 62 0000 00 00 00",
    ),
    (
        6,
        TxnOffsetCommitRequest(
            *("t", "g", 9, 1, 4, "m", None),
            [TxnOffsetCommitRequestTopic("", TOPIC_ID, [TxnOffsetCommitRequestPartition(2, 5, 3, "")])],
        ),
        "02 74 02 67 0000000000000009 0001 00000004 02 6d 00 02 000102030405060708090a0b0c0d0e0f"
        "02 00000002 0000000000000005 00000003 01 00 00 00",
    ),
    (
        6,
        TxnOffsetCommitResponse(
            0, [TxnOffsetCommitResponseTopic("", TOPIC_ID, [TxnOffsetCommitResponsePartition(2, 100)])]
        ),
        "00000000 02 000102030405060708090a0b0c0d0e0f 02 00000002 0064 00 00 00",
    ),
]


@pytest.mark.parametrize(("version", "message", "data"), WRITTEN)
def test_bytes_are_those_written_by_hand(version: int, message: Message, data: str) -> None:
    assert b"".join(encode(message, version)).hex() == bytes.fromhex(data).hex()
    assert decode(type(message), version, bytes.fromhex(data)) == message


def test_no_version_is_left_without_another_witness() -> None:
    assert {(type(message).__name__, version) for version, message, _ in WRITTEN} == UNKNOWN_TO_THEM
