"""The admin's calls about groups and their members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from client.admin.arguments import checked_group, checked_groups, checked_text
from client.admin.calls import AdminCalls
from client.admin.failures import all_or_failures, raise_failures
from client.admin.group_reports import describe_group, group_lag, list_groups
from client.errors import (
    CohortError,
    GroupIdNotFoundError,
    InvalidRequestError,
    NonEmptyGroupError,
    UnknownMemberIdError,
    error_for,
)
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.retry import retrying
from client.types.descriptions import (
    GROUP_STATES,
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionLag,
    RemovedMember,
)
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
)

DEAD: Final = "Dead"
"""The state of a group that does not exist."""

_MEMBERS_SHOWN: Final = 10


class GroupCalls(AdminCalls):
    """Base of ``Admin``: groups are seen and deleted, members are removed."""

    async def list_groups(
        self,
        states: Iterable[str] | None = None,
        protocol_types: Iterable[str] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> list[GroupListing]:
        """The groups of all nodes, sorted by id.

        With ``states`` (any case) only those in one of them (KIP-518), with ``protocol_types`` only those of one of them,
        such as "consumer"; the type of a group that never had a member is "" (KIP-848). Raises ``ValueError`` for a state
        that does not exist.
        """
        types = (protocol_types,) if isinstance(protocol_types, str) else tuple(protocol_types or ())
        for protocol_type in types:
            checked_text("a protocol type", protocol_type)
        return await list_groups(self._cluster, _states(states), types, self._deadline(timeout_ms))

    async def describe_groups(self, *groups: str, timeout_ms: int | None = None) -> dict[str, GroupDescription]:
        """Groups by id, in the order asked for. One that does not exist has the state "Dead", as in Kafka.

        Raises ``InvalidGroupIdError``.
        """
        deadline = self._deadline(timeout_ms)
        asked = checked_groups("describe_groups", groups)
        return await all_or_failures({group: describe_group(self._cluster, group, deadline) for group in asked})

    async def group_lag(self, group: str, *, timeout_ms: int | None = None) -> list[PartitionLag]:
        """How far a group is behind, in every partition it has committed or owns; sorted by topic and partition."""
        return await group_lag(self._cluster, checked_group(group), self._deadline(timeout_ms))

    async def delete_groups(self, *groups: str, timeout_ms: int | None = None) -> None:
        """Erases groups without members and all they have committed (KIP-229).

        Raises ``NonEmptyGroupError`` naming the members, ``GroupIdNotFoundError``, ``InvalidGroupIdError``. The request is
        sent again when its answer is lost; ``GroupIdNotFoundError`` may then mean that the first one did delete the group.
        """
        deadline = self._deadline(timeout_ms)
        asked = checked_groups("delete_groups", groups)
        await all_or_failures({group: _delete_group(self._cluster, group, deadline) for group in asked})

    async def remove_members(
        self,
        group: str,
        *member_ids: str,
        group_instance_ids: Iterable[str] = (),
        all_members: bool = False,
        reason: str = "",
        timeout_ms: int | None = None,
    ) -> list[RemovedMember]:
        """Takes members out of a group, which rebalances once for all of them (KIP-571).

        Members are named by ``member_ids``, static ones also by ``group_instance_ids`` (KIP-345). ``all_members`` removes
        all that are members when the call begins; without it a call that names none raises ``ValueError``, so that a
        list that came out empty by mistake empties no group. ``reason`` is shown to the other members (KIP-800).

        Returns who was removed. A program that still runs joins again by itself: stop it first if it is to stay out.
        Raises ``UnknownMemberIdError`` naming who is not a member and who is, and ``GroupIdNotFoundError``. The request is
        sent again when its answer is lost; ``UnknownMemberIdError`` may then mean that the first one did remove the member.
        """
        instance_ids = (group_instance_ids,) if isinstance(group_instance_ids, str) else tuple(group_instance_ids)
        named = [RemovedMember(member_id, None) for member_id in member_ids]
        named += [RemovedMember("", instance_id) for instance_id in instance_ids]
        checked_group(group)
        for what, text in (
            ("the reason", reason),
            *(("the id of a member", named) for named in member_ids + instance_ids),
        ):
            try:
                checked_text(what, text)
            except InvalidRequestError as error:
                raise ValueError(str(error)) from None
        if all_members and named:
            raise ValueError("remove_members() takes either all_members=True or the ids of members, not both")
        if not all_members and not named:
            raise ValueError(f"no member of group {group!r} is named; all_members=True removes every one of them")
        deadline = self._deadline(timeout_ms)
        if all_members:
            return await _remove_all(self._cluster, group, reason, deadline)
        return await _remove(self._cluster, group, list(dict.fromkeys(named)), reason, deadline)


def members_text(members: Sequence[MemberDescription]) -> str:
    """Who is in a group, for the text of an error: ``2 members: a at 10.0.0.1, b at 10.0.0.2``."""
    shown = [
        f"{member.member_id}{f' (instance {member.group_instance_id})' if member.group_instance_id else ''} at "
        f"{member.host}"
        for member in members[:_MEMBERS_SHOWN]
    ]
    more = [f"and {len(members) - _MEMBERS_SHOWN} more"] if len(members) > _MEMBERS_SHOWN else []
    return f"{len(members)} {'member' if len(members) == 1 else 'members'}: {', '.join(shown + more)}"


async def active_group_error(cluster: Cluster, group_id: str, what: str, said: str, deadline: Deadline) -> CohortError:
    """The error of an operation that needs a group without members, naming them; ``said`` is what the daemon told."""
    try:
        members = (await describe_group(cluster, group_id, deadline)).members
    except CohortError:
        members = ()
    who = f"it has {members_text(members)}" if members else said or "it has members"
    return NonEmptyGroupError(
        f"{what}: {who}. Stop its members first, or take them out with remove_members (cohort groups remove-member)"
    )


def _states(states: Iterable[str] | None) -> tuple[str, ...]:
    wanted = (states,) if isinstance(states, str) else tuple(states or ())
    known = {state.lower() for state in GROUP_STATES}
    unknown = [state for state in wanted if checked_text("a state", state).strip().lower() not in known]
    if unknown:
        raise ValueError(f"{', '.join(map(repr, unknown))}: no such state; there are {', '.join(GROUP_STATES)}")
    return wanted


async def _delete_group(cluster: Cluster, group_id: str, deadline: Deadline) -> None:
    async def once() -> None:
        response = await cluster.call_coordinator(
            group_id, DeleteGroupsRequest((group_id,)), DeleteGroupsResponse, deadline=deadline
        )
        (result,) = response.results
        what = f"group {group_id!r} was not deleted"
        await raise_for_group(cluster, group_id, what, result.error_code, result.error_message, deadline)

    await retrying(once, deadline=deadline, backoff=cluster.backoff, what=f"deleting group {group_id!r}")


async def raise_for_group(
    cluster: Cluster, group_id: str, what: str, code: int, message: str, deadline: Deadline
) -> None:
    """Raises what a coordinator's refusal means for the group as a whole; ``what`` did not happen."""
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise await active_group_error(cluster, group_id, what, message, deadline)
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise unknown_group(group_id)
    if code != ErrorCode.NONE:
        raise error_for(code, f"group {group_id!r}: {message}")


