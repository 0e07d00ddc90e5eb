"""A single node's directory becomes a cluster's first node, on a real etcd: records, offsets and identity stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from client import Admin, Consumer, Producer
from coordinator import Coordinator
from coordinator.config import settings_from
from coordinator.daemon import Daemon
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.encoding import MetadataDamagedError
from protocol.codec import decode_message
from protocol.messages import Request
from protocol.messages.reassignment import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.etcd.members import Members
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import ask


def daemon_on(directory: Path, metadata: str, **settings: Any) -> Daemon:
    """A node of a cluster, which is not started."""
    given = {
        "metadata": metadata,
        "data_dir": str(directory),
        "port": 0,
        "node_session_ms": 2_000,
        "log_level": "error",
    }
    return Daemon(settings_from({**given, **settings}), FileStorage(directory), SYSTEM_ORIGINS)


def address_of(daemon: Daemon) -> str:
    """Where clients reach it."""
    return f"127.0.0.1:{daemon.address[1]}"


@asynccontextmanager
async def node(directory: Path, metadata: str, **settings: Any) -> AsyncIterator[str]:
    """A daemon of a cluster; its address."""
    daemon = daemon_on(directory, metadata, **settings)
    await daemon.start()
    try:
        yield address_of(daemon)
    finally:
        await daemon.stop()


async def read(address: str, group: str) -> list[bytes | None]:
    """What a group has not read yet, and commits then."""
    values: list[bytes | None] = []
    async with Consumer("t", bootstrap_servers=address, group_id=group, auto_offset_reset="earliest") as consumer:
        for _ in range(20):
            found = await consumer.getmany(timeout_ms=500)
            values += [record.value for records in found.values() for record in records]
            if values and not found:
                break
        await consumer.commit()
    return sorted(values, key=str)


async def single_node(directory: Path) -> None:
    """A single node's directory: 30 records in three partitions that group "g" has read, and one more."""
    async with Coordinator(data_dir=str(directory)) as running:
        async with Admin(running.address) as admin:
            await admin.create_topics({"t": 3})
        async with Producer(running.address) as producer:
            for number in range(30):
                await producer.send_and_wait("t", f"{number:02}".encode(), partition=number % 3)
        assert len(await read(running.address, "g")) == 30
        async with Producer(running.address) as producer:
            await producer.send_and_wait("t", b"after")


async def test_a_single_nodes_directory_becomes_the_first_of_a_cluster(one_member: Members, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    await single_node(old)
    host, port = one_member.addresses[0]
    metadata = f"etcd://{host}:{port}/imported"
    with pytest.raises(MetadataDamagedError, match=r"data directory of a single node .* --import-metadata yes to make"):
        async with node(old, metadata):
            pytest.fail("it was taken without being asked for")
    async with node(old, metadata, import_metadata="yes") as address:
        assert await read(address, "g") == [b"after"], "the group goes on where it was"
        assert len(await read(address, "another")) == 31
        async with node(new, metadata) as other:
            async with Producer(other) as producer:
                await producer.send_and_wait("t", b"by the other node", partition=1)
            assert await read(other, "g") == [b"by the other node"]
    async with node(old, metadata, import_metadata="yes") as address:
        assert len(await read(address, "again")) == 32, "twice changes nothing"
    async with Coordinator(data_dir=str(tmp_path / "second")):
        pass
    with pytest.raises(MetadataDamagedError, match="a directory is imported into a cluster that does not exist yet"):
        async with node(tmp_path / "second", metadata, import_metadata="yes"):
            pytest.fail("the directory of another cluster was taken")


async def asked(address: str, request: Request) -> Any:
    """The answer of one node."""
    async with raw(address) as client:
        return decode_message(request.response, await ask(client, request))


async def test_what_a_single_node_had_outlives_it_once_other_nodes_have_it(one_member: Members, tmp_path: Path) -> None:
    await single_node(tmp_path / "0")
    host, port = one_member.addresses[0]
    metadata = f"etcd://{host}:{port}/grown"
    daemons = [
        daemon_on(tmp_path / str(number), metadata, import_metadata="no" if number else "yes") for number in range(3)
    ]
    try:
        for daemon in daemons:
            await daemon.start()
        numbers = tuple(daemon.settings.node_id for daemon in daemons)
        assert numbers == (0, 1, 2)
        address = address_of(daemons[1])
        counts = {"t": 3, "__consumer_offsets": 50, "__transaction_state": 50}
        wanted = tuple(
            ReassignableTopic(name, tuple(ReassignablePartition(index, numbers) for index in range(count)))
            for name, count in counts.items()
        )
        noted = await asked(address, AlterPartitionReassignmentsRequest(wanted))
        assert {entry.error_code for topic in noted.responses for entry in topic.partitions} == {0}
        async with asyncio.timeout(60):
            while (await asked(address, ListPartitionReassignmentsRequest())).topics:
                await asyncio.sleep(0.1)
        daemons[0].fail("killed by the test")
        await daemons[0].stop()
        assert len(await read(address, "another")) == 31
        assert await read(address, "g") == [b"after"], "the group goes on where it was"
    finally:
        await asyncio.gather(*(daemon.stop() for daemon in daemons))
