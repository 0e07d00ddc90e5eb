"""What a node that leads does while the metadata cannot be reached: it refuses, or goes on where it was told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from coordinator.config import Settings
from coordinator.daemon import Daemon
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.authority import Authority
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.served.server import MetadataServer
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.messages import Request
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import ask, create, fetch, produce

SESSION_MS = 2_000


@asynccontextmanager
async def node_and_metadata(
    root: Path, without_quorum: Literal["no", "yes"]
) -> AsyncIterator[tuple[str, MetadataServer]]:
    """A node's address, and the server of its metadata."""
    server = MetadataServer(MemoryStore(Authority(), "c", asyncio.get_running_loop().time), lambda: "id")
    host, port = await server.start("127.0.0.1", 0)
    given = Settings(port=0, log_level="error", node_session_ms=SESSION_MS, drain_timeout_ms=1_000)
    settings = replace(given, metadata=f"cohort://{host}:{port}/c", serve_without_quorum=without_quorum)
    daemon = Daemon(settings, FileStorage(root), SYSTEM_ORIGINS)
    try:
        await daemon.start()
        yield "{}:{}".format(*daemon.address), server
    finally:
        await daemon.leave()
        await daemon.stop()
        await server.close()


async def told(address: str, request: Request) -> Any:
    """What is said of the one partition that a request is about."""
    async with raw(address) as client:
        answer: Any = decode_message(request.response, await ask(client, request))
    ((partition,),) = (getattr(topic, "partitions", None) or topic.partition_responses for topic in answer.responses)
    return partition


@pytest.mark.parametrize("without_quorum", ["no", "yes"])
async def test_a_leader_without_metadata_serves_only_where_it_is_told_to(
    tmp_path: Path, without_quorum: Literal["no", "yes"]
) -> None:
    async with node_and_metadata(tmp_path, without_quorum) as (address, server):
        async with raw(address) as client:
            await create(client, "orders")
        async with asyncio.timeout(20):
            while (await told(address, produce("orders", b"before", 1))).error_code != ErrorCode.NONE:
                await asyncio.sleep(0.05)
        await server.close()
        await asyncio.sleep(1.5 * SESSION_MS / 1000)
        written = await told(address, produce("orders", b"after", 1))
        read = await told(address, fetch("orders", 0, 0))
        if without_quorum == "yes":
            assert (written.error_code, written.base_offset) == (ErrorCode.NONE, 1)
            assert read.error_code == ErrorCode.NONE
            assert b"before" in read.records
            assert b"after" in read.records
        else:
            assert {written.error_code, read.error_code} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
            assert read.records == b""
