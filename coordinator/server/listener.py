"""The listening socket and the connections that came through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.log_output import get_logger
from coordinator.server.connection import Call, Connection

log = get_logger()

_WRITE_BUFFER_BYTES = 1024 * 1024


class Listener:
    """Accepts connections and passes each request to ``handle``."""

    def __init__(
        self, handle: Callable[[Call], None], *, max_connections: int, max_frame_bytes: int, max_in_flight: int
    ) -> None:
        self.handle = handle
        self.max_frame_bytes = max_frame_bytes
        self.max_in_flight = max_in_flight
        self._max_connections = max_connections
        self._connections: dict[Connection, None] = {}
        self._server: asyncio.Server | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens; returns the host and port taken. Raises ``OSError`` when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def admit(self, connection: Connection) -> bool:
        """Counts a new connection; False when there are too many, which closes it."""
        if len(self._connections) >= self._max_connections:
            log.warning("connection refused: too many", peer=connection.peer, max_connections=self._max_connections)
            return False
        self._connections[connection] = None
        self._all_closed.clear()
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        if not self._connections:
            self._all_closed.set()

    def stop_accepting(self) -> None:
        """Takes no further connections."""
        if self._server is not None:
            self._server.close()

    async def close(self, timeout_s: float) -> None:
        """Closes every connection once its answers are sent, or after ``timeout_s`` seconds in any case."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        except TimeoutError:
            log.warning("clients did not take their last answers in time", connections=len(self._connections))
            self.abort()

    def abort(self) -> None:
        """Drops every connection at once."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort()
