"""A daemon as a process whose connections to others can be led through proxies: ``python -m tests.cluster.node ROUTES ...``.

``ROUTES`` is JSON: from ``"host:port"``, as the daemon knows it, to the port of the proxy on 127.0.0.1. All else is
``coordinator.__main__``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from coordinator import __main__ as program


def _routed(make: type[asyncio.AbstractEventLoop], routes: dict[str, int]) -> Callable[[], asyncio.AbstractEventLoop]:
    class Routed(make):  # type: ignore[misc, valid-type]
        async def create_connection(
            self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
        ) -> Any:
            through = routes.get(f"{host}:{port}")
            if through is not None:
                host, port = "127.0.0.1", through
            return await super().create_connection(protocol_factory, host, port, **options)

    return Routed


def main() -> int:
    """Runs the daemon."""
    routes, arguments = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        import uvloop
    except ImportError:
        made = _routed(asyncio.SelectorEventLoop, routes)
    else:
        made = _routed(uvloop.Loop, routes)
    program._loop_factory = lambda: made
    return program.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
