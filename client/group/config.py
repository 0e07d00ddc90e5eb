"""The settings of a membership, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """All times are in milliseconds.

    ``session_timeout_ms``: without a heartbeat for so long the member is out. ``heartbeat_interval_ms``: how long one
    heartbeat waits at the daemon for news, at most a third of the session. ``rebalance_timeout_ms``: how long the group
    waits for this member to rejoin.
    ``max_poll_interval_ms``: how long the program may take between two polls; ``None`` for no limit.
    ``group_instance_id``: makes a static member (KIP-345); ``None`` for one the group knows by its member id only.
    """

    group_id: str
    bootstrap_servers: str | Sequence[str]
    client_id: str
    protocol_type: str
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 60_000
    max_poll_interval_ms: int | None = None
    request_timeout_ms: int = 30_000
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("group_id is empty: a group needs a name")
        check_instance_id(self.group_instance_id)
        check_timing(self.session_timeout_ms, self.heartbeat_interval_ms)
        for name in ("rebalance_timeout_ms", "max_poll_interval_ms", "request_timeout_ms"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; it is a time in milliseconds above 0")


def check_timing(session_timeout_ms: int, heartbeat_interval_ms: int) -> None:
    """Raises ``ValueError`` unless heartbeats come more than once a session."""
    if not 0 < heartbeat_interval_ms < session_timeout_ms:
        raise ValueError(
            f"heartbeat_interval_ms ({heartbeat_interval_ms}) must be above 0 and below session_timeout_ms "
            f"({session_timeout_ms}); a third of it or less is usual"
        )


def check_instance_id(group_instance_id: str | None) -> None:
    """Raises ``ValueError`` for an empty name."""
    if group_instance_id is not None and not group_instance_id:
        raise ValueError(
            "group_instance_id is empty: pass a name that no other process of the group has, or None for a member that "
            "leaves the group when it stops"
        )
