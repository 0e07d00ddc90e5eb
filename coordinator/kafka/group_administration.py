"""What Kafka's administrators ask about groups: DescribeGroups, ListGroups, DeleteGroups.

All groups are classic ones (KIP-848's are not served), whoever their members are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.codes import GROUP_OPERATIONS
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.server.call import Call, Handler, StepsLeft
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.kafka.messages.delete_groups_request import DeleteGroupsRequest
from protocol.kafka.messages.delete_groups_response import DeletableGroupResult, DeleteGroupsResponse
from protocol.kafka.messages.describe_groups_request import DescribeGroupsRequest
from protocol.kafka.messages.describe_groups_response import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from protocol.kafka.messages.list_groups_request import ListGroupsRequest
from protocol.kafka.messages.list_groups_response import ListedGroup, ListGroupsResponse
from protocol.messages import Request
from protocol.messages import groups as native

log = get_logger()

_NOT_FOUND_SINCE: Final = 6
"""The version of DescribeGroups that says of a group that there is none, and not that it is Dead (KIP-1043)."""
_DEAD: Final = "Dead"
_CLASSIC: Final = "classic"


def once_all_open(node: Node, handle: Handler, group_ids: Sequence[str]) -> Handler:
    """Hands a request on when the shards of these groups are there, on a node that is alone: clients remember coordinators
    over a restart."""
    groups = node.groups
    missing = {
        groups.partition_of(each): None
        for each in group_ids
        if groups.fault(each) is None and groups.shard(each) is None and not node.catalog.cluster
    }

    async def open_first(call: Call) -> None:
        for partition in missing:
            try:
                await groups.open_partition(partition)
            except (LogError, OSError) as error:
                log.warning("coordinator_not_served", partition=partition, error=str(error))
        for _ in handle(call) or ():
            await node.tasks.next_step(call)

    def begin(call: Call) -> None:
        node.tasks.start(call, open_first(call))

    return begin if missing else handle


class _Named:
    """Requests that name groups go to the shards of these."""

    def __init__(self, node: KafkaNode, request: type[Request]) -> None:
        self._node = node.node
        self._handle = node.handlers[request]

    def handler(self, group_ids: Sequence[str]) -> Handler:
        """That of a request about these groups."""
        return once_all_open(self._node, self._handle, group_ids)


def describe_groups(node: KafkaNode) -> Translator:
    """State and members of groups."""
    named = _Named(node, native.DescribeGroupsRequest)

    def handle(call: KafkaCall) -> StepsLeft:
        request: DescribeGroupsRequest = call.message
        if not request.groups:
            call.reply(DescribeGroupsResponse())
            return None
        asked = native.DescribeGroupsRequest(tuple(request.groups))

        def told(response: native.DescribeGroupsResponse) -> None:
            groups = [_described(group, call.version) for group in response.groups]
            if request.include_authorized_operations:
                for group in groups:
                    if not group.error_code:
                        group.authorized_operations = GROUP_OPERATIONS
            call.reply(DescribeGroupsResponse(groups=groups))

        return call.ask(named.handler(request.groups), asked, told)

    def refusal(request: DescribeGroupsRequest, version: int, code: ErrorCode, text: str) -> DescribeGroupsResponse:
        told = text if version >= _NOT_FOUND_SINCE else None
        return DescribeGroupsResponse(groups=[DescribedGroup(code, told, group_id) for group_id in request.groups])

    return Translator(DescribeGroupsRequest, handle, refusal)


def _described(group: native.DescribedGroup, version: int) -> DescribedGroup:
    code, text = group.error_code, None
    if version >= _NOT_FOUND_SINCE:
        text = group.error_message or None
        if not code and group.group_state == _DEAD:
            code, text = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group.group_id!r}"
    return DescribedGroup(
        code,
        text,
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        [
            DescribedGroupMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                f"/{member.client_host}",  # as Java writes addresses, and with it everything that shows them
                member.member_metadata,
                member.member_assignment,
            )
            for member in group.members
        ],
    )


def list_groups(node: KafkaNode) -> Translator:
    """The groups of this node."""
    handler = node.handlers[native.ListGroupsRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: ListGroupsRequest = call.message
        if request.types_filter and _CLASSIC not in map(str.lower, request.types_filter):
            call.reply(ListGroupsResponse())
            return None

        def told(response: native.ListGroupsResponse) -> None:
            groups = [
                ListedGroup(group.group_id, group.protocol_type, group.group_state, _CLASSIC)
                for group in response.groups
            ]
            call.reply(ListGroupsResponse(0, response.error_code, groups))

        return call.ask(handler, native.ListGroupsRequest(tuple(request.states_filter)), told)

    def refusal(request: ListGroupsRequest, version: int, code: ErrorCode, text: str) -> ListGroupsResponse:
        return ListGroupsResponse(error_code=code)

    return Translator(ListGroupsRequest, handle, refusal)


def delete_groups(node: KafkaNode) -> Translator:
    """Groups without members go, with their offsets."""
    named = _Named(node, native.DeleteGroupsRequest)

    def handle(call: KafkaCall) -> StepsLeft:
        request: DeleteGroupsRequest = call.message
        if not request.groups_names:
            call.reply(DeleteGroupsResponse())
            return None

        def told(response: native.DeleteGroupsResponse) -> None:
            results = [
                DeletableGroupResult(each.group_id, each.error_code, each.error_message or None)
                for each in response.results
            ]
            call.reply(DeleteGroupsResponse(results=results))

        asked = native.DeleteGroupsRequest(tuple(request.groups_names))
        return call.ask(named.handler(request.groups_names), asked, told)

    def refusal(request: DeleteGroupsRequest, version: int, code: ErrorCode, text: str) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[DeletableGroupResult(each, code, text) for each in request.groups_names])

    return Translator(DeleteGroupsRequest, handle, refusal)
