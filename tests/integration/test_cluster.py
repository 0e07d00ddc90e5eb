"""A cluster inside a program: its nodes are killed, stopped and started."""

from __future__ import annotations

import pytest

from client import Admin, Consumer, Producer
from coordinator.cluster import Cluster


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


async def test_outside_of_its_block_a_cluster_has_no_address() -> None:
    cluster = Cluster(nodes=1)
    with pytest.raises(RuntimeError, match="inside 'async with'"):
        _ = cluster.address
    with pytest.raises(ValueError, match="a cluster of 0 nodes"):
        Cluster(nodes=0)
