"""What a membership calls: the participant that holds the share, and the program's own callbacks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

from client.errors import CohortError
from client.group.session import Generation


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


State = Literal["unjoined", "joining", "stable", "rebalancing", "fenced", "closed"]


class Participant(Protocol):
    """What holds a share. Called on the user's loop, one call at a time; it keeps its own errors."""

    @property
    def cooperative(self) -> bool:
        """Whether it holds its share while a new generation forms, and gives up afterwards what it is not given again.

        It may change from one rebalance to the next and is asked after ``prepare``. A participant that is not gives up
        everything in ``prepare`` (KIP-429 calls that eager).
        """
        ...

    def protocols(self) -> Sequence[tuple[str, bytes]]:
        """Names and metadata to join with, in order of preference; asked before each join."""
        ...

    def standing_protocols(self) -> Sequence[tuple[str, bytes]] | None:
        """What to join with when the program cannot be asked: for what is held now and all of it.

        Called in the background while the program's loop is blocked. None when ``prepare`` has to come first.
        """
        ...

    async def prepare(self, reason: str) -> None:
        """A new generation forms: gives up what must not be held meanwhile, while it is still this member's."""
        ...

    async def revoke(self, reason: str) -> None:
        """Gives up the whole share while it is still this member's."""
        ...

    async def lose(self, reason: str) -> None:
        """The share is gone already. Nothing to do when none is held."""
        ...

    async def accept(self, generation: Generation) -> str | None:
        """Takes the share of a new generation; a cooperative one gives up first what is not in it.

        Returns the reason to join again at once, when others wait for what was given up.
        """
        ...
