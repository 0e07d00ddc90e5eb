"""What happened, in the words of a script: one line each, the same for the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from coordinator.groups.records import (
    CoordinatorRecord,
    GenerationRecord,
    GenerationTombstone,
    GroupMetadataRecord,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    PendingOffsetsRecord,
    PendingOffsetsTombstone,
    StagedOffsetsRecord,
    StagedOffsetsTombstone,
)
from protocol.consumer_protocol import VERSION
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.api import Response
from protocol.messages.groups import (
    DeleteGroupsResponse,
    DescribedGroup,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListedGroup,
    SyncGroupResponse,
)
from protocol.messages.offsets import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse
from protocol.messages.transactions import StageOffsetsResponse, TxnOffsetCommitResponse
from protocol.subscription import decode_subscription, encode_subscription
from tests.scripts.script import Happened

_RUN: Final = re.compile(r"(.)\1{40,}")


def answered(who: str, verb: str, response: Response) -> Happened:
    """An answer, with the reason or message that came with it."""
    text, reason = _answer(response)
    return Happened("->", f"{who} {verb}: {text}".strip(), reason)


def _answer(response: Response) -> tuple[str, str]:
    if isinstance(response, JoinGroupResponse):
        return _joined(response)
    if isinstance(response, SyncGroupResponse):
        if response.error_code != ErrorCode.NONE:
            return _name(response.error_code), response.error_message
        return f"NONE protocol={response.protocol_name} share={_text(response.assignment)}", ""
    if isinstance(response, HeartbeatResponse):
        return _name(response.error_code), response.message
    if isinstance(response, LeaveGroupResponse):
        left = [f"{_member(one.member_id, one.group_instance_id)}={_name(one.error_code)}" for one in response.members]
        return " ".join([_name(response.error_code), *left]), response.error_message
    if isinstance(response, StageOffsetsResponse):
        return _name(response.error_code), response.error_message
    if isinstance(response, OffsetCommitResponse | TxnOffsetCommitResponse):
        if isinstance(response, TxnOffsetCommitResponse) and not response.topics:
            return _name(response.error_code), response.error_message
        results = [
            f"{topic.name}/{partition.partition_index}={_name(partition.error_code)}"
            for topic in response.topics
            for partition in topic.partitions
        ]
        return " ".join(results), response.error_message
    if isinstance(response, OffsetDeleteResponse):
        results = [
            f"{topic.name}/{partition.partition_index}={_name(partition.error_code)}"
            for topic in response.topics
            for partition in topic.partitions
        ]
        return " ".join([_name(response.error_code), *results]), response.error_message
    if isinstance(response, DeleteGroupsResponse):
        gone = [f"{_short(result.group_id)}={_name(result.error_code)}" for result in response.results]
        return " ".join(gone), next((result.error_message for result in response.results if result.error_message), "")
    assert isinstance(response, OffsetFetchResponse), f"no words for {response}"
    found = [
        f"{topic.name}/{one.partition_index}="
        + (
            _name(one.error_code)
            if one.error_code
            else _offset(one.committed_offset, one.committed_leader_epoch, one.metadata)
        )
        for topic in response.topics
        for one in topic.partitions
    ]
    return " ".join([_name(response.error_code), *found]), response.error_message


def _joined(response: JoinGroupResponse) -> tuple[str, str]:
    if response.error_code != ErrorCode.NONE:
        assert response.generation_id == -1
        assert response.protocol_name is None
        assert response.members == ()
        assert response.error_code != ErrorCode.GROUP_MAX_SIZE_REACHED or not response.member_id
        named = f" member={response.member_id}" if response.error_code == ErrorCode.MEMBER_ID_REQUIRED else ""
        return _name(response.error_code) + named, response.error_message
    text = f"NONE member={response.member_id} generation={response.generation_id} leader={response.leader}"
    text += f" protocol={response.protocol_name}"
    if response.skip_assignment:
        text += " skip-assignment"
    if response.members:
        members = [f"{_member(one.member_id, one.group_instance_id)}:{_text(one.metadata)}" for one in response.members]
        text += f" members={','.join(members)}"
    return text, response.rebalance_reason


def written(records: Iterable[CoordinatorRecord]) -> list[Happened]:
    """Records that went to the log.

    That of a generation's number is left out: one goes with each CompletingRebalance, which is shown.
    """
    return [_written(record) for record in records if not isinstance(record, GenerationRecord | GenerationTombstone)]


def _written(record: CoordinatorRecord) -> Happened:
    if isinstance(record, OffsetCommitRecord):
        offset = _offset(record.offset, record.leader_epoch, record.metadata)
        return Happened("++", f"offset {record.topic}/{record.partition}={offset}")
    if isinstance(record, OffsetCommitTombstone):
        return Happened("++", f"offset {record.topic}/{record.partition} erased")
    if isinstance(record, GroupMetadataRecord):
        shares = [f"{_member(one.member_id, one.group_instance_id)}={_text(one.assignment)}" for one in record.members]
        words = ["group", f"generation={record.generation}", f"leader={record.leader or 'nobody'}", *shares]
        return Happened("++", " ".join(words), record.rebalance_reason)
    if isinstance(record, PendingOffsetsRecord):
        told = [
            f"{one.topic}/{one.partition}={one.offset}{'' if one.serial else '(overtaken)'}" for one in record.offsets
        ]
        return Happened("++", f"pending {record.producer_id}/{record.producer_epoch} {' '.join(told)}")
    if isinstance(record, PendingOffsetsTombstone):
        return Happened("++", f"pending {record.producer_id} erased")
    if isinstance(record, StagedOffsetsRecord):
        batch = [f"{one.topic}/{one.partition}={one.start_offset}..{one.end_offset}" for one in record.offsets]
        return Happened("++", f"staged by {record.member_id} {' '.join(batch)}")
    if isinstance(record, StagedOffsetsTombstone):
        return Happened("++", "staged erased")
    return Happened("++", "group erased")


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
        f"{_member(member.member_id, member.group_instance_id)}="
        f"{_text(member.member_metadata)}/{_text(member.member_assignment)}"
        for member in group.members
    ]
    words = [group.group_state, f"type={group.protocol_type}", f"protocol={group.protocol_data}", *members]
    return Happened("->", f"describe: {' '.join(words)}", group.last_rebalance_reason)


def listed(groups: Iterable[ListedGroup]) -> Happened:
    """What ListGroups shows."""
    return Happened("->", f"list: {' '.join(f'{one.group_id}={one.group_state}' for one in groups)}".rstrip())


def _member(member_id: str, instance_id: str | None) -> str:
    return member_id if instance_id is None else f"{member_id}({instance_id})"


def _offset(offset: int, leader_epoch: int, metadata: str) -> str:
    epoch = f"@{leader_epoch}" if leader_epoch >= 0 else ""
    return f"{offset}{epoch}" + (f"({metadata[:20]})" if metadata else "")


def _short(text: str) -> str:
    """A text of many equal characters as scripts write it: ``x*1025``."""
    return _RUN.sub(lambda run: f"{run[1]}*{len(run[0])}", text)


def _name(code: int) -> str:
    return ErrorCode(code).name


def _text(data: bytes) -> str:
    """The words that stand for these bytes in a script; see ``requests.metadata``."""
    try:
        return _short(data.decode()) or "-"
    except UnicodeDecodeError:
        pass
    try:
        subscription = decode_subscription(data)
    except ProtocolError:
        return f"bytes({data.hex()})"
    known = data == encode_subscription(subscription) and data[1] == VERSION
    owned = ",".join(f"{topic}/{partition}" for topic, partition in subscription.owned_partitions)
    return f"{'topics' if known else 'future'}({','.join(subscription.topics)}{'|' if owned else ''}{owned})"
