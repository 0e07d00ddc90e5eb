"""URLs of metadata: ``etcd://h:p,h:p/NAME``, ``etcds://`` with TLS, and ``cohort://h:p/NAME``; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

ETCD: Final = ("etcd", "etcds")
SERVED: Final = "cohort"
_ETCD_PORT: Final = 2379


class MetadataUrlError(ValueError):
    """A URL that names no store, or no cluster in it."""


@dataclass(frozen=True, slots=True)
class MetadataUrl:
    """The addresses of a store, and the name of the cluster."""

    scheme: str
    addresses: tuple[tuple[str, int], ...]
    name: str

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.scheme == "etcds"


def parse(url: str) -> MetadataUrl:
    """Takes a URL apart. Raises ``MetadataUrlError``, which says what is wrong with it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in (*ETCD, SERVED):
        raise MetadataUrlError(f"{url!r} does not begin with etcd://, etcds:// or cohort://")
    members, _, name = rest.partition("/")
    name = unquote(name)
    if not name or "/" in name or not name.isprintable():
        raise MetadataUrlError(f"{url!r} names no cluster: it ends with one, as in etcd://127.0.0.1:2379/orders")
    if "@" in members:
        raise MetadataUrlError("user and password do not belong into the URL, which is logged: set metadata_user")
    if scheme == SERVED:
        return MetadataUrl(scheme, (address(members),), name)
    return MetadataUrl(scheme, tuple(address(member, _ETCD_PORT) for member in members.split(",")), name)


def address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Host and port. Raises ``MetadataUrlError``."""
    host, separator, port = text.rpartition(":")
    if default_port is not None and (not separator or port.endswith("]")):
        host, port = text, str(default_port)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or (":" in bare) != host.startswith("[") or not port.isdecimal() or not int(port) < 65536:
        raise MetadataUrlError(f"{text!r} is not HOST:PORT")
    return bare, int(port)
