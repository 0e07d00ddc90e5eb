"""Stories of groups of every kind: bugs and the checks that see them, and what is promised no better."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.ledger import Entry
from tests.chaos.small import (
    TP,
    Story,
    assigned,
    at,
    began,
    cancelled,
    commit,
    committed,
    delivered,
    handled,
    healthy,
    revoked,
    worked,
)


def handled_and_left() -> Story:
    entries = (assigned(10, 1), delivered(11, 0, 1, 2, 3), commit(11.1, 0, 4), committed(11.2, 0), at(15, "left"))
    return Story().member("a1", *entries).observed(12, 4)


def a_removed_member_goes_on_and_on() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), delivered(16, 2), at(16.1, "lost", tps=(TP,)))
        .removed("a1", 14.9)
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


def a_fenced_process_commits() -> Story:
    return (
        Story()
        .member(
            *("a1", assigned(10, 1), delivered(11, 0, 1), commit(15.1, 0, 2), committed(15.2, 0)),
            *(at(15.3, "lost", tps=(TP,)), at(15.3, "fenced", text="of 'pod'")),
            instance="pod",
        )
        .member("a2", assigned(15, 1), delivered(16, 0, 1, 2, 3), instance="pod")
    )


def a_cooperative_member_keeps_what_another_was_given() -> Story:
    return (
        Story()
        .member(
            *("a1", at(10, "assigned", generation=1, tps=(TP, "orders-1")), delivered(11, 0, 1)),
            *(at(15, "assigned", generation=2, tps=()), delivered(15.2, 2, 3)),
        )
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


def a_handler_goes_on_after_its_partition_was_revoked() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), began(11, 0), revoked(11.5), handled(12, 0), auto=True)
        .member("a2", assigned(13, 2), *worked(14, 0, 1, 2, 3), auto=True)
    )


def a_cancelled_handler_ends_after_its_partition_was_revoked() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), began(11, 0), revoked(11.5), cancelled(12, 0), auto=True)
        .member("a2", assigned(13, 2), *worked(14, 0, 1, 2, 3), auto=True)
    )


def a_handler_goes_on_when_another_member_has_its_partition() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), began(12.9, 0), handled(13.2, 0), at(13.3, "lost", tps=(TP,)), auto=True)
        .member("a2", assigned(13, 2), *worked(14, 0, 1, 2, 3), auto=True)
    )


def a_handler_is_called_without_ownership() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), *worked(11, 0), revoked(11.5), *worked(12, 1), auto=True)
        .member("a2", assigned(13, 2), *worked(14, 0, 1, 2, 3), auto=True)
    )


def a_cancelled_record_is_committed() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), *worked(11, 0), began(11.1, 1), cancelled(12, 1), revoked(12), auto=True)
        .observed(12.5, 2)
        .member("a2", assigned(13, 2), *worked(14, 1, 2, 3), auto=True)
    )


def an_automatic_commit_covers_the_latest_poll() -> Story:
    entries = (delivered(11, 0, 1), at(11.5, "done"), delivered(12, 2, 3), at(13, "done"))
    return Story().member("a1", assigned(10, 1), *entries, auto=True).observed(12.5, 4)


def a_commit_moves_back_after_a_reset() -> Story:
    entries = (assigned(18, 2), delivered(19, 0, 1, 2, 3), commit(19.1, 0, 3), committed(19.2, 0))
    return handled_and_left().reset(16, 17).member("a2", *entries).observed(21, 2)


def two_processes_live_under_one_name() -> Story:
    return two_of_one_name().calm(80)


def a_process_is_fenced_and_does_not_say_as_what() -> Story:
    return two_of_one_name(at(15.2, "lost", tps=(TP,)), at(15.2, "fenced", text="somebody came"))


def a_process_is_fenced_long_after_another_took_its_name() -> Story:
    return two_of_one_name(at(15.2, "lost", tps=(TP,)), at(35, "fenced", text="'pod' was taken"))


def two_of_one_name(*end: Entry) -> Story:
    """The first owns nothing when the second comes, so that nothing but its name matters."""
    nothing = at(12.1, "assigned", generation=1, tps=())
    entries = (assigned(10, 1), delivered(11, 0, 1, 2, 3), revoked(12), nothing)
    return (
        Story()
        .member("a1", *entries, *end, instance="pod")
        .member("a2", at(15, "assigned", generation=1, tps=()), instance="pod")
    )


def a_rolling_restart_rebalances() -> Story:
    return healthy().rolled(7, 9)


def a_member_is_not_told_why() -> Story:
    return healthy().member("a3", at(20, "assigned", generation=3, tps=(), reason=""))


GROUP_BUGS: dict[Callable[[], Story], str] = {
    a_removed_member_goes_on_and_on: "two owners",
    a_fenced_process_commits: "two owners",
    a_cooperative_member_keeps_what_another_was_given: "two owners",
    a_handler_goes_on_after_its_partition_was_revoked: "two owners",
    a_cancelled_handler_ends_after_its_partition_was_revoked: "two owners",
    a_handler_goes_on_when_another_member_has_its_partition: "two owners",
    a_handler_is_called_without_ownership: "two owners",
    a_cancelled_record_is_committed: "committed unhandled",
    an_automatic_commit_covers_the_latest_poll: "committed unhandled",
    two_processes_live_under_one_name: "unfenced",
    a_process_is_fenced_and_does_not_say_as_what: "unfenced",
    a_process_is_fenced_long_after_another_took_its_name: "unfenced",
    a_rolling_restart_rebalances: "restarts that rebalance",
    a_member_is_not_told_why: "told no reason",
    a_commit_moves_back_after_a_reset: "commits gone back",
}


def a_handler_is_cancelled_in_time() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), *worked(11, 0), began(11.1, 1), cancelled(12, 1), revoked(12.1), auto=True)
        .observed(12.5, 1)
        .member("a2", assigned(13, 2), *worked(14, 1, 2, 3), auto=True)
    )


def process_is_called_again_after_an_error() -> Story:
    again = (began(11.1, 1), cancelled(12, 1), at(12.2, "processing"), *worked(13, 1, 2, 3))
    return Story().member("a1", assigned(10, 1), *worked(11, 0), *again, auto=True)


def everything_is_read_again_after_a_reset() -> Story:
    entries = (assigned(18, 1), delivered(19, 0, 1), commit(19.1, 0, 2), committed(19.2, 0))
    return handled_and_left().reset(16, 17).observed(16.5, 0).member("a2", *entries).observed(20, 2)


def a_blocked_member_hears_of_its_share_when_it_is_gone() -> Story:
    return (
        Story()
        .member("a1", assigned(20, 1), at(20.01, "lost", tps=(TP,)))
        .stopped("a1", 11.5, 20)
        .member("a2", assigned(15, 2), delivered(16, 0, 1), delivered(21, 2, 3))
    )


def a_removed_member_goes_on_for_a_moment() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), delivered(15.1, 2), at(15.2, "lost", tps=(TP,)))
        .removed("a1", 14.9)
        .member("a2", assigned(15, 2), delivered(16, 0, 1, 2, 3))
    )


def a_process_takes_the_name_of_another() -> Story:
    story = two_of_one_name(at(15.2, "lost", tps=(TP,)), at(15.3, "fenced", text="'pod' was taken"), at(16, "left"))
    return story.calm(80)


def a_static_member_comes_back_within_its_session() -> Story:
    return (
        Story()
        .member("a1", assigned(10, 1), delivered(11, 0, 1), killed=11.5, instance="pod")
        .member("a2", assigned(13, 1), delivered(14, 0, 1, 2, 3), instance="pod")
        .calm(80)
    )


def a_rolling_restart_takes_longer_than_the_session() -> Story:
    return healthy().rolled(7, 9, longest=8).rolled(9, 9)


GROUP_PROMISES = (
    a_handler_is_cancelled_in_time,
    process_is_called_again_after_an_error,
    everything_is_read_again_after_a_reset,
    a_blocked_member_hears_of_its_share_when_it_is_gone,
    a_removed_member_goes_on_for_a_moment,
    a_process_takes_the_name_of_another,
    a_static_member_comes_back_within_its_session,
    a_rolling_restart_takes_longer_than_the_session,
)
