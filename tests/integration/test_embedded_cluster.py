"""A cluster inside a program, and the pytest fixture: nodes keep their addresses, and one that fails is told of."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from aiocohort.testing import RunningCluster

from client import Admin, Consumer, Producer
from coordinator.cluster import Cluster
from coordinator.config import Settings
from coordinator.daemon import Daemon, DaemonFailedError
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.authority import Put
from coordinator.metadata.keys import CLUSTER_FORMAT
from coordinator.nodes.registration import FORMAT, RegistrationRefusedError


async def test_what_was_acknowledged_is_there_after_a_kill_and_the_address_stays() -> None:
    async with Cluster(nodes=1) as cluster:
        address = cluster.address
        async with Admin(address) as admin:
            await admin.create_topics({"orders": 2})
        async with Producer(address) as producer:
            for number in range(20):
                await producer.send_and_wait("orders", f"{number}".encode())
        await cluster.kill(0)
        assert not cluster.is_running(0)
        await cluster.start(0)
        assert cluster.address == address
        async with Consumer("orders", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            values = [(await consumer.getone()).value for _ in range(20)]
        assert sorted(values) == sorted(f"{number}".encode() for number in range(20))


async def test_a_daemon_that_has_to_end_is_told_at_the_end() -> None:
    cluster = Cluster(nodes=1)
    await cluster.__aenter__()
    daemon = cluster._nodes[0]._daemon
    assert daemon is not None
    daemon.fail("its disk is gone")
    with pytest.raises(DaemonFailedError, match="node 0: its disk is gone"):
        await cluster.__aexit__(None, None, None)


def test_the_fixture_kills_and_starts_nodes(cohort_cluster: RunningCluster) -> None:
    async def sent(value: bytes) -> int:
        async with Producer(cohort_cluster.address) as producer:
            return (await producer.send_and_wait("orders", value, partition=0)).offset

    async def created() -> None:
        async with Admin(cohort_cluster.address) as admin:
            await admin.create_topics({"orders": 1})

    asyncio.run(created())
    assert asyncio.run(sent(b"a")) == 0
    cohort_cluster.kill(0)
    assert asyncio.run(sent(b"b")) == 1
    cohort_cluster.start(0)
    cohort_cluster.stop(1)
    assert asyncio.run(sent(b"c")) == 2


async def test_outside_of_its_block_a_cluster_has_no_address() -> None:
    cluster = Cluster(nodes=1)
    with pytest.raises(RuntimeError, match="inside 'async with'"):
        _ = cluster.address
    with pytest.raises(ValueError, match="a cluster of 0 nodes"):
        Cluster(nodes=0)


async def test_a_node_of_an_older_format_than_the_cluster_s_opens_nothing_and_says_which() -> None:
    async with Cluster(nodes=2) as cluster:
        await cluster.stop(1)
        store = cluster._nodes[0]._store
        assert store is not None
        await store.transaction([], [Put(CLUSTER_FORMAT, {"format": FORMAT + 1})])
        with pytest.raises(RegistrationRefusedError, match=f"metadata have format {FORMAT + 1}"):
            await cluster.start(1)
        assert cluster.is_running(0)


async def test_a_daemon_that_has_to_end_closes_its_connection_to_the_metadata(tmp_path: Path) -> None:
    """A program that goes on must not keep it: the node's lease would be held, and its session answered."""
    storages = [FileStorage(tmp_path / name) for name in ("serving", "served")]
    given = Settings(port=0, host="127.0.0.1", log_level="error", node_session_ms=2_000)
    first = Daemon(replace(given, serve_metadata="127.0.0.1:0", node_id=1), storages[0], SYSTEM_ORIGINS)
    await first.start()
    try:
        server = first._metadata_server
        assert server is not None
        assert server._server is not None
        host, port = server._server.sockets[0].getsockname()
        url = f"cohort://{host}:{port}/lines"
        second = Daemon(replace(given, metadata=url, node_id=2), storages[1], SYSTEM_ORIGINS)
        await second.start()
        assert len(server._connections) == 1
        second.fail("its disk is gone")
        await second.stop()
        async with asyncio.timeout(10):
            while server._connections:
                await asyncio.sleep(0.01)
        assert "cohort-metadata" not in {task.get_name() for task in asyncio.all_tasks()}
    finally:
        await first.stop()
