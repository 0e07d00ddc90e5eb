"""The answer to a group request that the core cannot decide, in the shape of its API key."""

from __future__ import annotations

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
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)


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
            topics = tuple(
                CommittedTopic(
                    topic.name, tuple(CommittedPartition(entry.partition_index, code) for entry in topic.partitions)
                )
                for topic in request.topics
            )
            return OffsetCommitResponse(topics, message)
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
