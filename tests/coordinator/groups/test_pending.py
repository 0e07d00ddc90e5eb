"""Pending members (KIP-394): ids that were given out, and what waits for those who have them."""

from __future__ import annotations

import pytest

from coordinator.groups.config import GroupConfig
from coordinator.groups.state import GroupState
from protocol.errors import ErrorCode
from protocol.messages.api import Request
from protocol.messages.groups import JoinGroupResponse, LeaveGroupResponse
from tests.coordinator.groups.model import (
    Shell,
    code_of,
    commit,
    heartbeat,
    join,
    joined,
    leave,
    settle,
    stable_group,
    sync,
)


def asked(shell: Shell, session_ms: int = 10_000) -> str:
    """Asks for a member id; gives it."""
    answer = shell.answers[shell.send(join(session_ms=session_ms))]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.members == ()
    return answer.member_id


def test_a_new_member_is_told_its_id_and_joins_with_it() -> None:
    shell = Shell()
    given = asked(shell)
    assert shell.group is not None
    assert shell.group.state is GroupState.EMPTY
    assert not shell.group.members
    answer = joined(shell, join(given))
    assert (answer.error_code, answer.member_id, answer.generation_id) == (ErrorCode.NONE, given, 1)
    assert not shell.group.pending


def test_an_id_that_was_not_used_is_void_after_its_session_and_nothing_is_written() -> None:
    shell = Shell()
    given = asked(shell)
    shell.advance(9_999)
    assert "g" in shell.core.groups
    shell.advance(1)
    assert "g" not in shell.core.groups, "a group that only gave out an id is forgotten with it"
    assert shell.log == []
    assert code_of(joined(shell, join(given))) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restart_forgets_ids_and_their_owners_ask_again() -> None:
    shell = Shell()
    given = asked(shell)
    shell.restart()
    assert shell.group is None
    assert code_of(joined(shell, join(given))) is ErrorCode.UNKNOWN_MEMBER_ID
    assert joined(shell, join()).error_code == ErrorCode.NONE


@pytest.mark.parametrize("ends", ["joins", "expires", "leaves"])
def test_a_join_phase_waits_for_members_pending(ends: str) -> None:
    shell = Shell()
    (leader,) = stable_group(shell, 1)
    given = asked(shell, session_ms=5_000)
    held = shell.send(join(leader, metadata=b"other"))
    assert held in shell.waiting, "all have joined but the one with the id"
    assert "waiting for 1 new member" in shell.core.describe("g").last_rebalance_reason
    if ends == "joins":
        shell.send(join(given))
    elif ends == "expires":
        shell.advance(5_000)
    else:
        left = shell.answers[shell.send(leave(given))]
        assert isinstance(left, LeaveGroupResponse)
        assert left.members[0].error_code == ErrorCode.NONE
    answer = shell.answers[held]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.generation_id == 2
    assert len(answer.members) == (2 if ends == "joins" else 1)


def test_no_phase_waits_for_an_id_whose_connection_has_closed_and_it_stays_good() -> None:
    """Its owner is dead, or has lost the answer, or comes over another connection."""
    shell = Shell()
    (leader,) = stable_group(shell, 1)
    given, other = asked(shell), asked(shell)
    over_given, over_other = shell.tokens - 1, shell.tokens
    held = shell.send(join(leader, metadata=b"other"))
    shell.abandon(over_given)
    assert held in shell.waiting, "the other one may come yet"
    assert "waiting for 1 new member" in shell.core.describe("g").last_rebalance_reason
    shell.abandon(over_other)
    answer = shell.answers[held]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.generation_id == 2
    assert "new member" not in shell.core.describe("g").last_rebalance_reason
    assert shell.core.describe("g").pending_members == 2
    shell.send(join(given))
    assert shell.group is not None
    assert given in shell.group.members
    shell.advance(10_000)
    assert other not in shell.group.pending, "its time is as long as ever"


def test_an_id_that_no_phase_waits_for_can_be_given_back_used_and_forgotten_like_any() -> None:
    shell = Shell()
    for ends in ("joins", "expires", "leaves"):
        given = asked(shell)
        shell.abandon(shell.tokens)
        assert shell.group is not None
        if ends == "joins":
            assert joined(shell, join(given)).error_code == ErrorCode.NONE
            shell.send(leave(given))
        elif ends == "expires":
            shell.advance(10_000)
        else:
            shell.send(leave(given))
        assert shell.group is None or not shell.group.pending


