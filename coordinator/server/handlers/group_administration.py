"""Requests about many groups: DescribeGroups (15), ListGroups (16), DeleteGroups (42). Each shard answers for its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import chain, islice
from typing import Final, cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.pending_replies import Asker
from coordinator.server.call import Call
from coordinator.server.dispatch import STEP, Handler
from coordinator.server.handlers.groups import without_shard
from protocol.codec import encode_message, pack
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

_LISTED_PER_STEP: Final = 1_000
"""Groups that are listed in one step: about 2 ms."""

_MERGED_PER_STEP: Final = 20_000
"""Names of groups that are put in order in one step: about 2 ms."""

_ARRAY_32: Final = b"\xdd"
_LISTED_WELL: Final = b"\x93" + pack(ErrorCode.NONE.value)
"""How a ``ListGroupsResponse`` begins: three fields, and the first of them."""

Combine = Callable[[list[Response]], Response]
"""Makes one answer of the answers of several shards."""


class GroupAdministrationHandlers:
    """Asks the shards of several groups and makes one answer of theirs."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {
            DescribeGroupsRequest: self.describe,
            ListGroupsRequest: self.list,
            DeleteGroupsRequest: self.delete,
        }

    def describe(self, call: Call) -> Iterator[None]:
        """Describes each group asked for, once what it shows is on disk; one whose shard is not ready says so."""
        request = cast("DescribeGroupsRequest", call.request)

        def combined(parts: list[Response]) -> Response:
            return DescribeGroupsResponse(
                tuple(group for part in parts for group in cast("DescribeGroupsResponse", part).groups)
            )

        return self._each(call, request.groups, lambda group_id: DescribeGroupsRequest((group_id,)), combined)

    def delete(self, call: Call) -> Iterator[None]:
        """Deletes each group asked for, and answers once all that went is gone from the disk as well."""
        request = cast("DeleteGroupsRequest", call.request)

        def combined(parts: list[Response]) -> Response:
            return DeleteGroupsResponse(
                tuple(result for part in parts for result in cast("DeleteGroupsResponse", part).results)
            )

        return self._each(call, request.groups_names, lambda name: DeleteGroupsRequest((name,)), combined)

    def list(self, call: Call) -> Iterator[None]:
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
            while some := tuple(islice(group_ids, _LISTED_PER_STEP)):
                found = {group.group_id: group for group in core.list(states, types, some)}
                listed |= found
                in_order.append(list(found))
                done += len(some)
                if done >= _LISTED_PER_STEP:
                    done = 0
                    yield
        names = yield from _merged(in_order)
        packed = yield from _packed(names, listed)
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
                call.answer_packed(_LISTED_WELL, packed)

        gathering = Gathering(len(shards), finish)
        for shard in shards:
            part = gathering.part(request)
            shard.submit(request, self._context(call, part))

    def _each(
        self,
        call: Call,
        names: tuple[str, ...],
        ask: Callable[[str], Request],
        combined: Combine,
    ) -> Iterator[None]:
        """Puts a request of its own to the shard of each group, in order, before anything that the client sent later."""
        group_ids = list(dict.fromkeys(names))  # an answer must not outgrow its request
        gathering = Gathering(len(group_ids), lambda parts: call.answer(combined(parts)))
        for number, group_id in enumerate(group_ids, 1):
            if number % STEP == 0:
                yield
            part = gathering.part(ask(group_id))
            shard = self._groups.shard(group_id)
            if shard is None:
                part.answer(without_shard(self._groups, part.request, group_id))
            else:
                shard.submit(part.request, self._context(call, part))

    def _context(self, call: Call, asker: Asker) -> RequestContext:
        return RequestContext(self._groups.replies.open(asker), call.client_id, call.connection.host)


class Gathering:
    """Answers of several shards, which ``finish`` gets, in the order they were asked for, when the last is there."""

    def __init__(self, expected: int, finish: Callable[[list[Response]], None]) -> None:
        self._parts: list[Response | None] = [None] * expected
        self._missing = expected
        self._finish = finish
        self._given = 0
        if not expected:
            finish([])

    def part(self, request: Request) -> Part:
        """The asker of the next part."""
        self._given += 1
        return Part(request, self, self._given - 1)

    def take(self, place: int, response: Response) -> None:
        """One part's answer."""
        self._parts[place] = response
        self._missing -= 1
        if not self._missing:
            self._finish([part for part in self._parts if part is not None])


class Part:
    """Asks a shard on behalf of a gathering."""

    def __init__(self, request: Request, gathering: Gathering, place: int) -> None:
        self.request = request
        self._gathering = gathering
        self._place = place

    def answer(self, response: Response) -> None:
        """See ``Asker.answer``."""
        self._gathering.take(self._place, response)


def _merged(in_order: list[list[str]]) -> Generator[None, None, list[str]]:
    """One list in order, of many that are: two become one at a time, which takes less of each step than sorting all."""
    done = 0
    while len(in_order) > 1:
        merged = []
        for number in range(0, len(in_order), 2):
            pair = sorted(chain(*in_order[number : number + 2]))
            merged.append(pair)
            done += len(pair)
            if done >= _MERGED_PER_STEP:
                done = 0
                yield
        in_order = merged
    return in_order[0] if in_order else []


def _packed(names: list[str], listed: Mapping[str, ListedGroup]) -> Generator[None, None, bytes]:
    """The rest of a ``ListGroupsResponse`` from its groups on, packed some in each step."""
    pieces = [_ARRAY_32, len(names).to_bytes(4)]
    for start in range(0, len(names), _LISTED_PER_STEP):
        some = names[start : start + _LISTED_PER_STEP]
        pieces.append(b"".join([pack(encode_message(listed[name])) for name in some]))
        if start + _LISTED_PER_STEP < len(names):
            yield
    pieces.append(pack(""))
    return b"".join(pieces)
