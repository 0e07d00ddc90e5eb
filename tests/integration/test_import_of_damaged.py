"""A directory that lacks a log becomes the first node of a cluster: the log is lost, and everything else is served."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from client import Admin, Producer
from client.errors import CohortError
from coordinator import Coordinator
from coordinator.config import settings_from
from coordinator.daemon import Daemon
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.authority import Authority
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.served.server import MetadataServer


async def single_node(root: Path) -> str:
    """Makes the directory of one with a record in each of three partitions; returns the id of its cluster."""
    async with Coordinator(data_dir=str(root)) as running, Producer(running.address) as producer:
        async with Admin(running.address) as admin:
            await admin.create_topics({"t": 3})
        for partition in range(3):
            await producer.send_and_wait("t", b"before", partition=partition)
    return str(json.loads((root / "metadata.json").read_bytes().splitlines()[0])["cluster_id"])


@asynccontextmanager
async def node(root: Path, url: str) -> AsyncIterator[str]:
    given = {"metadata": url, "data_dir": str(root), "port": 0, "import_metadata": "yes", "log_level": "error"}
    daemon = Daemon(settings_from({**given, "node_session_ms": 2_000}), FileStorage(root), SYSTEM_ORIGINS)
    try:
        await daemon.start()
        yield "{}:{}".format(*daemon.address)
    finally:
        await daemon.stop()


async def test_a_log_that_is_missing_is_told_as_lost_by_its_name(tmp_path: Path) -> None:
    root = tmp_path / "data"
    cluster_id = await single_node(root)
    shutil.rmtree(root / "t-1")
    server = MetadataServer(MemoryStore(Authority(), cluster_id, asyncio.get_running_loop().time), lambda: "id")
    host, port = await server.start("127.0.0.1", 0)
    try:
        for again in range(2):
            async with node(root, f"cohort://{host}:{port}/c") as address:
                async with Producer(address, delivery_timeout_ms=3_000, request_timeout_ms=1_000) as producer:
                    sent = await producer.send_and_wait("t", b"after", partition=0)
                    assert sent.offset == 1 + again
                    with pytest.raises(CohortError, match=r"t-1 is damaged at its directory: it is missing"):
                        await producer.send_and_wait("t", b"after", partition=1)
                assert not (root / "t-1").exists()
    finally:
        await server.close()
