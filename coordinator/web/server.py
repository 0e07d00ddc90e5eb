"""The HTTP server: ``/metrics``, ``/healthz``, ``/readyz``, and the page.

It is bounded, as the ports for clients are: so many connections, of one request each, which are closed after a time whatever
they do; small heads and bodies; one collection at a time, which all who ask meanwhile share. Streams of events last longer,
and have bounds of their own (``streams.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from coordinator.log_output import get_logger
from coordinator.metrics.snapshot import Snapshot
from coordinator.web.api import PageApi
from coordinator.web.exposition import exposed
from coordinator.web.guard import HEADERS
from coordinator.web.health import Readiness
from coordinator.web.view import PageSources

log = get_logger()

MAX_CONNECTIONS: Final = 32
CONNECTION_S: Final = 30.0
"""How long a connection may last, its request and the answer included."""
_SWEEP_S: Final = 1.0
_MAX_HEAD_LINE_BYTES: Final = 8190
_MAX_BODY_BYTES: Final = 256 * 1024
_CLOSE_S: Final = 2.0


class _TurnedAway(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class WebServer:
    """``collect`` makes a snapshot of all metrics; ``names`` are those by which browsers reach the page."""

    def __init__(
        self,
        collect: Callable[[], Awaitable[Snapshot]],
        readiness: Readiness,
        sources: PageSources,
        names: tuple[str, ...],
    ) -> None:
        self._collect = collect
        self._readiness = readiness
        self._collecting: asyncio.Task[Snapshot] | None = None
        self._since_s: dict[Any, float] = {}
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._alive)
        application.router.add_get("/readyz", self._ready)
        self._page = PageApi(sources, names, self._keep_open)
        self._page.add_to(application.router)
        application.on_response_prepare.append(_one_request)
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            max_line_size=_MAX_HEAD_LINE_BYTES,
            max_field_size=_MAX_HEAD_LINE_BYTES,
            keepalive_timeout=0,
            shutdown_timeout=_CLOSE_S,
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens; returns the address taken. Raises ``OSError``."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, host, port, backlog=MAX_CONNECTIONS)
        self._sweeping = asyncio.create_task(self._sweep(), name="cohort-http-connections")
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def close(self) -> None:
        """Ends all connections, after ``_CLOSE_S`` at the latest."""
        if self._server is not None:
            self._server.close()
        for task in (self._sweeping, self._collecting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._readiness.close()
        await self._page.close()
        await self._runner.cleanup()

    def _connected(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None or len(server.connections) >= MAX_CONNECTIONS:
            return _TurnedAway()
        connection: asyncio.BaseProtocol = server()
        self._since_s[connection] = asyncio.get_running_loop().time()
        return connection

    def _keep_open(self, request: web.Request) -> None:
        self._since_s.pop(request.protocol, None)

    async def _sweep(self) -> None:
        """Ends connections that last too long: of clients that send or read slowly, or nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            for connection, since_s in tuple(self._since_s.items()):
                if connection.transport is None:
                    del self._since_s[connection]
                elif loop.time() - since_s >= CONNECTION_S:
                    connection.transport.abort()

    async def _metrics(self, request: web.Request) -> web.Response:
        collecting = self._collecting
        if collecting is None or collecting.done():
            collecting = self._collecting = asyncio.create_task(_whole(self._collect()), name="cohort-metrics")
        snapshot = await asyncio.shield(collecting)
        text, content_type = await asyncio.to_thread(exposed, snapshot, request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _alive(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})  # that it is answered says that the loop turns

    async def _ready(self, request: web.Request) -> web.Response:
        reasons = await self._readiness.reasons()
        status = "not ready" if reasons else "ready"
        return web.json_response({"status": status, "reasons": reasons}, status=503 if reasons else 200)


async def _whole(collecting: Awaitable[Snapshot]) -> Snapshot:
    try:
        return await collecting
    except Exception:
        log.exception("metrics_not_collected")
        raise


async def _one_request(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"
    response.headers["Cache-Control"] = "no-store"
    for name, value in HEADERS.items():  # of what no view answers too: a path or a method that there is not
        response.headers.setdefault(name, value)
