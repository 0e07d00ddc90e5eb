"""Which node of the cluster this process is, and whether it may answer as that node now.

A seam: with one node it is ``Standalone``, in a cluster ``registration.Registration``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from coordinator.metadata.store import Stop
from coordinator.replication.partition import Incarnation


class Membership(Protocol):
    """What request handlers and replicas ask of this node's registration."""

    @property
    def me(self) -> Incarnation:
        """This node, between two registrations: another broker epoch after each."""

    @property
    def lease_id(self) -> int:
        """The lease of what goes when this node is gone, for ``Put``; 0 while there is none."""

    def valid(self) -> bool:
        """Whether no other node can have been elected in this one's place yet. Cheap: asked for each answer that clients
        take for the cluster's."""

    def on_invalid(self, listener: Callable[[], None]) -> Stop:
        """Calls ``listener`` when ``valid`` becomes False while nothing says that the lease is over; returns what ends
        this."""


class Standalone:
    """The only node there is: always the same, always valid."""

    def __init__(self, node_id: int) -> None:
        self.me = Incarnation(node_id, 0)
        self.lease_id = 0

    def valid(self) -> bool:
        """True: no other node exists that could be elected."""
        return True

    def on_invalid(self, listener: Callable[[], None]) -> Stop:
        """Never calls it."""
        return lambda: None
