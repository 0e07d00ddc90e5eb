"""What an administrator can erase, when it is refused, and what old members hear afterwards (KIP-229, KIP-496)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.groups.records import GroupMetadataRecord
from protocol.errors import ErrorCode
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse, ListedGroup
from protocol.messages.offsets import OffsetDeleteResponse
from tests.coordinator.groups.keeper import Keeper


def codes(answer: OffsetDeleteResponse) -> list[int]:
    assert answer.error_code == ErrorCode.NONE
    return [entry.error_code for topic in answer.topics for entry in topic.partitions]


def test_an_empty_group_is_deleted_with_everything_the_log_has_of_it() -> None:
    keeper = Keeper()
    (member,) = keeper.consumers("g", ["t"])
    keeper.commit("g", ("t", 0, 1), ("t", 1, 2), ("u", 0, 3), member=member, generation=1)
    keeper.commit("other", ("t", 0, 9))
    keeper.leave("g", member)
    (result,) = keeper.delete("g").results
    assert (result.group_id, result.error_code, result.error_message) == ("g", ErrorCode.NONE, "")
    assert list(keeper.core.groups) == ["other"]
    assert len(keeper.live_keys()) == 1
    keeper.restart()
    assert keeper.state("g") == "Dead"
    assert keeper.fetch("other") == {("t", 0): 9}


def test_a_group_of_a_simple_consumer_is_deleted() -> None:
    keeper = Keeper()
    keeper.commit("g", ("t", 0, 1))
    assert keeper.delete("g").results[0].error_code == ErrorCode.NONE
    assert keeper.core.groups == {}
    assert keeper.live_keys() == set()


def test_a_deletion_has_one_result_a_group_in_order() -> None:
    keeper = Keeper()
    keeper.commit("a", ("t", 0, 1))
    keeper.consumers("b", ["t"])
    answer = keeper.delete("a", "b", "nobody", "", "a", "x" * 2_000)
    assert [result.error_code for result in answer.results] == [
        ErrorCode.NONE,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
    ]
    assert answer.results[1].error_message == "group b is Stable with 1 member; stop or remove them, then delete it"
    assert answer.results[2].error_message.startswith("group nobody does not exist")
    assert keeper.state("b") == "Stable"


def test_a_group_is_not_deleted_while_it_rebalances_or_a_member_is_about_to_join() -> None:
    keeper = Keeper()
    keeper.consumers("g", ["t"])
    keeper.join("g", b"")
    assert keeper.delete("g").results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    keeper.commit("h", ("t", 0, 1))
    _, request = keeper.ask_to_join("h", b"")
    (result,) = keeper.delete("h").results
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP
    assert "1 client asked for an id and may join with it" in result.error_message
    keeper.ask(request)
    assert keeper.settle("h") == 1


def test_members_of_a_group_that_was_deleted_are_told_to_join_anew() -> None:
    keeper = Keeper()
    (member,) = keeper.consumers("g", ["t"])
    keeper.leave("g", member)
    keeper.delete("g")
    for commit_code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
        beat = HeartbeatRequest("g", 1, member)
        answer = keeper.answer(keeper.ask(beat))
        assert isinstance(answer, HeartbeatResponse)
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert keeper.commit("g", ("t", 0, 1), member=member, generation=1) == [commit_code]
        if "g" not in keeper.core.groups:
            keeper.consumers("g", ["t"])
            assert keeper.core.groups["g"].generation == 1, "made again, it begins anew, and knows its own members only"


def test_offsets_are_erased_one_by_one_and_the_last_one_takes_a_simple_group_along() -> None:
    keeper = Keeper()
    keeper.commit("g", ("t", 0, 1), ("t", 1, 2))
    assert codes(keeper.delete_offsets("g", ("t", 0), ("t", 0), ("t", 2))) == [ErrorCode.NONE] * 3
    assert keeper.fetch("g") == {("t", 1): 2}
    assert codes(keeper.delete_offsets("g", ("t", 1))) == [ErrorCode.NONE]
    assert keeper.core.groups == {}
    assert keeper.live_keys() == set()
    assert keeper.delete_offsets("g", ("t", 1)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_in_use_are_refused_topic_by_topic() -> None:
    keeper = Keeper()
    member, _ = keeper.consumers("g", ["t"], ["u"])
    generation = keeper.core.groups["g"].generation
    keeper.commit("g", ("t", 0, 1), ("u", 0, 2), ("v", 0, 3), member=member, generation=generation)
    answer = keeper.delete_offsets("g", ("v", 0), ("t", 0), ("u", 0), ("v", 1), ("nowhere", 0))
    in_use = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert codes(answer) == [ErrorCode.NONE, in_use, in_use, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert answer.error_message == (
        "group g: its members subscribe to topic t, whose offsets are in use; stop the members or unsubscribe them first"
    )
    assert keeper.fetch("g") == {("t", 0): 1, ("u", 0): 2}
    keeper.restart()
    assert codes(keeper.delete_offsets("g", ("t", 0))) == [in_use], "subscriptions are known after a restart too"


def test_a_subscription_that_does_not_parse_counts_for_every_topic() -> None:
    keeper = Keeper()
    member, _ = keeper.consumers("g", ["t"], b"\xc1")
    keeper.commit("g", ("v", 0, 3), member=member, generation=keeper.core.groups["g"].generation)
    answer = keeper.delete_offsets("g", ("v", 0))
    assert codes(answer) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert "some member's subscription does not parse" in answer.error_message


def test_a_member_that_joins_a_rebalance_counts_with_all_it_offers() -> None:
    keeper = Keeper()
    member, *_ = keeper.consumers("g", ["t"])
    keeper.commit("g", ("v", 0, 3), ("w", 0, 4), member=member, generation=1)
    keeper.join("g", b"\x92\x00\x91\xa1v")
    assert keeper.state("g") == "PreparingRebalance"
    assert codes(keeper.delete_offsets("g", ("v", 0), ("w", 0))) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
    ]


def test_what_was_read_of_subscriptions_is_not_used_after_they_changed() -> None:
    keeper = Keeper()
    (member,) = keeper.consumers("g", ["t"])
    keeper.commit("g", ("t", 0, 3), ("u", 0, 4), member=member, generation=1)
    assert codes(keeper.delete_offsets("g", ("t", 0), ("u", 1))) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
    ]
    keeper.consumers("g", ["u"])
    assert codes(keeper.delete_offsets("g", ("u", 0))) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    keeper.leave("g", member)
    keeper.settle("g")
    assert codes(keeper.delete_offsets("g", ("t", 0), ("u", 0))) == [
        ErrorCode.NONE,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ]


def test_what_members_of_another_kind_work_on_is_not_known() -> None:
    keeper = Keeper()
    (member,) = keeper.consumers("g", ["t"], kind="work")
    keeper.commit("g", ("v", 0, 3), member=member, generation=1)
    answer = keeper.delete_offsets("g", ("v", 0))
    assert (answer.error_code, answer.topics) == (ErrorCode.NON_EMPTY_GROUP, ())
    keeper.leave("g", member)
    assert codes(keeper.delete_offsets("g", ("v", 0))) == [ErrorCode.NONE]
    assert keeper.state("g") == "Empty"


@pytest.mark.parametrize(("group", "code"), [("", ErrorCode.INVALID_GROUP_ID), ("g", ErrorCode.GROUP_ID_NOT_FOUND)])
def test_offsets_of_no_group_cannot_be_erased(group: str, code: ErrorCode) -> None:
    answer = Keeper().delete_offsets(group, ("t", 0))
    assert (answer.error_code, answer.topics) == (code, ())
    assert answer.error_message


def test_an_offset_of_a_partition_that_is_gone_can_still_be_erased() -> None:
    keeper = Keeper()
    keeper.commit("g", ("t", 0, 1), ("t", 2, 1))
    (key,) = [key for key in keeper.live_keys() if b"\x02" in key]
    keeper.log[key.replace(b"\x02", b"\x07")] = keeper.log.pop(key)
    keeper.core = keeper.replayed()
    assert keeper.fetch("g") == {("t", 0): 1, ("t", 7): 1}
    assert codes(keeper.delete_offsets("g", ("t", 7), ("t", 8))) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


@pytest.mark.parametrize(
    "group_id", ["\0", "\n\t", "\u202e", "😀" * 256, "a/b\\c", "\uffff", "\U0010ffff", "é́", " ", "null", "\x1b[2J"]
)
def test_a_group_may_be_called_anything(group_id: str) -> None:
    keeper = Keeper()
    keeper.commit(group_id, ("t", 0, 1))
    (member,) = keeper.consumers(group_id, ["t"])
    assert keeper.commit(group_id, ("t", 1, 1), member=member, generation=1) == [ErrorCode.NONE]
    keeper.restart()
    assert keeper.fetch(group_id) == {("t", 0): 1, ("t", 1): 1}
    keeper.leave(group_id, member)
    assert keeper.delete(group_id).results[0].error_code == ErrorCode.NONE
    assert keeper.live_keys() == set()


def test_lists_are_filtered_by_state_and_by_type() -> None:
    keeper = Keeper()
    keeper.commit("simple", ("t", 0, 1))
    keeper.consumers("stable", ["t"])
    keeper.leave("gone", *keeper.consumers("gone", ["t"]))
    keeper.consumers("work", ["t"], kind="Work")
    listed = {
        "simple": ListedGroup("simple", "", "Empty"),
        "stable": ListedGroup("stable", "consumer", "Stable"),
        "gone": ListedGroup("gone", "consumer", "Empty"),
        "work": ListedGroup("work", "Work", "Stable"),
    }
    for states, types, names in (
        ((), (), ("gone", "simple", "stable", "work")),
        (("STABLE",), (), ("stable", "work")),
        ((" stable ", "empty"), ("consumer",), ("gone", "stable")),
        (("Empty",), ("",), ("simple",)),
        ((), ("work",), ()),
        ((), ("Work", "consumer"), ("gone", "stable", "work")),
        (("Dead",), (), ()),
        (("no such state",), (), ()),
    ):
        assert keeper.core.list(frozenset(states), frozenset(types)) == [listed[name] for name in names]


def test_the_record_of_an_empty_group_is_what_deletion_finds() -> None:
    """A group that is empty has a record without members; deletion never meets another."""
    keeper = Keeper()
    keeper.leave("g", *keeper.consumers("g", ["t"], ["u"]))
    durable = keeper.core.groups["g"].durable
    assert isinstance(durable, GroupMetadataRecord)
    assert durable == replace(durable, members=(), leader=None, protocol_name=None)
