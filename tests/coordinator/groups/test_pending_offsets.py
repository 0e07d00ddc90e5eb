"""Offsets in transactions: who may give them, when they show, and what counts when several are told for one partition."""

from __future__ import annotations

import pytest

from coordinator.groups.records import PendingOffsetsRecord
from coordinator.runtime.effects import RequestContext
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupProtocol, JoinGroupRequest
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.coordinator.groups.keeper import Keeper
from tests.coordinator.groups.steps import FewTopics, decide, step_of
from tests.coordinator.groups.test_offsets import STATES, in_state

NONE, GENERATION, UNKNOWN = ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID
A, B = (7, 0), (8, 3)
"""Producer id and epoch of two transactions."""

T0, T1 = ("t", 0), ("t", 1)

WHO: dict[str, tuple[ErrorCode, ErrorCode, ErrorCode, ErrorCode, ErrorCode]] = {
    "without generation, without member": (NONE, NONE, NONE, NONE, NONE),
    "without generation, with a stranger's id": (NONE, NONE, UNKNOWN, UNKNOWN, UNKNOWN),
    "without generation, with a member's id": (NONE, NONE, GENERATION, GENERATION, GENERATION),
    "with generation, without member": (GENERATION, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    "with generation, with a stranger's id": (GENERATION, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    "with an old generation, with a member's id": (GENERATION, UNKNOWN, GENERATION, GENERATION, GENERATION),
    "with a future generation, with a member's id": (GENERATION, UNKNOWN, GENERATION, GENERATION, GENERATION),
    "with generation, with a member's id": (GENERATION, UNKNOWN, NONE, NONE, NONE),
}


def code_of(answer: TxnOffsetCommitResponse) -> int:
    """The code of all partitions, which is that of the request."""
    (code,) = {entry.error_code for topic in answer.topics for entry in topic.partitions}
    assert answer.error_code == code
    assert bool(answer.error_message) == (code != NONE)
    return code


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", WHO)
def test_who_may_commit_in_a_transaction_in_which_state(who: str, state: str) -> None:
    keeper, member, generation = in_state(state)
    committing = "" if "without member" in who else "stranger" if "stranger" in who else member
    said = -1 if "without generation" in who else generation + ("future" in who) - ("old" in who)
    before = dict(keeper.log)
    code = code_of(keeper.commit_in_transaction("g", ("t", 0, 5), member=committing, generation=said))
    assert code == WHO[who][STATES.index(state)]
    assert keeper.fetch("g") == {}
    assert keeper.fetch_stable("g") == ({}, {T0} if code == NONE else set())
    assert (keeper.log == before) == (code != NONE)
    keeper.restart()
    keeper.end((*A, True))
    assert keeper.fetch("g") == ({T0: 5} if code == NONE else {})
    assert keeper.core.open_epoch(A[0]) is None


def test_a_process_that_was_replaced_is_fenced() -> None:
    keeper = Keeper()
    offered = (JoinGroupProtocol("range", b""),)
    old, new = (
        keeper.told(JoinGroupRequest("g", 1_000_000, 1_000_000, "", "i", "consumer", offered)) for _ in range(2)
    )
    generation = keeper.settle("g")

    def commit(member: str) -> int:
        return code_of(
            keeper.commit_in_transaction("g", ("t", 0, 1), member=member, generation=generation, instance="i")
        )

    assert commit(old) == ErrorCode.FENCED_INSTANCE_ID
    assert commit(new) == NONE


def test_no_session_is_renewed_by_it() -> None:
    keeper, member, generation = in_state("Stable")
    before = keeper.core.groups["g"].members[member].session_deadline_ms
    keeper.pass_ms(500)
    assert code_of(keeper.commit_in_transaction("g", ("t", 0, 1), member=member, generation=generation)) == NONE
    assert keeper.core.groups["g"].members[member].session_deadline_ms == before


def test_a_committed_transaction_moves_all_its_offsets_and_an_aborted_one_none() -> None:
    for committed in (True, False):
        keeper = Keeper()
        keeper.commit("g", ("t", 0, 1))
        keeper.commit_in_transaction("g", ("t", 0, 5), ("u", 2, 6))
        keeper.commit_in_transaction("g", ("t", 0, 7), ("t", 1, 8))
        keeper.commit_in_transaction("h", ("t", 0, 9))
        assert (keeper.fetch("g"), keeper.fetch("h")) == ({T0: 1}, {})
        assert keeper.fetch_stable("g") == ({}, {T0, T1, ("u", 2)})
        assert keeper.core.open_epoch(A[0]) == A[1]
        keeper.restart()
        assert keeper.core.open_epoch(A[0]) == A[1]
        keeper.end((*A, committed))
        moved = {T0: 7, T1: 8, ("u", 2): 6}
        assert keeper.fetch_stable("g") == (moved if committed else {T0: 1}, set())
        assert keeper.fetch("h") == ({T0: 9} if committed else {})
        assert keeper.core.open_epoch(A[0]) is None


def test_what_ends_twice_or_in_another_epoch_does_nothing() -> None:
    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5), producer=B)
    before = dict(keeper.log)
    for end in ((B[0], B[1] - 1, True), (B[0], B[1] + 1, False), (99, B[1], True)):
        keeper.end(end)
    assert keeper.log == before
    keeper.end((*B, True), (*B, False))
    assert keeper.fetch("g") == {T0: 5}
    keeper.commit("g", ("t", 0, 6))
    before = dict(keeper.log)
    keeper.end((*B, True))
    assert keeper.log == before


