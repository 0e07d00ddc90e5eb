"""Static members (KIP-345): a process that is started again takes its place back, and the one before it is fenced."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.groups.state import GroupState
from protocol.errors import ErrorCode
from protocol.messages.api import Request
from protocol.messages.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupResponse,
)
from protocol.subscription import Subscription, TopicPartition, encode_assignment, encode_subscription
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


def said(response: object) -> str:
    """The sentence of an answer."""
    return str(getattr(response, "error_message", "") or getattr(response, "message", ""))


def test_a_static_member_joins_in_one_step_with_an_id_made_of_its_instance_id() -> None:
    shell = Shell()
    token = shell.send(join(instance="worker-7"))
    answer = shell.answers[token]
    assert isinstance(answer, JoinGroupResponse)
    assert (answer.error_code, answer.member_id) == (ErrorCode.NONE, "worker-7-1")
    assert answer.members[0].group_instance_id == "worker-7"
    assert shell.core.describe("g").members[0].group_instance_id == "worker-7"


def test_a_rolling_restart_of_twenty_static_members_makes_no_rebalance() -> None:
    shell = Shell()
    ids = stable_group(shell, 20, static=True)
    assert shell.group is not None
    generation, shares = shell.group.generation, dict(shell.group.assignments)
    for index, old_id in enumerate(ids):
        answer = joined(shell, join(instance=f"i{index}"))
        assert answer.error_code == ErrorCode.NONE
        assert answer.generation_id == generation
        assert answer.skip_assignment == (index == 0), "the leader keeps the plan that stands"
        assert len(answer.members) == (20 if index == 0 else 0)
        synced = shell.answers[shell.send(sync(answer.member_id, generation, instance=f"i{index}"))]
        assert isinstance(synced, SyncGroupResponse)
        assert synced.assignment == shares[old_id]
    assert shell.group.generation == generation
    assert shell.group.state is GroupState.STABLE
    assert list(shell.group.instances) == [f"i{index}" for index in range(20)], "every member keeps its place"
    assert shell.group.leader == shell.group.instances["i0"]
    shell.restart()
    assert shell.group.instances == {f"i{index}": f"i{index}-{21 + index}" for index in range(20)}


OLD_SPEAKS: list[Callable[[str], Request]] = [
    lambda old: heartbeat(old, 1, instance="i0"),
    lambda old: sync(old, 1, instance="i0"),
    lambda old: join(old, instance="i0"),
    lambda old: commit(old, 1, instance="i0"),
]


@pytest.mark.parametrize("speaks", OLD_SPEAKS, ids=["heartbeat", "sync", "join", "commit"])
def test_the_process_that_was_replaced_is_fenced_and_told_by_whom(speaks: Callable[[str], Request]) -> None:
    shell = Shell()
    (old,) = stable_group(shell, 1, static=True)
    new = joined(shell, join(instance="i0"), client_id="second").member_id
    answer = shell.answers[shell.send(speaks(old))]
    assert code_of(answer) is ErrorCode.FENCED_INSTANCE_ID
    assert f"group_instance_id i0 belongs to member {new} (client second at host)" in said(answer)
    assert f"and not to member {old}" in said(answer)


def test_the_process_that_was_replaced_cannot_leave_for_the_new_one() -> None:
    shell = Shell()
    (old,) = stable_group(shell, 1, static=True)
    joined(shell, join(instance="i0"))
    answer = shell.answers[shell.send(leave(old, instance="i0"))]
    assert isinstance(answer, LeaveGroupResponse)
    assert (answer.error_code, answer.members[0].error_code) == (ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID)
    assert shell.group is not None
    assert len(shell.group.members) == 1


def test_a_replaced_id_that_hides_its_instance_id_is_unknown_and_hears_why() -> None:
    shell = Shell()
    (old,) = stable_group(shell, 1, static=True)
    joined(shell, join(instance="i0"))
    answer = shell.answers[shell.send(heartbeat(old, 1))]
    assert code_of(answer) is ErrorCode.UNKNOWN_MEMBER_ID
    assert "was replaced by member i0-2 (client c at host), a new process with the same group_instance_id" in said(
        answer
    )


@pytest.mark.parametrize("speaks", OLD_SPEAKS, ids=["heartbeat", "sync", "join", "commit"])
def test_an_instance_id_that_no_member_has_is_unknown(speaks: Callable[[str], Request]) -> None:
    shell = Shell()
    (dynamic,) = stable_group(shell, 1)
    answer = shell.answers[shell.send(speaks(dynamic))]
    assert code_of(answer) is ErrorCode.UNKNOWN_MEMBER_ID


def test_whatever_the_old_process_waits_for_is_fenced() -> None:
    shell = Shell()
    old, other = stable_group(shell, 2, static=True)
    beat = shell.send(heartbeat(other, 1, 4_000, instance="i1"))
    poll = shell.send(heartbeat(old, shell.generation, 4_000, instance="i0"))
    joined(shell, join(instance="i0"))
    assert code_of(shell.answers[poll]) is ErrorCode.FENCED_INSTANCE_ID
    assert beat in shell.answers or beat in shell.waiting
    shell.send(join(other, metadata=b"changed", instance="i1"))
    assert shell.group is not None
    assert shell.group.state is GroupState.PREPARING_REBALANCE
    first = next(token for token in shell.waiting)
    shell.send(join(instance="i1"))
    assert code_of(shell.answers[first]) is ErrorCode.FENCED_INSTANCE_ID, "its JoinGroup waited"


def test_a_pending_sync_of_the_old_process_is_fenced_and_the_group_rebalances() -> None:
    shell = Shell()
    leader = joined(shell, join(instance="i0")).member_id
    late = shell.send(join(instance="i1"))
    shell.send(join(leader, instance="i0"))
    answer = shell.answers[late]
    assert isinstance(answer, JoinGroupResponse)
    waits = shell.send(sync(answer.member_id, 2, instance="i1"))
    assert waits in shell.waiting
    held = shell.send(join(instance="i1"))
    assert code_of(shell.answers[waits]) is ErrorCode.FENCED_INSTANCE_ID
    assert held in shell.waiting
    assert shell.group is not None
    assert shell.group.reason.endswith("was started again before it had its assignment")


def blob(*topics: str, owned: tuple[TopicPartition, ...] = (), generation: int = -1, rack: str | None = None) -> bytes:
    return encode_subscription(Subscription(topics, b"", owned, generation, rack))


@pytest.mark.parametrize(
    ("before", "after", "wish"),
    [
        (blob("t"), blob("t", owned=(TopicPartition("t", 1),), generation=7), None),
        (blob("t", "u"), blob("u", "t"), None),
        (blob("t"), blob("t", "u"), "was started again and changed its subscription from {t} to {t, u}"),
        (blob("t", rack="a"), blob("t", rack="b"), "was started again and moved from rack a to b"),
        (b"no blob", b"no blob", None),
        (b"no blob", b"another", "was started again and changed its subscription"),
        (blob("t"), b"no blob", "was started again and changed its subscription"),
    ],
)
def test_only_a_process_that_wants_something_else_makes_a_rebalance(
    before: bytes, after: bytes, wish: str | None
) -> None:
    shell = Shell()
    joined(shell, join(instance="i0", metadata=before))
    settle(shell)
    answer = joined(shell, join(instance="i0", metadata=after))
    assert shell.group is not None
    if wish is None:
        assert (answer.generation_id, shell.group.state) == (1, GroupState.STABLE)
    else:
        assert answer.generation_id == 2
        assert answer.rebalance_reason == f"member i0-2 (client c, group_instance_id i0) {wish}"
        assert not answer.skip_assignment


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("left", [(0, 1), (1,), ()])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_process_that_was_to_give_partitions_up_and_died_makes_the_rebalance_that_it_owed(
    holds: bool, left: tuple[int, ...], restarts: bool
) -> None:
    """The partitions that it gave up are withheld until it joins without them, which the new process would never do."""
    held = (TopicPartition("t", 0), TopicPartition("t", 1))
    shell = Shell()
    told = encode_subscription(Subscription(("t",), b"", held, 1, holds=holds))
    member_id = joined(shell, join(instance="i0", metadata=told)).member_id
    share = encode_assignment([TopicPartition("t", number) for number in left])
    shell.send(sync(member_id, shell.generation, {member_id: share}, instance="i0"))
    if restarts:
        shell.restart()
    answer = joined(shell, join(instance="i0", metadata=blob("t")))
    if holds and len(left) < 2:
        assert answer.generation_id == 2
        assert "before it had joined without the partitions that it was to give up" in answer.rebalance_reason
    else:
        assert (answer.generation_id, answer.skip_assignment) == (1, True)


def test_other_protocols_matter_when_they_change_the_choice() -> None:
    shell = Shell()
    joined(shell, join(instance="i0", protocols="range"))
    settle(shell)
    assert joined(shell, join(instance="i0", protocols="range,sticky")).generation_id == 1
    answer = joined(shell, join(instance="i0", protocols="sticky,range"))
    assert answer.generation_id == 2
    assert answer.protocol_name == "sticky"
    assert "with other protocols, and sticky is the choice of all now" in answer.rebalance_reason


def test_a_new_id_survives_a_coordinator_that_dies_in_the_rebalance() -> None:
    """Kafka comes back with the old id and fences the process that is alive."""
    shell = Shell()
    stable_group(shell, 2, static=True)
    shell.send(join(instance="i2"))
    held = shell.send(join(instance="i1"))
    assert held in shell.waiting
    assert shell.group is not None
    new = shell.group.instances["i1"]
    shell.restart()
    assert shell.group.instances["i1"] == new
    assert joined(shell, join(new, instance="i1")).error_code == ErrorCode.NONE


def test_a_new_id_in_a_rebalance_gives_no_generation_out_twice() -> None:
    """It is written into the generation that was settled last, which is older than the one that was handed out last."""
    shell = Shell()
    ids = stable_group(shell, 2, static=True)
    shell.send(join(ids[1], instance="i1", metadata=b"other"))
    shell.send(join(ids[0], instance="i0"))
    shell.send(join(instance="i1"))
    assert shell.group is not None
    handed_out = shell.group.generation
    shell.restart()
    shell.send(join(shell.group.instances["i0"], instance="i0"))
    shell.send(join(shell.group.instances["i1"], instance="i1"))
    assert shell.group.generation == handed_out + 1


def test_what_the_new_process_wants_is_not_lost_with_the_rebalance_that_was_to_bring_it() -> None:
    shell = Shell()
    stable_group(shell, 2, static=True)
    shell.send(join(instance="i1", metadata=b"other"))
    assert shell.group is not None
    new = shell.group.instances["i1"]
    shell.restart()
    shell.send(join(new, instance="i1", metadata=b"other"))
    assert shell.group.state is GroupState.PREPARING_REBALANCE, "the change shows"


def test_a_static_member_that_does_not_rejoin_stays_until_its_session_ends() -> None:
    shell = Shell()
    first, _ = stable_group(shell, 2, static=True)
    shell.send(heartbeat(first, 1, instance="i0"))
    token = shell.send(join(instance="i1", metadata=b"other", session_ms=300_000, rebalance_ms=5_000))
    assert shell.group is not None
    first_session = shell.group.members[first].session_timeout_ms
    shell.group.members[first].rebalance_timeout_ms = 5_000
    shell.send(join(instance="i1", metadata=b"other", session_ms=300_000, rebalance_ms=5_000))
    assert code_of(shell.answers[token]) is ErrorCode.FENCED_INSTANCE_ID
    shell.advance(first_session - 1)
    assert first in shell.group.members
    shell.advance(60_000)
    assert first not in shell.group.members


def test_who_leads_when_the_leader_does_not_rejoin_in_time() -> None:
    shell = Shell()
    for index in range(3):
        shell.enter(join(instance=f"i{index}", session_ms=100_000, rebalance_ms=5_000))
    settle(shell)
    group = shell.group
    assert group is not None
    leader, second, third = list(group.members)
    generation = group.generation
    held = shell.send(join(third, instance="i2", metadata=b"other", session_ms=100_000, rebalance_ms=5_000))
    shell.send(join(second, instance="i1", session_ms=100_000, rebalance_ms=5_000))
    shell.advance(5_000)
    answer = shell.answers[held]
    assert isinstance(answer, JoinGroupResponse)
    assert (answer.generation_id, answer.leader) == (generation + 1, second), "the first in the order of joining"
    assert leader in group.members, "it stays, with its place"


def test_when_no_member_rejoined_but_static_ones_remain_the_phase_begins_anew() -> None:
    shell = Shell()
    for index in range(2):
        shell.enter(join(instance=f"i{index}", session_ms=100_000, rebalance_ms=20_000))
    settle(shell)
    assert shell.group is not None
    first, second = list(shell.group.members)
    shell.enter(join(rebalance_ms=20_000))
    shell.abandon(next(iter(shell.waiting)))  # the newcomer that began it is gone
    assert shell.group.state is GroupState.PREPARING_REBALANCE
    shell.advance(25_000)
    assert shell.group.state is GroupState.PREPARING_REBALANCE
    assert any(note.event == "rebalance_prolonged" for note in shell.notes)
    held = shell.send(join(second, instance="i1", session_ms=100_000, rebalance_ms=20_000))
    shell.advance(60_000)
    assert code_of(shell.answers[held]) is ErrorCode.NONE
    assert list(shell.group.members)[:1] == [first] or first not in shell.group.members


def test_timeouts_of_a_process_that_is_started_again_are_its_own() -> None:
    shell = Shell()
    stable_group(shell, 1, static=True)
    answer = joined(shell, join(instance="i0", session_ms=33_000, rebalance_ms=44_000))
    assert shell.group is not None
    member = shell.group.members[answer.member_id]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (33_000, 44_000)
    shell.restart()
    member = shell.group.members[answer.member_id]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (33_000, 44_000)


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    shell = Shell()
    stable_group(shell, 2, static=True)
    request = LeaveGroupRequest(
        "g", (LeavingMember("", "i1", "host is gone"), LeavingMember("", "nobody"), LeavingMember("", None))
    )
    answer = shell.answers[shell.send(request, "cohort-admin")]
    assert isinstance(answer, LeaveGroupResponse)
    codes = [left.error_code for left in answer.members]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert shell.group is not None
    assert list(shell.group.instances) == ["i0"]
    assert shell.group.reason == (
        "member i1-2 (client c, group_instance_id i1) was removed by client cohort-admin at host: host is gone"
    )


@pytest.mark.parametrize("instance", ["", "x" * 1025, "é" * 513])
def test_instance_ids_are_not_empty_and_have_a_bound(instance: str) -> None:
    answer = joined(Shell(), join(instance=instance))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "is empty or longer than 1024 bytes" in answer.error_message


def test_a_static_member_does_not_wait_for_its_old_process_to_time_out() -> None:
    shell = Shell()
    (old,) = stable_group(shell, 1, static=True)
    shell.advance(9_000)
    new = joined(shell, join(instance="i0")).member_id
    shell.advance(9_000)
    assert shell.group is not None
    assert list(shell.group.members) == [new], "the session of the old process does not end the new one"
    assert old not in shell.group.members
    answer = shell.answers[shell.send(heartbeat(new, 1, instance="i0"))]
    assert isinstance(answer, HeartbeatResponse)
    assert answer.error_code == ErrorCode.NONE
