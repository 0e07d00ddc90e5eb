"""The floor of request rates: a server that sends every byte back and does nothing else. A process of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from client.cli.session import run


class Echo(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._transport is not None:
            self._transport.write(data)


async def serve() -> int:
    """Serves on a free port of this machine until it is interrupted."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"listening on {host}:{port}", file=sys.stderr, flush=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(run(serve()))
