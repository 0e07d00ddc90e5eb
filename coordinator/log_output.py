"""Where the daemon's log lines go, and how they look.

As a process (``configure``) it writes one event a line to stderr. Inside another program its lines go where that program has
configured structlog to put them, or else into ``logging`` under ``cohort.coordinator``: a guest does not print. The client
has the same rule in ``client.log``; the two packages share no code on purpose.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, Literal

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

LOGGER_NAME: Final = "cohort.coordinator"

_LEVELS: Final = logging.getLevelNamesMapping()


def get_logger() -> FilteringBoundLogger:
    """The daemon's logger; events are sentences, fields are keywords."""
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
        getattr(structlog.get_logger(), method)(event.pop("event"), **event)
        raise structlog.DropEvent
    exc_info = event.pop("exc_info", None)
    sentence = str(event.pop("event"))
    return (("%s", sentence + "".join(f" {name}={value!r}" for name, value in event.items())), {"exc_info": exc_info})


class StandardError:
    """Prints to whatever ``sys.stderr`` is at the moment; one line an event, flushed."""

    def msg(self, line: str) -> None:
        """Prints a line; every level comes here, filtered before."""
        print(line, file=sys.stderr, flush=True)

    log = debug = info = warn = warning = error = critical = fatal = exception = failure = msg


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
