"""What the page may do in a browser, and which browsers may ask: headers, names of hosts, and where a change comes from.

The port has no users. So a stranger's page that is open in a browser from which the port is reached must neither read nor
change anything of what the page shows. ``/metrics`` and ``/readyz`` answer whatever the ``Host``, as scrapers ask by names
of their own.

- DNS rebinding makes a stranger's name point to this address. The ``Host`` header then has that name, and is refused: taken
  are addresses, ``localhost``, the host of the setting ``http``, ``advertised_host``, and ``http_hosts``.
- Another origin gets no CORS header, so its scripts cannot read what is answered.
- What changes something is asked by POST with JSON and an ``Origin`` that is this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from coordinator.web.view import ViewError

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""No request to another host, no script or style in the markup, and none that is made of text."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
}


_WITH_PORT: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]*)?")
"""What does not have this form is no name or address that is known, whatever it begins with."""


class HostGuard:
    """Knows the names by which this port is reached, beside addresses and ``localhost``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {"localhost", *(name.strip().rstrip(".").casefold() for name in names)} - {""}

    def check(self, host: str) -> None:
        """Raises ``ViewError`` for a ``Host`` header with a name that is not known."""
        name = _name_of(host)
        if name in self._names:
            return
        try:
            if "%" in name:
                raise ValueError("a zone names no address that a browser asks by")
            ip_address(name)
        except ValueError:
            raise ViewError(
                421,
                f"this port is not known as {name[:100]!r}: ask by address, or have the daemon know the name (--http-hosts)",
            ) from None


def _name_of(host: str) -> str:
    """The host without its port and brackets, as it is compared."""
    name = host.strip()
    if match := _WITH_PORT.fullmatch(name):
        name = match["address"] or match["name"]
    return name.rstrip(".").casefold()


def check_change(headers: Mapping[str, str], allowed: bool) -> None:
    """Raises ``ViewError`` unless a change may be made and is asked for by this origin's own page."""
    if not allowed:
        raise ViewError(403, "the page changes nothing: start the daemon with --http-admin yes")
    origin, host = headers.get("Origin", ""), headers.get("Host", "")
    site = headers.get("Sec-Fetch-Site", "same-origin")
    scheme, _, rest = origin.partition("://")
    if scheme not in ("http", "https") or rest.casefold() != host.casefold() or site != "same-origin":
        raise ViewError(403, "a change is asked for by this page itself; from programs, use the command cohort")
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise ViewError(415, "a change is asked for with Content-Type: application/json")
