"""Groups of Kafka's clients: JoinGroup, SyncGroup, LeaveGroup; ``heartbeats`` has the rest.

A client remembers the coordinator of its group over a restart of the daemon and does not look for it again. So a request
about a group opens the shard of that group, as FindCoordinator does.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from coordinator.groups.config import MAX_REBALANCE_TIMEOUT_MS
from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.server.call import Call, Handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.kafka.messages.join_group_request import JoinGroupRequest
from protocol.kafka.messages.join_group_response import JoinGroupResponse, JoinGroupResponseMember
from protocol.kafka.messages.leave_group_request import LeaveGroupRequest
from protocol.kafka.messages.leave_group_response import LeaveGroupResponse, MemberResponse
from protocol.kafka.messages.sync_group_request import SyncGroupRequest
from protocol.kafka.messages.sync_group_response import SyncGroupResponse
from protocol.messages import Request
from protocol.messages import groups as native

log = get_logger()

_ID_REQUIRED_SINCE: Final = 4
"""The version of JoinGroup that knows MEMBER_ID_REQUIRED (KIP-394)."""
_NULLABLE_PROTOCOL_SINCE: Final = 7
_SKIPPED_ASSIGNMENT_SINCE: Final = 9
_SEVERAL_LEAVE_SINCE: Final = 3
"""The version of LeaveGroup with several members (KIP-345)."""


def once_open(node: Node, handle: Handler) -> Handler:
    """Hands a request on when the shard of its group is there, on a node that is alone; see the module text."""
    groups, tasks = node.groups, node.tasks

    async def open_first(call: Call, group_id: str) -> None:
        try:
            await groups.open(group_id)
        except (LogError, OSError) as error:
            log.warning("coordinator_not_served", group=group_id, error=str(error))
        call.on_abandon = None
        for _ in handle(call) or ():
            await tasks.next_step(call)

    def begin(call: Call) -> None:
        group_id: str = call.request.group_id  # type: ignore[attr-defined]
        if groups.shard(group_id) is not None or groups.fault(group_id) is not None:
            handle(call)
        else:
            tasks.start(call, open_first(call, group_id))

    return handle if node.catalog.cluster else begin


def group_handler(node: KafkaNode, request: type[Request]) -> Handler:
    """The handler of a request that names a group."""
    return once_open(node.node, node.handlers[request])


class _JoinGroup:
    """A member asks to be in the next generation."""

    def __init__(self, node: KafkaNode) -> None:
        self._handle = group_handler(node, native.JoinGroupRequest)
        self._min_session_timeout_ms = node.node.settings.kafka_min_session_timeout_ms

    def handle(self, call: KafkaCall) -> None:
        """Answers when the generation has begun.

        A client that does not know MEMBER_ID_REQUIRED joins with the id that it would have been told.
        """
        request: JoinGroupRequest = call.message
        if request.group_id and request.session_timeout_ms < self._min_session_timeout_ms:
            call.reply(_joined_not(request, call.version, ErrorCode.INVALID_SESSION_TIMEOUT, ""))
            return
        self._ask(call, request.member_id)

    def _ask(self, call: KafkaCall, member_id: str) -> None:
        """Kafka has no upper bound of the rebalance timeout, and ``max.poll.interval.ms=2147483647`` is an idiom of Java
        programs: a day is as good as for ever."""
        request: JoinGroupRequest = call.message
        rebalance_timeout_ms = request.session_timeout_ms if call.version == 0 else request.rebalance_timeout_ms
        asked = native.JoinGroupRequest(
            request.group_id,
            request.session_timeout_ms,
            min(rebalance_timeout_ms, MAX_REBALANCE_TIMEOUT_MS),
            member_id,
            request.group_instance_id,
            request.protocol_type,
            tuple(native.JoinGroupProtocol(each.name, each.metadata) for each in request.protocols),
            request.reason or "",
        )
        call.ask(self._handle, asked, partial(self._told, call))

    def _told(self, call: KafkaCall, response: native.JoinGroupResponse) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED and call.version < _ID_REQUIRED_SINCE:
            self._ask(call, response.member_id)
        else:
            call.reply(_joined(response, call.version))


def join_group(node: KafkaNode) -> Translator:
    """See ``_JoinGroup``."""
    return Translator(JoinGroupRequest, _JoinGroup(node).handle, _joined_not)


def _joined_not(request: JoinGroupRequest, version: int, code: ErrorCode, text: str) -> JoinGroupResponse:
    return _joined(native.JoinGroupResponse(code, member_id=request.member_id), version)


def _joined(response: native.JoinGroupResponse, version: int) -> JoinGroupResponse:
    name, leader, skips = response.protocol_name, response.leader, response.skip_assignment
    if skips and version < _SKIPPED_ASSIGNMENT_SINCE:
        leader, skips = "", False  # it takes itself for a follower: the assignments are there already
    return JoinGroupResponse(
        0,
        response.error_code,
        response.generation_id,
        response.protocol_type,
        "" if name is None and version < _NULLABLE_PROTOCOL_SINCE else name,
        leader,
        skips,
        response.member_id,
        [JoinGroupResponseMember(each.member_id, each.group_instance_id, each.metadata) for each in response.members],
    )


def sync_group(node: KafkaNode) -> Translator:
    """A member asks for its share, the leader brings those of all."""
    handler = group_handler(node, native.SyncGroupRequest)

    def handle(call: KafkaCall) -> None:
        request: SyncGroupRequest = call.message
        asked = native.SyncGroupRequest(
            request.group_id,
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            request.protocol_type,
            request.protocol_name,
            tuple(native.SyncGroupAssignment(each.member_id, each.assignment) for each in request.assignments),
        )
        call.ask(handler, asked, lambda response: call.reply(_synced(response)))

    def refusal(request: SyncGroupRequest, version: int, code: ErrorCode, text: str) -> SyncGroupResponse:
        return SyncGroupResponse(error_code=code)

    return Translator(SyncGroupRequest, handle, refusal)


def _synced(response: native.SyncGroupResponse) -> SyncGroupResponse:
    return SyncGroupResponse(
        0, response.error_code, response.protocol_type, response.protocol_name, response.assignment
    )


def leave_group(node: KafkaNode) -> Translator:
    """Members leave."""
    handler = group_handler(node, native.LeaveGroupRequest)

    def handle(call: KafkaCall) -> None:
        request: LeaveGroupRequest = call.message
        if call.version < _SEVERAL_LEAVE_SINCE:
            members: tuple[native.LeavingMember, ...] = (native.LeavingMember(request.member_id),)
        else:
            members = tuple(
                native.LeavingMember(each.member_id, each.group_instance_id, each.reason or "")
                for each in request.members
            )
        asked = native.LeaveGroupRequest(request.group_id, members)
        call.ask(handler, asked, lambda response: call.reply(_left(response, call.version)))

    def refusal(request: LeaveGroupRequest, version: int, code: ErrorCode, text: str) -> LeaveGroupResponse:
        return LeaveGroupResponse(error_code=code)

    return Translator(LeaveGroupRequest, handle, refusal)


def _left(response: native.LeaveGroupResponse, version: int) -> LeaveGroupResponse:
    if version >= _SEVERAL_LEAVE_SINCE:
        members = [MemberResponse(each.member_id, each.group_instance_id, each.error_code) for each in response.members]
        return LeaveGroupResponse(0, response.error_code, members)
    codes = (response.error_code, *(each.error_code for each in response.members))
    return LeaveGroupResponse(0, next((code for code in codes if code), 0))
