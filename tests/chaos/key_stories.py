"""Histories of a member that handles records by key, written by hand: what its checks see, and what is promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.chaos.ledger import Entry
from tests.chaos.small import TP, Story, assigned, at, handled


def began_by_key(t: float, offset: int, key: str) -> Entry:
    """The handler is called with a record of ``key``."""
    return at(t, "began", tp=TP, offset=offset, value=f"p0:{offset}", key=key)


def worked_by_key(t: float, offset: int, key: str) -> tuple[Entry, Entry]:
    """The same, and it returns."""
    return began_by_key(t, offset, key), handled(t + 0.01, offset)


def keys_overtake_each_other() -> Story:
    """Record 0 is slow, those of other keys are not, and nothing behind it is committed before it is done."""
    return (
        Story()
        .member(
            "a1",
            *(assigned(10, 1), at(10.1, "processing"), began_by_key(11, 0, "a")),
            *(*worked_by_key(11.1, 1, "b"), *worked_by_key(11.2, 3, "b"), handled(12, 0), *worked_by_key(12.1, 2, "a")),
            auto=True,
        )
        .observed(11.8, None)
        .observed(13, 4)
    )


def what_keys_have_overtaken_comes_again_after_a_kill() -> Story:
    """The process dies while record 0 is in work: all behind it is handled a second time."""
    return (
        Story()
        .member(
            "a1",
            *(assigned(10, 1), at(10.1, "processing"), began_by_key(11, 0, "a"), *worked_by_key(11.1, 1, "b")),
            killed=11.5,
            auto=True,
        )
        .member(
            "a2",
            *(assigned(15, 2), at(15.1, "processing"), *worked_by_key(16, 0, "a")),
            *(*worked_by_key(16.2, 1, "b"), *worked_by_key(16.3, 2, "a"), *worked_by_key(16.4, 3, "b")),
            auto=True,
        )
    )


def two_records_of_a_key_are_in_work_at_once() -> Story:
    """Record 2 of key a begins before record 0 of key a is done."""
    return Story().member(
        "a1",
        *(assigned(10, 1), began_by_key(11, 0, "a"), *worked_by_key(11.1, 1, "b"), *worked_by_key(11.2, 2, "a")),
        *(handled(12, 0), *worked_by_key(12.1, 3, "b")),
    )


def a_key_goes_back() -> Story:
    """Record 0 of key a is handled after record 2 of key a."""
    return Story().member(
        "a1",
        *(assigned(10, 1), *worked_by_key(10.9, 0, "b"), *worked_by_key(11, 2, "a"), *worked_by_key(11.1, 1, "a")),
        *worked_by_key(11.2, 3, "a"),
    )


def the_highest_record_that_is_done_is_committed() -> Story:
    """Record 0 is in work when everything up to record 1 is committed."""
    return (
        Story()
        .member(
            "a1",
            *(assigned(10, 1), began_by_key(11, 0, "a"), *worked_by_key(11.1, 1, "b"), handled(13, 0)),
            *(*worked_by_key(13.1, 2, "a"), *worked_by_key(13.2, 3, "b")),
            auto=True,
        )
        .observed(12, 2)
    )


KEY_BUGS: Final[dict[Callable[[], Story], str]] = {
    two_records_of_a_key_are_in_work_at_once: "two owners",
    a_key_goes_back: "reordered",
    the_highest_record_that_is_done_is_committed: "committed unhandled",
}
"""Each with the check that sees it."""
KEY_PROMISES: Final = (keys_overtake_each_other, what_keys_have_overtaken_comes_again_after_a_kill)
