"""Bare requests that the benchmarks send beside their load."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

from client.errors import error_for
from client.transport.connection import Connection
from client.transport.metadata import parse_bootstrap_servers
from protocol.errors import RETRIABLE, ErrorCode
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse

TIMEOUT_S: Final = 60.0
_AGAIN_S: Final = 0.005


async def connect(address: str) -> Connection:
    """A connection of its own. Raises ``ConnectionLostError``."""
    ((host, port),) = parse_bootstrap_servers(address)
    return await Connection.open(host, port, client_id="bench", timeout_s=TIMEOUT_S)


async def find_coordinator(connection: Connection, group_id: str) -> None:
    """Asks for a group's coordinator, as every client does first; again while it is not ready, within ``TIMEOUT_S``."""
    deadline = perf_counter() + TIMEOUT_S
    while True:
        found = await connection.request(FindCoordinatorRequest(group_id), FindCoordinatorResponse, timeout_s=TIMEOUT_S)
        if found.error_code == ErrorCode.NONE:
            return
        if found.error_code not in RETRIABLE or perf_counter() > deadline:
            raise error_for(found.error_code, found.error_message)
        await asyncio.sleep(_AGAIN_S)


def check(error_code: int, message: str) -> None:
    """Raises the error of an answer, if it is one."""
    if error_code != ErrorCode.NONE:
        raise error_for(error_code, message)
