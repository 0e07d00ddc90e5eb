"""Where the daemon's log lines go, and how they look.

As a process (``configure``) it writes one event a line to stderr. Inside another program its lines go where that program has
configured structlog to put them, or else into ``logging`` under ``cohort.coordinator``: it does not print there. The client
has the same rule in ``client.log``; the two packages share no code on purpose.

Logging never raises, and in the daemon's process it never waits either (``log_writer``): a log that is on a full disk or
whose reader has stopped is no reason to stop answering.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final, Literal

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

LOGGER_NAME: Final = "cohort.coordinator"

_LEVELS: Final = logging.getLevelNamesMapping()


def get_logger() -> FilteringBoundLogger:
    """The daemon's logger; events are names in snake_case, fields are keywords (docs/operate.md lists them)."""
    logger: FilteringBoundLogger = structlog.wrap_logger(
        logging.getLogger(LOGGER_NAME),
        processors=[_route],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        cache_logger_on_first_use=False,
    )
    return logger


def _route(logger: logging.Logger, method: str, event: EventDict) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not logger.isEnabledFor(_LEVELS.get(method.upper(), logging.ERROR)) and logger.level != logging.NOTSET:
        raise structlog.DropEvent  # a level of this logger's own holds wherever its lines go
    if structlog.is_configured():
        _UNTOLD.tell(method, event)
        raise structlog.DropEvent
    exc_info = event.pop("exc_info", None)
    sentence = str(event.pop("event"))
    return (("%s", sentence + "".join(f" {name}={value!r}" for name, value in event.items())), {"exc_info": exc_info})


class Untold:
    """Hands events to the structlog of the program, whose processors may raise, and counts those that were lost by it."""

    def __init__(self) -> None:
        self._lost = 0
        self._last = ""

    def tell(self, method: str, event: EventDict) -> None:
        """Logs ``event``, or remembers that it could not; says with the next event how many were lost, and why."""
        lost = {"events_lost_before": self._lost, "last_error": self._last} if self._lost else {}
        try:
            getattr(structlog.get_logger(), method)(event.pop("event"), **event, **lost)
        except Exception as error:
            self._lost += 1
            self._last = repr(error)
        else:
            self._lost = 0


_UNTOLD: Final = Untold()


class StandardError:
    """Prints to whatever ``sys.stderr`` is at the moment; one line an event."""

    def msg(self, line: str) -> None:
        """Prints a line; every level comes here, filtered before."""
        print(line, file=sys.stderr)

    log = debug = info = warn = warning = error = critical = fatal = exception = failure = msg


class RateLimitedLog:
    """Warnings about connections, at a bounded rate: ``burst`` of them (20) at once, then one each ``pause_s`` (1).

    What a broken or hostile client causes must not fill a disk. The others are counted, and the next line says how many they
    were.
    """

    def __init__(self, time: Callable[[], float], burst: int = 20, pause_s: float = 1.0) -> None:
        self._time = time
        self._log = get_logger()
        self._burst = burst
        self._pause_s = pause_s
        self._left = float(burst)
        self._at_s: float | None = None
        self._untold = 0

    def tell(self, what: str, **fields: object) -> None:
        """Logs a warning, or counts it."""
        if not self._may_tell():
            self._untold += 1
            return
        untold, self._untold = self._untold, 0
        self._log.warning(what, **fields, **({"others_not_logged": untold} if untold else {}))

    def sum_up(self) -> None:
        """Tells what was only counted, if nothing has come since that could have told it."""
        if self._untold and self._may_tell():
            untold, self._untold = self._untold, 0
            self._log.warning("connections_not_logged", connections=untold)

    def _may_tell(self) -> bool:
        now_s = self._time()
        if self._at_s is not None:
            self._left = min(self._burst, self._left + (now_s - self._at_s) / self._pause_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


def set_level(log_level: str | int) -> int:
    """Sets the least severe level that the coordinator logs in this process; returns the one before."""
    logger = logging.getLogger(LOGGER_NAME)
    before = logger.level
    logger.setLevel(log_level.upper() if isinstance(log_level, str) else log_level)
    return before


def configure(log_format: Literal["console", "json"], log_level: str) -> None:
    """Sets up structlog for a process that is the daemon. ``log_level`` is the least severe level shown."""
    renderer: structlog.types.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    set_level(log_level)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=lambda *_: StandardError(),
        cache_logger_on_first_use=False,
    )
