"""Opens the metadata store that a URL names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.metadata.etcd.rpc import Access, Pace
from coordinator.metadata.etcd.store import EtcdStore
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.served.store import ServedStore
from coordinator.metadata.store import MetadataStore
from coordinator.metadata.urls import SERVED, MetadataUrl, parse

LOCAL: Final = "local"


class ExtraMissingError(Exception):
    """What a store needs is not installed."""


async def open_store(
    url: str,
    disk: Disk,
    new_cluster_id: Callable[[], str],
    on_fatal: Callable[[str], None],
    *,
    access: Access | None = None,
    timeout_ms: int = 30_000,
) -> MetadataStore:
    """The store at a URL, or with ``local`` the one in the data directory.

    ``new_cluster_id`` gives the identity of a cluster that is made by this; ``on_fatal`` is called with the reason when the
    store cannot be followed any more, or it is unknown what is on disk: it must end the node. ``access`` says how members of
    etcd are reached; whether connections are encrypted says the URL.

    Raises ``MetadataUrlError``, ``ExtraMissingError``, ``MetadataUnavailableError``, and for the local one
    ``MetadataDamagedError`` and ``OSError``.
    """
    if url == LOCAL:
        return await LocalMetadataStore.open(disk, new_cluster_id, on_fatal)
    found = parse(url)
    if found.scheme == SERVED:
        ((host, port),) = found.addresses
        return await ServedStore.open(host, port, found.name, on_fatal, timeout_ms=timeout_ms)
    return await open_etcd(found, new_cluster_id, on_fatal, access=access, timeout_ms=timeout_ms)


async def open_etcd(
    found: MetadataUrl,
    new_cluster_id: Callable[[], str],
    on_fatal: Callable[[str], None],
    *,
    access: Access | None = None,
    timeout_ms: int = 30_000,
) -> EtcdStore:
    """The store in an etcd; see ``EtcdStore.open`` and ``open_store``."""
    try:
        from coordinator.metadata.etcd.calls import GrpcEtcd  # only who has metadata in etcd needs what it imports
    except ImportError as error:
        raise ExtraMissingError(
            f"metadata in etcd needs grpcio and protobuf ({error}): pip install 'aiocohort[etcd]'"
        ) from error

    etcd = GrpcEtcd(found.addresses, replace(access or Access(), tls=found.tls), Pace())
    try:
        return await EtcdStore.open(etcd, found.name, new_cluster_id, on_fatal, timeout_ms=timeout_ms)
    except BaseException:
        await etcd.close()
        raise
