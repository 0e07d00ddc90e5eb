"""Decisions about many members come in slices: no slice deals with more than so many, and all of them make one decision."""

from __future__ import annotations

import pytest

from coordinator.groups import group
from coordinator.groups.records import GroupMetadataRecord
from coordinator.runtime.effects import Effects, RequestContext
from protocol.errors import ErrorCode
from protocol.messages.api import Request
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.coordinator.groups.keeper import Keeper
from tests.coordinator.groups.steps import decide, step_of

SLICE = 3
MEMBERS = 10


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MEMBERS_PER_SLICE", SLICE)


def sliced(keeper: Keeper, request: Request) -> list[Effects]:
    """Decides a request and carries it out; gives its slices."""
    keeper._tokens += 1
    effects = decide(keeper.core, request, RequestContext(keeper._tokens, "c", "host"), keeper.now)
    keeper._obey(effects)
    slices = [effects]
    for later in effects.rest[1] if effects.rest is not None else ():
        keeper._obey(later)
        slices.append(later)
    return slices


def join_again(keeper: Keeper, member_id: str) -> JoinGroupRequest:
    found = keeper.core.groups["g"]
    member = found.members[member_id]
    timeouts = (member.session_timeout_ms, member.rebalance_timeout_ms)
    return JoinGroupRequest("g", *timeouts, member_id, None, found.protocol_type, member.protocols)


def rebalancing(keeper: Keeper) -> list[str]:
    """A Stable group whose members have rejoined, but for the last."""
    members = keeper.consumers("g", *[["t"]] * MEMBERS)
    keeper.ask(LeaveGroupRequest("g", (LeavingMember(members.pop(3)),)))
    for member_id in members[:-1]:
        keeper.ask(join_again(keeper, member_id))
    return members


def test_a_rebalance_answers_heartbeats_in_slices() -> None:
    keeper = Keeper()
    members = keeper.consumers("g", *[["t"]] * MEMBERS)
    generation = keeper.core.groups["g"].generation
    for member_id in members:
        keeper.ask(HeartbeatRequest("g", generation, member_id, None, 1_000))
    slices = sliced(keeper, LeaveGroupRequest("g", (LeavingMember(members[0]),)))
    told = [[reply.response for reply in one.replies] for one in slices]
    assert len(slices) == 3
    called = [response for one in told for response in one if isinstance(response, HeartbeatResponse)]
    assert [response.error_code for response in called].count(ErrorCode.REBALANCE_IN_PROGRESS) == MEMBERS - 1
    assert all(len(one) <= SLICE for one in told[1:])


def test_the_leader_is_told_last_and_of_all_members() -> None:
    keeper = Keeper()
    members = rebalancing(keeper)
    slices = sliced(keeper, join_again(keeper, members[-1]))
    told = [[reply.response for reply in one.replies] for one in slices]
    assert [len(one) for one in told] == [3, 3, 2, 1]
    leader = told[-1][0]
    assert isinstance(leader, JoinGroupResponse)
    assert leader.member_id == leader.leader
    assert [member.member_id for member in leader.members] == members
    assert all(not response.members for one in told[:-1] for response in one if isinstance(response, JoinGroupResponse))


def test_an_assignment_is_one_record_and_no_member_is_told_before_it() -> None:
    keeper = Keeper()
    members = rebalancing(keeper)
    keeper.ask(join_again(keeper, members[-1]))
    found = keeper.core.groups["g"]
    for member_id in members:
        if member_id != found.leader:
            keeper.ask(SyncGroupRequest("g", found.generation, member_id, None, None, None))
    shares = tuple(SyncGroupAssignment(member_id, member_id.encode()) for member_id in members)
    slices = sliced(keeper, SyncGroupRequest("g", found.generation, found.leader or "", None, None, None, shares))
    written = [number for number, one in enumerate(slices) if one.records]
    told = [number for number, one in enumerate(slices) if len(one.replies)]
    assert len(written) == 1
    assert written[0] < told[0]
    (record,) = slices[written[0]].records
    assert isinstance(record, GroupMetadataRecord)
    assert {member.member_id: member.assignment for member in record.members} == {
        member_id: member_id.encode() for member_id in members
    }
    assert all(len(one.replies) <= SLICE for one in slices)
    answers = [reply.response for one in slices for reply in one.replies]
    assert sorted(answer.assignment for answer in answers if isinstance(answer, SyncGroupResponse)) == sorted(
        member_id.encode() for member_id in members
    )


def test_unloading_between_two_slices_answers_every_request() -> None:
    keeper = Keeper()
    members = rebalancing(keeper)
    keeper._tokens += 1
    context = RequestContext(keeper._tokens, "c", "host")
    keeper._obey(decide(keeper.core, join_again(keeper, members[-1]), context, keeper.now))
    waiting = set(keeper.core.groups.requests)
    assert waiting, "slices are left"
    effects = keeper.core.unload(step_of(keeper.core, keeper.now))
    assert {reply.token for reply in effects.replies} == waiting
    assert not keeper.core.groups.requests
