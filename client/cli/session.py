"""Runs one command on an event loop: signals, reachability of the daemon, log lines of the library."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any, Final, TextIO, cast

import structlog

from client.cli.failure import CommandError, Interrupted
from client.cli.progress import BesideProgress
from client.errors import ConnectionLostError, NotADaemonError
from client.running import Stopped, loop_factory, until_signal
from client.transport.connection import Connection
from client.transport.metadata import Address, parse_bootstrap_servers

_GRACE_S: Final = 2.0
_PAUSE_S: Final = 0.1
_CONNECT_TIMEOUT_S: Final = 4.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: Coroutine[Any, Any, int]) -> int:
    """The exit status of ``command``, run to its end or cancelled by the first SIGINT, SIGTERM or SIGHUP.

    A command that is cancelled may finish what it must (leave its group, report what was done) and return a status of
    its own; otherwise ``Interrupted`` is raised. A second signal acts as if this program had not heard of signals.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        outcome = runner.run(until_signal(command, _SIGNALS))
    if isinstance(outcome, Stopped):
        raise Interrupted(f"interrupted by {outcome.number.name}")
    return outcome


async def require_daemon(bootstrap: str) -> None:
    """Raises ``CommandError`` unless one of the servers answers as a daemon does within about ``_GRACE_S`` seconds.

    The library would go on trying until its deadline, which suits a service; a person at a terminal wants to know soon.
    The grace is for a daemon that was started a moment ago, on the line above.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _GRACE_S
    servers = parse_bootstrap_servers(bootstrap)
    while True:
        failures = [
            failure for failure in await asyncio.gather(*(_try_server(*server) for server in servers)) if failure
        ]
        if len(failures) < len(servers):
            return
        if loop.time() >= end_s or all(isinstance(failure, NotADaemonError) for failure in failures):
            break
        await asyncio.sleep(_PAUSE_S)
    raise CommandError(
        f"no daemon answers at {', '.join(map(_shown, servers))}: {'; '.join(map(_reason, failures))}; "
        "start one with 'cohortd', or name another one with -b HOST:PORT or COHORT_BOOTSTRAP"
    )


async def _try_server(host: str, port: int) -> ConnectionLostError | None:
    """Why no daemon answers there, or None when one does."""
    try:
        connection = await Connection.open(host, port, client_id="cohort", timeout_s=_CONNECT_TIMEOUT_S)
        await connection.greet(timeout_s=_CONNECT_TIMEOUT_S)
    except ConnectionLostError as error:
        return error
    connection.close()
    return None


def _shown(server: Address) -> str:
    host, port = server
    return f"{host}:{port}"


def _reason(failure: ConnectionLostError) -> str:
    cause = failure.__cause__
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) and str(cause) else str(failure)


def configure_logging() -> None:
    """Sends the library's warnings to stderr: stdout belongs to results."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", BesideProgress())),
    )
