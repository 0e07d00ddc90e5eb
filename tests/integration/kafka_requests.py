"""The requests of scripts as Kafka's clients send them, and what Kafka's answers say in our own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocol.errors import ErrorCode
from protocol.kafka.messages import delete_groups_request as delete_groups
from protocol.kafka.messages import heartbeat_request as heartbeat
from protocol.kafka.messages import join_group_request as join
from protocol.kafka.messages import leave_group_request as leave
from protocol.kafka.messages import offset_commit_request as commit
from protocol.kafka.messages import offset_delete_request as offset_delete
from protocol.kafka.messages import offset_fetch_request as fetch
from protocol.kafka.messages import sync_group_request as sync
from protocol.kafka.schema import Message
from protocol.messages import groups, offsets
from protocol.messages.api import Request, Response

Versions = Mapping[type[Request], int]

NEWEST: Final[Versions] = {
    groups.JoinGroupRequest: 9,
    groups.SyncGroupRequest: 5,
    groups.HeartbeatRequest: 4,
    groups.LeaveGroupRequest: 5,
    groups.DeleteGroupsRequest: 2,
    offsets.OffsetCommitRequest: 9,
    offsets.OffsetFetchRequest: 9,
    offsets.OffsetDeleteRequest: 0,
}
"""What clients of Kafka 4 send."""
OLD: Final[Versions] = {
    groups.JoinGroupRequest: 2,
    groups.SyncGroupRequest: 2,
    groups.HeartbeatRequest: 2,
    groups.LeaveGroupRequest: 2,
    groups.DeleteGroupsRequest: 1,
    offsets.OffsetCommitRequest: 6,
    offsets.OffsetFetchRequest: 5,
    offsets.OffsetDeleteRequest: 0,
}
"""What clients of Kafka 2.1 send: they know neither MEMBER_ID_REQUIRED (KIP-394) nor static members (KIP-345)."""
_SEVERAL_LEAVE_SINCE: Final = 3
GROUPS_SINCE: Final = 8
NAMES_PROTOCOL_SINCE: Final = 5
"""The version of SyncGroup that names the protocol and its type (KIP-559)."""
_OF_THE_MEMBER: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})


def written(request: Request, version: int) -> Message:
    """The same request in Kafka's terms; what its version cannot say is left out."""
    match request:
        case groups.JoinGroupRequest():
            protocols = [join.JoinGroupRequestProtocol(each.name, each.metadata) for each in request.protocols]
            told = (request.group_id, request.session_timeout_ms, request.rebalance_timeout_ms, request.member_id)
            return join.JoinGroupRequest(
                *told, request.group_instance_id, request.protocol_type, protocols, request.reason or None
            )
        case groups.SyncGroupRequest():
            shares = [sync.SyncGroupRequestAssignment(each.member_id, each.assignment) for each in request.assignments]
            member = (request.group_id, request.generation_id, request.member_id, request.group_instance_id)
            return sync.SyncGroupRequest(*member, request.protocol_type, request.protocol_name, shares)
        case groups.HeartbeatRequest():
            return heartbeat.HeartbeatRequest(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id
            )
        case groups.LeaveGroupRequest():
            if version < _SEVERAL_LEAVE_SINCE:
                (only,) = request.members
                return leave.LeaveGroupRequest(request.group_id, only.member_id)
            going = [
                leave.MemberIdentity(each.member_id, each.group_instance_id, each.reason or None)
                for each in request.members
            ]
            return leave.LeaveGroupRequest(request.group_id, members=going)
        case groups.DeleteGroupsRequest():
            return delete_groups.DeleteGroupsRequest(list(request.groups_names))
        case _:
            return _written_of_offsets(request, version)


