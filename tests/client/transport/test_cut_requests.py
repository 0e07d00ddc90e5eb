"""Requests of any size are cut into pieces that daemons take, and no entry is lost or moved."""

from __future__ import annotations

from typing import Any

import pytest

from client.transport.request_limits import joined, pieces_of
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import decode_request, encode_request
from protocol.messages import Request
from protocol.messages.cluster import MetadataRequest
from protocol.messages.groups import HeartbeatRequest, LeaveGroupRequest, LeaveGroupResponse, LeavingMember, LeftMember
from protocol.messages.offsets import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, TopicConfig
from protocol.messages.transactions import TxnOffsetCommitRequest


def taken(request: Request) -> None:
    """A daemon decodes it: beyond the bounds this raises."""
    decode_request(encode_request(request.api_key, 0, 1, "client", encode_message(request))[4:])


def commit(sizes: list[int]) -> OffsetCommitRequest:
    topics = tuple(
        OffsetCommitTopic(f"t{number}", tuple(OffsetCommitPartition(index, 2**40, 7, "m") for index in range(size)))
        for number, size in enumerate(sizes)
    )
    return OffsetCommitRequest("g", 1, "m", None, topics)


@pytest.mark.parametrize(
    "sizes",
    [[0], [100], [101], [3000, 0, 2999, 1, 500, 3000], [1] * 2500, [2, 0] * 1200, [20_000]],
    ids=lambda sizes: f"{len(sizes)} topics, {sum(sizes)} partitions",
)
def test_a_commit_of_any_size_is_cut_and_its_answers_are_joined(sizes: list[int]) -> None:
    request = commit(sizes)
    pieces = pieces_of(request)
    for piece in pieces:
        taken(piece)
    entries = [(topic.name, entry) for piece in pieces for topic in piece.topics for entry in topic.partitions]
    assert entries == [(topic.name, entry) for topic in request.topics for entry in topic.partitions]
    answers = [
        OffsetCommitResponse(
            tuple(
                CommittedTopic(
                    topic.name, tuple(CommittedPartition(each.partition_index, 0) for each in topic.partitions)
                )
                for topic in piece.topics
            )
        )
        for piece in pieces
    ]
    answer = joined(request, answers)
    assert [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions] == [
        (name, entry.partition_index) for name, entry in entries
    ]


@pytest.mark.parametrize(
    "request_",
    [
        MetadataRequest(tuple(f"t{number}" for number in range(30_000))),
        DeleteTopicsRequest(tuple(f"t{number}" for number in range(30_000))),
        CreateTopicsRequest(
            tuple(CreatableTopic(f"t{n}", 1, 1, (TopicConfig("retention.ms", "1"),) * 12) for n in range(2000))
        ),
        LeaveGroupRequest("g", tuple(LeavingMember(f"m{number}") for number in range(20_000))),
        OffsetFetchRequest("g", (OffsetFetchTopic("t", tuple(range(50_000))),)),
        TxnOffsetCommitRequest("g", "id", 7, 1, 1, "m", None, commit([3000, 2999, 3000]).topics),
    ],
    ids=lambda request: type(request).__name__,
)
def test_each_piece_is_taken(request_: Any) -> None:
    pieces = pieces_of(request_)
    assert len(pieces) > 1
    for piece in pieces:
        taken(piece)


@pytest.mark.parametrize(
    "request_",
    [
        HeartbeatRequest("g", 1, "m"),
        MetadataRequest(None),
        MetadataRequest(()),
        OffsetFetchRequest("g", None),
        commit([3]),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_fits_is_sent_as_it_is(request_: Any) -> None:
    assert pieces_of(request_) == (request_,)


def test_an_error_for_a_whole_piece_is_that_of_the_request() -> None:
    request = LeaveGroupRequest("g", tuple(LeavingMember(f"m{number}") for number in range(20_000)))
    fine = LeaveGroupResponse(ErrorCode.NONE, (LeftMember("m", None, 0),))
    assert joined(request, [fine, fine]).members == fine.members * 2
    refused = LeaveGroupResponse(ErrorCode.NOT_COORDINATOR)
    assert joined(request, [fine, refused, fine]) == refused
