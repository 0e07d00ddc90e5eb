"""Kafka's ``AddPartitionsToTxnResponse``, made from ``schemas/AddPartitionsToTxnResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class AddPartitionsToTxnPartitionResult(Structure):
    """A part of ``AddPartitionsToTxnResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("partition_error_code", INT16, "0+"),
    )

    partition_index: int = 0
    partition_error_code: int = 0


@dataclass(slots=True)
class AddPartitionsToTxnTopicResult(Structure):
    """A part of ``AddPartitionsToTxnResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("results_by_partition", Array(AddPartitionsToTxnPartitionResult), "0+"),
    )

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class AddPartitionsToTxnResult(Structure):
    """A part of ``AddPartitionsToTxnResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("transactional_id", STRING, "4+"),
        Field("topic_results", Array(AddPartitionsToTxnTopicResult), "4+"),
    )

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)


@dataclass(slots=True)
class AddPartitionsToTxnResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 24
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("error_code", INT16, "4+", ignorable=True),
        Field("results_by_transaction", Array(AddPartitionsToTxnResult), "4+"),
        Field("results_by_topic_v3_and_below", Array(AddPartitionsToTxnTopicResult), "0-3"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    results_by_transaction: list[AddPartitionsToTxnResult] = field(default_factory=list)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)
