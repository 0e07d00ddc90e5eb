"""Progress: who is called when it moves, falls or fails."""

from __future__ import annotations

import pytest
import structlog

from coordinator.log.progress import Progress


def test_callbacks_come_in_the_order_of_their_offsets_and_those_of_one_as_they_came() -> None:
    progress, told = Progress(5), list[str]()
    for name, offset in (("a", 9), ("b", 7), ("c", 9), ("d", 7), ("e", 8)):
        progress.when_reached(offset, lambda error, name=name: told.append(name))  # type: ignore[misc]
    progress.when_reached(5, lambda error: told.append("now"))
    progress.advance(8)
    assert told == ["now", "b", "d", "e"]
    progress.advance(9)
    assert told == ["now", "b", "d", "e", "a", "c"]


def test_it_rises_unless_the_log_is_truncated() -> None:
    progress = Progress(5)
    with pytest.raises(AssertionError):
        progress.advance(4)
    assert progress.offset == 5


def test_a_truncation_fails_what_waits_for_more_and_tells_listeners() -> None:
    progress, told, looks = Progress(5), list[Exception | None](), list[int]()
    progress.on_advance(lambda: looks.append(progress.offset))
    progress.when_reached(7, told.append)
    error = RuntimeError("cut")
    progress.rewind(3, error)
    assert (progress.offset, told, looks) == (3, [error], [3])
    progress.when_reached(4, told.append)  # what comes now may come again
    assert len(told) == 1
    progress.advance(4)
    assert told == [error, None]


def test_a_truncation_above_it_lowers_nothing() -> None:
    """What was written and not yet on disk may be cut as well."""
    progress, told = Progress(5), list[Exception | None]()
    error = RuntimeError("cut")
    progress.when_reached(8, told.append)
    progress.rewind(6, error)
    assert (progress.offset, told) == (5, [error])


def test_callbacks_and_listeners_that_raise_keep_no_others_from_running() -> None:
    progress, told = Progress(0), list[object]()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    progress.when_reached(1, broken)
    progress.when_reached(1, told.append)
    progress.on_advance(broken)
    stop = progress.on_advance(lambda: told.append("moved"))
    with structlog.testing.capture_logs() as lines:
        progress.advance(1)
    assert told == [None, "moved"]
    assert {line["event"] for line in lines} == {"durable_callback_failed", "progress_listener_failed"}
    stop()
    with structlog.testing.capture_logs():
        progress.advance(2)
    assert told == [None, "moved"]


def test_only_what_may_give_up_is_told_to_and_the_others_wait_on_in_their_order() -> None:
    progress, told = Progress(0), list[object]()
    error = RuntimeError("too few")
    for offset, may_give_up in ((2, False), (1, True), (1, False), (3, True)):
        progress.when_reached(offset, lambda error, offset=offset: told.append((offset, error)), may_give_up)  # type: ignore[misc]
    progress.give_up(error)
    assert told == [(1, error), (3, error)]
    progress.when_reached(3, lambda error: told.append("late"), True)
    progress.advance(3)
    assert told[2:] == [(1, None), (2, None), "late"]
    assert not progress.has_waiters