def test_the_transaction_before_must_have_ended_and_the_one_after_is_not_overtaken() -> None:
    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5), producer=(7, 4))
    for epoch, code in (
        (5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, NONE),
    ):
        for group in ("g", "h"):
            assert code_of(keeper.commit_in_transaction(group, ("t", 1, 6), producer=(7, epoch))) == code


def test_a_plain_commit_after_it_counts_whatever_becomes_of_the_transaction_and_of_the_commit() -> None:
    for erased in (False, True):
        keeper = Keeper()
        keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 6))
        keeper.commit("g", ("t", 0, 1))
        assert keeper.fetch_stable("g") == ({T0: 1}, {T1})
        if erased:
            keeper.delete_offsets("g", T0)
            # A tombstone is no reminder: compaction drops it.
            keeper.log = {key: keeper.log[key] for key in keeper.live_keys()}
        keeper.restart()
        keeper.end((*A, True))
        assert keeper.fetch("g") == ({T1: 6} if erased else {T0: 1, T1: 6})


def test_what_is_told_after_the_plain_commit_counts_but_not_what_comes_twice() -> None:
    for told, counts in ((5, 1), (7, 7)):
        keeper = Keeper()
        keeper.commit_in_transaction("g", ("t", 0, 5))
        keeper.commit("g", ("t", 0, 1))
        assert keeper.core.open_epoch(A[0]) == A[1]
        assert keeper.core.describe("g").pending_offsets == 0
        keeper.commit_in_transaction("g", ("t", 0, told))
        keeper.restart()
        keeper.end((*A, True))
        assert keeper.fetch("g") == {T0: counts}


def test_a_late_repetition_of_the_transaction_before_brings_nothing_back() -> None:
    """The producer goes on under another producer id, as its epochs are used up; the marker of the one before is late."""
    for ended in (False, True):
        keeper = Keeper()
        for _ in range(2):  # with another partition, so that the first is still open when the second has ended
            keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 5), producer=A)
            keeper.commit_in_transaction("g", ("t", 0, 6), producer=B)
            if ended:
                keeper.end((*B, True))
                keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 5), producer=A)
                break
        keeper.restart()
        keeper.end((*A, True))
        keeper.end((*B, True))
        assert keeper.fetch("g") == {T0: 6, T1: 5}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("first_ends", [A, B])
@pytest.mark.parametrize(("commits_a", "commits_b"), [(True, True), (True, False), (False, True), (False, False)])
def test_of_two_transactions_the_one_that_was_told_last_counts_if_it_commits(
    commits_a: bool, commits_b: bool, first_ends: tuple[int, int], together: bool
) -> None:
    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 50), producer=A)
    keeper.commit_in_transaction("g", ("t", 0, 6), producer=B)
    keeper.commit_in_transaction("g", ("u", 0, 7), producer=A)  # its offset of t-0 is not told again by this
    ends = [(*A, commits_a), (*B, commits_b)]
    if first_ends == B:
        ends.reverse()
    for some in [ends] if together else [[end] for end in ends]:
        keeper.restart()
        keeper.end(*some)
    wanted = {T1: 50, ("u", 0): 7, T0: 5} if commits_a else {}
    assert keeper.fetch_stable("g") == (wanted | ({T0: 6} if commits_b else {}), set())