def _written_of_offsets(request: Request, version: int) -> Message:
    match request:
        case offsets.OffsetCommitRequest():
            topics = [
                commit.OffsetCommitRequestTopic(
                    topic.name,
                    partitions=[
                        commit.OffsetCommitRequestPartition(
                            each.partition_index,
                            each.committed_offset,
                            each.committed_leader_epoch,
                            each.committed_metadata,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
            member = (request.group_id, request.generation_id, request.member_id, request.group_instance_id)
            return commit.OffsetCommitRequest(*member, topics=topics)
        case offsets.OffsetFetchRequest():
            named = (
                None
                if request.topics is None
                else [(each.name, list(each.partition_indexes)) for each in request.topics]
            )
            if version < GROUPS_SINCE:
                asked = None if named is None else [fetch.OffsetFetchRequestTopic(*each) for each in named]
                return fetch.OffsetFetchRequest(request.group_id, asked, require_stable=request.require_stable)
            several = (
                None
                if named is None
                else [fetch.OffsetFetchRequestTopics(name, partition_indexes=indexes) for name, indexes in named]
            )
            group = fetch.OffsetFetchRequestGroup(request.group_id, topics=several)
            return fetch.OffsetFetchRequest(groups=[group], require_stable=request.require_stable)
        case offsets.OffsetDeleteRequest():
            going = [
                offset_delete.OffsetDeleteRequestTopic(
                    topic.name, [offset_delete.OffsetDeleteRequestPartition(index) for index in topic.partition_indexes]
                )
                for topic in request.topics
            ]
            return offset_delete.OffsetDeleteRequest(request.group_id, going)
        case _:
            raise AssertionError(f"Kafka's clients do not ask {request}")


def read(request: Request, version: int, answer: Any) -> Response:
    """What an answer of Kafka's says, without reasons and messages, of which most have none."""
    match request:
        case groups.JoinGroupRequest():
            members = tuple(
                groups.JoinGroupMember(each.member_id, each.group_instance_id, each.metadata) for each in answer.members
            )
            name = None if answer.error_code else answer.protocol_name
            told = (name, answer.leader, answer.skip_assignment, answer.member_id, members)
            return groups.JoinGroupResponse(answer.error_code, answer.generation_id, answer.protocol_type, *told)
        case groups.SyncGroupRequest():
            named = (answer.protocol_type, answer.protocol_name)
            return groups.SyncGroupResponse(answer.error_code, *named, answer.assignment)
        case groups.HeartbeatRequest():
            return groups.HeartbeatResponse(answer.error_code)
        case groups.LeaveGroupRequest():
            if version < _SEVERAL_LEAVE_SINCE:
                return _left_alone(request, answer.error_code)
            gone = [
                groups.LeftMember(each.member_id, each.group_instance_id, each.error_code) for each in answer.members
            ]
            return groups.LeaveGroupResponse(answer.error_code, tuple(gone))
        case groups.DeleteGroupsRequest():
            results = [groups.DeletedGroup(each.group_id, each.error_code) for each in answer.results]
            return groups.DeleteGroupsResponse(tuple(results))
        case _:
            return _read_of_offsets(request, version, answer)


def _read_of_offsets(request: Request, version: int, answer: Any) -> Response:
    if isinstance(request, offsets.OffsetCommitRequest):
        topics = [
            offsets.CommittedTopic(
                topic.name,
                tuple(offsets.CommittedPartition(each.partition_index, each.error_code) for each in topic.partitions),
            )
            for topic in answer.topics
        ]
        return offsets.OffsetCommitResponse(tuple(topics))
    if isinstance(request, offsets.OffsetDeleteRequest):
        gone = [
            offsets.DeletedOffsetTopic(
                topic.name,
                tuple(offsets.DeletedOffset(each.partition_index, each.error_code) for each in topic.partitions),
            )
            for topic in answer.topics
        ]
        return offsets.OffsetDeleteResponse(answer.error_code, tuple(gone))
    of_group = answer.groups[0] if version >= GROUPS_SINCE else answer
    found = [
        offsets.FetchedOffsetTopic(
            topic.name,
            tuple(
                offsets.FetchedOffset(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata or "",
                    each.error_code,
                )
                for each in topic.partitions
            ),
        )
        for topic in of_group.topics
    ]
    return offsets.OffsetFetchResponse(of_group.error_code, tuple(found))


def _left_alone(request: groups.LeaveGroupRequest, code: int) -> groups.LeaveGroupResponse:
    """An old answer has one code, of the member or of the whole."""
    (only,) = request.members
    if code in _OF_THE_MEMBER:
        return groups.LeaveGroupResponse(ErrorCode.NONE, (groups.LeftMember(only.member_id, None, code),))
    return groups.LeaveGroupResponse(code)


def cannot_say(request: Request, version: int) -> str:
    """What of a request this version has no words for; "" when it says all that scripts ask."""
    said: tuple[tuple[str, object], ...] = ()
    match request:
        case groups.JoinGroupRequest() if version < _SEVERAL_LEAVE_SINCE:
            said = (("an instance id", request.group_instance_id), ("a reason", request.reason))
        case groups.SyncGroupRequest() if version < NAMES_PROTOCOL_SINCE:
            said = (("an instance id", request.group_instance_id), ("a protocol", request.protocol_name))
            said += (("a protocol type", request.protocol_type),)
        case groups.HeartbeatRequest():
            instance = request.group_instance_id if version < _SEVERAL_LEAVE_SINCE else None
            said = (("a wait", request.max_wait_ms or None), ("an instance id", instance))
        case groups.LeaveGroupRequest() if version < _SEVERAL_LEAVE_SINCE:
            several = len(request.members) != 1 or request.members[0].group_instance_id or request.members[0].reason
            said = (("several members, instance ids or reasons", several or None),)
        case offsets.OffsetCommitRequest() if version < 7:
            said = (("an instance id", request.group_instance_id),)
        case offsets.OffsetFetchRequest() if version < 7:
            said = (("that offsets have to be stable", request.require_stable or None),)
        case _ if type(request) not in NEWEST:
            return f"Kafka's clients do not send {type(request).__name__}"
        case _:
            pass
    return next((f"version {version} does not say {what}" for what, value in said if value), "")
