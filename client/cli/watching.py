"""A view that is drawn again and again until Ctrl-C: ``--watch``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from client.cli.failure import CommandError
from client.cli.output import Output
from client.errors import CohortError

DEFAULT_INTERVAL_S: Final = 2.0
_HOME_AND_CLEAR: Final = "\033[H\033[J"


async def watch(show: Callable[[Output], Awaitable[None]], output: Output, interval_s: float) -> int:
    """Shows a view at once and then every ``interval_s`` seconds; SIGINT or SIGTERM end it, which is no failure.

    On a terminal each view takes the place of the one before; elsewhere views follow one another, set apart by an empty
    line (with JSON: one a line). A daemon that cannot be reached for a while is told in the view's place, and asked again;
    the first view must succeed, as it does without ``--watch``.
    """
    redraws = sys.stdout.isatty() and not output.as_json
    shown = 0
    try:
        while True:
            if redraws:
                sys.stdout.write(_HOME_AND_CLEAR)
            elif shown and not output.as_json:
                output.line()
            try:
                await show(output)
            except (CohortError, CommandError) as error:
                if not shown:
                    raise
                output.note(f"cohort: {error}; asked again in {interval_s:g} s")
            shown += 1
            await asyncio.sleep(interval_s)
    except asyncio.CancelledError:
        return 0
