"""What the scripts do not show: moved timers, many members, tombstones, bounds, and the sentences for the log."""

from __future__ import annotations

import pytest

from coordinator.groups.config import GroupConfig
from coordinator.groups.records import GenerationTombstone, GroupMetadataTombstone, OffsetCommitTombstone
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import Effects
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse
from tests.coordinator.groups.model import Shell, code_of, commit, heartbeat, join, leave, settle, stable_group, sync
from tests.coordinator.groups.steps import step_of


def nothing(effects: Effects) -> bool:
    return not (effects.records or effects.replies or effects.timers or effects.notes)


@pytest.mark.parametrize("kind", ["session", "heartbeat", "rebalance", "sync"])
def test_a_timer_of_what_is_gone_does_nothing(kind: str) -> None:
    shell = Shell()
    assert nothing(shell.core.on_timer((kind, "g", "A"), step_of(shell.core, shell.now())))
    stable_group(shell, 2)
    assert nothing(shell.core.on_timer((kind, "g", "ghost"), step_of(shell.core, shell.now())))


def test_a_timer_that_has_moved_is_set_again() -> None:
    shell = Shell()
    (leader,) = stable_group(shell, 1)
    shell.now_ms = 4000
    shell.send(heartbeat(leader, 1))
    shell.now_ms = 10_000
    effects = shell.core.on_timer(("session", "g", leader), step_of(shell.core, shell.now()))
    assert effects.timers == {("session", "g", leader): 14_000}
    assert (effects.records, list(effects.replies), effects.notes) == ([], [], [])


def test_a_token_that_does_not_wait_is_abandoned_without_effect() -> None:
    shell = Shell()
    token = shell.enter(join())
    assert nothing(shell.core.abandon(token, step_of(shell.core, shell.now())))
    assert nothing(shell.core.abandon(99, step_of(shell.core, shell.now())))


def test_a_thousand_members_become_one_generation() -> None:
    shell = Shell()
    shell.check = lambda: None  # type: ignore[method-assign]  # the laws cost a walk through all members at every step
    ids = stable_group(shell, 1000)
    Shell.check(shell)
    assert shell.group is not None
    assert shell.group.generation == 2
    assert list(shell.group.members) == ids
    answer = next(answer for answer in reversed(shell.answers.values()) if isinstance(answer, JoinGroupResponse))
    assert answer.rebalance_reason.endswith("; and 994 more")


def test_tombstones_erase_offsets_and_groups() -> None:
    shell = Shell()
    (leader,) = stable_group(shell, 1)
    shell.send(commit(leader, 1, partition=0))
    shell.send(commit(leader, 1, partition=1))
    shell.send(leave(leader))
    core = shell.replayed()
    core.apply(OffsetCommitTombstone("g", "t", 0))
    core.apply(OffsetCommitTombstone("g", "nowhere", 0))
    assert list(core.groups["g"].offsets["t"]) == [1]
    core.apply(GroupMetadataTombstone("g"))
    assert core.groups["g"].durable is None
    core.apply(OffsetCommitTombstone("g", "t", 1))
    core.apply(GenerationTombstone("g"))
    assert core.groups == {}
    assert core.durable_state() == {}


def test_the_metadata_of_a_group_has_a_bound() -> None:
    shell = Shell(GroupConfig(max_group_metadata_bytes=100))
    (leader,) = stable_group(shell, 1)
    refused = shell.answers[shell.enter(join(metadata=b"x" * 90))]
    assert isinstance(refused, JoinGroupResponse)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "would take 101 bytes, at most 100 are allowed" in refused.error_message
    token = shell.send(join(leader, metadata=b"x" * 95))
    assert code_of(shell.answers[token]) is ErrorCode.NONE


def test_the_names_of_all_members_have_a_bound() -> None:
    """They make the leader's answer and the record too large as metadata does, which is to be known before the end."""
    shell = Shell(GroupConfig(max_group_names_bytes=220))
    stable_group(shell, 2)
    refused = shell.answers[shell.enter(join())]
    assert isinstance(refused, JoinGroupResponse)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "at most 220 are allowed; use shorter client ids" in refused.error_message


