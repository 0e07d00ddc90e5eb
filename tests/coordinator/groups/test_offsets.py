"""OffsetCommit and OffsetFetch: who may commit what, in which order it is checked, and what is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupProtocol, JoinGroupRequest, SyncGroupRequest
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from tests.coordinator.groups.keeper import Keeper
from tests.coordinator.groups.steps import FewTopics

NONE, GENERATION, UNKNOWN = ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID
REBALANCE, GROUP_ID = ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.INVALID_GROUP_ID

STATES = ("unknown", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable")
WHO: dict[str, tuple[ErrorCode, ErrorCode, ErrorCode, ErrorCode, ErrorCode]] = {
    "without generation, without member": (NONE, NONE, UNKNOWN, UNKNOWN, UNKNOWN),
    "without generation, with a stranger's id": (NONE, NONE, UNKNOWN, UNKNOWN, UNKNOWN),
    "without generation, with a member's id": (NONE, NONE, GENERATION, GENERATION, GENERATION),
    "with generation, without member": (GENERATION, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    "with generation, with a stranger's id": (GENERATION, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    "with an old generation, with a member's id": (GENERATION, UNKNOWN, GENERATION, GENERATION, GENERATION),
    "with a future generation, with a member's id": (GENERATION, UNKNOWN, GENERATION, GENERATION, GENERATION),
    "with generation, with a member's id": (GENERATION, UNKNOWN, NONE, REBALANCE, NONE),
}


def in_state(state: str) -> tuple[Keeper, str, int]:
    """A group "g" in this state, a member of it (or one that left), and its generation."""
    keeper = Keeper()
    if state == "unknown":
        return keeper, "c-1", 1
    (member,) = keeper.consumers("g", ["t"])
    if state == "Empty":
        keeper.leave("g", member)
    elif state == "PreparingRebalance":
        keeper.join("g", b"")
    elif state == "CompletingRebalance":
        found = keeper.core.groups["g"]
        again = replace(
            keeper.ask_to_join("other", b"")[1],
            group_id="g",
            member_id=member,
            protocols=found.members[member].protocols,
        )
        keeper.ask(again)
    assert keeper.state("g") == state
    return keeper, member, keeper.core.groups["g"].generation


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", WHO)
def test_who_may_commit_in_which_state(who: str, state: str) -> None:
    keeper, member, generation = in_state(state)
    committing = "" if "without member" in who else "stranger" if "stranger" in who else member
    said = -1 if "without generation" in who else generation + ("future" in who) - ("old" in who)
    before = dict(keeper.log)
    (code,) = keeper.commit("g", ("t", 0, 1), member=committing, generation=said)
    assert code == WHO[who][STATES.index(state)]
    assert (keeper.fetch("g") == {("t", 0): 1}) == (code == NONE)
    assert (keeper.log == before) == (code != NONE)


@pytest.mark.parametrize("state", ["PreparingRebalance", "Stable"])
def test_a_commit_renews_the_session_like_a_heartbeat(state: str) -> None:
    keeper, member, generation = in_state(state)
    keeper.pass_ms(900_000)
    for said, renewed in ((generation - 1, False), (generation, True)):
        keeper.commit("g", ("t", 0, 1), member=member, generation=said)
        deadline_ms = keeper.core.groups["g"].members[member].session_deadline_ms
        assert (deadline_ms == keeper.now.ms + 1_000_000) == renewed


def test_a_member_that_has_only_asked_for_its_id_commits_nothing() -> None:
    keeper = Keeper()
    keeper.consumers("g", ["t"])
    pending, _ = keeper.ask_to_join("g", b"")
    assert keeper.commit("g", ("t", 0, 1), member=pending, generation=1) == [UNKNOWN]


def test_a_static_member_commits_under_its_instance_id_and_whom_it_replaced_is_fenced() -> None:
    keeper = Keeper()
    old, new = (
        keeper.told(
            JoinGroupRequest("g", 1_000_000, 1_000_000, "", "i", "consumer", (JoinGroupProtocol("range", b""),))
        )
        for _ in range(2)
    )
    generation = keeper.settle("g")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    for member, said, instance, code in (
        (new, generation, "i", NONE),
        (new, generation, None, NONE),
        (new, generation - 1, "i", GENERATION),
        (old, generation, "i", fenced),
        (old, generation - 1, "i", fenced),
        ("", -1, "i", fenced),
        (new, generation, "another", UNKNOWN),
        ("", -1, "another", UNKNOWN),
        (old, generation, None, UNKNOWN),
    ):
        assert keeper.commit("g", ("t", 0, 1), member=member, generation=said, instance=instance) == [code], (
            member,
            said,
        )
    keeper.leave("g", new)
    assert keeper.commit("g", ("t", 0, 2), instance="i") == [NONE], "without generation and members, any client"


def answer_to(keeper: Keeper, request: OffsetCommitRequest) -> OffsetCommitResponse:
    def exists(topic: str, partition: int) -> bool:
        return topic == "t" and 0 <= partition < 3

    keeper.core.groups.topics = FewTopics(exists)
    answer = keeper.answer(keeper.ask(request))
    assert isinstance(answer, OffsetCommitResponse)
    return answer


def test_a_fault_of_a_partition_refuses_it_alone_and_says_what_it_is() -> None:
    partitions = (
        OffsetCommitPartition(0, 5, 7, "note"),
        OffsetCommitPartition(3, 5),
        OffsetCommitPartition(-1, 5),
        OffsetCommitPartition(1, 5, -1, "é" * 2_049),
        OffsetCommitPartition(2, 5, -1, "é" * 2_048),
    )
    topics = (OffsetCommitTopic("t", partitions), OffsetCommitTopic("t/u", (OffsetCommitPartition(0, 1),)))
    answer = answer_to(Keeper(), OffsetCommitRequest("g", -1, "", None, topics))
    assert [[(entry.error_code, entry.error_message) for entry in topic.partitions] for topic in answer.topics] == [
        [
            (NONE, ""),
            (3, "there is no partition 3 of topic t; its offset is not stored"),
            (3, "there is no partition -1 of topic t; its offset is not stored"),
            (
                12,
                "the metadata for partition 1 of topic t takes 4098 bytes of at most 4096; its offset is not stored, send "
                "less",
            ),
            (NONE, ""),
        ],
        [(3, "there is no partition 0 of topic t/u; its offset is not stored")],
    ]
    assert answer.error_message == "there is no partition 3 of topic t; its offset is not stored"


@given(
    st.lists(
        st.tuples(st.sampled_from(["t", "u"]), st.lists(st.integers(-1, 3), max_size=3), st.sampled_from(["", "é"])),
        max_size=3,
    )
)
def test_an_answer_has_the_topics_and_partitions_of_its_request_in_their_order(
    asked: list[tuple[str, list[int], str]],
) -> None:
    topics = tuple(
        OffsetCommitTopic(name, tuple(OffsetCommitPartition(number, 5, -1, note * 2_049) for number in numbers))
        for name, numbers, note in asked
    )
    keeper = Keeper()
    for _ in range(2):  # the second answer may have parts of the first
        answer = answer_to(keeper, OffsetCommitRequest("g", -1, "", None, topics))
        assert [
            (topic.name, [(entry.partition_index, entry.error_code) for entry in topic.partitions])
            for topic in answer.topics
        ] == [
            (name, [(number, 3 if name == "u" or not 0 <= number < 3 else 12 if note else 0) for number in numbers])
            for name, numbers, note in asked
        ]
        errors = [entry.error_message for topic in answer.topics for entry in topic.partitions if entry.error_code]
        assert answer.error_message == next(iter(errors), "")


def test_an_offset_of_the_topic_that_had_the_name_before_is_refused() -> None:
    keeper = Keeper()

    def commit(topic_id: str) -> OffsetCommitResponse:
        request = OffsetCommitRequest(
            "g", -1, "", None, (OffsetCommitTopic("t", (OffsetCommitPartition(0, 60),), topic_id),)
        )
        keeper.core.groups.topics = FewTopics(lambda *_: True, "second")
        answer = keeper.answer(keeper.ask(request))
        assert isinstance(answer, OffsetCommitResponse)
        return answer

    refused = commit("first")
    assert refused.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "topic t was deleted and created again" in refused.error_message
    assert keeper.fetch("g") == {}
    for topic_id in ("second", ""):  # "": a client that does not know of ids
        assert commit(topic_id).topics[0].partitions[0].error_code == NONE
    assert keeper.fetch("g") == {("t", 0): 60}


def test_what_refuses_the_whole_request_is_explained_once() -> None:
    topics = (OffsetCommitTopic("t", tuple(OffsetCommitPartition(number, 1) for number in range(3))),)
    answer = answer_to(Keeper(), OffsetCommitRequest("", -1, "", None, topics))
    assert {(entry.error_code, entry.error_message) for entry in answer.topics[0].partitions} == {(GROUP_ID, "")}
    assert answer.error_message == "the group id is empty; set one"


def test_explanations_have_a_bound() -> None:
    topics = (OffsetCommitTopic("x" * 500, tuple(OffsetCommitPartition(number, 1) for number in range(5_000))),)
    answer = answer_to(Keeper(), OffsetCommitRequest("g", -1, "", None, topics))
    explained = [entry.error_message for entry in answer.topics[0].partitions if entry.error_message]
    assert len(explained) == 100
    assert max(map(len, explained)) < 250
    assert {entry.error_code for entry in answer.topics[0].partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_mebibyte_of_metadata_is_refused_and_leaves_nothing() -> None:
    keeper = Keeper()
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 1, -1, "😀" * 262_144),)),)
    answer = answer_to(keeper, OffsetCommitRequest("g", -1, "", None, topics))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert "takes 1048576 bytes" in answer.error_message
    assert keeper.core.groups == {}


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_metadata_is_counted_in_bytes(metadata: str) -> None:
    keeper = Keeper(offset_metadata_max_bytes=50)
    (code,) = keeper.commit("g", ("t", 0, 1), committed_metadata=metadata)
    assert code == (NONE if len(metadata.encode()) <= 50 else ErrorCode.OFFSET_METADATA_TOO_LARGE)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.none() | st.text(max_size=9))
def test_a_store_is_no_judge(offset: int, epoch: int, metadata: str | None) -> None:
    """Whatever an offset is, higher or lower than before or below zero, it is what is read."""
    keeper = Keeper()
    for first in (17, offset):
        keeper.commit("g", ("t", 0, first), committed_leader_epoch=epoch, committed_metadata=metadata)
    keeper.restart()
    request = OffsetFetchRequest("g", (OffsetFetchTopic("t", (0, 1, 0)), OffsetFetchTopic("u", (5,))))
    answer = keeper.answer(keeper.ask(request))
    assert isinstance(answer, OffsetFetchResponse)
    assert answer.error_code == NONE
    found = [
        (entry.partition_index, entry.committed_offset, entry.committed_leader_epoch, entry.metadata, entry.error_code)
        for topic in answer.topics
        for entry in topic.partitions
    ]
    stored = (0, offset, epoch, metadata or "", 0)
    assert found == [stored, (1, -1, -1, "", 0), stored, (5, -1, -1, "", 0)]


def test_all_offsets_of_an_unknown_group_are_none() -> None:
    assert Keeper().fetch("g") == {}


def test_a_commit_during_a_rebalance_is_kept_for_the_next_owner_of_the_partition() -> None:
    keeper, member, generation = in_state("PreparingRebalance")
    assert keeper.commit("g", ("t", 0, 41), member=member, generation=generation) == [NONE]
    assert keeper.settle("g") == generation + 1
    sync = SyncGroupRequest("g", generation, member, None, None, None)
    keeper.ask(sync)
    assert keeper.commit("g", ("t", 0, 42), member=member, generation=generation) == [GENERATION]
    assert keeper.fetch("g") == {("t", 0): 41}