def test_a_fault_of_a_partition_refuses_it_alone() -> None:
    keeper = Keeper()
    answer = keeper.commit_in_transaction("g", ("t", 0, 5), ("nowhere", 0, 6))
    codes = [entry.error_code for topic in answer.topics for entry in topic.partitions]
    assert codes == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (answer.error_code, "no partition 0 of topic nowhere" in answer.error_message) == (NONE, True)
    keeper.end((*A, True))
    assert keeper.fetch("g") == {T0: 5}
    only = keeper.commit_in_transaction("other", ("nowhere", 0, 6))
    assert only.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "other" not in keeper.core.groups


def test_what_one_transaction_may_be_about_to_commit_has_a_bound() -> None:
    keeper = Keeper(max_pending_offsets=2, max_pending_metadata_chars=10)
    assert code_of(keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 5))) == NONE
    assert code_of(keeper.commit_in_transaction("g", ("t", 1, 6))) == NONE
    assert code_of(keeper.commit_in_transaction("g", ("t", 2, 6))) == ErrorCode.INVALID_REQUEST
    assert code_of(keeper.commit_in_transaction("h", ("t", 2, 6))) == NONE
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 1, -1, "x" * 11),)),)
    answer = keeper.answer(keeper.ask(TxnOffsetCommitRequest("i", "id", 1, 0, -1, "", None, topics)))
    assert isinstance(answer, TxnOffsetCommitResponse)
    assert code_of(answer) == ErrorCode.INVALID_REQUEST
    assert "11 characters of metadata" in answer.error_message
    keeper.end((*A, True))
    assert keeper.fetch("g") == {T0: 5, T1: 6}


def test_all_open_transactions_of_a_group_together_have_a_bound() -> None:
    keeper = Keeper(max_pending_offsets=1)

    def told(producer_id: int, group: str = "g") -> TxnOffsetCommitResponse:
        topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, producer_id, -1, ""),)),)
        answer = keeper.answer(keeper.ask(TxnOffsetCommitRequest(group, "id", producer_id, 0, -1, "", None, topics)))
        assert isinstance(answer, TxnOffsetCommitResponse)
        return answer

    assert [code_of(told(producer_id)) for producer_id in (1, 2, 2)] == [NONE] * 3
    refused = told(3)
    assert code_of(refused) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert "transactions of other producers are to commit 2 offsets of group g" in refused.error_message
    assert code_of(told(3, "h")) == NONE
    keeper.end((1, 0, False))
    assert code_of(told(3)) == NONE


def test_metadata_and_leader_epoch_come_with_the_offset_and_its_time_is_that_of_the_end() -> None:
    keeper = Keeper()
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 5, 3, "note"), OffsetCommitPartition(1, 5, 3, None))),)
    keeper.ask(TxnOffsetCommitRequest("g", "id", *A, -1, "", None, topics))
    keeper.pass_ms(1_234)
    keeper.end((*A, True))
    wall_ms = keeper.now.wall_ms
    assert keeper.core.groups["g"].offsets == {"t": {0: (5, 3, "note", wall_ms, ""), 1: (5, 3, "", wall_ms, "")}}


def test_named_partitions_are_unstable_one_by_one() -> None:
    keeper = Keeper()
    keeper.commit("g", ("t", 0, 1), ("t", 2, 3))
    keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 5))
    topics = (OffsetFetchTopic("t", (0, 1, 2, 0)), OffsetFetchTopic("u", (0,)))
    for stable, first, second in ((True, (-1, 88), (-1, 88)), (False, (1, 0), (-1, 0))):
        answer = keeper.answer(keeper.ask(OffsetFetchRequest("g", topics, stable)))
        assert isinstance(answer, OffsetFetchResponse)
        told = [(entry.committed_offset, entry.error_code) for topic in answer.topics for entry in topic.partitions]
        assert told == [first, second, (3, 0), first, (-1, 0)]
        assert answer.error_code == NONE


