"""Who may join: the size of a group, the initial delay, bad input; and what a rebalance is said to be about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.groups.config import GroupConfig
from coordinator.groups.state import GroupState
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupProtocol, JoinGroupResponse, SyncGroupResponse
from protocol.subscription import Subscription, TopicPartition, encode_subscription
from tests.coordinator.groups.model import Shell, code_of, heartbeat, join, joined, leave, settle, stable_group, sync
from tests.coordinator.groups.steps import load


def test_a_full_group_refuses_a_new_member_before_it_has_an_id() -> None:
    shell = Shell(GroupConfig(group_max_size=2))
    stable_group(shell, 2)
    answer = shell.answers[shell.send(join())]
    assert isinstance(answer, JoinGroupResponse)
    assert (answer.error_code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert shell.group is not None
    assert not shell.group.pending
    assert joined(shell, join(instance="i")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_may_always_be_started_again() -> None:
    """In Kafka a full group refuses it."""
    shell = Shell(GroupConfig(group_max_size=2))
    stable_group(shell, 2, static=True)
    assert joined(shell, join(instance="i1")).error_code == ErrorCode.NONE


def test_a_process_that_was_replaced_is_fenced_when_there_is_no_place_either() -> None:
    """Told that the group is full, it would come back without its member id and throw out the process that replaced it."""
    shell = Shell(GroupConfig(group_max_size=2))
    replaced, other = stable_group(shell, 2, static=True)
    assert joined(shell, join(instance="i0")).error_code == ErrorCode.NONE
    shell.send(join(other, metadata=b"other", instance="i1"))
    assert joined(shell, join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(shell, join(replaced, instance="i0")).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_place_of_a_static_member_is_kept_for_it_through_a_rebalance() -> None:
    """New members that come first take places of dynamic members only."""
    shell = Shell(GroupConfig(group_max_size=3))
    first, second = stable_group(shell, 2, static=True)
    newcomer = shell.enter(join())
    assert joined(shell, join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED, "two are expected back"
    assert joined(shell, join(instance="new")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    shell.send(join(second, instance="i1"))
    assert joined(shell, join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED, "one is"
    restarted = shell.send(join(instance="i0"))
    for token in (newcomer, restarted):
        answer = shell.answers[token]
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == ErrorCode.NONE
    assert shell.group is not None
    assert len(shell.group.members) == 3
    assert first not in shell.group.members


def test_a_static_member_that_left_or_timed_out_keeps_no_place() -> None:
    shell = Shell(GroupConfig(group_max_size=2))
    first, second = stable_group(shell, 2, static=True)
    shell.send(join(first, metadata=b"other", instance="i0"))
    shell.send(leave(second, instance="i1"))
    assert shell.enter(join()) in shell.waiting, "it is in, and the first is called"


def test_a_group_of_more_static_members_than_it_may_have_shrinks_to_those_that_come_first() -> None:
    shell = Shell(GroupConfig(group_max_size=3))
    members = stable_group(shell, 3, static=True)
    shell.config = GroupConfig(group_max_size=2)
    shell.core = shell.replayed()
    shell.timers.clear()
    shell.carry_out(load(shell.core, shell.now()))
    tokens = [shell.send(join(member, instance=f"i{place}")) for place, member in enumerate(members)]
    assert [code_of(shell.answers[token]) for token in tokens] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


def test_in_a_rebalance_the_places_go_to_those_that_join_first() -> None:
    shell = Shell(GroupConfig(group_max_size=2))
    first, second = stable_group(shell, 2)
    shell.send(join(first, metadata=b"other"))
    newcomer = shell.enter(join())
    assert newcomer in shell.waiting, "only one of two has rejoined yet"
    late = shell.answers[shell.send(join(second))]
    assert isinstance(late, JoinGroupResponse)
    assert (late.error_code, late.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    answer = shell.answers[newcomer]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    assert shell.group is not None
    assert list(shell.group.members) == [first, answer.member_id]
    assert "came to rejoin when 2 members, the most the group may have, had done so" in answer.rebalance_reason


def test_an_id_given_out_for_a_place_that_is_taken_meanwhile_is_void() -> None:
    shell = Shell(GroupConfig(group_max_size=1))
    first, second = (shell.answers[shell.send(join())].member_id for _ in range(2))  # type: ignore[attr-defined]
    waits = shell.send(join(first))
    assert code_of(shell.answers[shell.send(join(second))]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert shell.group is not None
    assert not shell.group.pending
    assert code_of(shell.answers[waits]) is ErrorCode.NONE, "no member is waited for any more"


def test_a_group_that_is_too_large_when_it_is_loaded_rebalances_at_once() -> None:
    shell = Shell()
    ids = stable_group(shell, 3)
    shell.config = GroupConfig(group_max_size=2)
    shell.core = shell.replayed()
    shell.timers.clear()
    shell.carry_out(load(shell.core, shell.now()))
    assert shell.group is not None
    assert shell.group.state is GroupState.PREPARING_REBALANCE
    assert shell.group.reason == "the coordinator restarted, and the group has 3 members, more than group_max_size 2"
    tokens = [shell.send(join(name)) for name in ids]
    codes = [code_of(shell.answers[token]) for token in tokens]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


def delayed(delay_ms: int = 3_000) -> Shell:
    return Shell(GroupConfig(initial_rebalance_delay_ms=delay_ms))


def test_without_a_delay_the_first_member_is_answered_at_once() -> None:
    assert joined(Shell(), join()).error_code == ErrorCode.NONE


def test_the_first_generation_waits_for_more_members_and_begins_anew_while_they_come() -> None:
    shell = delayed()
    tokens = [shell.enter(join(rebalance_ms=8_000))]
    assert "held back for more members" in shell.core.describe("g").last_rebalance_reason
    shell.advance(2_999)
    tokens.append(shell.enter(join(rebalance_ms=8_000)))
    shell.advance(3_000)
    assert not shell.answers.keys() & set(tokens), "one came meanwhile, so it waits 3,000 ms more"
    shell.advance(1)
    assert [code_of(shell.answers[token]) for token in tokens] == [ErrorCode.NONE] * 2
    assert shell.group is not None
    assert shell.group.generation == 1


def test_the_delay_ends_with_the_rebalance_timeout_however_many_come() -> None:
    shell = delayed()
    first = shell.enter(join(rebalance_ms=8_000))
    waited = 0
    while first not in shell.answers:
        shell.enter(join(rebalance_ms=8_000))
        shell.advance(1_000)
        waited += 1_000
    assert waited == 3_000 + 3_000 + 2_000


def test_a_delay_does_not_outlive_its_members() -> None:
    shell = delayed()
    token = shell.enter(join())
    shell.abandon(token)
    assert shell.group is not None
    assert shell.group.state is GroupState.EMPTY
    assert not shell.timers


def test_only_the_first_generation_is_held_back() -> None:
    shell = delayed()
    token = shell.enter(join())
    shell.advance(3_000)
    assert code_of(shell.answers[token]) is ErrorCode.NONE
    settle_token = shell.enter(join())
    assert shell.group is not None
    (leader, _) = list(shell.group.members)
    shell.send(join(leader))
    assert code_of(shell.answers[settle_token]) is ErrorCode.NONE


def blob(*topics: str, owned: int = -1) -> bytes:
    partitions = (TopicPartition("t", owned),) if owned >= 0 else ()
    return encode_subscription(Subscription(topics, b"", partitions, owned))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (blob("t"), blob("u", "t"), "member c-2 (client c) changed its subscription from {t} to {t, u}: because"),
        (blob("t"), blob("t", owned=3), "member c-2 (client c) rejoined: because"),
        (b"\xc1", b"\x90", "member c-2 (client c) changed its subscription: because"),
        (
            blob(*"abcdefg"),
            blob("x" * 200),
            "member c-2 (client c) changed its subscription from {a, b, c, d, e, and 2 more} to {"
            + "x" * 97
            + "...}: because",
        ),
    ],
)
def test_a_changed_subscription_is_told_from_other_owned_partitions(before: bytes, after: bytes, told: str) -> None:
    shell = Shell()
    shell.enter(join())
    shell.enter(join(metadata=before))
    settle(shell)
    assert shell.group is not None
    follower = list(shell.group.members)[1]
    shell.send(join(follower, metadata=after, reason="because"))
    assert shell.group.state is GroupState.PREPARING_REBALANCE, (
        "any change of bytes lets all members rejoin, as in Kafka"
    )
    assert shell.group.reason == told


def test_members_that_say_what_they_own_do_not_bury_the_reason() -> None:
    shell = Shell()
    for _ in range(8):
        shell.enter(join(metadata=blob("t")))
    settle(shell)
    assert shell.group is not None
    names = list(shell.group.members)
    shell.send(leave(names.pop(), reason="deploy"))
    for index, name in enumerate(names):
        shell.send(join(name, metadata=blob("t", owned=index), reason="the group rebalances"))
    assert shell.group.rebalance_reason == "member c-8 (client c) left: deploy"


def test_other_topics_are_one_more_cause_of_a_rebalance_that_is_going_on() -> None:
    shell = Shell()
    for _ in range(2):
        shell.enter(join(metadata=blob("t")))
    settle(shell)
    assert shell.group is not None
    first, second = list(shell.group.members)
    shell.send(join(first, metadata=blob("t"), reason="topic t has 8 partitions now"))
    shell.send(join(second, metadata=blob("u")))
    assert shell.group.rebalance_reason == (
        f"the leader, member {first} (client c), asked for it: topic t has 8 partitions now; "
        f"member {second} (client c) changed its subscription from {{t}} to {{u}}"
    )


def test_members_that_do_not_come_back_after_a_restart_are_told_from_those_that_fall_silent() -> None:
    shell = Shell()
    first, second = stable_group(shell, 2)
    shell.restart()
    shell.send(heartbeat(first, shell.generation))
    shell.advance(10_000)
    assert [note.fields["reason"] for note in shell.notes if note.event == "member_removed"] == [
        "missed its session of 10000 ms by 0 ms",
        "did not come back within its session of 10000 ms after the coordinator restarted",
    ]
    assert {first, second} == set(shell.group.departed if shell.group else ())


def test_a_member_from_before_a_restart_is_told_of_it_also_after_the_next_generation() -> None:
    shell = Shell()
    (first,) = stable_group(shell, 1)
    shell.enter(join())
    assert shell.group is not None
    (newcomer,) = set(shell.group.members) - {first}
    shell.restart()
    for _ in range(2):
        answer = joined(shell, join(newcomer))
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert "nothing is known of it since the coordinator restarted" in answer.error_message
        shell.send(join(first))
        settle(shell)


def test_whom_a_generation_waits_for_is_shown() -> None:
    shell = Shell()
    first = joined(shell, join()).member_id
    assert shell.core.describe("g").last_rebalance_reason.endswith(
        f"waiting for the leader, member {first}, to bring the assignments"
    )
    shell.send(sync(first, 1, {first: b"x"}))
    waits = shell.enter(join())
    assert shell.core.describe("g").last_rebalance_reason.endswith(f"waiting for member {first} to rejoin")
    shell.send(join(first))
    second = shell.answers[waits].member_id  # type: ignore[attr-defined]
    shell.send(sync(first, 2, {first: b"x"}))
    assert shell.core.describe("g").last_rebalance_reason.endswith(f"waiting for member {second} to sync")


def test_shares_for_strangers_are_dropped_and_noted() -> None:
    shell = Shell()
    leader = joined(shell, join()).member_id
    shares = {leader: b"mine", **{f"ghost-{index}": b"yours" for index in range(7)}}
    answer = shell.answers[shell.send(sync(leader, 1, shares))]
    assert isinstance(answer, SyncGroupResponse)
    assert answer.assignment == b"mine"
    assert shell.group is not None
    assert shell.group.assignments == {leader: b"mine"}
    members = "ghost-0, ghost-1, ghost-2, ghost-3, ghost-4 and 2 more"
    told = {"group": "g", "leader": leader, "members": members, "generation": 1}
    assert shell.notes[-1] == ("assignments_dropped", told)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_group_works_whatever_its_members_say(one: bytes, other: bytes) -> None:
    shell = Shell()
    for index in range(2):
        shell.enter(join(metadata=one, instance=f"i{index}" if index else None))
    settle(shell)
    assert shell.group is not None
    first = next(iter(shell.group.members))
    shell.send(join(first, metadata=other))
    joined_again = shell.send(join(instance="i1", metadata=other))
    settle_or_stable(shell)
    assert joined_again in shell.answers


def settle_or_stable(shell: Shell) -> None:
    assert shell.group is not None
    if shell.group.state is not GroupState.STABLE:
        settle(shell)


def test_a_mebibyte_of_metadata_is_carried_and_one_byte_more_is_refused() -> None:
    shell = Shell()
    most = 1_048_576 - len("range")
    assert joined(shell, join(metadata=b"x" * most)).members[0].metadata == b"x" * most
    settle(shell)
    refused = joined(shell, join(metadata=b"x" * (most + 1)))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "take 1048577 bytes; at most 1048576 are allowed" in refused.error_message
    assert shell.group is not None
    assert shell.group.state is GroupState.STABLE


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(NAMES, NAMES, NAMES, NAMES)
def test_ids_may_have_every_legal_character(client: str, instance: str, protocol: str, reason: str) -> None:
    shell = Shell()
    request = replace(join(instance=instance, reason=reason), protocols=(JoinGroupProtocol(protocol, b"m"),))
    answer = joined(shell, request, client)
    assert answer.error_code == ErrorCode.NONE
    assert answer.protocol_name == protocol
    shell.send(sync(answer.member_id, 1, {answer.member_id: b"x"}, instance))
    dynamic = shell.enter(replace(request, group_instance_id=None), client)
    assert dynamic in shell.waiting
    shell.restart()
    assert shell.group is not None
    assert shell.group.instances == {instance: answer.member_id}
