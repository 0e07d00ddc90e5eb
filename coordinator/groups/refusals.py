"""The checks that requests share, and what each failure says."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.groups.config import GroupConfig
from coordinator.groups.group import Group
from coordinator.groups.reasons import clipped
from protocol.errors import ErrorCode


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


def instance_fault(group_instance_id: str | None) -> Refusal | None:
    """Static members are not served."""
    if group_instance_id is None:
        return None
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"group_instance_id {clipped(group_instance_id)!r}: this coordinator does not serve static members; leave it unset",
    )


def unknown_group(group_id: str) -> Refusal:
    """A member speaks of a group that is not there."""
    return Refusal(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"group {clipped(group_id)} has no members here; join it with an empty member id",
    )


def unknown_member(group: Group, member_id: str) -> Refusal:
    """The group does not know the member, or no longer; then the sentence says why."""
    if member_id in group.pending:
        text = f"member {clipped(member_id)} has its id, but has not joined group {clipped(group.group_id)} with it"
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{text}; join first")
    why = group.departed.get(member_id)
    shown = f"member {clipped(member_id)}" if member_id else 'member id ""'
    text = f"{shown} is not in group {clipped(group.group_id)}{f': it {why}' if why else ''}"
    return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{text}; join again with an empty member id")


def wrong_generation(group: Group, member_id: str, generation: int) -> Refusal:
    """The member speaks of another generation than the one the group is in."""
    return Refusal(
        ErrorCode.ILLEGAL_GENERATION,
        f"member {clipped(member_id)} speaks of generation {generation}, group {clipped(group.group_id)} is in generation "
        f"{group.generation} ({group.rebalance_reason or 'no rebalance so far'}); join again",
    )


def member_fault(
    group: Group | None, config: GroupConfig, group_id: str, member_id: str, generation: int, instance_id: str | None
) -> Refusal | None:
    """What Heartbeat and SyncGroup check before they look at the state, in this order."""
    if group is None:
        return group_id_fault(group_id, config) or instance_fault(instance_id) or unknown_group(group_id)
    if instance_id is not None:
        return instance_fault(instance_id)
    if member_id not in group.members:
        return unknown_member(group, member_id)
    if generation != group.generation:
        return wrong_generation(group, member_id, generation)
    return None
