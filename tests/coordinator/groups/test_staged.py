"""StageOffsets: what a batch reads is staged by a member, and a transaction commits just that or nothing."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from tests.coordinator.groups.keeper import Keeper
from tests.coordinator.groups.steps import FewTopics
from tests.coordinator.groups.test_offsets import STATES, in_state

A, B = (7, 0), (8, 3)
T0, T1 = ("t", 0), ("t", 1)


def staging() -> tuple[Keeper, str, int]:
    """A group with one member that has staged the records 10 to 19 of t-0 and 0 to 4 of t-1, and 10 committed of t-0."""
    keeper, member, generation = in_state("Stable")
    keeper.commit("g", ("t", 0, 10), member=member, generation=generation)
    answer = keeper.stage("g", ("t", 0, 10, 20), ("t", 1, 0, 5), member=member, generation=generation)
    assert answer.error_code == ErrorCode.NONE
    return keeper, member, generation


def test_what_is_staged_is_committed_with_the_transaction() -> None:
    keeper, _, _ = staging()
    keeper.restart()
    for _ in range(2):  # the first answer was lost
        assert keeper.commit_in_transaction("g", staged=True).error_code == ErrorCode.NONE
    assert keeper.fetch("g") == {T0: 10}
    assert keeper.fetch_stable("g") == ({}, {T0, T1})
    keeper.end((*A, True))
    answer = keeper.answer(keeper.ask(OffsetFetchRequest("g", None)))
    assert isinstance(answer, OffsetFetchResponse)
    assert [(entry.committed_offset, entry.metadata) for entry in answer.topics[0].partitions] == [
        (20, "staged"),
        (5, "staged"),
    ]


def test_the_next_batch_replaces_what_was_staged() -> None:
    keeper, member, generation = staging()
    keeper.stage("g", ("t", 0, 10, 15), member=member, generation=generation)
    keeper.commit_in_transaction("g", staged=True)
    keeper.end((*A, True))
    assert keeper.fetch("g") == {T0: 15}


@pytest.mark.parametrize("state", STATES)
def test_only_a_member_stages_and_only_in_its_generation(state: str) -> None:
    keeper, member, generation = in_state(state)
    before = dict(keeper.log)
    for who, said in ((member, generation + 1), ("stranger", generation), ("", -1)):
        assert keeper.stage("g", ("t", 0, 0, 1), member=who, generation=said).error_code != ErrorCode.NONE
    assert keeper.log == before
    wanted = ErrorCode.UNKNOWN_MEMBER_ID if state in ("unknown", "Empty") else ErrorCode.NONE
    assert keeper.stage("g", ("t", 0, 0, 1), member=member, generation=generation).error_code == wanted


def test_offsets_that_moved_refuse_the_commit_with_both_numbers() -> None:
    keeper, member, generation = staging()
    keeper.commit("g", ("t", 0, 12), member=member, generation=generation)
    answer = keeper.commit_in_transaction("g", staged=True)
    assert answer.error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert "begins at offset 10 of partition 0 of topic t, but 12 is committed" in answer.error_message
    assert keeper.fetch_stable("g") == ({T0: 12}, set())


def test_a_batch_that_is_committed_already_is_not_committed_again() -> None:
    keeper, _, _ = staging()
    keeper.commit_in_transaction("g", staged=True)
    keeper.end((*A, True))
    assert keeper.commit_in_transaction("g", staged=True).error_code == ErrorCode.TRANSACTION_ABORTABLE


def test_a_stager_that_is_gone_refuses_the_commit() -> None:
    keeper, member, _ = staging()
    (other,) = keeper.consumers("g", ["t"])
    assert keeper.commit_in_transaction("g", staged=True).error_code == ErrorCode.NONE, (
        "another generation, same member"
    )
    keeper.end((*A, False))
    keeper.leave("g", member)
    answer = keeper.commit_in_transaction("g", staged=True)
    assert (answer.error_code, member in answer.error_message) == (ErrorCode.UNKNOWN_MEMBER_ID, True)
    assert other in keeper.core.groups["g"].members


def test_a_batch_that_reads_nothing_is_committed_though_its_stager_is_gone() -> None:
    keeper, member, generation = staging()
    keeper.stage("g", ("t", 0, 10, 10), member=member, generation=generation)
    keeper.leave("g", member)
    before = dict(keeper.log)
    assert keeper.commit_in_transaction("g", staged=True).error_code == ErrorCode.NONE
    assert keeper.log == before
    keeper.commit("g", ("t", 0, 11))
    assert keeper.commit_in_transaction("g", staged=True).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_offsets_of_another_transaction_are_waited_for() -> None:
    keeper, _, _ = staging()
    keeper.commit_in_transaction("g", ("t", 0, 20), producer=B)
    answer = keeper.commit_in_transaction("g", staged=True)
    assert answer.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    keeper.end((*B, False))
    assert keeper.commit_in_transaction("g", staged=True).error_code == ErrorCode.NONE


def test_a_stage_that_ends_elsewhere_than_is_expected_is_another_programs() -> None:
    keeper, member, generation = staging()
    expected = [("t", 0, 20), ("other", 0, 9)]  # what is expected of other groups is not looked at
    keeper.stage("g", ("t", 0, 10, 30), ("t", 1, 0, 5), member=member, generation=generation)
    answer = keeper.commit_in_transaction("g", *expected, staged=True)
    assert answer.error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert "ends at offset 30 of partition 0 of topic t, and the one to be committed at 20" in answer.error_message
    keeper.stage("g", ("t", 0, 10, 10), ("t", 1, 0, 0), member=member, generation=generation)
    answer = keeper.commit_in_transaction("g", *expected, staged=True)
    assert answer.error_code == ErrorCode.TRANSACTION_ABORTABLE, "also a stage that reads nothing"
    keeper.stage("g", ("t", 0, 10, 20), ("t", 1, 0, 5), member=member, generation=generation)
    assert keeper.commit_in_transaction("g", *expected, staged=True).error_code == ErrorCode.NONE


def test_there_must_be_something_staged() -> None:
    keeper, _, _ = staging()
    assert keeper.commit_in_transaction("unknown", staged=True).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    keeper.commit("h", ("t", 0, 1))
    assert keeper.commit_in_transaction("h", staged=True).error_code == ErrorCode.INVALID_REQUEST


def test_what_cannot_be_committed_is_not_staged() -> None:
    keeper, member, generation = in_state("Stable")
    for place, code in (
        (("nowhere", 0, 1, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("t", 9, 1, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("t", 1, 3, 2), ErrorCode.INVALID_REQUEST),
    ):
        answer = keeper.stage("g", ("t", 0, 0, 1), place, member=member, generation=generation)
        assert (answer.error_code, bool(answer.error_message)) == (code, True)
    assert keeper.core.groups["g"].staged is None
    assert keeper.stage("", ("t", 0, 0, 1), member="", generation=1).error_code == ErrorCode.INVALID_GROUP_ID


def test_what_is_staged_has_a_bound() -> None:
    keeper = Keeper(max_pending_offsets=1, max_pending_metadata_chars=6)
    (member,) = keeper.consumers("g", ["t"])
    codes = [
        keeper.stage("g", *places, member=member, generation=1).error_code
        for places in ([("t", 0, 0, 1)], [("t", 0, 0, 1), ("t", 1, 0, 1)])
    ]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_a_topic_that_was_created_again_is_another_one() -> None:
    keeper, member, generation = in_state("Stable")
    keeper.core.groups.topics = FewTopics(lambda *_: True, "first")
    assert (
        keeper.stage("g", ("t", 0, 0, 1), member=member, generation=generation, topic_id="other").error_code
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert keeper.stage("g", ("t", 0, 0, 1), member=member, generation=generation).error_code == ErrorCode.NONE
    keeper.core.groups.topics = FewTopics(lambda *_: True, "second")
    answer = keeper.commit_in_transaction("g", staged=True)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "deleted and created again" in answer.error_message


def test_it_goes_with_its_group() -> None:
    for goes in ("deleted", "expired"):
        keeper, member, _ = staging()
        keeper.leave("g", member)
        if goes == "deleted":
            keeper.delete("g")
        else:
            keeper.pass_ms(30_000)
        assert keeper.core.groups == {}
        assert keeper.live_keys() == set()
