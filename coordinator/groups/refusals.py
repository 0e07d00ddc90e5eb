"""What a request is refused with, and the sentences that say why: who a member is, and what to do. All of them bounded."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.groups.config import GroupConfig, GroupStep
from coordinator.groups.group import Group, Member, clipped, size_of
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.offsets import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.transactions import (
    StageOffsetsRequest,
    StageOffsetsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)


class Refusal(NamedTuple):
    """Why a request is not served: an error code, and a sentence with the cause and what to do."""

    code: ErrorCode
    message: str


def group_id_fault(group_id: str, config: GroupConfig) -> Refusal | None:
    """A group id is not empty and has a bound."""
    if not group_id:
        return Refusal(ErrorCode.INVALID_GROUP_ID, "the group id is empty; set one")
    if len(group_id) > config.max_group_id_bytes or len(group_id.encode()) > config.max_group_id_bytes:
        return Refusal(
            ErrorCode.INVALID_GROUP_ID,
            f"group id {clipped(group_id, 60)} is longer than {config.max_group_id_bytes} bytes; choose a shorter one",
        )
    return None


def instance_id_fault(group_instance_id: str | None, config: GroupConfig) -> Refusal | None:
    """An instance id is not empty and has a bound; None is no instance id."""
    if group_instance_id is None or 0 < len(group_instance_id.encode()) <= config.max_group_instance_id_bytes:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"group_instance_id {clipped(group_instance_id, 60)!r} is empty or longer than "
        f"{config.max_group_instance_id_bytes} bytes; choose another one, or leave it unset",
    )


def join_request_fault(request: JoinGroupRequest, step: GroupStep) -> Refusal | None:
    """What is wrong with a JoinGroup that can be said without knowing the group."""
    config, client_id = step.config, step.context.client_id
    fault = group_id_fault(request.group_id, config)
    if fault is not None:
        return fault
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        return Refusal(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session_timeout_ms {request.session_timeout_ms} of client {clipped(client_id)} is outside "
            f"{config.min_session_timeout_ms} to {config.max_session_timeout_ms}; set one within",
        )
    fault = instance_id_fault(request.group_instance_id, config)
    if fault is not None:
        return fault
    if not 1 <= request.rebalance_timeout_ms <= config.max_rebalance_timeout_ms:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"rebalance_timeout_ms {request.rebalance_timeout_ms} of client {clipped(client_id)} is outside 1 to "
            f"{config.max_rebalance_timeout_ms}; set one within",
        )
    if len(client_id.encode()) > config.max_client_id_bytes:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"client id {clipped(client_id, 60)} is longer than {config.max_client_id_bytes} bytes; choose a "
            f"shorter one",
        )
    return _protocols_fault(request, step)


def _protocols_fault(request: JoinGroupRequest, step: GroupStep) -> Refusal | None:
    config, client_id = step.config, step.context.client_id
    if not request.protocol_type or not request.protocols:
        return Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"client {clipped(client_id)} joins group {clipped(request.group_id)} without protocol type or protocols; "
            f"offer one",
        )
    if len(request.protocols) > config.max_protocols_per_member:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"client {clipped(client_id)} offers {len(request.protocols)} protocols; at most "
            f"{config.max_protocols_per_member} are allowed",
        )
    if len({protocol.name for protocol in request.protocols}) < len(request.protocols):
        return Refusal(
            ErrorCode.INVALID_REQUEST, f"client {clipped(client_id)} offers a protocol twice; name each one once"
        )
    size = size_of(request.protocols)
    if size > config.max_member_metadata_bytes:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"the protocols of client {clipped(client_id)} take {size} bytes; at most "
            f"{config.max_member_metadata_bytes} are allowed",
        )
    return None


def unknown_group(group_id: str) -> Refusal:
    """A member speaks of a group that is not there."""
    return Refusal(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"group {clipped(group_id)} has no members here; join it with an empty member id",
    )


def unknown_member(group: Group, member_id: str) -> Refusal:
    """The group does not know the member, or no longer; then the sentence says why."""
    if member_id in group.pending:
        text = f"member {clipped(member_id)} has its id, but has not joined group {group.clipped_id} with it"
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{text}; join first")
    shown = f"member {clipped(member_id)}" if member_id else 'member id ""'
    text = f"{shown} is not in group {group.clipped_id}"
    why = group.departed.get(member_id)
    if why is not None:
        text += f": it {why}"
    elif member_id and group.loaded:
        text += ": nothing is known of it since the coordinator restarted"
    return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{text}; join again with an empty member id")


def wrong_generation(group: Group, member_id: str, generation: int) -> Refusal:
    """The member speaks of another generation than the one the group is in."""
    lost = group.loaded and group.generation < generation <= group.handed_out
    return Refusal(
        ErrorCode.ILLEGAL_GENERATION,
        f"member {clipped(member_id)} speaks of generation {generation}, group {group.clipped_id} is in generation "
        f"{group.generation} ({group.rebalance_reason or 'no rebalance so far'})"
        f"{': the coordinator restarted before the later one was settled' if lost else ''}; join again",
    )


def identity_fault(group: Group, member_id: str, group_instance_id: str | None) -> Refusal | None:
    """Whether a member is who it says: the group knows the id, and the instance id belongs to it (KIP-345)."""
    if group_instance_id is not None:
        current_id = group.instances.get(group_instance_id)
        if current_id is None:
            fault = unknown_member(group, member_id)
            return Refusal(fault.code, f"no member has group_instance_id {clipped(group_instance_id)}; {fault.message}")
        if current_id != member_id:
            return fenced(group.members[current_id], current_id, member_id)
    if member_id not in group.members:
        return unknown_member(group, member_id)
    return None


def fenced(member: Member, current_id: str, old_id: str) -> Refusal:
    """The instance id of a static member belongs to ``current_id`` now, and ``old_id`` still speaks for it."""
    return Refusal(
        ErrorCode.FENCED_INSTANCE_ID,
        f"group_instance_id {clipped(member.group_instance_id or '')} belongs to member {clipped(current_id)} (client "
        f"{clipped(member.client_id)} at {clipped(member.client_host)}) and not to member {clipped(old_id)}, which another "
        f"process speaks for; stop one of the two, or give each process a group_instance_id of its own",
    )


def member_fault(
    group: Group | None,
    request: HeartbeatRequest | SyncGroupRequest | OffsetCommitRequest | TxnOffsetCommitRequest | StageOffsetsRequest,
    step: GroupStep,
) -> Refusal | None:
    """What requests of members check before they look at the state, in this order."""
    if group is None:
        return group_id_fault(request.group_id, step.config) or unknown_group(request.group_id)
    if request.group_instance_id is not None or request.member_id not in group.members:
        fault = identity_fault(group, request.member_id, request.group_instance_id)
        if fault is not None:
            return fault
    if request.generation_id != group.generation:
        return wrong_generation(group, request.member_id, request.generation_id)
    return None


def error_response(request: Request, code: ErrorCode, message: str) -> Response:
    """The answer to ``request`` that carries nothing but an error."""
    match request:
        case JoinGroupRequest():
            return JoinGroupResponse(code, member_id=request.member_id, error_message=message)
        case SyncGroupRequest():
            return SyncGroupResponse(code, error_message=message)
        case HeartbeatRequest():
            return HeartbeatResponse(code, message)
        case LeaveGroupRequest():
            return LeaveGroupResponse(code, error_message=message)
        case OffsetCommitRequest():
            return OffsetCommitResponse(_refused(request.topics, code), message)
        case TxnOffsetCommitRequest():
            return TxnOffsetCommitResponse(_refused(request.topics, code), message, code)
        case StageOffsetsRequest():
            return StageOffsetsResponse(code, message)
        case OffsetFetchRequest():
            return OffsetFetchResponse(code, error_message=message)
        case OffsetDeleteRequest():
            return OffsetDeleteResponse(code, error_message=message)
        case DeleteGroupsRequest():
            return DeleteGroupsResponse(
                tuple(DeletedGroup(group_id, code, message) for group_id in request.groups_names)
            )
        case DescribeGroupsRequest():
            return DescribeGroupsResponse(
                tuple(DescribedGroup(code, group_id, error_message=message) for group_id in request.groups)
            )
        case ListGroupsRequest():
            return ListGroupsResponse(code, (), message)
    raise AssertionError(f"{type(request).__name__} is no request to a group coordinator")


def _refused(topics: tuple[OffsetCommitTopic, ...], code: ErrorCode) -> tuple[CommittedTopic, ...]:
    return tuple(
        CommittedTopic(topic.name, tuple(CommittedPartition(entry.partition_index, code) for entry in topic.partitions))
        for topic in topics
    )
