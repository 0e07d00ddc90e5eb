"""A request on its way."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from protocol.messages.api import Request

if TYPE_CHECKING:
    from tests.simulation.core.client import Client
    from tests.simulation.core.ledger import Ledger


class Kind(IntEnum):
    """The requests that the core decides."""

    JOIN = 0
    SYNC = 1
    HEARTBEAT = 2
    LEAVE = 3
    COMMIT = 4
    FETCH = 5
    DELETE_GROUPS = 6
    DELETE_OFFSETS = 7
    TXN_COMMIT = 8


JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, DELETE_GROUPS, DELETE_OFFSETS, TXN_COMMIT = Kind
"""The same as names of the module, which cost less to look up than members of an Enum."""

STALE_TURN = -1
"""The turn of a request whose answer no client reads."""


class Call:
    """One request: who sent it, in which turn of its life, and over which life of the coordinator's connections."""

    __slots__ = (
        "client", "closed", "connection", "epoch", "heard", "kind", "ledger", "request", "reset", "token", "turn",
        "versions", "written",
    )  # fmt: skip

    def __init__(
        self, client: Client, kind: Kind, request: Request, turn: int, epoch: int, ledger: Ledger, reset: bool
    ) -> None:
        self.client = client
        self.kind = kind
        self.request = request
        self.turn = turn
        self.epoch = epoch
        self.ledger = ledger
        self.reset = reset
        """It moves an offset back on purpose."""
        self.connection = client.connection
        self.closed = False
        """The client has closed the connection it came over."""
        self.heard = False
        self.token = 0
        self.versions: dict[int, int] = {}
        """Of an OffsetFetch, by partition: how often anything but transactions had moved it (see ``transactions``)."""
        self.written = 0
        """How many records were written when it was answered."""