def test_deleting_a_group_or_an_offset_erases_what_is_pending() -> None:
    keeper = Keeper()
    keeper.commit("g", ("t", 0, 1))
    keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 6))
    assert keeper.delete_offsets("g", T1).topics[0].partitions[0].error_code == NONE
    assert keeper.fetch_stable("g") == ({}, {T0})
    assert keeper.delete("g").results[0].error_code == NONE
    assert keeper.core.groups == {}
    assert keeper.live_keys() == set()
    assert keeper.core.open_epoch(A[0]) is None
    keeper.end((*A, True))
    assert keeper.core.groups == {}


def test_deleting_a_topic_erases_what_is_pending_of_it() -> None:
    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5), ("u", 1, 6))
    keeper.commit_in_transaction("h", ("t", 0, 5))
    for names in (("u",), ("t",), None):
        for effects in keeper.core.forget_topics(lambda topic, _: topic == "t", names):
            keeper.carry_out(effects)
        assert keeper.fetch_stable("h") == ({}, {T0} if names == ("u",) else set())
    keeper.restart()
    keeper.end((*A, True))
    assert keeper.fetch("g") == {("u", 1): 6}
    assert "h" not in keeper.core.groups


def test_what_is_pending_for_a_topic_that_is_gone_is_not_committed_though_it_is_not_erased_yet() -> None:
    class Gone(FewTopics):
        def is_gone(self, topic: str, topic_id: str) -> bool:
            return topic == "t"

    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5), ("u", 1, 6))
    keeper.core.groups.topics = Gone(lambda *_: True)
    assert keeper.fetch_stable("g") == ({}, {("u", 1)})
    keeper.end((*A, True))
    assert keeper.fetch("g") == {("u", 1): 6}


def test_nothing_that_a_transaction_is_about_to_move_expires() -> None:
    keeper = Keeper(retention_ms=10_000, interval_ms=1_000)
    keeper.commit("g", ("t", 0, 1), ("t", 2, 1))
    keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 6))
    keeper.commit_in_transaction("h", ("t", 0, 5))
    keeper.pass_ms(60_000)
    assert keeper.fetch("g") == {T0: 1}
    keeper.end((*A, True))
    keeper.pass_ms(9_000)
    assert (keeper.fetch("g"), keeper.fetch("h")) == ({T0: 5, T1: 6}, {T0: 5})
    keeper.pass_ms(2_000)
    assert keeper.core.groups == {}


def test_a_group_that_only_has_pending_offsets_goes_when_the_transaction_aborts() -> None:
    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5))
    assert keeper.state("g") == "Empty"
    assert keeper.core.describe("g").pending_offsets == 1
    keeper.end((*A, False))
    assert keeper.state("g") == "Dead"
    assert keeper.live_keys() == set()


def test_an_unloaded_core_has_nothing_open() -> None:
    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5))
    keeper.core.unload(step_of(keeper.core, keeper.now))
    assert keeper.core.open_epoch(A[0]) is None


def test_the_committed_offsets_are_written_before_what_was_pending_is_erased() -> None:
    """A crash may leave any beginning of it: then the marker comes again, and finds what it needs."""
    keeper = Keeper()
    keeper.commit_in_transaction("g", ("t", 0, 5), ("t", 1, 6))
    effects = keeper.core.end_transactions([(*A, True)], step_of(keeper.core, keeper.now))
    for torn in range(len(effects.records)):
        core = keeper.replayed()
        for record in effects.records[:torn]:
            core.apply(record)
        assert core.open_epoch(A[0]) == A[1]
        assert isinstance(core.groups["g"].pending_offsets[A[0]], PendingOffsetsRecord)
        for record in core.end_transactions([(*A, True)], step_of(core, keeper.now)).records:
            core.apply(record)
        assert {partition: stored[0] for partition, stored in core.groups["g"].offsets["t"].items()} == {0: 5, 1: 6}


def test_an_empty_commit_writes_nothing() -> None:
    keeper = Keeper()
    request = TxnOffsetCommitRequest("g", "id", *A, -1, "", None, ())
    effects = decide(keeper.core, request, RequestContext(1, "c", "host"), keeper.now)
    assert effects.records == []
    assert [reply.response for reply in effects.replies] == [TxnOffsetCommitResponse(())]
