"""DescribeGroups and ListGroups: what an administrator sees."""

from __future__ import annotations

from coordinator.groups.group import Group, Member, clipped, counted, listed
from coordinator.groups.rebalance import not_joined
from coordinator.groups.records import OVERTAKEN
from coordinator.groups.state import GroupState
from protocol.errors import ErrorCode
from protocol.messages.groups import DescribedGroup, DescribedMember, ListedGroup


def describe(groups: dict[str, Group], group_id: str) -> DescribedGroup:
    """Everything about one group. One that does not exist is Dead, which is no error.

    Metadata and assignments are shown in Stable only: at other times they belong to different generations.
    """
    group = groups.get(group_id)
    if group is None:
        return DescribedGroup(ErrorCode.NONE, group_id, GroupState.DEAD.value)
    stable = group.state is GroupState.STABLE
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol_name or "") if stable else "",
        members=tuple(_described(group, member, stable) for member in group.members.values()),
        generation_id=group.generation,
        leader=group.leader or "",
        last_rebalance_reason=reason_and_waits(group),
        waiting_for=tuple(waiting_for(group)),
        pending_members=len(group.pending),
        empty_since_ms=empty_since_ms(group),
        pending_offsets=sum(
            pending.serial != OVERTAKEN for record in group.pending_offsets.values() for pending in record.offsets
        ),
    )


def list_groups(groups: dict[str, Group], states: frozenset[str], protocol_types: frozenset[str]) -> list[ListedGroup]:
    """The groups that pass both filters, sorted by id; an empty filter lets all pass (KIP-518, KIP-848).

    ``states`` are compared in any case and without the blanks around them; one that does not exist lets no group pass.
    ``protocol_types`` are compared as they are; that of a group which never had a member is "".
    """
    wanted = {state.strip().lower() for state in states}
    return [
        ListedGroup(group_id, group.protocol_type, group.state.value)
        for group_id, group in sorted(groups.items())
        if (not wanted or group.state.value.lower() in wanted)
        and (not protocol_types or group.protocol_type in protocol_types)
    ]


def _described(group: Group, member: Member, stable: bool) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if stable else b"",
        member_assignment=group.assignments.get(member.member_id, b"") if stable else b"",
        client_software=member.client_software,
    )


def reason_and_waits(group: Group) -> str:
    """Why the group rebalanced last, and which members it waits for."""
    waits = [group.reason] if group.reason else []
    if group.initial is not None:
        waits.append("the first generation is held back for more members (initial_rebalance_delay_ms)")
    elif group.state is GroupState.PREPARING_REBALANCE and (late := not_joined(group)):
        waits.append(f"waiting for {listed(late)} to rejoin")
    if group.state is GroupState.COMPLETING_REBALANCE:
        waits.append(f"waiting for the leader, member {clipped(group.leader or '')}, to bring the assignments")
    elif group.state is GroupState.STABLE and group.unsynced_members:
        waits.append(f"waiting for {listed([one for one in group.members.values() if not one.has_synced])} to sync")
    if group.awaited_pending:
        pending = f"{counted(group.awaited_pending, 'new member')} to join with the id given"
        waits.append(f"waiting for {pending}")
    return "; ".join(waits)


def waiting_for(group: Group) -> list[str]:
    """The members without whose JoinGroup the rebalance, or without whose SyncGroup the generation, is not complete."""
    if group.state is GroupState.PREPARING_REBALANCE:
        return [member.member_id for member in not_joined(group)]
    return [member.member_id for member in group.members.values() if not member.has_synced]


def empty_since_ms(group: Group) -> int:
    """When the last member went; -1 while there are members, and for a group that never had one."""
    if group.state is not GroupState.EMPTY or group.durable is None:
        return -1
    return group.durable.written_wall_ms