def unknown_group(group_id: str) -> GroupIdNotFoundError:
    """The group does not exist."""
    return GroupIdNotFoundError(
        f"group {group_id!r} does not exist; list_groups (cohort groups list) shows those that do"
    )


async def _remove_all(cluster: Cluster, group_id: str, reason: str, deadline: Deadline) -> list[RemovedMember]:
    group = await describe_group(cluster, group_id, deadline)
    if group.state == DEAD:
        raise unknown_group(group_id)
    members = [
        RemovedMember("" if member.group_instance_id else member.member_id, member.group_instance_id)
        for member in group.members
    ]
    removed, _ = await _leave(cluster, group_id, members, reason, deadline) if members else ([], [])
    return removed  # who is missing left by itself meanwhile


async def _remove(
    cluster: Cluster, group_id: str, members: Sequence[RemovedMember], reason: str, deadline: Deadline
) -> list[RemovedMember]:
    removed, missing = await _leave(cluster, group_id, members, reason, deadline)
    if missing:
        group = await describe_group(cluster, group_id, deadline)
        if group.state == DEAD:
            raise unknown_group(group_id)
        there = f"it has {members_text(group.members)}" if group.members else "it has no members"
        raise_failures({member: _not_there(group_id, member, there) for member in missing})
    return removed


async def _leave(
    cluster: Cluster, group_id: str, members: Sequence[RemovedMember], reason: str, deadline: Deadline
) -> tuple[list[RemovedMember], list[RemovedMember]]:
    """Who was removed, and who was not there. Raises what else went wrong, once every member was tried."""
    leaving = tuple(LeavingMember(member.member_id, member.group_instance_id, reason) for member in members)
    request = LeaveGroupRequest(group_id, leaving)
    response = await cluster.call_coordinator(group_id, request, LeaveGroupResponse, deadline=deadline)
    if response.error_code != ErrorCode.NONE:
        raise error_for(response.error_code, f"group {group_id!r}: {response.error_message}")
    removed: list[RemovedMember] = []
    missing: list[RemovedMember] = []
    failures: dict[RemovedMember, CohortError] = {}
    for member, result in zip(members, response.members, strict=True):
        if result.error_code == ErrorCode.NONE:
            removed.append(RemovedMember(result.member_id or member.member_id, member.group_instance_id))
        elif result.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            missing.append(member)
        else:
            text = f"{member.text} of group {group_id!r} was not removed: {response.error_message}"
            failures[member] = error_for(result.error_code, text)
    raise_failures(failures | {member: _not_there(group_id, member, "") for member in missing} if failures else {})
    return removed, missing


def _not_there(group_id: str, member: RemovedMember, there: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(
        f"group {group_id!r} has no {member.text}{f'; {there}' if there else ''}. "
        "It may have left by itself; describe_groups (cohort groups describe) shows who is there"
    )
