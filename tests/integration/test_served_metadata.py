"""A cluster without an etcd, started with the lines of docs/cluster.md: the first node serves its own metadata."""

from __future__ import annotations

import asyncio
from pathlib import Path

from client import Admin, Producer
from tests.daemon_process import DaemonProcess
from tests.etcd.members import free_ports


async def test_nodes_share_the_metadata_that_the_first_of_them_serves(tmp_path: Path) -> None:
    served = f"127.0.0.1:{free_ports(1)[0]}"
    nodes = [DaemonProcess(tmp_path / "a", "--serve-metadata", served)]
    nodes += [DaemonProcess(tmp_path / name, "--metadata", f"cohort://{served}/orders") for name in "bc"]
    try:
        for node in nodes:
            await asyncio.to_thread(node.start)
        async with Admin(nodes[1].address) as admin:
            described = await admin.describe_cluster()
            assert [node.node_id for node in described.nodes] == [1, 2, 3]
            await admin.create_topics({"lines": 3}, replication_factor=3)
        async with Producer(nodes[2].address) as producer:
            for _ in range(30):
                await producer.send_and_wait("lines", b"on three disks")
        assert [await asyncio.to_thread(node.terminate) for node in reversed(nodes)] == [0, 0, 0]
        assert "not replicated" in "".join(nodes[0].output)
    finally:
        for node in nodes:
            if node._process is not None:
                await asyncio.to_thread(node.kill)
