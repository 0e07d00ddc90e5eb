"""Cohort for asyncio programs: members, consumers, producers, assignors, an admin and a command line.

Errors are loaded at once, each other name when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from client import errors
from client.errors import *  # noqa: F403 - every error, as its own list names them

if TYPE_CHECKING:
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

_MODULES: Final = {
    "client.admin": ("Admin",),
    "client.assignors": (
        "Assignor",
        "CooperativeStickyAssignor",
        "RackAwareAssignor",
        "RangeAssignor",
        "RoundRobinAssignor",
        "StickyAssignor",
    ),
    "client.consumer": ("Consumer", "DeadLetter", "Retry"),
    "client.consumer.rebalance_listener": ("RebalanceListener",),
    "client.group.member": ("Member", "MemberAssignment"),
    "client.producer.producer": ("Producer",),
    "client.running": ("run",),
    "client.transactions.transaction": ("Transaction",),
    "client.types.columns": ("BinaryColumn", "RecordColumns"),
    "client.types.metrics": ("ConsumerMetrics", "MemberMetrics", "ProducerMetrics"),
    "client.types.records": (
        "ConsumerRecord",
        "GroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "Output",
        "RecordMetadata",
    ),
    "client.types.serdes": ("Deserializer", "JsonSerde", "MsgspecSerde", "SerializationContext", "Serializer"),
    "protocol.subscription": ("Subscription", "TopicPartition"),
}
"""What is loaded when a name is first asked for: a program that only produces, or a command that only lists topics, does not
pay for the import of a consumer."""

_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, from the module that has it (PEP 562)."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
