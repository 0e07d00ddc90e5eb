"""The group requests: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), OffsetCommit (8), OffsetFetch (9),
DescribeGroups (15), ListGroups (16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from coordinator.groups.core import GroupCore
from coordinator.groups.effects import Effects, Instant, RequestContext
from coordinator.metadata.catalog import Catalog
from coordinator.runtime.group_coordinator import GroupCoordinator
from coordinator.runtime.refusals import refusal
from coordinator.runtime.replies import Asker
from coordinator.runtime.shard import Decide
from coordinator.server.connection import Call
from coordinator.server.dispatch import Handler
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

_NOT_FOUND_YET = "nobody has asked for this group's coordinator since the daemon started: send FindCoordinator first"


class GroupHandlers:
    """Passes group requests to their shard."""

    def __init__(self, groups: GroupCoordinator, catalog: Catalog) -> None:
        self._groups = groups
        self._catalog = catalog

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {
            JoinGroupRequest: self._to_core(GroupCore.join),
            SyncGroupRequest: self._to_core(GroupCore.sync),
            HeartbeatRequest: self._to_core(GroupCore.heartbeat),
            LeaveGroupRequest: self._to_core(GroupCore.leave),
            OffsetCommitRequest: self._to_core(self._commit),
            OffsetFetchRequest: self._to_core(GroupCore.fetch_offsets),
            DescribeGroupsRequest: self.describe,
            ListGroupsRequest: self.list,
        }

    def _to_core(self, decide: Decide) -> Handler:
        groups = self._groups

        def handle(call: Call) -> None:
            request = cast("JoinGroupRequest", call.request)  # or another one: all of these name their group
            shard = groups.shard(request.group_id)
            if shard is None:
                call.answer(self._without_shard(request, request.group_id))
                return
            token = groups.replies.open(call)
            shard.submit(decide, request, RequestContext(token, call.client_id, call.connection.host))
            if not call.open:
                return

            def abandon() -> None:
                if groups.replies.forget(token):
                    shard.abandon(token)

            call.on_abandon = abandon

        return handle

    def _commit(self, core: GroupCore, request: OffsetCommitRequest, context: RequestContext, now: Instant) -> Effects:
        return core.commit(request, context, now, self._catalog.has)

    def describe(self, call: Call) -> None:
        """Describes each group asked for, once what it shows is on disk; one whose shard is not ready says so."""
        request = cast("DescribeGroupsRequest", call.request)
        group_ids = list(dict.fromkeys(request.groups))  # an answer must not outgrow its request

        def combined(parts: list[Response]) -> Response:
            return DescribeGroupsResponse(
                tuple(group for part in parts for group in cast("DescribeGroupsResponse", part).groups)
            )

        gathering = _Gathering(call, len(group_ids), combined)
        for group_id in group_ids:
            part = gathering.part(DescribeGroupsRequest((group_id,)))
            shard = self._groups.shard(group_id)
            if shard is None:
                part.answer(self._without_shard(part.request, group_id))
            else:
                shard.submit(_describe, part.request, self._context(call, part))

    def list(self, call: Call) -> None:
        """Lists the groups of this node, once what it shows is on disk."""
        request = cast("ListGroupsRequest", call.request)
        damage = self._groups.damage()
        if damage is not None:
            call.answer(ListGroupsResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, (), damage))
            return
        shards = self._groups.shards()

        def combined(parts: list[Response]) -> Response:
            answers = [cast("ListGroupsResponse", part) for part in parts]
            failed = next((answer for answer in answers if answer.error_code != ErrorCode.NONE), None)
            groups = sorted((group for answer in answers for group in answer.groups), key=lambda group: group.group_id)
            return failed or ListGroupsResponse(ErrorCode.NONE, tuple(groups))

        gathering = _Gathering(call, len(shards), combined)
        for shard in shards:
            part = gathering.part(request)
            shard.submit(_list, request, self._context(call, part))

    def _without_shard(self, request: Request, group_id: str) -> Response:
        fault = self._groups.group_id_fault(group_id)
        if fault is not None:
            return refusal(request, fault.code, fault.message)
        return refusal(request, ErrorCode.NOT_COORDINATOR, _NOT_FOUND_YET)

    def _context(self, call: Call, asker: Asker) -> RequestContext:
        return RequestContext(self._groups.replies.open(asker), call.client_id, call.connection.host)


class _Gathering:
    """One answer made of several shards' answers, given when the last is there."""

    def __init__(self, call: Call, expected: int, combined: Callable[[list[Response]], Response]) -> None:
        self._call = call
        self._parts: list[Response | None] = [None] * expected
        self._missing = expected
        self._combined = combined
        self._given = 0
        if not expected:
            call.answer(combined([]))

    def part(self, request: Request) -> _Part:
        """The asker of the next part."""
        self._given += 1
        return _Part(request, self, self._given - 1)

    def take(self, place: int, response: Response) -> None:
        """One part's answer."""
        self._parts[place] = response
        self._missing -= 1
        if not self._missing:
            self._call.answer(self._combined([part for part in self._parts if part is not None]))


class _Part:
    """Asks a shard on behalf of a gathering."""

    def __init__(self, request: Request, gathering: _Gathering, place: int) -> None:
        self.request = request
        self._gathering = gathering
        self._place = place

    def answer(self, response: Response) -> None:
        """See ``Asker.answer``."""
        self._gathering.take(self._place, response)


def _describe(core: GroupCore, request: DescribeGroupsRequest, context: RequestContext, _: Instant) -> Effects:
    effects = Effects()
    described = tuple(core.describe(group_id) for group_id in request.groups)
    effects.reply(context.token, DescribeGroupsResponse(described))
    return effects


def _list(core: GroupCore, request: ListGroupsRequest, context: RequestContext, _: Instant) -> Effects:
    effects = Effects()
    listed = tuple(core.list(frozenset(request.states_filter)))
    effects.reply(context.token, ListGroupsResponse(ErrorCode.NONE, listed))
    return effects
