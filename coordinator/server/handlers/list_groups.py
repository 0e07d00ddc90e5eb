"""ListGroups (16): the groups of this node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.long_lists import PACKED_PER_STEP, merged, packed
from coordinator.server.handlers.shard_requests import Gathering, context
from coordinator.server.node import Node
from protocol.codec import pack
from protocol.errors import ErrorCode
from protocol.messages import Response
from protocol.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_LISTED_WELL: Final = b"\x93" + pack(ErrorCode.NONE.value)
"""How a ``ListGroupsResponse`` begins: three fields, and the first of them."""


def handler(node: Node) -> Handler:
    """See ``ListGroupsHandler``."""
    return ListGroupsHandler(node.groups).handle


class ListGroupsHandler:
    """Asks every shard."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def handle(self, call: Call) -> Iterator[None]:
        """Lists the groups of this node, some in each step, and answers once what it shows is on disk."""
        request = cast("ListGroupsRequest", call.request)
        damage = self._groups.damage()
        if damage is not None:
            call.answer(ListGroupsResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, (), damage))
            return
        shards = self._groups.shards()
        states, types = frozenset(request.states_filter), frozenset(request.protocol_types_filter)
        listed: dict[str, ListedGroup] = {}
        in_order: list[list[str]] = []
        cores, done = [shard.core for shard in shards], 0
        for core in cores:
            group_ids = iter(tuple(core.groups))
            while some := tuple(islice(group_ids, PACKED_PER_STEP)):
                found = {group.group_id: group for group in core.list(states, types, some)}
                listed |= found
                in_order.append(list(found))
                done += len(some)
                if done >= PACKED_PER_STEP:
                    done = 0
                    yield
        names = yield from merged(in_order)
        answer = yield from packed(names, listed)
        if any(shard.core is not core for shard, core in zip(shards, cores, strict=True)):
            message = "a coordinator of groups reads its log again; try again"
            call.answer(ListGroupsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, (), message))
            return

        def finish(parts: list[Response]) -> None:
            answers = [cast("ListGroupsResponse", part) for part in parts]
            failed = next((answer for answer in answers if answer.error_code != ErrorCode.NONE), None)
            if failed is not None:
                call.answer(failed)
            else:
                call.answer_packed(_LISTED_WELL, answer)

        gathering = Gathering(len(shards), finish)
        for shard in shards:
            part = gathering.part(request)
            shard.submit(request, context(self._groups, call, part))
