"""The HTTP port of a daemon, put together."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from coordinator.config import ConfigurationError
from coordinator.metadata import urls
from coordinator.metrics.collecting import collect
from coordinator.metrics.sources import Sources
from coordinator.server.node import Node
from coordinator.web.health import Readiness
from coordinator.web.lag_history import LagHistory
from coordinator.web.view import PageSources

if TYPE_CHECKING:
    from coordinator.web.server import WebServer

_LIBRARIES: Final = {"aiohttp": "aiohttp", "prometheus_client": "prometheus-client"}


def check_web_extra() -> None:
    """Raises ``ConfigurationError`` where the libraries of the extra ``web`` are not installed."""
    missing = [name for module, name in _LIBRARIES.items() if find_spec(module) is None]
    if missing:
        raise ConfigurationError(f"http is set, and it needs {' and '.join(missing)}: pip install 'aiocohort[web]'")


def web_server(sources: Sources, readiness: Readiness, node: Node) -> WebServer:
    """The server; ``start`` it. ``check_web_extra`` comes first."""
    from coordinator.web.server import WebServer  # with libraries of the extra

    history = sources.groups.rebalance_counts.history
    assert history is not None, "rebalances are noted where the page is served"
    settings = node.settings
    page = PageSources(
        node,
        sources.listener,
        sources.version,
        node.wall_ms(),
        history,
        LagHistory(sources.groups, sources.logs),
        sources.is_clustered,
    )
    names = (urls.address(settings.http)[0], settings.advertised_host, *settings.http_hosts.split(","))
    return WebServer(partial(collect, sources), readiness, page, names)
