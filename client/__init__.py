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
from client.errors import *  # noqa: F403 - every error, as its own list names them
from client.member import Member, MemberAssignment
from client.producer import Producer
from client.rebalance_listener import RebalanceListener
from client.record_columns import BinaryColumn, RecordColumns
from client.records import ConsumerRecord, GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata
from client.running import run
from protocol.subscription import Subscription, TopicPartition

__all__ = [
    "Consumer",
    "DeadLetter",
    "Retry",
    "Producer",
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
    "ConsumerRecord",
    "RecordColumns",
    "BinaryColumn",
    "RecordMetadata",
    "GroupMetadata",
]
__all__ += errors.__all__
