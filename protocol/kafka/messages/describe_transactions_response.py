"""Kafka's ``DescribeTransactionsResponse``, made from ``schemas/DescribeTransactionsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class TopicData(Structure):
    """A part of ``DescribeTransactionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "0+"),
        Field("partitions", Array(INT32), "0+"),
    )

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TransactionState(Structure):
    """A part of ``DescribeTransactionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("transactional_id", STRING, "0+"),
        Field("transaction_state", STRING, "0+"),
        Field("transaction_timeout_ms", INT32, "0+"),
        Field("transaction_start_time_ms", INT64, "0+"),
        Field("producer_id", INT64, "0+"),
        Field("producer_epoch", INT16, "0+"),
        Field("topics", Array(TopicData), "0+"),
    )

    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: list[TopicData] = field(default_factory=list)


@dataclass(slots=True)
class DescribeTransactionsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 65
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("transaction_states", Array(TransactionState), "0+"),
    )

    throttle_time_ms: int = 0
    transaction_states: list[TransactionState] = field(default_factory=list)
