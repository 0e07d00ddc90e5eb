"""The one place that retries: backoff with jitter until a deadline, or until retrying cannot help."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from client.errors import CohortError, RequestTimedOutError
from client.transport.deadline import Deadline

Result = TypeVar("Result")

_GRACE_S: Final = 0.05
"""How much later than its deadline an attempt is cut off: waits inside that know the deadline end first and say more."""


class Backoff:
    """Delays that double from ``initial_ms`` to ``maximum_ms``, each drawn from 80 to 120 percent of its nominal length.

    The jitter keeps clients that lost the same daemon from coming back in step (KIP-580). ``random`` is injected so that
    a simulation can repeat its draws.
    """

    def __init__(self, random: Random, initial_ms: float = 20, maximum_ms: float = 1000) -> None:
        self._random = random
        self._initial_ms = initial_ms
        self._maximum_ms = maximum_ms

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after failed attempt number ``attempt``, counted from 0."""
        nominal = min(self._maximum_ms, self._initial_ms * 2.0 ** min(attempt, 30))
        return nominal * self._random.uniform(0.8, 1.2) / 1000


async def retrying(
    operation: Callable[[], Awaitable[Result]], *, deadline: Deadline, backoff: Backoff, what: str
) -> Result:
    """The result of ``operation``, called again after each retriable error.

    ``what`` names the operation for people. Raises the operation's own error when it is not retriable, and
    ``RequestTimedOutError`` with the last error as its cause when the deadline leaves no room for another attempt. An
    attempt that is still under way at the deadline is cancelled.
    """
    attempt = 0
    last: Exception | None = None
    told = ""  # what was wrong, by the last attempt that found out more than that no answer came
    while True:
        try:
            async with asyncio.timeout(deadline.remaining_s() + _GRACE_S) as bound:
                return await operation()
        except TimeoutError as error:
            if not bound.expired():
                raise  # the operation's own
            raise _timed_out(what, deadline, attempt, "the last attempt was still under way", last, told) from (
                last or error
            )
        except CohortError as error:
            if not error.retriable:
                raise
            last = error
            if not isinstance(error, RequestTimedOutError):
                told = f"{type(error).__name__}: {error}"
        delay_s = backoff.delay_s(attempt)
        if deadline.remaining_s() <= delay_s:
            raise _timed_out(what, deadline, attempt, "", last, told) from last
        attempt += 1
        await asyncio.sleep(delay_s)


def _timed_out(
    what: str, deadline: Deadline, attempt: int, state: str, last: Exception | None, told: str
) -> RequestTimedOutError:
    error = f"the last error was {type(last).__name__}: {last}" if last is not None else ""
    before = f"the error before was {told}" if told and isinstance(last, RequestTimedOutError) else ""
    return RequestTimedOutError(
        f"{what} did not succeed within {deadline.timeout_ms:.0f} ms and {attempt + 1} "
        f"{'attempt' if attempt == 0 else 'attempts'}; {'; '.join(filter(None, (state, error, before)))}"
    )
