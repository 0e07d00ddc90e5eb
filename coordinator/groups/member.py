"""One member of a group, as long as the coordinator runs. What must survive a restart is in ``records.MemberRecord``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from coordinator.runtime.effects import ReplyToken, TimerName
from protocol.messages.groups import JoinGroupMember, JoinGroupProtocol

_FRAME_BYTES: Final = 64
_PROTOCOL_FRAME_BYTES: Final = 16


@dataclass(slots=True, eq=False)
class PendingMember:
    """A new member that was given its id and has not joined with it yet (KIP-394)."""

    group_id: str
    member_id: str
    deadline_ms: int
    """When the id is void if nobody has joined with it."""

    connection: int = 0
    """The connection over which it was asked for."""

    awaited: bool = True
    """A join phase waits for it. No longer once that connection has closed: whoever lives comes over another one."""

    timer: TimerName = field(init=False)

    def __post_init__(self) -> None:
        self.timer = ("pending", self.group_id, self.member_id)


@dataclass(slots=True, eq=False)
class Member:
    """A member: who it is, what it offers, and which of its requests wait for an answer."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]
    group_instance_id: str | None = None
    """Set for a static member (KIP-345): whoever joins with it next takes this member's place."""

    is_new: bool = False
    """It has not been told any generation yet: its first JoinGroup still waits."""

    has_joined: bool = False
    """It has answered the call of the rebalance that is going on; meaningful in PreparingRebalance."""

    has_synced: bool = True
    """It has asked for its assignment in this generation; meaningful in CompletingRebalance and Stable."""

    is_loaded: bool = False
    """It was read from the log, and nothing was heard of it since."""

    join_token: ReplyToken | None = None
    sync_token: ReplyToken | None = None
    heartbeat_token: ReplyToken | None = None
    session_deadline_ms: int | None = None
    """When the session ends; None while the coordinator holds a JoinGroup or SyncGroup of the member."""

    heartbeat_deadline_ms: int | None = None
    """When the parked heartbeat is answered; None when there is none."""

    _shown: tuple[str | None, JoinGroupMember] | None = field(init=False, default=None)
    """What the leader was shown of it last, and for which protocol: most of it is the same in the next generation."""

    session_timer: TimerName = field(init=False)
    heartbeat_timer: TimerName = field(init=False)
    metadata_bytes: int = field(init=False)
    names_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.set_id(self.member_id)
        self.metadata_bytes = size_of(self.protocols)
        self.names_bytes = self.count_names()

    def count_names(self) -> int:
        """See ``names_size``."""
        return names_size(self.member_id, self.client_id, self.client_host, self.group_instance_id, len(self.protocols))

    def set_id(self, member_id: str) -> None:
        """Gives the member its id, and its timers their names; none of them may be set."""
        self.member_id = member_id
        self._shown = None
        self.session_timer = ("session", self.group_id, member_id)
        self.heartbeat_timer = ("heartbeat", self.group_id, member_id)

    def set_protocols(self, protocols: tuple[JoinGroupProtocol, ...]) -> None:
        """Replaces what the member offers."""
        self.protocols = protocols
        self.metadata_bytes = size_of(protocols)
        self._shown = None

    def shown(self, protocol_name: str | None) -> JoinGroupMember:
        """The member as its leader sees it in a generation with this protocol."""
        shown = self._shown
        if shown is None or shown[0] != protocol_name:
            metadata = self.metadata(protocol_name)
            shown = self._shown = (protocol_name, JoinGroupMember(self.member_id, self.group_instance_id, metadata))
        return shown[1]

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member says to one of its protocols; empty for one it does not know."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""


def names_size(member_id: str, client_id: str, client_host: str, group_instance_id: str | None, protocols: int) -> int:
    """Bytes that a member takes in a frame or in the log beside metadata and assignment: its names and what frames them."""
    names = (
        len(member_id.encode()) + len(client_id.encode()) + len(client_host) + len((group_instance_id or "").encode())
    )
    return names + _FRAME_BYTES + protocols * _PROTOCOL_FRAME_BYTES


def size_of(protocols: tuple[JoinGroupProtocol, ...]) -> int:
    """Bytes that protocols take, names included."""
    return sum(len(protocol.name.encode()) + len(protocol.metadata) for protocol in protocols)
