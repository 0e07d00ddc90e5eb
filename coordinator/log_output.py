"""How the daemon's log lines look and where they go: to stderr, one event a line."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(log_format: Literal["console", "json"], log_level: str) -> None:
    """Sets up structlog for the process. ``log_level`` is the least severe level shown."""
    renderer: structlog.types.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[log_level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
