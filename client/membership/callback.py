"""Calling the program's own code from within a membership."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from client.errors import CohortError


async def call_program(what: str, callback: Callable[[], Awaitable[None] | None]) -> Exception | None:
    """Runs ``callback``, plain or coroutine; returns what it raised, so that the rebalance can go on.

    A ``CancelledError`` that the callback lets out is its own error, usually of a task it has cancelled and awaited, unless
    the calling task is being cancelled: that passes through.
    """
    try:
        result = callback()
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        error = CohortError(
            f"{what} ended with CancelledError: catch it where you await a task that you have cancelled, for example with "
            "asyncio.gather(task, return_exceptions=True)"
        )
        error.__cause__ = cancelled
        return error
    except Exception as error:
        error.add_note(f"raised by {what}")
        return error
    return None
