"""The settings of a consumer, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from client.assignors import Assignor
from client.group import MembershipSettings, check_instance_id, check_timing
from client.types.records import ISOLATION_LEVELS, IsolationLevel
from client.types.serdes import AnyDeserializer, check_deserializer
from protocol.subscription import CONSUMER_PROTOCOL_TYPE

OffsetReset = Literal["latest", "earliest", "none"]
Deserializer = AnyDeserializer[Any]

DEFAULT_FETCH_MAX_BYTES: Final = 50 * 1024 * 1024
DEFAULT_PARTITION_FETCH_BYTES: Final = 1024 * 1024

_INT32_MAX: Final = 2**31 - 1
_UPPER_BOUNDS: Final[Mapping[str, int]] = {
    "session_timeout_ms": _INT32_MAX,
    "heartbeat_interval_ms": _INT32_MAX,
    "auto_commit_interval_ms": _INT32_MAX,
    "max_poll_interval_ms": _INT32_MAX,
    "rebalance_timeout_ms": _INT32_MAX,
    "max_poll_records": _INT32_MAX,
    "fetch_max_bytes": 2**63 - 1,
    "max_partition_fetch_bytes": _INT32_MAX,
    "fetch_min_bytes": _INT32_MAX,
    "fetch_max_wait_ms": _INT32_MAX,
    "request_timeout_ms": _INT32_MAX,
}
"""What goes over the wire has 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """See ``Consumer`` for what each one means."""

    bootstrap_servers: str | Sequence[str]
    group_id: str | None
    client_id: str
    assignors: tuple[Assignor, ...]
    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rebalance_timeout_ms: int
    max_poll_records: int | None
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    request_timeout_ms: int
    revoke_grace_ms: int
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    group_instance_id: str | None = None
    client_rack: str | None = None
    isolation_level: IsolationLevel = "read_committed"

    def __post_init__(self) -> None:
        if self.group_id is not None and not self.group_id:
            raise ValueError("group_id is empty: pass a name, or None to read without a group")
        if self.auto_offset_reset not in get_args(OffsetReset):
            raise ValueError(
                f"auto_offset_reset is {self.auto_offset_reset!r}; it can be 'latest', 'earliest' or 'none'"
            )
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ValueError(
                f"isolation_level is {self.isolation_level!r}; it can be 'read_committed' or 'read_uncommitted'"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise ValueError("group_instance_id names a member of a group: pass group_id too")
        check_instance_id(self.group_instance_id)
        if self.client_rack is not None and (not isinstance(self.client_rack, str) or not self.client_rack):
            raise ValueError(f"client_rack is {self.client_rack!r}; pass the name of a rack, or None")
        check_deserializer("key_deserializer", self.key_deserializer)
        check_deserializer("value_deserializer", self.value_deserializer)
        self._check_numbers()
        check_timing(self.session_timeout_ms, self.heartbeat_interval_ms)
        if self.revoke_grace_ms < 0:
            raise ValueError(f"revoke_grace_ms is {self.revoke_grace_ms}; it must not be below 0")
        names = [assignor.name for assignor in self.assignors]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"assignors are {names}; pass at least one, each once")

    @property
    def isolation(self) -> int:
        """``isolation_level`` as Fetch and ListOffsets have it."""
        return ISOLATION_LEVELS[self.isolation_level]

    def _check_numbers(self) -> None:
        for name, upper in _UPPER_BOUNDS.items():
            value = getattr(self, name)
            if value is None and name == "max_poll_records":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} is {value!r}; it must be a whole number")
            if not 0 < value <= upper:
                raise ValueError(f"{name} is {value}; it must be above 0 and at most {upper}")

    def membership(self) -> MembershipSettings:
        """The part that concerns the group. Only for consumers that have one."""
        return MembershipSettings(
            group_id=self.group_id or "",
            bootstrap_servers=self.bootstrap_servers,
            client_id=self.client_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            request_timeout_ms=self.request_timeout_ms,
            group_instance_id=self.group_instance_id,
        )
