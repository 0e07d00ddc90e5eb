"""The page and what it reads: its files, a JSON answer for each view, and the same views as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web

from coordinator.log_output import get_logger
from coordinator.web import cluster_views, group_views, offset_reset, record_views
from coordinator.web.guard import HEADERS, HostGuard, check_change
from coordinator.web.page_files import page_files
from coordinator.web.streams import Look, Streams, send_changes
from coordinator.web.view import Pace, PageSources, Query, View, ViewError

log = get_logger()

VIEWS: Final[Mapping[str, View]] = {
    "cluster": cluster_views.cluster,
    "groups": group_views.groups,
    "group": group_views.group,
    "topics": cluster_views.topics,
    "topic": cluster_views.topic,
    "transactions": cluster_views.transactions,
    "transaction": cluster_views.transaction,
    "records": record_views.records,
    "reset": offset_reset.plan,
}
"""By the last part of ``/api/NAME``, which is also ``view=NAME`` of ``/api/events``."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageApi:
    """Adds its routes to an application. ``keep_open`` is told of a request whose connection may last."""

    def __init__(self, sources: PageSources, names: tuple[str, ...], keep_open: Callable[[web.Request], None]) -> None:
        self._sources = sources
        self._guard = HostGuard(names)
        self._keep_open = keep_open
        self._files = page_files()
        self._streams = Streams()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """The page, its files, and what it reads."""
        router.add_get("/", self._guarded(self._index))
        router.add_get("/page/{name}", self._guarded(self._file))
        router.add_get("/api/events", self._guarded(self._events), allow_head=False)
        router.add_get("/api/{view}", self._guarded(self._answer))
        router.add_post("/api/reset", self._guarded(self._reset))

    async def close(self) -> None:
        """Ends the streams."""
        await self._streams.close()
        await self._sources.lags.close()

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                self._guard.check(request.headers.get("Host", ""))
                response = await handler(request)
            except ViewError as error:
                response = _refusal(error)
            except web.HTTPException as error:  # such as a body that is too large
                response = _refusal(ViewError(error.status, error.reason))
            except ConnectionError:
                raise  # the browser went while its request arrived
            except Exception:
                log.exception("page_view_failed", path=request.path)
                response = _refusal(ViewError(500, "the daemon failed to answer this; its log has the cause"))
            if not response.prepared:
                response.headers.update(HEADERS)
            return response

        return guarded

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._served("index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._served(request.match_info["name"])

    def _served(self, name: str) -> web.StreamResponse:
        found = self._files.get(name)
        if found is None:
            raise ViewError(404, "there is no such file")
        return web.Response(body=found.content, headers={"Content-Type": found.content_type})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        view = _view(request.match_info["view"])
        return _json(await view(self._sources, Query(request.query), Pace()))

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        check_change(request.headers, self._sources.node.settings.http_admin == "yes")
        try:
            body = json.loads(await request.read())
            json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is JSON and names nothing
        except (ValueError, RecursionError, web.RequestPayloadError) as error:
            raise ViewError(400, f"the body is no JSON: {error}") from error
        return _json(await offset_reset.execute(self._sources, body))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        query = Query(request.query)
        view = _view(query.required("view"))
        look: Look = partial(view, self._sources, query)
        if view is record_views.records:
            look = record_views.Follower(self._sources, query).look
        news = partial(self._sources.history.state_of, query.text("group"))
        with self._streams.place():
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            self._keep_open(request)
            await response.prepare(request)
            try:
                await send_changes(
                    response, look, lambda: request.transport is None or request.transport.is_closing(), news
                )
            except Exception:
                log.exception("page_view_failed", path=request.path_qs)  # the stream ends here
            transport = request.transport
            if transport is not None and transport.get_write_buffer_size():
                transport.abort()  # nothing bounds how long a browser that does not read would keep the connection
        return response


def _view(name: str) -> View:
    view = VIEWS.get(name)
    if view is None:
        raise ViewError(404, f"there is no view {name[:60]!r}; there are {', '.join(VIEWS)}")
    return view


def _json(value: Any, status: int = 200) -> web.Response:
    body = json.dumps(value, separators=(",", ":")).encode()
    return web.Response(body=body, status=status, headers={"Content-Type": "application/json"})


def _refusal(error: ViewError) -> web.Response:
    return _json({"error": str(error)}, error.status)
