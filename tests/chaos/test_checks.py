"""Each check fires on a history with its bug, and on no other: seeded bugs in ledgers written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.checking import CHECKS
from tests.chaos.checks import violations
from tests.chaos.group_stories import GROUP_BUGS, GROUP_PROMISES
from tests.chaos.key_stories import KEY_BUGS, KEY_PROMISES
from tests.chaos.small import (
    TP,
    Story,
    assigned,
    at,
    commit,
    committed,
    delivered,
    healthy,
    revoked,
)


def fired(story: Story) -> set[str]:
    return {name for name, found in violations(story.done()).items() if found}


def test_nothing_fires_on_a_healthy_history() -> None:
    assert fired(healthy()) == set()


def an_acknowledged_record_is_gone() -> Story:
    story = healthy()
    del story.history.log[TP][3]
    return story


def a_record_is_never_given_to_the_group() -> Story:
    return Story().member("a1", assigned(10, 1), delivered(11, 0, 1, 2))


def an_offset_has_two_values() -> Story:
    return Story().member("a1", assigned(10, 1), delivered(11, 0, 1, 2, 3, values=("p0:0", "p0:1", "p0:7", "p0:3")))


def a_value_is_stored_twice_without_a_cause() -> Story:
    story = Story().fault(60, 61).member("a1", assigned(10, 1), delivered(11, 0, 1, 2, 3, 4, values=(
        "p0:0", "p0:1", "p0:2", "p0:3", "p0:1")))  # fmt: skip
    story.history.log[TP][4] = "p0:1"
    return story


def a_value_that_nobody_sent_is_stored() -> Story:
    story = healthy()
    story.history.log[TP][4] = "p9:0"
    return story


def a_committed_record_comes_again() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), commit(11.1, 0, 2), committed(11.2, 0), revoked(12))
        .member("a2", assigned(13, 2), delivered(14, 1, 2, 3))
    )


def offsets_fall_within_an_ownership() -> Story:
    return Story().member("a1", assigned(10, 1), delivered(11, 0, 1, 2), delivered(12, 1), delivered(13, 2, 3))


def records_of_a_producer_change_places() -> Story:
    story = Story().member("a1", assigned(10, 1), delivered(11, 0, 1, 2, 3, values=("p0:1", "p0:0", "p0:2", "p0:3")))
    story.history.log[TP] |= {0: "p0:1", 1: "p0:0"}
    story.produced[1]["offset"], story.produced[3]["offset"] = 1, 0
    return story


def a_record_is_left_out() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 2, 3), revoked(12))
        .member("a2", assigned(13, 2), delivered(14, 0, 1, 2, 3))
    )


def the_next_owner_begins_beyond_the_commit() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1, 2), commit(11.1, 0, 2), committed(11.2, 0), revoked(12))
        .member("a2", assigned(13, 2), delivered(14, 3))
    )


def a_member_that_was_stopped_reads_on() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), delivered(20.01, 2, 3), at(20.2, "lost", tps=(TP,)))
        .stopped("a1", 11.5, 20)
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


def a_member_that_was_stopped_commits() -> Story:
    return (
        Story()
        .member(
            *("a1", assigned(10, 1), delivered(11, 0, 1), commit(20.01, 0, 2), committed(20.1, 0)),
            at(20.2, "lost", tps=(TP,)),
        )
        .stopped("a1", 11.5, 20)
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


def a_member_believes_for_too_long() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), at(20.2, "lost", tps=(TP,)))
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


def two_members_own_a_partition_in_one_generation() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), revoked(12))
        .member("a2", assigned(13, 1), delivered(16, 0, 1, 2, 3))
    )


def a_record_comes_without_ownership() -> Story:
    return healthy().member("a3", delivered(50, 1))


def an_acknowledged_commit_moves_back() -> Story:
    entries = (commit(15.1, 0, 4), committed(15.2, 0), commit(16, 1, 2), committed(16.1, 1))
    return Story().member("a1", assigned(10, 1), delivered(11, 0, 1, 2, 3), *entries)


def the_daemon_forgets_a_commit() -> Story:
    return healthy().observed(16, 2)


def the_daemon_forgets_that_there_was_a_commit() -> Story:
    return healthy().observed(16, None)


def a_group_does_not_settle() -> Story:
    story = healthy()
    story.history.unsettled.append("alpha: it is PreparingRebalance")
    return story


def a_process_crashes() -> Story:
    story = healthy()
    story.history.crashes.append("a1: ended with status 1")
    return story


def a_program_is_told_of_damage() -> Story:
    return healthy().member("a3", at(20, "error", error="CorruptMessageError", text="a batch is damaged"))


def a_numbered_value_is_stored_twice() -> Story:
    return a_value_is_stored_twice_after_a_fault().once()


def a_value_of_a_killed_producer_is_stored_out_of_order() -> Story:
    story = Story().once().member("a1", assigned(10, 1), delivered(11, 0, 1, 2, 3, values=(
        "p0:1", "p0:0", "p0:2", "p0:3")))  # fmt: skip
    story.history.log[TP] |= {0: "p0:1", 1: "p0:0"}
    del story.produced[3], story.produced[1]  # neither was acknowledged
    return story


BUGS: dict[Callable[[], Story], str] = {
    **GROUP_BUGS,
    **KEY_BUGS,
    an_acknowledged_record_is_gone: "lost",
    a_record_is_never_given_to_the_group: "unseen",
    an_offset_has_two_values: "inconsistent offsets",
    a_value_is_stored_twice_without_a_cause: "duplicated",
    a_value_that_nobody_sent_is_stored: "duplicated",
    a_numbered_value_is_stored_twice: "not exactly once",
    a_value_of_a_killed_producer_is_stored_out_of_order: "not exactly once",
    a_committed_record_comes_again: "redelivered below the commit",
    offsets_fall_within_an_ownership: "reordered",
    records_of_a_producer_change_places: "reordered",
    a_record_is_left_out: "skipped",
    the_next_owner_begins_beyond_the_commit: "skipped",
    a_member_that_was_stopped_reads_on: "two owners",
    a_member_that_was_stopped_commits: "two owners",
    a_member_believes_for_too_long: "two owners",
    two_members_own_a_partition_in_one_generation: "two owners",
    a_record_comes_without_ownership: "two owners",
    an_acknowledged_commit_moves_back: "commits gone back",
    the_daemon_forgets_a_commit: "commits gone back",
    the_daemon_forgets_that_there_was_a_commit: "commits gone back",
    a_group_does_not_settle: "not stable",
    a_process_crashes: "crashed",
    a_program_is_told_of_damage: "unexpected errors",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_seen_by_its_check_alone(bug: Callable[[], Story]) -> None:
    assert fired(bug()) == {BUGS[bug]}


def test_every_check_has_a_bug() -> None:
    assert set(BUGS.values()) == set(CHECKS)


def a_value_is_stored_twice_after_a_fault() -> Story:
    story = a_value_is_stored_twice_without_a_cause()
    return story.fault(0.5, 1.05)


def a_kill_between_work_and_commit() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), commit(11.1, 0, 2), killed=11.2)
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


def a_commit_is_stored_though_its_answer_was_lost() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), commit(11.1, 0, 2), killed=11.2)
        .member("a2", assigned(15, 2), delivered(16, 2, 3))
    )


def an_automatic_commit_is_stored() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), at(11.5, "done"), revoked(12), auto=True)
        .member("a2", assigned(15, 2), delivered(16, 2, 3))
    )


def a_member_sleeps_and_does_nothing_when_it_wakes() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), at(20.2, "lost", tps=(TP,)))
        .stopped("a1", 11.5, 20)
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


@pytest.mark.parametrize(
    "story",
    [
        a_value_is_stored_twice_after_a_fault,
        a_kill_between_work_and_commit,
        a_commit_is_stored_though_its_answer_was_lost,
        an_automatic_commit_is_stored,
        a_member_sleeps_and_does_nothing_when_it_wakes,
        *GROUP_PROMISES,
        *KEY_PROMISES,
    ],
    ids=lambda story: story.__name__,
)
def test_what_is_promised_is_no_violation(story: Callable[[], Story]) -> None:
    assert fired(story()) == set()
