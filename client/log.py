"""Where the client's log lines go: into structlog if the program has configured it, otherwise into ``logging``.

A library must not print. Without any configuration, warnings and errors reach stderr by ``logging``'s own last resort, under
the name ``cohort.client``, with their fields as ``key=value``.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

LOGGER_NAME: Final = "cohort.client"

_LEVELS: Final = logging.getLevelNamesMapping()


def get_logger() -> FilteringBoundLogger:
    """The client's logger; events are snake_case names, all else is in fields."""
    logger: FilteringBoundLogger = structlog.wrap_logger(
        logging.getLogger(LOGGER_NAME),
        processors=[_route],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        cache_logger_on_first_use=False,
    )
    return logger


def _route(logger: logging.Logger, method: str, event: EventDict) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Decides at each event, since the program may configure structlog after it has imported this library."""
    if structlog.is_configured():
        getattr(structlog.get_logger(), method)(event.pop("event"), **event)
        raise structlog.DropEvent
    if not logger.isEnabledFor(_LEVELS.get(method.upper(), logging.ERROR)):
        raise structlog.DropEvent
    exc_info = event.pop("exc_info", None)
    sentence = str(event.pop("event"))
    fields = "".join(f" {name}={value!r}" for name, value in event.items())
    return (("%s", sentence + fields), {"exc_info": exc_info})
