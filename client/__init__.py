"""Cohort for asyncio programs: members, consumers, producers, assignors, an admin and a command line."""

from client import errors
from client.admin import Admin
from client.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RackAwareAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from client.consumer import Consumer, DeadLetter, Retry
from client.consumer.rebalance_listener import RebalanceListener
from client.errors import *  # noqa: F403 - every error, as its own list names them
from client.group.member import Member, MemberAssignment
from client.producer.producer import Producer
from client.running import run
from client.transactions.transaction import Transaction
from client.types.columns import BinaryColumn, RecordColumns
from client.types.metrics import ConsumerMetrics, MemberMetrics, ProducerMetrics
from client.types.records import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Output,
    RecordMetadata,
)
from client.types.serdes import Deserializer, JsonSerde, MsgspecSerde, SerializationContext, Serializer
from protocol.subscription import Subscription, TopicPartition

__all__ = [
    "Consumer",
    "DeadLetter",
    "Retry",
    "Producer",
    "Transaction",
    "Member",
    "MemberAssignment",
    "Admin",
    "run",
    "RebalanceListener",
    "Assignor",
    "RackAwareAssignor",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "CooperativeStickyAssignor",
    "Subscription",
    "TopicPartition",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Output",
    "ConsumerRecord",
    "RecordColumns",
    "BinaryColumn",
    "RecordMetadata",
    "Serializer",
    "Deserializer",
    "SerializationContext",
    "JsonSerde",
    "MsgspecSerde",
    "GroupMetadata",
    "ConsumerMetrics",
    "MemberMetrics",
    "ProducerMetrics",
]
__all__ += errors.__all__