def test_the_rebalance_timeout_ends_the_wait_and_the_late_one_makes_the_next_rebalance() -> None:
    shell = Shell()
    (leader,) = stable_group(shell, 1)
    given = asked(shell, session_ms=600_000)
    held = shell.send(join(leader, metadata=b"other"))
    shell.advance(60_000)
    assert code_of(shell.answers[held]) is ErrorCode.NONE
    assert shell.group is not None
    assert list(shell.group.pending) == [given]
    shell.send(join(given))
    assert shell.group.state is GroupState.PREPARING_REBALANCE


def test_a_group_without_members_waits_for_no_pending_one() -> None:
    shell = Shell()
    (leader,) = stable_group(shell, 1)
    asked(shell)
    shell.send(leave(leader))
    assert shell.group is not None
    assert shell.group.state is GroupState.EMPTY
    shell.advance(10_000)
    assert shell.group is not None, "its generation is in the log"
    assert not shell.group.pending


@pytest.mark.parametrize(
    "request_of",
    [lambda name: heartbeat(name, 1), lambda name: sync(name, 1), lambda name: commit(name, 1)],
    ids=["heartbeat", "sync", "commit"],
)
def test_a_pending_member_is_a_member_for_nothing_else(request_of: object) -> None:
    shell = Shell()
    stable_group(shell, 1)
    given = asked(shell)
    request: Request = request_of(given)  # type: ignore[operator]
    answer = shell.answers[shell.send(request)]
    assert code_of(answer) is ErrorCode.UNKNOWN_MEMBER_ID
    text = getattr(answer, "error_message", "") or getattr(answer, "message", "")
    assert f"member {given} has its id, but has not joined group g with it" in text


def test_a_pending_id_does_not_become_a_static_member() -> None:
    shell = Shell()
    given = asked(shell)
    assert code_of(joined(shell, join(given, instance="i"))) is ErrorCode.UNKNOWN_MEMBER_ID
    refused = shell.answers[shell.send(leave(given, instance="i"))]
    assert isinstance(refused, LeaveGroupResponse)
    assert refused.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert joined(shell, join(given)).error_code == ErrorCode.NONE


def test_a_client_that_asks_in_a_loop_takes_back_its_own_oldest_ids() -> None:
    shell = Shell(GroupConfig(max_pending_per_group=3))
    given = [asked(shell) for _ in range(5)]
    assert shell.group is not None
    assert list(shell.group.pending) == given[2:]
    assert sorted(shell.timers) == sorted(("pending", "g", name) for name in given[2:])


def test_a_client_that_names_another_group_each_time_leaves_nothing_either() -> None:
    shell = Shell(GroupConfig(max_pending=3))
    for index in range(5):
        shell.core.groups.pop("none", None)
        request = join()
        shell.send(type(request)(f"g{index}", *[getattr(request, name) for name in _FIELDS]))
    assert list(shell.core.groups) == ["g2", "g3", "g4"]
    assert len(shell.timers) == 3


_FIELDS = (
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "member_id",
    "group_instance_id",
    "protocol_type",
    "protocols",
    "reason",
)


def test_an_id_taken_back_completes_the_phase_that_waited_for_it() -> None:
    shell = Shell(GroupConfig(max_pending=1))
    (leader,) = stable_group(shell, 1)
    asked(shell)
    held = shell.send(join(leader, metadata=b"other"))
    request = join()
    shell.send(type(request)("elsewhere", *[getattr(request, name) for name in _FIELDS]))
    assert code_of(shell.answers[held]) is ErrorCode.NONE


def test_a_join_given_up_before_its_first_generation_leaves_no_member() -> None:
    shell = Shell()
    (leader,) = stable_group(shell, 1)
    token = shell.enter(join())
    shell.abandon(token)
    assert shell.group is not None
    assert list(shell.group.members) == [leader]
    settle(shell)
    assert shell.group.rebalance_reason.endswith("closed its connection before it had joined")
