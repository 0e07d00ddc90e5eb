"""The local store keeps the contract, on real files and on the disk of the simulation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import Storage
from coordinator.metadata.local import LocalMetadataStore
from tests.coordinator.log.logs import end_of_process
from tests.coordinator.metadata.contract import Cluster, StoreContract
from tests.simulation.disk import SimDisk, SimStorage
from tests.simulation.loop import Process


class _OneNode(Cluster):
    """A node that has its metadata for itself."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self.one = self.other = store

    async def pass_time(self, ms: int) -> None:
        """Its leases know no time."""

    async def compact(self) -> None:
        """It keeps no past."""


@pytest.fixture(params=["files", "simulated"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    storage: Storage = FileStorage(str(tmp_path))
    if request.param == "simulated":
        storage = SimStorage(SimDisk(Random(0)), Process("daemon"))
    disk = Disk(storage, threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "c", end_of_process)
    yield _OneNode(store)
    kept = store.range("")
    await store.close()
    again = await LocalMetadataStore.open(disk, lambda: "another", end_of_process)
    assert (again.range(""), again.revision, again.cluster_id) == (kept, store.revision, "c")
    disk.close()


class TestLocalStore(StoreContract):
    """All of it; what a test wrote is there after a stop and a start."""
