"""A TCP proxy between clients and the daemon that can be told to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final, Literal

Direction = Literal["up", "down"]

_CHUNK_BYTES: Final = 65536
_CONNECT_TIMEOUT_S: Final = 2.0


class Proxy:
    """Forwards ``port`` to ``upstream_port``, both on 127.0.0.1.

    ``delay_s`` holds each chunk back so long. ``stall`` holds one direction until ``release``: what was sent meanwhile
    arrives late, even from a client that has gone, as it does in a network that queues. ``refuse`` closes everything and
    the port with it until ``accept``.
    """

    def __init__(self, port: int, upstream_port: int) -> None:
        self.port = port
        self.upstream_port = upstream_port
        self.delay_s = 0.0
        self._open: dict[Direction, asyncio.Event] = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def accept(self) -> None:
        """Listens (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.release()

    async def refuse(self) -> None:
        """Resets every connection and lets nobody in until ``accept``."""
        server, self._server = self._server, None
        if server is not None:
            # A server that is closed in the very turn of the loop that accepts a connection leaves that one open for ever.
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            server.close()
        self.reset(1.0)

    def stall(self, *directions: Direction) -> None:
        """Nothing passes in these directions until ``release``."""
        for direction in directions:
            self._open[direction].clear()

    def release(self) -> None:
        """Everything passes again."""
        for event in self._open.values():
            event.set()

    def reset(self, share: float) -> int:
        """Resets this share of the connections, the oldest first; returns how many."""
        victims = list(self._connections.items())
        victims = victims[: max(1, round(share * len(victims)))]
        for task, writer in victims:
            connection: socket.socket | None = writer.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):  # closed meanwhile
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            task.cancel()
        return len(victims)

    async def close(self) -> None:
        """Ends all, also a connection that is only being accepted."""
        for _ in range(3):
            await self.refuse()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:  # it came while the port was closed
            writer.transport.abort()
            return
        self._connections[task] = writer
        upstream: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump("up", reader, upstream))
                group.create_task(self._pump("down", upstream_reader, writer))
        except (OSError, TimeoutError, asyncio.CancelledError):
            # A cancelled connection is one that was reset; nobody else cancels these tasks.
            writer.transport.abort()
        finally:
            del self._connections[task]
            for each in (writer, upstream):
                if each is not None:
                    each.close()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open[direction].wait()
                writer.write(chunk)
                await writer.drain()
        except OSError:
            writer.transport.abort()
            return
        await self._open[direction].wait()
        writer.close()
