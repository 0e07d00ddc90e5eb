"""``etcd://h:p,h:p/NAME``: where metadata lies. Imports nothing that needs the extra ``etcd`` before a store is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from coordinator.metadata.etcd.rpc import Access, Pace
from coordinator.metadata.etcd.store import EtcdStore

PORT: Final = 2379


class EtcdUrlError(ValueError):
    """A URL that names no etcd, or no cluster in it."""


class ExtraMissingError(Exception):
    """The extra ``etcd`` is not installed."""


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """The members' addresses, the name of the cluster, and whether connections are encrypted."""

    addresses: tuple[tuple[str, int], ...]
    name: str
    tls: bool


def parse(url: str) -> EtcdUrl:
    """Takes a URL apart. Raises ``EtcdUrlError``, which says what is wrong with it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("etcd", "etcds"):
        raise EtcdUrlError(f"{url!r} does not begin with etcd:// or etcds://")
    members, _, name = rest.partition("/")
    name = unquote(name)
    if not name or "/" in name or not name.isprintable():
        raise EtcdUrlError(f"{url!r} names no cluster: it ends with one, as in etcd://127.0.0.1:2379/orders")
    if "@" in members:
        raise EtcdUrlError("user and password do not belong into the URL, which is logged: set metadata_user")
    return EtcdUrl(tuple(_address(url, member) for member in members.split(",")), name, scheme == "etcds")


def _address(url: str, member: str) -> tuple[str, int]:
    host, separator, port = member.rpartition(":")
    if not separator or port.endswith("]"):
        host, port = member, str(PORT)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or (":" in bare) != host.startswith("[") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EtcdUrlError(f"{url!r}: {member!r} is not HOST:PORT")
    return bare, int(port)


async def open_etcd(
    url: str,
    new_cluster_id: Callable[[], str],
    on_fatal: Callable[[str], None],
    *,
    access: Access | None = None,
    timeout_ms: int = 30_000,
) -> EtcdStore:
    """The store at a URL; see ``EtcdStore.open``.

    Whether connections are encrypted says the URL, not ``access``. Raises ``EtcdUrlError``, ``ExtraMissingError``
    and ``MetadataUnavailableError``.
    """
    found = parse(url)
    try:
        from coordinator.metadata.etcd.calls import GrpcEtcd
    except ImportError as error:
        raise ExtraMissingError(
            f"metadata in {url} needs grpcio and protobuf ({error}): pip install 'aiocohort[etcd]'"
        ) from error

    etcd = GrpcEtcd(found.addresses, replace(access or Access(), tls=found.tls), Pace())
    try:
        return await EtcdStore.open(etcd, found.name, new_cluster_id, on_fatal, timeout_ms=timeout_ms)
    except BaseException:
        await etcd.close()
        raise
