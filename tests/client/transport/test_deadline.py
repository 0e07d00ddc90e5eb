"""Lengths of time as programs give them: in milliseconds, or in seconds where the name says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from client.consumer import Consumer
from client.group.member import Member
from client.producer.producer import Producer
from client.transport.deadline import wait_s


@pytest.mark.parametrize(
    ("timeout", "timeout_ms", "seconds"),
    [(None, None, None), (2, None, 2), (0.5, None, 0.5), (None, 1500, 1.5), (0, None, 0), (None, 0, 0)],
)
def test_both_units_come_to_seconds(timeout: float | None, timeout_ms: float | None, seconds: float | None) -> None:
    assert wait_s(timeout, timeout_ms) == seconds


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((1, 1000), TypeError, r"give timeout \(seconds\) or timeout_ms, not both"),
        (("5", None), TypeError, "timeout must be a number of seconds or None, not '5'"),
        ((None, "5"), TypeError, "timeout_ms must be a number of milliseconds or None, not '5'"),
        ((True, None), TypeError, "timeout must be a number of seconds"),
        ((-1, None), ValueError, "timeout is -1; it must be a number of seconds from 0"),
        ((None, float("nan")), ValueError, "timeout_ms is nan; it must be a number of milliseconds from 0"),
    ],
)
def test_what_is_no_length_of_time_is_refused(arguments: tuple[Any, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        wait_s(*arguments)


@pytest.mark.parametrize("stopped", [Producer, Consumer, partial(Member, "g")], ids=["producer", "consumer", "member"])
async def test_each_stop_takes_either_unit(stopped: Callable[[], Producer | Consumer | Member]) -> None:
    await stopped().stop(timeout=1)
    await stopped().stop(timeout_ms=1000)
    with pytest.raises(TypeError, match="not both"):
        await stopped().stop(1, timeout_ms=1000)
    with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not '3'"):
        await stopped().stop("3")  # type: ignore[arg-type]
