"""Who may join: what is wrong with a JoinGroup by itself, and what stands between it and its group."""

from __future__ import annotations

from coordinator.groups.config import GroupConfig
from coordinator.groups.group import Group
from coordinator.groups.member import Member, names_size, size_of
from coordinator.groups.reasons import clipped
from coordinator.groups.refusals import Refusal, group_id_fault, identity_fault, instance_id_fault, unknown_group
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import RequestContext
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupRequest


def request_fault(request: JoinGroupRequest, context: RequestContext, config: GroupConfig) -> Refusal | None:
    """What can be said without knowing the group."""
    fault = group_id_fault(request.group_id, config)
    if fault is not None:
        return fault
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        return Refusal(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session_timeout_ms {request.session_timeout_ms} of client {clipped(context.client_id)} is outside "
            f"{config.min_session_timeout_ms} to {config.max_session_timeout_ms}; set one within",
        )
    fault = instance_id_fault(request.group_instance_id, config)
    if fault is not None:
        return fault
    if not 1 <= request.rebalance_timeout_ms <= config.max_rebalance_timeout_ms:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"rebalance_timeout_ms {request.rebalance_timeout_ms} of client {clipped(context.client_id)} is outside 1 to "
            f"{config.max_rebalance_timeout_ms}; set one within",
        )
    if len(context.client_id.encode()) > config.max_client_id_bytes:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"client id {clipped(context.client_id, 60)} is longer than {config.max_client_id_bytes} bytes; choose a "
            f"shorter one",
        )
    return _protocols_fault(request, context, config)


def _protocols_fault(request: JoinGroupRequest, context: RequestContext, config: GroupConfig) -> Refusal | None:
    client = f"client {clipped(context.client_id)}"
    if not request.protocol_type or not request.protocols:
        return Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{client} joins group {clipped(request.group_id)} without protocol type or protocols; offer one",
        )
    if len(request.protocols) > config.max_protocols_per_member:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{client} offers {len(request.protocols)} protocols; at most {config.max_protocols_per_member} are allowed",
        )
    if len({protocol.name for protocol in request.protocols}) < len(request.protocols):
        return Refusal(ErrorCode.INVALID_REQUEST, f"{client} offers a protocol twice; name each one once")
    size = size_of(request.protocols)
    if size > config.max_member_metadata_bytes:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"the protocols of {client} take {size} bytes; at most {config.max_member_metadata_bytes} are allowed",
        )
    return None


def known_member(group: Group, request: JoinGroupRequest) -> Member | None:
    """The member that a JoinGroup is about: the one with its id, or, for a new process without one, with its instance id."""
    member_id = request.member_id
    if not member_id and request.group_instance_id is not None:
        member_id = group.instances.get(request.group_instance_id, "")
    return group.members.get(member_id)


def too_many(group: Group, member: Member | None, request: JoinGroupRequest, config: GroupConfig) -> Refusal | None:
    """Whether the group has no place left (KIP-389).

    In a rebalance the places go to those that join first, so that a group that is too large shrinks; later they belong to
    the members. A static member that is started again is one of them (in Kafka a full group refuses it), and its place is
    kept through a rebalance too, as long as its session lasts (KIP-345): no new member takes it. The process before it is to
    hear that it was replaced: told of the size, it would come back and take the place again.
    """
    current_id = group.instances.get(request.group_instance_id or "")
    if current_id is not None and request.member_id and request.member_id != current_id:
        return None
    size = len(group.members)
    if group.state is GroupState.PREPARING_REBALANCE:
        is_static = member is not None and member.group_instance_id is not None
        size = group.joined_members + (0 if is_static else len(group.instances) - group.joined_statics)
    if group.state is GroupState.EMPTY or size < config.group_max_size:
        return None
    if group.state is GroupState.PREPARING_REBALANCE:
        has_place = member is not None and member.has_joined
    else:
        has_place = member is not None or request.group_instance_id in group.instances
    if has_place:
        return None
    return Refusal(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"group {clipped(group.group_id)} has {size} members, which is the most it may have; wait until one leaves, "
        f"or raise group_max_size",
    )


def group_fault(
    group: Group | None,
    member: Member | None,
    request: JoinGroupRequest,
    context: RequestContext,
    config: GroupConfig,
) -> Refusal | None:
    """What stands between this request and this group."""
    if group is None:
        return unknown_group(request.group_id) if request.member_id else None
    if request.member_id and (request.group_instance_id is not None or request.member_id not in group.pending):
        fault = identity_fault(group, request.member_id, request.group_instance_id)
        if fault is not None:
            return fault
    if not group.members:
        return None
    shown = f"group {clipped(group.group_id)}"
    if request.protocol_type != group.protocol_type:
        return Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{shown} is of protocol type {clipped(group.protocol_type)}, the request of {clipped(request.protocol_type)}; "
            f"use another group id",
        )
    if not group.others_support(request.protocols, member):
        return Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"none of {', '.join(clipped(protocol.name) for protocol in request.protocols[:10])} is supported by all other "
            f"members of {shown}, who share {', '.join(map(clipped, group.protocols_of_all()[:10]))}; offer one of these",
        )
    return _size_fault(group, member, request, context, config)


def _size_fault(
    group: Group, member: Member | None, request: JoinGroupRequest, context: RequestContext, config: GroupConfig
) -> Refusal | None:
    """Now and not when the leader's answer, or the record of the generation, turns out to be too large for a frame."""
    shown = f"group {clipped(group.group_id)}"
    names = group.names_bytes - (member.names_bytes if member is not None else 0)
    names += names_size(
        request.member_id, context.client_id, context.client_host, request.group_instance_id, len(request.protocols)
    )
    if names > config.max_group_names_bytes:
        return Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"with this join the ids and client ids of the members of {shown} would take {names} bytes, at most "
            f"{config.max_group_names_bytes} are allowed; use shorter client ids or wait until a member leaves",
        )
    size = group.metadata_bytes + size_of(request.protocols) - (member.metadata_bytes if member is not None else 0)
    if size > config.max_group_metadata_bytes:
        return Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"with this join the protocols of {shown} would take {size} bytes, at most "
            f"{config.max_group_metadata_bytes} are allowed; offer less metadata or wait until a member leaves",
        )
    return None
