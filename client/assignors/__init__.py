"""Assignors: pure functions from partitions and subscriptions to a plan. The leader of a group runs one of them."""

from client.assignors.assignor import Assignor, RackAwareAssignor
from client.assignors.cooperative_sticky import CooperativeStickyAssignor
from client.assignors.range import RangeAssignor
from client.assignors.round_robin import RoundRobinAssignor
from client.assignors.sticky import StickyAssignor
from protocol.subscription import Subscription

__all__ = [
    "Assignor",
    "RackAwareAssignor",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "CooperativeStickyAssignor",
    "Subscription",
]
