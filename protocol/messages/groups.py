"""Messages of the group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.codec import Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register


@dataclass(frozen=True, slots=True)
class JoinGroupProtocol:
    """One assignor a member can run, with what the member says to it (for consumers: a subscription blob)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    """One member as the leader sees it; ``metadata`` is that of the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResponse(Response):
    """The new generation. ``members`` is filled for the leader only, which then computes the assignment.

    ``rebalance_reason`` says why this generation came about.
    """

    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinGroupMember, ...] = ()
    rebalance_reason: str = ""
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class JoinGroupRequest(Request):
    """Joins a group, or rejoins it for the next generation. The answer is pending until the generation is complete.

    ``member_id`` is empty at first. ``protocols`` are in the member's order of preference. ``reason`` is shown to
    people (KIP-800).
    """

    api_key = ApiKey.JOIN_GROUP
    response = JoinGroupResponse

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SyncGroupAssignment:
    """What the leader gives one member."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupResponse(Response):
    """This member's assignment in the generation it asked for."""

    error_code: Int16
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class SyncGroupRequest(Request):
    """Asks for the assignment of a generation; the leader's request brings all of them. The answer is pending until they
    are stored."""

    api_key = ApiKey.SYNC_GROUP
    response = SyncGroupResponse

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[SyncGroupAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatResponse(Response):
    """NONE: carry on. REBALANCE_IN_PROGRESS: join again; ``message`` says why."""

    error_code: Int16
    message: str = ""


CARRY_ON: Final = HeartbeatResponse(0)
"""The answer to almost every heartbeat; one object for all of them, which a daemon may pack once."""


@register
@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Request):
    """Renews the session when it arrives; answered when the group needs the member, or after ``max_wait_ms``."""

    api_key = ApiKey.HEARTBEAT
    response = HeartbeatResponse

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None = None
    max_wait_ms: Int32 = 0


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """A member that leaves, and why (KIP-800)."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeftMember:
    """What became of one leaving member."""

    member_id: str
    group_instance_id: str | None
    error_code: Int16


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse(Response):
    """One entry a member, in order."""

    error_code: Int16
    members: tuple[LeftMember, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(Request):
    """Takes members out of a group; one rebalance for the whole batch."""

    api_key = ApiKey.LEAVE_GROUP
    response = LeaveGroupResponse

    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as an administrator sees it; metadata and assignment are empty unless the group is Stable.

    ``client_software`` is what the member runs, name and version, as its client told in ApiVersions (KIP-511); empty when it
    has not, or nothing was heard of the member since its coordinator started.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes = b""
    member_assignment: bytes = b""
    client_software: str = ""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as an administrator sees it. A group that does not exist has state "Dead" and error NONE, as in Kafka.

    ``waiting_for`` names the members whose JoinGroup or SyncGroup the group waits for. ``pending_members`` is how many got a
    member id and have not joined with it yet (KIP-394). ``empty_since_ms`` is since 1970, -1 unless the group is Empty.
    ``pending_offsets`` is how many offsets open transactions are to commit: they are not decided yet.
    """

    error_code: Int16
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()
    generation_id: Int32 = -1
    leader: str = ""
    last_rebalance_reason: str = ""
    error_message: str = ""
    waiting_for: tuple[str, ...] = ()
    pending_members: Int32 = 0
    empty_since_ms: Int64 = -1
    pending_offsets: Int32 = 0


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse(Response):
    """One entry a group, in order."""

    groups: tuple[DescribedGroup, ...]


@register
@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest(Request):
    """Asks for everything about some groups."""

    api_key = ApiKey.DESCRIBE_GROUPS
    response = DescribeGroupsResponse

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One group in a listing."""

    group_id: str
    protocol_type: str
    group_state: str


@dataclass(frozen=True, slots=True)
class ListGroupsResponse(Response):
    """The groups this node coordinates, sorted by id."""

    error_code: Int16
    groups: tuple[ListedGroup, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class ListGroupsRequest(Request):
    """Lists groups; a filter keeps only groups that match one of its entries, an empty one keeps all (KIP-518, KIP-848).

    States are compared in any case. A protocol type is compared as it is; that of groups which never had a member is "".
    """

    api_key = ApiKey.LIST_GROUPS
    response = ListGroupsResponse

    states_filter: tuple[str, ...] = ()
    protocol_types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """What became of one group: NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND when it does not exist."""

    group_id: str
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse(Response):
    """One entry a group, in order."""

    results: tuple[DeletedGroup, ...]


@register
@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(Request):
    """Erases groups without members, their committed offsets too (KIP-229)."""

    api_key = ApiKey.DELETE_GROUPS
    response = DeleteGroupsResponse

    groups_names: tuple[str, ...]
