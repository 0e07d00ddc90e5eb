"""What happened, in the words of a script: one line each, the same for the same thing."""

from __future__ import annotations

from coordinator.groups.records import CoordinatorRecord, GroupMetadataRecord, OffsetCommitRecord
from protocol.errors import ErrorCode
from protocol.messages.api import Response
from protocol.messages.groups import (
    DescribedGroup,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListedGroup,
    SyncGroupResponse,
)
from protocol.messages.offsets import OffsetCommitResponse, OffsetFetchResponse
from tests.scripts.script import Happened


def answered(who: str, verb: str, response: Response) -> Happened:
    """An answer, with the reason or message that came with it."""
    text, reason = _answer(response)
    return Happened("->", f"{who} {verb}: {text}".rstrip(), reason)


def _answer(response: Response) -> tuple[str, str]:
    if isinstance(response, JoinGroupResponse):
        if response.error_code != ErrorCode.NONE:
            assert response.generation_id == -1
            assert response.protocol_name is None
            return _name(response.error_code), response.error_message
        text = f"NONE member={response.member_id} generation={response.generation_id} leader={response.leader}"
        text += f" protocol={response.protocol_name}"
        if response.members:
            text += " members=" + ",".join(
                f"{member.member_id}:{_text(member.metadata)}" for member in response.members
            )
        return text, response.rebalance_reason
    if isinstance(response, SyncGroupResponse):
        if response.error_code != ErrorCode.NONE:
            return _name(response.error_code), response.error_message
        return f"NONE protocol={response.protocol_name} share={_text(response.assignment)}", ""
    if isinstance(response, HeartbeatResponse):
        return _name(response.error_code), response.message
    if isinstance(response, LeaveGroupResponse):
        left = [f"{member.member_id}={_name(member.error_code)}" for member in response.members]
        return " ".join([_name(response.error_code), *left]), response.error_message
    if isinstance(response, OffsetCommitResponse):
        results = [
            f"{topic.name}/{partition.partition_index}={_name(partition.error_code)}"
            for topic in response.topics
            for partition in topic.partitions
        ]
        return " ".join(results), response.error_message
    assert isinstance(response, OffsetFetchResponse), f"no words for {response}"
    found = [
        f"{topic.name}/{one.partition_index}={one.committed_offset}"
        + (f"({one.metadata[:20]})" if one.metadata else "")
        for topic in response.topics
        for one in topic.partitions
    ]
    return " ".join([_name(response.error_code), *found]), response.error_message


def written(record: CoordinatorRecord) -> Happened:
    """A record that went to the log."""
    if isinstance(record, OffsetCommitRecord):
        metadata = f"({record.metadata[:20]})" if record.metadata else ""
        return Happened("++", f"offset {record.topic}/{record.partition}={record.offset}{metadata}")
    assert isinstance(record, GroupMetadataRecord), f"no words for {record}"
    shares = [f"{member.member_id}={_text(member.assignment)}" for member in record.members]
    text = " ".join(["group", f"generation={record.generation}", f"leader={record.leader or 'nobody'}", *shares])
    return Happened("++", text, record.rebalance_reason)


def state(group: DescribedGroup) -> Happened:
    """Where a group stands."""
    if group.group_state == "Dead":
        return Happened("==", "Dead")
    text = f"{group.group_state} generation={group.generation_id}"
    if group.members:
        text += f" leader={group.leader} members={','.join(member.member_id for member in group.members)}"
    return Happened("==", text, group.last_rebalance_reason)


def described(group: DescribedGroup) -> Happened:
    """What DescribeGroups shows."""
    members = [
        f"{member.member_id}={_text(member.member_metadata)}/{_text(member.member_assignment)}"
        for member in group.members
    ]
    words = [group.group_state, f"type={group.protocol_type}", f"protocol={group.protocol_data}", *members]
    return Happened("->", f"describe: {' '.join(words)}", group.last_rebalance_reason)


def listed(groups: list[ListedGroup]) -> Happened:
    """What ListGroups shows."""
    return Happened("->", f"list: {' '.join(f'{one.group_id}={one.group_state}' for one in groups)}".rstrip())


def _name(code: int) -> str:
    return ErrorCode(code).name


def _text(data: bytes) -> str:
    return data.decode() or "-"
