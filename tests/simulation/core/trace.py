"""Requests and answers in few words."""

from __future__ import annotations

from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.api import Request, Response
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from protocol.subscription import decode_topics


def of_request(request: Request) -> str:
    """A request in few words."""
    match request:
        case JoinGroupRequest():
            offers = ", ".join(f"{protocol.name} {_said(protocol.metadata)}" for protocol in request.protocols)
            instance = f" of {request.group_instance_id}" if request.group_instance_id else ""
            return f"JoinGroup as {request.member_id or 'somebody new'}{instance} with {offers}"
        case SyncGroupRequest():
            shares = ", ".join(f"{share.member_id}: {list(share.assignment)}" for share in request.assignments)
            brings = f", with {shares}" if shares else ""
            return f"SyncGroup of {request.member_id}, generation {request.generation_id}{brings}"
        case HeartbeatRequest():
            return (
                f"Heartbeat of {request.member_id}, generation {request.generation_id}, up to {request.max_wait_ms} ms"
            )
        case LeaveGroupRequest():
            return f"LeaveGroup of {', '.join(one.member_id or str(one.group_instance_id) for one in request.members)}"
        case OffsetCommitRequest():
            partition = request.topics[0].partitions[0]
            return (
                f"OffsetCommit of {request.member_id or 'nobody'}, generation {request.generation_id}: "
                f"partition {partition.partition_index} at {partition.committed_offset}"
            )
        case TxnOffsetCommitRequest():
            told = {one.partition_index: one.committed_offset for one in request.topics[0].partitions}
            return (
                f"TxnOffsetCommit of {request.member_id}, generation {request.generation_id}: {told} in the transaction of "
                f"producer {request.producer_id}, epoch {request.producer_epoch}"
            )
        case OffsetFetchRequest():
            return "OffsetFetch"
        case DeleteGroupsRequest():
            return f"DeleteGroups of {', '.join(request.groups_names)}"
        case OffsetDeleteRequest():
            return f"OffsetDelete of {list(request.topics[0].partition_indexes)}"
    raise AssertionError(f"{type(request).__name__} is not simulated")


def _said(metadata: bytes) -> str:
    try:
        return f"for {' and '.join(decode_topics(metadata))}"
    except ProtocolError:
        return metadata.decode()


def of_answer(response: Response) -> str:
    """An answer in few words."""
    match response:
        case OffsetCommitResponse() | TxnOffsetCommitResponse():
            return ErrorCode(response.topics[0].partitions[0].error_code).name
        case JoinGroupResponse() if response.error_code == 0:
            return f"{response.member_id} in generation {response.generation_id}, led by {response.leader}"
        case SyncGroupResponse() if response.error_code == 0:
            return f"share {list(response.assignment)}"
        case LeaveGroupResponse():
            return ", ".join(ErrorCode(left.error_code).name for left in response.members)
        case DeleteGroupsResponse():
            return ", ".join(ErrorCode(deleted.error_code).name for deleted in response.results)
        case OffsetDeleteResponse() if response.error_code == 0:
            return ErrorCode(response.topics[0].partitions[0].error_code).name
        case OffsetFetchResponse() if response.error_code == 0:
            found = response.topics[0].partitions
            return str({one.partition_index: "unstable" if one.error_code else one.committed_offset for one in found})
    return ErrorCode(response.error_code).name  # type: ignore[attr-defined]