def test_notes_tell_the_story_of_a_group() -> None:
    shell = Shell()
    stable_group(shell, 2)
    shell.advance(10_000)
    first, second = "member c-1 (client c)", "member c-2 (client c)"
    missed = "missed its session of 10000 ms by 0 ms"
    formed = {"leader": "c-1", "protocol": "range"}
    assert all(note.fields.pop("group") == "g" for note in shell.notes)
    assert shell.notes == [
        ("rebalance_started", {"members": 1, "generation": 0, "reason": f"{first} joined"}),
        ("generation_formed", {"members": 1, "generation": 1, "reason": f"{first} joined", **formed}),
        ("rebalance_started", {"members": 2, "generation": 1, "reason": f"{second} joined"}),
        ("generation_formed", {"members": 2, "generation": 2, "reason": f"{second} joined", **formed}),
        ("member_removed", {"member": first, "reason": missed}),
        ("rebalance_started", {"members": 1, "generation": 2, "reason": f"{first} {missed}"}),
        ("member_removed", {"member": second, "reason": missed}),
        ("group_emptied", {"generation": 3, "reason": f"{first} {missed}; {second} {missed}"}),
    ]


def test_a_share_that_the_leader_forgot_is_noted() -> None:
    shell = Shell()
    leader = shell.answers[shell.enter(join())]
    assert isinstance(leader, JoinGroupResponse)
    shell.send(sync(leader.member_id, 1))
    told = {"group": "g", "leader": "c-1", "members": "member c-1"}
    assert shell.notes[-1] == ("members_without_assignment", told)
    assert shell.group is not None
    assert shell.group.state is GroupState.STABLE


def leader_after(shell: Shell, client_id: str) -> str | None:
    """The client that leads once one more has joined."""
    shell.enter(join(), client_id)
    group = shell.group
    assert group is not None
    if group.state is not GroupState.STABLE:
        settle(shell)
    return group.members[group.leader].client_id if group.leader is not None else None


def test_of_both_kinds_the_first_member_of_cohort_leads() -> None:
    shell = Shell()
    assert leader_after(shell, "kafka-1") == "kafka-1"
    assert leader_after(shell, "kafka-2") == "kafka-1"
    assert leader_after(shell, "ours-1") == "ours-1"
    assert leader_after(shell, "ours-2") == "ours-1"
    assert leader_after(shell, "kafka-3") == "ours-1"
    assert shell.group is not None
    for client_id, next_leader in (("ours-1", "kafka-1"), ("ours-2", "kafka-1")):
        (gone,) = (each.member_id for each in shell.group.members.values() if each.client_id == client_id)
        shell.send(leave(gone))
        settle(shell)
        first = shell.group.members[shell.group.leader or ""].client_id
        assert first == ("ours-2" if client_id == "ours-1" else next_leader)


def test_a_static_member_of_cohort_that_has_not_come_back_does_not_lead() -> None:
    """It holds nothing that it could withhold, and would not bring the assignments."""
    shell = Shell()
    shell.enter(join(instance="pod", session_ms=60_000, rebalance_ms=1_000), "ours")
    settle(shell)
    shell.enter(join(session_ms=60_000, rebalance_ms=1_000), "kafka")
    assert shell.group is not None
    shell.advance(1_000)
    assert shell.group.state is GroupState.COMPLETING_REBALANCE
    assert shell.group.members[shell.group.leader or ""].client_id == "kafka"


def test_a_member_says_of_which_kind_it_is_each_time_it_joins() -> None:
    """Static: a client of Kafka takes the place of one of Cohort's, which leads. The next generation has another leader."""
    shell = Shell()
    shell.enter(join(instance="pod"), "ours-1")
    settle(shell)
    shell.enter(join(instance="other"), "ours-2")
    settle(shell)
    shell.enter(join(instance="pod"), "kafka")
    assert shell.group is not None
    shell.enter(join(), "ours-3")
    settle(shell)
    assert shell.group.members[shell.group.leader or ""].client_id == "ours-2"
