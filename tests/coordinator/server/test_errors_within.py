"""Every kind of answer, Cohort's own and Kafka's: each error code that has room within it is counted once."""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import protocol.kafka.messages
from coordinator.server.errors_within import NOTES, errors_within
from protocol.errors import ErrorCode
from protocol.kafka.messages.offset_fetch_response import OffsetFetchResponse as KafkaOffsetFetchResponse
from protocol.kafka.schema import Message
from protocol.messages import PEER_REQUESTS, REQUESTS
from protocol.messages.groups import HeartbeatResponse
from protocol.messages.offsets import CommittedPartition, CommittedTopic, OffsetCommitResponse

CODE = "error_code"
NOT_COUNTED = {"topic_config_error_code"}
"""Why CreateTopics tells no settings: the topic is made."""
WITH_ROOM = {
    *("Metadata", "DescribeConfigs", "IncrementalAlterConfigs", "DescribeLogDirs", "LeaveGroup", "DescribeGroups"),
    *("DeleteGroups", "OffsetCommit", "OffsetFetch", "OffsetDelete", "AlterPartitionReassignments", "ElectLeaders"),
    *("Produce", "Fetch", "ListOffsets", "DeleteRecords", "CreateTopics", "DeleteTopics", "CreatePartitions"),
    *("WriteTxnMarkers", "TxnOffsetCommit", "DescribeProducers", "DescribeTransactions"),
}  # fmt: skip
"""Cohort's own answers that have room for codes within."""


def kafkas() -> Iterator[type[Message]]:
    for module in pkgutil.iter_modules(protocol.kafka.messages.__path__):
        if module.name.endswith("_response"):
            names = vars(import_module(f"protocol.kafka.messages.{module.name}"))
            yield next(
                each for each in names.values()
                if isinstance(each, type) and issubclass(each, Message) and each is not Message
            )  # fmt: skip


OURS = [request.response for request in (*REQUESTS.values(), *PEER_REQUESTS.values())]
ANSWERS = [*OURS, *kafkas()]


def filled(kind: Any, codes: Iterator[int]) -> Any:
    """A value of a type: two of each item, and another code at each place that has room for one."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{
            field.name: next(codes) if field.name.endswith(CODE) else filled(hints[field.name], codes)
            for field in fields(kind)
            if field.init
        })  # fmt: skip
    origin = get_origin(kind)
    if origin in (list, tuple):
        return origin(filled(get_args(kind)[0], codes) for _ in range(2))
    for each in get_args(kind):
        if is_dataclass(each) or get_origin(each) in (list, tuple):
            return filled(each, codes)
    return None


def codes_in(value: Any, name: str = "") -> Iterator[int]:
    """All codes in a value, by a look at each field."""
    if is_dataclass(value):
        for field in fields(value):
            yield from codes_in(getattr(value, field.name), field.name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from codes_in(each)
    elif name.endswith(CODE) and name not in NOT_COUNTED:
        yield value


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda kind: f"{kind.__module__.split('.')[1]}-{kind.__name__}")
def test_each_code_within_an_answer_is_counted(answer: type) -> None:
    made = filled(answer, iter(range(1, 1000)))
    own = [getattr(made, CODE)] if hasattr(made, CODE) else []
    assert errors_within(made) == Counter(codes_in(made)) - Counter(own)


def test_these_answers_have_room_for_codes() -> None:
    """A kind that goes from here, or comes, is no accident."""
    with_room = {kind.__name__.removesuffix("Response") for kind in OURS if NOTES[kind] is not None}
    assert with_room - {kind.response.__name__.removesuffix("Response") for kind in PEER_REQUESTS.values()} == WITH_ROOM
    assert NOTES[HeartbeatResponse] is None


def test_good_answers_and_missing_lists_count_for_nothing() -> None:
    good = OffsetCommitResponse((CommittedTopic("t", (CommittedPartition(0, ErrorCode.NONE),)),))
    assert not errors_within(good)
    assert not errors_within(KafkaOffsetFetchResponse())
